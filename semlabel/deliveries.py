"""Who gets which alert, who is sending it at this moment, and what came of every attempt.

Knows the tables `recipients`, `channels` and `deliveries` of `ops.sqlite`; deliberately knows nothing of how a channel
is reached: a target is the name of one and holds no secret. What was delivered is what `deliveries` says, whoever asks
and whatever else was forgotten.

A sender claims a row in a transaction before it sends, and a channel has one sender at a time, so that two of them
never tell the same thing. Delivery is at least once: a sender that dies after the channel took the message and before
the attempt was recorded leaves its claim behind, and the next one sends the same row again and says so (`interrupted`).
The row's number stands in every message, so a receiver can tell the two apart from news.
"""

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

from semlabel.operations_schema import OperationsFile, now_utc
from semlabel.processes import ProcessIdentity

FIRST_WAIT = timedelta(seconds=30)
LONGEST_WAIT = timedelta(hours=1)
GIVE_UP_AFTER = timedelta(days=7)
LISTED_FOR = timedelta(days=30)
# Longer than any send takes: one that cannot be seen from here may be dead or slow.
CLAIM_ENDS_AFTER = timedelta(minutes=10)
# After so many failures of one alert the others of its channel go first: it may be the alert that is not accepted.
GIVES_WAY_AFTER = 5

_DELIVERED = "SELECT 1 FROM deliveries d WHERE d.outbox_id = o.id AND d.target = r.target AND d.delivered = 1"

# A repeat tells nothing that is not known: of an incident that somebody acknowledged, that something later was said
# of, or whose earlier alert reached this channel only after the repeat was written (the channel was down).
_SUPERSEDED = """
    o.kind = 'failed' AND o.id > o.incident AND (
        EXISTS (SELECT 1 FROM acknowledgements a WHERE a.incident = o.incident)
        OR EXISTS (SELECT 1 FROM outbox later WHERE later.incident = o.incident AND later.id > o.id)
        OR EXISTS (
            SELECT 1 FROM outbox earlier JOIN deliveries d ON d.outbox_id = earlier.id
            WHERE earlier.incident = o.incident AND earlier.id < o.id AND d.target = r.target AND d.delivered = 1
            AND d.attempted_at >= o.created_at))
"""

_FAILURES = """
    (SELECT count(*) FROM deliveries d JOIN outbox same ON same.id = d.outbox_id
     WHERE same.incident = o.incident AND d.target = r.target AND d.delivered = 0)
"""

_NEXT = f"""
    SELECT o.* FROM outbox o JOIN recipients r ON r.outbox_id = o.id
    WHERE r.target = ? AND o.created_at >= ? AND NOT EXISTS ({_DELIVERED}) AND NOT ({_SUPERSEDED})
    ORDER BY min({_FAILURES} / {GIVES_WAY_AFTER}, 1), o.id LIMIT 1
"""


@dataclass(frozen=True)
class Claim:
    """One row of the outbox that this process alone may send to `target` now."""

    target: str
    row: dict[str, Any]
    token: str
    interrupted: bool

    @property
    def outbox_id(self) -> int:
        """The number of the alert."""
        return int(self.row["id"])


def route(
    file: OperationsFile, recipients_of: Callable[[Mapping[str, Any]], Sequence[str]], configured: Sequence[str]
) -> None:
    """Fix who gets the alerts that nobody was named for yet.

    Recipients are fixed once, so that a channel that is added later does not get the history; what only channels were
    to get that are not `configured` any more is routed anew.
    """
    places = ", ".join("?" * len(configured))
    with file.transaction() as connection:
        connection.execute(f"DELETE FROM channels WHERE target NOT IN ({places})", list(configured))
        connection.execute(
            f"DELETE FROM recipients AS r WHERE target NOT IN ({places}) AND NOT EXISTS"
            " (SELECT 1 FROM deliveries d WHERE d.outbox_id = r.outbox_id AND d.target = r.target AND d.delivered = 1)",
            list(configured),
        )
        rows = connection.execute(
            "SELECT * FROM outbox WHERE created_at >= ? AND id NOT IN (SELECT outbox_id FROM recipients)",
            (_before(GIVE_UP_AFTER),),
        ).fetchall()
        connection.executemany(
            "INSERT OR IGNORE INTO recipients (outbox_id, target) VALUES (?, ?)",
            [(row["id"], target) for row in rows for target in recipients_of(dict(row))],
        )


def claim(file: OperationsFile, target: str) -> Claim | None:
    """The next row to send to `target`, claimed; None when there is none, or the channel is busy or rests.

    A channel rests after a failure: half a minute, twice as long after each further one, at most an hour.
    """
    with file.transaction() as connection:
        connection.execute("INSERT OR IGNORE INTO channels (target) VALUES (?)", (target,))
        channel = connection.execute("SELECT * FROM channels WHERE target = ?", (target,)).fetchone()
        if _in_use(channel) or _rests(channel):
            return None
        row = connection.execute(_NEXT, (target, _before(GIVE_UP_AFTER))).fetchone()
        if row is None:
            _release(connection, target)
            return None
        token, me = uuid4().hex, ProcessIdentity.current()
        connection.execute(
            "UPDATE channels SET outbox_id = ?, token = ?, host = ?, pid = ?, boot_id = ?, process_start = ?,"
            " pid_namespace = ?, claimed_at = ? WHERE target = ?",
            (row["id"], token, me.host, me.pid, me.boot_id, me.process_start, me.pid_namespace, now_utc(), target),
        )
        return Claim(target, dict(row), token, interrupted=channel["outbox_id"] == row["id"])


