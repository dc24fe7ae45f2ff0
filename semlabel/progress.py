"""How long-running functions say how far they are, without knowing who listens.

A sink is called often; it is the listener's business to thin the calls out.
"""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Progress:
    """`done` of `total` `unit`s of `stage`; `total` is 0 while it is not known."""

    stage: str
    done: int
    total: int
    unit: str


ProgressSink = Callable[[Progress], None]


def silent(_: Progress) -> None:
    """The sink of a caller who does not care."""
