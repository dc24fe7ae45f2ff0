"""One-sided confidence bounds for error ratios when the entity, not the pair, is the sampling unit.

Knows nothing of cuts, policies or files: it sees errors and totals per entity. Pairs of one entity stand and fall
together, so a binomial bound over pairs is far too narrow (with an entity effect as large as the noise it is missed
in over a third of trials). The bound used here is the linearised ratio estimator with Student t at the effective
number of entities, widened for skewness (Hall 1992, "On the removal of skewness by transformation") and by one
imagined entity, because what breaks such bounds is the rare bad entity that the sample happens not to hold.
`benchmarks/threshold_simulation.py` shows its coverage and that of the alternatives, for judged cross products and for
random samples of their pairs.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

FloatArray = NDArray[np.float64]

SHOWN_FROM_ENTITIES = 40
"""Coverage was shown by simulation from this many entities on; with fewer a bound is only an estimate."""

_BEYOND_LARGEST = 1.1


@dataclass(frozen=True)
class Bound:
    """A ratio with its one-sided bound.

    `point` and `bound` are shares in 0..1 (`point` is NaN without any judged pair). `design_effect` says how many
    times the variance exceeds that of independent pairs, `effective_n` how many independent pairs the sample is
    worth, `effective_entities` how many equally large entities. `exact` marks the plain binomial bound, used when no
    entity has more than one judged pair.
    """

    point: float
    bound: float
    pairs: int
    entities: int
    design_effect: float
    effective_n: float
    effective_entities: float
    exact: bool

    @property
    def shown(self) -> bool:
        """True when the coverage of this bound has been shown for this number of entities."""
        return self.exact or self.entities >= SHOWN_FROM_ENTITIES


def error_bound(
    errors: ArrayLike,
    totals: ArrayLike,
    confidence: float = 0.95,
    imagined: tuple[float, float] | None = None,
    reach: float | None = None,
) -> Bound:
    """Upper bound of sum(errors) / sum(totals) in the population of entities.

    `errors`, `totals`: (entities,) counts, 0 <= errors <= totals. `imagined`: errors and totals of one imagined bad
    entity (see `imagined_entity` and `semlabel.levels`); None derives it from the counts. `reach`: the most errors
    one entity can plausibly make, used when no error was seen; None is the largest total. Raises ValueError for
    counts that are not such counts.
    """
    wrong, judged = _counts(errors, totals, confidence)
    alpha = 1.0 - confidence
    point = float(wrong.sum() / judged.sum()) if judged.sum() > 0 else float("nan")
    if judged.size and judged.max() <= 1:
        pairs = float(judged.sum())
        upper = float(binomial_upper(wrong.sum(), pairs, alpha))
        return Bound(point, upper, int(pairs), wrong.size, 1.0, pairs, pairs, exact=True)
    if judged.sum() == 0:
        return Bound(point, 1.0, 0, wrong.size, 1.0, 0.0, 0.0, exact=False)
    extra = imagined_entity(wrong, judged) if imagined is None else (float(imagined[0]), float(imagined[1]))
    found = upper_bounds(wrong, judged, alpha, extra, reach)
    return Bound(
        point=point,
        bound=float(found["upper"]),
        pairs=int(judged.sum()),
        entities=int(wrong.size),
        design_effect=float(found["design_effect"]),
        effective_n=float(judged.sum() / found["design_effect"]),
        effective_entities=float(found["effective_entities"]),
        exact=False,
    )


def precision_bound(
    flagged: ArrayLike,
    true_positives: ArrayLike,
    confidence: float = 0.95,
    imagined: tuple[float, float] | None = None,
) -> Bound:
    """Lower bound of precision = sum(true_positives) / sum(flagged) in the population of entities.

    `flagged`, `true_positives`: (entities,) counts; the rest as in `error_bound`. Without a flagged pair the bound
    is 0.
    """
    chosen = np.asarray(flagged, dtype=np.float64)
    found = error_bound(chosen - np.asarray(true_positives, dtype=np.float64), chosen, confidence, imagined)
    return Bound(
        point=1.0 - found.point,
        bound=1.0 - found.bound,
        pairs=found.pairs,
        entities=found.entities,
        design_effect=found.design_effect,
        effective_n=found.effective_n,
        effective_entities=found.effective_entities,
        exact=found.exact,
    )


def more_entities(entities: int, point: float, bound: float, ceiling: float) -> int:
    """Entities missing until an upper bound would clear the ceiling if the point stayed: it narrows as 1/sqrt(n)."""
    gap = max(ceiling - point, 1e-3)
    wanted = entities * ((bound - point) / gap) ** 2
    return max(1, math.ceil(1.1 * wanted) - entities)


def binomial_upper(errors: Any, totals: Any, alpha: float) -> Any:
    """Clopper-Pearson upper bound at level `alpha` (arrays broadcast; `totals` may be an effective, broken number)."""
    from scipy.special import betaincinv

    wrong, judged = np.asarray(errors, dtype=np.float64), np.asarray(totals, dtype=np.float64)
    right = np.maximum(judged - wrong, 1e-12)
    return np.where(judged - wrong > 1e-9, betaincinv(wrong + 1.0, right, 1.0 - alpha), 1.0)


def imagined_entity(errors: FloatArray, totals: FloatArray) -> tuple[Any, Any]:
    """Errors and totals of one imagined bad entity, from counts alone: a tenth larger than the largest, all wrong.

    It counts in proportion to how much entities differ beyond chance (0 when counts look like Poisson counts), so a
    sample without an entity effect pays nothing. Arrays are (..., entities); the result has the leading shape.
    """
    share = np.maximum(_overdispersion(errors), _overdispersion(totals))
    worst = _BEYOND_LARGEST * share * totals.max(axis=-1)
    return worst, worst


def upper_bounds(
    errors: FloatArray,
    totals: FloatArray,
    alpha: float,
    imagined: tuple[Any, Any],
    reach: Any = None,
) -> dict[str, FloatArray]:
    """The vectorised bound: arrays (..., entities) give `upper`, `design_effect`, `effective_entities` (...).

    Every total must have a positive sum over the entities.
    """
    from scipy.special import stdtrit

    wrong = np.concatenate([errors, np.broadcast_to(imagined[0], errors.shape[:-1])[..., None]], axis=-1)
    judged = np.concatenate([totals, np.broadcast_to(imagined[1], totals.shape[:-1])[..., None]], axis=-1)
    count, pairs = wrong.shape[-1], judged.sum(axis=-1)
    ratio = wrong.sum(axis=-1) / pairs
    residual = wrong - ratio[..., None] * judged
    spread = np.sqrt(count / (count - 1.0) * (residual**2).sum(axis=-1)) / pairs
    effective = pairs**2 / np.maximum((judged**2).sum(axis=-1), 1e-300)
    quantile = -stdtrit(np.maximum(effective - 1.0, 1.0), 1.0 - alpha)
    upper = ratio - _unskew(quantile, residual) * spread

    independent = np.maximum(ratio * (1.0 - ratio) / pairs, 1e-300)
    design_effect = np.maximum(1.0, spread**2 / independent)
    worth = pairs / design_effect
    upper = np.maximum(upper, binomial_upper(ratio * worth, worth, alpha))

    seen = totals.sum(axis=-1)
    seen_effective = seen**2 / np.maximum((totals**2).sum(axis=-1), 1e-300)
    largest = totals.max(axis=-1) if reach is None else np.asarray(reach, dtype=np.float64)
    share = np.minimum(1.0, np.maximum(largest, 1.0) * totals.shape[-1] / seen)
    without_error = np.maximum((1.0 - alpha ** (1.0 / seen_effective)) * share, upper)
    upper = np.where(errors.sum(axis=-1) > 0, upper, without_error)
    return {
        "upper": np.minimum(upper, 1.0),
        "design_effect": design_effect,
        "effective_entities": seen_effective,
    }


def _unskew(quantile: FloatArray, residual: FloatArray) -> FloatArray:
    """Hall's inverse of the skewness correction; only ever widens the bound (skewness towards errors)."""
    count = residual.shape[-1]
    scale = np.sqrt((residual**2).mean(axis=-1))
    skewness = (residual**3).mean(axis=-1) / np.maximum(scale**3, 1e-300)
    lean = np.maximum(skewness / np.sqrt(count), 0.0)
    safe = np.where(lean > 1e-6, lean, 1.0)
    corrected = 3.0 / safe * (np.cbrt(1.0 + safe * (quantile - safe / 6.0)) - 1.0)
    return np.where(lean > 1e-6, corrected, quantile)


def _overdispersion(counts: FloatArray) -> FloatArray:
    """Share of the variance between entities that a Poisson count would not have, 0..1."""
    mean = counts.mean(axis=-1)
    variance = counts.var(axis=-1, ddof=1) if counts.shape[-1] > 1 else np.zeros_like(mean)
    return np.where(variance > mean, 1.0 - mean / np.maximum(variance, 1e-300), 0.0)


def _counts(errors: ArrayLike, totals: ArrayLike, confidence: float) -> tuple[FloatArray, FloatArray]:
    wrong, judged = np.asarray(errors, dtype=np.float64), np.asarray(totals, dtype=np.float64)
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"confidence {confidence} is not between 0 and 1")
    if wrong.ndim != 1 or wrong.shape != judged.shape:
        raise ValueError(f"errors {wrong.shape} and totals {judged.shape} are not two equally long rows of counts")
    if not (np.isfinite(judged).all() and (wrong >= 0).all() and (wrong <= judged).all()):
        raise ValueError("errors and totals per entity must be counts with 0 <= errors <= totals")
    return wrong, judged
