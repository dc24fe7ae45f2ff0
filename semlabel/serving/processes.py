"""What every process of a server does first: log in one form, end when its parent is gone, or say that it cannot serve.

Knows nothing of what the process is for.
"""

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from semlabel.durable import replace_file

if TYPE_CHECKING:
    from semlabel.serving.plan import Plan

REFUSED = 78  # as sysexits.h has it for a wrong configuration
"""How a process ends that can serve nothing of what it was asked for; see `refuse`."""
STARTING = "starting"
"""The argument that a process gets which is the first of its kind in this server."""
_REASON = "refused"
_LOOK_EVERY_SECONDS = 1.0


def configure_logging(process: str) -> None:
    """One line an event on stderr: time, process, level, message. Texts of clients are in none of them."""
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.INFO,
        format=f"%(asctime)s {process}[%(process)d] %(levelname)s %(message)s",
        force=True,
    )


def refuse(folder: Path, reason: str) -> None:
    """End this process at once and leave the reason in the server's folder, where the supervisor looks for it."""
    replace_file(folder / _REASON, reason.encode("utf-8", "replace"))
    os._exit(REFUSED)


def refusal(plan: "Plan", arguments: list[str]) -> Callable[[str], None]:
    """What a process does that finds it can serve nothing: end the server where it is only starting.

    Later nothing: a process that was started again waits, and says why, until what is wanted can be had.
    """
    return partial(refuse, plan.socket.parent) if STARTING in arguments else lambda reason: None


def refused(folder: Path) -> str:
    """The reason that a process which ended with REFUSED left."""
    return (folder / _REASON).read_text(encoding="utf-8")


def end_with_parent() -> None:
    """SIGTERM to this process when the one that started it has ended, however it ended."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_LOOK_EVERY_SECONDS)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="parent", daemon=True).start()
