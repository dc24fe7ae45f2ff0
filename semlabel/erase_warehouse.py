"""Erasing one entity from the warehouse: its rows, and the margins that belong to nobody else.

Knows tables; deliberately knows nothing of other places or of receipts. A text that another entity has, or is known to
have had, is that entity's too: its margins stay. The freed bytes are still in the file until it is compacted.
"""

from typing import TYPE_CHECKING

from semlabel.erase_traces import ERASED, Traces
from semlabel.published_splits import MAY_HAVE_TRAINED
from semlabel.warehouse import Warehouse
from semlabel.warehouse_tables import TABLES, renew_digest

if TYPE_CHECKING:
    import duckdb

_BY_ID = (
    *("former_texts", "online_texts", "entities", "reference_labels", "undecided_pairs", "training_pairs"),
    *("prediction_scope", "remembered_splits"),
)
# The texts of the entity, now and before, that no other entity and no candidate has or had.
_OWN_TEXTS = """CREATE OR REPLACE TEMP TABLE own_texts AS
WITH owners AS (
    SELECT entity_id, text_key FROM entities UNION ALL SELECT entity_id, text_key FROM former_texts
    UNION ALL SELECT entity_id, text_key FROM texts JOIN
        (SELECT entity_id, unnest(list_append(older, text_id)) AS text_id FROM online_texts) USING (text_id)
    UNION ALL SELECT NULL, text_key FROM catalog)
SELECT text_key FROM owners GROUP BY text_key HAVING bool_and(coalesce(entity_id = ?, false))"""


def known_texts(warehouse: Warehouse, entity_id: str) -> list[str]:
    """The texts of an entity that the warehouse still holds."""
    rows = warehouse.rows(
        "SELECT text FROM entities WHERE entity_id = ? UNION "
        "SELECT text FROM online_texts WHERE entity_id = ? AND text IS NOT NULL ORDER BY text",
        [entity_id, entity_id],
    )
    return [text for (text,) in rows]


def count_entity(warehouse: Warehouse, entity_id: str) -> dict[str, int]:
    """What `erase_entity` would remove, by table; margins are counted one by one."""
    warehouse.rows(_OWN_TEXTS, [entity_id])
    counts = {
        name: warehouse.rows(f"SELECT count(*) FROM {name} WHERE entity_id = ?", [entity_id])[0][0] for name in _BY_ID
    }
    ((counts["margins"],),) = warehouse.rows(
        "SELECT coalesce(sum(len(margins)), 0) FROM scores WHERE text_key IN (SELECT text_key FROM own_texts)"
    )
    counts["refused_rows"] = len(_refused(warehouse, entity_id))
    warehouse.rows("DROP TABLE own_texts")
    return {name: int(count) for name, count in counts.items()}


def may_have_trained(warehouse: Warehouse, entity_id: str) -> bool:
    """Whether a labeler may have learned from the entity, also from training pairs that others have replaced since."""
    rows = warehouse.rows(f"SELECT 1 FROM ({MAY_HAVE_TRAINED}) WHERE entity_id = ?", [entity_id])
    return bool(rows)


def erase_entity(warehouse: Warehouse, entity_id: str) -> None:
    """Remove the entity's rows and margins in one transaction. Erasing it again changes nothing."""
    refused = _refused(warehouse, entity_id)
    with warehouse.transaction() as connection:
        connection.execute(_OWN_TEXTS, [entity_id])
        for table in ("scores", "shortlists", "texts"):
            connection.execute(f"DELETE FROM {table} WHERE text_key IN (SELECT text_key FROM own_texts)")
        connection.execute("DROP TABLE own_texts")
        for table in _BY_ID:
            connection.execute(f"DELETE FROM {table} WHERE entity_id = ?", [entity_id])
        _erase_refused(connection, refused)
        for table in ("entities", "reference_labels", "undecided_pairs", "training_pairs"):
            renew_digest(connection, TABLES[table])


def _refused(warehouse: Warehouse, entity_id: str) -> list[tuple[str, str, str]]:
    """The refused rows (run_id, row_id, reason) that name the entity."""
    traces = Traces(entity_id, ())
    rows = warehouse.rows(
        "SELECT run_id, row_id, reason FROM refused_rows WHERE contains(row_id, ?) OR contains(reason, ?)",
        [entity_id, entity_id],
    )
    return [row for row in rows if entity_id in row[1].split(" / ") or row[1] == entity_id or traces.in_text(row[2])]


def _erase_refused(connection: "duckdb.DuckDBPyConnection", rows: list[tuple[str, str, str]]) -> None:
    for row in rows:
        connection.execute(
            "UPDATE refused_rows SET row_id = ?, reason = ? WHERE run_id = ? AND row_id = ? AND reason = ?",
            [ERASED, ERASED, *row],
        )
