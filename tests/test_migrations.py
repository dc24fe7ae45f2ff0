"""Files of every older schema are brought up to date with all their rows; files of a newer one are left alone.

`tests/schemas/NAME-VERSION.sql` are dumps of files as that version wrote them, and are never edited. Whoever adds a
migration adds a dump of the version before it.
"""

import re
import sqlite3
from pathlib import Path

import duckdb
import pytest

from semlabel import operations_schema, processes, warehouse_schema
from semlabel.errors import LeaseHeld, WarehouseError
from semlabel.operations import Operations
from semlabel.operations_schema import now_utc
from semlabel.processes import ProcessIdentity
from semlabel.remembered_splits import remembered
from semlabel.warehouse import Warehouse

SCHEMAS = Path(__file__).parent / "schemas"
OLDER_WAREHOUSES = range(1, len(warehouse_schema.MIGRATIONS))
OLDER_OPERATIONS = range(1, len(operations_schema.MIGRATIONS))


def dump(name: str, version: int) -> str:
    return (SCHEMAS / f"{name}-{version}.sql").read_text()


def old_warehouse(folder: Path, version: int) -> Path:
    path = folder / "warehouse.duckdb"
    with duckdb.connect(str(path)) as connection:
        connection.execute(dump("warehouse", version))
    return path


def old_operations(folder: Path, version: int) -> Path:
    path = folder / "ops.sqlite"
    with sqlite3.connect(path) as connection:
        connection.executescript(dump("operations", version))
    connection.close()
    return path


def inserted(name: str, version: int) -> dict[str, int]:
    """How many rows a dump puts into each table."""
    tables = re.findall(r'^INSERT INTO "?(\w+)"? VALUES', dump(name, version), re.MULTILINE)
    return {table: tables.count(table) for table in tables}


def warehouse_columns(warehouse: Warehouse) -> set[tuple]:
    return set(
        warehouse.rows(
            "SELECT table_name, column_name, data_type, is_nullable FROM duckdb_columns() WHERE NOT internal"
        )
    )


def operations_columns(path: Path) -> set[tuple]:
    with sqlite3.connect(path) as connection:
        tables = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        found = {(table, *row[1:4]) for table in tables for row in connection.execute(f"PRAGMA table_info({table})")}
    connection.close()
    return found


def test_there_is_a_dump_of_every_older_schema():
    wanted = {f"warehouse-{version}.sql" for version in OLDER_WAREHOUSES}
    wanted |= {f"operations-{version}.sql" for version in OLDER_OPERATIONS}
    assert {path.name for path in SCHEMAS.glob("*.sql")} == wanted and len(wanted) >= 2


@pytest.mark.parametrize("version", OLDER_WAREHOUSES)
def test_an_older_warehouse_becomes_a_new_one_with_every_row(tmp_path, version):
    path = old_warehouse(tmp_path, version)
    with pytest.raises(WarehouseError, match=f"schema {version} is older"):
        Warehouse.open(path, read_only=True)
    (told,) = re.findall(r"content hash of its predictions: (\w+)", dump("warehouse", version))
    with Warehouse.open(path) as warehouse, Warehouse.open(tmp_path / "new.duckdb") as new:
        assert warehouse_columns(warehouse) == warehouse_columns(new)
        assert warehouse.content_hash() == told and warehouse.coverage().missing == []
        for table, rows in inserted("warehouse", version).items():
            assert warehouse.rows(f"SELECT count(*) FROM {table}") == [(rows,)]
        assert warehouse.rows("SELECT schema_version FROM meta") == [(len(warehouse_schema.MIGRATIONS),)]
        # The digests still fit the rows: the same content read again changes nothing.
        entities = warehouse.entities().drop(columns="text_id")
        assert not warehouse.replace_entities(entities, "again").changed


# Who was trained on stays in train, though it has left or was held out by mistake; e6 was never judged.
_OF_3 = {"007": "test", "e1": "train", "e2": "calibrate", "e3": "certify", "e5": "", "e7": "train", "e8": "train"}
ASSIGNED = {1: {"e1": "train", "e2": "train"}, 2: {"e1": "train", "e2": "train"}, 3: _OF_3}


@pytest.mark.parametrize("version", ASSIGNED)
def test_what_an_older_version_had_assigned_is_remembered(tmp_path, version):
    with Warehouse.open(old_warehouse(tmp_path, version)) as warehouse:
        assert remembered(warehouse) == ASSIGNED[version]
        assert warehouse.rows("SELECT count(*), count(seed) FROM remembered_splits") == [(len(ASSIGNED[version]), 0)]


