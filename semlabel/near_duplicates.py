"""Texts that say almost the same: found by MinHash over word 3-shingles and by shared parts, each find verified.

Two texts are near-duplicates when they differ only in case and spacing, when the Jaccard similarity of their shingles
is at least 0.8, or when, from 12 words on, they are at most two words apart. What stands in a tenth of all texts is
boilerplate and proves nothing. Knows nothing of splits. Everything is deterministic and independent of row order.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

MIN_SIMILARITY = 0.8
MIN_WORDS_FOR_EDITS = 12
MAX_WORDS_APART = 2
MAX_WORDS_FOR_PARTS = 30  # above, two words leave shingles that MinHash finds with probability 0.998 and more
BOILERPLATE_SHARE = 0.1
MIN_BOILERPLATE_TEXTS = 50
_BANDS, _ROWS = 32, 4  # similarity 0.8 is found with probability 0.9999999, 0.5 with 0.87
_BUCKET = 16  # texts looked at per band and bucket, so that one big family does not cost its square


class Groups:
    """Disjoint sets of positions 0..n-1, joined one link at a time."""

    def __init__(self, size: int) -> None:
        self._parent = list(range(size))

    def find(self, position: int) -> int:
        """The smallest position of the set."""
        while self._parent[position] != position:
            self._parent[position] = self._parent[self._parent[position]]
            position = self._parent[position]
        return position

    def join(self, first: int, second: int) -> None:
        """Make one set of the two."""
        low, high = sorted((self.find(first), self.find(second)))
        self._parent[high] = low


def near_duplicate_links(texts: Sequence[str]) -> list[tuple[int, int]]:
    """Pairs of positions whose texts are near-duplicates: enough of them to connect every group, not all pairs."""
    groups = Groups(len(texts))
    links: list[tuple[int, int]] = []

    def link(first: int, second: int) -> None:
        links.append((first, second))
        groups.join(first, second)

    words = [_words(text) for text in texts]
    firsts: dict[tuple[str, ...], int] = {}
    for position, content in enumerate(words):
        first = firsts.setdefault(tuple(content), position)
        if first != position:
            link(first, position)
    distinct = sorted(firsts.values())
    shingles = _telling_shingles([words[position] for position in distinct])
    candidates = _candidates(shingles) | _part_sharers([words[position] for position in distinct])
    for first, second in sorted(candidates):
        here, there = distinct[first], distinct[second]
        if groups.find(here) != groups.find(there) and (
            _similarity(shingles[first], shingles[second]) >= MIN_SIMILARITY
            or _few_words_apart(words[here], words[there])
        ):
            link(here, there)
    return links


def _words(text: str) -> list[str]:
    return text.casefold().split()


def _telling_shingles(documents: Sequence[Sequence[str]]) -> "list[np.ndarray]":
    """Sorted distinct 64-bit hashes of the word 3-shingles of each document, boilerplate taken out."""
    import numpy as np

    # Words are numbered by content, not by first sight, so that the order of rows cannot move a hash.
    numbers = {word: _number(word) for word in {word for document in documents for word in document}}
    shingles = []
    for document in documents:
        ids = np.array([numbers[word] for word in document], dtype=np.uint64)
        window = min(3, len(ids))
        hashes = np.zeros(len(ids) - window + 1, dtype=np.uint64) if window else np.zeros(0, dtype=np.uint64)
        for offset in range(window):
            hashes = _mix(hashes + ids[offset : len(ids) - window + 1 + offset])
        shingles.append(np.unique(hashes))
    limit = max(MIN_BOILERPLATE_TEXTS, BOILERPLATE_SHARE * len(documents))
    if len(documents) <= limit:
        return shingles
    values, counts = np.unique(np.concatenate(shingles), return_counts=True)
    common = values[counts > limit]
    return [np.setdiff1d(each, common, assume_unique=True) for each in shingles] if len(common) else shingles


def _number(word: str) -> int:
    import hashlib

    return int.from_bytes(hashlib.blake2b(word.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")


def _mix(values: "np.ndarray") -> "np.ndarray":
    """splitmix64's finaliser: every input bit reaches every output bit."""
    import numpy as np

    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def _candidates(shingles: "Sequence[np.ndarray]") -> set[tuple[int, int]]:
    """Pairs that share a band of their MinHash signatures."""
    import numpy as np

    salts = _mix(np.arange(1, _BANDS * _ROWS + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15))
    told = [position for position, hashes in enumerate(shingles) if len(hashes)]
    keys = np.zeros((len(told), _BANDS), dtype=np.uint64)
    for row, position in enumerate(told):
        signature = _mix(shingles[position][:, None] ^ salts[None, :]).min(axis=0).reshape(_BANDS, _ROWS)
        for column in range(_ROWS):
            keys[row] = _mix(keys[row] + signature[:, column])
    pairs: set[tuple[int, int]] = set()
    for band in range(_BANDS):
        order = np.argsort(keys[:, band], kind="stable")
        sorted_keys = keys[order, band]
        edges = np.flatnonzero(sorted_keys[1:] != sorted_keys[:-1]) + 1
        starts, ends = np.append(0, edges), np.append(edges, len(order))
        for start, end in zip(starts[ends - starts > 1], ends[ends - starts > 1], strict=True):
            members = [told[row] for row in order[start:end]]
            pairs.update((first, second) for first in members[:_BUCKET] for second in members if first < second)
    return pairs


