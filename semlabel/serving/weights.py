"""How many bytes a request takes in a front until its answer has left: what it is weighed by before it is taken on.

Estimates for CPython, a little high rather than low. Knows requests and works; knows nothing of who has room for them.
"""

from collections.abc import Iterable
from sys import getsizeof
from typing import Any

from semlabel.serving.label_request import LabelRequest
from semlabel.serving.score_request import ScoreRequest
from semlabel.serving.wire import Work

# A number of Python's; the same in a list, and twice in four bytes on its way to the engine.
_NUMBER, _ID = 28, 48
_LIST, _CANDIDATE = 72, 300
# A label id on its way; a share as eight bytes and as text, or in a message; a label with its four fields, as JSON too.
_LABEL_ID, _SHARE, _LABEL = 12, 32, 512


def of_score(request: ScoreRequest) -> int:
    """A checked request for scores."""
    return _of_part(request.query) + _of_list(request.items) + _of_list(request.labels or [])


def of_label(request: LabelRequest) -> int:
    """A checked request for labels."""
    candidates = request.candidates or []
    texts = (text for candidate in candidates for text in (candidate.candidate_id, candidate.text) if text)
    return getsizeof(request.text) + _CANDIDATE * len(candidates) + sum(map(getsizeof, texts))


def of_work(work: Work, shared_items: bool = False) -> int:
    """A work and its answer. `shared_items`: they are the catalog's, which are there anyway."""
    items, ids = len(work.items), len(work.query) + sum(map(len, work.items))
    held = 8 * ids if shared_items else _ID * ids + _LIST * items
    if work.labels is None:
        return held + _LABEL * items
    return held + _LABEL_ID * len(work.labels.flat) + _SHARE * work.labels.readings(items)


def _of_list(values: Iterable[Any]) -> int:
    return getsizeof(values) + sum(map(_of_part, values))


def _of_part(value: Any) -> int:
    if isinstance(value, int):
        return _NUMBER
    return getsizeof(value) + (_NUMBER * len(value) if isinstance(value, list) else 0)
