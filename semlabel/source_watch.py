"""Whether people's files have changed and come to rest: size, modification time and inode, tick by tick.

Knows which file is behind a source, and file facts; reads no content, and deliberately knows nothing of who asks, how
often, or what follows. A file that is still being written looks different at the next tick, so only what two ticks in a
row saw alike counts.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from semlabel.digests import digest_of
from semlabel.errors import SourceError
from semlabel.settings import Sources

STABLE_TICKS = 2
SOURCE_NAMES = ("entities", "catalog", "references", "judgements")
_DUCKDB = "duckdb:"

# Size, modification time in nanoseconds and inode of each file by its path; None for a file that is not there.
Facts = dict[str, list[int] | None]


@dataclass(frozen=True)
class Watched:
    """What is remembered between ticks: the facts that were acted on, those seen last, and in how many ticks alike."""

    settled: Facts | None = None
    seen: Facts | None = None
    ticks: int = 0

    def to_text(self) -> str:
        """The memory as text."""
        return json.dumps({"settled": self.settled, "seen": self.seen, "ticks": self.ticks}, sort_keys=True)

    @classmethod
    def from_text(cls, text: str | None) -> "Watched":
        """The memory that `to_text` wrote; without one, nothing was seen yet."""
        return cls(**json.loads(text)) if text else cls()


@dataclass(frozen=True)
class Tick:
    """What a tick came to: the memory for the next one, what was found in words, and a key where a run is wanted.

    The key is the same for the same files in the same state, so that one change asks for one run.
    """

    memory: Watched
    found: str
    run_key: str | None = None


def source_files(sources: Sources) -> list[Path]:
    """The files behind the sources: for `duckdb:PATH#SQL` the database, because its query cannot be asked cheaply.

    What was committed to a database may lie in its log for days, so a log that is there counts too.
    """
    files: list[Path] = []
    for name in filter(None, (sources.entities, sources.catalog, sources.references)):
        file = _file_of(name)
        log = file.with_name(f"{file.name}.wal")
        files += [file, log] if name.startswith(_DUCKDB) and log.exists() else [file]
    # Nobody may have judged anything yet, so its absence is no fault of the file.
    if sources.judgements is not None and Path(sources.judgements).exists():
        files.append(Path(sources.judgements))
    return list(dict.fromkeys(files))


def refuse_a_source(path: Path, sources: Sources) -> None:
    """Raise SourceError where something is to be written to a file of [sources], whether it is there yet or not."""
    for name in SOURCE_NAMES:
        location: str | None = getattr(sources, name)
        if location is not None and _is_file(path, _file_of(location)):
            raise SourceError(f"{path}: is the file of [sources] {name}; choose another --out")


def _file_of(location: str) -> Path:
    return Path(location.removeprefix(_DUCKDB).partition("#")[0] if location.startswith(_DUCKDB) else location)


def _is_file(path: Path, other: Path) -> bool:
    return path.resolve() == other.resolve() or (path.exists() and other.exists() and path.samefile(other))


def look(files: Iterable[Path]) -> Facts:
    """The facts of the files now."""
    facts: Facts = {}
    for file in files:
        try:
            found = file.stat()
        except FileNotFoundError:
            facts[str(file)] = None
        else:
            facts[str(file)] = [found.st_size, found.st_mtime_ns, found.st_ino]
    return facts


def tick(memory: Watched, facts: Facts) -> Tick:
    """Compare what is there with what was there. The first tick only remembers: nobody knows what it should change."""
    ticks = memory.ticks + 1 if facts == memory.seen else 1
    missing = sorted(path for path, fact in facts.items() if fact is None)
    if missing:
        return Tick(Watched(memory.settled, facts, 0), f"missing: {', '.join(missing)}")
    if memory.settled is None:
        settled = facts if ticks >= STABLE_TICKS else None
        return Tick(Watched(settled, facts, ticks), "watching from now on" if settled else "a first look")
    changed = _changed(memory.settled, facts)
    if not changed:
        return Tick(Watched(memory.settled, facts, ticks), "nothing has changed")
    if ticks < STABLE_TICKS:
        return Tick(Watched(memory.settled, facts, ticks), f"still changing: {', '.join(changed)}")
    return Tick(Watched(facts, facts, ticks), f"changed: {', '.join(changed)}", f"source_changes-{digest_of(facts)}")


def _changed(before: Mapping[str, list[int] | None], now: Facts) -> list[str]:
    return sorted(path for path in before.keys() | now.keys() if before.get(path) != now.get(path))
