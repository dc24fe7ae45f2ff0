"""Opening a DuckDB file: a bounded wait for its lock, explicit limits, and errors a person can act on.

Knows DuckDB's connections and exceptions; deliberately knows nothing of tables.
"""

import re
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from semlabel.errors import WarehouseError

if TYPE_CHECKING:
    import duckdb

_POLL_SECONDS = 0.1
# Spilling may take most of the free disk, but never all of it: a full disk would stop other programs too.
_SPILL_SHARE = 0.8
_DAMAGED = "Corrupt database|checksum|eserializ"
_OF_THE_FILE = f"No space left|Could not write|WAL|{_DAMAGED}"


def connect(path: Path, read_only: bool, wait_seconds: float) -> "duckdb.DuckDBPyConnection":
    """Connect to `path`, waiting at most `wait_seconds` for a process that has it open.

    Raises WarehouseError naming that process.
    """
    import duckdb

    deadline = time.monotonic() + wait_seconds
    while True:
        try:
            return duckdb.connect(str(path), read_only=read_only)
        except duckdb.IOException as error:
            if "lock" not in str(error) or time.monotonic() >= deadline:
                raise
        time.sleep(_POLL_SECONDS)


def limit(connection: "duckdb.DuckDBPyConnection", memory_limit: str, threads: int, temp_directory: Path) -> None:
    """Set what DuckDB may use, and forbid it to fetch extensions or to look into Python variables."""
    disk = temp_directory.parent if temp_directory.parent.exists() else Path.cwd()
    spill = int(shutil.disk_usage(disk).free * _SPILL_SHARE / 2**20)
    settings = {
        "memory_limit": memory_limit,
        "temp_directory": str(temp_directory),
        "max_temp_directory_size": f"{spill}MiB",
        "autoinstall_known_extensions": False,
        "python_enable_replacements": False,
    } | ({"threads": threads} if threads else {})
    for name, value in settings.items():
        connection.execute(f"SET {name} = {literal(value)}")


def first(
    connection: "duckdb.DuckDBPyConnection", query: str, parameters: Sequence[Any] = ()
) -> tuple[Any, ...] | None:
    """The first row of a query, or None. Not `fetchone`: that leaves the connection busy with the unread rest."""
    rows = connection.execute(query, list(parameters)).fetchall()
    return rows[0] if rows else None


def undo(connection: "duckdb.DuckDBPyConnection") -> None:
    """Roll back, also when DuckDB has already done so or has given the file up after a fatal error."""
    import duckdb

    try:
        connection.rollback()
    except duckdb.Error:
        # The error that led here is about to be raised, and says more than that nothing was left to undo.
        return


@contextmanager
def translated(path: Path, memory_limit: str) -> Iterator[None]:
    """Turn what the surroundings do to DuckDB into WarehouseError; programming errors keep their tracebacks."""
    import duckdb

    try:
        yield
    except duckdb.OutOfMemoryException as error:
        raise WarehouseError(
            f"{path}: DuckDB ran out of memory or spilling space ({_first_line(error)}): raise [scoring] memory_limit "
            f"({memory_limit} now) or free some disk space"
        ) from error
    except duckdb.Error as error:
        # A full disk or a damaged log comes as whatever the failing step was: a commit, a checkpoint, a replay.
        if not isinstance(error, _surroundings()) and not re.search(_OF_THE_FILE, str(error)):
            raise
        raise WarehouseError(f"{path}: {_advice(path, str(error))}") from error


def _surroundings() -> tuple[type[Exception], ...]:
    import duckdb

    return (duckdb.IOException, duckdb.ConnectionException, duckdb.FatalException, duckdb.SerializationException)


def _advice(path: Path, message: str) -> str:
    holder = re.search(r"Conflicting lock is held in (.*?) \(PID (\d+)\)", message)
    if holder:
        return f"process {holder[2]} ({holder[1]}) has it open: close it there or wait for it to end"
    first = _first_line(message)
    if "different configuration" in message:
        return f"this process has it open in another mode ({first}): close it there first"
    if "No space left" in message:
        return f"the disk is full ({first}): free some space and run again"
    if "WAL" in message:
        return (
            f"its write-ahead log is damaged ({first}): move {path.name}.wal away to go back to the last checkpoint; "
            "what is missing then is scored again"
        )
    if re.search(_DAMAGED, message):
        return (
            f"it is damaged ({first}): move it away and run again; it is made anew from the sources, its splits too, "
            "so train a labeler then"
        )
    if "Permission denied" in message or "read-only" in message.lower():
        return f"it cannot be written ({first}): make the file and its folder writable"
    if "not a valid DuckDB database" in message or "version number" in message.lower():
        return f"it is no warehouse this DuckDB can read ({first}): move it away or upgrade DuckDB"
    return f"{first}: check the disk and the file, then run again"


def _first_line(error: object) -> str:
    return str(error).strip().splitlines()[0][:300]


def literal(value: object) -> str:
    """A value as SQL text, for the statements that take no parameters."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int) else "'" + str(value).replace("'", "''") + "'"
