"""Leases: one holder at a time, whose death can be proven, and a bounded wait that names the holder.

Knows processes and rows of `ops.sqlite`; deliberately knows nothing of what is guarded. A holder is proven dead when
its host has booted since, or its process is gone, is a zombie, or has another start time (the pid was reused). On
another host nothing can be proven: there only a heartbeat that has been silent for ten minutes, and stays silent
while we watch, frees the lease.
"""

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

from semlabel.errors import LeaseHeld, WarehouseError
from semlabel.operations_schema import OperationsFile, now_utc

HEARTBEAT_SECONDS = 5.0
POLL_SECONDS = 0.1
FOREIGN_SILENCE_SECONDS = 600.0

_UNKNOWN = ""

OnWait = Callable[[str], None]


@dataclass(frozen=True)
class ProcessIdentity:
    """A process that cannot be mistaken for another one that later gets the same pid."""

    host: str
    pid: int
    boot_id: str
    process_start: str

    @classmethod
    def current(cls) -> "ProcessIdentity":
        """The identity of the calling process."""
        return cls.of_pid(os.getpid())

    @classmethod
    def of_pid(cls, pid: int) -> "ProcessIdentity":
        """The identity of a process of this host."""
        return cls(socket.gethostname(), pid, _boot_id(), _process_start(pid) or _UNKNOWN)

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> "ProcessIdentity":
        """The identity kept in a row of `leases` or `runs`."""
        return cls(row["host"], row["pid"], row["boot_id"], row["process_start"])

    def proven_dead(self) -> bool:
        """True only with proof; False for a live process and for anything on another host."""
        if self.host != socket.gethostname():
            return False
        if self.boot_id != _boot_id():
            return True
        start = _process_start(self.pid)
        return start is None or (start != _UNKNOWN and self.process_start != _UNKNOWN and start != self.process_start)

    def __str__(self) -> str:
        return f"pid {self.pid} on {self.host}"


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
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._beat_until_stopped, name=f"lease-{lease.name}", daemon=True)
        self._thread.start()

    def _beat_until_stopped(self) -> None:
        while not self._stopped.wait(HEARTBEAT_SECONDS):
            # A missed beat harms nobody by itself, and the holder's own writes meet the same full disk and say so.
            with suppress(WarehouseError):
                self.lease._beat()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()
        self.lease._release()


_held: dict[tuple[int, str, str, str], _Held] = {}
_held_lock = threading.Lock()


def _acquire(file: OperationsFile, name: str, run_id: str, wait_seconds: float, on_wait: OnWait | None) -> Lease:
    token, deadline = uuid4().hex, time.monotonic() + wait_seconds
    watched_since, watched_heartbeat, told = time.monotonic(), "", False
    while True:
        holder = _try_to_take(file, name, run_id, token, watched_heartbeat, time.monotonic() - watched_since)
        if holder is None:
            return Lease(file, name, run_id, token)
        if holder["heartbeat"] != watched_heartbeat:
            watched_since, watched_heartbeat = time.monotonic(), holder["heartbeat"]
        if time.monotonic() >= deadline:
            raise LeaseHeld(
                f"{_holder(holder)} holds the lease {name!r} since {holder['acquired_at']} and did not let go within "
                f"{wait_seconds:g} s: wait for it to finish or stop it"
            )
        if on_wait is not None and not told:
            on_wait(f"waiting at most {wait_seconds:g} s for {_holder(holder)}, which holds the lease {name!r}")
            told = True
        time.sleep(min(POLL_SECONDS, max(0.0, deadline - time.monotonic())))


def _try_to_take(
    file: OperationsFile, name: str, run_id: str, token: str, watched_heartbeat: str, watched_seconds: float
) -> dict[str, Any] | None:
    """None when the lease is ours now, else the row of its holder."""
    with file.transaction() as connection:
        found = connection.execute("SELECT * FROM leases WHERE name = ?", (name,)).fetchone()
        holder = dict(found) if found else None
        silent_here = watched_seconds if holder and holder["heartbeat"] == watched_heartbeat else 0.0
        if holder is not None and not _may_be_taken(holder, silent_here):
            return holder
        me, now = ProcessIdentity.current(), now_utc()
        connection.execute(
            "INSERT OR REPLACE INTO leases VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (name, token, run_id, me.host, me.pid, me.boot_id, me.process_start, now, now),
        )
        return None


def _may_be_taken(holder: Mapping[str, Any], silent_here: float) -> bool:
    identity = ProcessIdentity.of_row(holder)
    if identity.host == socket.gethostname():
        return identity.proven_dead()
    silence = (datetime.now(UTC) - datetime.fromisoformat(holder["heartbeat"])).total_seconds()
    # The clocks of two hosts may differ, so the silence must also be seen with our own monotonic clock.
    return silence > FOREIGN_SILENCE_SECONDS and silent_here > 2 * HEARTBEAT_SECONDS


def _holder(row: Mapping[str, Any] | None) -> str:
    return "nobody" if row is None else f"run {row['run_id']} ({ProcessIdentity.of_row(row)})"


def _boot_id() -> str:
    """What changes with every boot; empty where the system does not say (then only pid and start time count)."""
    path = Path("/proc/sys/kernel/random/boot_id")
    return path.read_text().strip() if path.exists() else ""


def _process_start(pid: int) -> str | None:
    """A text that two processes with the same pid never share; None when the process is gone or a zombie."""
    if Path("/proc/self/stat").exists():
        try:
            stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            return _UNKNOWN if _exists(pid) else None
        # The command name may hold blanks and brackets: count the fields after its last bracket. The start time in
        # clock ticks since boot does not move when somebody sets the clock.
        fields = stat.rpartition(")")[2].split()
        return None if fields[0] in ("Z", "X") else fields[19]
    import psutil

    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else f"{process.create_time():.0f}"
    except psutil.NoSuchProcess:
        return None


def _exists(pid: int) -> bool:
    # /proc may hide the processes of other users (hidepid); a signal of 0 still tells whether there is one.
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
