"""Retention: margins that nothing uses any more are kept for a while, then purged.

Knows which texts and scorers are in use now and since when others are not; deliberately knows nothing of files, runs or
the clock's meaning to people. A text that comes back within the retention time costs nothing. A purge never touches a
margin of a present entity, a present candidate and the active labeler's scorer, so predictions stay bit for bit.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from semlabel.warehouse import Warehouse
from semlabel.warehouse_file import first
from semlabel.warehouse_scores import ensure_blocks

if TYPE_CHECKING:
    import duckdb

_IN_USE = (
    "(SELECT text_key FROM entities UNION SELECT text_key FROM catalog UNION SELECT text_key FROM left_out_candidates)"
)
_ACTIVE_SCORER = "(SELECT scorer_key FROM labelers JOIN active_labeler USING (labeler_digest))"


@dataclass(frozen=True)
class Purged:
    """What a purge removed: margins, texts and scorers whose margins are gone."""

    pairs: int
    texts: int
    scorers: int


def purge(warehouse: Warehouse, retention: timedelta, now: datetime | None = None) -> Purged:
    """Note what is unused now, and remove the margins of what has been unused for `retention`; one transaction.

    Unused are texts of no present entity or candidate, and scorers other than the active labeler's; the time counts
    from the first purge that found them so (and for a scorer, from its last margin). `now` is UTC.
    """
    moment = (now or datetime.now(UTC)).astimezone(UTC).replace(tzinfo=None)
    with warehouse.transaction() as connection:
        _note_unused(connection, moment)
        _find_expired(connection, moment - retention)
        before = _pairs(connection)
        scorers = _drop_scorers(connection)
        connection.execute("DELETE FROM scores WHERE text_key IN (SELECT text_key FROM expired_texts)")
        _drop_candidates(connection)
        # A list costs no margins to make again, so it goes with the last entity that has its text.
        connection.execute("DELETE FROM shortlists WHERE text_key NOT IN (SELECT text_key FROM entities)")
        connection.execute("DELETE FROM texts WHERE text_key IN (SELECT text_key FROM expired_texts)")
        _drop_online(connection, moment - retention)
        _drop_former(connection, moment - retention)
        connection.execute("DELETE FROM ingested_segments WHERE ingested_at <= ?", [moment - retention])
        texts = _count(connection, "SELECT count(*) FROM expired_texts")
        purged = Purged(before - _pairs(connection), texts, scorers)
        for table in ("expired_texts", "expired_scorers"):
            connection.execute(f"DROP TABLE {table}")
    return purged


def _note_unused(connection: "duckdb.DuckDBPyConnection", now: datetime) -> None:
    connection.execute(f"UPDATE texts SET unused_since = NULL WHERE unused_since IS NOT NULL AND text_key IN {_IN_USE}")
    connection.execute(
        f"UPDATE texts SET unused_since = ? WHERE unused_since IS NULL AND text_key NOT IN {_IN_USE}", [now]
    )
    connection.execute(
        f"UPDATE scorers SET unused_since = NULL WHERE unused_since IS NOT NULL AND scorer_key IN {_ACTIVE_SCORER}"
    )
    # Without an active labeler there is none that could have superseded another.
    connection.execute(
        f"UPDATE scorers SET unused_since = ? WHERE unused_since IS NULL AND scorer_key NOT IN {_ACTIVE_SCORER} "
        "AND EXISTS (FROM active_labeler)",
        [now],
    )


def _find_expired(connection: "duckdb.DuckDBPyConnection", limit: datetime) -> None:
    connection.execute(
        "CREATE OR REPLACE TEMP TABLE expired_texts AS SELECT text_key FROM texts WHERE unused_since <= ?", [limit]
    )
    # A labeler that still scores (a candidate on its way to promotion) is in use whatever the active one is.
    connection.execute(
        "CREATE OR REPLACE TEMP TABLE expired_scorers AS SELECT scorer_key FROM scorers WHERE unused_since <= ? "
        "AND scorer_key NOT IN (SELECT scorer_key FROM scores WHERE scored_at > ?)",
        [limit, limit],
    )


def _drop_scorers(connection: "duckdb.DuckDBPyConnection") -> int:
    """Remove the margins of expired scorers; returns how many scorers lost any. Their digests stay known."""
    emptied = _count(
        connection, "SELECT count(DISTINCT scorer_key) FROM scores SEMI JOIN expired_scorers USING (scorer_key)"
    )
    connection.execute("DELETE FROM scores WHERE scorer_key IN (SELECT scorer_key FROM expired_scorers)")
    return emptied


def _drop_candidates(connection: "duckdb.DuckDBPyConnection") -> None:
    """Take expired candidates out of the rounds that hold them: such rounds move to blocks of what remains."""
    blocks = connection.execute(
        """SELECT block_id,
               list(candidate_text_key ORDER BY position) FILTER (candidate_text_key NOT IN (FROM expired_texts)),
               list(position + 1 ORDER BY position) FILTER (candidate_text_key NOT IN (FROM expired_texts))
        FROM blocks WHERE block_id IN
            (SELECT block_id FROM blocks WHERE candidate_text_key IN (SELECT text_key FROM expired_texts))
        GROUP BY block_id ORDER BY block_id"""
    ).fetchall()
    if not blocks:
        return
    remaining = [(block_id, keys, places) for block_id, keys, places in blocks if keys]
    fresh = ensure_blocks(connection, [keys for _, keys, _ in remaining])
    for (block_id, _, places), new_id in zip(remaining, fresh, strict=True):
        connection.execute(
            "UPDATE scores SET block_id = ?, margins = list_select(margins, ?::BIGINT[]) WHERE block_id = ?",
            [new_id, places, block_id],
        )
    gone = [block_id for block_id, _, _ in blocks]
    connection.execute("DELETE FROM scores WHERE block_id IN (SELECT unnest(?::INTEGER[]))", [gone])
    connection.execute("DELETE FROM blocks WHERE block_id IN (SELECT unnest(?::INTEGER[]))", [gone])


def _drop_online(connection: "duckdb.DuckDBPyConnection", limit: datetime) -> None:
    """Remove updates of entities that have left: they wait for them no longer than their margins would.

    Whose the texts were stays known: other nights than the update's count for their margins.
    """
    expired = "accepted_at <= ? AND entity_id NOT IN (SELECT entity_id FROM entities)"
    connection.execute(
        "INSERT INTO former_texts SELECT DISTINCT entity_id, text_key, accepted_at FROM "
        "(SELECT entity_id, accepted_at, unnest(list_append(older, text_id)) AS text_id FROM online_texts "
        f"WHERE {expired}) JOIN texts USING (text_id) ANTI JOIN former_texts USING (entity_id, text_key)",
        [limit],
    )
    connection.execute(f"DELETE FROM online_texts WHERE {expired}", [limit])


def _drop_former(connection: "duckdb.DuckDBPyConnection", limit: datetime) -> None:
    """Forget whose a text was once it is gone, and not before: an erasure must find its margins as long as they are.

    Of an entity that has had one text again and again, the last time is enough after the retention time.
    """
    connection.execute("DELETE FROM former_texts WHERE text_key NOT IN (SELECT text_key FROM texts)")
    connection.execute(
        "DELETE FROM former_texts WHERE since <= ? AND rowid IN (SELECT older.rowid FROM former_texts older "
        "JOIN former_texts newer USING (entity_id, text_key) WHERE newer.since > older.since)",
        [limit],
    )


def _pairs(connection: "duckdb.DuckDBPyConnection") -> int:
    return _count(connection, "SELECT coalesce(sum(len(margins)), 0) FROM scores")


def _count(connection: "duckdb.DuckDBPyConnection", query: str) -> int:
    row = first(connection, query)
    assert row is not None
    return int(row[0])
