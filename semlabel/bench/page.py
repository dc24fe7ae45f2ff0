"""What the pages of several measurements have in common: where a document comes from, what is missing, bars of shares.

Knows nothing of what was measured.
"""

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from semlabel.bench.output import markdown_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def provenance(document: dict[str, Any], *more: str) -> str:
    """One line: machine, device, commit, date, model, and what else there is to say of its origin."""
    where = document["environment"]
    commit = f"commit {where['commit'] or 'unknown'}"
    said = (where["machine"], where["device"], commit, where["date"], f"model {document['model']}", *more)
    return "; ".join(said) + ".\n"


def not_measured(document: dict[str, Any], columns: Sequence[str]) -> list[str]:
    """The section on what could not be measured, by these fields of an entry; nothing where nothing is missing."""
    if not document["missing"]:
        return []
    rows = [[*(entry[column] for column in columns), entry["reason"]] for entry in document["missing"]]
    return ["## Not measured\n", markdown_table([*columns, "why"], rows)]


def share(value: float | None) -> str:
    """A share with four decimals of a per cent, a dash where it is unknown."""
    return "-" if value is None else f"{value:.4%}"


def share_bars(
    cells: Sequence[dict[str, Any]], bars: Sequence[tuple[str, str, str]], width: float, title: str, what: str
) -> bytes:
    """A PNG: for each method and precision a group of bars (field, label, color) of `width`, in per cent of `what`."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 3.4), dpi=100, layout="constrained")
    axes = figure.add_subplot()
    names = [f"{cell['method']}\n{cell['precision']}" for cell in cells]
    for number, (field, label, color) in enumerate(bars):
        places = [place + width * (number - (len(bars) - 1) / 2) for place in range(len(cells))]
        axes.bar(places, [100 * (cell[field] or 0.0) for cell in cells], width, label=label, color=color)
    axes.set_xticks(range(len(names)), names, fontsize=7)
    axes.set_ylabel(f"{what}, %", fontsize=9)
    axes.set_title(title, fontsize=10, loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8)
    return png(figure)


def png(figure: "Figure") -> bytes:
    """A figure as the bytes of a PNG file."""
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png")
    return drawn.getvalue()
