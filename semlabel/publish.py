"""Publishing: verify, then switch.

Stages a version beside the published ones (`predictions/` and `labels/` in Parquet, a DuckDB copy, who changed and
why, the manifest last), proves that it holds exactly the warehouse's rows, asks for the verdicts and for what people
decided meanwhile once more, and only then moves `current`. Whatever goes wrong before leaves the current version as it
was. Knows nothing of gates: the caller's `recheck` decides. Sorting stays inside buckets of entities, so memory does
not grow with the table.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from uuid import uuid4

import semlabel
from semlabel import changes
from semlabel.content_hash import MODULUS, content_hash, content_sum
from semlabel.digests import digest_of, file_digest
from semlabel.durable import fsync_path, fsync_tree
from semlabel.errors import GateBlocked, WarehouseError
from semlabel.operations import plain
from semlabel.published import (
    HISTORY,
    MANIFEST,
    STAGING,
    VERSIONS,
    alone,
    clean,
    confirm,
    current_publication,
    current_version,
    next_version,
    purge,
    read_manifest,
    remove,
    rollback,
    switch,
    verify_version,
    write_manifest,
)
from semlabel.published_splits import with_published_split
from semlabel.warehouse import Warehouse
from semlabel.warehouse_file import limit, literal, translated

if TYPE_CHECKING:
    import duckdb

    from semlabel.operations import Operations

__all__ = [
    "Publication",
    "Snapshot",
    "current_publication",
    "publish",
    "rollback",
    "snapshot_check",
    "verify_version",
]

# 2: `split` in predictions, labels and entities.
SCHEMA_VERSION = 2
# Everything since DuckDB 1.0 can read it; the default of 2.x can be read by 2.x only.
STORAGE_VERSION = "v1.0.0"
BUCKET_ROWS = 1_000_000
AddFiles = Callable[[Path, str, Path | None], None]
_VERDICT = ("gate", "asset", "severity", "verdict", "value", "limit", "subject_digest", "evaluated_at")


class PublishSettings(Protocol):
    """What of `[publish]` matters here."""

    keep: int
    uncertified_candidates: Any


@dataclass(frozen=True)
class Publication:
    """The version that is current now; `unchanged` when it already was.

    `troubles`: what of the bookkeeping failed after readers had the version, in sentences; the next publication makes
    it good.
    """

    version: str
    path: Path
    rows: int
    labels: int
    content_hash: str
    unchanged: bool
    troubles: tuple[str, ...] = ()


class Snapshot(NamedTuple):
    """The content of the warehouse beside that of a published version."""

    expected_hash: str
    found_hash: str
    expected_rows: int
    found_rows: int


def publish(
    warehouse: Warehouse,
    operations: "Operations",
    settings: PublishSettings,
    target_dir: Path,
    labeler_manifest: Mapping[str, Any],
    verdicts: Sequence[Mapping[str, Any]],
    run_id: str,
    preview: bool = False,
    *,
    recheck: Callable[[], None],
    add_files: AddFiles | None = None,
) -> Publication:
    """Publish the warehouse's predictions under `target_dir`, or confirm the current version where nothing changed.

    `recheck` is called right before the switch (or the confirmation) and raises GateBlocked when a verdict no longer
    stands. `add_files(folder, version, previous)` writes what else the version is to carry; `previous` is the folder of
    the whole version before it, or None. A preview goes to a folder of its own: a folder that holds complete versions
    refuses it. Raises GateBlocked while publishing is paused, when `current` was moved meanwhile, where not a row would
    be published, and for a labeler that the warehouse does not use; WarehouseError when the staged version is not
    exactly the warehouse's content or the disk fails; LeaseHeld when somebody does not let the switch happen. In every
    case the current version stays as it was. What fails once `current` has moved is no failure: see
    `Publication.troubles`.
    """
    directory = Path(target_dir)
    with _disk_errors(directory):
        with alone(operations, run_id):
            clean(directory)
        before = current_version(directory)
        current = _usable_current(directory)
        _refuse(warehouse, operations, settings, labeler_manifest, directory, current, preview)
        (directory / VERSIONS).mkdir(parents=True, exist_ok=True)
        subject = publication_subject(warehouse, settings)
        if current is not None and current["subject_digest"] == subject:
            with alone(operations, run_id):
                recheck()
                _refuse_overtaken(operations, directory, before, preview)
                confirm(directory)
                _record(operations, directory, current)
            return _publication(current, Path(current["path"]), unchanged=True)
        staged = _Stage(warehouse, directory, current, settings, subject, _erasures(operations, current))
        with ExitStack() as held:
            try:
                manifest = staged.build(labeler_manifest, verdicts, run_id, preview, add_files)
                # From here to the end nobody else moves `current`: what is found now still holds at the switch.
                held.enter_context(alone(operations, run_id))
                path = staged.rename()
                recheck()
                _refuse_overtaken(operations, directory, before, preview)
                if current is not None:
                    _record(operations, directory, current)
            except BaseException:
                staged.discard()
                raise
            troubles = _switched(operations, directory, manifest, settings.keep)
            with _bookkeeping(troubles, "the lease could not be given back before this process ends"):
                held.close()
    return _publication(manifest, path, unchanged=False, troubles=tuple(troubles))


def snapshot_check(path: Path, warehouse: Warehouse) -> Snapshot:
    """Compare the Parquet files of a version with what the warehouse would publish now, pair by pair."""
    manifest = read_manifest(path)
    expected, rows = content_sum(warehouse.rows, published_relation("predictions", manifest["uncertified_candidates"]))
    with _reader(warehouse) as connection:
        found, found_rows = content_sum(lambda sql: connection.execute(sql).fetchall(), _parquet(path, "predictions"))
    return Snapshot(content_hash(expected, rows), content_hash(found, found_rows), rows, found_rows)


def published_relation(relation: str, policy: str) -> str:
    """What is published of a relation with the columns of `predictions`; `policy`: `uncertified_candidates`."""
    return f"(SELECT * FROM {relation} WHERE certified)" if policy == "withhold" else relation


def published_rows(warehouse: Warehouse, policy: str) -> tuple[int, int]:
    """How many rows publishing the present predictions would write, and how many it would withhold."""
    relation, predictions = published_relation("predictions", policy), warehouse.predictions_count()
    if relation == "predictions":
        return predictions, 0
    ((rows,),) = warehouse.rows(f"SELECT count(*) FROM {relation}")
    return int(rows), predictions - int(rows)


def publication_subject(warehouse: Warehouse, settings: PublishSettings) -> str:
    """What a version depends on; as long as it stays the same there is nothing new to publish."""
    return digest_of([SCHEMA_VERSION, warehouse.predictions_digest(), settings.uncertified_candidates])


def _refuse(
    warehouse: Warehouse,
    operations: "Operations",
    settings: PublishSettings,
    labeler_manifest: Mapping[str, Any],
    directory: Path,
    current: Mapping[str, Any] | None,
    preview: bool,
) -> None:
    _refuse_paused(operations, preview)
    if current is not None and bool(current["preview"]) != preview:
        held = "previews" if current["preview"] else "complete versions"
        raise GateBlocked(f"{directory} holds {held}: publish {'a preview' if preview else 'this version'} elsewhere")
    active = warehouse.active_labeler()
    if active is None or active["labeler_digest"] != labeler_manifest["digest"]:
        used = active["labeler_digest"][:12] if active else "none"
        raise GateBlocked(
            f"the predictions are of labeler {used} and not of {labeler_manifest['digest'][:12]}: make them again"
        )
    rows, withheld = published_rows(warehouse, settings.uncertified_candidates)
    if rows == 0:
        if withheld:
            raise GateBlocked(
                "every prediction is of a candidate that the labeler is not certified with, and these are withheld: "
                "put the texts of the candidates back, or train and promote a labeler"
            )
        raise GateBlocked("there are no predictions to publish: look for an empty source, then score")


def _refuse_paused(operations: "Operations", preview: bool) -> None:
    paused = operations.publishing_paused()
    if paused is not None and not preview:
        raise GateBlocked(
            f"publishing is paused ({paused or 'no reason given'}): resume it before the next publication"
        )


def _refuse_overtaken(operations: "Operations", directory: Path, before: str | None, preview: bool) -> None:
    """What a person did while a version was made counts: a pause, or a `current` that the version is not made for."""
    _refuse_paused(operations, preview)
    now = current_version(directory)
    if now != before:
        raise GateBlocked(
            f"{directory}: the current version is {now or 'none'} and no longer {before or 'none'}, which this "
            "publication began from: run again"
        )


def _usable_current(directory: Path) -> dict[str, Any] | None:
    """The current version if it is whole. A damaged one is not confirmed, and no changes can be told against it."""
    try:
        current = current_publication(directory)
        if current is not None:
            verify_version(Path(current["path"]))
    except WarehouseError:
        return None
    return current


def _switched(operations: "Operations", directory: Path, manifest: Mapping[str, Any], keep: int) -> list[str]:
    """Move `current`, then keep the books. From the moment it has moved nothing is raised, but told."""
    version = str(manifest["version"])
    troubles: list[str] = []
    try:
        switch(directory, version)
    except OSError as error:
        if current_version(directory) != version:
            raise
        troubles.append(f"`current` may not outlast a power failure ({error})")
    with _bookkeeping(troubles, f"since when it is current could not be noted in {HISTORY}"):
        confirm(directory)
    with _bookkeeping(troubles, "it could not be entered into ops.sqlite"):
        _record(operations, directory, manifest)
    with _bookkeeping(troubles, "versions beyond `keep` could not be removed"):
        if manifest["preview"] or operations.publishing_paused() is None:
            # A rollback that waits for us has paused publishing: what it goes back to must still be there.
            purge(directory, keep)
    return troubles


@contextmanager
def _bookkeeping(troubles: list[str], what: str) -> Iterator[None]:
    """Readers have the version by now: what fails here must not be told as a version that was not published."""
    try:
        yield
    except (OSError, WarehouseError) as error:
        troubles.append(f"{what} ({error})")


def _record(operations: "Operations", directory: Path, manifest: Mapping[str, Any]) -> None:
    """Enter a version into the books once: also one whose own run was killed, or had no room, after its switch."""
    action = "preview" if manifest["preview"] else "published"
    if not operations.has_published(manifest["version"], action):
        operations.record_publication(
            manifest["version"],
            str(directory),
            action,
            labeler_digest=manifest["labeler_digest"],
            run_id=manifest["run_id"],
        )


def _erasures(operations: "Operations", current: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """Every erasure that is known, here or to the version before (`ops.sqlite` may be younger), as readers are told.

    A version tells of all of them: its feed is against versions from which the erased are gone already, so a reader
    that held one of these before the erasure would keep them for ever.
    """
    told = {row["id_digest"]: row["started_at"] for row in operations.erasures()}
    told |= {entry["id_digest"]: entry["erased_at"] for entry in (current or {}).get("erasures", [])}
    return [{"id_digest": digest, "erased_at": at, "rows": 0} for digest, at in told.items()]


class _Stage:
    """One version in the making: a folder that no reader looks into until it is renamed."""

    def __init__(
        self,
        warehouse: Warehouse,
        directory: Path,
        previous: Mapping[str, Any] | None,
        settings: PublishSettings,
        subject: str,
        erasures: Sequence[Mapping[str, Any]],
    ) -> None:
        self.warehouse, self.directory, self.previous, self.subject = warehouse, directory, previous, subject
        self.erasures = erasures
        self.started, self.clock = datetime.now(UTC), time.perf_counter()
        self.version = next_version(directory, self.started)
        self.policy = settings.uncertified_candidates
        self.path = directory / VERSIONS / f"{STAGING}{uuid4().hex}"
        self.buckets = _bucket_count(warehouse.predictions_count())

    def build(
        self,
        labeler_manifest: Mapping[str, Any],
        verdicts: Sequence[Mapping[str, Any]],
        run_id: str,
        preview: bool,
        add_files: AddFiles | None,
    ) -> dict[str, Any]:
        """Write and verify every file, the manifest last, and make them durable. Returns the manifest."""
        for folder in ("predictions", "labels"):
            (self.path / folder).mkdir(parents=True)
        total, rows, labels = self._write_tables(labeler_manifest)
        summary = changes.summary(self.warehouse.connection)
        counts = self._verified_copy(total, rows, labels)
        erasures = self._still_erased()
        for table in ("changes", "publication_entities", "bucket", "published_entities"):
            self.warehouse.rows(f"DROP TABLE IF EXISTS {table}")
        if add_files is not None:
            add_files(self.path, self.version, Path(self.previous["path"]) if self.previous else None)
        manifest = plain(
            {
                "schema_version": SCHEMA_VERSION,
                "semlabel_version": semlabel.__version__,
                "version": self.version,
                "previous_version": self.previous["version"] if self.previous else None,
                "preview": preview,
                "published_at": _iso(datetime.now(UTC)),
                "run_id": run_id,
                "rows": rows,
                "labels": labels,
                **counts,
                "buckets": self.buckets,
                "content_hash": content_hash(total, rows),
                "subject_digest": self.subject,
                "uncertified_candidates": self.policy,
                "scope": self.warehouse.scope(),
                **self._shortlist(),
                "labeler_digest": labeler_manifest["digest"],
                "scorer_digest": labeler_manifest["scorer_digest"],
                "base_model": labeler_manifest.get("base_model"),
                "threshold": labeler_manifest.get("threshold"),
                "verdicts": [{name: row.get(name) for name in _VERDICT} for row in verdicts],
                "changes": summary,
                "erasures": erasures,
                **self._sources(),
                "seconds": round(time.perf_counter() - self.clock, 3),
                "files": files_of(self.path),
            }
        )
        write_manifest(self.path, manifest)
        for file in self.path.rglob("*"):
            if file.is_file():
                file.chmod(0o444)
        fsync_tree(self.path)
        return manifest

    def rename(self) -> Path:
        """Give the version its name; it is complete now, but nobody's current one."""
        final = self.directory / VERSIONS / self.version
        self.path.rename(final)
        self.path = final
        fsync_path(final.parent)
        return final.absolute()

    def discard(self) -> None:
        """Remove what was staged; what cannot be removed is the next publication's to clean."""
        with suppress(OSError):
            remove(self.path)

    def _write_tables(self, labeler_manifest: Mapping[str, Any]) -> tuple[int, int, int]:
        """Write predictions, labels, changes, entities and catalog; returns content sum, rows and positives."""
        run = self.warehouse.rows
        run(
            f"CREATE OR REPLACE TEMP TABLE publication_entities AS SELECT * EXCLUDE (text), "
            f"md5_number_lower(entity_id) % {self.buckets} AS bucket FROM ({with_published_split('scoped_entities')})"
        )
        run(
            "CREATE OR REPLACE TEMP TABLE published_entities "
            "(entity_id VARCHAR, text_id VARCHAR, truncated BOOLEAN, pairs BIGINT, labels BIGINT, split VARCHAR)"
        )
        run(changes.CREATE)
        total = rows = labels = 0
        for bucket in range(self.buckets):
            here = f"(SELECT * FROM publication_entities WHERE bucket = {bucket})"
            query = published_relation(f"({self.warehouse.predictions_query(here)})", self.policy)
            run(
                f"CREATE OR REPLACE TEMP TABLE bucket AS SELECT p.*, e.split FROM {query} p "
                f"JOIN {here} e USING (entity_id) ORDER BY p.entity_id, p.candidate_id"
            )
            name = f"bucket-{bucket:04d}.parquet"
            self._copy("SELECT * FROM bucket", f"predictions/{name}")
            ((positives,),) = self._copy("SELECT * FROM bucket WHERE label", f"labels/{name}")
            run(
                "INSERT INTO published_entities SELECT e.entity_id, any_value(e.text_id), any_value(e.truncated), "
                "count(b.entity_id), count(b.entity_id) FILTER (WHERE b.label), any_value(e.split) "
                f"FROM {here} e LEFT JOIN bucket b ON b.entity_id = e.entity_id GROUP BY e.entity_id"
            )
            self._note_changes(bucket, labeler_manifest)
            part, count = content_sum(run, "bucket")
            total, rows, labels = (total + part) % MODULUS, rows + count, labels + positives
        self._copy("SELECT * FROM changes", "changes.parquet")
        self._copy("SELECT * FROM published_entities ORDER BY entity_id", "entities.parquet")
        columns = 'candidate_id, text, text_id, "group", certified, position'
        self._copy(f"SELECT {columns} FROM catalog ORDER BY position", "catalog.parquet")
        return total, rows, labels

    def _note_changes(self, bucket: int, labeler_manifest: Mapping[str, Any]) -> None:
        if self.previous is None:
            return
        before = Path(self.previous["path"])
        changes.add_changes(
            self.warehouse.connection,
            _bucket_before(self.previous, bucket, self.buckets),
            "bucket",
            version=self.version,
            old_facts=(_parquet(before, "entities.parquet"), _parquet(before, "catalog.parquet")),
            scorer_changed=self.previous["scorer_digest"] != labeler_manifest["scorer_digest"],
            threshold_changed=self.previous["threshold"] != labeler_manifest.get("threshold"),
            shortlisted=("shortlist" in self.previous, self.warehouse.shortlisted()),
        )

    def _copy(self, query: str, name: str) -> list[tuple[Any, ...]]:
        target = literal(str(self.path / name))
        return self.warehouse.rows(f"COPY ({query}) TO {target} (FORMAT parquet, COMPRESSION zstd)")

    def _verified_copy(self, total: int, rows: int, labels: int) -> dict[str, int]:
        """Make `predictions.duckdb` of the files and prove that both hold exactly the expected rows."""
        files = {name: _parquet(self.path, name) for name in ("predictions", "labels", "entities.parquet")}
        with _reader(self.warehouse) as connection:

            def run(sql: str) -> list[tuple[Any, ...]]:
                return connection.execute(sql).fetchall()

            database = literal(str(self.path / "predictions.duckdb"))
            run(f"ATTACH {database} AS copy (STORAGE_VERSION '{STORAGE_VERSION}')")
            run(f"CREATE TABLE copy.predictions AS SELECT * FROM {files['predictions']}")
            run("CREATE VIEW copy.labels AS SELECT * FROM predictions WHERE label")
            for name in ("entities", "catalog"):
                run(f"CREATE TABLE copy.{name} AS SELECT * FROM {_parquet(self.path, f'{name}.parquet')}")
            run("USE copy")
            found = {
                "predictions/": content_sum(run, files["predictions"]),
                "predictions.duckdb": content_sum(run, "copy.predictions"),
            }
            ((found_labels,),) = run(f"SELECT count(*) FROM {files['labels']} WHERE label")
            ((entities, candidates, uncertified),) = run(
                "SELECT (SELECT count(*) FROM copy.entities WHERE pairs > 0), count(DISTINCT candidate_id), "
                "count(*) FILTER (WHERE NOT certified) FROM copy.predictions"
            )
            run("USE memory")
            run("DETACH copy")
        wrong = [name for name, content in found.items() if content != (total, rows)]
        if wrong or found_labels != labels:
            name = (wrong or ["labels/"])[0]
            raise WarehouseError(f"{self.path}: {name} does not hold the warehouse's rows: check the disk, run again")
        return {"entities": entities, "candidates": candidates, "uncertified_rows": uncertified}

    def _still_erased(self) -> list[Mapping[str, Any]]:
        """The erasures of entities that are not in this version: whoever is back must not be removed from copies."""
        if not self.erasures:
            return []
        digests = [entry["id_digest"] for entry in self.erasures]
        found = self.warehouse.rows(
            "SELECT sha256(entity_id) FROM published_entities WHERE sha256(entity_id) IN (SELECT unnest(?::VARCHAR[]))",
            [digests],
        )
        back = {digest for (digest,) in found}
        return [entry for entry in self.erasures if entry["id_digest"] not in back]

    def _shortlist(self) -> dict[str, Any]:
        """By which rule pairs were left out, and how many: a reader must know that their absence means NO."""
        rule = self.warehouse.shortlist()
        return {} if rule is None else {"shortlist": rule | {"not_shortlisted": self.warehouse.not_shortlisted()}}

    def _sources(self) -> dict[str, Any]:
        """The content digests of the tables behind the rows, and how old what they say may be."""
        tables = {name: self.warehouse.content(name) for name in ("entities", "catalog")}
        known = {name: content for name, content in tables.items() if content is not None}
        checked = [content["checked_at"] for content in known.values()]
        names = ("digest", "source_digest", "rows")
        return {
            "sources": {name: {key: content[key] for key in names} for name, content in known.items()},
            "as_of": _iso(min(checked).replace(tzinfo=UTC)) if checked else None,
        }


