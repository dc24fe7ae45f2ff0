"""Is everything in a warehouse readable, and does it fit together?

Looks and never mends; one pass over the whole file, in turns where a run may need it. Knows the tables, nothing of what
a run would do about a fault.
"""

import time
from collections import deque
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from semlabel.errors import WarehouseError, first_line

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

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

# So many seconds a look in turns keeps a run waiting, and one query more.
TURN_SECONDS = 5.0


def check_warehouse(warehouse: "Warehouse") -> str:
    """Read every value once and compare the tables with each other; returns what was looked at, in words.

    Raises WarehouseError naming what is damaged or does not fit.
    """
    return check_in_turns(lambda: nullcontext(warehouse))


def check_in_turns(turn: "Callable[[], AbstractContextManager[Warehouse]]") -> str:
    """The same for a warehouse that a run may want meanwhile: every few seconds `turn` is over, and taken again.

    Every question is asked of one state of the warehouse, so what a run changes between two of them is no fault.
    """
    with turn() as warehouse:
        path, tables = warehouse.path, _tables(warehouse)
    # The sum of the hashes needs every value, and a block of the file that is damaged fails its checksum.
    looks = deque([("", f'SELECT count(*), sum(hash(t)) FROM "{name}" t') for name in tables])
    looks.extend(_FAULTS)
    rows, wrong = 0, []
    while looks:
        with turn() as warehouse:
            until = time.monotonic() + TURN_SECONDS
            while looks:
                fault, query = looks.popleft()
                count = _counted(warehouse, query)
                rows += 0 if fault else count
                if fault and count:
                    wrong.append(f"{count:,} {fault}")
                if time.monotonic() >= until:
                    break
    if wrong:
        raise WarehouseError(f"{path}: {'; '.join(wrong)}; {_REMEDY}")
    return f"{rows:,} rows in {len(tables)} tables, all readable and fitting together"


def _tables(warehouse: "Warehouse") -> list[str]:
    query = "SELECT table_name FROM duckdb_tables() WHERE NOT temporary ORDER BY 1"
    return [name for (name,) in _asked(warehouse, query)]


def _counted(warehouse: "Warehouse", query: str) -> int:
    return int(_asked(warehouse, query)[0][0])


def _asked(warehouse: "Warehouse", query: str) -> list[tuple[Any, ...]]:
    import duckdb

    try:
        return warehouse.rows(query)
    except duckdb.Error as error:  # every statement is a fixed one, so it is the file that is wrong
        raise WarehouseError(f"{warehouse.path}: it is damaged ({first_line(error)}); {_REMEDY}") from error
