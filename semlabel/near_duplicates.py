"""Texts that say almost the same: found by MinHash over word 3-shingles and by shared rare words, each find verified.

Two texts are near-duplicates when they differ only in case and spacing, when the Jaccard similarity of their shingles
is at least 0.8, or when, from 12 words on, they are at most two words apart. What stands in a tenth of all texts is
boilerplate: its shingles prove nothing, and however long it is it hides no text that is two words from another.
Knows nothing of splits. Everything is deterministic and independent of row order.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

MIN_SIMILARITY = 0.8
MIN_WORDS_FOR_EDITS = 12
MAX_WORDS_APART = 2
BOILERPLATE_SHARE = 0.1
MIN_BOILERPLATE_TEXTS = 50
_BANDS, _ROWS = 32, 4  # similarity 0.8 is found with probability 0.9999999, 0.5 with 0.87
_BUCKET = 16  # texts that others are compared with in a bucket, so that one big family does not cost its square
_SHARED = (1, 2, 4, 7, MIN_WORDS_FOR_EDITS - MAX_WORDS_APART)  # rare words that two texts must share to be compared


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
    words = [_words(text) for text in texts]
    firsts: dict[tuple[str, ...], int] = {}
    for position, content in enumerate(words):
        first = firsts.setdefault(tuple(content), position)
        if first != position:
            links.append((first, position))
            groups.join(first, position)
    distinct = sorted(firsts.values())
    documents = [words[position] for position in distinct]
    shingles = _telling_shingles(documents)

    def joined(first: int, second: int, similar: bool = False) -> bool:
        """Whether two documents are in one group, which they are from now on if they are near-duplicates."""
        here, there = distinct[first], distinct[second]
        if groups.find(here) == groups.find(there):
            return True
        near = similar and _similarity(shingles[first], shingles[second]) >= MIN_SIMILARITY
        if near or _few_words_apart(documents[first], documents[second]):
            links.append((here, there))
            groups.join(here, there)
            return True
        return False

    for first, second in sorted(_candidates(shingles)):
        joined(first, second, similar=True)
    apart: set[tuple[int, int]] = set()
    for sharers in _word_sharers(documents):
        if len(sharers) > _BUCKET:
            _join_to_leaders(sharers, joined, apart)
        else:
            for first, second in combinations(sharers, 2):
                joined(first, second)
    return links


def _join_to_leaders(sharers: Sequence[int], joined: Callable[[int, int], bool], apart: set[tuple[int, int]]) -> None:
    """Compare each with up to 16 that are like none before them; `apart` are pairs not to be compared again."""
    leaders: list[int] = []
    for position in sharers:
        alone = True
        for leader in leaders:
            if (leader, position) in apart:
                continue
            if joined(leader, position):
                alone = False
            else:
                apart.add((leader, position))
        if alone and len(leaders) < _BUCKET:
            leaders.append(position)


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
        for places in _alike(keys[:, band]):
            members = [told[row] for row in places]
            pairs.update((first, second) for first in members[:_BUCKET] for second in members if first < second)
    return pairs


def _word_sharers(documents: Sequence[Sequence[str]]) -> "Iterator[list[int]]":
    """Sets of documents, so that any two that are at most two words apart stand together in one, in order.

    Of two such documents each lacks at most two words of the other. So of the n + 2 rarest words of both at least n are
    the same, for any n: each set shares n rare words, and where that many do, it is told apart by more of them. What
    every document says is rare in none. The last sets are given however large they are.
    """
    import numpy as np

    long = np.array([at for at, document in enumerate(documents) if len(document) >= MIN_WORDS_FOR_EDITS], dtype=int)
    counts = Counter(word for at in long for word in _numbered(documents[at]))
    rank = {word: number for number, word in enumerate(sorted(counts, key=lambda word: (counts[word], word)))}
    rarest = [sorted(rank[word] for word in _numbered(documents[at]))[:MIN_WORDS_FOR_EDITS] for at in long]
    numbers = _mix(np.array(rarest, dtype=np.uint64).reshape(-1, MIN_WORDS_FOR_EDITS) + np.uint64(1))
    rows = np.arange(len(long))
    for shared in _SHARED:
        own = numbers[rows, : shared + MAX_WORDS_APART]
        left_out = list(combinations(range(own.shape[1]), MAX_WORDS_APART))
        # The sum of n numbers stands for n words in any order.
        keys = np.stack([own.sum(axis=1) - own[:, first] - own[:, second] for first, second in left_out], axis=1)
        crowded = [np.zeros(0, dtype=int)]
        for places in _alike(keys.ravel()):
            sharers = rows[places // len(left_out)]
            if len(sharers) <= _BUCKET or shared == _SHARED[-1]:
                yield long[sharers].tolist()
            else:
                crowded.append(sharers)
        rows = np.unique(np.concatenate(crowded))


def _numbered(document: Sequence[str]) -> Iterator[tuple[str, int]]:
    """The words, each with how often it stood before: no two are the same."""
    before: dict[str, int] = {}
    for word in document:
        number = before.get(word, 0)
        before[word] = number + 1
        yield word, number


def _alike(keys: "np.ndarray") -> "Iterator[np.ndarray]":
    """The places, in order, of every key that stands in several."""
    import numpy as np

    order = np.argsort(keys, kind="stable")
    edges = np.flatnonzero(keys[order[1:]] != keys[order[:-1]]) + 1
    starts, ends = np.append(0, edges), np.append(edges, len(order))
    for start, end in zip(starts[ends - starts > 1], ends[ends - starts > 1], strict=True):
        yield order[start:end]


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
