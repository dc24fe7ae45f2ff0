"""The highest rate that a server keeps up with, found in few tries.

Knows nothing of how a rate is tried. The tries depend on their outcomes alone, so a search that is begun again with
the outcomes of an interrupted one asks for the same rates.
"""

import math
from collections.abc import Callable

_UP, _DOWN, _MOST_TRIES = 1.3, 0.6, 12
_LOWEST_SHARE = 1 / 16


def find_knee(first: float, keeps_up: Callable[[float], bool], bisections: int) -> float | None:
    """The highest rate found that keeps up; None when even the lowest one that was tried does not.

    From `first` the rate rises while it keeps up and falls while it does not, then the gap is halved. `first` is about
    what one request after the other comes to: a server that does not keep up with a sixteenth of it never will.
    """
    good: float | None = None
    bad: float | None = None
    rate = rounded(first)
    for _ in range(_MOST_TRIES):
        if keeps_up(rate):
            good = rate
            rate = rounded(rate * _UP)
        else:
            bad = rate
            rate = rounded(rate * _DOWN)
            if rate < first * _LOWEST_SHARE and good is None:
                return None
        if good is not None and bad is not None:
            break
    if good is None or bad is None:
        return good
    for _ in range(bisections):
        middle = rounded(math.sqrt(good * bad))
        if middle in (good, bad):
            break
        if keeps_up(middle):
            good = middle
        else:
            bad = middle
    return good


def rounded(rate: float) -> float:
    """A rate with three significant digits."""
    return float(f"{rate:.3g}")
