"""The two gates of drift, and what a published version carries on for them.

Knows the predictions, the version that readers see now and the settings. Knows nothing of statistics. Within one
labeler every night adds to what its earlier versions carry; another labeler, or a change that somebody approved,
begins anew.
"""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assets.changes import published_version, replaces
from assets.checks import GateCheck, gate_check
from resources.project import Step

if TYPE_CHECKING:
    from semlabel.drift.night import Night
    from semlabel.drift.quality import Measures
    from semlabel.drift.state import History
    from semlabel.gates import GateResult
    from semlabel.warehouse import Warehouse

_NIGHTS_A_YEAR = 365
_GATES = 2
_LIMITS = ("gates.drift_false_alarms",)


def carry_on(step: Step, warehouse: "Warehouse", staged: Path, version: str, before: Path | None) -> None:
    """Write into a version that is being staged what the next one will be compared with; `before` is the last one."""
    from semlabel.drift import night
    from semlabel.drift.state import write_history

    history = _standing(step, warehouse, before)
    if before is None or history is None:
        history = _first(step, warehouse, version)
    else:
        tonight = night.night_against(warehouse, before)
        measures = night.measures_now(warehouse, history.cuts, _rounding(step, warehouse))
        arrived = _arrived(history, night.agreement_of_arrivals(warehouse, before))
        history = history.over(tonight.candidates).after(tonight.span, measures, arrived)
    write_history(staged, history)
    night.write_references(warehouse, staged)


def _first(step: Step, warehouse: "Warehouse", version: str) -> "History":
    from semlabel.drift import night
    from semlabel.drift.state import History

    cuts = night.margin_cuts(warehouse)
    measures = night.measures_now(warehouse, cuts, _rounding(step, warehouse))
    candidates = tuple(row[0] for row in warehouse.rows("SELECT candidate_id FROM catalog ORDER BY position"))
    first = measures | night.agreement_at_first(warehouse)
    return History(_labeler(warehouse), version, candidates, cuts, first, measures)


def _standing(step: Step, warehouse: "Warehouse", before: Path | None) -> "History | None":
    """What the published version carries, where it is of this labeler and no change was approved that ends it.

    That is the present change, or the one that brought the published version: drift is mostly seen and judged when the
    table is out already.
    """
    from semlabel.drift.state import read_history

    history = read_history(before) if before is not None else None
    if before is None or history is None or history.labeler_digest != _labeler(warehouse):
        return None
    approved = step.operations.approved
    begins_there = history.count == 0
    if approved(warehouse.predictions_digest()) or (not begins_there and any(map(approved, _published_rows(before)))):
        return None
    return history


def _published_rows(version: Path) -> set[str]:
    """The digest of the predictions that a version was made of, as its verdicts name it."""
    from semlabel.published import read_manifest

    verdicts = read_manifest(version)["verdicts"]
    return {str(row["subject_digest"]) for row in verdicts if row["asset"] == "predictions" and row["subject_digest"]}


def _labels(step: Step) -> "GateResult":
    from semlabel import gates
    from semlabel.drift.labels import Limits, findings, spans_of
    from semlabel.drift.night import night_against

    with step.reader() as warehouse:
        before = published_version(step, warehouse)
        history = _standing(step, warehouse, before)
        rows = warehouse.predictions_count()
        tonight = night_against(warehouse, before) if before is not None else None
    limits = step.settings.gates
    if tonight is None or history is None:
        return gates.label_rate_drift([], rows, 0, limits.drift_points, churn=_churn(tonight))
    earlier = history.over(tonight.candidates)
    found = findings(
        tonight.candidates,
        spans_of(earlier.nights, earlier.since, tonight.span),
        Limits(_alpha(step), limits.drift_points, limits.drift_labels),
    )
    told = [asdict(finding) | {"moved": finding.moved} for finding in found]
    return gates.label_rate_drift(told, rows, history.count + 1, limits.drift_points, tonight.reasons)


def _churn(night: "Night | None") -> float | None:
    return night.share_changed if night is not None else None


def _quality(step: Step) -> "GateResult":
    from semlabel import gates
    from semlabel.drift import night
    from semlabel.drift.quality import QualityLimits, shifts

    with step.reader() as warehouse:
        before = published_version(step, warehouse)
        history = _standing(step, warehouse, before)
        cuts = history.cuts if history is not None else night.margin_cuts(warehouse)
        measures = night.measures_now(warehouse, cuts, _rounding(step, warehouse)) if cuts else {}
        tonight = night.agreement_of_arrivals(warehouse, before) if before is not None else {}
    limits = step.settings.gates
    if history is None:
        return gates.data_drift([], _rows(measures), 0, limits.quality_points)
    now = measures | _arrived(history, tonight)
    found = shifts(
        now, history.last, history.first, QualityLimits(_alpha(step), limits.quality_points, limits.quality_length)
    )
    return gates.data_drift([asdict(shift) for shift in found], _rows(now), history.count + 1, limits.quality_points)


def _arrived(history: "History", tonight: "Measures") -> "Measures":
    """The agreement with all references that arrived since the labeler's first version."""
    from semlabel.drift.sums import Sums

    names = {**history.arrived, **tonight}
    return {name: history.arrived.get(name, Sums()) + tonight.get(name, Sums()) for name in names}


def _rows(measures: "Measures") -> list[dict[str, Any]]:
    return [{"name": name, "share": sums.share, "entities": sums.entities} for name, sums in measures.items()]


def _alpha(step: Step) -> float:
    """The chance of a false alarm that one gate has in one night."""
    return step.settings.gates.drift_false_alarms / _NIGHTS_A_YEAR / _GATES


def _rounding(step: Step, warehouse: "Warehouse") -> float:
    from assets.labelers import needed_labeler

    _, manifest = needed_labeler(step)
    return step.settings.gates.parity_tolerance(manifest.precision)


def _labeler(warehouse: "Warehouse") -> str:
    from semlabel.errors import GateBlocked

    active = warehouse.active_labeler()
    if active is None:
        raise GateBlocked("there are no predictions yet; run predictions first")
    return str(active["labeler_digest"])


def _basis(step: Step) -> Any:
    """What the comparison depends on besides the predictions, the version before and the limits.

    Whether it goes on from that version (somebody may approve at any time what ends it), which references there are and
    whose may be looked at, and what was refused.
    """
    with step.reader() as warehouse:
        goes_on = _standing(step, warehouse, published_version(step, warehouse)) is not None
        judged = [warehouse.content_digest(table) for table in ("reference_labels", "training_pairs")]
        refused = warehouse.rows("SELECT count(*), max(refused_at) FROM refused_rows WHERE source = 'entities'")
    return [goes_on, judged, str(refused)]


label_rate_drift = gate_check(
    GateCheck(
        "label_rate_drift",
        subject=Step.predictions_digest,
        evidence=_labels,
        limits=(*_LIMITS, "gates.drift_points", "gates.drift_labels"),
        also=_basis,
        replaces=replaces,
        one_look=True,
    )
)
data_drift = gate_check(
    GateCheck(
        "data_drift",
        subject=Step.predictions_digest,
        evidence=_quality,
        limits=(
            *_LIMITS,
            "gates.quality_points",
            "gates.quality_length",
            "gates.parity_tolerance_fp32",
            "gates.parity_tolerance_bf16",
        ),
        also=_basis,
        replaces=replaces,
        one_look=True,
    )
)
