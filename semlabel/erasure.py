"""Erasing one entity: its texts, margins, evidence and training rows, from every place that keeps them.

Knows the places and their order; deliberately knows nothing of the command line. The id's digest is entered first, so
that no later run takes the entity in again, and the warehouse comes last, because it knows the texts to look for: an
erasure that was killed goes on when it is asked for again. What is removed is counted before, and the receipt in
`ops.sqlite` holds digests and counts, never a text or an id.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from semlabel import erase_traces, erase_warehouse, spool
from semlabel.compaction import compact
from semlabel.digests import text_id
from semlabel.erase_traces import Traces
from semlabel.erase_versions import count_in_versions, erase_from_versions
from semlabel.errors import LeaseHeld, SemlabelError, SourceError
from semlabel.judging import store, taught
from semlabel.processes import ProcessIdentity
from semlabel.published import alone, clean
from semlabel.run_life import STARTED
from semlabel.spool_versions import Versions
from semlabel.warehouse import LEASE, Opening, Warehouse

if TYPE_CHECKING:
    from semlabel.operations import Operations
    from semlabel.settings import Settings

PLACES = (
    *("published", "preview", "temporary", "spool", "reports", "logs", "history", "operations", "judgements"),
    *("taught", "warehouse"),
)
_JUDGEMENTS_WAIT = 10.0
_OPERATIONS = (
    ("gate_results", "evidence_json"),
    ("gate_results", "sentence"),
    ("outbox", "message"),
    ("deliveries", "error"),
    ("channels", "error"),
    ("acknowledgements", "reason"),
    ("approvals", "reason"),
    ("promotions", "reason"),
    ("publications", "reason"),
    ("settings", "value"),
    ("runs", "note"),
    ("metrics", "metrics_json"),
)


@dataclass(frozen=True)
class Receipt:
    """What was found and removed, by place. `source_lists_it` is None where the source could not be read."""

    id_digest: str
    started_at: str
    finished_at: str
    counts: dict[str, int]
    source_lists_it: bool | None
    trained_labelers: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _Erasure:
    """One erasure at work."""

    entity_id: str
    settings: "Settings"
    operations: "Operations"
    traces: Traces

    def note(self, **counts: int) -> None:
        self.operations.note_erasure(text_id(self.entity_id), counts)


def erase(
    entity_id: str, settings: "Settings", operations: "Operations", at: Callable[[str], None] = lambda place: None
) -> Receipt:
    """Erase an entity everywhere and return the receipt; erasing it again looks again and keeps the larger counts.

    `at` is told before each of `PLACES`. Raises LeaseHeld while a run is at work or holds the warehouse, SemlabelError
    for an id that nothing knows.
    """
    digest = text_id(entity_id)
    _refuse_while_running(operations)
    with operations.lease(LEASE, f"erase-{digest[:8]}", wait_seconds=0):
        paths = settings.paths
        with alone(operations, f"erase-{digest[:8]}"):
            for folder in (paths.published, paths.preview):
                clean(folder)
        with _warehouse(settings) as warehouse:
            texts = erase_warehouse.known_texts(warehouse, entity_id)
            known = any(erase_warehouse.count_entity(warehouse, entity_id).values())
        listed = _in_source(settings, entity_id)
        if not known and not listed and digest not in operations.erased_ids() and not _published(settings, entity_id):
            raise SemlabelError(f"no entity {entity_id!r} is known here: nothing was erased; ids count byte for byte")
        operations.note_erasure(digest, {})
        work = _Erasure(entity_id, settings, operations, Traces(entity_id, texts))
        for place, eraser in zip(PLACES, _ERASERS, strict=True):
            at(place)
            eraser(work)
        row = operations.note_erasure(digest, {}, finished=True)
    return Receipt(digest, row["started_at"], row["finished_at"], row["counts"], listed, _trained(settings, row))


def _refuse_while_running(operations: "Operations") -> None:
    dead = {row["run_id"] for row in operations.dead_runs()}
    for row in operations.runs():
        if row["status"] == STARTED and row["run_id"] not in dead:
            raise LeaseHeld(
                f"run {row['run_id']} ({ProcessIdentity.of_row(row)}) is at work: wait for it to finish or stop it, "
                "then erase"
            )


def _warehouse(settings: "Settings") -> Warehouse:
    return Opening.of(settings).open(settings.paths.warehouse)


def _in_source(settings: "Settings", entity_id: str) -> bool | None:
    from semlabel.sources import read_entities

    try:
        return bool((read_entities(settings).frame["entity_id"] == entity_id).any())
    except SourceError:
        return None


def _published(settings: "Settings", entity_id: str) -> bool:
    return any(count_in_versions(folder, entity_id) for folder in (settings.paths.published, settings.paths.preview))


def _trained(settings: "Settings", receipt: dict[str, Any]) -> list[str]:
    """The labelers that may have been trained on the entity: their weights cannot be taken apart."""
    if not receipt["trained"]:
        return []
    return sorted(path.name for path in settings.paths.labelers.glob("*") if len(path.name) == 64 and path.is_dir())


def _erase_published(work: _Erasure) -> None:
    _erase_versions(work, "published", work.settings.paths.published)


def _erase_preview(work: _Erasure) -> None:
    _erase_versions(work, "preview", work.settings.paths.preview)


def _erase_versions(work: _Erasure, place: str, directory: Path) -> None:
    work.note(**{f"{place}: rows": count_in_versions(directory, work.entity_id)})
    who = f"erase-{text_id(work.entity_id)[:8]}"
    erase_from_versions(directory, work.entity_id, lambda: alone(work.operations, who))


def _erase_temporary(work: _Erasure) -> None:
    # Whatever lies here was spilled by a process that is gone: the lease is ours.
    folders = [work.settings.paths.temporary, work.settings.paths.state / "spill"]
    work.note(temporary=sum(erase_traces.empty_folder(folder, dry=True) for folder in folders))
    for folder in folders:
        erase_traces.empty_folder(folder, dry=False)


def _erase_spool(work: _Erasure) -> None:
    folder = work.settings.paths.spool
    own = (spool.SEALED, spool.OPEN, spool.DAMAGED, ".sqlite")
    others = [file for file in _files(folder) if file.suffix not in own]
    found = sum(erase_traces.erase_from_file(file, work.traces, True) for file in others)
    work.note(spool=found + spool.erase(folder, work.entity_id, True, work.traces.in_text))
    for file in others:
        erase_traces.erase_from_file(file, work.traces, False)
    spool.erase(folder, work.entity_id, False, work.traces.in_text)
    Versions(folder).forget(work.entity_id)


def _erase_reports(work: _Erasure) -> None:
    _erase_files(work, "reports", _files(work.settings.paths.reports), erase_traces.erase_report)


def _erase_logs(work: _Erasure) -> None:
    paths = work.settings.paths
    computed = [file for file in _files(paths.dagster_home) if file.suffix in (".out", ".err", ".log")]
    _erase_files(work, "logs", [*_files(paths.state / "logs"), *computed], erase_traces.erase_from_file)


def _erase_history(work: _Erasure) -> None:
    files = [file for file in _files(work.settings.paths.dagster_home) if file.suffix == ".db"]
    _erase_files(work, "history", files, erase_traces.erase_from_history)


def _erase_files(
    work: _Erasure, place: str, files: Iterable[Path], eraser: Callable[[Path, Traces, bool], int]
) -> None:
    files = list(files)
    work.note(**{place: sum(eraser(file, work.traces, True) for file in files)})
    for file in files:
        eraser(file, work.traces, False)


def _erase_operations(work: _Erasure) -> None:
    file = work.operations.file
    with file.transaction() as connection:
        found = erase_traces.erase_from_columns(connection, _OPERATIONS, work.traces, dry=True)
    work.note(operations=found)
    with file.transaction() as connection:
        connection.execute("PRAGMA secure_delete = ON")
        connection.execute("DELETE FROM certify_entities WHERE entity_digest = ?", (text_id(work.entity_id),))
        erase_traces.erase_from_columns(connection, _OPERATIONS, work.traces, dry=False)
    file.wipe()


def _erase_judgements(work: _Erasure) -> None:
    with work.operations.lease(store.LEASE, f"erase-{text_id(work.entity_id)[:8]}", wait_seconds=_JUDGEMENTS_WAIT):
        found = sum(row.entity_id == work.entity_id for row in store.read_judgements(work.settings))
        work.note(judgements=found)
        store.forget_entity(work.settings, work.entity_id)


def _erase_taught(work: _Erasure) -> None:
    with work.operations.lease(taught.LEASE, f"erase-{text_id(work.entity_id)[:8]}", wait_seconds=_JUDGEMENTS_WAIT):
        work.note(taught=sum(row.entity_id == work.entity_id for row in taught.read_asked(work.settings)))
        taught.forget_entity(work.settings, work.entity_id)


def _erase_warehouse(work: _Erasure) -> None:
    with _warehouse(work.settings) as warehouse:
        counts = erase_warehouse.count_entity(warehouse, work.entity_id)
        work.note(**{f"warehouse: {table}": count for table, count in counts.items()})
        if erase_warehouse.may_have_trained(warehouse, work.entity_id):
            work.operations.note_erasure(text_id(work.entity_id), {}, trained=True)
        erase_warehouse.erase_entity(warehouse, work.entity_id)
    # Deleted rows stay readable in the bytes of the file until it is written anew.
    done = compact(work.settings.paths.warehouse, 0, Opening.of(work.settings))
    if done.skipped:
        raise SemlabelError(
            f"erased, but its bytes are still in the warehouse's file: {done.skipped}, then erase again"
        )


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file()) if folder.exists() else []


_ERASERS: tuple[Callable[[_Erasure], None], ...] = (
    _erase_published,
    _erase_preview,
    _erase_temporary,
    _erase_spool,
    _erase_reports,
    _erase_logs,
    _erase_history,
    _erase_operations,
    _erase_judgements,
    _erase_taught,
    _erase_warehouse,
)