def _publication(
    manifest: Mapping[str, Any], path: Path, unchanged: bool, troubles: tuple[str, ...] = ()
) -> Publication:
    return Publication(
        version=manifest["version"],
        path=path,
        rows=manifest["rows"],
        labels=manifest["labels"],
        content_hash=manifest["content_hash"],
        unchanged=unchanged,
        troubles=troubles,
    )


def _bucket_before(previous: Mapping[str, Any], bucket: int, buckets: int) -> str:
    """The previous version's rows of the entities that are in `bucket` of now `buckets`."""
    # Bucket counts are powers of two, so a bucket of one count lies within one bucket of a smaller count.
    theirs = int(previous["buckets"])
    numbers = range(bucket % theirs, theirs, buckets)
    files = [Path(previous["path"]) / "predictions" / f"bucket-{number:04d}.parquet" for number in numbers]
    relation = f"read_parquet([{', '.join(literal(str(file)) for file in files)}])"
    if theirs < buckets:
        return f"(SELECT * FROM {relation} WHERE md5_number_lower(entity_id) % {buckets} = {bucket})"
    return relation


def _bucket_count(rows: int) -> int:
    count = 1
    while rows > count * BUCKET_ROWS:
        count *= 2
    return count


def files_of(path: Path) -> dict[str, dict[str, Any]]:
    """Size and sha256 of every file below `path`, by relative name."""
    files = sorted(file for file in path.rglob("*") if file.is_file() and file.name != MANIFEST)
    return {str(file.relative_to(path)): {"bytes": file.stat().st_size, "sha256": file_digest(file)} for file in files}


@contextmanager
def _reader(warehouse: Warehouse) -> "Iterator[duckdb.DuckDBPyConnection]":
    """A connection of its own for published files, under the limits of the warehouse."""
    import duckdb

    with translated(warehouse.path, warehouse.memory_limit), duckdb.connect(":memory:") as connection:
        limit(connection, warehouse.memory_limit, 0, warehouse.path.parent / "spill")
        yield connection


@contextmanager
def _disk_errors(directory: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise WarehouseError(
            f"{directory}: not published ({error}): make the folder writable and free some disk space"
        ) from error


def _parquet(path: Path, name: str) -> str:
    files = path / name if name.endswith(".parquet") else path / name / "*.parquet"
    return f"read_parquet({literal(str(files))})"


def _iso(moment: datetime) -> str:
    return moment.isoformat(timespec="microseconds")
