"""A share whose unit of chance is the entity: what has to be kept of it, and how two of them are compared.

Knows nothing of what is counted. Pairs of one entity stand and fall together, so what is added up is one pair of
numbers per entity: `hits` of `total`. Sums of different entities can be added; the share of a sum has the variance of
a ratio estimator over entities.
"""

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

MIN_ENTITIES = 30
"""With fewer entities on either side nothing is compared: a t statistic of them would be too sure."""


@dataclass(frozen=True)
class Sums:
    """Sums over entities of hits, total, hits squared, hits times total and total squared."""

    entities: float = 0.0
    hits: float = 0.0
    total: float = 0.0
    hits2: float = 0.0
    cross: float = 0.0
    total2: float = 0.0

    @classmethod
    def of(cls, hits: ArrayLike, total: ArrayLike = 1.0) -> Self:
        """The sums over entities with these hits and totals."""
        a = np.asarray(hits, np.float64)
        m = np.broadcast_to(np.asarray(total, np.float64), a.shape)
        return cls(float(a.size), *(float(part.sum()) for part in (a, m, a * a, a * m, m * m)))

    @classmethod
    def of_row(cls, row: Any) -> Self:
        """From six numbers in the order of the fields; nulls of an empty table are zeros."""
        return cls(*(float(value or 0.0) for value in row))

    def __add__(self, other: "Sums") -> "Sums":
        return Sums(*(mine + theirs for mine, theirs in zip(vars(self).values(), vars(other).values(), strict=True)))

    def less(self, share: float) -> "Sums":
        """The same entities with `share` of their total taken off their hits: what they have above that share."""
        return Sums(
            self.entities,
            self.hits - share * self.total,
            self.total,
            self.hits2 - 2 * share * self.cross + share**2 * self.total2,
            self.cross - share * self.total2,
            self.total2,
        )

    @property
    def share(self) -> float:
        """Hits of all entities over their total; 0 where there is none."""
        return self.hits / self.total if self.total > 0 else 0.0

    @property
    def variance(self) -> float:
        """The variance of `share` when entities are drawn independently."""
        if self.entities < 2 or self.total <= 0:
            return 0.0
        return max(0.0, self.less(self.share).hits2) / self.total**2 * self.entities / (self.entities - 1)


def unlikely(now: Sums, before: Sums) -> tuple[float, float]:
    """One-sided p-values of a higher and of a lower share; 1 with fewer than `MIN_ENTITIES` entities on a side.

    Entities that are in both make the difference smaller than it could be by chance, so the test is then conservative.
    """
    entities = min(now.entities, before.entities)
    variance = now.variance + before.variance
    difference = now.share - before.share
    if entities < MIN_ENTITIES or difference == 0.0:
        return 1.0, 1.0
    if variance <= 0.0:
        return float(difference < 0), float(difference > 0)
    higher = float(special.stdtr(entities - 1, -difference / np.sqrt(variance)))
    return higher, 1.0 - higher
