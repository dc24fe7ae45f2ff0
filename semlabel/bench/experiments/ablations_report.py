"""Variants of a recipe for people: a Markdown table and a plot of average precision.

Knows nothing of how anything was trained.
"""

from typing import Any

from semlabel.bench.output import markdown_table
from semlabel.bench.page import not_measured, png, provenance

Cell = dict[str, Any]
_HEADERS = [
    "variant",
    "AUC",
    "average precision",
    "difference",
    "F1",
    "pairs",
    "steps",
    "trained s",
    "tokens, query + item",
    "labels/s",
]
_NOTES = """
{pairs:,} training pairs each (a variant whose rounds do not divide them has fewer), the same entities held out: the
natural cross product of {entities} entities ({judged:,} pairs, {positives:,} of them YES). `difference`: average
precision against {recipe}, on the same drawn entities. Intervals: 95 %, bootstrap over entities and over {seeds}. F1 at
the cut that is best on calibrate; lists are judged under answers fed back without a cut. Every variant has the
recipe's learning rate unless its name or its settings say otherwise. Labels/s are those of judging the test
entities, without loading.
"""


def markdown(document: dict[str, Any]) -> str:
    """The whole result as Markdown."""
    plan, test = document["plan"], document["held_out"]["test"]
    seeds = len(plan["seeds"])
    parts = [
        "# Variants of the recipe\n",
        provenance(document),
        _NOTES.format(
            pairs=plan["pairs"],
            entities=test["entities"],
            judged=test["pairs"],
            positives=test["positives"],
            recipe=document["cells"][0]["variant"],
            seeds=f"{seeds} seed{'s' if seeds > 1 else ''}",
        ),
        table(document),
    ]
    parts += not_measured(document, ["variant", "seed"])
    return "\n".join(parts)


def table(document: dict[str, Any]) -> str:
    """All variants as one table."""
    return markdown_table(_HEADERS, [_row(cell) for cell in document["cells"]])


def _row(cell: Cell) -> list[str]:
    tokens = "-"
    if cell["tokens_per_item"] is not None:
        tokens = f"{cell['tokens_per_query']:.0f} + {cell['tokens_per_item']:.1f}"
    return [
        cell["variant"],
        _estimate(cell["auc"]),
        _estimate(cell["average_precision"]),
        _estimate(cell["average_precision_difference"], sign="+"),
        _estimate(cell["f1"]),
        _count(cell["pairs_trained"]),
        _count(cell["steps"]),
        _count(cell["training_seconds"]),
        tokens,
        _count(cell["labels_per_s"]),
    ]


def _estimate(found: dict[str, float | None] | None, sign: str = "") -> str:
    if found is None or found["value"] is None:
        return "-"
    interval = ""
    if found["low"] is not None and found["high"] is not None:
        interval = f" ({found['low']:{sign}.3f} to {found['high']:{sign}.3f})"
    return f"{found['value']:{sign}.3f}{interval}"


def _count(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def plot(document: dict[str, Any]) -> bytes:
    """A PNG: average precision of every variant with its interval."""
    from matplotlib.figure import Figure

    cells = [cell for cell in document["cells"] if cell["average_precision"] is not None][::-1]
    figure = Figure(figsize=(6.4, 1.2 + 0.3 * len(cells)), dpi=100, layout="constrained")
    axes = figure.add_subplot()
    for place, cell in enumerate(cells):
        found = cell["average_precision"]
        value = found["value"] or 0.0
        if found["low"] is not None:
            axes.plot([found["low"], found["high"]], [place, place], color="#9bbcd6", linewidth=3)
        axes.plot([value], [place], "o", color="#1b6ca8", markersize=5)
    axes.set_yticks(range(len(cells)), [cell["variant"] for cell in cells], fontsize=8)
    axes.set_xlabel("average precision", fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    return png(figure)
