"""Why a run of Dagster failed, in words for people: step by step, and as the one line that leaves the machine.

Knows Dagster's events and storage; deliberately knows nothing of who is told. An error of ours carries a sentence that
was written to be read; any other is only named where an alert tells it, because it may quote somebody's text.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import semlabel.errors
from semlabel.errors import GateBlocked, SemlabelError
from semlabel.run_news import EVERYTHING, JOBS, NIGHTS, Ending

if TYPE_CHECKING:
    from dagster import DagsterEvent, DagsterInstance, DagsterRun
    from dagster._utils.error import SerializableErrorInfo

LIMIT_TAG = "semlabel/entities_limit"
COMMAND_TAG = "semlabel/command"
"""Marks a run of `semlabel run`, which notes its own end while its process lives."""
DIED = "its process died: the next run goes on with its work"
_RUN = "the run"
_UNKNOWN = "no reason was recorded: look into the log of the run"


@dataclass(frozen=True)
class Failure:
    """A step that did not finish: `mendable` when a user can mend its error, `gate` when a gate stopped it.

    `error` is the name of an error that is not one of ours.
    """

    step: str
    message: str
    mendable: bool
    gate: bool
    error: str = ""

    @property
    def told(self) -> str:
        """What an alert says of it: one line without anybody's texts."""
        if self.mendable or self.gate:
            return f"{self.step}: {self.message}"
        named = f" ({self.error})" if self.error else ""
        return f"{self.step} failed{named}: look into the log of the run, mend the cause and run it again."


def step_failure(event: "DagsterEvent") -> Failure | None:
    """The failure of a step, or None for the step of a check that did its work and said no."""
    chain = _chain(event.step_failure_data.error)
    if any(part.cls_name == "DagsterAssetCheckFailedError" for part in chain):
        return None
    return _failure(str(event.step_key), chain)


def raised(error: BaseException) -> Failure:
    """The failure of a run as a whole, which an error ended outside of any step."""
    if isinstance(error, SemlabelError):
        return Failure(_RUN, str(error), mendable=True, gate=isinstance(error, GateBlocked))
    return Failure(_RUN, str(error), mendable=False, gate=False, error=type(error).__name__)


def ending(job: str, whole: bool, failures: Sequence[Failure], red_checks: Iterable[str] = ()) -> Ending:
    """What people are to know of a run with these failures, and with these checks that said no."""
    name, red = _named(job), list(red_checks)
    by_itself = next((failure for failure in failures if not failure.gate), None)
    if by_itself is not None:
        return Ending(name, whole, by_itself.told)
    if failures:
        return Ending(name, whole, failures[0].told, blocked=True)
    return Ending(name, whole, f"gates that did not pass: {', '.join(red)}" if red else _UNKNOWN, blocked=bool(red))


def recorded_ending(instance: "DagsterInstance", run: "DagsterRun") -> Ending | None:
    """What people are to know of a run as Dagster's storage has it; None for a preview of some entities."""
    from dagster import DagsterEventType

    if _is_preview(run):
        return None
    found = instance.all_logs(run.run_id, of_type={DagsterEventType.STEP_FAILURE, DagsterEventType.RUN_FAILURE})
    events = [entry.dagster_event for entry in found if entry.dagster_event is not None]
    steps = [(str(event.step_key), step_failure(event)) for event in events if event.is_step_failure]
    failures = [failure for _, failure in steps if failure is not None]
    if not steps:
        failures = [_run_failure(event) for event in events]
    red = [name for name, failure in steps if failure is None]
    record = instance.get_run_record_by_id(run.run_id)
    at = _iso(record.end_time) if record is not None and record.end_time else None
    return replace(ending(run.job_name, not run.asset_selection, failures, red), at=at)


def killed_ending(row: Mapping[str, Any], run: "DagsterRun | None") -> Ending | None:
    """What people are to know of a run whose process was killed; None for a preview.

    `row` is the run in `ops.sqlite`, whose name counts for one that was killed before Dagster heard of it. When it was
    killed is not known: whatever ended after its start is newer.
    """
    if run is None:
        label = str(row["job"])
        job = label.partition(" until ")[0]
        if re.search(r" of \d+ entities$", label):
            return None
        job = job if job in (*NIGHTS, *JOBS) else EVERYTHING
        return Ending(job, label == job, DIED, at=row["started_at"])
    if _is_preview(run):
        return None
    return Ending(_named(run.job_name), not run.asset_selection, DIED, at=row["started_at"])


def _is_preview(run: "DagsterRun") -> bool:
    return run.tags.get(LIMIT_TAG, "0") != "0"


def _named(job: str) -> str:
    # Dagster's name of the job that has every asset is for programmers.
    return EVERYTHING if job.startswith("__") else job


def _run_failure(event: "DagsterEvent") -> Failure:
    """Why a run ended without the failure of a step: its process was lost, it took too long, it could not begin."""
    data = event.event_specific_data
    error = getattr(data, "error", None)
    # Without an error there are only words of Dagster's, or of whoever closed the run.
    return _failure(_RUN, _chain(error)) if error else Failure(_RUN, event.message or _UNKNOWN, True, False)


def _chain(error: "SerializableErrorInfo | None") -> "list[SerializableErrorInfo]":
    chain = []
    while error is not None:
        chain.append(error)
        error = error.cause
    return chain


def _failure(step: str, chain: "list[SerializableErrorInfo]") -> Failure:
    root = chain[-1] if chain else None
    for part in chain:
        if part.cls_name == "Failure":  # Dagster's own way for a step to say no
            return Failure(step, _message(part.message), mendable=False, gate=True)
        known = getattr(semlabel.errors, part.cls_name or "", None)
        if isinstance(known, type) and issubclass(known, SemlabelError):
            gate = issubclass(known, GateBlocked)
            return Failure(step, _message(part.message), mendable=not gate, gate=gate)
    message = _message(root.message) if root else "no reason was recorded"
    return Failure(step, message, mendable=False, gate=False, error=(root.cls_name if root else None) or "")


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="microseconds")


def _message(text: str) -> str:
    # Dagster keeps "module.Class: message"; the class is for programmers.
    first, separator, rest = text.partition(": ")
    return " ".join((rest if separator and " " not in first else text).split())
