"""The warehouse: one private DuckDB file with sources, scores and everything derived from them.

Knows opening, transactions, content digests and which labeler is active; deliberately knows nothing of how margins
are made, planned or published. One process writes at a time: callers hold the writer's lease of `operations`. Every
public write is one transaction. Times are UTC; texts and ids go in and come out byte for byte.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from semlabel import warehouse_schema as schema
from semlabel.content_hash import content_hash, content_sum
from semlabel.digests import digest_of
from semlabel.errors import WarehouseError
from semlabel.warehouse_file import connect, first, limit, translated, undo
from semlabel.warehouse_scores import BLOCKS_AS_LISTS, ScoredRound, ensure_scorer, scorer_key, store_rounds
from semlabel.warehouse_tables import TABLES, Replaced, replace_table, select_all

if TYPE_CHECKING:
    import duckdb
    import pandas

    from semlabel.settings import Settings

__all__ = ["LEASE", "LOCK_SECONDS", "Coverage", "Opening", "Replaced", "ScoredRound", "Warehouse"]

LEASE = "warehouse"
"""The lease that whoever opens a project's warehouse holds."""
LOCK_SECONDS = 10.0
"""How long the file is waited for by default where another process has it open."""

_REFUSED_RUNS_KEPT = 20
# Pairs that a prediction is called for: those of an entity's shortlist, and all of an entity that has none yet.
_WANTED = (
    "LEFT JOIN shortlists k ON k.text_key = e.text_key ",
    "WHERE k.text_key IS NULL OR list_contains(k.candidate_text_keys, c.text_key) ",
)


@dataclass(frozen=True)
class Coverage:
    """Pairs the scope calls for, pairs stored for the active labeler, and up to 50 (entity, candidate) that miss.

    `not_shortlisted` pairs stand in no shortlist and are not scored for readers; 0 where there are no shortlists.
    """

    expected: int
    stored: int
    missing: list[tuple[str, str]]
    not_shortlisted: int = 0


