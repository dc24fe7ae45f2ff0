"""Updates that are to outlive their answer: what may be kept, and keeping it before the answer is given.

Knows requests, the published entities and the spool; knows nothing of transports, of margins' meaning or of the
warehouse. An entity is known when the current publication has it, so nothing here opens what the night writes.
"""

import asyncio
import logging
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from semlabel.errors import SemlabelError
from semlabel.serving.faults import Fault, Kind, invalid
from semlabel.serving.label_request import LabelRequest
from semlabel.serving.served import PublishedCatalog, Served
from semlabel.sources import is_blank
from semlabel.spool import SpoolWriter, Update
from semlabel.spool_versions import Versions
from semlabel.text_tokenizer import repaired

log = logging.getLogger(__name__)

_LOOK_EVERY_SECONDS = 1.0


class Updates:
    """The updates of one front."""

    def __init__(self, folder: Path) -> None:
        self._spool = SpoolWriter(folder)
        self._versions = Versions(folder)

    def check(self, request: LabelRequest, catalog: PublishedCatalog) -> None:
        """Raise Fault for an update that would be refused now, before anything is scored for it."""
        entity_id, version = _named(request)
        for name, value in (("entity_id", entity_id), ("text", request.text)):
            if repaired(value) != value:
                raise invalid(name, "holds a lone surrogate, which cannot be stored")
        if is_blank(request.text):
            raise invalid("text", "is blank")
        try:
            known = catalog.has_entity(entity_id)
        except OSError:
            raise Fault(Kind.UNAVAILABLE, "the publication is being switched; send it again", retry_after=1.0) from None
        if not known:
            raise Fault(Kind.UNKNOWN, "entity_id: is no entity of the current publication", "entity_id")
        with _on_disk():
            _refuse(self._versions.problem(entity_id, version, request.text))

    def keep(self, request: LabelRequest, served: Served, margins: np.ndarray) -> None:
        """Make an update durable. Raises Fault when its version is refused or it cannot be written."""
        entity_id, version = _named(request)
        catalog, manifest = served.needed_catalog(), served.labeler.manifest
        update = Update(
            entity_id=entity_id,
            text=request.text,
            text_version=version,
            accepted_at=datetime.now(UTC).isoformat(),
            scorer_digest=manifest.scorer_digest,
            labeler_digest=manifest.digest,
            publication_version=catalog.version,
            candidate_text_ids=catalog.text_ids,
            margins=margins,
        )
        with _on_disk():
            _refuse(self._versions.claim(entity_id, version, request.text))
            self._spool.append(update)

    async def seal_in_time(self) -> None:
        """Seal segments when they are old enough, for ever."""
        while True:
            await asyncio.sleep(_LOOK_EVERY_SECONDS)
            await asyncio.to_thread(self._sealed, self._spool.seal_when_old)

    async def close(self) -> None:
        """Seal what is open."""
        await asyncio.to_thread(self._sealed, self._spool.seal)

    def _sealed(self, seal: Callable[[], None]) -> None:
        try:
            seal()
        except (OSError, SemlabelError) as error:
            log.error("a segment was not sealed, the next run seals it: %s", error)


@contextmanager
def _on_disk() -> Iterator[None]:
    """What is kept on the disk: where that is full, locked or broken, the client is told to send the update again."""
    try:
        yield
    except (OSError, sqlite3.Error, SemlabelError) as error:
        log.error("an update was not kept: %s", getattr(error, "strerror", None) or error)
        raise Fault(Kind.UNAVAILABLE, "the update could not be written; send it again", retry_after=5.0) from None


def _named(request: LabelRequest) -> tuple[str, int]:
    assert request.entity_id is not None and request.text_version is not None  # `label_request` asks for both
    return request.entity_id, request.text_version


def _refuse(problem: str | None) -> None:
    if problem is not None:
        raise Fault(Kind.CONFLICT, f"text_version: {problem}", "text_version")
