"""Gate of the threshold: what the walk over the certify split showed, checked for being a whole answer.

Knows nothing of statistics: `semlabel.thresholds` decides, this turns its result into a verdict that fails closed.
"""

from collections.abc import Mapping
from typing import Any

from semlabel.gates.registry import cannot_compute, decide
from semlabel.gates.result import GateResult

_LIMITS = {"min_precision": "precision", "max_fpr": "fpr", "max_fnr": "fnr"}


def held_out_errors(result: Mapping[str, Any]) -> GateResult:
    """Passes when `result` (a `ThresholdResult.to_json()`) says so and carries a threshold and all its bounds."""
    gate = "held_out_errors"
    if not result or result.get("verdict") not in ("pass", "fail", "not_enough_data"):
        return cannot_compute(gate, "the threshold was not searched")
    policy = result.get("policy") or {}
    bounds = result.get("bounds") or {}
    asked = [name for name in _LIMITS if policy.get(name) is not None]
    first = asked[0] if asked else None
    value = bounds.get(_LIMITS[first]) if first else None
    limit = policy.get(first) if first else None
    evidence = {name: item for name, item in result.items() if name not in ("verdict", "sentence")}
    if result["verdict"] != "pass":
        sentence = str(result.get("sentence") or "No threshold keeps the declared limits: improve the labeler.")
        return decide(gate, result["verdict"], sentence, value, limit, evidence)
    missing = [_LIMITS[name] for name in asked if bounds.get(_LIMITS[name]) is None]
    if result.get("threshold") is None or not asked or missing:
        return cannot_compute(gate, "the result says pass but carries no threshold, no limit or no bound")
    broken = [name for name in asked if not _kept(name, bounds[_LIMITS[name]], policy[name])]
    if broken:
        return cannot_compute(gate, f"the result says pass but its bound breaks {broken[0]}")
    return decide(gate, "pass", str(result.get("sentence", "")), value, limit, evidence)


def _kept(name: str, bound: float, limit: float) -> bool:
    return bound >= limit if name.startswith("min_") else bound <= limit
