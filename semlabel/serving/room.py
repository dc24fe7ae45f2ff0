"""How much memory the requests of one front take at once, so that it has a bound whatever is sent.

Weighed are bodies, what they become, and answers until they have left. What is small always has room: of that there is
at most as much as there are connections. Large bodies are worked on one at a time, since as a document one may take
forty times its bytes. Knows no transport; a request that finds no room is told to come back.
"""

import asyncio
import gc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

from semlabel.serving.faults import Fault, Kind

T = TypeVar("T")

SMALL_BYTES = 64 * 1024


class Room:
    """The room of one front. Used by one event loop."""

    def __init__(self, most_bytes: int) -> None:
        self.most = self.left = most_bytes
        # Whoever has left: what was begun here is done before the next begins.
        self.alone = ThreadPoolExecutor(1, thread_name_prefix="large")

    @contextmanager
    def taken(self) -> "Iterator[Held]":
        """What one request holds; it is given back when the block ends."""
        held = Held(self)
        try:
            yield held
        finally:
            self.left += held.taken


class Held:
    """What one request holds of a room. `large`: its body is."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self.taken = self._size = 0
        self.large = False

    def body(self, more: int) -> None:
        """Hold the next bytes of the body. Raises Fault."""
        self.take(more)
        self.large = self._size > SMALL_BYTES

    def take(self, more: int) -> None:
        """Hold so many bytes more. Raises Fault where there is no room for them."""
        self._size += more
        if self._size > self._room.most:
            raise Fault(Kind.TOO_LARGE, "body: becomes more than this server holds at once; send less", "body")
        wanted = self._size - self.taken if self._size > SMALL_BYTES else 0
        if wanted > self._room.left:
            raise Fault(Kind.BUSY, "too many large requests at once; try again later", "body", retry_after=1.0)
        self._room.left -= wanted
        self.taken += wanted

    async def run(self, work: Callable[[], T], here: bool = False) -> T:
        """What `work` gives: of a large body one at a time, of a small one in a thread or, if that is short, here."""
        if self.large:
            return await asyncio.get_running_loop().run_in_executor(self._room.alone, _apart, work)
        return work() if here else await asyncio.to_thread(work)


def _apart(work: Callable[[], T]) -> T:
    # To look for cycles in a document while it grows takes many times as long as to read it, and there are none.
    gc.disable()
    try:
        return work()
    except Fault as fault:
        # What it was raised in holds the document, which must be gone before the next one is begun.
        fault.__context__ = None
        raise fault.with_traceback(None) from None
    finally:
        gc.enable()
