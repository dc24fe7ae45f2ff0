"""The columns of every stage, fixed before the first row: an `error` that is rare has its type from the first block.

Knows nothing of Ray or of models. A row is one round until it is unpacked.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

_KEY = [("entity_id", pa.string()), ("round", pa.int64())]
_CANDIDATES = [
    # Candidates of the entity's own, or positions in the shared catalog: the one that is not used is null.
    ("candidate_ids", pa.list_(pa.string())),
    ("positions", pa.list_(pa.int32())),
]

PREPARED = pa.schema(
    [
        *_KEY,
        *_CANDIDATES,
        ("text", pa.large_string()),
        ("candidate_texts", pa.list_(pa.large_string())),
        ("error", pa.string()),
    ]
)
TOKENISED = pa.schema(
    [
        *_KEY,
        *_CANDIDATES,
        ("query", pa.list_(pa.int32())),
        ("truncated", pa.bool_()),
        ("items", pa.list_(pa.list_(pa.int32()))),
        ("problems", pa.list_(pa.string())),
        ("error", pa.string()),
    ]
)
SCORED = pa.schema(
    [
        *_KEY,
        *_CANDIDATES,
        ("margins", pa.list_(pa.float32())),
        ("truncated", pa.bool_()),
        ("problems", pa.list_(pa.string())),
        ("error", pa.string()),
    ]
)
PAIRS = pa.schema(
    [
        ("entity_id", pa.string()),
        ("candidate_id", pa.string()),
        ("margin", pa.float32()),
        ("probability", pa.float64()),
        ("label", pa.bool_()),
        ("truncated", pa.bool_()),
        ("error", pa.string()),
    ]
)
ENTITIES = pa.schema(
    [
        ("entity_id", pa.string()),
        ("candidate_ids", pa.list_(pa.string())),
        ("margins", pa.list_(pa.float32())),
        ("probabilities", pa.list_(pa.float64())),
        ("labels", pa.list_(pa.bool_())),
        ("truncated", pa.bool_()),
        ("errors", pa.list_(pa.string())),
        ("error", pa.string()),
    ]
)


def table(rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> pa.Table:
    """Rows as a table of this schema; a column that a row does not have is null in it."""
    return pa.Table.from_pylist(rows, schema=schema)
