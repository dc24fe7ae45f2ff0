"""How far whole entities lie above or below others in margin, and what one extreme entity would cost.

Knows nothing of bounds. An entity whose text pulls all its margins up flags many wrong pairs at once; with 40
judged entities such a one is easily not among them, though it is in the population. Its size can still be read off
the margins: the spread of the entities' mean margins, and how margins scatter around them.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class Levels:
    """Entity levels of a judged sample: `center` and `spread` (sd, sampling noise removed) of the entities' mean
    margin over their negatives; sorted distances of negatives and positives from their own entity's level; `extreme`
    is how many spreads out the most extreme of so many entities is expected to lie (Blom's normal score)."""

    center: float
    spread: float
    extreme: float
    negatives: FloatArray
    positives: FloatArray
    entities: int

    def extra_false_positives(self, cuts: FloatArray) -> FloatArray:
        """False positives of an entity at the extreme high level beyond those of an ordinary one, per cut."""
        return self._shift(self.negatives, cuts, self.extreme * self.spread, above=True)

    def extra_false_negatives(self, cuts: FloatArray) -> FloatArray:
        """Misses of an entity at the extreme low level beyond those of an ordinary one, per cut."""
        return self._shift(self.positives, cuts, -self.extreme * self.spread, above=False)

    def _shift(self, distances: FloatArray, cuts: FloatArray, shift: float, above: bool) -> FloatArray:
        ordinary = np.searchsorted(distances, cuts - self.center, side="left")
        extreme = np.searchsorted(distances, cuts - self.center - shift, side="left")
        more = ordinary - extreme if above else extreme - ordinary
        return np.maximum(more, 0) / self.entities


def entity_levels(entity: NDArray[np.intp], labels: NDArray[np.bool_], margins: FloatArray) -> Levels | None:
    """Levels of the sample with `entity` (pairs,) codes 0..E-1; None when fewer than three entities have two
    negatives, which is too few to see a spread."""
    from scipy.special import ndtri

    entities = int(entity.max()) + 1 if entity.size else 0
    negative = ~labels
    counts = np.bincount(entity[negative], minlength=entities).astype(np.float64)
    usable = counts >= 2
    if int(usable.sum()) < 3:
        return None
    means = np.bincount(entity[negative], weights=margins[negative], minlength=entities) / np.maximum(counts, 1)
    means[counts == 0] = means[usable].mean()
    distance = margins - means[entity]
    squares = np.bincount(entity[negative], weights=distance[negative] ** 2, minlength=entities)
    noise = squares[usable] / (counts[usable] - 1) / counts[usable]
    spread = float(np.sqrt(max(means[usable].var(ddof=1) - noise.mean(), 0.0)))
    return Levels(
        center=float(means[usable].mean()),
        spread=spread,
        extreme=float(ndtri((entities - 0.375) / (entities + 0.25))),
        negatives=np.sort(distance[negative]),
        positives=np.sort(distance[labels]),
        entities=entities,
    )
