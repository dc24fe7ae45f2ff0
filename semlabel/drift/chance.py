"""How likely a change is where nothing has changed: exact tests over many candidates at once, and Holm over them.

Knows counts only; deliberately knows nothing of entities, versions or limits. Arguments are arrays, one entry per
candidate. `least` is the smallest p-value that the totals allow: a candidate with three flips can never be significant,
so it does not have to be paid for (Tarone 1990).
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


class Chance(NamedTuple):
    """One-sided p-values of more YES and of fewer YES, and the smallest one that could have come out."""

    more: FloatArray
    fewer: FloatArray
    least: FloatArray

    def together(self, other: "Chance") -> "Chance":
        """Two independent looks at the same candidates as one (Fisher's method, conservative for counts)."""
        return Chance(*(_fisher(mine, theirs) for mine, theirs in zip(self, other, strict=True)))

    @property
    def p(self) -> FloatArray:
        """Two-sided p-values."""
        return np.minimum(1.0, 2 * np.minimum(self.more, self.fewer))


def flips(up: ArrayLike, down: ArrayLike) -> Chance:
    """Exact sign test of paired flips: NO to YES is as likely as YES to NO."""
    ups, downs = np.asarray(up, np.int64), np.asarray(down, np.int64)
    total = ups + downs
    some = total > 0
    fewer = np.where(some, special.bdtr(ups, np.maximum(total, 1), 0.5), 1.0)
    more = np.where(some, special.bdtr(downs, np.maximum(total, 1), 0.5), 1.0)
    return Chance(more, fewer, 0.5 ** total.astype(np.float64))


def arrivals(yes: ArrayLike, entities: ArrayLike, new_yes: ArrayLike, new: ArrayLike) -> Chance:
    """Fisher's exact test: the share of YES is the same among `new` entities as among `entities` before.

    The tails are bounded from above by a geometric series, which is exact far out, where it matters.
    """
    before_yes, before, yes_now, now = (np.asarray(part, np.int64) for part in (yes, entities, new_yes, new))
    n, k = before + now, before_yes + yes_now
    found = Chance(*(np.ones(n.shape) for _ in range(3)))
    usable = (before > 0) & (now > 0) & (k > 0) & (k < n)
    n, k, m, x = n[usable], k[usable], now[usable], yes_now[usable]
    ends = (_log_hypergeometric(end, n, k, m) for end in (np.maximum(0, m + k - n), np.minimum(m, k)))
    found.least[usable] = np.exp(np.minimum(*ends))
    found.more[usable] = _at_least(x, n, k, m)
    # As many YES or fewer are as many NO or more.
    found.fewer[usable] = _at_least(m - x, n, n - k, m)
    return found


def symmetric_sum(total: float, squares: float) -> Chance:
    """Bound on the chance of a sum of independent steps that are as likely up as down, whatever their sizes.

    `total` is the sum of the steps, `squares` of their squares; sub-Gaussian given the sizes (Hoeffding).
    """
    bound = float(np.exp(-(total**2) / (2 * squares))) if squares > 0 else 1.0
    return one(bound if total > 0 else 1.0, bound if total < 0 else 1.0)


def one(more: float, fewer: float) -> Chance:
    """The p-values of a single question that is always asked."""
    return Chance(np.array([more]), np.array([fewer]), np.array([0.0]))


def holm(p: ArrayLike, least: ArrayLike, alpha: float) -> FloatArray:
    """Holm's adjusted p-values over the hypotheses that the totals allow to be rejected at all; 1 for the others."""
    values, attainable = np.asarray(p, np.float64), np.asarray(least, np.float64)
    tested = np.flatnonzero(attainable <= alpha / _testable(attainable, alpha))
    adjusted = np.ones(values.shape)
    order = tested[np.argsort(values[tested], kind="stable")]
    factors = np.arange(len(order), 0, -1)
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(values[order] * factors)) if len(order) else 1.0
    return adjusted


def _testable(attainable: FloatArray, alpha: float) -> int:
    """The smallest k such that at most k hypotheses could be rejected at alpha / k."""
    ordered = np.sort(attainable)
    counts = np.arange(1, len(ordered) + 1)
    could = np.searchsorted(ordered, alpha / counts, side="right")
    enough = np.flatnonzero(could <= counts)
    return int(counts[enough[0]]) if len(enough) else 1


def _at_least(x: IntArray, n: IntArray, k: IntArray, m: IntArray) -> FloatArray:
    """A bound on the chance of at least `x` of `k` among `m` drawn of `n`; 1 up to the mode."""
    ratio = (k - x) * (m - x) / ((x + 1) * np.maximum(n - k - m + x + 1, 1))
    beyond = ratio < 1
    series = np.exp(_log_hypergeometric(x, n, k, m)) / np.where(beyond, 1 - ratio, 1.0)
    return np.where(beyond, np.minimum(1.0, series), 1.0)


def _log_hypergeometric(x: IntArray, n: IntArray, k: IntArray, m: IntArray) -> FloatArray:
    return _log_choose(k, x) + _log_choose(n - k, m - x) - _log_choose(n, m)


def _log_choose(n: IntArray, k: IntArray) -> FloatArray:
    return np.asarray(special.gammaln(n + 1) - special.gammaln(k + 1) - special.gammaln(n - k + 1))


def _fisher(first: FloatArray, second: FloatArray) -> FloatArray:
    product = np.maximum(first * second, np.finfo(np.float64).tiny)
    # The tail of a chi-squared with four degrees of freedom at -2 log(product).
    return np.asarray(product * (1 - np.log(product)))
