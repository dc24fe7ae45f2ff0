"""Erasing one entity from published versions: each is written anew without it, proven, and put in its own place.

Knows the files of a version; deliberately knows nothing of the warehouse. The rewritten version keeps its name, so
that the chain of versions holds; its manifest says that and when something was erased, by the digest of the id, and
counts what is left. Files without the entity are shared with the old version, not written again.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from semlabel import changes
from semlabel.content_hash import content_hash, content_sum
from semlabel.digests import text_id
from semlabel.durable import fsync_tree
from semlabel.publish import STORAGE_VERSION, files_of
from semlabel.published import (
    STAGING,
    VERSIONS,
    replace_version,
    verify_version,
    version_names,
    write_manifest,
)
from semlabel.warehouse_file import literal

if TYPE_CHECKING:
    import duckdb

_COPY = "predictions.duckdb"


def count_in_versions(directory: Path, entity_id: str) -> int:
    """How many rows of all versions name the entity."""
    return sum(sum(_rows_by_file(directory / VERSIONS / name, entity_id).values()) for name in version_names(directory))


def erase_from_versions(
    directory: Path, entity_id: str, alone: Callable[[], AbstractContextManager[object]] = nullcontext
) -> list[str]:
    """Rewrite every version that names the entity; returns their names. Raises WarehouseError for a damaged one.

    `alone` is entered for each: a rollback must not meet a version, or `current`, in the middle of it.
    """
    rewritten = []
    for name in version_names(directory):
        found = _rows_by_file(directory / VERSIONS / name, entity_id)
        if sum(found.values()):
            with alone():
                _rewrite(directory, name, entity_id, found)
            rewritten.append(name)
    return rewritten


def _rows_by_file(path: Path, entity_id: str) -> dict[str, int]:
    """The rows of the entity by Parquet file; the DuckDB copy holds what the files of predictions hold."""
    counts: dict[str, int] = {}
    with _connection() as connection:
        for file in sorted(path.rglob("*.parquet")):
            if "entity_id" in _columns(connection, file):
                (row,) = connection.execute(
                    f"SELECT count(*) FROM {_parquet(file)} WHERE entity_id = ?", [entity_id]
                ).fetchall()
                counts[str(file.relative_to(path))] = int(row[0])
    return counts


def _rewrite(directory: Path, name: str, entity_id: str, found: dict[str, int]) -> None:
    old = directory / VERSIONS / name
    manifest = verify_version(old)
    staged = directory / VERSIONS / f"{STAGING}{uuid4().hex}"
    for file in manifest["files"]:
        (staged / file).parent.mkdir(parents=True, exist_ok=True)
    with _connection() as connection:
        for file in manifest["files"]:
            if found.get(file, 0):
                kept = f"SELECT * FROM {_parquet(old / file)} WHERE entity_id <> {literal(entity_id)}"
                connection.execute(f"COPY ({kept}) TO {literal(str(staged / file))} (FORMAT parquet, COMPRESSION zstd)")
            elif file != _COPY:
                os.link(old / file, staged / file)
        counts = _copy_and_count(connection, staged)
    rows = sum(count for file, count in found.items() if file.startswith("predictions/"))
    entry = {"id_digest": text_id(entity_id), "erased_at": _now(), "rows": rows}
    told = {name: value for name, value in manifest.items() if name != "manifest_digest"}
    fresh = told | counts | {"files": files_of(staged), "erasures": [*manifest.get("erasures", []), entry]}
    write_manifest(staged, fresh)
    for file in staged.rglob("*"):
        if file.is_file():
            file.chmod(0o444)
    fsync_tree(staged)
    verify_version(staged)
    replace_version(directory, name, staged)


def _copy_and_count(connection: "duckdb.DuckDBPyConnection", staged: Path) -> dict[str, Any]:
    """Make the DuckDB copy of the staged files, and say what the manifest must say of them."""

    def run(sql: str) -> list[tuple[Any, ...]]:
        return connection.execute(sql).fetchall()

    predictions = _parquet(staged / "predictions" / "*.parquet")
    run(f"ATTACH {literal(str(staged / _COPY))} AS copy (STORAGE_VERSION '{STORAGE_VERSION}')")
    run(f"CREATE TABLE copy.predictions AS SELECT * FROM {predictions}")
    run("CREATE VIEW copy.labels AS SELECT * FROM predictions WHERE label")
    for name in ("entities", "catalog"):
        run(f"CREATE TABLE copy.{name} AS SELECT * FROM {_parquet(staged / f'{name}.parquet')}")
    total, rows = content_sum(run, "copy.predictions")
    ((entities, candidates, uncertified, labels),) = run(
        "SELECT (SELECT count(*) FROM copy.entities WHERE pairs > 0), count(DISTINCT candidate_id), "
        "count(*) FILTER (WHERE NOT certified), count(*) FILTER (WHERE label) FROM copy.predictions"
    )
    run("DETACH copy")
    run(f"CREATE TEMP TABLE changes AS SELECT * FROM {_parquet(staged / 'changes.parquet')}")
    summary = changes.summary(connection)
    return {
        "rows": rows,
        "labels": labels,
        "entities": entities,
        "candidates": candidates,
        "uncertified_rows": uncertified,
        "content_hash": content_hash(total, rows),
        "changes": summary,
    }


@contextmanager
def _connection() -> "Iterator[duckdb.DuckDBPyConnection]":
    import duckdb

    with duckdb.connect(":memory:") as connection:
        connection.execute("SET preserve_insertion_order = true")
        yield connection


def _columns(connection: "duckdb.DuckDBPyConnection", file: Path) -> set[str]:
    return {row[0] for row in connection.execute(f"DESCRIBE SELECT * FROM {_parquet(file)}").fetchall()}


def _parquet(file: Path) -> str:
    return f"read_parquet({literal(str(file))})"


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds")