@pytest.mark.parametrize("version", OLDER_OPERATIONS)
def test_an_older_ops_sqlite_becomes_a_new_one_with_every_row(tmp_path, version):
    path = old_operations(tmp_path, version)
    operations = Operations(path)
    Operations(tmp_path / "new.sqlite")
    assert operations_columns(path) == operations_columns(tmp_path / "new.sqlite")
    for table, rows in inserted("operations", version).items():
        assert operations.file.rows(f"SELECT count(*) AS n FROM {table}") == [{"n": rows}]
    gate = operations.latest_gate("catalog_contract", "subject", "labeler", 1)
    assert (gate["verdict"], gate["evidence"]) == ("fail", {"examples": [{"row_id": "x"}]})
    assert operations.open_plan("scorer", "subject")["payload"] == b"\x01\x02"
    assert operations.promoted()["who"] == "ann" and operations.approved("subject", uncertified_candidates="withhold")
    assert operations.publishing_paused() == "because"
    assert operations.erased_ids() == (frozenset(TRAINED) if version >= 3 else frozenset())


# By the digest of the id: whether training pairs of the entity were erased.
TRAINED = {"trained": True, "not trained": False}


def test_what_an_older_version_certified_and_erased_still_says_so(tmp_path):
    operations = Operations(old_operations(tmp_path, 3))
    assert {name: operations.note_erasure(name, {})["trained"] for name in TRAINED} == TRAINED
    uses = operations.certify_uses("set")
    assert [(use["labeler_digest"], use["verdict"], use["question_digest"]) for use in uses] == [
        ("labeler", None, None),
        ("labeler 3", "pass", None),
    ]
    assert [use["labeler_digest"] for use in operations.certify_looks(["a"])] == ["labeler", "labeler 3"]
    assert [use["labeler_digest"] for use in operations.certify_looks(["c"])] == ["labeler"]


def test_a_run_and_a_lease_that_an_older_version_noted_are_judged_by_their_signs_of_life(tmp_path, monkeypatch):
    """Whether its process can be looked for from here, that version did not note."""
    monkeypatch.setattr(processes, "HEARTBEAT_SECONDS", 0.05)
    operations = Operations(old_operations(tmp_path, 4))
    ours = ProcessIdentity.current()
    with operations.file.transaction() as connection:
        for table in ("runs", "leases"):
            connection.execute(f"UPDATE {table} SET host = ?, boot_id = ?, pid = 4194305", (ours.host, ours.boot_id))
        connection.execute("UPDATE progress SET updated_at = ?", (now_utc(),))
        connection.execute("UPDATE leases SET heartbeat = ?", (now_utc(),))
    assert operations.dead_runs() == []
    with pytest.raises(LeaseHeld), operations.lease("warehouse", "next", 0):
        pytest.fail("took a lease without proof")
    with operations.file.transaction() as connection:
        connection.execute("UPDATE progress SET updated_at = '2026-01-01T00:00:00.000000+00:00'")
        connection.execute("UPDATE runs SET started_at = '2026-01-01T00:00:00.000000+00:00'")
        connection.execute("UPDATE leases SET heartbeat = '2026-01-01T00:00:00.000000+00:00'")
    assert [run["run_id"] for run in operations.dead_runs()] == ["run"]
    with operations.lease("warehouse", "next", 0):
        pass


@pytest.mark.parametrize("version", OLDER_WAREHOUSES)
def test_a_migration_that_fails_half_way_leaves_the_older_schema_whole(tmp_path, version, monkeypatch):
    path = old_warehouse(tmp_path, version)
    with monkeypatch.context() as patch:
        broken = (*warehouse_schema.MIGRATIONS, ("CREATE TABLE half (i INTEGER)", "SELECT * FROM nowhere"))
        patch.setattr(warehouse_schema, "MIGRATIONS", broken)
        with pytest.raises(duckdb.CatalogException):
            Warehouse.open(path)
    with duckdb.connect(str(path)) as connection:
        assert connection.execute("SELECT schema_version FROM meta").fetchall() == [(version,)]
        assert ("half",) not in connection.execute("SELECT table_name FROM duckdb_tables()").fetchall()


def test_files_of_a_newer_schema_are_refused_with_what_to_do_and_left_as_they_are(tmp_path):
    with Warehouse.open(tmp_path / "warehouse.duckdb") as warehouse:
        warehouse.rows("UPDATE meta SET schema_version = 99")
    Operations(tmp_path / "ops.sqlite")
    with sqlite3.connect(tmp_path / "ops.sqlite") as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    for open_it in (
        lambda: Warehouse.open(tmp_path / "warehouse.duckdb"),
        lambda: Warehouse.open(tmp_path / "warehouse.duckdb", read_only=True),
        lambda: Operations(tmp_path / "ops.sqlite"),
    ):
        with pytest.raises(WarehouseError, match=r"written by a newer semlabel \(schema 99, .*\): upgrade semlabel"):
            open_it()
    after = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.name in before}
    assert after == before
