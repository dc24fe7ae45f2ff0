"""What every process of a server does first: log in one form, and end when its parent is gone.

Knows nothing of what the process is for.
"""

import logging
import os
import signal
import sys
import threading
import time

_LOOK_EVERY_SECONDS = 1.0


def configure_logging(process: str) -> None:
    """One line an event on stderr: time, process, level, message. Texts of clients are in none of them."""
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.INFO,
        format=f"%(asctime)s {process}[%(process)d] %(levelname)s %(message)s",
        force=True,
    )


def end_with_parent() -> None:
    """SIGTERM to this process when the one that started it has ended, however it ended."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_LOOK_EVERY_SECONDS)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="parent", daemon=True).start()
