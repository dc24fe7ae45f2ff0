"""Who a process is, and whether it still lives: what can be seen from here, and what only its silence tells.

A pid says something inside one PID namespace of one boot, so these are part of who a process is, and there it is looked
for: it is dead when it is gone, is a zombie, or has another start time (the pid was reused). A host's name proves
nothing: every container has a new one, or all of a pod have the same; only outside of containers it tells that the
machine has booted since. What the processes of another container or host do cannot be seen at all: who is asked for
from there writes a heartbeat, and counts as dead when that has been silent for ten minutes and stays silent while we
watch. Deliberately knows nothing of what a process holds.
"""

import os
import socket
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from semlabel.errors import WarehouseError
from semlabel.repeated import Repeated

HEARTBEAT_SECONDS = 5.0
SILENCE_SECONDS = 600.0

_UNKNOWN = ""
# The kernel's number of the namespace that every machine begins with (PROC_PID_INIT_INO).
_OF_THE_MACHINE = "4026531836"
_NO_NAMESPACES = "none"


@dataclass(frozen=True)
class ProcessIdentity:
    """A process that cannot be mistaken for another one that later, or elsewhere, has the same pid.

    `pid_namespace` is empty where it is not known: earlier versions did not note it.
    """

    host: str
    pid: int
    boot_id: str
    process_start: str
    pid_namespace: str

    @classmethod
    def current(cls) -> "ProcessIdentity":
        """The identity of the calling process."""
        return cls.of_pid(os.getpid())

    @classmethod
    def of_pid(cls, pid: int) -> "ProcessIdentity":
        """The identity of a process that can be seen from here."""
        namespace = _pid_namespace()
        start = _process_start(pid) if namespace != _UNKNOWN else None
        return cls(socket.gethostname(), pid, _boot_id(), start or _UNKNOWN, namespace)

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> "ProcessIdentity":
        """The identity kept in a row of `leases`, `runs` or `channels`."""
        known = (row["host"], row["pid"], row["boot_id"], row["process_start"])
        return cls(*known, row["pid_namespace"] or _UNKNOWN)

    def alive(self) -> bool | None:
        """Whether it lives; None where that cannot be seen from here."""
        here = ProcessIdentity.current()
        if here.pid_namespace == _UNKNOWN:
            return None
        if not self._shares_boot(here):
            # A namespace that a container had says nothing of the machine, and its host name even less.
            booted_since = self.host == here.host and self.pid_namespace == here.pid_namespace == _OF_THE_MACHINE
            return False if booted_since else None
        start = _process_start(self.pid)
        if self.pid_namespace == here.pid_namespace:
            return start is not None and (start == self.process_start or _UNKNOWN in (start, self.process_start))
        # Two processes with this pid and the very same start are one.
        noted_by_an_earlier_version = self.pid_namespace == _UNKNOWN != self.process_start
        return True if noted_by_an_earlier_version and start == self.process_start else None

    def silent(self, heartbeat: str) -> bool:
        """Whether it is out of sight, and its last sign of life, `heartbeat` (ISO, UTC), lies too far back: it is dead
        then, unless it gives another one while we watch.
        """
        return self.alive() is None and silence(heartbeat) > SILENCE_SECONDS

    def gone(self, heartbeat: str, watched_seconds: float) -> bool:
        """Whether it is dead: seen to be, or silent also in the seconds that we watched."""
        # The clocks of two hosts may differ, and a machine may have slept: the silence must be seen from here, too.
        return self.alive() is False or (watched_seconds >= watch_seconds() and self.silent(heartbeat))

    def __str__(self) -> str:
        return f"pid {self.pid} on {self.host}"

    def _shares_boot(self, here: "ProcessIdentity") -> bool:
        """Where the system tells no boots apart, only a process of the same host can be looked for."""
        return self.boot_id == here.boot_id and (self.boot_id != _UNKNOWN or self.host == here.host)


def watch_seconds() -> float:
    """For how long a silent process must be watched before it counts as dead."""
    return 2 * HEARTBEAT_SECONDS


def beating(beat: Callable[[], None], name: str) -> Repeated:
    """Give a sign of life every few seconds, until it is stopped."""

    def once() -> None:
        # A missed beat harms nobody by itself, and whoever is at work meets the same full disk and says so.
        with suppress(WarehouseError):
            beat()

    return Repeated(once, HEARTBEAT_SECONDS, name)


def silence(heartbeat: str) -> float:
    """The seconds since a sign of life, by the clock of this host."""
    return (datetime.now(UTC) - datetime.fromisoformat(heartbeat)).total_seconds()


def _boot_id() -> str:
    """What changes with every boot; empty where the system does not say (then only pid and start time count)."""
    path = Path("/proc/sys/kernel/random/boot_id")
    return path.read_text().strip() if path.exists() else _UNKNOWN


def _pid_namespace() -> str:
    """The number of the namespace in which a pid means this process; unknown where Linux hides it."""
    if not sys.platform.startswith("linux"):
        return _NO_NAMESPACES
    try:
        # A process may have a namespace of its own and still see the /proc of another one: then it can look for nobody.
        seen = str(Path("/proc/self").readlink()) == str(os.getpid())
        return str(Path("/proc/self/ns/pid").stat().st_ino) if seen else _UNKNOWN
    except OSError:
        return _UNKNOWN


def _process_start(pid: int) -> str | None:
    """A text that two processes with the same pid never share; None when the process is gone or a zombie."""
    if Path("/proc/self/stat").exists():
        try:
            stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
        except (FileNotFoundError, ProcessLookupError, PermissionError):
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
