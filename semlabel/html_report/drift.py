"""What has drifted within the labeler's life: shares of YES, texts, margins and the agreement with new references.

Reads what the two gates of drift kept as evidence in the run's verdicts; deliberately knows nothing of statistics or
of the warehouse. Names of candidates come from outside; no entity stands in this evidence.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from semlabel.html_report.markup import Html, figure, outside, paragraph, section, table, tag
from semlabel.html_report.words import REASONS

LABELS, QUALITY = "label_rate_drift", "data_drift"
_MOST_OF_A_SENTENCE = 1_000


def drift_section(rows: Sequence[Mapping[str, Any]]) -> Html:
    """The section, from the verdicts of a run."""
    newest = {str(row["gate"]): row for row in rows}
    return section("Drift", *_part(newest, LABELS, _labels), *_part(newest, QUALITY, _quality))


def _part(newest: Mapping[str, Mapping[str, Any]], gate: str, shown: Any) -> list[Html]:
    heading = tag("h3", "Labels" if gate == LABELS else "Texts, margins and agreement")
    row = newest.get(gate)
    if row is None:
        return [heading, paragraph(f"{gate} was not asked in this run.")]
    return [heading, paragraph(outside(row["sentence"], _MOST_OF_A_SENTENCE)), *shown(row["evidence"])]


def _labels(evidence: Mapping[str, Any]) -> list[Html]:
    rows = [
        [
            outside(row.get("name")),
            outside(row.get("span")),
            *(_share(row.get(name)) for name in ("before", "now", "arrived")),
            *(_number(row.get(name)) for name in ("up", "down", "p")),
        ]
        for row in _rows(evidence, "findings")
    ]
    headers = ("share of YES of", "over", "before", "now", "new entities", "to YES", "to NO", "p")
    parts = [table(headers, rows)] if rows else []
    flips = evidence.get("flips_by_reason")
    if isinstance(flips, Mapping) and flips:
        told = [[outside(REASONS.get(str(name), name)), _number(count)] for name, count in flips.items()]
        parts.append(table(["labels that flipped because", "labels"], told))
    return [*parts, *_total(evidence, "findings", len(rows))]


def _quality(evidence: Mapping[str, Any]) -> list[Html]:
    rows = [
        [outside(row.get("name")), outside(row.get("against")), *(_number(row.get(n)) for n in ("before", "now", "p"))]
        for row in _rows(evidence, "shifts")
    ]
    parts = [table(["measure", "against", "before", "now", "p"], rows)] if rows else []
    measures = [
        [outside(row.get("name")), _number(row.get("share")), _number(row.get("entities"))]
        for row in _rows(evidence, "measures")
    ]
    if measures:
        summary = tag("summary", f"Everything that was measured: {len(measures)}")
        parts.append(tag("details", summary, table(["measure", "mean", "entities"], measures)))
    return [*parts, *_total(evidence, "shifts", len(rows))]


def _rows(evidence: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    found = evidence.get(name)
    return [row for row in found if isinstance(row, Mapping)] if isinstance(found, list) else []


def _total(evidence: Mapping[str, Any], name: str, shown: int) -> list[Html]:
    total = evidence.get(f"{name}_total")
    return [paragraph(f"The largest {shown} of {figure(total)}.")] if isinstance(total, int) else []


def _number(value: Any) -> str:
    return figure(value) if isinstance(value, int | float) and not isinstance(value, bool) else "-"


def _share(value: Any) -> str:
    return f"{value:.2%}" if isinstance(value, int | float) and not isinstance(value, bool) else "-"
