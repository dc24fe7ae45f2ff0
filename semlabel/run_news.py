"""What people are told of how a run ended: an incident from a job's failure to its next run that goes well.

Most of what ends a run leaves no verdict of a gate: a source that is missing, a full disk, a lease that somebody holds,
a killed process. It is told like a red gate, in the outbox, keyed by the job with `run` in the place of the gate. Knows
the tables `runs`, `gate_results` and `outbox`; deliberately knows nothing of Dagster, of what a step does, or of who is
told. A run that a red gate stopped is not told here: that gate has an incident of its own.
"""

import sqlite3
from dataclasses import dataclass
from datetime import timedelta

from semlabel.operations_schema import now_utc
from semlabel.outbox import Verdict, note_verdict

RUN = "run"
NIGHTLY, EVERYTHING, TRAINING = "nightly_labeling", "everything", "train_labeler"
NIGHTS = (NIGHTLY, EVERYTHING)
JOBS = (NIGHTLY, TRAINING)
"""The jobs of the recipe that an incident may be of."""


@dataclass(frozen=True)
class Ending:
    """How a run of `job` ended, as far as people are told: `reason` is one line without anybody's texts.

    `whole`: the run was of all the job's assets; a part that goes well ends no incident. `blocked`: nothing failed but
    steps that refuse while a gate stands in the way. `at`: when it ended, as `now_utc` writes it, where that is noted
    later (None: now).
    """

    job: str
    whole: bool
    reason: str = ""
    blocked: bool = False
    at: str | None = None


def note_end(connection: sqlite3.Connection, run_id: str, status: str, ending: Ending, repeat_after: timedelta) -> None:
    """Write what the end of this run gives people to know, inside the caller's transaction.

    A failure opens the incident of its job, or repeats it as `outbox` repeats a gate; a run that was whole and went
    well closes it. Nothing is written for an interrupted run, nor where what is known is newer: an end that is noted
    late (of a killed process, after the daemon was away) says nothing about today.
    """
    at = ending.at or now_utc()
    if status == "SUCCESS" and ending.whole:
        for job in _closed_by(ending.job):
            said = Verdict(job, RUN, "ERROR", "pass", f"{ending.job} went well to its end.", run_id)
            if not _failed_since(connection, job, at):
                note_verdict(connection, said, repeat_after)
    elif status == "FAILURE" and not _went_well_since(connection, ending.job, at):
        if _told_by_a_gate(connection, run_id, ending.blocked):
            return
        what = ending.job if ending.whole else f"a part of {ending.job}"
        message = f"{what} failed: {ending.reason}"
        note_verdict(connection, Verdict(incident_of(ending.job), RUN, "ERROR", "fail", message, run_id), repeat_after)


def incident_of(job: str) -> str:
    """The job that stands for this one in incidents: a first run makes everything, the later nights what they need."""
    return NIGHTLY if job in NIGHTS else job


def _closed_by(job: str) -> tuple[str, ...]:
    return JOBS if job == EVERYTHING else (incident_of(job),)


def _told_by_a_gate(connection: sqlite3.Connection, run_id: str, blocked: bool) -> bool:
    """Whether a gate that blocks has said why: in this run, or in an earlier one where nothing but refusals failed."""
    red = "SELECT 1 FROM gate_results WHERE run_id = ? AND severity = 'ERROR' AND verdict <> 'pass'"
    still_red = (
        "SELECT 1 FROM outbox WHERE kind = 'failed' AND severity = 'ERROR' AND gate <> ?"
        " AND id IN (SELECT max(id) FROM outbox GROUP BY asset, gate, severity)"
    )
    if not blocked:
        return False
    return bool(connection.execute(red, (run_id,)).fetchone() or connection.execute(still_red, (RUN,)).fetchone())


def _failed_since(connection: sqlite3.Connection, job: str, at: str) -> bool:
    newer = (
        "SELECT 1 FROM outbox o JOIN runs r ON r.run_id = o.run_id"
        " WHERE o.asset = ? AND o.gate = ? AND o.kind = 'failed' AND r.finished_at > ?"
    )
    return connection.execute(newer, (job, RUN, at)).fetchone() is not None


def _went_well_since(connection: sqlite3.Connection, job: str, at: str) -> bool:
    names = NIGHTS if job in NIGHTS else (job,)
    newer = "SELECT 1 FROM runs WHERE status = 'SUCCESS' AND finished_at > ? AND job IN"
    return connection.execute(f"{newer} ({', '.join('?' * len(names))})", (at, *names)).fetchone() is not None
