"""Which of the runs that have not ended are at work, and which died: their processes, and their signs of life.

Knows rows of `runs` in `ops.sqlite`; deliberately knows nothing of what becomes of a run that died.
"""

import sqlite3
import time
from collections.abc import Mapping
from typing import Any

from semlabel.operations_schema import OperationsFile, now_utc
from semlabel.processes import ProcessIdentity, watch_seconds

STARTED = "STARTED"
# Runs of earlier versions gave no sign of life but their progress.
_STARTED_RUNS = """
    SELECT runs.*, max(coalesce(heartbeat, started_at), coalesce(
        (SELECT max(updated_at) FROM progress WHERE progress.run_id = runs.run_id), '')) AS seen_at
    FROM runs WHERE status = ? ORDER BY started_at
"""


def beat(connection: sqlite3.Connection, run_id: str) -> None:
    """A sign of life of a run that is at work."""
    row = (now_utc(), run_id, STARTED)
    connection.execute("UPDATE runs SET heartbeat = ? WHERE run_id = ? AND status = ?", row)


def seems_dead(row: Mapping[str, Any], seen_at: str) -> bool:
    """Whether the process of a row, which last gave a sign of life at `seen_at`, is dead: proven, or to be watched."""
    return ProcessIdentity.of_row(row).gone(seen_at, watch_seconds())


def dead_runs(file: OperationsFile, watched: bool) -> list[dict[str, Any]]:
    """The runs whose process is dead, with `seen_at`, oldest first; one that is only silent after it was `watched`."""
    found = [row for row in file.rows(_STARTED_RUNS, (STARTED,)) if seems_dead(row, row["seen_at"])]
    silent = {row["run_id"]: row["seen_at"] for row in found if ProcessIdentity.of_row(row).alive() is None}
    if not silent or not watched:
        return found
    time.sleep(watch_seconds())
    seen = {row["run_id"]: row["seen_at"] for row in file.rows(_STARTED_RUNS, (STARTED,))}
    awake = {run_id for run_id, before in silent.items() if seen.get(run_id) != before}
    return [row for row in found if row["run_id"] not in awake]
