"""Operational state: what ran, what the gates said, who holds what, who promoted and approved.

Lives in `ops.sqlite` and deliberately not in the warehouse, which cannot even be read while a run writes it: status,
alerts, sensors and servers read this file only. Knows nothing of margins and texts. Values that go in and come out
are plain Python types; times are UTC in ISO 8601. Every method is one transaction, safe across threads and processes,
and raises WarehouseError when the file cannot be used.
"""

import json
import math
import os
import sqlite3
from collections.abc import Collection, Iterable
from contextlib import AbstractContextManager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from semlabel import deliveries, leases, outbox, run_news
from semlabel.leases import Lease, OnWait
from semlabel.operations_schema import OperationsFile, now_utc
from semlabel.processes import ProcessIdentity, beating
from semlabel.progress import Progress
from semlabel.repeated import Repeated
from semlabel.run_life import STARTED, beat, dead_runs, seems_dead
from semlabel.run_news import Ending

if TYPE_CHECKING:
    from semlabel.gates import GateResult

_PAUSED = "publishing_paused"
_PLANS_KEPT = 200


class Operations:
    """The operational state kept in one `ops.sqlite`."""

    def __init__(self, path: Path, repeat_after: timedelta = outbox.REPEAT_AFTER) -> None:
        """Open `path`, creating or migrating it; raises WarehouseError when it is newer than this code.

        `repeat_after` is the time after which a gate that stays red is told again.
        """
        self.file = OperationsFile(path)
        self.path = self.file.path
        self._repeat_after = repeat_after

    # Gates and alerts

    def record_gate(
        self,
        run_id: str,
        result: "GateResult",
        labeler_digest: str | None,
        subject_digest: str,
        gate_code_version: int | str,
    ) -> None:
        """Keep a verdict and, in the same transaction, the alert it gives rise to (see `outbox`)."""
        evidence = json.dumps(plain(result.evidence), sort_keys=True, ensure_ascii=False, allow_nan=False)
        with self.file.transaction() as connection:
            connection.execute(
                "INSERT INTO gate_results (run_id, gate, asset, severity, verdict, value, limit_value, labeler_digest,"
                " subject_digest, gate_code_version, sentence, computed, evidence_json, evaluated_at)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    run_id,
                    result.gate,
                    result.asset,
                    result.severity,
                    result.verdict,
                    _number(result.value),
                    _number(result.limit),
                    labeler_digest,
                    subject_digest,
                    gate_code_version,
                    result.sentence,
                    int(result.computed),
                    evidence,
                    now_utc(),
                ),
            )
            said = outbox.Verdict(
                asset=result.asset,
                gate=result.gate,
                severity=result.severity,
                verdict=result.verdict,
                message=outbox.message_of(result.gate, result.sentence, result.computed),
                run_id=run_id,
                value=_number(result.value),
                limit=_number(result.limit),
            )
            outbox.note_verdict(connection, said, self._repeat_after)

    def latest_gate(
        self,
        gate: str,
        subject_digest: str,
        labeler_digest: str | None = None,
        gate_code_version: int | str | None = None,
    ) -> dict[str, Any] | None:
        """The newest verdict of `gate` about exactly this subject, or None.

        None for labeler or code version means "whichever". Keys: the columns of `gate_results`, with `limit` for
        `limit_value` and `evidence` (a dict) for `evidence_json`.
        """
        row = self.file.first(
            "SELECT * FROM gate_results WHERE gate = ? AND subject_digest = ? AND (? IS NULL OR labeler_digest = ?)"
            " AND (? IS NULL OR gate_code_version = ?) ORDER BY id DESC LIMIT 1",
            (gate, subject_digest, labeler_digest, labeler_digest, gate_code_version, gate_code_version),
        )
        return _gate(row) if row else None

    def gates_of_run(self, run_id: str) -> list[dict[str, Any]]:
        """Every verdict recorded in a run, in the order of evaluation."""
        return [
            _gate(row) for row in self.file.rows("SELECT * FROM gate_results WHERE run_id = ? ORDER BY id", (run_id,))
        ]

    def latest_gates(self) -> list[dict[str, Any]]:
        """The newest verdict of each gate, whatever its subject, in the order of evaluation."""
        newest = "SELECT max(id) FROM gate_results GROUP BY gate"
        return [_gate(row) for row in self.file.rows(f"SELECT * FROM gate_results WHERE id IN ({newest}) ORDER BY id")]

    def undelivered_alerts(self, target: str) -> list[dict[str, Any]]:
        """Alerts that have not reached `target` (a name, never an address with a secret), oldest first."""
        return deliveries.undelivered(self.file, target)

    def record_delivery(self, outbox_id: int, target: str, error: str | None = None) -> None:
        """Keep one attempt to deliver an alert; `error` is None when it succeeded."""
        deliveries.record(self.file, outbox_id, target, error)

    # Runs

    def start_run(self, run_id: str, job: str, pid: int | None = None) -> None:
        """Note that a run has started. Noting it again is a sign of life; start and process stay, unless that died.

        `pid` is the process whose death would end the run (default: this one): a step that runs in a process of its
        own names the one that launched it, or the run looks dead as soon as the step is over.
        """
        me, now = ProcessIdentity.of_pid(os.getpid() if pid is None else pid), now_utc()
        identity = (me.host, me.pid, me.boot_id, me.process_start, me.pid_namespace)
        with self.file.transaction() as connection:
            row = connection.execute("SELECT * FROM runs WHERE run_id = ?", (run_id,)).fetchone()
            if row is None:
                connection.execute(
                    "INSERT INTO runs (run_id, job, status, started_at, heartbeat, host, pid, boot_id, process_start,"
                    " pid_namespace) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                    (run_id, job, STARTED, now, now, *identity),
                )
            elif row["status"] != STARTED or seems_dead(dict(row), row["heartbeat"] or row["started_at"]):
                connection.execute(
                    "UPDATE runs SET status = ?, finished_at = NULL, note = NULL, heartbeat = ?, host = ?, pid = ?,"
                    " boot_id = ?, process_start = ?, pid_namespace = ? WHERE run_id = ?",
                    (STARTED, now, *identity, run_id),
                )
            else:
                beat(connection, run_id)

    def at_work(self, run_id: str) -> Repeated:
        """Give signs of life of a run until the block ends: who cannot see its process goes by them."""

        def once() -> None:
            with self.file.transaction() as connection:
                beat(connection, run_id)

        return beating(once, f"run-{run_id}")

    def finish_run(self, run_id: str, status: str, note: str | None = None, ending: Ending | None = None) -> None:
        """Note how a run ended (`SUCCESS`, `FAILURE`, `CANCELED`) and, in the same transaction, what `ending` gives
        people to know (see `run_news`; None: nothing). An end that somebody noted before is told once.
        """
        with self.file.transaction() as connection:
            started = self._started(connection, run_id)
            at = ending.at if ending is not None and ending.at else now_utc()
            connection.execute(
                "UPDATE runs SET status = ?, finished_at = ?, note = ? WHERE run_id = ?", (status, at, note, run_id)
            )
            if started and ending is not None:
                run_news.note_end(connection, run_id, status, ending, self._repeat_after)

    def add_to_run(
        self,
        run_id: str,
        *,
        pairs_scored: int = 0,
        pairs_reused: int = 0,
        model_loads: int = 0,
        scoring_seconds: float = 0.0,
    ) -> None:
        """Add to the figures of a run. Raises ValueError when the run was never started."""
        with self.file.transaction() as connection:
            _add_to_run(connection, run_id, pairs_scored, pairs_reused, model_loads, scoring_seconds)

    def run(self, run_id: str) -> dict[str, Any] | None:
        """The row of a run with `labels_per_s` (None when nothing was scored), or None."""
        row = self.file.first("SELECT * FROM runs WHERE run_id = ?", (run_id,))
        return _run(row) if row else None

    def runs(self, limit: int = 50) -> list[dict[str, Any]]:
        """The newest runs, newest first."""
        return [_run(row) for row in self.file.rows("SELECT * FROM runs ORDER BY started_at DESC LIMIT ?", (limit,))]

    def last_run(self) -> dict[str, Any] | None:
        """The newest run, or None before the first."""
        return next(iter(self.runs(limit=1)), None)

    def dead_runs(self, watched: bool = True) -> list[dict[str, Any]]:
        """Runs that never finished and whose process is dead, with `seen_at`, their last sign of life.

        A process that is silent and cannot be seen from here is `watched` for some seconds before it counts as dead.
        """
        return [_run(row) for row in dead_runs(self.file, watched)]

    def mark_run_dead(self, run_id: str, ending: Ending | None = None) -> None:
        """Close a run whose process died, as a failure (`ending` as for `finish_run`), and free its dead leases."""
        run = self.run(run_id)
        if run is None or run["status"] != STARTED:
            return
        dead = [
            row["name"]
            for row in self.file.rows("SELECT * FROM leases WHERE run_id = ?", (run_id,))
            if seems_dead(row, row["heartbeat"])
        ]
        with self.file.transaction() as connection:
            started = self._started(connection, run_id)
            connection.execute(
                "UPDATE runs SET status = 'FAILURE', finished_at = ?, note = ? WHERE run_id = ? AND status = ?",
                (now_utc(), f"its process died ({ProcessIdentity.of_row(run)})", run_id, STARTED),
            )
            for name in dead:
                connection.execute("DELETE FROM leases WHERE name = ? AND run_id = ?", (name, run_id))
            if started and ending is not None:
                run_news.note_end(connection, run_id, "FAILURE", ending, self._repeat_after)

    def set_progress(self, run_id: str, stage: str, done: int, total: int, unit: str) -> None:
        """Keep how far a stage of a run is; `total` is 0 while unknown."""
        with self.file.transaction() as connection:
            _set_progress(connection, run_id, Progress(stage, done, total, unit))

    def progress_of(self, run_id: str) -> list[dict[str, Any]]:
        """The stages of a run with `stage, done, total, unit, updated_at`; the one that moved last comes last."""
        return self.file.rows("SELECT * FROM progress WHERE run_id = ? ORDER BY updated_at", (run_id,))

    # Leases

    def lease(
        self, name: str, run_id: str, wait_seconds: float, on_wait: OnWait | None = None
    ) -> AbstractContextManager[Lease]:
        """Hold a lease while a block runs; see `leases.hold`. Raises LeaseHeld after `wait_seconds`."""
        return leases.hold(self.file, name, run_id, wait_seconds, on_wait)

    # Plans

    def save_plan(
        self,
        plan_id: str,
        scorer_digest: str,
        subject_digest: str,
        rounds_total: int,
        payload: bytes,
        *,
        pairs: int = 0,
        estimated_seconds: float | None = None,
    ) -> None:
        """Keep a plan as open; other open plans for the same scorer and subject are superseded."""
        now = now_utc()
        with self.file.transaction() as connection:
            connection.execute(
                "UPDATE plans SET state = 'superseded', payload = NULL, updated_at = ?"
                " WHERE scorer_digest = ? AND subject_digest = ? AND state = 'open'",
                (now, scorer_digest, subject_digest),
            )
            connection.execute(
                "INSERT INTO plans (plan_id, scorer_digest, subject_digest, state, rounds_total, pairs,"
                " estimated_seconds, payload, created_at, updated_at) VALUES (?, ?, ?, 'open', ?, ?, ?, ?, ?, ?)",
                (plan_id, scorer_digest, subject_digest, rounds_total, pairs, estimated_seconds, payload, now, now),
            )
            connection.execute(
                "DELETE FROM plans WHERE plan_id NOT IN (SELECT plan_id FROM plans ORDER BY created_at DESC LIMIT ?)",
                (_PLANS_KEPT,),
            )

    def update_plan(self, plan_id: str, done: int, state: str, seconds: float = 0.0) -> None:
        """Keep how many rounds are done, add the seconds they took, and drop the rounds of a plan that is not open."""
        with self.file.transaction() as connection:
            _update_plan(connection, plan_id, done, state, seconds)

    def record_batch(
        self,
        run_id: str,
        plan_id: str,
        *,
        rounds_done: int,
        state: str,
        pairs_scored: int,
        seconds: float,
        progress: Progress,
    ) -> None:
        """Enter a committed batch of a plan in one transaction: the run's figures, the plan's state, the progress."""
        with self.file.transaction() as connection:
            _add_to_run(connection, run_id, pairs_scored, 0, 0, seconds)
            _update_plan(connection, plan_id, rounds_done, state, seconds)
            _set_progress(connection, run_id, progress)

    def open_plan(self, scorer_digest: str, subject_digest: str) -> dict[str, Any] | None:
        """The unfinished plan for exactly this scorer and subject, with its `payload`, or None."""
        return self.file.first(
            "SELECT * FROM plans WHERE scorer_digest = ? AND subject_digest = ? AND state = 'open'"
            " ORDER BY created_at DESC LIMIT 1",
            (scorer_digest, subject_digest),
        )

    def finished_plans(self, limit: int = 20) -> list[dict[str, Any]]:
        """The newest finished plans: `pairs, rounds_total, estimated_seconds, measured_seconds`, newest first."""
        return self.file.rows(
            "SELECT plan_id, scorer_digest, pairs, rounds_total, estimated_seconds, measured_seconds, updated_at"
            " FROM plans WHERE state = 'done' ORDER BY updated_at DESC LIMIT ?",
            (limit,),
        )

    # Promotion, approval, certification

    def promote(self, labeler_digest: str, who: str, reason: str) -> None:
        """Record who made this labeler the current one, and why."""
        self._insert("promotions", labeler_digest=labeler_digest, who=who, reason=reason, promoted_at=now_utc())

    def promoted(self) -> dict[str, Any] | None:
        """The newest promotion (`labeler_digest, who, reason, promoted_at`), or None."""
        return self.file.first("SELECT * FROM promotions ORDER BY id DESC LIMIT 1")

    def approve(
        self, subject_digest: str, who: str, reason: str = "", uncertified_candidates: str | None = None
    ) -> None:
        """Let one change pass: exactly the one with this subject digest, published under this setting of
        `uncertified_candidates` (None: under whichever).
        """
        self._insert(
            "approvals",
            subject_digest=subject_digest,
            who=who,
            reason=reason,
            approved_at=now_utc(),
            uncertified_candidates=uncertified_candidates,
        )

    def approved(self, subject_digest: str, since: str = "", uncertified_candidates: str | None = None) -> bool:
        """Whether somebody approved the change with this subject digest, after the time `since` (ISO, UTC) if given, as
        it is published under this setting of `uncertified_candidates` (None: under whichever).
        """
        query = (
            "SELECT 1 FROM approvals WHERE subject_digest = ? AND approved_at > ?"
            " AND (? IS NULL OR coalesce(uncertified_candidates, ?) = ?)"
        )
        return self.file.first(query, (subject_digest, since, *[uncertified_candidates] * 3)) is not None

    def begin_certify(
        self,
        set_digest: str,
        question_digest: str,
        entity_digests: Iterable[str],
        *,
        confidence: float | None = None,
        run_id: str | None = None,
    ) -> int:
        """Enter one use of a certify set into the ledger before the look, and return its id for `complete_certify`.

        `entity_digests` are the entities that are looked at, `question_digest` says what is asked of them. A use whose
        run is killed counts like any other.
        """
        row = (set_digest, question_digest, _number(confidence), run_id, now_utc())
        with self.file.transaction() as connection:
            use = connection.execute(
                "INSERT INTO certify_ledger (set_digest, question_digest, labeler_digest, confidence, run_id, used_at) "
                "VALUES (?, ?, '', ?, ?, ?)",
                row,
            ).lastrowid
            connection.executemany(
                "INSERT INTO certify_entities VALUES (?, ?)", [(use, digest) for digest in set(entity_digests)]
            )
        assert use is not None
        return use

    def complete_certify(self, use_id: int, labeler_digest: str, verdict: str | None = None) -> None:
        """Enter which labeler a use gave and the verdict on it. The first answer stays."""
        with self.file.transaction() as connection:
            connection.execute(
                "UPDATE certify_ledger SET labeler_digest = ?, verdict = ? WHERE id = ? AND labeler_digest = ''",
                (labeler_digest, verdict, use_id),
            )

    def certify_uses(self, set_digest: str) -> list[dict[str, Any]]:
        """Every use of a certify set, oldest first; `labeler_digest` is empty where the look has not ended."""
        return self.file.rows("SELECT * FROM certify_ledger WHERE set_digest = ? ORDER BY id", (set_digest,))

    def certify_looks(self, entity_digests: Collection[str]) -> list[dict[str, Any]]:
        """Every use that looked at one of these entities, oldest first; one that does not tell at whom counts too."""
        at: dict[int, set[str]] = {}
        for row in self.file.rows("SELECT use_id, entity_digest FROM certify_entities"):
            at.setdefault(row["use_id"], set()).add(row["entity_digest"])
        wanted = set(entity_digests)
        uses = self.file.rows("SELECT * FROM certify_ledger ORDER BY id")
        return [use for use in uses if use["id"] not in at or not wanted.isdisjoint(at[use["id"]])]

    def save_metrics(self, labeler_digest: str, metrics: dict[str, Any]) -> None:
        """Keep the held-out metrics of a labeler, replacing older ones."""
        text = json.dumps(plain(metrics), sort_keys=True, allow_nan=False)
        with self.file.transaction() as connection:
            connection.execute("INSERT OR REPLACE INTO metrics VALUES (?, ?, ?)", (labeler_digest, text, now_utc()))

    def metrics(self, labeler_digest: str) -> dict[str, Any] | None:
        """The kept metrics of a labeler, or None."""
        row = self.file.first("SELECT metrics_json FROM metrics WHERE labeler_digest = ?", (labeler_digest,))
        return json.loads(row["metrics_json"]) if row else None

    # Publication

    def record_publication(
        self,
        version: str,
        path: str,
        action: str,
        *,
        labeler_digest: str | None = None,
        run_id: str | None = None,
        who: str | None = None,
        reason: str | None = None,
    ) -> None:
        """Note that a version was `published` or was rolled back to (`rollback`)."""
        self._insert(
            "publications",
            version=version,
            path=path,
            action=action,
            labeler_digest=labeler_digest,
            run_id=run_id,
            who=who,
            reason=reason,
            recorded_at=now_utc(),
        )

    def has_published(self, version: str, action: str = "published") -> bool:
        """Whether it is on record that this version was published (or was a `preview`)."""
        query = "SELECT 1 FROM publications WHERE version = ? AND action = ?"
        return self.file.first(query, (version, action)) is not None

    def publications(self, limit: int = 50) -> list[dict[str, Any]]:
        """What was published and rolled back, newest first."""
        return self.file.rows("SELECT * FROM publications ORDER BY id DESC LIMIT ?", (limit,))

    def set_publishing_paused(self, paused: bool, reason: str = "") -> None:
        """Stop every later publication, or let them go on."""
        if paused:
            self.remember(_PAUSED, reason)
            return
        with self.file.transaction() as connection:
            connection.execute("DELETE FROM settings WHERE name = ?", (_PAUSED,))

    def begin_pause(self, reason: str) -> bool:
        """Stop every later publication, unless that is so already; whether it was this call that did."""
        with self.file.transaction() as connection:
            row = (_PAUSED, reason, now_utc())
            return connection.execute("INSERT OR IGNORE INTO settings VALUES (?, ?, ?)", row).rowcount == 1

    def end_pause(self, reason: str) -> None:
        """Let publications go on that `begin_pause` stopped for this reason; a pause of anybody else stays."""
        with self.file.transaction() as connection:
            connection.execute("DELETE FROM settings WHERE name = ? AND value = ?", (_PAUSED, reason))

    def publishing_paused(self) -> str | None:
        """Why publishing is paused (it may be an empty text), or None when it is not."""
        return self.remembered(_PAUSED)

    def remember(self, name: str, value: str) -> None:
        """Keep one word about this project under a name."""
        with self.file.transaction() as connection:
            connection.execute("INSERT OR REPLACE INTO settings VALUES (?, ?, ?)", (name, value, now_utc()))

    def remembered(self, name: str) -> str | None:
        """What was kept under a name, or None."""
        row = self.file.first("SELECT value FROM settings WHERE name = ?", (name,))
        return row["value"] if row else None

    # Erasures

    def note_erasure(
        self, id_digest: str, counts: dict[str, int], *, finished: bool = False, trained: bool = False
    ) -> dict[str, Any]:
        """Enter what an erasure finds, place by place, and return its receipt; repeated, the larger count stays.

        `trained`: a labeler may have been trained on the entity. Receipt: `id_digest, started_at, finished_at` (None
        until it is over), `trained`, and `counts` by place.
        """
        with self.file.transaction() as connection:
            connection.execute(
                "INSERT OR IGNORE INTO erasures (id_digest, started_at, counts_json) VALUES (?, ?, '{}')",
                (id_digest, now_utc()),
            )
            known = self._counts(connection, id_digest)
            merged = known | {place: max(count, known.get(place, 0)) for place, count in counts.items()}
            connection.execute(
                "UPDATE erasures SET counts_json = ?, finished_at = CASE WHEN ? THEN ? ELSE finished_at END,"
                " trained = max(trained, ?) WHERE id_digest = ?",
                (json.dumps(merged, sort_keys=True), finished, now_utc(), int(trained), id_digest),
            )
            row = connection.execute("SELECT * FROM erasures WHERE id_digest = ?", (id_digest,)).fetchone()
        receipt = dict(row)
        receipt.pop("counts_json")
        return receipt | {"counts": merged, "trained": bool(receipt["trained"])}

    def erasures(self) -> list[dict[str, Any]]:
        """Every erasure that has begun, oldest first: `id_digest` (`text_id` of the entity's id) and `started_at`."""
        return self.file.rows("SELECT id_digest, started_at FROM erasures ORDER BY started_at, id_digest")

    def erased_ids(self) -> frozenset[str]:
        """The digests (`text_id`) of the entity ids that were erased, or whose erasure has begun."""
        return frozenset(row["id_digest"] for row in self.erasures())

    @staticmethod
    def _started(connection: sqlite3.Connection, run_id: str) -> bool:
        """Whether a run is known and nobody has noted its end."""
        row = connection.execute("SELECT status FROM runs WHERE run_id = ?", (run_id,)).fetchone()
        return row is not None and row["status"] == STARTED

    @staticmethod
    def _counts(connection: sqlite3.Connection, id_digest: str) -> dict[str, int]:
        row = connection.execute("SELECT counts_json FROM erasures WHERE id_digest = ?", (id_digest,)).fetchone()
        return json.loads(row["counts_json"])

    def _insert(self, table: str, **values: Any) -> None:
        names, places = ", ".join(values), ", ".join("?" * len(values))
        with self.file.transaction() as connection:
            connection.execute(f"INSERT INTO {table} ({names}) VALUES ({places})", list(values.values()))


