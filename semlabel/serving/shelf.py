"""The labelers one engine holds: loaded beside each other, proven by their own self-check, switched between requests.

Knows the pointer and how labelers are loaded; knows nothing of requests. A labeler that cannot be loaded, for whatever
reason, leaves the one that answers where it is, and says why.
"""

import gc
import logging
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from semlabel.errors import SemlabelError, in_one_line
from semlabel.serving.pointer import Pointer

if TYPE_CHECKING:
    from semlabel.labeler import Labeler

log = logging.getLogger(__name__)

_FIRST_PAUSE, _LONGEST_PAUSE = 30.0, 600.0
# What torch says with a RuntimeError, for the processor's memory and a GPU's.
_NO_MEMORY = re.compile(r"out of memory|allocate memory|not enough memory|alloc_failed", re.IGNORECASE)
_NOT_THERE = (FileNotFoundError, NotADirectoryError, IsADirectoryError)


class _Refusal(NamedTuple):
    """Why a directory was not loaded. It is tried again when `due` has come, a time of the shelf's clock, or never."""

    reason: str
    due: float | None
    pause: float


@dataclass
class Shelf:
    """Labelers by digest. `current` answers; the one before it stays until the next switch, for requests under way."""

    pointer: Pointer
    load: "Callable[[Path], Labeler]"
    clock: Callable[[], float] = time.monotonic
    loaded: "dict[str, Labeler]" = field(default_factory=dict)
    current: str = ""
    previous: str = ""
    problem: str = ""
    _refused: dict[Path, _Refusal] = field(default_factory=dict)

    def refresh(self) -> bool:
        """Load what is wanted and switch to it; True when anything changed. Slow: for a thread of its own.

        A labeler that is wrong is not tried again while it stays wanted; one that a disk or the memory failed is, after
        a pause.
        """
        before = self._state()
        problem = ""
        try:
            self._follow()
        except Exception as error:
            # Whatever it is: an engine that ended of it would be started again and meet it again.
            problem = in_one_line(error)
            if self.problem != problem:
                log.error("labeler not loaded: %s", problem)
        self.problem = problem
        if self._state() == before:
            return False
        self._tidy(set(before[1]) - set(self.loaded))
        return True

    def _tidy(self, gone: set[str]) -> None:
        """Give back the memory of what was let go, and keep the collector away from what stays."""
        if gone or self.problem:
            # What is frozen is never collected, so neither would be a labeler that was loaded before the last time.
            gc.unfreeze()
        gc.collect()
        # What lives as long as the process is not walked through by every later collection.
        gc.freeze()

    def _state(self) -> tuple[str, tuple[str, ...], str]:
        return self.current, tuple(self.loaded), self.problem

    def _follow(self) -> None:
        wanted = self.pointer.wanted()
        self._refused = {path: why for path, why in self._refused.items() if path in wanted}
        current = self._digest_of(wanted.current)
        if current != self.current:
            self.previous, self.current = self.current, current
            log.info("labeler %s answers", current[:12])
        # Let go before the next one is loaded: there may not be room for both.
        kept = {self.current, self.previous}
        self.loaded = {digest: held for digest, held in self.loaded.items() if digest in kept or held.path in wanted}
        if wanted.ready is not None:
            self._digest_of(wanted.ready)

    def _digest_of(self, path: Path) -> str:
        """The digest of the labeler in a directory, which is loaded if it is not yet."""
        for digest, labeler in self.loaded.items():
            if labeler.path == path:
                return digest
        known = self._refused.get(path)
        if known is not None and (known.due is None or self.clock() < known.due):
            raise SemlabelError(known.reason)
        log.info("labeler %s is being loaded and checked", path.name[:12])
        try:
            labeler = self.load(path)
        except Exception as error:
            reason = in_one_line(error)
            if not isinstance(error, SemlabelError):
                reason = f"{path}: cannot be loaded: {reason}"
            pause = min(known.pause * 2, _LONGEST_PAUSE) if known else _FIRST_PAUSE
            self._refused[path] = _Refusal(reason, self.clock() + pause if _may_pass(error) else None, pause)
            raise SemlabelError(reason) from error
        log.info("labeler %s loaded", labeler.digest[:12])
        self.loaded = self.loaded | {labeler.digest: labeler}
        return labeler.digest


def _may_pass(error: BaseException) -> bool:
    """Whether the same labeler may load a while later: a disk or the memory failed it, it is not wrong itself."""
    if isinstance(error, OSError):
        return True
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, MemoryError) or (isinstance(cause, RuntimeError) and _NO_MEMORY.search(str(cause))):
            return True
        # A library's own OSErrors have no number: those say that the labeler is not what it should be.
        if isinstance(cause, OSError) and (cause.errno or 0) > 0 and not isinstance(cause, _NOT_THERE):
            return True
        cause = cause.__cause__ or cause.__context__
    return False
