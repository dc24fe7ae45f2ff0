"""Leases: one holder at a time, whose death can be told, and a bounded wait that names the holder.

Knows rows of `ops.sqlite`; deliberately knows nothing of what is guarded, or of how a dead process is told from a
living one (that is `processes`). The lease of a dead holder is free; one that cannot be seen from here keeps it as long
as its heartbeat moves.
"""

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

from semlabel import processes
from semlabel.errors import LeaseHeld
from semlabel.operations_schema import OperationsFile, now_utc
from semlabel.processes import ProcessIdentity, beating

POLL_SECONDS = 0.1

OnWait = Callable[[str], None]


class Lease:
    """A held lease. `assert_held` is for holders that have been asleep long enough to lose it."""

    def __init__(self, file: OperationsFile, name: str, run_id: str, token: str) -> None:
        """Made by `hold`."""
        self.name, self.run_id = name, run_id
        self._file, self._token = file, token

    def assert_held(self) -> None:
        """Raise LeaseHeld when another run has taken the lease over."""
        row = self._file.first("SELECT * FROM leases WHERE name = ?", (self.name,))
        if row is None or row["token"] != self._token:
            raise LeaseHeld(f"the lease {self.name!r} of run {self.run_id} was taken over: {_holder(row)}")

    def _beat(self) -> None:
        with self._file.transaction() as connection:
            connection.execute(
                "UPDATE leases SET heartbeat = ? WHERE name = ? AND token = ?", (now_utc(), self.name, self._token)
            )

    def _release(self) -> None:
        with self._file.transaction() as connection:
            connection.execute("DELETE FROM leases WHERE name = ? AND token = ?", (self.name, self._token))


@contextmanager
def hold(
    file: OperationsFile, name: str, run_id: str, wait_seconds: float, on_wait: OnWait | None = None
) -> Iterator[Lease]:
    """Hold the lease `name` for `run_id` while the block runs.

    Waits at most `wait_seconds` and then raises LeaseHeld naming the holder; `on_wait` is told once whom we wait for.
    The same run in the same process may nest it; another run of the same process waits like anybody else.
    """
    key = (os.getpid(), str(file.path.resolve()), name, run_id)
    with _held_lock:
        nested = _held.get(key)
        if nested is not None:
            nested.depth += 1
    if nested is None:
        nested = _Held(_acquire(file, name, run_id, wait_seconds, on_wait))
        with _held_lock:
            _held[key] = nested
    try:
        yield nested.lease
    finally:
        with _held_lock:
            nested.depth -= 1
            last = nested.depth == 0
            if last:
                del _held[key]
        if last:
            nested.stop()


class _Held:
    """A lease together with its heartbeat and how often this process nested it."""

    def __init__(self, lease: Lease) -> None:
        self.lease, self.depth = lease, 1
        self._heart = beating(lease._beat, f"lease-{lease.name}")

    def stop(self) -> None:
        self._heart.stop()
        self.lease._release()


_held: dict[tuple[int, str, str, str], _Held] = {}
_held_lock = threading.Lock()


def _acquire(file: OperationsFile, name: str, run_id: str, wait_seconds: float, on_wait: OnWait | None) -> Lease:
    started = watched_since = time.monotonic()
    deadline = until = started + wait_seconds
    token, watched_heartbeat, told = uuid4().hex, "", False
    while True:
        holder = _try_to_take(file, name, run_id, token, watched_heartbeat, time.monotonic() - watched_since)
        if holder is None:
            return Lease(file, name, run_id, token)
        if holder["heartbeat"] != watched_heartbeat:
            watched_since, watched_heartbeat = time.monotonic(), holder["heartbeat"]
            # Whoever has no patience for a living holder has it for the proof that this one is dead.
            silent = ProcessIdentity.of_row(holder).silent(watched_heartbeat)
            until = max(deadline, watched_since + processes.watch_seconds() + POLL_SECONDS if silent else 0.0)
        if time.monotonic() >= until:
            raise LeaseHeld(
                f"{_holder(holder)} holds the lease {name!r} since {holder['acquired_at']} and did not let go within "
                f"{wait_seconds:g} s: wait for it to finish or stop it{_prospect(holder)}"
            )
        if on_wait is not None and not told:
            seconds = round(until - started, 1)
            on_wait(f"waiting at most {seconds:g} s for {_holder(holder)}, which holds the lease {name!r}")
            told = True
        time.sleep(min(POLL_SECONDS, max(0.0, until - time.monotonic())))


def _try_to_take(
    file: OperationsFile, name: str, run_id: str, token: str, watched_heartbeat: str, watched_seconds: float
) -> dict[str, Any] | None:
    """None when the lease is ours now, else the row of its holder."""
    with file.transaction() as connection:
        found = connection.execute("SELECT * FROM leases WHERE name = ?", (name,)).fetchone()
        holder = dict(found) if found else None
        silent_here = watched_seconds if holder and holder["heartbeat"] == watched_heartbeat else 0.0
        if holder is not None and not ProcessIdentity.of_row(holder).gone(holder["heartbeat"], silent_here):
            return holder
        me, now = ProcessIdentity.current(), now_utc()
        connection.execute(
            "INSERT OR REPLACE INTO leases (name, token, run_id, host, pid, boot_id, process_start, pid_namespace,"
            " acquired_at, heartbeat) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (name, token, run_id, me.host, me.pid, me.boot_id, me.process_start, me.pid_namespace, now, now),
        )
        return None


def _prospect(holder: Mapping[str, Any]) -> str:
    """What becomes of a lease whose holder may be dead and cannot be looked for."""
    if ProcessIdentity.of_row(holder).alive() is not None:
        return ""
    minutes, silent = processes.SILENCE_SECONDS / 60, processes.silence(holder["heartbeat"])
    return f"; it cannot be seen from here: after {minutes:g} minutes of silence it counts as dead ({silent:.0f} s now)"


def _holder(row: Mapping[str, Any] | None) -> str:
    return "nobody" if row is None else f"run {row['run_id']} ({ProcessIdentity.of_row(row)})"
