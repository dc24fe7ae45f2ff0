"""From margins to probabilities: Platt's two parameters, and how well they are calibrated.

Knows nothing of thresholds or files. The fit runs on the natural cross product of `calibrate`, so its prevalence is
already that of the predictions and no prior shift goes on top. Everything is float64: a sigmoid in lower precision
rounds to exactly 1.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

FloatArray = NDArray[np.float64]

_MAX_STEPS = 200


@dataclass(frozen=True)
class Platt:
    """probability = 1 / (1 + exp(-(a * margin + b)))."""

    a: float
    b: float

    def probability(self, margins: ArrayLike) -> FloatArray:
        """Probabilities in float64, same shape as `margins` (margin units), strictly increasing when a > 0."""
        score = self.a * np.asarray(margins, dtype=np.float64) + self.b
        small = np.exp(-np.abs(score))
        return np.where(score >= 0, 1.0 / (1.0 + small), small / (1.0 + small))

    def margin(self, probability: float) -> float:
        """The margin at which this map gives `probability` (0..1, exclusive). Raises ValueError when a is 0."""
        if not 0.0 < probability < 1.0 or self.a == 0.0:
            raise ValueError(f"no margin has probability {probability} under a={self.a}")
        return (math.log(probability / (1.0 - probability)) - self.b) / self.a


def fit_platt(margins: ArrayLike, labels: ArrayLike, weights: ArrayLike | None = None) -> Platt:
    """Maximum-likelihood fit of `Platt` on judged pairs, unpenalised, by Newton steps with step halving.

    `margins`, `labels`: (pairs,); `weights`: (pairs,) positive, 1 / inclusion probability when the pairs were
    sampled. Raises ValueError when shapes differ, a margin is not finite, labels hold one value only, or the margins
    separate the labels perfectly (the likelihood then has no maximum).
    """
    x, y, w = _columns(margins, labels, weights)
    if not (y == 1).any() or not (y == 0).any():
        raise ValueError("a probability map needs judged pairs of both labels")
    _refuse_separated(x, y)
    center, scale = float(np.average(x, weights=w)), float(x.std()) or 1.0
    design = np.column_stack([(x - center) / scale, np.ones_like(x)])
    prevalence = float(np.average(y, weights=w))
    theta = np.array([0.0, math.log(prevalence / (1.0 - prevalence))])
    loss = _loss(design @ theta, y, w)
    for _ in range(_MAX_STEPS):
        probability = Platt(1.0, 0.0).probability(design @ theta)
        gradient = design.T @ (w * (probability - y))
        hessian = (design * (w * probability * (1.0 - probability))[:, None]).T @ design
        step = np.linalg.lstsq(hessian, gradient, rcond=None)[0]
        factor = 1.0
        while (new := _loss(design @ (theta - factor * step), y, w)) > loss and factor > 1e-10:
            factor /= 2.0
        if factor <= 1e-10 or loss - new <= 1e-15 * abs(loss):
            theta = theta - factor * step if new <= loss else theta
            break
        theta, loss = theta - factor * step, new
    slope = float(theta[0]) / scale
    return Platt(a=slope, b=float(theta[1]) - slope * center)


def brier(probabilities: ArrayLike, labels: ArrayLike) -> float:
    """Mean squared distance of probability and label, (pairs,) each; 0 is perfect."""
    p, y, _ = _columns(probabilities, labels, None)
    return float(np.mean((p - y) ** 2))


def expected_calibration_error(probabilities: ArrayLike, labels: ArrayLike, bins: int = 10) -> float:
    """Mean distance of predicted and observed share over `bins` groups of equally many pairs (by probability).

    Equally filled groups, because at 2 % prevalence equally wide ones would put nearly every pair into the first.
    """
    p, y, _ = _columns(probabilities, labels, None)
    if p.size == 0:
        raise ValueError("no judged pair to measure calibration on")
    group = bins * np.searchsorted(np.sort(p), p) // p.size  # equal probabilities share a group
    distance = np.bincount(group, weights=p, minlength=bins) - np.bincount(group, weights=y, minlength=bins)
    return float(np.abs(distance).sum() / p.size)


def _columns(x: ArrayLike, labels: ArrayLike, weights: ArrayLike | None) -> tuple[FloatArray, FloatArray, FloatArray]:
    values = np.asarray(x, dtype=np.float64)
    y = np.asarray(labels, dtype=bool).astype(np.float64)
    w = np.ones_like(values) if weights is None else np.asarray(weights, dtype=np.float64)
    if values.ndim != 1 or not values.shape == y.shape == w.shape:
        raise ValueError(f"{values.shape} values, {y.shape} labels and {w.shape} weights: not one of each per pair")
    if not np.isfinite(values).all() or not (np.isfinite(w).all() and (w > 0).all()):
        raise ValueError("margins must be finite and weights positive")
    return values, y, w


def _refuse_separated(x: FloatArray, y: FloatArray) -> None:
    yes, no = x[y == 1], x[y == 0]
    if yes.min() >= no.max() or yes.max() <= no.min():
        raise ValueError("the margins separate all judged pairs perfectly: judge more pairs to fit probabilities")


def _loss(score: FloatArray, y: FloatArray, w: FloatArray) -> float:
    return float(np.sum(w * (np.logaddexp(0.0, score) - y * score)))
