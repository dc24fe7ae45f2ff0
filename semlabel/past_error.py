"""How long earlier plans really took, beside what today's estimate says of as many rounds and pairs.

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
            return f"The last refresh took {self.typical:.2g} times what this estimate gives for its tokens."
        return (
            f"The last {self.plans} refreshes took {self.typical:.2g} times what this estimate gives for their tokens "
            f"({self.low:.2g} to {self.high:.2g})."
        )


def past_error(
    finished: Iterable[Mapping[str, Any]],
    scorer_digest: str,
    query_tokens: float,
    item_tokens: float,
    seconds_per_token: float,
) -> PastError | None:
    """The error of an estimate that gives so many seconds a token, from finished plans of the same scorer.

    A round reads its query once, so a plan's tokens are those of its rounds' queries and of its pairs' items. None
    where no such plan is large enough.
    """
    ratios = [
        plan["measured_seconds"]
        / ((plan["rounds_total"] * query_tokens + plan["pairs"] * item_tokens) * seconds_per_token)
        for plan in finished
        if plan["scorer_digest"] == scorer_digest and plan["pairs"] >= _LEAST_PAIRS and plan["measured_seconds"]
    ]
    return PastError(len(ratios), statistics.median(ratios), min(ratios), max(ratios)) if ratios else None
