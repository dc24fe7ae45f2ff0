"""Random pairs by permanent random numbers: every pair has one for good, and the smallest ones are drawn first.

So a second export goes on where the first one ended, and together they are one simple random sample without
replacement, as large as both; pairs that joined later fall into their places. Knows ids only; deliberately knows
nothing of margins, labels or texts: a draw that looked at them would flatter.
"""

import hashlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Pair = tuple[str, str]
Numbers = NDArray[np.uint64]

MOST_UNJUDGED = 0.05
"""The largest share of a sample that may be left unjudged before it is no random sample any more."""
_CHUNK = 1 << 22


@dataclass(frozen=True)
class Draw:
    """The drawn pairs in the order of their numbers. `probability` is the exact chance of a pair of the frame to be
    among the drawn ones or those judged before; `frame` is how many pairs there are.
    """

    pairs: list[Pair]
    probability: float
    frame: int


def draw(entity_ids: Sequence[str], candidate_ids: Sequence[str], judged: Collection[Pair], count: int) -> Draw:
    """The `count` pairs with the smallest numbers that nobody has judged yet; fewer where the frame ends before."""
    known, frame = set(judged), len(entity_ids) * len(candidate_ids)
    best, places = np.zeros(0, np.uint64), np.zeros(0, np.int64)
    for start, found in _chunks(entity_ids, candidate_ids):
        numbers, at = np.concatenate([best, found]), np.concatenate([places, start + np.arange(found.size)])
        kept = np.argsort(numbers, kind="stable")[: count + len(known)]
        best, places = numbers[kept], at[kept]
    pairs: list[Pair] = []
    last = 0
    for rank, place in enumerate(places.tolist(), start=1):
        if len(pairs) == count:
            break
        pair = (entity_ids[place // len(candidate_ids)], candidate_ids[place % len(candidate_ids)])
        if pair not in known:
            pairs.append(pair)
            last = rank
    return Draw(pairs, last / frame if frame else 0.0, frame)


def complete_sample(
    entity_ids: Sequence[str], candidate_ids: Sequence[str], judged: Collection[Pair]
) -> tuple[set[Pair], int]:
    """The judged pairs that are a random sample of the frame, and its size with the few that were left unjudged.

    That is the longest stretch of drawn pairs, smallest numbers first, of which at most `MOST_UNJUDGED` lack a
    judgement. Judged pairs beyond it, or outside the frame, are in no sample.
    """
    entities, candidates = set(entity_ids), set(candidate_ids)
    own = [pair for pair in judged if pair[0] in entities and pair[1] in candidates]
    numbers = np.array([_number(pair) for pair in own], dtype=np.uint64)
    order = np.argsort(numbers, kind="stable")
    smaller = np.zeros(len(own) + 1, dtype=np.int64)
    for _, found in _chunks(entity_ids, candidate_ids):
        smaller += np.bincount(np.searchsorted(numbers[order], found, side="left"), minlength=len(own) + 1)
    drawn = np.cumsum(smaller[:-1])  # pairs with a number not above that of each judged one
    good = np.flatnonzero(np.arange(1, len(own) + 1) >= (1 - MOST_UNJUDGED) * drawn)
    if not good.size:
        return set(), 0
    last = int(good[-1])
    return {own[place] for place in order[: last + 1].tolist()}, int(drawn[last])


def left_unjudged(entity_ids: Sequence[str], candidate_ids: Sequence[str], sample: Collection[Pair]) -> list[Pair]:
    """The pairs of the frame that were drawn as the pairs of a `complete_sample` were, and that are not in it."""
    if not sample:
        return []
    last = np.uint64(max(_number(pair) for pair in sample))
    drawn: list[Pair] = []
    for start, found in _chunks(entity_ids, candidate_ids):
        rows, columns = np.divmod(start + np.flatnonzero(found <= last), len(candidate_ids))
        drawn += [(entity_ids[row], candidate_ids[column]) for row, column in zip(rows, columns, strict=True)]
    return [pair for pair in drawn if pair not in sample]


def numbers(entity_ids: Sequence[str], candidate_ids: Sequence[str]) -> Numbers:
    """The numbers of a cross product: (entities, candidates)."""
    rows = [found for _, found in _chunks(entity_ids, candidate_ids)]
    return np.concatenate([np.zeros(0, np.uint64), *rows]).reshape(len(entity_ids), len(candidate_ids))


def by_number(entity_ids: Sequence[str]) -> list[str]:
    """The entities in an order of chance that stays."""
    return [entity_ids[place] for place in np.argsort(_hashes(entity_ids), kind="stable")]


def in_order(pairs: Collection[Pair]) -> list[Pair]:
    """The pairs by their numbers: an order that tells nothing about them."""
    return sorted(pairs, key=lambda pair: (_number(pair), pair))


def _chunks(entity_ids: Sequence[str], candidate_ids: Sequence[str]) -> Iterator[tuple[int, Numbers]]:
    """The numbers of the cross product, entity by entity: the place of the first one, and a row of them."""
    candidates = _mixed(_hashes(candidate_ids))
    step = max(1, _CHUNK // max(1, len(candidate_ids)))
    for first in range(0, len(entity_ids), step):
        entities = _hashes(entity_ids[first : first + step])
        yield first * len(candidate_ids), _mixed(entities[:, None] ^ candidates[None, :]).ravel()


def _number(pair: Pair) -> int:
    ((_, found),) = _chunks([pair[0]], [pair[1]])
    return int(found[0])


def _hashes(ids: Sequence[str]) -> Numbers:
    digests = [hashlib.sha256(b"semlabel judging 1\n" + name.encode("utf-8")).digest()[:8] for name in ids]
    return np.frombuffer(b"".join(digests), dtype="<u8").astype(np.uint64)


def _mixed(numbers: Numbers) -> Numbers:
    """The finaliser of splitmix64: one changed bit of the input changes about half of the output."""
    mixed = numbers.copy()
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return mixed ^ (mixed >> np.uint64(31))
