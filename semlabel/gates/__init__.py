"""The gates of the recipe: pure functions from evidence to a verdict, one per check, stage by stage.

They know nothing of where the evidence was measured, of Dagster, or of where results are kept. No gate passes on
empty input: what was not looked at is not good.
"""

from semlabel.gates.checkpoint import held_out_quality, mis_matches_single_item, order_invariance
from semlabel.gates.drift import data_drift, label_rate_drift
from semlabel.gates.predictions import (
    coverage_is_complete,
    one_labeler_everywhere,
    predictions_contract,
    snapshot_matches_warehouse,
    volume_change,
)
from semlabel.gates.prompt import answers_are_single_tokens, split_tokens_match
from semlabel.gates.registry import ALWAYS, ERROR_GATES_BEFORE_PUBLICATION, GATES, Gate, cannot_compute
from semlabel.gates.result import MAX_EVIDENCE_ROWS, GateResult, Severity, Verdict
from semlabel.gates.shortlist import shortlist_recall
from semlabel.gates.subjects import blocking_verdicts, catalog_subject, required_subjects
from semlabel.gates.tables import catalog_contract, entities_contract, pairs_contract, splits_do_not_leak
from semlabel.gates.threshold import held_out_errors

__all__ = [
    "ALWAYS",
    "ERROR_GATES_BEFORE_PUBLICATION",
    "GATES",
    "MAX_EVIDENCE_ROWS",
    "Gate",
    "GateResult",
    "Severity",
    "Verdict",
    "answers_are_single_tokens",
    "blocking_verdicts",
    "cannot_compute",
    "catalog_contract",
    "catalog_subject",
    "coverage_is_complete",
    "data_drift",
    "entities_contract",
    "held_out_errors",
    "held_out_quality",
    "label_rate_drift",
    "mis_matches_single_item",
    "one_labeler_everywhere",
    "order_invariance",
    "pairs_contract",
    "predictions_contract",
    "required_subjects",
    "shortlist_recall",
    "snapshot_matches_warehouse",
    "split_tokens_match",
    "splits_do_not_leak",
    "volume_change",
]
