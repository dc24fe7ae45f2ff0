"""Blocks and scores: storing the margins of rounds, and refusing what cannot be right.

Knows rounds by their integer surrogates; deliberately knows nothing of texts, entities or labels. A pair is stored
once per scorer: what was stored first stays, so two paths that scored the same pair cannot make it depend on the
order of reading, and readers need no de-duplication over millions of pairs.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import numpy as np

from semlabel.errors import WarehouseError
from semlabel.warehouse_file import first

if TYPE_CHECKING:
    import duckdb

BLOCKS_AS_LISTS = (
    "(SELECT block_id, list(candidate_text_key ORDER BY position) AS candidate_text_keys FROM blocks GROUP BY block_id)"
)


@dataclass(frozen=True, eq=False)
class ScoredRound:
    """The margins (float32, one per candidate) of one entity text for the candidates of one block.

    `candidate_text_keys` are those the scorer was really given: they must be the block's, in its order.
    """

    text_key: int
    block_id: int
    candidate_text_keys: Sequence[int]
    margins: np.ndarray


def checked_margins(margins: object, expected: int) -> np.ndarray:
    """`margins` as float32 of shape (expected,). Raises WarehouseError for anything else and for NaN and infinities."""
    array = np.asarray(margins)
    if array.dtype != np.float32 or array.shape != (expected,):
        raise WarehouseError(
            f"a round of {expected} candidates gave margins of type {array.dtype} and shape {array.shape}: "
            f"expected float32 of shape ({expected},); nothing was stored"
        )
    if not np.isfinite(array).all():
        place = int(np.flatnonzero(~np.isfinite(array))[0])
        raise WarehouseError(
            f"margin {array[place]} for candidate {place} of a round is not finite; nothing was stored"
        )
    return array


def scorer_key(connection: "duckdb.DuckDBPyConnection", scorer_digest: str) -> int | None:
    """The surrogate of a scorer, or None when nothing was ever stored for it."""
    row = first(connection, "SELECT scorer_key FROM scorers WHERE scorer_digest = ?", [scorer_digest])
    return int(row[0]) if row else None


def ensure_scorer(connection: "duckdb.DuckDBPyConnection", scorer_digest: str) -> int:
    """The surrogate of a scorer, made when missing, inside the caller's transaction."""
    known = scorer_key(connection, scorer_digest)
    if known is not None:
        return known
    connection.execute(
        "INSERT INTO scorers (scorer_key, scorer_digest) SELECT CAST(nextval('scorer_keys') AS INTEGER), ?",
        [scorer_digest],
    )
    made = scorer_key(connection, scorer_digest)
    assert made is not None
    return made


def ensure_blocks(connection: "duckdb.DuckDBPyConnection", blocks: Sequence[Sequence[int]]) -> list[int]:
    """The ids of the blocks with exactly these candidate text keys; made, in the caller's transaction, when missing."""
    if not blocks:
        return []
    import pyarrow

    lists = pyarrow.array([list(map(int, keys)) for keys in blocks], type=pyarrow.list_(pyarrow.int32()))
    numbers = pyarrow.array(range(len(blocks)), type=pyarrow.int32())
    connection.register("wanted_blocks", pyarrow.table({"number": numbers, "candidate_text_keys": lists}))
    try:
        connection.execute(
            "CREATE OR REPLACE TEMP TABLE new_blocks AS "
            "SELECT CAST(nextval('block_ids') AS INTEGER) AS block_id, candidate_text_keys FROM "
            f"(SELECT DISTINCT candidate_text_keys FROM wanted_blocks ANTI JOIN {BLOCKS_AS_LISTS} b "
            "USING (candidate_text_keys))"
        )
        connection.execute(
            "INSERT INTO blocks SELECT block_id, CAST(unnest(range(len(candidate_text_keys))) AS INTEGER), "
            "unnest(candidate_text_keys) FROM new_blocks"
        )
        connection.execute("DROP TABLE new_blocks")
        found = connection.execute(
            f"SELECT w.number, min(b.block_id) FROM wanted_blocks w JOIN {BLOCKS_AS_LISTS} b "
            "USING (candidate_text_keys) GROUP BY w.number ORDER BY w.number"
        ).fetchall()
    finally:
        connection.unregister("wanted_blocks")
    assert len(found) == len(blocks)
    return [int(block_id) for _, block_id in found]


def store_rounds(
    connection: "duckdb.DuckDBPyConnection", rounds: Sequence[ScoredRound], scorer_digest: str, run_id: str
) -> int:
    """Store rounds inside the caller's transaction and return how many pairs were new.

    Pairs that are already stored for this scorer keep the margin they have. Raises WarehouseError, before anything is
    written, for unknown texts or blocks, for candidates that are not the block's, for a wrong number of margins, for
    margins that are not finite float32, and for two rounds that cover the same pair.
    """
    if not rounds:
        return 0
    _refuse_overlap([(entry.text_key, entry.candidate_text_keys) for entry in rounds])
    margins = [checked_margins(entry.margins, len(entry.candidate_text_keys)) for entry in rounds]
    key = ensure_scorer(connection, scorer_digest)
    _register_rounds(connection, rounds, margins)
    try:
        _refuse_unknown(connection)
        covered = _already_stored(connection, key)
        if not covered:
            connection.execute(
                "INSERT INTO scores SELECT text_key, block_id, ?, margins, ?, ? FROM incoming_rounds",
                [key, run_id, _now()],
            )
            return sum(map(len, margins))
    finally:
        connection.unregister("incoming_rounds")
    fresh = [
        trimmed
        for number, entry in enumerate(rounds)
        if (trimmed := _trimmed(connection, entry, covered.get(number, [])))
    ]
    return store_rounds(connection, fresh, scorer_digest, run_id)


