"""Choosing the threshold tau so that the declared error limits hold tomorrow, not only on the data at hand.

Cuts and the cut to start from are chosen on `calibrate`; each is then tested once, in that order, on `certify`,
until one fails. An order fixed beforehand keeps the whole walk at the level of a single test. Precision and FPR
walk from strict to lax, FNR from lax to strict; several limits split alpha and their cuts intersect.
Knows nothing of models, files or the warehouse, and leaves the statistics of one cut to `semlabel.bounds`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import NormalDist
from typing import Any, Literal

import numpy as np

from semlabel.bounds import SHOWN_FROM_ENTITIES, more_entities
from semlabel.cuts import choose_cuts
from semlabel.errors import SettingsError
from semlabel.judged import Judged, Limit, limit_bound

ThresholdVerdict = Literal["pass", "fail", "not_enough_data"]
Word = Literal["certified", "estimated"]

__all__ = ["Judged", "Policy", "ThresholdResult", "choose_cuts", "walk"]

_NAMES: dict[Limit, str] = {"precision": "precision", "fpr": "false-positive rate", "fnr": "share of missed positives"}


@dataclass(frozen=True)
class Policy:
    """The declared limits: a floor for precision = TP/(TP+FP), ceilings for fpr = FP/N and fnr = FN/P."""

    min_precision: float | None = None
    max_fpr: float | None = None
    max_fnr: float | None = None

    def ceilings(self) -> dict[Limit, float]:
        """The declared limits as ceilings of error ratios: a precision floor is a ceiling of 1 - precision.

        Raises SettingsError when none is declared or one is not strictly between 0 and 1.
        """
        declared: dict[Limit, float | None] = {
            "precision": None if self.min_precision is None else 1.0 - self.min_precision,
            "fpr": self.max_fpr,
            "fnr": self.max_fnr,
        }
        found = {name: ceiling for name, ceiling in declared.items() if ceiling is not None}
        for name, ceiling in found.items():
            if not 0.0 < ceiling < 1.0:
                raise SettingsError(f"the limit for {name} must lie strictly between 0 and 1")
        if not found:
            raise SettingsError("no error limit is declared: set min_precision, max_fpr or max_fnr in [calibration]")
        return found


@dataclass(frozen=True)
class ThresholdResult:
    """What the walk found.

    `threshold` is in margin units, None unless the verdict is `pass`. `bounds` and `points` hold, per declared
    limit, the one-sided bound and the point estimate on certify at the threshold, or at the cut that failed;
    `misses` the false negatives there, over all judged pairs, with their bound. `word` is `certified` only when the
    coverage of the bound has been shown for this number of entities and for what is judged of each. `steps` lists
    every cut tested: `limit, cut, flagged, tp, point, bound, limit_value, design_effect, effective_n, exact, ok`.
    """

    threshold: float | None
    verdict: ThresholdVerdict
    policy: Policy
    confidence: float
    word: Word
    sentence: str
    steps: list[dict[str, Any]]
    bounds: dict[str, float]
    points: dict[str, float | None]
    misses: dict[str, Any]
    design_effect: float
    effective_n: float
    entities: int
    more_entities_needed: int | None

    def to_json(self) -> dict[str, Any]:
        """All fields as JSON values."""
        return asdict(self)


def walk(
    policy: Policy,
    calibrate: Judged | Any,
    certify: Judged | Any,
    confidence: float = 0.95,
    cuts: int = 20,
    min_expected_flagged: int = 25,
    next_confidence: float | None = None,
) -> ThresholdResult:
    """Search the threshold: choose cuts on `calibrate`, prove them on `certify` with `confidence`.

    `next_confidence` is what a further look would have to be made with, when it says how many more entities to judge.
    Both are `Judged` or tables with columns `entity_id`, `label`, `margin` (see `Judged.of_table`): every judged pair
    of the split's entities, none of which was trained on. Raises SettingsError for a policy without limits, ValueError
    for margins that are not finite.
    """
    ceilings = policy.ceilings()
    chosen = calibrate if isinstance(calibrate, Judged) else Judged.of_table(calibrate)
    proof = certify if isinstance(certify, Judged) else Judged.of_table(certify)
    level = 1.0 - (1.0 - confidence) / len(ceilings)
    own = {
        limit: choose_cuts(chosen, proof.entities, limit, ceiling, level, cuts, min_expected_flagged)
        for limit, ceiling in ceilings.items()
    }
    shared = sorted({cut for path in own.values() for cut in path})
    walked = {
        limit: _walk_one(proof, limit, ceiling, level, _path(limit, own[limit], shared))
        for limit, ceiling in ceilings.items()
    }
    held = [{step["cut"] for step in steps if step["ok"]} for steps in walked.values()]
    common = set.intersection(*held)
    if common:
        threshold = min(common)
        shown = [step for steps in walked.values() for step in steps if step["cut"] == threshold]
        return _result(policy, confidence, level, proof, walked, shown, "pass", threshold, None)
    shown = [steps[-1] for steps in walked.values() if steps]
    verdict, more = _refusal(ceilings, chosen, proof, walked, shared, min_expected_flagged)
    if more is not None and next_confidence is not None:
        more = math.ceil((proof.entities + more) * _wider(level, next_confidence, len(ceilings))) - proof.entities
    return _result(policy, confidence, level, proof, walked, shown, verdict, None, more)


def _path(limit: Limit, own: Sequence[float], shared: Sequence[float]) -> list[float]:
    """The cuts of all limits in the order of this limit, from its own starting cut on."""
    if not own:
        return []
    if limit == "fnr":
        return [cut for cut in shared if cut >= own[0]]
    return [cut for cut in reversed(shared) if cut <= own[0]]


def _walk_one(proof: Judged, limit: Limit, ceiling: float, level: float, path: Sequence[float]) -> list[dict[str, Any]]:
    """Tests the cuts in order until one fails; a cut without a flagged pair fails."""
    steps: list[dict[str, Any]] = []
    for cut in path:
        counts = proof.counts(cut)
        found = limit_bound(proof, cut, limit, level)
        flagged = int(counts["flagged"].sum())
        ok = flagged > 0 and found.pairs > 0 and found.bound <= ceiling
        steps.append(
            {
                "limit": limit,
                "cut": cut,
                "flagged": flagged,
                "tp": int(counts["tp"].sum()),
                "point": _as_declared(limit, found.point),
                "bound": _as_declared(limit, found.bound),
                "limit_value": _as_declared(limit, ceiling),
                "design_effect": found.design_effect,
                "effective_n": found.effective_n,
                "exact": found.exact,
                "ok": ok,
            }
        )
        if not ok:
            break
    return steps


def _refusal(
    ceilings: Mapping[Limit, float],
    chosen: Judged,
    proof: Judged,
    walked: Mapping[Limit, list[dict[str, Any]]],
    shared: Sequence[float],
    min_expected_flagged: int,
) -> tuple[ThresholdVerdict, int | None]:
    """Why there is no threshold: the limits are missed (`fail`), or there is too little to tell; then how much more."""
    needed = 1
    for limit, steps in walked.items():
        if not steps:
            pairs_each = chosen.margins.size / max(chosen.entities, 1)
            wanted = max(SHOWN_FROM_ENTITIES, math.ceil(min_expected_flagged / max(pairs_each, 1.0)))
            return "not_enough_data", max(1, wanted - proof.entities)
        first = steps[0]
        if first["ok"]:
            continue
        if first["flagged"] == 0 or first["point"] is None:
            return "fail", None
        point, bound = (_as_error(limit, first[name]) for name in ("point", "bound"))
        if point > ceilings[limit]:
            return "fail", None
        needed = max(needed, more_entities(proof.entities, point, bound, ceilings[limit]))
    if all(steps[0]["ok"] for steps in walked.values()):
        at = np.array(shared)
        fits = [proof.points(at, limit) <= ceiling for limit, ceiling in ceilings.items()]
        if not np.logical_and.reduce(fits).any():
            return "fail", None
        last = [(limit, steps[-1]) for limit, steps in walked.items() if not steps[-1]["ok"]]
        for limit, step in last:
            if step["point"] is not None and _as_error(limit, step["point"]) <= ceilings[limit]:
                point, bound = (_as_error(limit, step[name]) for name in ("point", "bound"))
                needed = max(needed, more_entities(proof.entities, point, bound, ceilings[limit]))
    return "not_enough_data", needed


def _wider(level: float, next_confidence: float, limits: int) -> float:
    """How many times the entities a bound of the same width takes at the next confidence: the quantiles squared."""
    now, then = (NormalDist().inv_cdf(share) for share in (level, 1.0 - (1.0 - next_confidence) / limits))
    return (then / now) ** 2


def _result(
    policy: Policy,
    confidence: float,
    level: float,
    proof: Judged,
    walked: Mapping[Limit, list[dict[str, Any]]],
    shown: list[dict[str, Any]],
    verdict: ThresholdVerdict,
    threshold: float | None,
    more: int | None,
) -> ThresholdResult:
    exact = bool(shown) and all(step["exact"] for step in shown)
    # Where margins show no spread between entities the bound rests on counts alone, and misses more often than it says.
    holds = proof.entities >= SHOWN_FROM_ENTITIES and proof.levels is not None
    word: Word = "certified" if exact or holds else "estimated"
    at = threshold if threshold is not None else (shown[0]["cut"] if shown else None)
    return ThresholdResult(
        threshold=threshold,
        verdict=verdict,
        policy=policy,
        confidence=confidence,
        word=word,
        sentence=_sentence(verdict, word, confidence, proof, shown, threshold, more),
        steps=[step for steps in walked.values() for step in steps],
        bounds={step["limit"]: step["bound"] for step in shown},
        points={step["limit"]: step["point"] for step in shown},
        misses=_misses(proof, at, level),
        design_effect=shown[0]["design_effect"] if shown else 1.0,
        effective_n=shown[0]["effective_n"] if shown else 0.0,
        entities=proof.entities,
        more_entities_needed=more,
    )


def _misses(proof: Judged, cut: float | None, level: float) -> dict[str, Any]:
    """False negatives over all judged pairs at `cut`, with their upper bound and what it rests on. In the bound the
    undecided pairs that are not flagged count as misses.
    """
    positives, undecided = int(proof.labels.sum()), int(proof.undecided.sum())
    told: dict[str, Any] = {"positives": positives, "negatives": int(proof.labels.size) - positives - undecided}
    if cut is None or positives == 0:
        return told | {"fn": None, "fnr": None, "fnr_bound": None}
    missed = positives - int(proof.counts(cut)["tp"].sum())
    return told | {
        "fn": missed,
        "fnr": missed / positives,
        "fnr_bound": limit_bound(proof, cut, "fnr", level).bound,
    }


def _sentence(
    verdict: ThresholdVerdict,
    word: Word,
    confidence: float,
    proof: Judged,
    shown: list[dict[str, Any]],
    threshold: float | None,
    more: int | None,
) -> str:
    told = " and ".join(_told(step) for step in shown)
    undecided = int(proof.undecided.sum())
    basis = f"on {proof.entities} held-out entities"
    if undecided:
        basis += f" ({undecided} drawn pairs that nobody judged count as wrong)"
    if verdict == "pass":
        return f"At margin {threshold:.3f}, {word} with {100 * confidence:.4g}% confidence {basis}: {told}."
    if verdict == "not_enough_data":
        cure = f"judge about {more} more entities for the certify split"
        return f"Too little data {basis} to show the limits{': ' + told if told else ''}; {cure}."
    if all(step["flagged"] == 0 for step in shown):
        return f"No pair is flagged {basis} at the cut chosen on calibrate: retrain, or check that splits are alike."
    return f"No threshold keeps the declared limits {basis}: {told}; train a better labeler or change the policy."


def _told(step: Mapping[str, Any]) -> str:
    bound = "at least" if step["limit"] == "precision" else "at most"
    point = "unknown" if step["point"] is None else f"{step['point']:.3f}"
    name = _NAMES[step["limit"]]
    return f"{name} is {point}, {bound} {step['bound']:.3f} with confidence (limit {step['limit_value']:g})"


def _as_declared(limit: Limit, error: float) -> float | None:
    """An error ratio in the terms of its limit: precision for precision, else the error itself."""
    if math.isnan(error):
        return None
    return 1.0 - error if limit == "precision" else error


def _as_error(limit: Limit, declared: float) -> float:
    return 1.0 - declared if limit == "precision" else declared
