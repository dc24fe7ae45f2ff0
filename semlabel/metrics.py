"""Quality on held-out entities with intervals that respect that pairs of one entity belong together.

Knows nothing of models or thresholds' proofs. Point estimates follow scikit-learn's definitions exactly (ties
included); intervals are percentile intervals of a bootstrap that draws whole entities, carried out by weighting
pairs with how often their entity was drawn.
"""

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

FloatArray = NDArray[np.float64]

_BLOCK_CELLS = 2_000_000


@dataclass(frozen=True)
class Estimate:
    """A value with its two-sided interval; NaN where it is not defined (no positive, nothing flagged)."""

    value: float
    low: float
    high: float

    def to_json(self) -> dict[str, float | None]:
        """The three numbers, None for NaN."""
        return {name: None if math.isnan(number) else number for name, number in asdict(self).items()}


@dataclass(frozen=True)
class Evaluation:
    """Ranking quality of margins, and precision and recall of `margin >= threshold` (None without a threshold)."""

    auc: Estimate
    average_precision: Estimate
    precision: Estimate | None
    recall: Estimate | None
    threshold: float | None
    n_pairs: int
    n_positive: int
    n_entities: int
    confidence: float

    def to_json(self) -> dict[str, Any]:
        """All fields as JSON values, None for what is not defined."""
        plain: dict[str, Any] = {}
        for name in self.__dataclass_fields__:
            value = getattr(self, name)
            plain[name] = value.to_json() if isinstance(value, Estimate) else value
        return plain


@dataclass(frozen=True)
class Flips:
    """Labels that differ between two scorings of the same pairs, beside what an all-NO labeler would hide behind."""

    flips: int
    yes_either: int
    within_rounding: int
    pairs: int

    @property
    def share_of_yes(self) -> float:
        """Flips per pair that is YES in either scoring; NaN when none is."""
        return self.flips / self.yes_either if self.yes_either else math.nan


def evaluate(
    entity_ids: ArrayLike,
    labels: ArrayLike,
    margins: ArrayLike,
    threshold: float | None = None,
    confidence: float = 0.95,
    resamples: int = 1000,
    seed: int = 7,
) -> Evaluation:
    """AUC, average precision and, at `threshold`, precision and recall, with entity-bootstrap intervals.

    `entity_ids`, `labels`, `margins`: (pairs,), any order. Raises ValueError for no pairs, unequal lengths or
    margins that are not finite.
    """
    entity, label, margin = columns(entity_ids, labels, margins)
    flagged = None if threshold is None else margin >= threshold
    draws = quality_draws(entity_ids, labels, margins, flagged, resamples, seed)
    found = {name: estimate(drawn, confidence) for name, drawn in draws.items()}
    return Evaluation(
        auc=found["auc"],
        average_precision=found["average_precision"],
        precision=found.get("precision"),
        recall=found.get("recall"),
        threshold=threshold,
        n_pairs=int(label.size),
        n_positive=int(label.sum()),
        n_entities=int(entity.max()) + 1,
        confidence=confidence,
    )


def quality_draws(
    entity_ids: ArrayLike,
    labels: ArrayLike,
    margins: ArrayLike,
    flagged: ArrayLike | None = None,
    resamples: int = 1000,
    seed: int = 7,
) -> dict[str, FloatArray]:
    """What the entity bootstrap of `evaluate` draws: per measure (1 + resamples,), the pairs as they are first.

    `auc` and `average_precision`, and for the decisions `flagged` also `precision`, `recall` and `f1`. The same
    entities and seed draw the same entities, so that draws of several margins can be compared one by one.
    """
    entity, label, margin = columns(entity_ids, labels, margins)
    ranked = _Ranked(label, margin)
    decided = None if flagged is None else np.asarray(flagged, dtype=bool)
    found: list[dict[str, FloatArray]] = []
    for weights in _weights(entity, resamples, seed):
        auc, average_precision = ranked.curves(weights)
        measures = {"auc": auc, "average_precision": average_precision}
        if decided is not None:
            measures |= _at_decisions(weights, label, decided)
        found.append(measures)
    return {name: np.concatenate([part[name] for part in found]) for name in found[0]}


def _weights(entity: NDArray[np.intp], resamples: int, seed: int) -> Iterator[FloatArray]:
    """Weights (draws, pairs): once every pair as it is, then blocks of resampled entities."""
    yield np.ones((1, entity.size))
    for counts in resampled(int(entity.max()) + 1, entity.size, resamples, seed):
        yield counts[:, entity]


def ratio_interval(
    entity_ids: ArrayLike,
    labels: ArrayLike,
    margins_a: ArrayLike,
    margins_b: ArrayLike,
    confidence: float = 0.95,
    resamples: int = 1000,
    seed: int = 7,
) -> Estimate:
    """Average precision of `margins_a` over that of `margins_b`, both on the same drawn entities (paired)."""
    above, below = (
        quality_draws(entity_ids, labels, margins, None, resamples, seed)["average_precision"]
        for margins in (margins_a, margins_b)
    )
    return estimate(above / below, confidence)