def _register_rounds(
    connection: "duckdb.DuckDBPyConnection", rounds: Sequence[ScoredRound], margins: list[np.ndarray]
) -> None:
    import pyarrow

    offsets = pyarrow.array(np.cumsum([0, *map(len, margins)]), type=pyarrow.int32())
    keys = np.concatenate([np.asarray(entry.candidate_text_keys, dtype=np.int32) for entry in rounds])
    table = pyarrow.table(
        {
            "number": pyarrow.array(range(len(rounds)), type=pyarrow.int32()),
            "text_key": pyarrow.array([int(entry.text_key) for entry in rounds], type=pyarrow.int32()),
            "block_id": pyarrow.array([int(entry.block_id) for entry in rounds], type=pyarrow.int32()),
            "candidate_text_keys": pyarrow.ListArray.from_arrays(offsets, pyarrow.array(keys)),
            "margins": pyarrow.ListArray.from_arrays(offsets, pyarrow.array(np.concatenate(margins))),
        }
    )
    connection.register("incoming_rounds", table)


def _refuse_overlap(rounds: Sequence[tuple[int, Sequence[int]]]) -> None:
    seen: dict[int, set[int]] = defaultdict(set)
    for text_key, candidate_text_keys in rounds:
        keys = set(candidate_text_keys)
        if len(keys) != len(candidate_text_keys) or keys & seen[text_key]:
            raise WarehouseError(f"two margins for one pair of text {text_key} in one commit; nothing was stored")
        seen[text_key] |= keys


def _refuse_unknown(connection: "duckdb.DuckDBPyConnection") -> None:
    wrong = first(
        connection,
        """SELECT i.text_key, i.block_id, t.text_key IS NULL, b.block_id IS NULL FROM incoming_rounds i
        LEFT JOIN texts t ON t.text_key = i.text_key
        LEFT JOIN (SELECT block_id, list(candidate_text_key ORDER BY position) AS candidate_text_keys FROM blocks
                   SEMI JOIN incoming_rounds USING (block_id) GROUP BY block_id) b ON b.block_id = i.block_id
        WHERE t.text_key IS NULL OR b.candidate_text_keys IS DISTINCT FROM i.candidate_text_keys
        ORDER BY i.number LIMIT 1""",
    )
    if wrong is None:
        return
    text_key, block_id, no_text, no_block = wrong
    if no_text:
        what = f"text {text_key} is not known"
    elif no_block:
        what = f"block {block_id} is not known"
    else:
        what = f"the candidates scored are not those of block {block_id}"
    raise WarehouseError(f"a round was refused: {what}; nothing was stored")


def _already_stored(connection: "duckdb.DuckDBPyConnection", key: int) -> dict[int, list[int]]:
    """Position lists of the pairs that are stored already, by the number of the incoming round."""
    # Most commits meet no stored text or only blocks without a common candidate: look at rounds before pairs.
    rows = connection.execute(
        """WITH met AS (
            SELECT i.number, i.block_id AS incoming, s.block_id AS stored
            FROM incoming_rounds i JOIN scores s ON s.text_key = i.text_key WHERE s.scorer_key = ?),
        common AS (
            SELECT m.incoming, m.stored, b.position
            FROM (SELECT DISTINCT incoming, stored FROM met) m JOIN blocks b ON b.block_id = m.incoming
            JOIN blocks o ON o.block_id = m.stored AND o.candidate_text_key = b.candidate_text_key)
        SELECT m.number, c.position FROM met m JOIN common c ON c.incoming = m.incoming AND c.stored = m.stored""",
        [key],
    ).fetchall()
    covered: dict[int, list[int]] = defaultdict(list)
    for number, position in rows:
        covered[number].append(position)
    return covered


def _trimmed(connection: "duckdb.DuckDBPyConnection", entry: ScoredRound, covered: Sequence[int]) -> ScoredRound | None:
    """The round without the pairs at the covered positions; None when nothing is left."""
    if not covered:
        return entry
    gone = set(covered)
    kept = [place for place in range(len(entry.candidate_text_keys)) if place not in gone]
    if not kept:
        return None
    keys = [entry.candidate_text_keys[place] for place in kept]
    (block_id,) = ensure_blocks(connection, [keys])
    return ScoredRound(entry.text_key, block_id, keys, np.asarray(entry.margins)[kept])


def _now() -> datetime:
    return datetime.now(UTC).replace(tzinfo=None)
