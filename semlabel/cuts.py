"""Which cuts are worth testing, and from which to start: read off the `calibrate` split alone.

Knows nothing of certify beyond how many entities it has. Starting from the very strictest cut a walk abstains for
want of flagged pairs; from a lax one it often fails at its first step where entities differ much, although a stricter
cut would have passed. So it starts at the strictest cut whose bound is predicted to clear the limit comfortably.
"""

import math

import numpy as np

from semlabel.judged import FloatArray, Judged, Limit, limit_bound

_GRID = 96
_TRIED = 24
_COMFORTABLE = 0.6
"""Of the best predicted clearance. From the best cut itself a walk began too lax: with entity sd 1.5 and 200 entities
about a third of the walks found nothing (`benchmarks/threshold_power.py`)."""


def choose_cuts(
    calibrate: Judged,
    certify_entities: int,
    limit: Limit,
    ceiling: float,
    confidence: float = 0.95,
    cuts: int = 20,
    min_expected_flagged: int = 25,
) -> list[float]:
    """The cuts for one limit in the order to test them; empty when calibrate promises too few flagged pairs.

    Only cuts with at least `min_expected_flagged` pairs expected on certify count. The first is the strictest (for
    FNR the laxest) whose bound, predicted for `certify_entities`, clears the limit by a good part of the most that any
    cut clears it by; the others go on from there to where the point estimate on calibrate reaches the limit.
    """
    order = np.sort(calibrate.margins[np.isfinite(calibrate.margins)])[::-1]
    least = math.ceil(min_expected_flagged * calibrate.entities / max(certify_entities, 1))
    if certify_entities < 1 or not 1 <= least <= order.size:
        return []
    grid = _between(order, np.unique(np.geomspace(least, order.size, _GRID).round().astype(np.intp)))
    points = calibrate.points(grid, limit)
    if np.isnan(points).all():
        return []
    within = np.flatnonzero(points <= ceiling)
    if within.size == 0:
        return [float(grid[np.nanargmin(points)])]
    usable = grid[within[0] :][::-1] if limit == "fnr" else grid[: within[-1] + 1]
    narrower = math.sqrt(calibrate.entities / certify_entities)
    tried = _evenly(len(usable), _TRIED)
    clearance = []
    for index in tried:
        found = limit_bound(calibrate, float(usable[index]), limit, confidence)
        clearance.append(ceiling - found.point - narrower * (found.bound - found.point))
    best = max(clearance)
    enough = _COMFORTABLE * best if best > 0 else best
    rest = usable[tried[int(np.argmax(np.array(clearance) >= enough))] :]
    return [float(cut) for cut in rest[_evenly(len(rest), cuts)]]


def _evenly(length: int, wanted: int) -> np.ndarray:
    return np.unique(np.linspace(0, length - 1, max(1, min(wanted, length))).round().astype(np.intp))


def _between(order: FloatArray, ranks: np.ndarray) -> FloatArray:
    """Cuts that flag the top `ranks` of the descending `order`, halfway to the next lower margin.

    A cut halfway keeps the pairs beside it clear of rounding; it is a float32 number, because margins are.
    """
    found = []
    for rank in ranks:
        upper = order[rank - 1]
        lower = order[np.searchsorted(-order, -upper, side="right") :]
        middle = float(np.float32((upper + lower[0]) / 2)) if lower.size else float(upper)
        found.append(middle if not lower.size or lower[0] < middle <= upper else float(upper))
    return np.unique(np.array(found))[::-1]
