"""The cut with the best F1 on calibrate, for all candidates or for each: how an experiment decides, not a labeler.

A labeler's threshold is proven (`semlabel.thresholds`); here two methods only have to be compared at cuts that were
chosen alike. Knows nothing of models. A pair is YES when its margin reaches the cut.
"""

import numpy as np
import numpy.typing as npt

from semlabel.bench.experiments.problem import Part

FloatArray = npt.NDArray[np.float64]
_SHRINKAGE = 20  # positives at which a candidate's own cut weighs as much as the global one


def best_f1_cut(labels: npt.ArrayLike, margins: npt.ArrayLike) -> float:
    """The cut with the best F1, halfway to the next lower margin; above all margins where no pair is positive."""
    yes, margin = np.asarray(labels, dtype=bool), np.asarray(margins, dtype=np.float64)
    order = np.argsort(-margin, kind="stable")
    descending = margin[order]
    ends = np.flatnonzero(np.append(descending[1:] != descending[:-1], True))
    tp = np.cumsum(yes[order])[ends]
    if not yes.any():
        return float(np.float32(descending[0] + 1.0))
    f1 = 2 * tp / (ends + 1 + yes.sum())
    at = int(np.argmax(f1))
    upper = descending[ends[at]]
    lower = descending[ends[at] + 1] if ends[at] + 1 < margin.size else upper - 2.0
    return float(np.float32((upper + lower) / 2))


def f1_of(labels: npt.NDArray[np.bool_], flagged: npt.NDArray[np.bool_]) -> float:
    """F1 of some decisions; 0 where nothing is positive or flagged."""
    total = int(labels.sum() + flagged.sum())
    return 2 * int((labels & flagged).sum()) / total if total else 0.0


def candidate_cuts(part: Part, margins: FloatArray, candidates: int, shrink: bool) -> FloatArray:
    """One cut per candidate (candidates,) from calibrate `margins` (pairs,), each with the best F1 of its own pairs.

    With `shrink` drawn towards the global cut by n / (n + 20) of the candidate's n positives.
    """
    overall = best_f1_cut(part.labels, margins)
    cuts = np.full(candidates, overall)
    for candidate in np.unique(part.columns):
        mine = part.columns == candidate
        positives = int(part.labels[mine].sum())
        own = best_f1_cut(part.labels[mine], margins[mine])
        weight = positives / (positives + _SHRINKAGE) if shrink else 1.0
        cuts[candidate] = weight * own + (1 - weight) * overall
    return cuts
