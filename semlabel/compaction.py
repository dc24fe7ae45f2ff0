"""Compaction: the warehouse written anew beside itself, proven equal, and only then put in its place.

DuckDB reuses freed blocks but never shrinks a file. The only copy is never at risk: until the one rename the old file
is whole and untouched, from then on the new one is, and whatever a kill leaves behind is removed by the next
compaction. Knows files and row counts; deliberately knows nothing of what is retained and why. Callers hold the
writer's lease.
"""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

from semlabel.durable import fsync_path
from semlabel.errors import WarehouseError
from semlabel.warehouse import Opening, Warehouse
from semlabel.warehouse_file import literal

_MARK = ".compact-"
# The copy, its log, and what the system needs to stay usable.
_ROOM = 1.2


class Footprint(NamedTuple):
    """The bytes of the file, what it holds in a rough weight, and the bytes a fresh file with that would have."""

    bytes: int
    weight: int
    live_bytes: int


@dataclass(frozen=True)
class Compaction:
    """The bytes of the file before and after; equal, with the reason, where it was left as it was."""

    bytes_before: int
    bytes_after: int
    skipped: str | None = None


def footprint(warehouse: Warehouse) -> Footprint:
    """How large the file is and how large it needs to be.

    Blocks that hold nothing are not needed; and where a compaction was made before, what a unit of weight took then is
    the bound, because a block that is used may be half empty of rows that were deleted. The smaller one counts: an
    estimate that is too small costs one compaction, after which it is right.
    """
    ((weight,),) = warehouse.rows(
        """SELECT (SELECT coalesce(sum(4 * len(margins) + 24), 0) FROM scores)
                + (SELECT coalesce(sum(strlen(text) + 100), 0) FROM entities)
                + (SELECT coalesce(sum(strlen(text) + 100), 0) FROM catalog)
                + (SELECT coalesce(sum(strlen(text) + 100), 0) FROM left_out_candidates)
                + (SELECT coalesce(sum(4 * len(candidate_text_keys) + 8), 0) FROM shortlists)
                + (SELECT 70 * count(*) FROM texts) + (SELECT 50 * count(*) FROM training_pairs)
                + (SELECT 50 * count(*) FROM reference_labels)"""
    )
    ((used,),) = warehouse.rows(
        "SELECT used_blocks * block_size FROM pragma_database_size() WHERE database_name = current_database()"
    )
    known = warehouse.rows("SELECT bytes, weight FROM compactions")
    live = min(used, int(known[0][0] * weight / known[0][1])) if known and known[0][1] else used
    return Footprint(warehouse.path.stat().st_size, int(weight), int(live))


def settled(warehouse: Warehouse) -> Footprint:
    """The footprint of a file that holds everything, with nothing left in its log."""
    warehouse.rows("CHECKPOINT")
    return footprint(warehouse)


def nothing_to_gain(size: Footprint, factor: float) -> Compaction | None:
    """What became of a file that is not larger than `factor` times what it holds; None of one that is."""
    if size.bytes > factor * size.live_bytes:
        return None
    return Compaction(size.bytes, size.bytes, "nothing to gain")


def compact(
    path: Path, factor: float, opening: Opening | None = None, at: Callable[[str], None] = lambda step: None
) -> Compaction:
    """Write the warehouse anew when its file is larger than `factor` times what it holds (0: in any case).

    `at` is told before every step (`copy`, `verify`, `sync`, `rename`) and at the end (`done`), for those who must
    know how far it is. Raises WarehouseError when the copy is not exactly the original, which then stays as it is.
    """
    discard_leftovers(path)
    try:
        return _compact(path, factor, opening or Opening(), at)
    finally:
        # After an error the copy goes at once: it may be what filled the disk.
        discard_leftovers(path)


def _compact(path: Path, factor: float, opening: Opening, at: Callable[[str], None]) -> Compaction:
    copy = path.with_name(f".{path.name}{_MARK}{uuid4().hex}")
    with opening.open(path) as warehouse:
        size = settled(warehouse)
        done = nothing_to_gain(size, factor)
        if done is not None:
            return done
        free = shutil.disk_usage(path.parent).free
        if free < _ROOM * size.live_bytes:
            lacking = f"the disk has {free:,} bytes left and a copy needs {int(_ROOM * size.live_bytes):,}"
            return Compaction(size.bytes, size.bytes, f"{lacking}: free some space")
        at("copy")
        _copy(warehouse, copy)
        expected = _content(warehouse)
    at("verify")
    _verify(copy, expected, size.weight, opening)
    at("sync")
    shutil.copymode(path, copy)
    fsync_path(copy)
    _refuse_log(path)
    _refuse_log(copy)
    at("rename")
    copy.replace(path)
    fsync_path(path.parent)
    at("done")
    return Compaction(size.bytes, path.stat().st_size)


def discard_leftovers(path: Path) -> None:
    """Remove the copies of compactions that were killed."""
    for left in path.parent.glob(f".{path.name}{_MARK}*"):
        left.unlink()


def _copy(warehouse: Warehouse, copy: Path) -> None:
    ((name,),) = warehouse.rows("SELECT current_database()")
    warehouse.rows(f"ATTACH {literal(str(copy))} AS fresh_copy")
    try:
        warehouse.rows(f"COPY FROM DATABASE {_quoted(name)} TO fresh_copy")
    finally:
        warehouse.rows("DETACH fresh_copy")


def _verify(copy: Path, expected: list[object], weight: int, opening: Opening) -> None:
    """Prove that the copy holds what the original holds, and note in it what it weighs."""
    with opening.open(copy) as fresh:
        found = _content(fresh)
        if found != expected:
            raise WarehouseError(f"{copy}: not what the warehouse holds; the old file stays: check the disk, run again")
        with fresh.transaction() as connection:
            connection.execute("DELETE FROM compactions")
            connection.execute(
                "INSERT INTO compactions VALUES (?, ?, ?)",
                [datetime.now(UTC).replace(tzinfo=None), copy.stat().st_size, weight],
            )
        fresh.rows("CHECKPOINT")


def _content(warehouse: Warehouse) -> list[object]:
    """Every table with its rows and a hash over them, every view and sequence, and the predictions' content hash."""
    named = "WHERE database_name = current_database()"
    tables = [
        name
        for (name,) in warehouse.rows(f"SELECT table_name FROM duckdb_tables() {named} AND NOT temporary ORDER BY 1")
    ]
    counts = [
        (name, *warehouse.rows(f"SELECT count(*), coalesce(sum(hash(t)), 0) FROM {_quoted(name)} t")[0])
        for name in tables
    ]
    views = warehouse.rows(f"SELECT view_name, sql FROM duckdb_views() {named} AND NOT internal ORDER BY 1")
    sequences = warehouse.rows(f"SELECT sequence_name, last_value FROM duckdb_sequences() {named} ORDER BY 1")
    return [counts, views, sequences, warehouse.content_hash()]


def _refuse_log(path: Path) -> None:
    # A log that outlives its file would be replayed into another one.
    log = path.with_name(path.name + ".wal")
    if log.exists():
        raise WarehouseError(f"{log}: still there after the file was closed: close whatever has it open, run again")


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
