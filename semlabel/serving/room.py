"""How many bytes of large bodies one front holds at once, so that its memory has a bound whatever is sent.

A small body always has room: of those there are at most as many as connections. Knows no transport; a body that finds
no room is told to come back.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from semlabel.serving.faults import Fault, Kind

SMALL_BYTES = 64 * 1024


class Room:
    """The room of one front. Used by one event loop."""

    def __init__(self, most_bytes: int) -> None:
        self.left = most_bytes

    @contextmanager
    def taken(self) -> "Iterator[Callable[[int], None]]":
        """A function that takes the next bytes of one body; they are given back when the block ends. Raises Fault."""
        size = held = 0

        def take(more: int) -> None:
            nonlocal size, held
            size += more
            wanted = size - held if size > SMALL_BYTES else 0
            if wanted > self.left:
                raise Fault(Kind.BUSY, "too many large bodies at once; try again later", "body", retry_after=1.0)
            self.left -= wanted
            held += wanted

        try:
            yield take
        finally:
            self.left += held
