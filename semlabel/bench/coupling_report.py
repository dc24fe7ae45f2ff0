"""The coupling benchmark for people: a Markdown table and a plot of changed answers.

Knows nothing of how answers are made.
"""

import io
from collections.abc import Sequence
from typing import Any

from semlabel.bench.output import markdown_table

Cell = dict[str, Any]
_HEADERS = ["method", "precision", "answers of others", "YES", "changed", "of all", "of YES", "lists with a change"]
_NOTES = """
In every list of 20 candidates one is replaced by random words; counted are the answers about the other 19, against the
same lists without noise. Shares of YES are over the answers that are YES with or without it. A missing answer counts as
changed. Packed scoring has all lists of an entity in one round.
"""


def markdown(document: dict[str, Any]) -> str:
    """The whole result as Markdown."""
    where = document["environment"]
    parts = [
        "# Coupling\n",
        f"{where['machine']}; {where['device']}; commit {where['commit'] or 'unknown'}; {where['date']}; "
        f"model {document['model']}; texts: {document['source']}.\n",
        _NOTES,
        table(document),
    ]
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
        f"{cell['answers_of_others']:,}",
        f"{cell['yes']:,}",
        f"{cell['changed']:,}",
        _share(cell["changed_share"]),
        _share(cell["changed_share_of_yes"]),
        _share(cell["lists_with_a_change_share"]),
    ]


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.4%}"


def plot(cells: Sequence[Cell]) -> bytes:
    """A PNG: shares of changed answers per method, of all and of YES."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 3.4), dpi=100, layout="constrained")
    axes = figure.add_subplot()
    names = [f"{cell['method']}\n{cell['precision']}" for cell in cells]
    bars = (("changed_share", "of all", "#9bbcd6"), ("changed_share_of_yes", "of YES", "#1b6ca8"))
    for number, (field, label, color) in enumerate(bars):
        places = [place + 0.4 * number - 0.2 for place in range(len(cells))]
        axes.bar(places, [100 * (cell[field] or 0.0) for cell in cells], 0.4, label=label, color=color)
    axes.set_xticks(range(len(names)), names, fontsize=7)
    axes.set_ylabel("changed answers of the others, %", fontsize=9)
    axes.set_title("one candidate of 20 replaced by noise", fontsize=10, loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8)
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png")
    return drawn.getvalue()
