"""The file behind `ops.sqlite`: its tables, its numbered migrations, and transactions on it.

Knows SQL and files; deliberately knows nothing of what a gate, a run or a lease means. A connection is opened for
each transaction: SQLite connections must not cross threads or forks, and opening one costs less than a commit.
"""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from semlabel.errors import WarehouseError

BUSY_SECONDS = 30.0

# Migration i brings a file of version i to version i + 1. A published entry is never edited: later ones follow it.
MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """CREATE TABLE gate_results (
            id INTEGER PRIMARY KEY, run_id TEXT NOT NULL, gate TEXT NOT NULL, asset TEXT NOT NULL,
            severity TEXT NOT NULL, verdict TEXT NOT NULL, value REAL, limit_value REAL, labeler_digest TEXT,
            subject_digest TEXT NOT NULL, gate_code_version NOT NULL, sentence TEXT NOT NULL,
            computed INTEGER NOT NULL, evidence_json TEXT NOT NULL, evaluated_at TEXT NOT NULL)""",
        "CREATE INDEX gate_results_by_subject ON gate_results (gate, subject_digest, id)",
        "CREATE INDEX gate_results_by_run ON gate_results (run_id, id)",
        """CREATE TABLE outbox (
            id INTEGER PRIMARY KEY, asset TEXT NOT NULL, gate TEXT NOT NULL, severity TEXT NOT NULL,
            kind TEXT NOT NULL, verdict TEXT NOT NULL, message TEXT NOT NULL, run_id TEXT NOT NULL,
            created_at TEXT NOT NULL)""",
        "CREATE INDEX outbox_by_key ON outbox (asset, gate, severity, id)",
        """CREATE TABLE deliveries (
            id INTEGER PRIMARY KEY, outbox_id INTEGER NOT NULL REFERENCES outbox (id), target TEXT NOT NULL,
            delivered INTEGER NOT NULL, error TEXT, attempted_at TEXT NOT NULL)""",
        "CREATE INDEX deliveries_by_row ON deliveries (outbox_id, target)",
        """CREATE TABLE runs (
            run_id TEXT PRIMARY KEY, job TEXT NOT NULL, status TEXT NOT NULL, started_at TEXT NOT NULL,
            finished_at TEXT, note TEXT, pairs_scored INTEGER NOT NULL DEFAULT 0,
            pairs_reused INTEGER NOT NULL DEFAULT 0, model_loads INTEGER NOT NULL DEFAULT 0,
            scoring_seconds REAL NOT NULL DEFAULT 0, host TEXT NOT NULL, pid INTEGER NOT NULL,
            boot_id TEXT NOT NULL, process_start TEXT NOT NULL)""",
        "CREATE INDEX runs_by_start ON runs (started_at)",
        """CREATE TABLE progress (
            run_id TEXT NOT NULL, stage TEXT NOT NULL, done INTEGER NOT NULL, total INTEGER NOT NULL,
            unit TEXT NOT NULL, updated_at TEXT NOT NULL, PRIMARY KEY (run_id, stage))""",
        """CREATE TABLE leases (
            name TEXT PRIMARY KEY, token TEXT NOT NULL, run_id TEXT NOT NULL, host TEXT NOT NULL,
            pid INTEGER NOT NULL, boot_id TEXT NOT NULL, process_start TEXT NOT NULL,
            acquired_at TEXT NOT NULL, heartbeat TEXT NOT NULL)""",
        """CREATE TABLE plans (
            plan_id TEXT PRIMARY KEY, scorer_digest TEXT NOT NULL, subject_digest TEXT NOT NULL,
            state TEXT NOT NULL, rounds_total INTEGER NOT NULL, rounds_done INTEGER NOT NULL DEFAULT 0,
            pairs INTEGER NOT NULL DEFAULT 0, estimated_seconds REAL, measured_seconds REAL, payload BLOB,
            created_at TEXT NOT NULL, updated_at TEXT NOT NULL)""",
        "CREATE INDEX plans_by_subject ON plans (scorer_digest, subject_digest, state)",
        """CREATE TABLE promotions (
            id INTEGER PRIMARY KEY, labeler_digest TEXT NOT NULL, who TEXT NOT NULL, reason TEXT NOT NULL,
            promoted_at TEXT NOT NULL)""",
        """CREATE TABLE approvals (
            subject_digest TEXT NOT NULL, who TEXT NOT NULL, reason TEXT NOT NULL, approved_at TEXT NOT NULL)""",
        "CREATE INDEX approvals_by_subject ON approvals (subject_digest)",
        """CREATE TABLE certify_ledger (
            id INTEGER PRIMARY KEY, set_digest TEXT NOT NULL, labeler_digest TEXT NOT NULL, confidence REAL,
            verdict TEXT, run_id TEXT, used_at TEXT NOT NULL)""",
        "CREATE INDEX certify_ledger_by_set ON certify_ledger (set_digest)",
        "CREATE TABLE metrics (labeler_digest TEXT PRIMARY KEY, metrics_json TEXT NOT NULL, saved_at TEXT NOT NULL)",
        """CREATE TABLE publications (
            id INTEGER PRIMARY KEY, version TEXT NOT NULL, path TEXT NOT NULL, action TEXT NOT NULL,
            labeler_digest TEXT, run_id TEXT, who TEXT, reason TEXT, recorded_at TEXT NOT NULL)""",
        "CREATE TABLE settings (name TEXT PRIMARY KEY, value TEXT NOT NULL, updated_at TEXT NOT NULL)",
    ),
    (
        """CREATE TABLE erasures (
            id_digest TEXT PRIMARY KEY, started_at TEXT NOT NULL, finished_at TEXT, counts_json TEXT NOT NULL)""",
        # An incident is named by the row that opened it: the first red one of its key since the last green one.
        "ALTER TABLE outbox ADD COLUMN incident INTEGER",
        """UPDATE outbox SET incident = (
            SELECT min(opening.id) FROM outbox opening
            WHERE opening.asset = outbox.asset AND opening.gate = outbox.gate AND opening.severity = outbox.severity
            AND opening.kind = 'failed' AND opening.id <= outbox.id AND opening.id > coalesce((
                SELECT max(closing.id) FROM outbox closing
                WHERE closing.asset = outbox.asset AND closing.gate = outbox.gate
                AND closing.severity = outbox.severity AND closing.kind = 'recovered'
                AND closing.id < outbox.id), 0))""",
        "CREATE INDEX outbox_by_incident ON outbox (incident)",
        "ALTER TABLE outbox ADD COLUMN value REAL",
        "ALTER TABLE outbox ADD COLUMN limit_value REAL",
        """CREATE TABLE recipients (
            outbox_id INTEGER NOT NULL REFERENCES outbox (id), target TEXT NOT NULL,
            PRIMARY KEY (outbox_id, target))""",
        # `outbox_id` and what follows it: the row that is being sent at this moment, and by whom.
        """CREATE TABLE channels (
            target TEXT PRIMARY KEY, failures INTEGER NOT NULL DEFAULT 0, error TEXT, attempted_at TEXT,
            succeeded_at TEXT, outbox_id INTEGER, token TEXT, host TEXT, pid INTEGER, boot_id TEXT,
            process_start TEXT, claimed_at TEXT)""",
        """CREATE TABLE acknowledgements (
            incident INTEGER PRIMARY KEY REFERENCES outbox (id), who TEXT NOT NULL, reason TEXT NOT NULL,
            acknowledged_at TEXT NOT NULL)""",
    ),
    (
        # Whom a use of a certify set looked at, by the digest of the id; none are known of uses by earlier versions.
        """CREATE TABLE certify_entities (
            use_id INTEGER NOT NULL REFERENCES certify_ledger (id), entity_digest TEXT NOT NULL,
            PRIMARY KEY (use_id, entity_digest)) WITHOUT ROWID""",
        "CREATE INDEX certify_entities_by_digest ON certify_entities (entity_digest)",
    ),
    (
        # What was asked of the set, entered with the use before its look; null where an earlier version asked: its
        # labeler tells. Labeler and verdict follow the look, until then the labeler is an empty text.
        "ALTER TABLE certify_ledger ADD COLUMN question_digest TEXT",
        # Whether a labeler may have been trained on the entity.
        "ALTER TABLE erasures ADD COLUMN trained INTEGER NOT NULL DEFAULT 0",
        """UPDATE erasures SET trained = 1
        WHERE json_extract(counts_json, '$."warehouse: training_pairs"') > 0""",
    ),
    (
        # A pid means something in its namespace only; null where an earlier version noted it: it cannot be looked for.
        "ALTER TABLE leases ADD COLUMN pid_namespace TEXT",
        "ALTER TABLE channels ADD COLUMN pid_namespace TEXT",
        "ALTER TABLE runs ADD COLUMN pid_namespace TEXT",
        # The last sign of life; null in runs of earlier versions, which gave none but their progress.
        "ALTER TABLE runs ADD COLUMN heartbeat TEXT",
        # Under which `[publish] uncertified_candidates` the change was judged that is approved: under another one the
        # same predictions publish other rows. Null where an earlier version approved: that counts under each.
        "ALTER TABLE approvals ADD COLUMN uncertified_candidates TEXT",
    ),
)


