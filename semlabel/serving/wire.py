"""Token ids and numbers as they travel between a front and the engine: flat little-endian arrays, no message per item.

Knows the messages of `engine.proto` and nothing of who sends them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

import numpy as np
import numpy.typing as npt

from semlabel.serving.proto import engine_pb2

_IDS, _MARGINS, _SHARES = np.dtype("<i4"), np.dtype("<f4"), np.dtype("<f8")


@dataclass(frozen=True, eq=False)
class LabelIds:
    """The label token ids of a request: one list for all of its items, or one an item, cut out of `flat` by `lengths`.

    They may be millions, and wait for as long as the request does: so they are arrays.
    """

    flat: npt.NDArray[np.int32]
    lengths: npt.NDArray[np.int32]

    @classmethod
    def of(cls, lists: Sequence[Sequence[int]]) -> "LabelIds":
        """From one list an item, or a single one for all of them."""
        return cls(np.fromiter(chain.from_iterable(lists), _IDS), np.fromiter(map(len, lists), _IDS))

    @classmethod
    def received(cls, flat: bytes, lengths: bytes, items: int) -> "LabelIds":
        """As they travelled. Raises ValueError when they do not fit each other or this number of items."""
        found = cls(np.frombuffer(flat, _IDS), np.frombuffer(lengths, _IDS))
        if len(found.lengths) not in (1, items):
            raise ValueError(f"{len(found.lengths)} lists of labels for {items} items")
        _check(len(found.flat), found.lengths)
        return found

    def readings(self, items: int) -> int:
        """How many numbers the answer has."""
        return len(self.flat) * (items if len(self.lengths) == 1 else 1)

    def of_items(self, members: range) -> tuple[tuple[int, ...], ...]:
        """The ids of some items, a tuple each."""
        if len(self.lengths) == 1:
            return (tuple(self.flat.tolist()),) * len(members)
        ends = self._ends[members.start : members.stop].tolist()
        counts = self.lengths[members.start : members.stop].tolist()
        return tuple(tuple(self.flat[end - count : end].tolist()) for end, count in zip(ends, counts, strict=True))

    def rows(self, values: bytes) -> list[list[float]]:
        """The probabilities of one request as rows, as wide as each item's labels."""
        shares = np.frombuffer(values, _SHARES)
        if len(self.lengths) == 1:
            rows: list[list[float]] = shares.reshape(-1, len(self.flat)).tolist()
            return rows
        pairs = zip(self._ends.tolist(), self.lengths.tolist(), strict=True)
        return [shares[end - count : end].tolist() for end, count in pairs]

    @cached_property
    def _ends(self) -> npt.NDArray[np.int64]:
        return np.cumsum(self.lengths, dtype=np.int64)


@dataclass(frozen=True)
class Work:
    """One request as token ids. `labels` None asks for margins, else for probabilities of these tokens."""

    labeler_digest: str
    query: list[int]
    items: list[list[int]]
    labels: LabelIds | None = None
    over_vocabulary: bool = True
    temperature: float = 1.0

    @property
    def numbers(self) -> int:
        """The ids it holds and the numbers of its answer, of which there are as many as label ids where they differ."""
        answer = len(self.items) if self.labels is None else self.labels.readings(len(self.items))
        return len(self.query) + sum(map(len, self.items)) + answer


def packed(work: Work) -> engine_pb2.Work:
    """The message of a work."""
    message = engine_pb2.Work(
        labeler_digest=work.labeler_digest,
        query=_ids(work.query),
        over_vocabulary=work.over_vocabulary,
        temperature=work.temperature,
    )
    message.items, message.lengths = _lists(work.items)
    if work.labels is not None:
        message.labels, message.label_lengths = work.labels.flat.tobytes(), work.labels.lengths.tobytes()
    return message


def unpacked(message: engine_pb2.Work) -> Work:
    """The work of a message. Raises ValueError when its arrays do not fit each other."""
    items = _cut(message.items, message.lengths)
    labels = None
    if message.label_lengths:
        labels = LabelIds.received(message.labels, message.label_lengths, len(items))
    query = np.frombuffer(message.query, _IDS).tolist()
    return Work(message.labeler_digest, query, items, labels, message.over_vocabulary, message.temperature)


def packed_margins(margins: Sequence[npt.NDArray[np.float32]]) -> bytes:
    """Margins of one request's rounds."""
    return b"".join(part.astype(_MARGINS).tobytes() for part in margins)


def margins_in(values: bytes) -> npt.NDArray[np.float32]:
    """Margins of one request, bit for bit as they were computed."""
    return np.frombuffer(values, _MARGINS).astype(np.float32)


def packed_probabilities(rows: Sequence[npt.NDArray[np.float64]]) -> bytes:
    """Probabilities of one request, row after row."""
    return b"".join(row.astype(_SHARES).tobytes() for row in rows)


def _ids(ids: Sequence[int]) -> bytes:
    return np.array(ids, _IDS).tobytes()


def _lists(lists: Sequence[Sequence[int]]) -> tuple[bytes, bytes]:
    return _ids(list(chain.from_iterable(lists))), _ids([len(ids) for ids in lists])


def _cut(flat: bytes, lengths: bytes) -> list[list[int]]:
    ids, counts = np.frombuffer(flat, _IDS).tolist(), np.frombuffer(lengths, _IDS)
    _check(len(ids), counts)
    parts, start = [], 0
    for count in counts.tolist():
        parts.append(ids[start : start + count])
        start += count
    return parts


def _check(ids: int, counts: npt.NDArray[np.int32]) -> None:
    total = int(counts.sum(dtype=np.int64))
    if total != ids or counts.min(initial=0) < 0:
        raise ValueError(f"lists of {total} ids in {ids}")
