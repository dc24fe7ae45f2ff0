"""What changed in the labels from one version to another, in counts that add up over nights.

Knows no files and no limits. A span begins with a population (per candidate: entities and how many of them are YES)
and counts what happened after: flips of entities that stayed, and labels of entities that arrived. Two spans in a row
are one span, so one night, the last nights and everything since the labeler's first version are the same kind of thing.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from semlabel.drift.sums import Sums

IntArray = NDArray[np.int64]
_PER_CANDIDATE = ("entities", "yes", "up", "down", "new", "new_yes")


@dataclass(frozen=True, eq=False)
class Span:
    """Counts per candidate, and over all candidates with the entity as the unit.

    `entities`, `yes`: the population at the start. `up`, `down`: flips NO to YES and YES to NO. `new`, `new_yes`: the
    arrivals. `flip_sum`, `flip_squares`: per entity ups minus downs over all candidates, summed, and their squares.
    `before`: labels of pairs at the start; `surplus`: labels of arrivals above the share before them, of pairs.
    """

    entities: IntArray
    yes: IntArray
    up: IntArray
    down: IntArray
    new: IntArray
    new_yes: IntArray
    flip_sum: float = 0.0
    flip_squares: float = 0.0
    before: Sums = field(default_factory=Sums)
    surplus: Sums = field(default_factory=Sums)

    def then(self, later: "Span") -> "Span":
        """This span and the one that follows it, over the same candidates. A candidate starts where it first stands."""
        began = self.entities > 0
        return Span(
            entities=np.where(began, self.entities, later.entities),
            yes=np.where(began, self.yes, later.yes),
            up=self.up + later.up,
            down=self.down + later.down,
            new=self.new + later.new,
            new_yes=self.new_yes + later.new_yes,
            flip_sum=self.flip_sum + later.flip_sum,
            flip_squares=self.flip_squares + later.flip_squares,
            before=self.before if self.before.entities else later.before,
            surplus=self.surplus + later.surplus,
        )

    def over(self, candidates: Sequence[str], wanted: Sequence[str]) -> "Span":
        """The same span of `candidates` told for `wanted` ones; those it does not have are empty."""
        place = {candidate: number for number, candidate in enumerate(candidates)}
        source = np.array([place.get(candidate, -1) for candidate in wanted], np.int64)
        moved: dict[str, Any] = {
            name: np.where(source >= 0, np.append(getattr(self, name), 0)[source], 0).astype(np.int64)
            for name in _PER_CANDIDATE
        }
        return replace(self, **moved)

    def to_json(self) -> dict[str, Any]:
        """All fields as JSON values."""
        told: dict[str, Any] = {name: getattr(self, name).tolist() for name in _PER_CANDIDATE}
        told |= {"flip_sum": self.flip_sum, "flip_squares": self.flip_squares}
        return told | {name: list(vars(getattr(self, name)).values()) for name in ("before", "surplus")}

    @classmethod
    def from_json(cls, told: dict[str, Any]) -> Self:
        """What `to_json` told. Raises KeyError or TypeError for anything else."""
        arrays: dict[str, Any] = {name: np.array(told[name], np.int64) for name in _PER_CANDIDATE}
        sums: dict[str, Any] = {name: Sums.of_row(told[name]) for name in ("before", "surplus")}
        return cls(**arrays, **sums, flip_sum=float(told["flip_sum"]), flip_squares=float(told["flip_squares"]))


def joined(spans: Sequence[Span]) -> Span:
    """Spans in a row as one. Raises TypeError for none."""
    return reduce(Span.then, spans)
