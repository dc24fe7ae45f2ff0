"""Alerts waiting to be sent: one row when a gate turns red, one when it is green again, nothing in between.

Knows the rows `outbox` and `deliveries` of `ops.sqlite`; deliberately knows nothing of who is told, or how. The row
is written in the transaction that records the verdict, so a verdict and its alert cannot part, and a sender that is
down loses nothing: rows stay until a delivery to each target has succeeded.
"""

import sqlite3
from datetime import datetime, timedelta
from typing import Any

from semlabel.operations_schema import OperationsFile, now_utc

REPEAT_AFTER = timedelta(hours=24)


def note_verdict(
    connection: sqlite3.Connection, *, asset: str, gate: str, severity: str, verdict: str, message: str, run_id: str
) -> None:
    """Write what this verdict gives people to know, inside the caller's transaction.

    Alerts are keyed by asset, gate and severity and are edge-triggered: a gate that stays red is repeated only after
    a day. A pass, or a verdict of another severity, closes what is open with a row of kind `recovered`.
    """
    now, quiet = now_utc(), False
    for row in connection.execute(
        "SELECT severity, kind, created_at FROM outbox WHERE id IN "
        "(SELECT max(id) FROM outbox WHERE asset = ? AND gate = ? GROUP BY severity)",
        (asset, gate),
    ).fetchall():
        still_red = verdict != "pass" and row["severity"] == severity
        if row["kind"] == "failed" and not still_red:
            _write(connection, asset, gate, row["severity"], "recovered", verdict, message, run_id, now)
        elif row["kind"] == "failed" and _age(row["created_at"], now) < REPEAT_AFTER:
            quiet = True
    if verdict != "pass" and not quiet:
        _write(connection, asset, gate, severity, "failed", verdict, message, run_id, now)


def undelivered(file: OperationsFile, target: str) -> list[dict[str, Any]]:
    """The rows that have not reached `target`, oldest first."""
    return file.rows(
        "SELECT * FROM outbox WHERE id NOT IN "
        "(SELECT outbox_id FROM deliveries WHERE target = ? AND delivered = 1) ORDER BY id",
        (target,),
    )


def record_delivery(file: OperationsFile, outbox_id: int, target: str, error: str | None = None) -> None:
    """Keep the outcome of one attempt to tell `target`; `error` is None when it succeeded."""
    with file.transaction() as connection:
        connection.execute(
            "INSERT INTO deliveries (outbox_id, target, delivered, error, attempted_at) VALUES (?, ?, ?, ?, ?)",
            (outbox_id, target, int(error is None), error, now_utc()),
        )


def _write(
    connection: sqlite3.Connection,
    asset: str,
    gate: str,
    severity: str,
    kind: str,
    verdict: str,
    message: str,
    run_id: str,
    now: str,
) -> None:
    connection.execute(
        "INSERT INTO outbox (asset, gate, severity, kind, verdict, message, run_id, created_at) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (asset, gate, severity, kind, verdict, message, run_id, now),
    )


def _age(then: str, now: str) -> timedelta:
    return datetime.fromisoformat(now) - datetime.fromisoformat(then)
