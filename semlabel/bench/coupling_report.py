"""The coupling benchmark for people: a Markdown table and a plot of changed answers.

Knows nothing of how answers are made.
"""

from collections.abc import Sequence
from typing import Any

from semlabel.bench.output import markdown_table
from semlabel.bench.page import not_measured, provenance, share, share_bars

Cell = dict[str, Any]
_HEADERS = ["method", "precision", "answers of others", "YES", "changed", "of all", "of YES", "lists with a change"]
_NOTES = """
In every list of 20 candidates one is replaced by random words; counted are the answers about the other 19, against the
same lists without noise. Shares of YES are over the answers that are YES with or without it. A missing answer counts as
changed. Packed scoring has all lists of an entity in one round.
"""


def markdown(document: dict[str, Any]) -> str:
    """The whole result as Markdown."""
    parts = [
        "# Coupling\n",
        provenance(document, f"texts: {document['source']}"),
        _NOTES,
        table(document),
    ]
    parts += not_measured(document, ["method", "precision"])
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
        share(cell["changed_share"]),
        share(cell["changed_share_of_yes"]),
        share(cell["lists_with_a_change_share"]),
    ]


def plot(cells: Sequence[Cell]) -> bytes:
    """A PNG: shares of changed answers per method, of all and of YES."""
    bars = (("changed_share", "of all", "#9bbcd6"), ("changed_share_of_yes", "of YES", "#1b6ca8"))
    return share_bars(
        cells,
        bars,
        width=0.4,
        title="one candidate of 20 replaced by noise",
        what="changed answers of the others",
    )
