"""The warehouse for commands that only look: under the lease, so that a run waits for them and they for a run.

DuckDB keeps every writer out while somebody reads, and a night that meets its lock instead of a lease fails after some
seconds. A look that takes long is cut into turns, between which a run that waits comes in. Knows the lease and the
file; deliberately knows nothing of what is looked for.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING
from uuid import uuid4

from semlabel.leases import POLL_SECONDS, OnWait
from semlabel.operations import Operations
from semlabel.warehouse import LEASE, LOCK_SECONDS, Opening, Warehouse

if TYPE_CHECKING:
    from semlabel.settings import Settings


@contextmanager
def leased(
    settings: "Settings", who: str, wait_seconds: float | None = None, on_wait: OnWait | None = None
) -> Iterator[None]:
    """Keep the warehouse as it is while the block looks at its file; `who` is named to whom that lets wait.

    Waits as long as the settings say, or `wait_seconds`, for a run that holds it; then raises LeaseHeld naming the run.
    """
    if not settings.paths.ops.exists():
        # Where nothing has run nobody can be at work, and who only looks makes no file.
        yield
        return
    wait = settings.environment.lease_wait_seconds if wait_seconds is None else wait_seconds
    with Operations(settings.paths.ops).lease(LEASE, f"{who}-{uuid4().hex[:8]}", wait, on_wait):
        yield


@contextmanager
def reading(
    settings: "Settings", who: str, on_wait: OnWait | None = None, wait_seconds: float | None = None
) -> Iterator[Warehouse]:
    """The warehouse, open for reading. Raises as `leased`, and WarehouseError when it cannot be opened.

    Whoever has it open without its lease is waited for `wait_seconds` too.
    """
    lock = LOCK_SECONDS if wait_seconds is None else wait_seconds
    with (
        leased(settings, who, wait_seconds, on_wait),
        Opening.of(settings).open(settings.paths.warehouse, read_only=True, wait_seconds=lock) as warehouse,
    ):
        yield warehouse


def in_turns(
    settings: "Settings", who: str, on_wait: OnWait | None = None
) -> Callable[[], AbstractContextManager[Warehouse]]:
    """What `reading` gives, as often as it is asked for, with time between two turns for a run that waits."""
    turns = 0

    @contextmanager
    def turn() -> Iterator[Warehouse]:
        nonlocal turns
        if turns:
            time.sleep(2 * POLL_SECONDS)
        turns += 1
        with reading(settings, who, on_wait) as warehouse:
            yield warehouse

    return turn
