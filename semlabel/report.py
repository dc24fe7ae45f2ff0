"""Plots of one run as small PNG images, ready for a run's metadata or a page.

Knows nothing of where an image is shown, of runs or of files: numbers in, PNG bytes out. Nothing here judges; a plot of
no data is a plot that says so, because a picture must never stop a run.
"""

import base64
import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_BYTES = 60_000
"""No image is larger: an event log keeps every one of them."""

_YES, _NO, _MUTED, _GREEN = "#D55E00", "#0072B2", "#707070", "#009E73"
_MAX_POINTS = 400


def loss_curve(history: Sequence[float] | Sequence[tuple[float, float]]) -> bytes:
    """Training loss over optimiser steps. `history`: losses in order, or (step, loss) pairs."""
    points = np.asarray(history, dtype=float)
    figure, axes = _canvas("training loss", "optimiser step", "loss per item (nats)")
    if points.size == 0:
        return _png(figure, axes, empty=True)
    if points.ndim == 1:
        points = np.column_stack([np.arange(1, len(points) + 1), points])
    thin = points[_thinned(len(points))]
    axes.plot(thin[:, 0], thin[:, 1], color=_NO, linewidth=0.8, alpha=0.45)
    smooth = _running_mean(points[:, 1], max(1, len(points) // 20))[_thinned(len(points))]
    axes.plot(thin[:, 0], smooth, color=_NO, linewidth=1.8)
    axes.set_ylim(bottom=0)
    return _png(figure, axes)


def margin_histogram(margins: Sequence[float], labels: Sequence[bool], threshold: float | None = None) -> bytes:
    """Share of YES and of NO reference labels over the margin, with tau where there is one. Both inputs: (pairs,)."""
    margin, label = _numbers(margins, labels)
    figure, axes = _canvas("margins of judged pairs", "margin = logit(yes) - logit(no)", "share of its class")
    if margin.size == 0:
        return _png(figure, axes, empty=True)
    edges = np.linspace(margin.min(), max(margin.max(), margin.min() + 1e-6), 41)
    for of_class, color, name in ((~label, _NO, "reference NO"), (label, _YES, "reference YES")):
        if of_class.any():
            share = np.histogram(margin[of_class], edges)[0] / of_class.sum()
            axes.stairs(share, edges, fill=True, color=color, alpha=0.45, label=f"{name} ({of_class.sum():,})")
    if threshold is not None:
        axes.axvline(threshold, color="black", linewidth=1.2, linestyle="--", label=f"tau = {threshold:.3g}")
    axes.legend(frameon=False, fontsize=8)
    return _png(figure, axes)


def precision_recall(
    labels: Sequence[bool],
    margins: Sequence[float],
    threshold: float | None = None,
    bounds: Mapping[str, float] | None = None,
) -> bytes:
    """Precision over recall of every cut, with the working point at tau.

    `bounds` are named levels of precision drawn as lines, for example the declared floor and the proven lower bound.
    """
    margin, label = _numbers(margins, labels)
    figure, axes = _canvas("precision and recall", "recall", "precision")
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1.02)
    if not label.any():
        return _png(figure, axes, empty=True)
    recall, precision = _precision_recall(margin, label)
    axes.plot(recall, precision, color=_NO, linewidth=1.6)
    axes.axhline(label.mean(), color=_MUTED, linewidth=0.8, linestyle=":", label=f"prevalence {label.mean():.3f}")
    looks = (("black", "--"), (_GREEN, "-"), (_MUTED, "-.")) * 3
    for (name, level), (color, style) in zip((bounds or {}).items(), looks, strict=False):
        axes.axhline(level, color=color, linewidth=0.9, linestyle=style, label=f"{name} {level:.3f}")
    flagged = margin >= threshold if threshold is not None else np.zeros(0, bool)
    if flagged.any():
        true = (flagged & label).sum()
        axes.plot([true / label.sum()], [true / flagged.sum()], "o", color=_YES, label=f"tau = {threshold:.3g}")
    axes.legend(frameon=False, fontsize=8)
    return _png(figure, axes)


def prediction_histogram(edges: Sequence[float], counts: Sequence[int], threshold: float | None = None) -> bytes:
    """How many predictions lie between each two of the `edges` (bins + 1), on a logarithmic scale, with tau."""
    figure, axes = _canvas("margins of all predictions", "margin = logit(yes) - logit(no)", "pairs")
    if not sum(counts):
        return _png(figure, axes, empty=True)
    axes.stairs(counts, edges, fill=True, color=_NO, alpha=0.6)
    axes.set_yscale("log")
    axes.set_ylim(bottom=0.7)
    if threshold is not None:
        axes.axvline(threshold, color="black", linewidth=1.2, linestyle="--", label=f"tau = {threshold:.3g}")
        axes.legend(frameon=False, fontsize=8, loc="upper right")
    return _png(figure, axes)


def reliability(
    probabilities: Sequence[float], labels: Sequence[bool], bins: int = 10, before: Sequence[float] | None = None
) -> bytes:
    """Observed share of YES over the predicted probability, in `bins` groups that expect equally many YES.

    Groups of equally many pairs would nearly all lie at 0 and tell nothing of what is labeled YES. Each calibrated
    group says how many pairs it has. `before` are the probabilities of the same pairs without calibration.
    """
    figure, axes = _canvas("calibration of the probability", "predicted probability", "share of YES")
    axes.plot([0, 1], [0, 1], color=_MUTED, linewidth=0.8, linestyle=":")
    curves = [(probabilities, _NO, "calibrated")]
    if before is not None:
        curves.insert(0, (before, _YES, "before"))
    for values, color, name in curves:
        probability, label = _numbers(values, labels)
        if probability.size == 0:
            return _png(figure, axes, empty=True)
        groups = _of_equal_yes(probability, bins)
        predicted = [probability[g].mean() for g in groups]
        observed = [label[g].mean() for g in groups]
        axes.plot(predicted, observed, "o-", color=color, linewidth=1.2, markersize=4, label=name)
        if color == _NO:
            for x, y, group in zip(predicted, observed, groups, strict=True):
                axes.annotate(f"{group.size:,}", (x, y), (0, -9), textcoords="offset points", fontsize=6, ha="center")
    if before is not None:
        axes.legend(frameon=False, fontsize=8)
    return _png(figure, axes)


def walk(
    steps: Sequence[Mapping[str, Any]],
    floor: float | None = None,
    limit: str = "precision",
    threshold: float | None = None,
) -> bytes:
    """The threshold's walk: estimate and proven bound of every cut that was tried, the declared limit, and tau.

    `steps` as in a threshold result: `cut`, `point`, `bound` (None where a cut flagged nothing), `ok`.
    """
    figure, axes = _canvas("the walk to tau", "cut (margin)", limit)
    known = [s for s in steps if s.get("point") is not None and s.get("bound") is not None]
    if not known:
        return _png(figure, axes, empty=True)
    cuts = [float(s["cut"]) for s in known]
    axes.plot(cuts, [float(s["point"]) for s in known], "o-", color=_MUTED, markersize=3, linewidth=1, label="estimate")
    for ok, color, name in ((True, _NO, "bound, holds"), (False, _YES, "bound, does not hold")):
        chosen = [s for s in known if bool(s["ok"]) is ok]
        axes.plot([float(s["cut"]) for s in chosen], [float(s["bound"]) for s in chosen], "o", color=color, label=name)
    if floor is not None:
        axes.axhline(floor, color="black", linewidth=1, linestyle="--", label=f"declared {floor:.3g}")
    if threshold is not None:
        axes.axvline(threshold, color="black", linewidth=1, linestyle=":", label=f"tau = {threshold:.3g}")
    axes.legend(framealpha=0.9, edgecolor="none", fontsize=8)
    return _png(figure, axes)


def inline_image(png: bytes, alternative: str) -> str:
    """A Markdown image that carries the PNG itself, for places that show Markdown but serve no files."""
    return f"![{alternative}]({data_address(png)})"


def data_address(png: bytes) -> str:
    """An address that is the PNG itself."""
    return f"data:image/png;base64,{base64.b64encode(png).decode('ascii')}"


def _numbers(values: Sequence[float], labels: Sequence[bool]) -> tuple[np.ndarray, np.ndarray]:
    value, label = np.asarray(values, dtype=float), np.asarray(labels, dtype=bool)
    if value.shape != label.shape or value.ndim != 1:
        raise ValueError(f"expected two vectors of one length, got {value.shape} and {label.shape}")
    return value, label


def _precision_recall(margin: np.ndarray, label: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(recall, precision) at every distinct margin, strict to lax: tied pairs are flagged together.

    From the first YES on: before it precision is 0 at recall 0, however good all the other cuts are.
    """
    order = np.argsort(-margin, kind="stable")
    last_of_tie = np.append(np.flatnonzero(np.diff(margin[order])), margin.size - 1)
    true = np.cumsum(label[order])[last_of_tie]
    # Geometric: a thousand cuts of 10,000 pairs must not lose the strict end, where tau lies.
    thin = np.unique(np.geomspace(1, len(true), 1_000).round().astype(int)) - 1
    thin = thin[true[thin] > 0]
    return (true / label.sum())[thin], (true / (last_of_tie + 1))[thin]


def _of_equal_yes(probability: np.ndarray, groups: int) -> list[np.ndarray]:
    """Places of at most `groups` groups, by rising probability, whose probabilities add up to about the same."""
    order = np.argsort(probability, kind="stable")
    sums = np.cumsum(probability[order])
    if sums[-1] <= 0:
        return [order]
    # A pair belongs where the middle of its own share of the sum lies.
    middle = (sums - probability[order] / 2) / sums[-1]
    of_group = np.minimum((middle * groups).astype(int), groups - 1)
    return np.split(order, np.flatnonzero(np.diff(of_group)) + 1)


def _thinned(count: int) -> np.ndarray:
    """At most `_MAX_POINTS` indices of 0..count-1, ends included: more make a larger image, not a clearer one."""
    return np.unique(np.linspace(0, count - 1, min(count, _MAX_POINTS)).round().astype(int))


def _running_mean(values: np.ndarray, window: int) -> np.ndarray:
    """Mean of the last `window` values at every place (fewer at the start)."""
    sums = np.cumsum(np.insert(values, 0, 0.0))
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(ends - window, 0)
    return (sums[ends] - sums[starts]) / (ends - starts)


def _canvas(title: str, x: str, y: str) -> "tuple[Figure, Axes]":
    # Figure without pyplot: no global state, so plots may be drawn from any thread and leak nothing.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.2, 3.1), dpi=100)
    # Room for the longest labels there are: a layout that fits itself draws everything twice.
    figure.subplots_adjust(left=0.14, right=0.965, bottom=0.155, top=0.905)
    axes = figure.add_subplot()
    axes.set_title(title, fontsize=10, loc="left")
    axes.set_xlabel(x, fontsize=9)
    axes.set_ylabel(y, fontsize=9)
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _png(figure: "Figure", axes: "Axes", empty: bool = False) -> bytes:
    if empty:
        axes.text(0.5, 0.5, "no data", transform=axes.transAxes, ha="center", va="center", color=_MUTED)
    from PIL import Image

    drawn, small = io.BytesIO(), io.BytesIO()
    figure.savefig(drawn, format="png")
    # A palette of 64 colours is a third of the size and looks the same on lines and flat areas.
    Image.open(drawn).convert("RGB").quantize(64).save(small, format="png", optimize=True)
    return small.getvalue()