def _add_to_run(
    connection: sqlite3.Connection,
    run_id: str,
    pairs_scored: int,
    pairs_reused: int,
    model_loads: int,
    scoring_seconds: float,
) -> None:
    changed = connection.execute(
        "UPDATE runs SET pairs_scored = pairs_scored + ?, pairs_reused = pairs_reused + ?,"
        " model_loads = model_loads + ?, scoring_seconds = scoring_seconds + ? WHERE run_id = ?",
        (int(pairs_scored), int(pairs_reused), int(model_loads), float(scoring_seconds), run_id),
    ).rowcount
    if not changed:
        raise ValueError(f"run {run_id} was never started: call start_run first")


def _update_plan(connection: sqlite3.Connection, plan_id: str, done: int, state: str, seconds: float) -> None:
    connection.execute(
        "UPDATE plans SET rounds_done = ?, state = ?, measured_seconds = coalesce(measured_seconds, 0) + ?,"
        " payload = CASE WHEN ? = 'open' THEN payload END, updated_at = ? WHERE plan_id = ?",
        (int(done), state, float(seconds), state, now_utc(), plan_id),
    )


def _set_progress(connection: sqlite3.Connection, run_id: str, progress: Progress) -> None:
    connection.execute(
        "INSERT OR REPLACE INTO progress VALUES (?, ?, ?, ?, ?, ?)",
        (run_id, progress.stage, int(progress.done), int(progress.total), progress.unit, now_utc()),
    )


def plain(value: Any) -> Any:
    """`value` in plain Python types: numpy scalars and arrays unpacked, NaN and infinities as text."""
    if isinstance(value, dict):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def _number(value: Any) -> float | None:
    return float(value) if value is not None and math.isfinite(value) else None


def _gate(row: dict[str, Any]) -> dict[str, Any]:
    row["limit"] = row.pop("limit_value")
    row["evidence"] = json.loads(row.pop("evidence_json"))
    row["computed"] = bool(row["computed"])
    return row


def _run(row: dict[str, Any]) -> dict[str, Any]:
    seconds = row["scoring_seconds"]
    row["labels_per_s"] = row["pairs_scored"] / seconds if seconds > 0 and row["pairs_scored"] else None
    return row
