"""The order benchmark for people: a Markdown table and a plot of changed decisions.

Knows nothing of how decisions are made.
"""

import io
from collections.abc import Sequence
from typing import Any

from semlabel.bench.output import markdown_table

Cell = dict[str, Any]
_HEADERS = [
    "method",
    "precision",
    "orders",
    "decisions",
    "YES",
    "changed (mean)",
    "of all",
    "of YES",
    "ever changed",
    "of all",
    "of YES",
    "largest margin difference",
]
_NOTES = """
The same decisions with the candidates in other orders. `changed (mean)`: against order 0, mean over the other orders;
`ever changed`: in at least one of them. Shares of YES are over the decisions that are YES in either order (for `ever`:
in any). A missing answer counts as changed.
"""


def markdown(document: dict[str, Any]) -> str:
    """The whole result as Markdown."""
    where = document["environment"]
    parts = [
        "# Order\n",
        f"{where['machine']}; {where['device']}; commit {where['commit'] or 'unknown'}; {where['date']}; "
        f"model {document['model']}; texts: {document['source']}.\n",
        _NOTES,
        table(document),
    ]
    for cell in document["cells"]:
        parts.append(_sentence(cell))
    if document["missing"]:
        rows = [[entry["method"], entry["precision"], entry["reason"]] for entry in document["missing"]]
        parts += ["## Not measured\n", markdown_table(["method", "precision", "why"], rows)]
    return "\n".join(parts)


def table(document: dict[str, Any]) -> str:
    """All methods as one table."""
    return markdown_table(_HEADERS, [_row(cell) for cell in document["cells"]])


def _row(cell: Cell) -> list[str]:
    return [
        cell["method"],
        cell["precision"],
        str(cell["orders"]),
        f"{cell['decisions']:,}",
        f"{cell['yes']:,}",
        f"{cell['mean_changed']:.1f}",
        _share(cell["mean_changed_share"]),
        _share(cell["mean_changed_share_of_yes"]),
        f"{cell['ever_changed']:,}",
        _share(cell["ever_changed_share"]),
        _share(cell["ever_changed_share_of_yes"]),
        "-" if cell["largest_margin_difference"] is None else f"{cell['largest_margin_difference']:.1e}",
    ]


def _sentence(cell: Cell) -> str:
    if cell["method"] == "mis":
        text = f"mis {cell['precision']}: cut {cell['threshold']:.4g} ({cell['threshold_from']})"
        return text + (".\n" if cell["enough_yes"] else "; too few YES labels for a verdict about them.\n")
    return (
        f"{cell['method']}: {cell['lists']:,} lists about {cell['lists_candidates']:,} candidates; "
        f"{cell['lists_malformed']:,} malformed and {cell['lists_extra']:,} extra lines, {cell['lists_missing']:,} "
        f"missing and {cell['lists_duplicated']:,} duplicated answers, {cell['lists_unfinished']:,} lists cut off.\n"
    )


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.4%}"


def plot(cells: Sequence[Cell]) -> bytes:
    """A PNG: shares of changed decisions per method, of all and of YES."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 3.4), dpi=100, layout="constrained")
    axes = figure.add_subplot()
    names = [f"{cell['method']}\n{cell['precision']}" for cell in cells]
    bars = (
        ("mean_changed_share", "mean, of all", "#9bbcd6"),
        ("mean_changed_share_of_yes", "mean, of YES", "#1b6ca8"),
        ("ever_changed_share", "ever, of all", "#e3bd95"),
        ("ever_changed_share_of_yes", "ever, of YES", "#c1762f"),
    )
    for number, (field, label, color) in enumerate(bars):
        places = [place + 0.2 * number - 0.3 for place in range(len(cells))]
        axes.bar(places, [100 * (cell[field] or 0.0) for cell in cells], 0.2, label=label, color=color)
    axes.set_xticks(range(len(names)), names, fontsize=7)
    axes.set_ylabel("changed decisions, %", fontsize=9)
    axes.set_title("candidates reordered", fontsize=10, loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8)
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png")
    return drawn.getvalue()
