"""The data-efficiency experiment for people: a Markdown page and a plot of quality against training pairs.

Knows nothing of how anything was trained or drawn.
"""

from typing import Any

from semlabel.bench.output import markdown_table
from semlabel.bench.page import png, provenance

_COLORS = {"mis": "#1b6ca8", "generation": "#7a4fa3"}
NAMES = {"mis": "semantic scoring", "generation": "packed generation, held to a well-formed list"}
TITLES = {"average_precision": "average precision", "f1": "F1"}
_NOTES = """
Same base model, pairs, epochs and entities per step; the best of the learning rates {rates}, chosen on calibrate for
each method and size with the first seed (where the best of several was the smallest or the largest, up to two further
ones were tried; `*`: the best is at an edge nevertheless); the cut (a margin, or the log-odds of an answer) with the
best F1 on calibrate. A list feeds its answers back, so packed generation is ranked under the cut, of that one and none,
with the better average precision on calibrate. Judged on the natural cross product of {entities} held-out entities
({pairs:,} pairs, {positives:,} of them
YES). Intervals: 95 %, bootstrap over entities and over {seeds}. Ratios are read off between the sizes that were tested
and never beyond them.
"""


def markdown(document: dict[str, Any]) -> str:
    """The whole result as Markdown."""
    plan, test = document["plan"], document["held_out"]["test"]
    seeds = len(document["seeds"])
    parts = [
        "# Data efficiency\n",
        provenance(document),
        _NOTES.format(
            rates=", ".join(f"{rate:g}" for rate in plan["learning_rates"]),
            seeds=f"{seeds} seed{'s' if seeds > 1 else ''}",
            **test,
        ),
    ]
    if not document["complete"]:
        parts.append("**Not complete:** run the same command again to go on.\n")
    parts += [curve_table(document), ratio_tables(document), _cells(document), _lists(document)]
    return "\n".join(parts)


def curve_table(document: dict[str, Any]) -> str:
    """Quality of both methods at every size."""
    found = {(row["measure"], row["method"], row["pairs"]): row for row in document["curves"]}
    headers = ["training pairs"] + [f"{NAMES[m].split(',')[0]}: {TITLES[measure]}" for measure in TITLES for m in NAMES]
    rows = [
        [f"{size:,}", *(_with_interval(found[measure, method, size]) for measure in TITLES for method in NAMES)]
        for size in document["plan"]["sizes"]
    ]
    return markdown_table(headers, rows)


def ratio_tables(document: dict[str, Any]) -> str:
    """How many times as many pairs packed generation needs for equal quality."""
    headers = ["measure", "semantic scoring, pairs", "quality", "packed generation needs", "interval"]
    rows = [
        [TITLES[row["measure"]], f"{row['pairs']:,}", f"{row['quality']:.3f}", told(row["ratio"]) + " times", span(row)]
        for row in document["ratios"]
    ]
    sentences = [
        f"At the best {TITLES[row['measure']]} of packed generation ({row['quality']:.3f} with {row['pairs']:,} pairs) "
        f"it has had {told(row['ratio'])} times the pairs of semantic scoring ({span(row)}).\n"
        for row in document["ratio_at_the_best_of_generation"]
    ]
    return "\n".join([markdown_table(headers, rows), *sentences])


def told(number: dict[str, Any]) -> str:
    """A ratio in words: what was not reached is more than what was tested, not a number."""
    words = {"equal": "", "less": "less than ", "more": "more than "}
    return f"{words[number['is']]}{number['value']:.2f}"


def span(row: dict[str, Any]) -> str:
    """The interval of a ratio in words."""
    return f"{told(row['low'])} to {told(row['high'])}"


def _with_interval(row: dict[str, Any]) -> str:
    if row["value"] is None:
        return "-"
    interval = "" if row["low"] is None else f" ({row['low']:.3f}-{row['high']:.3f})"
    return f"{row['value']:.3f}{interval}"


def _cells(document: dict[str, Any]) -> str:
    headers = ["method", "pairs", "seed", "learning rate", "trained s", "AP", "F1", "cut", "labels/s"]
    rows = [
        [
            cell["method"],
            f"{cell['pairs_trained']:,}",
            str(cell["seed"]),
            f"{cell['learning_rate']:g}{'*' if cell['learning_rate_at_an_edge'] else ''}",
            f"{cell['training_seconds']:.0f}",
            f"{cell['average_precision']:.3f}",
            f"{cell['f1']:.3f}",
            f"{cell['threshold']:.2f}",
            f"{cell['labels_per_s']:.0f}",
        ]
        for cell in document["cells"]
    ]
    return "## Trainings\n\n" + markdown_table(headers, rows)


def _lists(document: dict[str, Any]) -> str:
    """Lists written freely, on a part of the test entities."""
    cells = [cell for cell in document["cells"] if "free" in cell]
    if not cells:
        return ""
    headers = ["pairs", "seed", "lists", "malformed", "missing", "duplicated", "extra", "cut off", "F1", "F1, held"]
    names = ("lists", "malformed", "missing", "duplicated", "extra", "unfinished")
    rows = [
        [
            f"{cell['pairs']:,}",
            str(cell["seed"]),
            *(f"{cell['free'][name]:,}" for name in names),
            f"{cell['free']['f1']:.3f}",
            f"{cell['free']['f1_constrained']:.3f}",
        ]
        for cell in cells
    ]
    return "## Lists written freely\n\nOn some of the test entities; a missing answer is no YES.\n\n" + markdown_table(
        headers, rows
    )


def plot(document: dict[str, Any]) -> bytes:
    """A PNG: each measure against training pairs, both methods with their intervals."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.0, 3.6), dpi=100, layout="constrained")
    grid = figure.subplots(1, len(TITLES), squeeze=False)[0]
    sizes = document["plan"]["sizes"]
    for axes, (measure, title) in zip(grid, TITLES.items(), strict=True):
        for method, label in NAMES.items():
            rows = [row for row in document["curves"] if (row["measure"], row["method"]) == (measure, method)]
            axes.plot([r["pairs"] for r in rows], [r["value"] for r in rows], "o-", color=_COLORS[method], label=label)
            low, high = ([r[end] if r[end] is not None else r["value"] for r in rows] for end in ("low", "high"))
            axes.fill_between([r["pairs"] for r in rows], low, high, color=_COLORS[method], alpha=0.15, linewidth=0)
        axes.set_xscale("log", base=2)
        axes.set_xticks(sizes, [f"{size:,}" for size in sizes], fontsize=7)
        axes.minorticks_off()
        axes.set_xlabel("training pairs", fontsize=8)
        axes.set_title(title, fontsize=10, loc="left")
        axes.tick_params(labelsize=7)
        axes.spines[["top", "right"]].set_visible(False)
    grid[0].legend(frameon=False, fontsize=7)
    return png(figure)
