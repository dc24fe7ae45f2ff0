"""Gates of the checkpoint: quality on held-out entities, and packed scoring equal to single scoring in any order.

They know nothing of models: margins were computed elsewhere, in the precision that is served, and arrive here as
differences, flip counts and interval estimates.
"""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from semlabel.gates.registry import decide
from semlabel.gates.result import GateResult, Verdict

if TYPE_CHECKING:
    import numpy as np


def held_out_quality(
    auc: Any,
    average_precision: Any,
    baselines: Mapping[str, float],
    ratio: Any,
    min_auc: float,
    min_average_precision_ratio: float,
    n_entities: int | None = None,
    by_flagged: Sequence[Mapping[str, Any]] | None = None,
) -> GateResult:
    """Passes when the lower ends of AUC and of the average-precision ratio reach their limits.

    `auc`, `average_precision` and `ratio` are estimates (objects or dicts with `value`, `low`, `high`); `ratio` is
    average precision over that of the best of `baselines` (name -> average precision), paired over entities.
    A point estimate below its limit fails; an interval that contains the limit is `not_enough_data`.
    `by_flagged` (rows of `semlabel.by_flagged`) decides nothing: it is kept for whoever chooses a promise.
    """
    gate = "held_out_quality"
    auc_value, auc_low = _ends(auc)
    ratio_value, ratio_low = _ends(ratio)
    evidence = {
        "auc": _shown(auc),
        "average_precision": _shown(average_precision),
        "baselines": dict(baselines),
        "ratio": _shown(ratio),
        "min_auc": min_auc,
        "min_average_precision_ratio": min_average_precision_ratio,
        "n_entities": n_entities,
        "by_flagged": None if by_flagged is None else [dict(row) for row in by_flagged],
    }
    if not baselines:
        sentence = "No baseline was measured, so the quality means nothing: fit the baselines and run this again."
        return decide(gate, "not_enough_data", sentence, auc_low, min_auc, evidence)
    best = max(baselines, key=lambda name: baselines[name])
    auc_verdict = _against(auc_value, auc_low, min_auc)
    ratio_verdict = _against(ratio_value, ratio_low, min_average_precision_ratio)
    if auc_verdict != "pass" and (auc_verdict == "fail" or ratio_verdict != "fail"):
        sentence = (
            f"Held-out AUC is {_text(auc_value)} (at least {_text(auc_low)} with confidence), "
            f"but {min_auc:g} is asked: {_cure(auc_verdict, (auc_value, auc_low, min_auc), n_entities)}"
        )
        return decide(gate, auc_verdict, sentence, auc_low, min_auc, evidence)
    if ratio_verdict != "pass":
        cure = _cure(ratio_verdict, (ratio_value, ratio_low, min_average_precision_ratio), n_entities)
        sentence = (
            f"Held-out average precision is {_text(ratio_value)} times that of {best} (at least {_text(ratio_low)} "
            f"with confidence), but {min_average_precision_ratio:g} is asked: {cure}"
        )
        return decide(gate, ratio_verdict, sentence, ratio_low, min_average_precision_ratio, evidence)
    sentence = (
        f"Held-out AUC is {_text(auc_value)} (at least {_text(auc_low)}) and average precision {_text(ratio_value)} "
        f"times that of {best} (at least {_text(ratio_low)})."
    )
    return decide(gate, "pass", sentence, auc_low, min_auc, evidence)


def mis_matches_single_item(
    differences: "Sequence[float] | np.ndarray",
    flips: int,
    yes_either: int,
    tolerance: float,
    pairs: int,
    min_pairs: int,
    max_label_flips: float = 0.0,
) -> GateResult:
    """Passes when packed and single margins agree.

    `differences` (pairs,): |packed - single| in margin units; `flips` of the `yes_either` pairs that are YES in
    either get another label. An all-NO labeler cannot flip, so `yes_either` 0 is `not_enough_data`.
    """
    words = ("packed and single scoring", "refuse this model for packed scoring or choose another method")
    return _parity(
        "mis_matches_single_item", words, differences, flips, yes_either, tolerance, pairs, min_pairs, max_label_flips
    )


