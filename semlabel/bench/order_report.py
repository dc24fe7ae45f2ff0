"""The order benchmark for people: a Markdown table and a plot of changed decisions.

Knows nothing of how decisions are made.
"""

from collections.abc import Sequence
from typing import Any

from semlabel.bench.output import markdown_table
from semlabel.bench.page import not_measured, provenance, share, share_bars

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
    parts = [
        "# Order\n",
        provenance(document, f"texts: {document['source']}"),
        _NOTES,
        table(document),
    ]
    for cell in document["cells"]:
        parts.append(_sentence(cell))
    parts += not_measured(document, ["method", "precision"])
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
        share(cell["mean_changed_share"]),
        share(cell["mean_changed_share_of_yes"]),
        f"{cell['ever_changed']:,}",
        share(cell["ever_changed_share"]),
        share(cell["ever_changed_share_of_yes"]),
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


def plot(cells: Sequence[Cell]) -> bytes:
    """A PNG: shares of changed decisions per method, of all and of YES."""
    bars = (
        ("mean_changed_share", "mean, of all", "#9bbcd6"),
        ("mean_changed_share_of_yes", "mean, of YES", "#1b6ca8"),
        ("ever_changed_share", "ever, of all", "#e3bd95"),
        ("ever_changed_share_of_yes", "ever, of YES", "#c1762f"),
    )
    return share_bars(
        cells,
        bars,
        width=0.2,
        title="candidates reordered",
        what="changed decisions",
    )
