"""Reorders candidates and counts which decisions change: pure arithmetic on arrays of entities x candidates.

Order 0 is the candidates' own; every other order is drawn from its number. Knows nothing of models or files.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

MISSING = np.int8(-1)  # a candidate the method gave no single answer for
Decisions = npt.NDArray[np.int8]  # 1 YES, 0 NO, MISSING


def permutation(order: int, candidates: int, seed: int = 7) -> npt.NDArray[np.int64]:
    """Which candidate stands at each place in this order; order 0 leaves all where they are."""
    if order == 0:
        return np.arange(candidates)
    return np.random.default_rng([seed, order]).permutation(candidates)


def decisions_at(margins: npt.NDArray[np.float32], threshold: float) -> Decisions:
    """Margins decided by the one rule there is, `margin >= threshold`."""
    return (margins >= threshold).astype(np.int8)


def changes(orders: Sequence[Decisions]) -> dict[str, Any]:
    """What changed between order 0 and the others, as flat fields.

    A missing answer counts as changed, also where it is missing in both. Means are over the orders after the first;
    shares of YES are over the decisions that are YES in either of the two (for `ever`: in any order).
    """
    first, others = orders[0], orders[1:]
    if not others:
        raise ValueError("one order alone shows nothing; give at least two")
    changed = [(other != first) | (other == MISSING) | (first == MISSING) for other in others]
    yes = [(other == 1) | (first == 1) for other in others]
    ever = np.logical_or.reduce(changed)
    ever_yes = np.logical_or.reduce(yes)
    of_yes = [float((c & y).sum() / y.sum()) for c, y in zip(changed, yes, strict=True) if y.any()]
    return {
        "orders": len(orders),
        "decisions": int(first.size),
        "yes": int((first == 1).sum()),
        "missing": int(sum((order == MISSING).sum() for order in orders)),
        "mean_changed": float(np.mean([c.sum() for c in changed])),
        "mean_changed_share": float(np.mean([c.mean() for c in changed])),
        "mean_changed_share_of_yes": float(np.mean(of_yes)) if of_yes else None,
        "ever_changed": int(ever.sum()),
        "ever_changed_share": float(ever.mean()),
        "ever_changed_share_of_yes": float((ever & ever_yes).sum() / ever_yes.sum()) if ever_yes.any() else None,
    }


def largest_difference(orders: Sequence[npt.NDArray[np.float32]]) -> float:
    """The largest difference of a margin between order 0 and any other."""
    return max(float(np.abs(other - orders[0]).max()) for other in orders[1:])
