"""Judged pairs of one split, counted per entity at a cut, and the error bound that follows.

Knows nothing of policies, walks or where pairs come from. A pair is flagged when its margin reaches the cut.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from semlabel.bounds import Bound, error_bound
from semlabel.levels import Levels, entity_levels

FloatArray = NDArray[np.float64]
Limit = Literal["precision", "fpr", "fnr"]


@dataclass(frozen=True)
class Judged:
    """Judged pairs of one split: `entity` (pairs,) codes 0..entities-1, `labels` (pairs,), `margins` (pairs,).

    The margin of a pair that is NO whatever it is (no shortlist holds it) is -inf: no cut flags it. `undecided` pairs
    (pairs,) belong to the sample and have no label: at every cut they count as what makes that cut's decision wrong.
    """

    entity: NDArray[np.intp]
    labels: NDArray[np.bool_]
    margins: FloatArray
    entities: int
    levels: Levels | None = field(repr=False, compare=False)
    undecided: NDArray[np.bool_] = field(repr=False)

    @classmethod
    def of(
        cls,
        entity_ids: Sequence[Any] | ArrayLike,
        labels: ArrayLike,
        margins: ArrayLike,
        shortlisted: ArrayLike | None = None,
        undecided: ArrayLike | None = None,
    ) -> "Judged":
        """Build from equally long columns; raises ValueError for other lengths or margins not finite.

        Pairs that are not `shortlisted` (None: all are) count as NO; the label of an `undecided` one (None: none is)
        says nothing. How far entities differ is read off the margins of the others.
        """
        label, margin = np.asarray(labels, dtype=bool), np.asarray(margins, dtype=np.float64)
        ids = np.asarray(entity_ids)
        if not label.shape == margin.shape == ids.shape or label.ndim != 1:
            raise ValueError(f"{ids.shape} entity ids, {label.shape} labels, {margin.shape} margins: not one per pair")
        if not np.isfinite(margin).all():
            raise ValueError(f"{int((~np.isfinite(margin)).sum())} margins are not finite numbers")
        unique, code = np.unique(ids, return_inverse=True)
        open_ones = np.zeros(label.shape, bool) if undecided is None else np.asarray(undecided, dtype=bool)
        known = ~open_ones
        levels = entity_levels(code[known], label[known], margin[known])
        if shortlisted is not None:
            margin = np.where(np.asarray(shortlisted, dtype=bool), margin, -np.inf)
        return cls(code, label & known, margin, len(unique), levels, open_ones)

    @classmethod
    def of_table(cls, table: Any) -> "Judged":
        """Build from a table (mapping or DataFrame): `entity_id`, `label`, `margin` [, `shortlisted`, `undecided`]."""
        optional = (table.get(name) for name in ("shortlisted", "undecided"))
        return cls.of(table["entity_id"], table["label"], table["margin"], *optional)

    def counts(self, cut: float) -> dict[str, FloatArray]:
        """Per entity (entities,): `flagged`, `tp`, `positives`, `negatives` at margin >= cut."""
        flagged = self.margins >= cut
        # An undecided pair is a false positive where it is flagged, and a miss where it is not.
        labels = np.where(self.undecided, ~flagged, self.labels)
        return {
            "flagged": self._count(flagged),
            "tp": self._count(flagged & labels),
            "positives": self._count(labels),
            "negatives": self._count(~labels),
        }

    def points(self, cuts: FloatArray, limit: Limit) -> FloatArray:
        """Point estimates (cuts,) of one error ratio: 1 - precision, fpr or fnr; NaN where nothing was judged."""
        positives = np.sort(self.margins[self.labels])
        negatives = np.sort(self.margins[~self.labels & ~self.undecided])
        open_ones = np.sort(self.margins[self.undecided])
        tp = positives.size - np.searchsorted(positives, cuts)
        left = np.searchsorted(open_ones, cuts)
        taken = open_ones.size - left
        fp = negatives.size - np.searchsorted(negatives, cuts) + taken
        wrong, total = {
            "precision": (fp, tp + fp),
            "fpr": (fp, negatives.size + taken),
            "fnr": (positives.size - tp + left, positives.size + left),
        }[limit]
        return np.where(total > 0, wrong / np.maximum(total, 1), np.nan)

    def _count(self, chosen: NDArray[np.bool_]) -> FloatArray:
        return np.bincount(self.entity[chosen], minlength=self.entities).astype(np.float64)


def limit_bound(judged: Judged, cut: float, limit: Limit, confidence: float) -> Bound:
    """Point and upper bound of one error ratio at `cut`: 1 - precision, fpr or fnr."""
    counts = judged.counts(cut)
    false_positives, misses = counts["flagged"] - counts["tp"], counts["positives"] - counts["tp"]
    levels, at = judged.levels, np.array([cut])
    if limit == "fnr":
        missed = (float(levels.extra_false_negatives(at)[0]), 0.0) if levels else None
        return error_bound(misses, counts["positives"], confidence, missed)
    extra = float(levels.extra_false_positives(at)[0]) if levels else 0.0
    if limit == "fpr":
        reach = float(counts["flagged"].max(initial=0.0))
        return error_bound(false_positives, counts["negatives"], confidence, (extra, 0.0) if levels else None, reach)
    return error_bound(false_positives, counts["flagged"], confidence, (extra, extra) if levels else None)