class Warehouse:
    """An open warehouse; a context manager. Made by `Warehouse.open`."""

    def __init__(
        self, connection: "duckdb.DuckDBPyConnection", path: Path, memory_limit: str, read_only: bool = False
    ) -> None:
        """Use `Warehouse.open`."""
        self.connection, self.path = connection, path
        self.memory_limit = memory_limit
        self._read_only, self._predictions_digest = read_only, ""

    @classmethod
    def open(
        cls,
        path: Path,
        read_only: bool = False,
        memory_limit: str = "2GB",
        threads: int = 0,
        temp_directory: Path | None = None,
        wait_seconds: float = LOCK_SECONDS,
    ) -> "Warehouse":
        """Open the warehouse at `path`, making or migrating it unless `read_only`; `threads` 0 is one per core.

        Raises WarehouseError when another process has it open and does not close it within `wait_seconds` (naming
        that process), when it is missing (read only), damaged, or written by a newer semlabel.
        """
        path = Path(path)
        if read_only and not path.exists():
            raise WarehouseError(f"{path}: no warehouse there yet: run the pipeline once")
        if not read_only:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with translated(path, memory_limit):
            connection = connect(path, read_only, wait_seconds)
        warehouse = cls(connection, path, memory_limit, read_only)
        try:
            with translated(path, memory_limit):
                limit(connection, memory_limit, threads, temp_directory or path.parent / "spill")
                warehouse._migrate(read_only)
        except BaseException:
            connection.close()
            raise
        return warehouse

    def close(self) -> None:
        """Close the file; closing twice is harmless."""
        with translated(self.path, self.memory_limit):
            self.connection.close()

    def __enter__(self) -> "Warehouse":
        """The warehouse itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the file."""
        self.close()

    def rows(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """The rows of a query."""
        with translated(self.path, self.memory_limit):
            return self.connection.execute(sql, list(parameters)).fetchall()

    def frame(self, sql: str, parameters: Sequence[Any] = ()) -> "pandas.DataFrame":
        """The result of a query as a DataFrame."""
        with translated(self.path, self.memory_limit):
            return self.connection.execute(sql, list(parameters)).df()

    @contextmanager
    def transaction(self) -> Iterator["duckdb.DuckDBPyConnection"]:
        """One transaction: committed as a whole when the block ends, undone as a whole when it raises."""
        with translated(self.path, self.memory_limit):
            self.connection.begin()
            try:
                yield self.connection
                self.connection.commit()
            except BaseException:
                undo(self.connection)
                raise

    @contextmanager
    def ids(self, name: str, ids: Iterable[str]) -> Iterator[None]:
        """A relation `name` with the one column `id`, as long as the block runs."""
        with self.relation(name, id=list(ids)):
            yield

    @contextmanager
    def relation(self, name: str, **columns: Sequence[str]) -> Iterator[None]:
        """A relation `name` with these columns of text, as long as the block runs."""
        import pyarrow

        texts = {column: pyarrow.array(values, type=pyarrow.large_string()) for column, values in columns.items()}
        self.connection.register(name, pyarrow.table(texts))
        try:
            yield
        finally:
            self.connection.unregister(name)

    # Sources

    def replace_entities(self, frame: "pandas.DataFrame", run_id: str, source_digest: str | None = None) -> Replaced:
        """Make `entities` hold exactly `frame`: entity_id, text and optional ones.

        Optional: text_version, split, group_id, query_tokens, truncated.
        """
        return self._replace("entities", frame, run_id, source_digest)

    def replace_catalog(self, frame: "pandas.DataFrame", run_id: str, source_digest: str | None = None) -> Replaced:
        """Make `catalog` hold exactly `frame` (candidate_id, text [, certified, group, item_tokens])."""
        return self._replace("catalog", frame, run_id, source_digest)

    def replace_left_out(self, frame: "pandas.DataFrame", run_id: str, source_digest: str | None = None) -> Replaced:
        """Make `left_out_candidates` hold exactly `frame` (candidate_id, text [, group])."""
        return self._replace("left_out_candidates", frame, run_id, source_digest)

    def replace_references(self, frame: "pandas.DataFrame", run_id: str, source_digest: str | None = None) -> Replaced:
        """Make `reference_labels` hold exactly `frame`: entity_id, candidate_id, label and optional ones.

        Optional: design ("reference" unless given), inclusion_probability.
        """
        return self._replace("reference_labels", frame, run_id, source_digest)

    def replace_undecided(self, frame: "pandas.DataFrame", run_id: str) -> Replaced:
        """Make `undecided_pairs` hold exactly `frame` (entity_id, candidate_id, reason)."""
        return self._replace("undecided_pairs", frame, run_id, None)

    def replace_training_pairs(
        self, frame: "pandas.DataFrame", run_id: str, source_digest: str | None = None
    ) -> Replaced:
        """Make `training_pairs` hold exactly `frame` (entity_id, candidate_id, label [, split, kind]), in its order."""
        return self._replace("training_pairs", frame, run_id, source_digest)

    def entities(self) -> "pandas.DataFrame":
        """Every entity, ordered by id."""
        return self.frame(select_all(TABLES["entities"]))

    def catalog(self) -> "pandas.DataFrame":
        """Every candidate, ordered by position (which is the order of ids)."""
        return self.frame(select_all(TABLES["catalog"]))

    def training_candidates(self) -> "pandas.DataFrame":
        """The candidates to train on (candidate_id, text, group): the `catalog` and those that it left out."""
        columns = 'candidate_id, text, "group"'
        return self.frame(
            f"SELECT {columns} FROM catalog UNION ALL SELECT {columns} FROM left_out_candidates ORDER BY candidate_id"
        )

    def reference_labels(self) -> "pandas.DataFrame":
        """Every reference label, ordered by ids."""
        return self.frame(select_all(TABLES["reference_labels"]))

    def undecided_pairs(self) -> "pandas.DataFrame":
        """Every pair of which nobody can tell whether it is YES or NO (entity_id, candidate_id, reason), by ids."""
        return self.frame(select_all(TABLES["undecided_pairs"]))

    def labels_digest(self) -> str | None:
        """The digest of what is known of pairs: the reference labels, and which pairs are undecided where some are.

        None before the reference labels were first filled.
        """
        labels, undecided = self.content_digest("reference_labels"), self.content("undecided_pairs")
        return digest_of([labels, undecided["digest"]]) if labels and undecided and undecided["rows"] else labels

    def training_pairs(self) -> "pandas.DataFrame":
        """Every training pair, in the order it was given."""
        return self.frame(select_all(TABLES["training_pairs"]))

    def content_digest(self, table: str) -> str | None:
        """The content digest of a source table, or None before it was first filled."""
        row = self.content(table)
        return row["digest"] if row else None

    def content(self, table: str) -> dict[str, Any] | None:
        """What is known of a source table: digest, rows, source_digest, run_id, updated_at, checked_at; or None."""
        names = ("digest", "rows", "source_digest", "run_id", "updated_at", "checked_at")
        rows = self.rows(f"SELECT {', '.join(names)} FROM content_digests WHERE table_name = ?", [table])
        return dict(zip(names, rows[0], strict=True)) if rows else None

    def add_refused(self, run_id: str, source: str, rows: Iterable[tuple[str, str]], more: bool = False) -> int:
        """Keep the refused rows (row_id, reason) of one source in one run, replacing those of that run unless `more`.

        Rows of all but the newest twenty runs of a source are dropped. Returns how many rows were refused.
        """
        now = _now()
        entries = [[run_id, source, str(row_id), reason, now] for row_id, reason in rows]
        with self.transaction() as connection:
            if not more:
                connection.execute("DELETE FROM refused_rows WHERE run_id = ? AND source = ?", [run_id, source])
            if entries:
                connection.executemany("INSERT INTO refused_rows VALUES (?, ?, ?, ?, ?)", entries)
            connection.execute(
                "DELETE FROM refused_rows WHERE source = ? AND run_id NOT IN (SELECT run_id FROM refused_rows "
                "WHERE source = ? GROUP BY run_id ORDER BY max(refused_at) DESC LIMIT ?)",
                [source, source, _REFUSED_RUNS_KEPT],
            )
        return len(entries)

    # Scope, labelers and scores

    def set_scope(self, entity_ids: Iterable[str] | None, description: str) -> None:
        """Say which entities predictions are for; None is all of them. Raises WarehouseError for unknown ids."""
        chosen = None if entity_ids is None else sorted(set(entity_ids))
        digest = "all" if chosen is None else digest_of(chosen)
        if self.rows("SELECT 1 FROM scope WHERE digest = ? AND description = ?", [digest, description]):
            return
        with self.transaction() as connection, self.ids("scope_ids", chosen or []):
            unknown = connection.execute(
                "SELECT id FROM scope_ids ANTI JOIN entities ON entity_id = id LIMIT 3"
            ).fetchall()
            if unknown:
                raise WarehouseError(
                    f"scope names unknown entities, such as {unknown[0][0]!r}: read the entities first"
                )
            connection.execute("DELETE FROM scope")
            connection.execute("INSERT INTO scope VALUES (?, ?, ?)", [chosen is None, description, digest])
            connection.execute("DELETE FROM prediction_scope")
            connection.execute("INSERT INTO prediction_scope SELECT id FROM scope_ids")

    def scope(self) -> dict[str, Any]:
        """The scope of predictions: everything (bool), description, digest, entities (how many are in it now)."""
        ((everything, description, digest),) = self.rows("SELECT everything, description, digest FROM scope")
        ((entities,),) = self.rows("SELECT count(*) FROM scoped_entities")
        return {"everything": everything, "description": description, "digest": digest, "entities": entities}

    def activate_labeler(
        self,
        labeler_digest: str,
        scorer_digest: str,
        threshold: float | None,
        platt_a: float | None = None,
        platt_b: float | None = None,
    ) -> None:
        """Derive predictions with this labeler from now on. Scores nothing; a known digest must mean what it meant."""
        facts = tuple(None if value is None else float(value) for value in (threshold, platt_a, platt_b))
        with self.transaction() as connection:
            key = ensure_scorer(connection, scorer_digest)
            known = first(
                connection,
                "SELECT scorer_key, threshold, platt_a, platt_b FROM labelers WHERE labeler_digest = ?",
                [labeler_digest],
            )
            if known is not None and known != (key, *facts):
                raise WarehouseError(f"labeler {labeler_digest} is known with another scorer, threshold or calibration")
            if known is None:
                connection.execute(
                    "INSERT INTO labelers VALUES (?, ?, ?, ?, ?, ?)", [labeler_digest, key, *facts, _now()]
                )
            if connection.execute("SELECT labeler_digest FROM active_labeler").fetchall() != [(labeler_digest,)]:
                connection.execute("DELETE FROM active_labeler")
                connection.execute("INSERT INTO active_labeler VALUES (?)", [labeler_digest])

    def active_labeler(self) -> dict[str, Any] | None:
        """The labeler of the predictions: labeler_digest, scorer_digest, threshold, platt_a, platt_b; or None."""
        names = ("labeler_digest", "scorer_digest", "threshold", "platt_a", "platt_b")
        rows = self.rows(
            f"SELECT {', '.join(names)} FROM labelers JOIN scorers USING (scorer_key) "
            "JOIN active_labeler USING (labeler_digest)"
        )
        return dict(zip(names, rows[0], strict=True)) if rows else None

    def commit_scores(self, rounds: Sequence[ScoredRound], scorer_digest: str, run_id: str) -> int:
        """Store scored rounds in one transaction; returns the number of new pairs. See `warehouse_scores`."""
        with self.transaction() as connection:
            return store_rounds(connection, rounds, scorer_digest, run_id)

    def margins(
        self, scorer_digest: str, entity_ids: Iterable[str], candidate_ids: Iterable[str] | None = None
    ) -> "pandas.DataFrame":
        """The stored margins (float32) of these entities, ordered by entity_id and candidate_id; others are absent."""
        key = scorer_key(self.connection, scorer_digest)
        chosen = None if candidate_ids is None else list(candidate_ids)
        with (
            self.ids("wanted_entities", entity_ids),
            self.ids("wanted_candidates", chosen or []),
        ):
            return self.frame(
                f"""WITH wanted AS (SELECT entity_id, text_key FROM entities
                               SEMI JOIN wanted_entities ON id = entity_id),
                candidates AS (SELECT candidate_id, text_key FROM catalog
                               WHERE ? OR candidate_id IN (SELECT id FROM wanted_candidates)),
                pairs AS (
                    SELECT s.text_key, unnest(b.candidate_text_keys) AS candidate_text_key, unnest(s.margins) AS margin
                    FROM (SELECT * FROM scores SEMI JOIN wanted USING (text_key) WHERE scorer_key = ?) s
                    JOIN {BLOCKS_AS_LISTS} b ON b.block_id = s.block_id)
                SELECT w.entity_id, c.candidate_id, p.margin FROM pairs p JOIN wanted w ON w.text_key = p.text_key
                JOIN candidates c ON c.text_key = p.candidate_text_key ORDER BY ALL""",
                [chosen is None, -1 if key is None else key],
            )

    # What is derived

    def predictions_count(self) -> int:
        """Rows of `predictions`, counted by rounds and not by pairs where there are no shortlists."""
        if self.shortlisted():
            ((shown,),) = self.rows("SELECT count(*) FROM predictions")
            return int(shown)
        ((count,),) = self.rows(
            """SELECT coalesce(sum(b.candidates), 0) FROM scoped_entities e JOIN scores s ON s.text_key = e.text_key
            JOIN (SELECT b.block_id, count(*) AS candidates FROM blocks b
                  JOIN catalog c ON c.text_key = b.candidate_text_key GROUP BY b.block_id) b ON b.block_id = s.block_id
            WHERE s.scorer_key = (SELECT scorer_key FROM labelers JOIN active_labeler USING (labeler_digest))"""
        )
        return int(count)

    def coverage(self, examples: int = 50) -> Coverage:
        """Whether every entity in scope has a margin for every candidate under the active labeler."""
        ((expected,),) = self.rows("SELECT (SELECT count(*) FROM scoped_entities) * (SELECT count(*) FROM catalog)")
        stored, left_out = self.predictions_count(), self.not_shortlisted()
        shortlists, wanted = _WANTED if self.shortlisted() else ("", "")
        missing: list[tuple[Any, ...]] = []
        if stored + left_out != expected:
            missing = self.rows(
                f"SELECT e.entity_id, c.candidate_id FROM scoped_entities e CROSS JOIN catalog c {shortlists}"
                f"ANTI JOIN predictions p ON p.entity_id = e.entity_id AND p.candidate_id = c.candidate_id {wanted}"
                "ORDER BY ALL LIMIT ?",
                [examples],
            )
        return Coverage(int(expected), stored, [(entity, candidate) for entity, candidate in missing], left_out)

    def shortlisted(self) -> bool:
        """Whether only shortlisted pairs are predicted."""
        return bool(self.rows("SELECT 1 FROM active_shortlist"))

    def shortlist(self) -> dict[str, Any] | None:
        """The rule behind the shortlists: digest (of the rule), size, encoder, encoder_digest; None without any."""
        rows = self.rows("SELECT rule_digest, size, encoder, encoder_digest FROM active_shortlist")
        return dict(zip(("digest", "size", "encoder", "encoder_digest"), rows[0], strict=True)) if rows else None

    def shortlist_digest(self, rule_digest: str) -> str:
        """What the shortlists of a rule and the present catalog are called."""
        order = "SELECT text_id FROM catalog GROUP BY text_id ORDER BY min(position)"
        return digest_of([rule_digest, *(text_id for (text_id,) in self.rows(order))])

    def shortlists_are_current(self) -> bool:
        """Whether there are shortlists and they were made for the present catalog."""
        rows = self.rows("SELECT digest, rule_digest FROM active_shortlist")
        return bool(rows) and rows[0][0] == self.shortlist_digest(rows[0][1])

    def not_shortlisted(self) -> int:
        """Pairs of the scope that current shortlists leave out; an entity without a shortlist leaves none out."""
        if not self.shortlists_are_current():
            return 0
        ((count,),) = self.rows(
            f"""SELECT (SELECT count(*) FROM scoped_entities SEMI JOIN shortlists USING (text_key))
                     * (SELECT count(*) FROM catalog)
                - (SELECT count(*) FROM scoped_entities e JOIN ({schema.shortlisted_pairs("scoped_entities")}) k
                   USING (text_key) JOIN catalog c ON c.text_key = k.candidate_text_key)"""
        )
        return int(count)

    def shortlist_sizes(self, entity_ids: Iterable[str]) -> dict[str, int]:
        """How many candidates of the catalog are in the shortlists of these entities, as far as they have one."""
        with self.ids("listed_entities", entity_ids):
            entities = "(SELECT * FROM entities SEMI JOIN listed_entities ON id = entity_id)"
            rows = self.rows(
                f"""SELECT e.entity_id, count(*) FROM {entities} e
                JOIN ({schema.shortlisted_pairs(entities)}) k USING (text_key)
                JOIN catalog c ON c.text_key = k.candidate_text_key GROUP BY e.entity_id"""
            )
        return dict(rows)

    def predictions_query(self, entities: str) -> str:
        """The query of the predictions for a relation of entities (entity_id, text_key, truncated)."""
        return schema.predictions_query(entities, self.shortlisted())

    def renew_views(self, connection: "duckdb.DuckDBPyConnection") -> None:
        """Make the views as the tables ask for them, inside the caller's transaction."""
        views = self._views()
        for view in views:
            connection.execute(view)
        connection.execute("UPDATE meta SET views_digest = ?", [digest_of(list(views))])

    def predictions_digest(self) -> str:
        """What the predictions depend on: scope, entities, catalog, labeler, and which scorings of how many pairs."""
        # Nobody writes while somebody reads, and every gate asks, some of them several times.
        if not self._predictions_digest or not self._read_only:
            self._predictions_digest = self._digest_of_predictions()
        return self._predictions_digest

    def _digest_of_predictions(self) -> str:
        labeler = self.active_labeler()
        facts: dict[str, Any] = {
            "scope": self.scope()["digest"],
            "entities": self.content_digest("entities"),
            "catalog": self.content_digest("catalog"),
            "labeler": labeler["labeler_digest"] if labeler else None,
            "pairs": self.predictions_count(),
            "rounds": self._rounds_fingerprint(),
        }
        shortlist = self.rows("SELECT digest FROM active_shortlist")
        if shortlist:
            facts |= {"shortlist": shortlist[0][0], "lists": self._lists_fingerprint()}
        return digest_of(facts)

    def _rounds_fingerprint(self) -> int:
        """Which scorings the predictions are made of, whatever the order of rounds; read by rounds and not by pairs.

        A margin is computed once: moment, run and texts of a commit tell it from any that could come in its place
        (after a lost log, or a purge). Neither the block enters, because a purge moves rounds of candidates that left
        to another one, nor rounds of none but such candidates.
        """
        ((total,),) = self.rows(
            """SELECT coalesce(sum(CAST(md5_number_lower(
                concat_ws(' ', epoch_us(scored_at), run_id, rounds, texts, squares)) AS HUGEINT)), 0)
            FROM (SELECT s.scored_at, s.run_id, count(*) AS rounds, sum(s.text_key) AS texts,
                         sum(CAST(s.text_key AS BIGINT) * s.text_key) AS squares
                FROM scores s
                WHERE s.scorer_key = (SELECT scorer_key FROM labelers JOIN active_labeler USING (labeler_digest))
                    AND s.text_key IN (SELECT text_key FROM scoped_entities)
                    AND s.block_id IN (SELECT block_id FROM blocks SEMI JOIN catalog ON text_key = candidate_text_key)
                GROUP BY s.scored_at, s.run_id)"""
        )
        return int(total)

    def _lists_fingerprint(self) -> int:
        """Which candidates are shown of the entities in scope: another list may hold pairs that are scored already."""
        ((total,),) = self.rows(
            """SELECT coalesce(sum(CAST(md5_number_lower(
                concat_ws(' ', text_key, CAST(candidate_text_keys AS VARCHAR))) AS HUGEINT)), 0)
            FROM shortlists WHERE text_key IN (SELECT text_key FROM scoped_entities)"""
        )
        return int(total)

    def content_hash(self, relation: str = "predictions") -> str:
        """The content hash of the predictions, or of another relation with the same columns (see `content_hash`)."""
        return content_hash(*content_sum(self.rows, relation))

    def warehouse_id(self) -> str:
        """What tells this file from another one whose surrogates mean other texts."""
        ((identity,),) = self.rows("SELECT warehouse_id FROM meta")
        return str(identity)

    def _replace(self, name: str, frame: "pandas.DataFrame", run_id: str, source_digest: str | None) -> Replaced:
        with self.transaction() as connection:
            return replace_table(connection, TABLES[name], frame, run_id, source_digest)

    def _migrate(self, read_only: bool) -> None:
        known = len(schema.MIGRATIONS)
        version = self._schema_version()
        if version > known:
            raise WarehouseError(
                f"{self.path}: written by a newer semlabel (schema {version}, this one knows {known}): upgrade semlabel"
            )
        if read_only and version < known:
            raise WarehouseError(
                f"{self.path}: schema {version} is older than {known}: run the pipeline once to migrate it"
            )
        if read_only or (
            version == known and self.rows("SELECT views_digest FROM meta") == [(digest_of(list(self._views())),)]
        ):
            return
        with self.transaction() as connection:
            for statements in schema.MIGRATIONS[version:]:
                for statement in statements:
                    connection.execute(statement)
            if version == 0:
                connection.execute("INSERT INTO meta VALUES (?, ?, ?, '')", [known, uuid4().hex, _now()])
            self.renew_views(connection)
            connection.execute("UPDATE meta SET schema_version = ?", [known])

    def _schema_version(self) -> int:
        """Which migrations the file has seen, 0 for one that is empty yet.

        Asked of the table itself: looking for it among all tables takes ten times as long, at every opening.
        """
        import duckdb

        try:
            ((version,),) = self.rows("SELECT schema_version FROM meta")
        except duckdb.CatalogException:
            return 0
        return int(version)

    def _views(self) -> tuple[str, ...]:
        return schema.views(self.shortlisted())


def _now() -> datetime:
    return datetime.now(UTC).replace(tzinfo=None)


@dataclass(frozen=True)
class Opening:
    """How the warehouse is opened, as the settings say."""

    memory_limit: str = "2GB"
    threads: int = 0
    temp_directory: Path | None = None

    @classmethod
    def of(cls, settings: "Settings") -> "Opening":
        """What the settings say."""
        return cls(settings.scoring.memory_limit, settings.scoring.threads, settings.paths.temporary)

    def open(self, path: Path, read_only: bool = False, wait_seconds: float = LOCK_SECONDS) -> Warehouse:
        """The warehouse at `path`. Raises as `Warehouse.open`."""
        return Warehouse.open(path, read_only, self.memory_limit, self.threads, self.temp_directory, wait_seconds)
