"""The spool: updates that were accepted online and wait for the next run, in segments of lines that prove themselves.

A writer appends to a segment of its own and returns when the line is durable. Whoever holds a segment's lock may seal
it (by renaming it), so a run can take what every writer, living or killed, has written so far; a writer that finds its
segment gone begins another. Knows nothing of servers or of the warehouse.
"""

import base64
import fcntl
import hashlib
import json
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self
from uuid import uuid4

import numpy as np

from semlabel.digests import digest_of
from semlabel.durable import fsync_path, replace_file
from semlabel.errors import SemlabelError

if TYPE_CHECKING:
    from collections.abc import Iterator

OPEN, SEALED, DAMAGED = ".open", ".sealed", ".damaged"
SEGMENT_BYTES, SEGMENT_SECONDS = 8 * 2**20, 300.0
_LOCK_SECONDS, _LOCK_POLL_SECONDS = 10.0, 0.02
_MARGIN = np.dtype("<f4")


@dataclass(frozen=True, eq=False)
class Update:
    """One accepted text of an entity with the margins it was answered with, a margin per candidate text.

    `accepted_at` is UTC in ISO 8601. `candidate_text_ids` are in the order of `margins`.
    """

    entity_id: str
    text: str
    text_version: int
    accepted_at: str
    scorer_digest: str
    labeler_digest: str
    publication_version: str
    candidate_text_ids: Sequence[str]
    margins: np.ndarray


class Content(NamedTuple):
    """A segment's updates in the order they were written, and (line number, what is wrong) of lines that are damaged.

    `torn` is true when the last line is not complete: its writer was killed before it answered.
    """

    updates: list[Update]
    damaged: list[tuple[int, str]]
    torn: bool


@dataclass
class _Segment:
    """The segment a writer appends to. `catalogs` are the digests whose candidates it holds already."""

    path: Path
    descriptor: int
    begun: float
    catalogs: set[str] = field(default_factory=set)

    @classmethod
    def begin(cls, folder: Path) -> Self:
        path = folder / f"{time.time_ns():020d}-{os.getpid()}-{uuid4().hex[:8]}{OPEN}"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
        fsync_path(folder)
        return cls(path, descriptor, time.monotonic())

    def append(self, content: bytes) -> int:
        """Write and sync `content`; returns the segment's size. Raises OSError with nothing of it left behind."""
        size = os.fstat(self.descriptor).st_size
        try:
            left = memoryview(content)
            while left:
                left = left[os.write(self.descriptor, left) :]
            os.fsync(self.descriptor)
        except OSError:
            os.ftruncate(self.descriptor, size)
            raise
        return size + len(content)


class SpoolWriter:
    """Appends updates to one open segment after another. One in every process; safe among its threads."""

    def __init__(self, folder: Path, most_bytes: int = SEGMENT_BYTES, most_seconds: float = SEGMENT_SECONDS) -> None:
        self.folder, self._most_bytes, self._most_seconds = folder, most_bytes, most_seconds
        self._segment: _Segment | None = None
        self._mutex = threading.Lock()
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def append(self, update: Update) -> None:
        """Write an update; when this returns, a kill or a power cut does not lose it.

        Raises OSError (or SemlabelError when the lock cannot be had): then the update must not be confirmed.
        """
        with self._mutex:
            while True:
                segment = self._segment = self._segment or _Segment.begin(self.folder)
                with _locked(segment.descriptor, segment.path):
                    if _is_at(segment.descriptor, segment.path):
                        size = self._write(segment, update)
                        break
                self._forget()  # a run has sealed it
            if size >= self._most_bytes:
                self._seal()

    def seal(self, at_least_seconds: float = 0.0) -> None:
        """Seal the open segment if it is that old."""
        with self._mutex:
            if self._segment is not None and time.monotonic() - self._segment.begun >= at_least_seconds:
                self._seal()

    def seal_when_old(self) -> None:
        """Seal the open segment when its time is over."""
        self.seal(self._most_seconds)

    def _write(self, segment: _Segment, update: Update) -> int:
        catalog = digest_of(list(update.candidate_text_ids))
        lines = []
        if catalog not in segment.catalogs:
            lines.append(_line({"catalog": catalog, "candidate_text_ids": list(update.candidate_text_ids)}))
        lines.append(_line(_document(update, catalog)))
        try:
            size = segment.append(b"".join(lines))
        except OSError:
            self._forget()  # what it ends with is not certain: nothing may follow it
            raise
        segment.catalogs.add(catalog)
        return size

    def _seal(self) -> None:
        segment = self._segment
        assert segment is not None
        with _locked(segment.descriptor, segment.path):
            if _is_at(segment.descriptor, segment.path):
                _rename_sealed(segment.path)
        self._forget()

    def _forget(self) -> None:
        if self._segment is not None:
            os.close(self._segment.descriptor)
        self._segment = None