def now_utc() -> str:
    """The current time as ISO 8601 in UTC with microseconds, so that text order is time order."""
    return datetime.now(UTC).isoformat(timespec="microseconds")


# What a person can do about each of SQLite's environmental errors; every other error is ours and keeps its traceback.
_ADVICE = {
    sqlite3.SQLITE_BUSY: "another process keeps the file locked; find it and stop it",
    sqlite3.SQLITE_LOCKED: "another process keeps the file locked; find it and stop it",
    sqlite3.SQLITE_READONLY: "make the file and its folder writable",
    sqlite3.SQLITE_CANTOPEN: "make the file and its folder readable and writable",
    sqlite3.SQLITE_PERM: "make the file and its folder readable and writable",
    sqlite3.SQLITE_IOERR: "check the disk",
    sqlite3.SQLITE_FULL: "free some disk space",
    sqlite3.SQLITE_CORRUPT: "the file is damaged; move it away (gates will be evaluated again)",
    sqlite3.SQLITE_NOTADB: "not a SQLite file; move it away (gates will be evaluated again)",
}


class OperationsFile:
    """Transactions on one `ops.sqlite`, created and migrated when it is first opened.

    Raises WarehouseError when the file is newer than this code, is no SQLite file, or cannot be written.
    """

    def __init__(self, path: Path) -> None:
        """Open `path`, creating file and folder (mode 0700) when missing."""
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._migrate()

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """A write transaction: committed as a whole when the block ends, undone as a whole when it raises."""
        with self._connection() as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
            connection.execute("COMMIT")

    def rows(self, sql: str, parameters: Sequence[Any] = ()) -> list[dict[str, Any]]:
        """The rows of a query, each a dict of column name to value."""
        with self._connection() as connection:
            return [dict(row) for row in connection.execute(sql, parameters)]

    def first(self, sql: str, parameters: Sequence[Any] = ()) -> dict[str, Any] | None:
        """The first row of a query, or None."""
        rows = self.rows(sql, parameters)
        return rows[0] if rows else None

    def wipe(self) -> None:
        """Leave nothing of removed rows in the bytes of the file or its log."""
        with self._connection() as connection:
            connection.execute("VACUUM")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        with self._translated():
            connection = sqlite3.connect(self.path, timeout=BUSY_SECONDS, isolation_level=None)
            try:
                connection.row_factory = sqlite3.Row
                connection.execute("PRAGMA foreign_keys = ON")
                yield connection
            finally:
                connection.close()

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.DatabaseError as error:
            advice = _ADVICE.get(getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF)
            if advice is None:
                raise
            raise WarehouseError(f"{self.path}: {error}: {advice}") from error

    def _migrate(self) -> None:
        with self._connection() as connection:
            version = _version(connection)
            if version == len(MIGRATIONS):
                return
            self._refuse_newer(version)
            connection.execute("PRAGMA journal_mode = WAL")
        with self.transaction() as connection:
            version = _version(connection)
            self._refuse_newer(version)
            for statements in MIGRATIONS[version:]:
                for statement in statements:
                    connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")

    def _refuse_newer(self, version: int) -> None:
        if version > len(MIGRATIONS):
            raise WarehouseError(
                f"{self.path}: written by a newer semlabel (schema {version}, this one knows {len(MIGRATIONS)}): "
                "upgrade semlabel"
            )


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])
