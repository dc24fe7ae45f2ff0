"""Replacing a table of the warehouse by a new reading of its source, at the cost of what changed.

Knows the columns of the source tables and how to compare them by content; deliberately knows nothing of where a
frame comes from or of scores. A frame with the content that is already stored changes nothing but the time it was
checked. Row order carries no meaning except in `training_pairs`, where it is the order of training.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from semlabel.errors import WarehouseError
from semlabel.warehouse_file import first

if TYPE_CHECKING:
    import duckdb
    import pandas
    import pyarrow


@dataclass(frozen=True)
class Column:
    """A column that a frame brings: SQL type, and the default (SQL) when the frame leaves it out; None: it must not."""

    name: str
    type: str
    default: str | None = None


@dataclass(frozen=True)
class Table:
    """A table that is replaced as a whole: what a frame brings, what identifies a row, what is derived in SQL."""

    name: str
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    has_text: bool = False
    position: str | None = None  # SQL of the derived column `position`

    @property
    def stored(self) -> tuple[str, ...]:
        """The columns of the table in the warehouse, surrogates left out."""
        names = [column.name for column in self.columns]
        if self.has_text:
            names.insert(names.index("text") + 1, "text_id")
        return (*names, "position") if self.position else tuple(names)


_ENTITY = Column("entity_id", "VARCHAR")
_CANDIDATE = Column("candidate_id", "VARCHAR")
_TEXT = Column("text", "VARCHAR")
_LABEL = Column("label", "BOOLEAN")

TABLES = {
    table.name: table
    for table in (
        Table(
            "entities",
            (
                _ENTITY,
                _TEXT,
                Column("text_version", "VARCHAR", "NULL"),
                Column("split", "VARCHAR", "''"),
                Column("group_id", "BIGINT", "NULL"),
                Column("query_tokens", "INTEGER", "NULL"),
                Column("truncated", "BOOLEAN", "false"),
            ),
            key=("entity_id",),
            has_text=True,
        ),
        Table(
            "catalog",
            (
                _CANDIDATE,
                _TEXT,
                Column("certified", "BOOLEAN", "false"),
                Column("group", "VARCHAR", "NULL"),
                Column("item_tokens", "INTEGER", "NULL"),
            ),
            key=("candidate_id",),
            has_text=True,
            # By id and not by row, so that a reordered file is the same catalog and packs the same rounds.
            position="row_number() OVER (ORDER BY candidate_id) - 1",
        ),
        Table(
            "left_out_candidates",
            (_CANDIDATE, _TEXT, Column("group", "VARCHAR", "NULL")),
            key=("candidate_id",),
            has_text=True,
        ),
        Table(
            "reference_labels",
            (
                *(_ENTITY, _CANDIDATE, _LABEL),
                Column("design", "VARCHAR", "'reference'"),
                Column("inclusion_probability", "DOUBLE", "NULL"),
            ),
            key=("entity_id", "candidate_id"),
        ),
        Table(
            "undecided_pairs",
            (_ENTITY, _CANDIDATE, Column("reason", "VARCHAR")),
            key=("entity_id", "candidate_id"),
        ),
        Table(
            "training_pairs",
            (_ENTITY, _CANDIDATE, _LABEL, Column("split", "VARCHAR", "'train'"), Column("kind", "VARCHAR", "'listed'")),
            key=("entity_id", "candidate_id"),
            position="frame_row",
        ),
    )
}


@dataclass(frozen=True)
class Replaced:
    """What a replacement did: the content digest and how many rows were added, removed and edited."""

    digest: str
    rows: int
    changed: bool
    added: int
    removed: int
    edited: int


def replace_table(
    connection: "duckdb.DuckDBPyConnection",
    table: Table,
    frame: "pandas.DataFrame",
    run_id: str,
    source_digest: str | None,
) -> Replaced:
    """Make `table` hold exactly the rows of `frame`, inside the caller's transaction.

    Raises WarehouseError for duplicate or missing ids and for text that is not Unicode, ValueError for wrong columns.
    """
    now = datetime.now(UTC).replace(tzinfo=None)
    _stage(connection, table, frame)
    try:
        _refuse_bad_rows(connection, table)
        digest = _digest(connection, table)
        rows = _number(connection, "SELECT count(*) FROM staged")
        known = first(connection, "SELECT digest FROM content_digests WHERE table_name = ?", [table.name])
        if known is not None and known[0] == digest:
            connection.execute(
                "UPDATE content_digests SET checked_at = ?, source_digest = ? WHERE table_name = ?",
                [now, source_digest, table.name],
            )
            return Replaced(digest, rows, changed=False, added=0, removed=0, edited=0)
        counts = _merge(connection, table)
        connection.execute("DELETE FROM content_digests WHERE table_name = ?", [table.name])
        connection.execute(
            "INSERT INTO content_digests VALUES (?, ?, ?, ?, ?, ?, ?)",
            [table.name, digest, rows, source_digest, run_id, now, now],
        )
        return Replaced(digest, rows, True, **counts)
    finally:
        connection.execute("DROP TABLE IF EXISTS staged")


def select_all(table: Table) -> str:
    """The query that reads a table in its canonical order."""
    order = "position" if table.position else ", ".join(table.key)
    columns = [name for name in table.stored if not (table.name == "training_pairs" and name == "position")]
    return f"SELECT {', '.join(map(_quoted, columns))} FROM {table.name} ORDER BY {order}"


def _stage(connection: "duckdb.DuckDBPyConnection", table: Table, frame: "pandas.DataFrame") -> None:
    known = {column.name for column in table.columns}
    missing = [column.name for column in table.columns if column.default is None and column.name not in frame]
    unknown = [str(name) for name in frame.columns if name not in known]
    if missing or unknown:
        raise ValueError(
            f"{table.name}: missing columns {missing}, unknown columns {unknown}, known are {sorted(known)}"
        )
    given = [column for column in table.columns if column.name in frame]
    derived = [f"{column.default} AS {_quoted(column.name)}" for column in table.columns if column.name not in frame]
    if table.has_text:
        derived.append("sha256(text) AS text_id")
    if table.position:
        derived.append(f"CAST({table.position} AS INTEGER) AS position")
    connection.register("incoming", _arrow(table, given, frame))
    try:
        columns = [f"CAST({_quoted(column.name)} AS {column.type}) AS {_quoted(column.name)}" for column in given]
        connection.execute(
            f"CREATE OR REPLACE TEMP TABLE staged AS SELECT {', '.join(columns + derived)} FROM incoming"
        )
    finally:
        connection.unregister("incoming")


def _arrow(table: Table, given: list[Column], frame: "pandas.DataFrame") -> "pyarrow.Table":
    """The frame with the types of the table, because an empty or all-null object column has no type of its own."""
    import pyarrow

    types = {
        "VARCHAR": pyarrow.large_string(),
        "BIGINT": pyarrow.int64(),
        "INTEGER": pyarrow.int32(),
        "BOOLEAN": pyarrow.bool_(),
        "DOUBLE": pyarrow.float64(),
    }
    arrays: dict[str, Any] = {}
    for column in given:
        try:
            values: Any = frame[column.name] if len(frame) else []
            arrays[column.name] = pyarrow.array(values, type=types[column.type], from_pandas=True)
        except (pyarrow.ArrowInvalid, pyarrow.ArrowTypeError, UnicodeError) as error:
            raise WarehouseError(
                f"{table.name}.{column.name} holds a value that is no {column.type.lower()} ({error}): "
                "refuse such rows when the source is read"
            ) from error
    return pyarrow.table(arrays | {"frame_row": pyarrow.array(range(len(frame)), type=pyarrow.int32())})


def _refuse_bad_rows(connection: "duckdb.DuckDBPyConnection", table: Table) -> None:
    required = [column.name for column in table.columns if column.default != "NULL"]
    for name in required:
        empty = _number(connection, f"SELECT count(*) FROM staged WHERE {_quoted(name)} IS NULL")
        if empty:
            raise WarehouseError(f"{table.name}: {empty} rows without {name}: refuse them when the source is read")
    key = ", ".join(table.key)
    twice = connection.execute(
        f"SELECT {key}, count(*) FROM staged GROUP BY {key} HAVING count(*) > 1 ORDER BY {key} LIMIT 3"
    ).fetchall()
    if twice:
        shown = "; ".join(f"{', '.join(map(repr, row[:-1]))} ({row[-1]} rows)" for row in twice)
        raise WarehouseError(
            f"{table.name}: {key} must be unique, found {shown}: remove the duplicates from the source"
        )


def renew_digest(connection: "duckdb.DuckDBPyConnection", table: Table) -> None:
    """Make `content_digests` say what the table holds now, inside the caller's transaction."""
    connection.execute(
        f"UPDATE content_digests SET digest = ?, rows = (SELECT count(*) FROM {table.name}) WHERE table_name = ?",
        [_digest(connection, table, table.name), table.name],
    )


