"""Token ids and numbers as they travel between a front and the engine: flat little-endian arrays, no message per item.

Knows the messages of `engine.proto` and nothing of who sends them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt

from semlabel.serving.proto import engine_pb2

_IDS, _MARGINS, _SHARES = np.dtype("<i4"), np.dtype("<f4"), np.dtype("<f8")


@dataclass(frozen=True)
class Work:
    """One request as token ids. `labels` None asks for margins, else for probabilities of these tokens per item."""

    labeler_digest: str
    query: list[int]
    items: list[list[int]]
    labels: list[list[int]] | None = None
    over_vocabulary: bool = True
    temperature: float = 1.0


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
        message.labels, message.label_lengths = _lists(work.labels)
    return message


def unpacked(message: engine_pb2.Work) -> Work:
    """The work of a message. Raises ValueError when its arrays do not fit each other."""
    items = _cut(message.items, message.lengths)
    labels = _cut(message.labels, message.label_lengths) if message.label_lengths else None
    if labels is not None and len(labels) != len(items):
        raise ValueError(f"{len(labels)} lists of labels for {len(items)} items")
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


def probabilities_in(values: bytes, labels: list[list[int]]) -> list[list[float]]:
    """The rows of one request, as wide as each item's labels."""
    flat = np.frombuffer(values, _SHARES).tolist()
    ends = np.cumsum([len(ids) for ids in labels]).tolist()
    return [flat[end - len(ids) : end] for end, ids in zip(ends, labels, strict=True)]


def _ids(ids: Sequence[int]) -> bytes:
    return np.array(ids, _IDS).tobytes()


def _lists(lists: Sequence[Sequence[int]]) -> tuple[bytes, bytes]:
    return _ids(list(chain.from_iterable(lists))), _ids([len(ids) for ids in lists])


def _cut(flat: bytes, lengths: bytes) -> list[list[int]]:
    ids, counts = np.frombuffer(flat, _IDS).tolist(), np.frombuffer(lengths, _IDS).tolist()
    if sum(counts) != len(ids) or min(counts, default=0) < 0:
        raise ValueError(f"lists of {sum(counts)} ids in {len(ids)}")
    parts, start = [], 0
    for count in counts:
        parts.append(ids[start : start + count])
        start += count
    return parts
