"""The largest family of near-duplicates among the entities that are split: how large it is and where it stands.

Goes by the groups that splits were assigned by, so nothing is compared again. Knows nothing of texts.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from semlabel.splits import LEFT_OUT, TRAIN

LARGE_ENTITIES = 10
LARGE_SHARE = 0.05
_NAMED = 3


@dataclass(frozen=True)
class Family:
    """Near-duplicates of one another: how many, some of their ids, and the entities in and size of each split where
    they stand ("" for those left out).
    """

    entities: int
    named: tuple[str, ...]
    of: int
    in_split: dict[str, int]
    split_sizes: dict[str, int]

    @property
    def large(self) -> bool:
        """Whether it is enough of all entities to be told."""
        return self.entities >= LARGE_ENTITIES and self.entities >= LARGE_SHARE * self.of

    def sentence(self) -> str:
        """What it is, where it stands and what follows from that, for a large one."""
        named = f"{', '.join(self.named)} and {self.entities - len(self.named):,} more"
        told = [
            f"{count:,} left out" if split == LEFT_OUT else self._of_split(split, count)
            for split, count in self.in_split.items()
        ]
        teaches = "teach" if set(self.in_split) == {TRAIN} else "teach or prove"
        return (
            f"The largest family of near-duplicates has {self.entities:,} entities ({named}), "
            f"{self.entities / self.of:.0%} of those that are split: {', '.join(told)}. They stay together and "
            f"{teaches} hardly more than one of them; leave some out of the references if that is not meant."
        )

    def _of_split(self, split: str, count: int) -> str:
        counted = "all" if count == self.entities else f"{count:,}"
        return f"{counted} in {split} ({count / self.split_sizes[split]:.0%} of it)"


def largest_family(groups: Mapping[str, int], split_of: Mapping[str, str]) -> Family | None:
    """The family with the most entities; None where nobody is a near-duplicate. `groups` has the group of each id."""
    sizes = Counter(groups.values())
    number, size = max(sizes.items(), key=lambda item: (item[1], -item[0]), default=(0, 0))
    if size < 2:
        return None
    members = sorted(entity_id for entity_id, group in groups.items() if group == number)
    return Family(
        entities=size,
        named=tuple(members[:_NAMED]),
        of=len(groups),
        in_split=dict(Counter(split_of[entity_id] for entity_id in members).most_common()),
        split_sizes=dict(Counter(split_of.values())),
    )