def record(file: OperationsFile, outbox_id: int, target: str, error: str | None, token: str | None = None) -> None:
    """Keep what came of an attempt and let go of its claim; `error` is None when the channel took the message."""
    with file.transaction() as connection:
        connection.execute(
            "INSERT INTO deliveries (outbox_id, target, delivered, error, attempted_at) VALUES (?, ?, ?, ?, ?)",
            (outbox_id, target, int(error is None), error, now_utc()),
        )
        _note(connection, target, error)
        if token is not None:
            _release(connection, target, token)


def note_channel(file: OperationsFile, target: str, error: str | None) -> None:
    """Keep what came of a message that is no alert: a test, a ping. A channel that works rests no longer."""
    with file.transaction() as connection:
        _note(connection, target, error)


def busy(file: OperationsFile, target: str) -> bool:
    """Whether another sender is at work on this channel."""
    row = file.first("SELECT * FROM channels WHERE target = ?", (target,))
    return row is not None and _in_use(row)


def resting(file: OperationsFile, target: str) -> bool:
    """Whether a channel is left alone for a while because it failed."""
    row = file.first("SELECT * FROM channels WHERE target = ?", (target,))
    return row is not None and _rests(row)


def undelivered(file: OperationsFile, target: str) -> list[dict[str, Any]]:
    """The rows that have not reached `target`, whoever they are meant for, oldest first."""
    return file.rows(
        "SELECT * FROM outbox WHERE id NOT IN "
        "(SELECT outbox_id FROM deliveries WHERE target = ? AND delivered = 1) ORDER BY id",
        (target,),
    )


def waiting(file: OperationsFile) -> list[dict[str, Any]]:
    """What has not arrived where it should: rows of the outbox with `target`, `attempts`, `error` and `given_up`.

    `target` is None for a row that no channel was named for yet; `given_up` rows are over a week old and are not
    tried any more. After a month they are no longer listed.
    """
    attempts = "SELECT count(*) FROM deliveries d WHERE d.outbox_id = o.id AND d.target = r.target"
    error = "SELECT error FROM deliveries d WHERE d.outbox_id = o.id AND d.target = r.target ORDER BY d.id DESC LIMIT 1"
    rows = file.rows(
        f"SELECT o.*, r.target, ({attempts}) AS attempts, ({error}) AS error, o.created_at < ? AS given_up"
        " FROM outbox o LEFT JOIN recipients r ON r.outbox_id = o.id"
        " WHERE o.created_at >= ? AND ((r.target IS NULL AND NOT given_up) OR (r.target IS NOT NULL"
        f" AND NOT EXISTS ({_DELIVERED}) AND NOT ({_SUPERSEDED}))) ORDER BY o.id, r.target",
        (_before(GIVE_UP_AFTER), _before(LISTED_FOR)),
    )
    return [row | {"given_up": bool(row["given_up"])} for row in rows]


def channels(file: OperationsFile) -> list[dict[str, Any]]:
    """Every channel with `target, failures` (since it last worked), `error, attempted_at, succeeded_at`."""
    return file.rows("SELECT target, failures, error, attempted_at, succeeded_at FROM channels ORDER BY target")


def _in_use(channel: Mapping[str, Any] | sqlite3.Row) -> bool:
    if channel["outbox_id"] is None:
        return False
    fresh = channel["claimed_at"] > _before(CLAIM_ENDS_AFTER)
    return fresh and ProcessIdentity.of_row(dict(channel)).alive() is not False


def _rests(channel: Mapping[str, Any] | sqlite3.Row) -> bool:
    if not channel["failures"]:
        return False
    # 2 ** 7 half minutes are over an hour: higher powers only risk an overflow.
    wait = min(FIRST_WAIT * 2 ** min(channel["failures"] - 1, 7), LONGEST_WAIT)
    return bool(channel["attempted_at"] > _before(wait))


def _note(connection: sqlite3.Connection, target: str, error: str | None) -> None:
    now = now_utc()
    connection.execute("INSERT OR IGNORE INTO channels (target) VALUES (?)", (target,))
    if error is None:
        connection.execute(
            "UPDATE channels SET failures = 0, error = NULL, attempted_at = ?, succeeded_at = ? WHERE target = ?",
            (now, now, target),
        )
    else:
        connection.execute(
            "UPDATE channels SET failures = failures + 1, error = ?, attempted_at = ? WHERE target = ?",
            (error, now, target),
        )


def _release(connection: sqlite3.Connection, target: str, token: str | None = None) -> None:
    connection.execute(
        "UPDATE channels SET outbox_id = NULL, token = NULL WHERE target = ? AND (? IS NULL OR token = ?)",
        (target, token, token),
    )


def _before(age: timedelta) -> str:
    """The time `age` ago, written as `now_utc` writes it."""
    return (datetime.fromisoformat(now_utc()) - age).isoformat(timespec="microseconds")
