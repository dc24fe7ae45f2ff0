"""Gates of drift: what moved in labels, in texts and in the agreement with references, told apart from chance.

They know nothing of statistics or of how a night was measured: `semlabel.drift` finds, these turn its findings into a
verdict. Within one labeler only: a labeler that is new is compared with nothing, and what it changed is told instead.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from semlabel.gates.registry import decide
from semlabel.gates.result import GateResult


def label_rate_drift(
    findings: Sequence[Mapping[str, Any]],
    rows: int,
    nights: int,
    limit: float,
    reasons: Mapping[str, int] | None = None,
    churn: float | None = None,
) -> GateResult:
    """Warns when a share of YES moved by at least `limit` (0.005 is half a point) and by more than chance.

    `findings`, largest first: dicts with `name` (a candidate, or all), `span`, `before`, `now`, `arrived` (a share or
    None), `up`, `down`, `moved`, `p`. `rows` were judged now; `nights` is how many comparisons there are since the
    labeler's first version, this one included, 0 where it begins. Then `churn` is the share of the earlier labels that
    changed (None without earlier ones). `reasons`: flipped labels of this night by reason.
    """
    gate = "label_rate_drift"
    evidence: dict[str, Any] = {
        "findings": [dict(finding) for finding in findings],
        "rows": rows,
        "nights": nights,
        "flips_by_reason": dict(reasons or {}),
        "churn": churn,
        "drift_points": limit,
    }
    if rows <= 0:
        sentence = "No label rate was measured: score the scope first."
        return decide(gate, "not_enough_data", sentence, None, limit, evidence)
    if nights <= 0:
        told = f"; {churn:.1%} of the published labels change with it" if churn is not None else ""
        sentence = f"These are the labeler's first labels, which later ones will be compared with{told}."
        return decide(gate, "pass", sentence, 0, limit, evidence)
    if findings:
        first = findings[0]
        largest = max(float(finding["moved"]) for finding in findings)
        sentence = (
            f"{_count(findings, 'share')} of YES moved, first {first['name']} from {first['before']:.2%} to "
            f"{first['now']:.2%} ({first['span']}): look at the sources, then retrain if it is real."
        )
        return decide(gate, "fail", sentence, largest, limit, evidence)
    sentence = f"No share of YES moved by more than chance, tonight or over {nights} nights of this labeler."
    return decide(gate, "pass", sentence, 0, limit, evidence)


def data_drift(
    shifts: Sequence[Mapping[str, Any]],
    measures: Sequence[Mapping[str, Any]],
    nights: int,
    limit: float,
) -> GateResult:
    """Warns when texts, margins or the agreement with new references moved by at least `limit` and more than chance.

    `shifts`, largest first: dicts with `name`, `against`, `before`, `now`, `p`. `measures` are all that were looked at,
    dicts with `name`, `share` and `entities`; `nights` as in `label_rate_drift`.
    """
    gate = "data_drift"
    evidence: dict[str, Any] = {
        "shifts": [dict(shift) for shift in shifts],
        "measures": [dict(measure) for measure in measures],
        "nights": nights,
        "quality_points": limit,
    }
    if not any(measure["entities"] for measure in measures):
        sentence = "No text and no margin was measured: score the scope first."
        return decide(gate, "not_enough_data", sentence, None, limit, evidence)
    if nights <= 0:
        sentence = "These are the labeler's first texts and margins, which later ones will be compared with."
        return decide(gate, "pass", sentence, 0, limit, evidence)
    if shifts:
        first = shifts[0]
        sentence = (
            f"{_count(shifts, 'measure')} of texts, margins or agreement moved, first {first['name']} from "
            f"{first['before']:.4g} to {first['now']:.4g} against {first['against']}: look at what the sources deliver."
        )
        return decide(gate, "fail", sentence, len(shifts), 0, evidence)
    sentence = f"None of {len(measures)} measures of texts, margins and agreement moved by more than chance."
    return decide(gate, "pass", sentence, 0, 0, evidence)


def _count(rows: Sequence[Any], noun: str) -> str:
    return f"1 {noun}" if len(rows) == 1 else f"{len(rows)} {noun}s"
