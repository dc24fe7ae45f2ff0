"""Is everything in a warehouse readable, and does it fit together?

Looks and never mends; one pass over the whole file. Knows the tables, nothing of what a run would do about a fault.
"""

from typing import TYPE_CHECKING

from semlabel.errors import WarehouseError, first_line

if TYPE_CHECKING:
    from semlabel.warehouse import Warehouse

_REMEDY = "move the file away and run again: it is made anew from the sources, its splits too, so train a labeler then"
# What would be wrong, and the query that counts it.
_FAULTS: tuple[tuple[str, str], ...] = (
    ("texts stand twice", "SELECT count(*) - count(DISTINCT text_key) FROM texts"),
    ("text identities stand twice", "SELECT count(*) - count(DISTINCT text_id) FROM texts"),
    ("entities stand twice", "SELECT count(*) - count(DISTINCT entity_id) FROM entities"),
    ("candidates stand twice", "SELECT count(*) - count(DISTINCT candidate_id) FROM catalog"),
    ("splits are remembered twice", "SELECT count(*) - count(DISTINCT entity_id) FROM remembered_splits"),
    ("entities have another text than their identity", "SELECT count(*) FROM entities WHERE sha256(text) <> text_id"),
    ("candidates have another text than their identity", "SELECT count(*) FROM catalog WHERE sha256(text) <> text_id"),
    ("entities have no text", "SELECT count(*) FROM entities ANTI JOIN texts USING (text_key, text_id)"),
    ("candidates have no text", "SELECT count(*) FROM catalog ANTI JOIN texts USING (text_key, text_id)"),
    ("rounds are of no entity text", "SELECT count(*) FROM scores ANTI JOIN texts USING (text_key)"),
    ("rounds are of no scorer", "SELECT count(*) FROM scores ANTI JOIN scorers USING (scorer_key)"),
    (
        "rounds have another number of margins than their block has candidates",
        """SELECT count(*) FROM scores LEFT JOIN (SELECT block_id, count(*) AS items FROM blocks GROUP BY block_id)
           USING (block_id) WHERE len(margins) IS DISTINCT FROM items""",
    ),
    (
        "rounds hold a margin that is no number",
        "SELECT count(*) FROM scores WHERE NOT list_bool_and(list_transform(margins, lambda m: isfinite(m)))",
    ),
    ("texts have two shortlists", "SELECT count(*) - count(DISTINCT text_key) FROM shortlists"),
    ("shortlists are of no text", "SELECT count(*) FROM shortlists ANTI JOIN texts USING (text_key)"),
    (
        "places of blocks have no candidate text",
        "SELECT count(*) FROM blocks ANTI JOIN texts ON texts.text_key = blocks.candidate_text_key",
    ),
)


def check_warehouse(warehouse: "Warehouse") -> str:
    """Read every value once and compare the tables with each other; returns what was looked at, in words.

    Raises WarehouseError naming what is damaged or does not fit.
    """
    import duckdb

    try:
        rows, tables, found = _looked_at(warehouse)
    except duckdb.Error as error:  # every statement is a fixed one, so it is the file that is wrong
        reason = first_line(error)
        raise WarehouseError(f"{warehouse.path}: it is damaged ({reason}); {_REMEDY}") from error
    wrong = [f"{count:,} {what}" for what, count in found if count]
    if wrong:
        raise WarehouseError(f"{warehouse.path}: {'; '.join(wrong)}; {_REMEDY}")
    return f"{rows:,} rows in {tables} tables, all readable and fitting together"


def _looked_at(warehouse: "Warehouse") -> tuple[int, int, list[tuple[str, int]]]:
    """How many rows in how many tables were read, and how often each fault was found."""
    tables = [
        name for (name,) in warehouse.rows("SELECT table_name FROM duckdb_tables() WHERE NOT temporary ORDER BY 1")
    ]
    rows = 0
    for name in tables:
        # The sum of the hashes needs every value, and a block of the file that is damaged fails its checksum.
        count, _ = warehouse.rows(f'SELECT count(*), sum(hash(t)) FROM "{name}" t')[0]
        rows += count
    return rows, len(tables), [(what, warehouse.rows(query)[0][0]) for what, query in _FAULTS]