def _part_sharers(documents: Sequence[Sequence[str]]) -> set[tuple[int, int]]:
    """Pairs of short documents that can be at most two words apart.

    Cut one into three parts: two edits spare one of them, and it stands in the other at most two words off its place.
    """
    parts = MAX_WORDS_APART + 1
    reach = range(-MAX_WORDS_APART, MAX_WORDS_APART + 1)
    index: dict[tuple[int, int, tuple[str, ...]], list[int]] = {}
    pairs: set[tuple[int, int]] = set()
    for position, document in enumerate(documents):
        length = len(document)
        if not MIN_WORDS_FOR_EDITS <= length <= MAX_WORDS_FOR_PARTS:
            continue
        for other_length in (length + difference for difference in reach):
            for part in range(parts):
                start, end = part * other_length // parts, (part + 1) * other_length // parts
                for offset in reach:
                    if start + offset >= 0 and end + offset <= length:
                        key = (other_length, part, tuple(document[start + offset : end + offset]))
                        pairs.update((other, position) for other in index.get(key, ()))
        for part in range(parts):
            key = (length, part, tuple(document[part * length // parts : (part + 1) * length // parts]))
            bucket = index.setdefault(key, [])
            if len(bucket) < _BUCKET:
                bucket.append(position)
    return pairs


def _similarity(first: "np.ndarray", second: "np.ndarray") -> float:
    import numpy as np

    shared = len(np.intersect1d(first, second, assume_unique=True))
    return shared / (len(first) + len(second) - shared)


def _few_words_apart(first: Sequence[str], second: Sequence[str]) -> bool:
    if min(len(first), len(second)) < MIN_WORDS_FOR_EDITS or abs(len(first) - len(second)) > MAX_WORDS_APART:
        return False
    return _words_apart(first, second, MAX_WORDS_APART)


def _words_apart(first: Sequence[str], second: Sequence[str], limit: int) -> bool:
    """Whether `limit` words replaced, added or removed turn `first` into `second`."""
    start = 0
    while start < min(len(first), len(second)) and first[start] == second[start]:
        start += 1
    first, second = first[start:], second[start:]
    if not first or not second or limit == 0:
        return max(len(first), len(second)) <= limit
    return (
        _words_apart(first[1:], second[1:], limit - 1)
        or _words_apart(first[1:], second, limit - 1)
        or _words_apart(first, second[1:], limit - 1)
    )
