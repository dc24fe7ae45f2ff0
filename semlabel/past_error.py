"""How long earlier plans really took, beside what today's estimate says of as many pairs.

Knows finished plans and one estimate of scoring; deliberately knows nothing of how either came about. An estimate
leaves out what it cannot know (attention, other work on the machine), so what it missed by before is told with it.
"""

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

_LEAST_PAIRS = 200
"""Smaller plans are over before a rate shows."""


@dataclass(frozen=True)
class PastError:
    """Measured over estimated seconds of `plans` finished plans: the median and both ends."""

    plans: int
    typical: float
    low: float
    high: float

    def to_json(self) -> dict[str, Any]:
        """All numbers as JSON values."""
        return asdict(self)

    def sentence(self) -> str:
        """One sentence for people."""
        if self.plans == 1:
            return f"The last refresh took {self.typical:.2g} times what this estimate gives for its pairs."
        return (
            f"The last {self.plans} refreshes took {self.typical:.2g} times what this estimate gives for their pairs "
            f"({self.low:.2g} to {self.high:.2g})."
        )


def past_error(
    finished: Iterable[Mapping[str, Any]], scorer_digest: str, pairs: int, seconds: float
) -> PastError | None:
    """The error against an estimate of `seconds` for `pairs`, from finished plans of the same scorer.

    None where no such plan is large enough, or nothing is estimated.
    """
    if not pairs or not seconds:
        return None
    ratios = [
        plan["measured_seconds"] / (plan["pairs"] * seconds / pairs)
        for plan in finished
        if plan["scorer_digest"] == scorer_digest and plan["pairs"] >= _LEAST_PAIRS and plan["measured_seconds"]
    ]
    return PastError(len(ratios), statistics.median(ratios), min(ratios), max(ratios)) if ratios else None