def label_flips(margins_a: ArrayLike, margins_b: ArrayLike, threshold: float, rounding: float = 0.0) -> Flips:
    """Pairs (pairs,) whose decision `margin >= threshold` differs between two scorings.

    Pairs whose first margin lies within `rounding` of the threshold are counted apart, not as flips.
    """
    first, second = np.asarray(margins_a, dtype=np.float64), np.asarray(margins_b, dtype=np.float64)
    if first.shape != second.shape or first.ndim != 1:
        raise ValueError(f"{first.shape} and {second.shape} margins are not of the same pairs")
    differs = (first >= threshold) != (second >= threshold)
    near = np.abs(first - threshold) <= rounding if rounding > 0 else np.zeros(first.shape, dtype=bool)
    return Flips(
        flips=int((differs & ~near).sum()),
        yes_either=int(((first >= threshold) | (second >= threshold)).sum()),
        within_rounding=int((differs & near).sum()),
        pairs=int(first.size),
    )


class _Ranked:
    """Pairs sorted by margin, with ties marked, ready to be weighted many times."""

    def __init__(self, label: NDArray[np.bool_], margin: FloatArray) -> None:
        self.order = np.argsort(-margin, kind="stable")
        descending = margin[self.order]
        self.positive = label[self.order].astype(np.float64)
        self.ends = np.flatnonzero(np.append(descending[1:] != descending[:-1], True))

    def curves(self, weights: FloatArray) -> tuple[FloatArray, FloatArray]:
        """AUC and average precision (draws,) for pair weights (draws, pairs); NaN when one label is missing."""
        sorted_weights = weights[:, self.order]
        yes = sorted_weights * self.positive
        tp = np.cumsum(yes, axis=1)[:, self.ends]
        flagged = np.cumsum(sorted_weights, axis=1)[:, self.ends]
        positives, negatives = tp[:, -1], flagged[:, -1] - tp[:, -1]
        new_tp = np.diff(tp, axis=1, prepend=0.0)
        new_fp = np.diff(flagged - tp, axis=1, prepend=0.0)
        with np.errstate(invalid="ignore", divide="ignore"):
            precision = np.where(flagged > 0, tp / np.maximum(flagged, 1e-300), 0.0)
            average_precision = (new_tp * precision).sum(axis=1) / positives
            # Each new negative is beaten by the positives above it and half beaten by those it ties with.
            auc = (new_fp * (tp - new_tp / 2.0)).sum(axis=1) / (positives * negatives)
        return auc, average_precision


def _at_decisions(weights: FloatArray, label: NDArray[np.bool_], flagged: NDArray[np.bool_]) -> dict[str, FloatArray]:
    tp = weights @ (flagged & label).astype(np.float64)
    chosen, positives = weights @ flagged.astype(np.float64), weights @ label.astype(np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        return {"precision": tp / chosen, "recall": tp / positives, "f1": 2 * tp / (chosen + positives)}


def resampled(entities: int, pairs: int, resamples: int, seed: int) -> Iterator[FloatArray]:
    """Blocks of (draws, entities) counts of how often each entity was drawn; small enough to weight all pairs."""
    rng = np.random.default_rng(seed)
    block = max(1, _BLOCK_CELLS // max(pairs, 1))
    even = np.full(entities, 1.0 / entities)
    for start in range(0, resamples, block):
        yield rng.multinomial(entities, even, size=min(block, resamples - start)).astype(np.float64)


def estimate(draws: ArrayLike, confidence: float = 0.95) -> Estimate:
    """A value and its percentile interval from (1 + resamples,) draws, the value itself first."""
    value, drawn = float(np.asarray(draws)[0]), np.asarray(draws, dtype=np.float64)[1:]
    usable = drawn[np.isfinite(drawn)]
    if math.isnan(value) or usable.size < max(2, drawn.size // 2):
        return Estimate(value, math.nan, math.nan)
    low, high = np.quantile(usable, [(1.0 - confidence) / 2.0, (1.0 + confidence) / 2.0])
    return Estimate(value, float(low), float(high))


def columns(
    entity_ids: ArrayLike, labels: ArrayLike, margins: ArrayLike
) -> tuple[NDArray[np.intp], NDArray[np.bool_], FloatArray]:
    """The number of the entity, the label and the margin of every pair; ValueError for what cannot be evaluated."""
    ids, label = np.asarray(entity_ids), np.asarray(labels, dtype=bool)
    margin = np.asarray(margins, dtype=np.float64)
    if not ids.shape == label.shape == margin.shape or ids.ndim != 1:
        raise ValueError(f"{ids.shape} entity ids, {label.shape} labels, {margin.shape} margins: not one per pair")
    if ids.size == 0:
        raise ValueError("there is no judged pair to evaluate")
    if not np.isfinite(margin).all():
        raise ValueError(f"{int((~np.isfinite(margin)).sum())} margins are not finite numbers")
    return np.unique(ids, return_inverse=True)[1], label, margin
