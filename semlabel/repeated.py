"""Something done again and again beside the work, by a thread of its own: a heartbeat, a look around.

Knows threads; deliberately knows nothing of what is done. Whoever gives it to do says what happens to its errors: one
that is raised ends the repetition.
"""

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self


class Repeated:
    """`what` is called every `seconds` until `stop`, or until the block ends; the first time after `seconds`."""

    def __init__(self, what: Callable[[], None], seconds: float, name: str) -> None:
        """Begin; `name` is the thread's."""
        self._what, self._seconds = what, seconds
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._until_stopped, name=name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End it, after what is being done at this moment."""
        self._stopped.set()
        self._thread.join()

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End it."""
        self.stop()

    def _until_stopped(self) -> None:
        while not self._stopped.wait(self._seconds):
            self._what()
