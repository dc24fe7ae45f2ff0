"""The labelers one engine holds: loaded beside each other, proven by their own self-check, switched between requests.

Knows the pointer and how labelers are loaded; knows nothing of requests. A labeler that cannot be loaded leaves the
one that answers where it is, and says why.
"""

import gc
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from semlabel.errors import SemlabelError
from semlabel.serving.pointer import Pointer, Wanted

if TYPE_CHECKING:
    from semlabel.labeler import Labeler

log = logging.getLogger(__name__)


@dataclass
class Shelf:
    """Labelers by digest. `current` answers; the one before it stays until the next switch, for requests under way."""

    pointer: Pointer
    load: "Callable[[Path], Labeler]"
    loaded: "dict[str, Labeler]" = field(default_factory=dict)
    current: str = ""
    previous: str = ""
    problem: str = ""
    _refused: dict[Path, str] = field(default_factory=dict)

    def refresh(self) -> bool:
        """Load what is wanted and switch to it; True when anything changed. Slow: for a thread of its own.

        A directory that was refused once is not tried again while it stays wanted.
        """
        before = self._state()
        try:
            self._follow()
        except SemlabelError as error:
            if self.problem != str(error):
                log.error("labeler not loaded: %s", error)
            self.problem = str(error)
        else:
            self.problem = ""
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
        if path in self._refused:
            raise SemlabelError(self._refused[path])
        log.info("labeler %s is being loaded and checked", path.name[:12])
        try:
            labeler = self.load(path)
        except SemlabelError as error:
            self._refused[path] = str(error)
            raise
        log.info("labeler %s loaded", labeler.digest[:12])
        self.loaded = self.loaded | {labeler.digest: labeler}
        return labeler.digest
