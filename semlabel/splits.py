"""Which entities train, calibrate, certify and test: disjoint, near-duplicates together, and for good.

Chosen by hash, so neither the order of rows nor chance decides; an entity never changes its split. Knows nothing of
labels: a split that looked at them would flatter. What was assigned before is told by `remembered_splits`.
"""

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from semlabel.errors import SourceError
from semlabel.near_duplicates import Groups, near_duplicate_links
from semlabel.settings import Splits

if TYPE_CHECKING:
    import pandas as pd

TRAIN = "train"
HELD_OUT = ("calibrate", "certify", "test")
LEFT_OUT = ""
_LARGEST_GROUP = 0.2  # of a held-out split: a family of look-alikes must not be most of what is measured


@dataclass(frozen=True)
class SplitResult:
    """`split` of every entity ("train", "calibrate", "certify", "test", or "" for left out) and its near-duplicate
    group: a number of up to 53 bits made from the group's smallest id, so it stays when other entities come and go.

    `astride` are left out because their near-duplicates stand in several splits, and as long as they do.
    """

    split: dict[str, str]
    groups: dict[str, int]
    notes: list[str]
    astride: frozenset[str]


def held_out_sizes(splits: Splits, total: int) -> dict[str, int]:
    """How many of `total` entities each held-out split is to have."""
    return {name: _size(getattr(splits, name), total) for name in HELD_OUT}


def assign_splits(
    entities: "pd.DataFrame",
    splits: Splits,
    previous: Mapping[str, str] | None = None,
    near_duplicates: bool = True,
) -> SplitResult:
    """Assign every entity of `entities` (entity_id, text) to a split.

    Whole numbers in `splits` are entities, fractions shares of these entities. Each held-out split gets that many, or
    a few more where a near-duplicate group straddles, never fewer. `previous` assignments are kept; only new entities
    fill what is missing. A group that meets two previous splits is left out and noted. Without `near_duplicates` nobody
    is taken for one: good for sizes, not for what is to be used.
    Raises SourceError when there are too few entities to hold out that many and still train.
    """
    previous = previous or {}
    ids = list(entities["entity_id"])
    members = _members(ids, list(entities["text"])) if near_duplicates else {each: [each] for each in ids}
    split: dict[str, str] = {}
    notes: list[str] = []
    fresh: list[str] = []
    astride: set[str] = set()
    for anchor, group in members.items():
        kept = {previous[entity_id] for entity_id in group if entity_id in previous}
        used = sorted(kept - {LEFT_OUT})
        if not kept:
            fresh.append(anchor)
        elif len(used) > 1:
            split |= dict.fromkeys(group, LEFT_OUT)
            astride.update(group)
            notes.append(f"left out while they are near-duplicates in {' and '.join(used)}: {_names(group)}")
        else:
            joined = used[0] if used else LEFT_OUT
            split |= {entity_id: previous.get(entity_id, joined) for entity_id in group}
    sizes = held_out_sizes(splits, len(ids))
    fresh.sort(key=lambda anchor: _order(splits.seed, anchor))
    _fill(sizes, fresh, members, split, notes, growing=bool(split))
    numbers = {entity_id: _group_number(anchor) for anchor, group in members.items() for entity_id in group}
    return SplitResult({entity_id: split[entity_id] for entity_id in ids}, numbers, notes, frozenset(astride))


def with_splits(
    entities: "pd.DataFrame", ids: Collection[str], splits: Splits, previous: Mapping[str, str]
) -> tuple["pd.DataFrame", list[str]]:
    """`entities` with `split` and `group_id`: those of `ids` are assigned to splits, the others left out; and notes.

    Raises SourceError as `assign_splits` does.
    """
    import pandas as pd

    own = entities[entities["entity_id"].isin(list(ids))]
    result = assign_splits(own, splits, {name: split for name, split in previous.items() if name in ids})
    split = [result.split.get(entity_id, LEFT_OUT) for entity_id in entities["entity_id"]]
    group = [result.groups.get(entity_id) for entity_id in entities["entity_id"]]
    return entities.assign(split=split, group_id=pd.array(group, dtype="Int64")), result.notes


def find_leaks(entities: "pd.DataFrame") -> list[tuple[str, str, str, str]]:
    """Near-duplicates in different splits: (entity_id, entity_id, split, split). Empty when nothing leaks.

    `entities` has entity_id, text, split; rows with split "" are in no split. Enough pairs to show every leak, not all.
    """
    rows = entities[entities["split"] != LEFT_OUT]
    ids, split = list(rows["entity_id"]), list(rows["split"])
    links = near_duplicate_links(list(rows["text"]))
    return [
        (ids[first], ids[second], split[first], split[second])
        for first, second in links
        if split[first] != split[second]
    ]


def _fill(
    sizes: dict[str, int],
    fresh: list[str],
    members: Mapping[str, list[str]],
    split: dict[str, str],
    notes: list[str],
    growing: bool,
) -> None:
    """Give the `fresh` groups to the held-out splits until each has its size, and the rest to training."""
    total = len(split) + sum(len(members[anchor]) for anchor in fresh)
    if total and sum(sizes.values()) >= total and not growing:
        wanted = " + ".join(f"{size} {name}" for name, size in sizes.items())
        raise SourceError(
            f"{total} entities cannot give {wanted} and still train; lower [splits] or bring more entities"
        )
    waiting = list(fresh)
    for name, size in sizes.items():
        have = sum(1 for assigned in split.values() if assigned == name)
        passed_over = []
        for anchor in waiting:
            group = members[anchor]
            if have >= size or (len(group) > 1 and len(group) > max(2, _LARGEST_GROUP * size)):
                passed_over.append(anchor)
                continue
            split |= dict.fromkeys(group, name)
            have += len(group)
        waiting = passed_over
        if have < size and growing:
            notes.append(f"{name} has {have} of {size} entities: assignments stay, and no new entity is left for it")
        elif have < size and total:
            raise SourceError(f"{name} gets {have} of {size} entities: too many are near-duplicates; lower [splits]")
    for anchor in waiting:
        split |= dict.fromkeys(members[anchor], TRAIN)
    if total and TRAIN not in split.values():
        raise SourceError(f"no entity is left to train on: all {total} are held out; lower [splits]")


def _members(ids: list[str], texts: list[str]) -> dict[str, list[str]]:
    """The near-duplicate groups, each under its smallest id."""
    # In the order of ids, so that a group's first position is its smallest id.
    positions = sorted(range(len(ids)), key=lambda position: ids[position])
    groups = Groups(len(ids))
    for first, second in near_duplicate_links([texts[position] for position in positions]):
        groups.join(first, second)
    members: dict[str, list[str]] = {}
    for rank, position in enumerate(positions):
        members.setdefault(ids[positions[groups.find(rank)]], []).append(ids[position])
    return members


def _size(size: int | float, total: int) -> int:
    return size if isinstance(size, int) else max(1, round(size * total))


def _order(seed: int, anchor: str) -> bytes:
    return hashlib.sha256(f"{seed}\n{anchor}".encode("utf-8", "surrogatepass")).digest()


def _group_number(anchor: str) -> int:
    return int.from_bytes(hashlib.sha256(anchor.encode("utf-8", "surrogatepass")).digest()[:8], "big") >> 11


def _names(group: list[str]) -> str:
    return ", ".join(group[:5]) + (f" and {len(group) - 5} more" if len(group) > 5 else "")
