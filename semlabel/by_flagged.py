"""What precision and recall a labeler has when it says YES to so many pairs: for choosing a promise beforehand.

Meant for `calibrate`, which a threshold is chosen on anyway. Estimates with intervals over entities, no promise: that
is shown on `certify` alone. Knows nothing of policies.
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from semlabel.metrics import columns, estimate, resampled

_FEWEST = 25
_ENOUGH_RECALL = 0.95


def quality_by_flagged(
    entity_ids: ArrayLike,
    labels: ArrayLike,
    margins: ArrayLike,
    confidence: float = 0.95,
    resamples: int = 1000,
    seed: int = 7,
) -> list[dict[str, Any]]:
    """Rows `flagged, precision, low, high, recall` for the 25 pairs of the largest margins, 50, 100 and so on, until
    nearly every YES is among them. Pairs that tie are flagged together. Empty where there are fewer pairs or no YES.

    Raises ValueError as `metrics.evaluate` does.
    """
    entity, label, margin = columns(entity_ids, labels, margins)
    descending, positives, entities = np.sort(margin)[::-1], int(label.sum()), int(entity.max()) + 1
    draws = np.concatenate([np.ones((1, entities)), *resampled(entities, entities, resamples, seed)])
    rows: list[dict[str, Any]] = []
    wanted = _FEWEST
    while positives and wanted <= margin.size and (not rows or rows[-1]["recall"] < _ENOUGH_RECALL):
        flagged = margin >= descending[wanted - 1]
        chosen, right = (np.bincount(entity, weights=said, minlength=entities) for said in (flagged, flagged & label))
        with np.errstate(invalid="ignore", divide="ignore"):
            found = estimate((draws @ right) / (draws @ chosen), confidence)
        ends = {name: end if np.isfinite(end) else None for name, end in (("low", found.low), ("high", found.high))}
        count = int(flagged.sum())
        rows.append({"flagged": count, "precision": found.value, **ends, "recall": float(right.sum()) / positives})
        wanted = 2 * max(wanted, count)
    return rows
