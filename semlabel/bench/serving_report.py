"""The serving benchmark as Markdown and as a plot.

Knows its records; deliberately does not know how they came to be.
"""

from collections.abc import Sequence
from typing import Any

from semlabel.bench.output import markdown_table
from semlabel.bench.page import png
from semlabel.bench.serving import GENERATION, METHODS, MIS

Record = dict[str, Any]
_POINT = ("offered/s", "requests", "achieved/s", "p50 s", "p95 s", "p99 s", "labels/s", "keeps up")


def summary(records: Sequence[Record]) -> list[Record]:
    """A flat record for every method and N: alone, at the knee, the tail below it, and R(N)."""
    (lengths,) = _of(records, "lengths") or [{"query_tokens": 1, "item_tokens": 1}]
    cells = []
    for knee in _of(records, "knee"):
        method, items = knee["method"], knee["items"]
        (alone,) = _of(records, "alone", method=method, items=items)
        at = _of(records, "point", method=method, items=items, offered_per_s=knee["per_s"])
        below = [p for p in _of(records, "point", method=method, items=items) if p["keeps_up"]]
        below = [p for p in below if p["offered_per_s"] < (knee["per_s"] or 0)]
        cells.append(
            {
                "method": method,
                "items": items,
                "alone_p50": alone["p50"],
                "alone_labels_per_s": alone["labels_per_s"],
                "limit": knee["limit"],
                "knee_per_s": knee["per_s"],
                "knee_labels_per_s": knee["labels_per_s"],
                "knee_p99": at[0]["p99"] if at else None,
                "tail_below_knee": max((p["p99"] / alone["p50"] for p in below), default=None),
                "token_ratio": _ratio(lengths, items),
            }
        )
    for cell in cells:
        for name in ("alone_labels_per_s", "knee_labels_per_s"):
            cell[f"over_generation_{name}"] = _quotient(cell, _cell(cells, GENERATION, cell["items"]), name)
            cell[f"over_one_item_{name}"] = _quotient(cell, _cell(cells, cell["method"], 1), name)
    return cells


def markdown(document: Record) -> str:
    """The report."""
    records, cells = document["records"], document["cells"]
    plan, where = document["plan"], document["environment"]
    allowed = f"{plan['limit_seconds']:g} s, or {plan['slack']:g} times a request alone where that is longer (limit)"
    parts = [
        "# Serving\n",
        f"{document['model']} ({document['model_digest'][:12]}), {where['machine']}, {where['device']}, "
        f"{where['cores']} cores, {where['threads']} threads, commit {where['commit']}, {where['date']}.\n",
        f"Open-loop Poisson load over loopback (gRPC) on `semlabel serve`, {plan['seconds']:g} s a rate (longer where "
        f"fewer than {plan['least_requests']} requests would be due) after {plan['warm_up_seconds']:g} s of warm-up, "
        f"no query sent twice. The knee is the highest rate found at which "
        f"{plan['achieved']:.0%} of the requests are answered and the p99 is at most {allowed}. Packed "
        "generation (g = 20) is served by the same fronts, queue and transport around another engine; the client runs "
        "on the same machine.\n",
    ]
    if not document["complete"]:
        parts.append("**Not complete:** run the same command again to go on.\n")
    parts.append(table(cells))
    parts.append(
        "\nNo knee (-): a server gives no request as long as this takes alone, or no rate that was tried keeps up. The "
        "tail is the highest p99 below the knee over the p50 of a request alone.\n"
    )
    parts += _overhead(records)
    for cell in cells:
        points = _of(records, "point", method=cell["method"], items=cell["items"])
        if points:
            parts.append(f"\n## {cell['method']}, N = {cell['items']}\n")
            ordered = sorted(points, key=lambda point: point["offered_per_s"])
            parts.append(markdown_table(list(_POINT), [_point(point) for point in ordered]))
    return "\n".join(parts)


def table(cells: Sequence[Record]) -> str:
    """Both methods at every N, alone and at the knee."""
    rows = [
        [
            *(cell["method"], str(cell["items"]), _n(cell["alone_p50"], ".3f"), _n(cell["alone_labels_per_s"], ".1f")),
            *(_n(cell["limit"], ".2f"), _n(cell["knee_per_s"], ".3g"), _n(cell["knee_labels_per_s"], ".1f")),
            _n(cell["knee_p99"], ".3f"),
            *(_n(cell["tail_below_knee"], ".1f"), _n(cell["over_generation_knee_labels_per_s"], ".2f")),
            *(_n(cell["over_generation_alone_labels_per_s"], ".2f"), _n(cell["token_ratio"], ".1f")),
        ]
        for cell in cells
    ]
    heads = ["method", "N", "alone p50 s", "alone labels/s", "limit s", "knee/s", "knee labels/s", "knee p99 s"]
    heads += ["tail below knee", "knee over generation", "alone over generation", "R(N)"]
    return markdown_table(heads, rows)


