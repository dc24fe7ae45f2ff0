"""Whether texts, margins and the agreement with references look as they did, told apart from chance.

Knows measures by name, each a share over entities; deliberately knows nothing of where they were measured. The present
population is compared with the one before and with the one of the labeler's first version, which sees a slow drift.
Entities that are in both make a false finding less likely, never more.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from semlabel.drift import chance
from semlabel.drift.sums import Sums, unlikely

LENGTH = "text length"
AGREEMENT = "agreement with references of"
_TONIGHT, _ALL = "the version before", "the labeler's first version"

Measures = Mapping[str, Sums]


@dataclass(frozen=True)
class QualityLimits:
    """`alpha`: the chance of a false finding of one night. A share must have moved by `points`, the usual length of a
    text by `length`, a share of what it was."""

    alpha: float
    points: float
    length: float


@dataclass(frozen=True)
class Shift:
    """A measure that moved against an earlier version; `p` is adjusted for all measures."""

    name: str
    against: str
    before: float
    now: float
    p: float


def shifts(now: Measures, before: Measures, first: Measures, limits: QualityLimits) -> list[Shift]:
    """The measures that moved by more than chance and by enough to matter, largest first.

    A measure that is new is compared with nothing. `first` may hold measures that only stand for the beginning, such as
    the agreement that later references are compared with.
    """
    asked = [
        (name, against, earlier[name], now[name])
        for against, earlier in ((_TONIGHT, before), (_ALL, first))
        for name in now
        if name in earlier
    ]
    p = [min(1.0, 2 * min(unlikely(present, earlier))) for _, _, earlier, present in asked]
    adjusted = chance.holm(p, np.zeros(len(p)), limits.alpha)
    found = [
        Shift(name, against, _shown(name, earlier), _shown(name, present), float(value))
        for (name, against, earlier, present), value in zip(asked, adjusted, strict=True)
        if value <= limits.alpha and _large(name, earlier, present, limits)
    ]
    return sorted(found, key=lambda one: (-abs(one.now - one.before), one.name, one.against))


def _large(name: str, before: Sums, now: Sums, limits: QualityLimits) -> bool:
    moved = abs(now.share - before.share)
    return moved >= math.log1p(limits.length) if name == LENGTH else moved >= limits.points


def _shown(name: str, sums: Sums) -> float:
    """The share, or the usual (geometric mean) length in characters."""
    return math.exp(sums.share) if name == LENGTH else sums.share