def _digest(connection: "duckdb.DuckDBPyConnection", table: Table, relation: str = "staged") -> str:
    """sha256 over the rows in key order; each value with its length, so that no two rows read the same."""
    # A text enters by its sha256, which the table holds anyway.
    columns = [_quoted(name) for name in table.stored if name != "text"]
    parts = [f"coalesce(strlen(CAST({name} AS VARCHAR)) || ':' || CAST({name} AS VARCHAR), '-')" for name in columns]
    query = (
        f"SELECT sha256(coalesce(string_agg(sha256({' || '.join(parts)}), '' ORDER BY {', '.join(table.key)}), '')) "
    )
    row = first(connection, query + f"FROM {relation}")
    assert row is not None
    return str(row[0])


def _merge(connection: "duckdb.DuckDBPyConnection", table: Table) -> dict[str, int]:
    stored = list(table.stored)
    if table.has_text:
        connection.execute(
            "INSERT INTO texts (text_key, text_id) SELECT CAST(nextval('text_keys') AS INTEGER), text_id FROM "
            "(SELECT DISTINCT text_id FROM staged ANTI JOIN texts USING (text_id) ORDER BY text_id)"
        )
        connection.execute("ALTER TABLE staged ADD COLUMN text_key INTEGER")
        connection.execute(
            "UPDATE staged SET text_key = texts.text_key FROM texts WHERE texts.text_id = staged.text_id"
        )
        stored.append("text_key")
    same_key = " AND ".join(f"t.{name} = s.{name}" for name in table.key)
    others = [_quoted(name) for name in stored if name not in table.key]
    differs = " OR ".join(f"t.{name} IS DISTINCT FROM s.{name}" for name in others)
    both = f"FROM staged s {{kind}} JOIN {table.name} t ON {same_key}"
    counts = {
        "added": _number(connection, f"SELECT count(*) {both.format(kind='ANTI')}"),
        "removed": _number(connection, f"SELECT count(*) FROM {table.name} t ANTI JOIN staged s ON {same_key}"),
        "edited": _number(connection, f"SELECT count(*) {both.format(kind='INNER')} WHERE {differs}"),
    }
    if table.name == "entities":
        connection.execute(
            "INSERT INTO former_texts SELECT t.entity_id, t.text_key, ? FROM entities t LEFT JOIN staged s "
            "ON s.entity_id = t.entity_id WHERE s.text_key IS DISTINCT FROM t.text_key",
            [datetime.now(UTC).replace(tzinfo=None)],
        )
    names = ", ".join(map(_quoted, stored))
    # Edited rows leave and come back: an update in place would write every row group it touches anew, a night's file
    # with it.
    connection.execute(
        f"MERGE INTO {table.name} t USING staged s ON {same_key} "
        f"WHEN MATCHED AND ({differs}) THEN DELETE WHEN NOT MATCHED BY SOURCE THEN DELETE"
    )
    connection.execute(
        f"INSERT INTO {table.name} ({names}) SELECT {', '.join(f's.{_quoted(name)}' for name in stored)} "
        f"{both.format(kind='ANTI')}"
    )
    return counts


def _number(connection: "duckdb.DuckDBPyConnection", query: str) -> int:
    row = first(connection, query)
    assert row is not None
    return int(row[0])


def _quoted(name: str) -> str:
    return f'"{name}"'