def plot(document: Record) -> bytes:
    """A PNG: speed-up against N over one item, beside R(N); and p99 against the offered rate."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    figure = Figure(figsize=(10, 4), dpi=100, layout="constrained")
    left, right = figure.subplots(1, 2)
    cells = document["cells"]
    for method in METHODS:
        for name, style in (("knee_labels_per_s", "o-"), ("alone_labels_per_s", "x:")):
            key = f"over_one_item_{name}"
            found = [(c["items"], c[key]) for c in cells if c["method"] == method and c[key] is not None]
            if found:
                label = f"{method}, {'at the knee' if style == 'o-' else 'alone'}"
                left.plot(*zip(*found, strict=True), style, label=label, markersize=4)
    curve = sorted({(cell["items"], cell["token_ratio"]) for cell in cells})
    left.plot([n for n, _ in curve], [r for _, r in curve], "k--", linewidth=1, label="R(N)")
    left.set(xlabel="N", ylabel="labels/s over those of N = 1")
    for cell in cells:
        points = _of(document["records"], "point", method=cell["method"], items=cell["items"])
        found = sorted((p["offered_per_s"] * cell["items"], p["p99"]) for p in points if p["p99"] is not None)
        if found:
            style = "o-" if cell["method"] == MIS else "x:"
            right.plot(*zip(*found, strict=True), style, markersize=4, label=f"{cell['method']}, N = {cell['items']}")
    right.axhline(document["plan"]["limit_seconds"], color="grey", linewidth=1, label="limit")
    right.set(xlabel="offered labels/s", ylabel="p99, seconds")
    for axes in (left, right):
        if cells:  # without a value there is nothing to take a logarithm of
            axes.set(xscale="log", yscale="log")
            for axis in (axes.xaxis, axes.yaxis):
                axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
                axis.set_major_formatter(StrMethodFormatter("{x:g}"))
                axis.set_minor_formatter(NullFormatter())
        axes.legend(fontsize=6, frameon=False)
    return png(figure)


def _overhead(records: Sequence[Record]) -> list[str]:
    found = _of(records, "overhead")
    if not found:
        return []
    rows = []
    for r in found:
        parts = [_n(r[f"{part}_p50"] * 1e3, ".2f") for part in ("parse", "tokenise", "transport")]
        times = [*parts, _n(r["fronts_p50"] * 1e3, ".2f"), _n(r["request_p50"] * 1e3, ".1f")]
        rows.append([r["transport"], str(r["items"]), *times, f"{r['share']:.1%}"])
    parts = ["parse ms", "tokenise ms", "transport and the rest ms"]
    heads = ["transport", "N", *parts, "all around the engine ms", "whole request ms", "share"]
    return [
        "\n## What is around the engine\n",
        "A request in front of an engine that computes nothing (parsing, tokenising, transport, queue), over one in "
        "front of the real engine.\n",
        markdown_table(heads, rows),
    ]


def _point(point: Record) -> list[str]:
    times = [_n(point[name], ".3f") for name in ("p50", "p95", "p99")]
    sent = [_n(point["offered_per_s"], ".3g"), str(point["requests"]), _n(point["achieved_per_s"], ".3g")]
    return [*sent, *times, _n(point["labels_per_s"], ".1f"), "yes" if point["keeps_up"] else "no"]


def _of(records: Sequence[Record], kind: str, **wanted: Any) -> list[Record]:
    wanted = {"kind": kind} | wanted
    return [record for record in records if wanted.items() <= record.items()]


def _cell(cells: Sequence[Record], method: str, items: int) -> Record | None:
    return next((cell for cell in cells if (cell["method"], cell["items"]) == (method, items)), None)


def _quotient(cell: Record, other: Record | None, name: str) -> float | None:
    if other is None or not cell[name] or not other[name]:
        return None
    return float(cell[name] / other[name])


def _ratio(lengths: Record, items: int) -> float:
    query, item = lengths["query_tokens"], lengths["item_tokens"]
    return float(items * (query + item) / (query + items * item))


def _n(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
