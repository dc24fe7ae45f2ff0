"""Quality against training pairs: where a curve first reaches a quality, and the ratio of pairs of two curves.

Between two sizes a curve is a straight line over the logarithm of the pairs; beyond them it is not known, and nothing
is extrapolated: a quality that is not reached has infinitely many pairs, one that the smallest size already has needs
0. Knows nothing of models, files or what quality is.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]


def first_reach(sizes: Sequence[int], curve: npt.ArrayLike, quality: float) -> float:
    """The fewest pairs at which the curve has `quality`: 0 at or below the smallest size, inf above the largest."""
    values = np.asarray(curve, dtype=np.float64)
    if values[0] >= quality:
        return 0.0
    for place in range(1, len(sizes)):
        if values[place] == quality:
            return float(sizes[place])
        if values[place] > quality:
            share = (quality - values[place - 1]) / (values[place] - values[place - 1])
            low, high = math.log2(sizes[place - 1]), math.log2(sizes[place])
            return float(2 ** (low + share * (high - low)))
    return math.inf


def mean_curves(draws: npt.ArrayLike, rng: np.random.Generator) -> FloatArray:
    """Curves (1 + resamples, sizes) from draws (sizes, seeds, 1 + resamples): the mean over seeds.

    The first is the mean of all seeds as they are; every other one is over seeds drawn with replacement, so that its
    spread is that of entities and seeds.
    """
    values = np.asarray(draws, dtype=np.float64)
    _, seeds, resamples = values.shape
    drawn = rng.integers(seeds, size=(resamples, seeds))
    drawn[0] = np.arange(seeds)
    return np.stack([values[:, drawn[number], number].mean(axis=1) for number in range(resamples)])


def ratios(
    sizes: Sequence[int], ours: FloatArray, theirs: FloatArray, confidence: float = 0.95
) -> list[dict[str, Any]]:
    """For each size of ours: how many times as many pairs theirs needs for the same quality, with an interval.

    Curves are (1 + resamples, sizes), drawn together. See `censored` for what a number may be.
    """
    found = []
    for place, size in enumerate(sizes):
        drawn = [first_reach(sizes, other, mine[place]) / size for mine, other in zip(ours, theirs, strict=True)]
        limits = sizes[0] / size, sizes[-1] / size
        found.append({"pairs": size, "quality": float(ours[0, place]), **_interval(drawn, limits, confidence)})
    return found


def ratio_at_their_best(
    sizes: Sequence[int], ours: FloatArray, theirs: FloatArray, confidence: float = 0.95
) -> dict[str, Any]:
    """At the best quality that theirs has at any size: the pairs theirs first has it with, over those ours needs.

    `pairs` are theirs. A curve that is flat, or falls, at its end is not charged for the pairs that brought it nothing.
    """
    drawn, theirs_needed = [], []
    for mine, other in zip(ours, theirs, strict=True):
        best = sizes[int(np.argmax(other))]
        needed = first_reach(sizes, mine, float(other.max()))
        theirs_needed.append(best)
        drawn.append(math.inf if needed == 0 else best / needed)
    # What is not known is bounded by the least that any draw would have allowed to say.
    limits = max(theirs_needed) / sizes[-1], min(theirs_needed) / sizes[0]
    return {"pairs": theirs_needed[0], "quality": float(theirs[0].max()), **_interval(drawn, limits, confidence)}


def _interval(drawn: Sequence[float], limits: tuple[float, float], confidence: float) -> dict[str, Any]:
    """The first of `drawn` and a percentile interval of the others, as `censored` numbers.

    Quantiles are numbers that were drawn: between a known ratio and one that is not known lies nothing.
    """
    others = np.sort(np.asarray(drawn[1:] or drawn))
    tail = (1 - confidence) / 2
    low, high = (float(np.quantile(others, q, method="inverted_cdf")) for q in (tail, 1 - tail))
    return {name: censored(value, limits) for name, value in (("ratio", drawn[0]), ("low", low), ("high", high))}


def censored(ratio: float, limits: tuple[float, float]) -> dict[str, Any]:
    """A ratio as JSON: `is` says `equal`, or `less` or `more` than `value`, the end of what was tested."""
    if ratio == 0.0:
        return {"is": "less", "value": limits[0]}
    return {"is": "more", "value": limits[1]} if math.isinf(ratio) else {"is": "equal", "value": ratio}
