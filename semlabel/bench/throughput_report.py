"""The throughput benchmark for people: a Markdown table of every cell, and the plot of speed against N.

Speed and exactness stand in one row: the one is no result without the other. Knows nothing of how cells are measured.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from semlabel.bench.output import markdown_table
from semlabel.bench.page import png

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Cell = dict[str, Any]
_COLORS = {
    "mis": "#1b6ca8",
    "prefix_cache": "#c1762f",
    "independent": "#777777",
    "generation": "#7a4fa3",
    "llama_cpp": "#3d8b57",
    "llama_cpp_q8_0": "#8fb85a",
    "openvino": "#b03a48",
}
_HEADERS = [
    "method",
    "N",
    "labels/s",
    "x independent",
    "R(N)",
    "gemm_share",
    "peak MB",
    "margin diff",
    "flips of all",
    "flips of YES",
    "fp32: margin diff",
    "fp32: flips of YES",
    "setting",
]
_NOTES = """
Labels/s are medians of interleaved repetitions. `x independent` stands beside R(N) = N(q+c)/(q+N*c), the ratio of
tokens. `gemm_share`: operations of the linear layers on real tokens, over the wall time, over the best rate found for
their shapes in this run. `peak MB` comes on top of what the process held before the call, weights among it. Margin
differences and flips are against single prompts of the same precision, then of fp32, over {compared} of the items; the
cut is the median fp32 margin, so that half of the labels are YES and as many as can be lie close to it. Generation asks
the model another question: its differences are no rounding. Where N is small, a call has several queries, for methods
that can batch over them; the JSON says how many.
"""


def markdown(document: dict[str, Any]) -> str:
    """The whole result as Markdown."""
    where = document["environment"]
    versions = ", ".join(f"{name} {version}" for name, version in where["versions"].items())
    compared = max((cell["compared_items"] for cell in document["cells"]), default=0)
    parts = [
        "# Throughput\n",
        f"{where['machine']}; {where['device']}; {where['threads']} of {where['cores']} cores; {versions}; "
        f"commit {where['commit'] or 'unknown'}; {where['date']}; model {document['model']}.\n",
        _NOTES.format(compared=compared),
    ]
    if not document["complete"]:
        parts.append("**Not complete:** run the same command again to go on.\n")
    for precision, query, item in _groups(document["cells"]):
        cells = _of(document["cells"], precision, query, item)
        parts.append(f"## {precision}, query {query}, items {item}\n")
        parts.append(markdown_table(_HEADERS, [_row(cell) for cell in cells]))
        parts += _phases(cells)
        parts += [f"\n{name}: {engine}.\n" for name, engine in _engines(cells)]
    if document["missing"]:
        parts.append("## Not measured\n")
        rows = [[entry["method"], entry["precision"], entry["reason"]] for entry in document["missing"]]
        parts.append(markdown_table(["method", "precision", "why"], rows))
    tried = len(document["tuning"])
    parts.append(f"\nEvery setting that was tried ({tried}) and every matrix product are in the JSON.\n")
    return "\n".join(parts)


def _engines(cells: Sequence[Cell]) -> list[tuple[str, str]]:
    """How each other engine was built; files of earlier versions do not tell."""
    return list(dict.fromkeys((cell["method"], cell["engine"]) for cell in cells if cell.get("engine")))


def _groups(cells: Sequence[Cell]) -> list[tuple[str, int, int]]:
    return list(dict.fromkeys((cell["precision"], cell["query_tokens"], cell["item_tokens"]) for cell in cells))


def _of(cells: Sequence[Cell], precision: str, query: int, item: int) -> list[Cell]:
    return [c for c in cells if (c["precision"], c["query_tokens"], c["item_tokens"]) == (precision, query, item)]


def _row(cell: Cell) -> list[str]:
    return [
        cell["method"],
        str(cell["items"]),
        _number(cell["labels_per_s"], ".1f"),
        _number(cell["over_independent"], ".2f"),
        _number(cell["token_ratio"], ".2f"),
        _number(cell["gemm_share"], ".2f"),
        _number(cell["peak_mb"], ".0f"),
        _number(cell["max_margin_diff"], ".1e"),
        _number(cell["label_flip_share"], ".2%"),
        _number(cell["label_flip_share_of_yes"], ".2%"),
        _number(cell["max_margin_diff_fp32"], ".1e"),
        _number(cell["label_flip_share_of_yes_fp32"], ".2%"),
        cell["setting"],
    ]


def _phases(cells: Sequence[Cell]) -> list[str]:
    """Prefill and decoding apart, where a method has both."""
    rows = [
        [
            cell["method"],
            str(cell["items"]),
            _number(cell["prefill_seconds"], ".3f"),
            _number(cell["decode_seconds"], ".3f"),
            str(cell["prefill_tokens"]),
            str(cell["decoded_tokens"]),
            str(cell["forwards"]),
        ]
        for cell in cells
        if cell["prefill_seconds"] is not None
    ]
    headers = ["method", "N", "prefill s", "decode s", "prefill tokens", "decoded tokens", "forwards"]
    return ["", markdown_table(headers, rows)] if rows else []


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def plot(cells: Sequence[Cell]) -> bytes:
    """A PNG: for each shape labels/s against N, a row per precision, and below it the speed-up beside R(N)."""
    from matplotlib.figure import Figure

    shapes = list(dict.fromkeys((cell["query_tokens"], cell["item_tokens"]) for cell in cells))
    precisions = list(dict.fromkeys(cell["precision"] for cell in cells))
    height = 2 * max(len(precisions), 1)
    figure = Figure(figsize=(4.2 * max(len(shapes), 1), 2.9 * height), dpi=100, layout="constrained")
    grid = figure.subplots(height, max(len(shapes), 1), squeeze=False)
    for column, (query, item) in enumerate(shapes):
        for row, precision in enumerate(precisions):
            mine = _of(cells, precision, query, item)
            _draw(grid[2 * row][column], mine, "labels_per_s", f"{precision}, query {query}, items {item}", "labels/s")
            below = grid[2 * row + 1][column]
            _draw(below, mine, "over_independent", "against independent", "speed-up")
            curve = sorted({(cell["items"], cell["token_ratio"]) for cell in mine})
            below.plot([n for n, _ in curve], [r for _, r in curve], "k--", linewidth=1, label="R(N)")
            below.legend(frameon=False, fontsize=7)
    return png(figure)


def _draw(axes: "Axes", cells: Sequence[Cell], field: str, title: str, label: str) -> None:
    from matplotlib.ticker import LogLocator, StrMethodFormatter

    for method in dict.fromkeys(cell["method"] for cell in cells):
        points = sorted((c["items"], c[field]) for c in cells if c["method"] == method and c[field] is not None)
        if points:
            x, y = zip(*points, strict=True)
            axes.plot(x, y, "o-", color=_COLORS.get(method), markersize=3, linewidth=1.2, label=method)
    axes.set_xscale("log")
    axes.set_yscale("log")
    sizes = sorted({cell["items"] for cell in cells})
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.minorticks_off()
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.set_title(title, fontsize=9, loc="left")
    axes.set_xlabel("N", fontsize=8)
    axes.set_ylabel(label, fontsize=8)
    axes.tick_params(labelsize=7)
    axes.spines[["top", "right"]].set_visible(False)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, fontsize=7)
