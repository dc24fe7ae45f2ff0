"""One run through Dagster, in this process, against `DAGSTER_HOME`: what is selected, what happened, how it ended.

Knows Dagster's jobs, events and storage; deliberately knows nothing of what an asset computes or how anything is shown.
"""

import difflib
import logging
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from semlabel.cli.code_location import CodeLocation
from semlabel.cli.endings import (
    COMMAND_TAG,
    LIMIT_TAG,
    Failure,
    ending,
    killed_ending,
    recorded_ending,
    step_failure,
)
from semlabel.errors import SettingsError
from semlabel.run_news import Ending

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from dagster import AssetKey, DagsterEvent, DagsterInstance, Definitions, JobDefinition, LoggerDefinition

    from semlabel.operations import Operations

NIGHTLY_JOB = "nightly_labeling"
EVERYTHING = "everything"
_LOGGER = "semlabel"


@dataclass(frozen=True)
class Selection:
    """A job and, where only a part of it runs, the keys of that part. `label` is the job's name for people."""

    label: str
    job: "JobDefinition"
    keys: "tuple[AssetKey, ...] | None"

    @property
    def asset_names(self) -> list[str]:
        """The assets that will be materialised."""
        keys = self.keys if self.keys is not None else self.job.asset_layer.executable_asset_keys
        return sorted(key.path[-1] for key in keys)


@dataclass(frozen=True)
class Event:
    """Something that happened: `kind` is "start", "made", "gate" or "failed", `name` the asset, gate or step."""

    kind: str
    name: str
    asset: str = ""
    passed: bool = True
    blocking: bool = False
    rows: int | None = None
    text: str = ""
    stored: str = ""

    @property
    def verdict(self) -> str:
        """A gate's verdict; one whose check came without is told by whether it passed."""
        return self.stored or ("pass" if self.passed else "fail")


@dataclass(frozen=True)
class Outcome:
    """How a run ended: `SUCCESS`, `FAILURE` or `CANCELED`, with the gates that failed with severity ERROR."""

    run_id: str
    status: str
    failed_gates: tuple[str, ...]
    failures: tuple[Failure, ...]

    @property
    def exit_code(self) -> int:
        """0 done, 1 a gate stands in the way or the program failed, 2 something the user can mend, 130 interrupted."""
        if self.status == "CANCELED":
            return 130
        if any(failure.mendable for failure in self.failures):
            return 2
        return 1 if self.failed_gates or self.status != "SUCCESS" else 0


def select(
    definitions: "Definitions",
    *,
    job: str | None,
    first_run: bool,
    assets: Sequence[str] = (),
    until: str | None = None,
) -> Selection:
    """What to run: a named job, named assets, or by default everything in a project that has no labeler yet and the
    nightly job afterwards; `until` keeps what an asset needs, and the asset. Raises SettingsError for unknown names.
    """
    everything = definitions.resolve_implicit_global_asset_job_def()
    known = {key.path[-1]: key for key in definitions.resolve_asset_graph().materializable_asset_keys}
    if assets:
        keys = tuple(known[_known(name, known)] for name in assets)
        return Selection(", ".join(assets), everything, keys)
    name = job or (EVERYTHING if first_run else NIGHTLY_JOB)
    if name == EVERYTHING:
        chosen = everything
    else:
        jobs = {found.name: found for found in definitions.resolve_all_job_defs() if not found.name.startswith("__")}
        chosen = jobs[_known(name, jobs, "job")]
    if until is None:
        return Selection(name, chosen, None)
    goal = known[_known(until, known)]
    wanted = definitions.resolve_asset_graph().get_ancestor_asset_keys(goal, include_self=True)
    keys = tuple(key for key in chosen.asset_layer.executable_asset_keys if key in wanted)
    if not keys:
        raise SettingsError(f"nothing of {name} is needed for {until}; select it with --select {until}")
    return Selection(f"{name} until {until}", chosen, keys)


def _known(name: str, known: Iterable[str], what: str = "asset") -> str:
    known = list(known)
    if name in known:
        return name
    close = difflib.get_close_matches(name, known, n=1)
    hint = f'did you mean "{close[0]}"?' if close else f"there are: {', '.join(sorted(known))}"
    raise SettingsError(f'no {what} is called "{name}"; {hint}')


