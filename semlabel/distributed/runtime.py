"""Ray itself: whether it is installed, a local one or a cluster's, quiet, on loopback, without telemetry.

Knows nothing of rounds. A Ray that somebody else started is used and left running; one that was started here is
stopped when the session ends.
"""

import importlib.util
import logging
import os
import re
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from semlabel.errors import DistributedError, SemlabelError, first_line

_EXTRA = 'Ray is not installed; install "semlabel[ray]", or use [scoring] backend = "local"'
_LOOPBACK = "127.0.0.1"
_ATTEMPTS = 3


@dataclass(frozen=True)
class RaySettings:
    """Which Ray: `address` "local" starts one here while it is needed, "auto" is the running one, else HOST:PORT.

    `cpus` (None: those of the machine), `object_store_bytes` (None: Ray's choice) and `dashboard` are for a local one.
    """

    address: str = "local"
    cpus: float | None = None
    object_store_bytes: int | None = None
    dashboard: bool = False


@dataclass(frozen=True)
class RaySession:
    """A connected Ray and where it can be looked at (None: it has no dashboard)."""

    dashboard: str | None


def refuse_without_ray() -> None:
    """Raises DistributedError where Ray is not installed. Imports nothing: Ray reads its settings on import."""
    if importlib.util.find_spec("ray") is None:
        raise DistributedError(_EXTRA)


def require_ray(alone: bool = False) -> Any:
    """The `ray` module with `ray.data`; `alone` when it will serve this machine only.

    Raises DistributedError saying what to install.
    """
    # Ray reads its settings when it is imported and when it starts.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if alone:
        # Without clusters Ray binds to the loopback address; _node_ip_address = "127.0.0.1" is quietly replaced.
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
        # Ray gives its workers the lowest priority, and a scorer is no background work.
        os.environ.setdefault("RAY_worker_niceness", "0")
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise DistributedError(f"{_EXTRA} ({error})") from None
    return ray


@contextmanager
def ray_session(settings: RaySettings | None = None) -> Iterator[RaySession]:
    """A connection to Ray for the length of the block. Raises DistributedError when there is none to be had."""
    settings = settings or RaySettings()
    ray = require_ray(alone=settings.address == "local")
    if ray.is_initialized():
        yield RaySession(None)
        return
    # Ray takes SIGTERM for itself, and a run that is told to end must end the way its caller has arranged.
    mine = signal.getsignal(signal.SIGTERM)
    context = _connected(ray, settings)
    _quieten(ray)
    if mine is not None and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, mine)
    try:
        url = getattr(context, "dashboard_url", None)
        yield RaySession(f"http://{url}" if url else None)
    finally:
        ray.shutdown()


def _connected(ray: Any, settings: RaySettings) -> Any:
    """Ray's context. A local Ray that was too slow to start on a busy machine (its limit is 30 s) is started again."""
    attempts = _ATTEMPTS if settings.address == "local" else 1
    reason = ""
    for _ in range(attempts):
        try:
            return ray.init(**_arguments(settings))
        # What is slow comes as a bare Exception, what cannot be reached as ConnectionError, ValueError or others.
        except Exception as error:
            ray.shutdown()
            reason = first_line(error)
    raise DistributedError(f"Ray at {settings.address!r} cannot be used: {reason}")


def _arguments(settings: RaySettings) -> dict[str, Any]:
    # What actors print would land between the lines of a command's output; Ray keeps it in its session's logs.
    shared: dict[str, Any] = {"address": settings.address, "log_to_driver": False, "logging_level": logging.ERROR}
    if settings.address != "local":
        return shared
    return shared | {
        "num_cpus": settings.cpus,
        "object_store_memory": settings.object_store_bytes,
        "include_dashboard": settings.dashboard,
        "dashboard_host": _LOOPBACK,
    }


def _quieten(ray: Any) -> None:
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.WARNING)


def cause_of(error: BaseException) -> BaseException:
    """What a user can mend of what went wrong inside an actor, as one line; else the error itself."""
    found: BaseException | None = error
    while found is not None:
        found = getattr(found, "cause", None) or found.__cause__
        if isinstance(found, SemlabelError) and not hasattr(found, "cause"):
            return found
    # An actor that could not start tells its reason as text only.
    told = re.findall(r"^\s*semlabel\.errors\.\w+: (.+)$", str(error), flags=re.MULTILINE)
    return DistributedError(told[-1]) if told else error