def order_invariance(
    differences: "Sequence[float] | np.ndarray",
    flips: int,
    yes_either: int,
    tolerance: float,
    pairs: int,
    min_pairs: int,
    max_label_flips: float = 0.0,
) -> GateResult:
    """Like `mis_matches_single_item`, for margins of the same pairs with the candidates in another order."""
    words = ("two orders of the candidates", "look for a mask or position fault in the attention path")
    return _parity(
        "order_invariance", words, differences, flips, yes_either, tolerance, pairs, min_pairs, max_label_flips
    )


def _parity(
    gate: str,
    words: tuple[str, str],
    differences: "Sequence[float] | np.ndarray",
    flips: int,
    yes_either: int,
    tolerance: float,
    pairs: int,
    min_pairs: int,
    max_label_flips: float,
) -> GateResult:
    import numpy as np

    moved = np.abs(np.asarray(differences, dtype=np.float64).ravel())
    largest = float(moved.max()) if moved.size else None
    share = flips / yes_either if yes_either else None
    evidence = {
        "pairs": pairs,
        "max_difference": largest,
        "mean_difference": float(moved.mean()) if moved.size else None,
        "tolerance": tolerance,
        "flips": flips,
        "yes_either": yes_either,
        "flipped_share_of_yes": share,
        "max_label_flips": max_label_flips,
    }
    what, cure = words
    if moved.size != pairs:
        sentence = f"{moved.size} differences were measured for {pairs} pairs between {what}: measure each pair once."
        return decide(gate, "fail", sentence, moved.size, pairs, evidence)
    if largest is not None and not math.isfinite(largest):
        sentence = f"Some margins are not numbers in one of {what}: {cure}."
        return decide(gate, "fail", sentence, largest, tolerance, evidence)
    if largest is not None and largest > tolerance:
        sentence = f"Margins move by up to {largest:.3g} between {what}, over the tolerance of {tolerance:g}: {cure}."
        return decide(gate, "fail", sentence, largest, tolerance, evidence)
    if share is not None and share > max_label_flips:
        sentence = f"{flips} of {yes_either} YES labels change between {what}: {cure}."
        return decide(gate, "fail", sentence, share, max_label_flips, evidence)
    if pairs < max(1, min_pairs):
        sentence = f"Only {pairs} pairs were compared between {what}: compare at least {max(1, min_pairs)}."
        return decide(gate, "not_enough_data", sentence, pairs, max(1, min_pairs), evidence)
    if not yes_either:
        sentence = f"None of {pairs} pairs is YES, so no label could change between {what}: compare pairs that are."
        return decide(gate, "not_enough_data", sentence, largest, tolerance, evidence)
    sentence = f"Margins of {pairs} pairs move by at most {largest:.2g} between {what}; {flips} labels change."
    return decide(gate, "pass", sentence, largest, tolerance, evidence)


def _ends(estimate: Any) -> tuple[float, float]:
    """Point and lower end of an estimate (object or dict); NaN where there is none."""
    shown = _shown(estimate)
    return _float(shown.get("value")), _float(shown.get("low"))


def _shown(estimate: Any) -> dict[str, Any]:
    if estimate is None:
        return {}
    if isinstance(estimate, Mapping):
        return dict(estimate)
    return {name: getattr(estimate, name) for name in ("value", "low", "high")}


def _against(value: float, low: float, limit: float) -> Verdict:
    if math.isnan(value) or math.isnan(low):
        return "not_enough_data"
    if low >= limit:
        return "pass"
    return "fail" if value < limit else "not_enough_data"


def _cure(verdict: Verdict, found: tuple[float, float, float], entities: int | None) -> str:
    """What to do; `found` is a measure's value, its lower end and its limit."""
    if verdict == "fail":
        return "train on more pairs or with better negatives."
    if entities is None or any(map(math.isnan, found)):
        return "hold out more entities with reference labels."
    from semlabel.bounds import more_entities

    value, low, limit = found
    more = more_entities(entities, 1 - value, 1 - low, 1 - limit)
    return (
        f"calibrate has {entities:,} entities, and about {more:,} more with reference labels would show it if quality "
        "stays as it is; bring them, or ask for less."
    )


def _float(value: Any) -> float:
    return math.nan if value is None else float(value)


def _text(value: float) -> str:
    return "unknown" if math.isnan(value) else f"{value:.3f}"
