"""First stage: rows of entities become rounds of at most `items_per_round` candidates, none lost and none merged.

Knows what an input row may look like and nothing of tokens. An input row has `entity_id` and `text`, and either
`candidate_ids` with `candidate_texts` or, where it has neither, the candidates of the shared catalog.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from semlabel.distributed.schemas import PREPARED, table
from semlabel.errors import DistributedError


def prepare_rounds(batch: pa.Table, items_per_round: int | None, catalog_size: int | None) -> pa.Table:
    """The rounds of a batch of entities; `items_per_round` None keeps each entity in one row.

    A row of which nothing can be scored keeps its pairs and carries the reason. Raises DistributedError when a column
    is missing.
    """
    missing = sorted({"entity_id", "text"} - set(batch.column_names))
    if missing:
        found = ", ".join(batch.column_names) or "none"
        raise DistributedError(f"input rows have no column {missing[0]!r} (found: {found}); rename it in preprocess")
    rows = [entry for row in batch.to_pylist() for entry in _rounds(row, items_per_round, catalog_size)]
    return table(rows, PREPARED)


def candidates_problem(row: Mapping[str, Any], catalog_size: int | None) -> str | None:
    """Why an input row has no candidates that could be paired with it, None when it has."""
    ids, texts = row.get("candidate_ids"), row.get("candidate_texts")
    if ids is None and texts is None:
        return None if catalog_size is not None else "the row brings no candidates and there is no shared catalog"
    if ids is None or texts is None or len(ids) != len(texts):
        return "candidate_ids and candidate_texts are not two lists of one length"
    return None


def _rounds(row: Mapping[str, Any], size: int | None, catalog_size: int | None) -> Iterator[dict[str, Any]]:
    text = row["text"] if isinstance(row["text"], str) else None
    head = {"entity_id": name(row["entity_id"]), "text": text, "error": candidates_problem(row, catalog_size)}
    if head["error"] is not None:
        yield head | {"round": 0, "candidate_ids": [], "candidate_texts": []}
        return
    ids, texts = row.get("candidate_ids"), row.get("candidate_texts")
    count = len(ids) if ids is not None else catalog_size or 0
    step = max(size or count, 1)
    # An entity without candidates is still a row: it comes out with nothing, not never.
    for number, start in enumerate(range(0, max(count, 1), step)):
        stop = min(start + step, count)
        if ids is None or texts is None:
            yield head | {"round": number, "positions": list(range(start, stop))}
        else:
            own = {"candidate_ids": [name(one) for one in ids[start:stop]], "candidate_texts": texts[start:stop]}
            yield head | {"round": number} | own


def name(value: object) -> str | None:
    """An id as text; ids that were numbers in a file are text everywhere else."""
    return None if value is None else str(value)
