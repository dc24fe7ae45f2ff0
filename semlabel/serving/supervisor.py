"""Starts one engine and its fronts, starts again what dies, and drains them in order when it is told to end.

Knows processes and signals only. Fronts end first, so that what they took is answered; the engine ends last.
"""

import contextlib
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from semlabel.errors import LabelerError, SettingsError
from semlabel.serving.plan import Address, Plan
from semlabel.serving.processes import REFUSED, STARTING, refused

log = logging.getLogger(__name__)

_FRONT = "semlabel.serving.front"
_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_LOOK_EVERY_SECONDS = 0.1
_FIRST_PAUSE, _LONGEST_PAUSE, _STEADY_SECONDS = 0.5, 30.0, 60.0


@dataclass
class Child:
    """One process that is kept alive: started again after a pause that doubles while it keeps dying.

    `start` is told whether it is the first time. `refused`: then it ended for good, as it can serve nothing.
    """

    name: str
    start: Callable[[bool], subprocess.Popen[bytes]]
    process: subprocess.Popen[bytes] | None = None
    started: float = 0.0
    pause: float = _FIRST_PAUSE
    due: float = 0.0
    first: bool = True
    refused: bool = False
    gone: Callable[[int], None] = field(default=lambda pid: None)

    def look(self, now: float) -> None:
        """Start what is due, notice what died."""
        if self.process is None:
            if now >= self.due:
                self.process, self.started = self.start(self.first), now
                self.first = False
            return
        code = self.process.poll()
        self.refused = code == REFUSED
        if code is None or self.refused:
            return
        self.pause = _FIRST_PAUSE if now - self.started > _STEADY_SECONDS else min(self.pause * 2, _LONGEST_PAUSE)
        self.due = now + self.pause
        log.error("%s ended with %s; starting it again in %.1f s", self.name, code, self.pause)
        self.gone(self.process.pid)
        self.process = None

    def end(self, seconds: float) -> None:
        """SIGTERM, and SIGKILL when it is not done after `seconds`."""
        if self.process is None or self.process.poll() is not None:
            return
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(seconds)
        if self.process.poll() is None:
            log.error("%s is not done after %.0f s and is killed", self.name, seconds)
            self.process.kill()
            self.process.wait()


def run(plan: Plan, announce: Callable[[str], None]) -> None:
    """Serve until SIGTERM or Ctrl-C. Raises SettingsError when an address cannot be had, LabelerError when what is to
    be served is refused at the start.
    """
    assert plan.http is not None
    folder = Path(tempfile.mkdtemp(prefix="semlabel-serve-"))
    stop: list[int] = []
    previous = {each: signal.signal(each, lambda number, _: stop.append(number)) for each in _SIGNALS}
    try:
        with contextlib.ExitStack() as stack:
            listening = stack.enter_context(bound(plan.http, listen=True))
            reserved = stack.enter_context(bound(plan.grpc, listen=False)) if plan.grpc is not None else None
            plan = plan.model_copy(
                update={
                    "socket": folder / "engine",
                    "http": Address(plan.http.host, listening.getsockname()[1]),
                    "grpc": Address(plan.grpc.host, reserved.getsockname()[1]) if plan.grpc and reserved else None,
                }
            )
            (folder / "metrics").mkdir()
            engine, fronts = _children(plan, listening, folder / "metrics")
            for line in _addresses(plan):
                announce(line)
            while not stop and not any(child.refused for child in (engine, *fronts)):
                now = time.monotonic()
                for child in (engine, *fronts):
                    child.look(now)
                time.sleep(_LOOK_EVERY_SECONDS)
            _end(engine, fronts, plan.limits.drain_seconds)
            if not stop:
                raise LabelerError(refused(folder))
    finally:
        for each, handler in previous.items():
            signal.signal(each, handler)
        shutil.rmtree(folder, ignore_errors=True)


def _children(plan: Plan, listening: socket.socket, metrics: Path) -> tuple[Child, list[Child]]:
    content = plan.model_dump_json()
    environment = os.environ | {"PROMETHEUS_MULTIPROC_DIR": str(metrics), "TOKENIZERS_PARALLELISM": "false"}

    def start(module: str, first: bool, *arguments: str, fds: tuple[int, ...] = ()) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", module, content, *arguments, *([STARTING] if first else [])]
        # A group of its own: Ctrl-C is for the supervisor alone, which then ends them in order.
        return subprocess.Popen(command, env=environment, pass_fds=fds, start_new_session=True)

    def forget(pid: int) -> None:
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(metrics)
        from prometheus_client.multiprocess import mark_process_dead

        mark_process_dead(pid)

    number = listening.fileno()
    engine = Child("the engine", lambda first: start(plan.engine, first))
    fronts = [
        Child(f"front {index + 1}", lambda first: start(_FRONT, first, str(number), fds=(number,)), gone=forget)
        for index in range(plan.workers)
    ]
    return engine, fronts


def _end(engine: Child, fronts: list[Child], seconds: float) -> None:
    log.info("ending: fronts first, then the engine")
    for front in fronts:
        if front.process is not None:
            front.process.terminate()
    for front in fronts:
        front.end(seconds + 5)
    engine.end(seconds + 5)


def bound(address: Address, listen: bool) -> socket.socket:
    """A socket at an address: one that listens and is inherited, or one that keeps the port for processes that bind it.

    Raises SettingsError when the address cannot be had.
    """
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        if not listen:
            # Two servers would share the port without a word: so first look whether it can be had alone.
            with socket.socket(family, socket.SOCK_STREAM) as alone:
                alone.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                alone.bind((address.host, address.port))
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        made.bind((address.host, address.port))
        if listen:
            made.listen(1024)
    except OSError as error:
        made.close()
        raise SettingsError(f"{address.host}:{address.port} cannot be had: {error.strerror}; choose another") from None
    return made


def _addresses(plan: Plan) -> list[str]:
    scheme = "https" if plan.tls else "http"
    lines = [f"{scheme}://{plan.http.host}:{plan.http.port}"] if plan.http else []
    return lines + ([f"grpc://{plan.grpc.host}:{plan.grpc.port}"] if plan.grpc else [])
