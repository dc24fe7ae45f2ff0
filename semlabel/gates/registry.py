"""The list of all gates: name, asset, severity, what it protects, and the version of its code.

Knows nothing of how a gate decides. A gate whose rule changes gets a higher `code_version`, so that stored
verdicts of the old rule no longer count.
"""

from dataclasses import dataclass
from typing import Any

from semlabel.gates.result import GateResult, Severity, Verdict


@dataclass(frozen=True)
class Gate:
    """One gate: `asset` is the table or step it guards, `code_version` identifies the rule that decides.

    An `optional` gate is asked, and required, only where a project has what it is about.
    """

    name: str
    asset: str
    severity: Severity
    description: str
    code_version: str = "1"
    optional: bool = False


def _table(*gates: Gate) -> dict[str, Gate]:
    return {gate.name: gate for gate in gates}


GATES: dict[str, Gate] = _table(
    Gate("catalog_contract", "catalog", "ERROR", "Ids are unique, texts are there, few source rows were refused."),
    Gate(
        "answers_are_single_tokens",
        "catalog",
        "ERROR",
        "The two answers are one token each and differ, so that one logit difference is the whole decision.",
    ),
    Gate(
        "split_tokens_match",
        "catalog",
        "ERROR",
        "Query and item tokens put together are the tokens of the whole prompt.",
    ),
    Gate(
        "entities_contract",
        "entities",
        "ERROR",
        "Ids are unique, texts are there, few source rows were refused, few texts were cut, no entity left its split.",
        code_version="2",
    ),
    Gate(
        "pairs_contract",
        "training_pairs",
        "ERROR",
        "Training pairs are unique, name known ids, and hold both answers; references rarely contradict.",
    ),
    Gate(
        "splits_do_not_leak",
        "training_pairs",
        "ERROR",
        "No entity, nor a near-duplicate of one, stands on two sides of a split.",
    ),
    Gate(
        "held_out_quality",
        "checkpoint",
        "ERROR",
        "On entities never trained on, the ranking is good and beats simple baselines, intervals included.",
    ),
    Gate(
        "mis_matches_single_item",
        "checkpoint",
        "ERROR",
        "A packed round gives the margins that every pair gets when it is scored alone.",
    ),
    Gate("order_invariance", "checkpoint", "ERROR", "Reordering the candidates of a round moves no margin."),
    Gate(
        "held_out_errors",
        "threshold",
        "ERROR",
        "On entities used for nothing else, the errors at the threshold keep the declared limits with confidence.",
    ),
    Gate("predictions_contract", "predictions", "ERROR", "Keys are unique, ids are known, margins are finite."),
    Gate(
        "coverage_is_complete",
        "predictions",
        "ERROR",
        "Every pair of the scope has a prediction or a refusal with its reason.",
    ),
    Gate(
        "shortlist_recall",
        "predictions",
        "ERROR",
        "Where only a shortlist of the catalog is scored, what is YES is in it, with confidence.",
        optional=True,
    ),
    Gate(
        "volume_change",
        "predictions",
        "ERROR",
        "Rows did not vanish and no common candidate changed most of its labels, unless a person approved it.",
        code_version="2",
    ),
    Gate(
        "one_labeler_everywhere",
        "predictions",
        "ERROR",
        "Every path that answers uses the same labeler (an unreachable one is a warning).",
    ),
    Gate(
        "label_rate_drift",
        "predictions",
        "WARN",
        "No share of YES moved by more than chance, since the last publication or the labeler's first one.",
        code_version="2",
    ),
    Gate(
        "data_drift",
        "predictions",
        "WARN",
        "Texts, margins, refusals and the agreement with new references look as they did when the labeler was new.",
    ),
    Gate(
        "snapshot_matches_warehouse",
        "published_predictions",
        "ERROR",
        "The published files hold exactly the rows of the warehouse.",
    ),
)

ALWAYS: tuple[str, ...] = tuple(gate.name for gate in GATES.values() if not gate.optional)
"""The gates that every project has."""

ERROR_GATES_BEFORE_PUBLICATION: tuple[str, ...] = tuple(
    name for name in ALWAYS if GATES[name].severity == "ERROR" and GATES[name].asset != "published_predictions"
)
"""Gates that must have passed before anything is published; the snapshot's own gate runs while publishing."""

SHORTLIST = "shortlist_recall"
"""The gate that a labeler needs as well when it was proven with a shortlist."""


def decide(
    gate: str,
    verdict: Verdict,
    sentence: str,
    value: Any = None,
    limit: Any = None,
    evidence: dict[str, Any] | None = None,
    severity: Severity | None = None,
) -> GateResult:
    """The result of the registered gate `gate`; raises KeyError for a name that is not registered."""
    known = GATES[gate]
    return GateResult(gate, known.asset, severity or known.severity, verdict, value, limit, sentence, evidence or {})


def cannot_compute(gate: str, reason: str) -> GateResult:
    """The result of a gate whose evidence could not be gathered: a failure that says why, never a pass."""
    known = GATES[gate]
    told = " ".join(reason.split()) or "no reason was given"
    return GateResult(
        gate=gate,
        asset=known.asset,
        severity=known.severity,
        verdict="fail",
        value=None,
        limit=None,
        sentence=f"{gate} could not be computed ({told}): mend the cause and run it again.",
        evidence={"reason": told},
        computed=False,
    )