def execute(
    selection: Selection,
    location: CodeLocation,
    instance: "DagsterInstance",
    run_id: str,
    log: Path,
    on_event: Callable[[Event], None],
    entities_limit: int | None = None,
) -> Outcome:
    """Run the selection to its end. An interrupt ends it cleanly as `CANCELED`: what was committed stays."""
    tags = {".dagster/repository": location.repository_tag, COMMAND_TAG: "run"}
    if entities_limit is not None:
        tags[LIMIT_TAG] = str(entities_limit)
    job = selection.job.with_logger_defs({_LOGGER: _logger(log, _listener(selection, on_event))})
    try:
        result = job.execute_in_process(
            run_config={"loggers": {_LOGGER: {}}},
            instance=instance,
            run_id=run_id,
            tags=tags,
            asset_selection=list(selection.keys) if selection.keys is not None else None,
            raise_on_error=False,
        )
    except KeyboardInterrupt:
        close_run(instance, run_id, "interrupted")
        return Outcome(run_id, "CANCELED", (), ())
    failures = [event for event in result.all_events if event.is_step_failure]
    if any(_is_interrupt(event) for event in failures):
        close_run(instance, run_id, "interrupted")
        return Outcome(run_id, "CANCELED", (), ())
    gates = tuple(e.check_name for e in result.get_asset_check_evaluations() if not e.passed and _is_error(e))
    failed = tuple(failure for failure in map(step_failure, failures) if failure is not None)
    return Outcome(run_id, "SUCCESS" if result.success else "FAILURE", gates, failed)


def told(selection: Selection, outcome: Outcome, entities_limit: int | None) -> Ending | None:
    """What people are to know of how the run of a selection ended; None for a preview of some entities."""
    if entities_limit:
        return None
    return ending(selection.job.name, selection.keys is None, outcome.failures, outcome.failed_gates)


def close_run(instance: "DagsterInstance", run_id: str, why: str) -> None:
    """End a run in Dagster's storage that will not end by itself, and give back the pool slots it holds."""
    run = instance.get_run_by_id(run_id)
    if run is not None and not run.is_finished:
        instance.report_run_failed(run, why)
    instance.event_log_storage.free_concurrency_slots_for_run(run_id)


def reap(operations: "Operations", open_instance: "Callable[[], AbstractContextManager[DagsterInstance]]") -> list[str]:
    """Close the runs whose process is dead; their pool slots would be held for ever. Returns the ids of those
    that were killed: a run of the daemon may have ended well, and nobody noted it yet.
    """
    gone, killed = operations.dead_runs(), []
    if gone:
        with open_instance() as instance:
            for row in gone:
                run_id = row["run_id"]
                run = instance.get_run_by_id(run_id)
                close_run(instance, run_id, "its process died")
                if run is not None and run.is_finished:
                    operations.finish_run(run_id, run.status.value, ending=recorded_ending(instance, run))
                    continue
                operations.mark_run_dead(run_id, killed_ending(row, run))
                killed.append(run_id)
    return killed


def new_run_id() -> str:
    """An id as Dagster makes them, known before the run begins."""
    return str(uuid.uuid4())


def _is_interrupt(event: "DagsterEvent") -> bool:
    source = event.step_failure_data.error_source
    return source is not None and source.value == "INTERRUPT"


def _is_error(evaluation: Any) -> bool:
    return evaluation.severity.value == "ERROR"


def _listener(selection: Selection, on_event: Callable[[Event], None]) -> Callable[["DagsterEvent"], None]:
    # A step is called as its asset is without the labeler's name before it.
    assets = set(selection.asset_names)

    def listen(event: "DagsterEvent") -> None:
        kind = event.event_type_value
        if kind == "STEP_START" and event.step_key in assets:
            on_event(Event("start", event.step_key))
        elif kind == "ASSET_MATERIALIZATION":
            materialization = event.step_materialization_data.materialization
            rows = materialization.metadata.get("dagster/row_count")
            name = materialization.asset_key.path[-1]
            on_event(Event("made", name, rows=rows.value if rows is not None else None))  # type: ignore[arg-type]
        elif kind == "ASSET_CHECK_EVALUATION":
            found = event.asset_check_evaluation_data
            verdict = found.metadata.get("verdict")
            on_event(
                Event(
                    "gate",
                    found.check_name,
                    asset=found.asset_key.path[-1],
                    passed=found.passed,
                    blocking=_is_error(found),
                    text=found.description or "",
                    stored=str(verdict.value) if verdict is not None else "",
                )
            )
        elif kind == "STEP_FAILURE" and not _is_interrupt(event):
            failure = step_failure(event)
            if failure is not None:
                on_event(Event("failed", failure.step, passed=False, text=failure.message))

    return listen


class _Handler(logging.FileHandler):
    """Writes every record of the run to its log and passes Dagster's events on."""

    def __init__(self, log: Path, listen: Callable[["DagsterEvent"], None]) -> None:
        super().__init__(log, encoding="utf-8")
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        self._listen = listen

    def emit(self, record: logging.LogRecord) -> None:
        super().emit(record)
        event = (getattr(record, "dagster_meta", None) or {}).get("dagster_event")
        if event is not None:
            self._listen(event)


def _logger(log: Path, listen: Callable[["DagsterEvent"], None]) -> "LoggerDefinition":
    from dagster import LoggerDefinition

    def make(_: Any) -> logging.Logger:
        # A logger of its own, outside the hierarchy: nothing it gets reaches the console.
        logger = logging.Logger(_LOGGER, level=logging.DEBUG)
        logger.addHandler(_Handler(log, listen))
        return logger

    return LoggerDefinition(logger_fn=make)
