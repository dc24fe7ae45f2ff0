"""Alerts waiting to be sent: one row when a gate turns red, one when it is green again, nothing in between.

Knows the table `outbox` of `ops.sqlite` and what was acknowledged; deliberately knows nothing of who is told, or how
(that is `deliveries`). The row is written in the transaction that records the verdict, so a verdict and its alert
cannot part. What belongs together is an incident: it is named by the row that opened it and ends with `recovered`.
"""

import sqlite3
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from semlabel import errors
from semlabel.errors import SemlabelError
from semlabel.operations_schema import OperationsFile, now_utc

REPEAT_AFTER = timedelta(hours=24)


@dataclass(frozen=True)
class Verdict:
    """What a gate said, as far as an alert tells it."""

    asset: str
    gate: str
    severity: str
    verdict: str
    message: str
    run_id: str
    value: float | None = None
    limit: float | None = None

    @property
    def red(self) -> bool:
        """Whether there is something to tell: anything but a pass."""
        return self.verdict != "pass"


def note_verdict(connection: sqlite3.Connection, said: Verdict, repeat_after: timedelta = REPEAT_AFTER) -> None:
    """Write what this verdict gives people to know, inside the caller's transaction.

    Alerts are keyed by asset, gate and severity and are edge-triggered: a gate that stays red is repeated only after
    `repeat_after`, and not at all once somebody acknowledged the incident. A pass, or a verdict of another severity,
    closes what is open with a row of kind `recovered`.
    """
    now, still = now_utc(), None
    for row in _newest(connection, said.asset, said.gate):
        if row["kind"] != "failed":
            continue
        if said.red and row["severity"] == said.severity:
            still = row
        else:
            _write(connection, said, row["severity"], "recovered", now, row["incident"])
    if not said.red:
        return
    if still is None:
        _write(connection, said, said.severity, "failed", now, None)
    elif _age(still["created_at"], now) >= repeat_after and not _acknowledged(connection, still["incident"]):
        _write(connection, said, said.severity, "failed", now, still["incident"])


def reconcile(file: OperationsFile) -> None:
    """Bring the incidents in line with the newest verdicts, where rows were lost or were written by an older version.

    Repeats nothing: a gate that stays red is repeated by its own evaluations.
    """
    newest = "SELECT max(id) FROM gate_results GROUP BY asset, gate"
    with file.transaction() as connection:
        for row in connection.execute(f"SELECT * FROM gate_results WHERE id IN ({newest})").fetchall():
            said = Verdict(
                asset=row["asset"],
                gate=row["gate"],
                severity=row["severity"],
                verdict=row["verdict"],
                message=message_of(row["gate"], row["sentence"], bool(row["computed"])),
                run_id=row["run_id"],
                value=row["value"],
                limit=row["limit_value"],
            )
            note_verdict(connection, said, timedelta.max)


def message_of(gate: str, sentence: str, computed: bool) -> str:
    """The sentence that an alert carries. An error that is not one of ours is named only: it may quote somebody's text.

    The whole sentence stays where texts may be: in `gate_results` and in the run's log.
    """
    reason = sentence.partition("(")[2]
    name, separator, _ = reason.partition(": ")
    if computed or not separator or not name.isidentifier() or hasattr(errors, name):
        return sentence
    return f"{gate} could not be computed ({name}): look into the log of the run, mend the cause and run it again."


def open_incidents(file: OperationsFile) -> list[dict[str, Any]]:
    """The incidents that are not over, oldest first: the newest red row of each.

    Besides the columns of `outbox`: `since` (when it opened), `told` (how many alerts of it reached a channel),
    `acknowledged_by`, `acknowledged_at` and `reason` (None until somebody acknowledged it).
    """
    return file.rows(
        "SELECT newest.*, opening.created_at AS since, a.who AS acknowledged_by, a.acknowledged_at, a.reason,"
        " (SELECT count(DISTINCT d.outbox_id) FROM deliveries d JOIN outbox told ON told.id = d.outbox_id"
        "  WHERE told.incident = newest.incident AND d.delivered = 1) AS told"
        " FROM outbox newest JOIN outbox opening ON opening.id = newest.incident"
        " LEFT JOIN acknowledgements a ON a.incident = newest.incident"
        " WHERE newest.kind = 'failed' AND newest.id IN (SELECT max(id) FROM outbox GROUP BY asset, gate, severity)"
        " ORDER BY newest.incident"
    )


def acknowledge(file: OperationsFile, name: str, who: str, reason: str = "") -> list[dict[str, Any]]:
    """Silence the repeats of the open incidents that `name` means, until they recover; returns those incidents.

    `name` is the number of an incident or the name of a gate. Raises SemlabelError when nothing of it is open.
    """
    meant = [row for row in open_incidents(file) if name in (str(row["incident"]), row["gate"])]
    if not meant:
        raise SemlabelError(f"no open incident is called {name}; `semlabel alerts` lists them")
    with file.transaction() as connection:
        for row in meant:
            connection.execute(
                "INSERT INTO acknowledgements VALUES (?, ?, ?, ?) ON CONFLICT (incident) DO NOTHING",
                (row["incident"], who, reason, now_utc()),
            )
    return [row for row in open_incidents(file) if row["incident"] in {found["incident"] for found in meant}]


def _newest(connection: sqlite3.Connection, asset: str, gate: str) -> list[sqlite3.Row]:
    """The newest row of each severity that this gate was ever told with."""
    return connection.execute(
        "SELECT * FROM outbox WHERE id IN (SELECT max(id) FROM outbox WHERE asset = ? AND gate = ? GROUP BY severity)",
        (asset, gate),
    ).fetchall()


def _acknowledged(connection: sqlite3.Connection, incident: int) -> bool:
    found = connection.execute("SELECT 1 FROM acknowledgements WHERE incident = ?", (incident,))
    return found.fetchone() is not None


def _write(
    connection: sqlite3.Connection, said: Verdict, severity: str, kind: str, now: str, incident: int | None
) -> None:
    """A row of the outbox; without an incident it opens one."""
    row = connection.execute(
        "INSERT INTO outbox (asset, gate, severity, kind, verdict, message, run_id, created_at, incident, value,"
        " limit_value) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            *(said.asset, said.gate, severity, kind, said.verdict, said.message, said.run_id, now, incident),
            *(said.value, said.limit),
        ),
    )
    if incident is None:
        connection.execute("UPDATE outbox SET incident = id WHERE id = ?", (row.lastrowid,))


def _age(then: str, now: str) -> timedelta:
    return datetime.fromisoformat(now) - datetime.fromisoformat(then)
