"""What a gate says: a verdict with its value, its limit, one plain sentence and evidence that fits in a page.

Knows nothing of any particular gate. Whatever is put in comes out as plain JSON values, because a numpy float in
the metadata must not be what turns a check red, and 50,000 offending rows must not be what freezes a page.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Verdict = Literal["pass", "fail", "not_enough_data"]
Severity = Literal["ERROR", "WARN"]

VERDICT_WORDS = {"pass": "pass", "fail": "FAIL", "not_enough_data": "NOT ENOUGH DATA"}
"""Verdicts as people read them, on a terminal and in a report."""

MAX_EVIDENCE_ROWS = 50
_MAX_TEXT = 300


@dataclass(frozen=True)
class GateResult:
    """The outcome of one gate.

    `value` and `limit` are the one comparison a reader should see first; `sentence` is one sentence that says what
    is so and, when it is not a pass, what to do. `computed` is False when the evidence could not be gathered.
    `evidence` holds JSON values only: lists are cut to 50 rows (`NAME_total` tells how many there were).
    """

    gate: str
    asset: str
    severity: Severity
    verdict: Verdict
    value: float | None
    limit: float | None
    sentence: str
    evidence: dict[str, Any] = field(default_factory=dict)
    computed: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "value", _number(self.value))
        object.__setattr__(self, "limit", _number(self.limit))
        object.__setattr__(self, "evidence", _evidence(self.evidence))
        if self.verdict == "pass" and not self.computed:
            raise ValueError(f"{self.gate}: a gate that was not computed cannot pass")

    @property
    def passed(self) -> bool:
        """True for `pass` alone: `not_enough_data` blocks like `fail`."""
        return self.verdict == "pass"

    def to_json(self) -> dict[str, Any]:
        """All fields as JSON values."""
        return asdict(self)


def jsonable(value: Any) -> Any:
    """`value` as plain JSON: numpy scalars cast, NaN and infinities as None, long texts and lists cut."""
    if isinstance(value, str):
        return value if len(value) <= _MAX_TEXT else value[: _MAX_TEXT - 1] + "…"
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, Mapping):
        return {str(key): jsonable(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [jsonable(item) for item in list(value)[:MAX_EVIDENCE_ROWS]]
    if hasattr(value, "tolist"):  # numpy scalars and arrays
        return jsonable(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return jsonable(str(value))


def _evidence(evidence: Mapping[str, Any]) -> dict[str, Any]:
    plain: dict[str, Any] = {}
    for key, value in evidence.items():
        plain[key] = jsonable(value)
        if isinstance(value, list | tuple) and len(value) > MAX_EVIDENCE_ROWS:
            plain[f"{key}_total"] = len(value)
    return plain


def _number(value: Any) -> float | None:
    if value is None:
        return None
    number = float(value)
    return number if math.isfinite(number) else None