def seal_all(folder: Path) -> None:
    """Seal every open segment, whoever wrote it. Raises SemlabelError when a lock cannot be had."""
    for path in sorted(folder.glob(f"*{OPEN}")):
        try:
            descriptor = os.open(path, os.O_RDWR)
        except FileNotFoundError:
            continue
        try:
            with _locked(descriptor, path):
                if _is_at(descriptor, path):
                    _rename_sealed(path)
        finally:
            os.close(descriptor)


def sealed(folder: Path) -> list[Path]:
    """The sealed segments, oldest first."""
    return sorted(folder.glob(f"*{SEALED}"))


def read(path: Path) -> Content:
    """What a sealed segment holds."""
    *lines, rest = path.read_bytes().split(b"\n")
    catalogs: dict[str, list[str]] = {}
    updates, damaged = [], []
    for number, line in enumerate(lines, start=1):
        try:
            document = _parsed(line)
            if "candidate_text_ids" in document:
                catalogs[document["catalog"]] = document["candidate_text_ids"]
            else:
                updates.append(_update(document, catalogs[document["catalog"]]))
        except (ValueError, KeyError, TypeError) as error:
            damaged.append((number, f"{type(error).__name__} in line {number}"))
    return Content(updates, damaged, bool(rest))


def remove(path: Path, damaged: bool) -> None:
    """Remove a segment that was taken over; a damaged one is kept for a person, under another ending."""
    if damaged:
        path.replace(path.with_suffix(DAMAGED))
    else:
        path.unlink()
    fsync_path(path.parent)


def erase(folder: Path, entity_id: str, dry: bool, names: Callable[[str], bool]) -> int:
    """Take an entity's updates out of every segment (`dry`: only count them); returns how many there were.

    `names` says whether a line that cannot be read names the entity: such a line goes too.
    """
    seal_all(folder)
    found = 0
    for path in [*sealed(folder), *sorted(folder.glob(f"*{DAMAGED}"))]:
        lines = path.read_bytes().split(b"\n")
        kept = [line for line in lines if not _is_of(line, entity_id, names)]
        found += len(lines) - len(kept)
        if len(kept) < len(lines) and not dry:
            replace_file(path, b"\n".join(kept))
    return found


def _is_of(line: bytes, entity_id: str, names: Callable[[str], bool]) -> bool:
    try:
        return bool(_parsed(line).get("entity_id") == entity_id)
    except ValueError:
        return names(line.decode("ascii", errors="replace"))


def _document(update: Update, catalog: str) -> dict[str, Any]:
    margins = update.margins.astype(_MARGIN)
    if margins.shape != (len(update.candidate_text_ids),):
        raise ValueError(f"{margins.shape} margins for {len(update.candidate_text_ids)} candidates")
    told = {name: value for name, value in vars(update).items() if name != "candidate_text_ids"}
    return told | {"catalog": catalog, "margins": base64.b64encode(margins.tobytes()).decode("ascii")}


def _update(document: dict[str, Any], candidate_text_ids: list[str]) -> Update:
    told = {name: value for name, value in document.items() if name != "catalog"}
    margins = np.frombuffer(base64.b64decode(document["margins"]), _MARGIN).astype(np.float32)
    return Update(**told | {"candidate_text_ids": candidate_text_ids, "margins": margins})


def _line(document: dict[str, Any]) -> bytes:
    """A line with the sha256 of what follows it. JSON in ASCII holds no line break, whatever the texts hold."""
    payload = json.dumps(document, separators=(",", ":"), allow_nan=False).encode("ascii")
    return hashlib.sha256(payload).hexdigest().encode("ascii") + b" " + payload + b"\n"


def _parsed(line: bytes) -> dict[str, Any]:
    digest, _, payload = line.partition(b" ")
    if hashlib.sha256(payload).hexdigest().encode("ascii") != digest:
        raise ValueError("the line is not what was written")
    document: dict[str, Any] = json.loads(payload)
    return document


def _rename_sealed(path: Path) -> None:
    path.replace(path.with_suffix(SEALED))
    fsync_path(path.parent)


def _is_at(descriptor: int, path: Path) -> bool:
    """Whether an open file still has this name."""
    try:
        there = path.stat()
    except FileNotFoundError:
        return False
    return os.path.samestat(there, os.fstat(descriptor))


@contextmanager
def _locked(descriptor: int, path: Path) -> "Iterator[None]":
    """The lock of an open file; the kernel lets it go when its holder dies. Raises SemlabelError after a while."""
    deadline = time.monotonic() + _LOCK_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise SemlabelError(f"{path}: a process has held its lock for {_LOCK_SECONDS:g} s; end it") from None
        time.sleep(_LOCK_POLL_SECONDS)
    try:
        yield
    finally:
        fcntl.flock(descriptor, fcntl.LOCK_UN)
