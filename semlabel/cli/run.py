"""`semlabel run`: materialise through Dagster, with live progress, and end with what people want to know."""

import signal
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from semlabel.cli.alerts import tell
from semlabel.cli.common import (
    DEFAULT_CONFIG,
    ConfigOption,
    JsonOption,
    command_for,
    operations_of,
    project,
    refuse_missing_base,
    say,
    show,
    show_json,
)
from semlabel.errors import SettingsError
from semlabel.run_news import JOBS, NIGHTLY, NIGHTS

if TYPE_CHECKING:
    from semlabel.cli.code_location import CodeLocation
    from semlabel.cli.execution import Outcome, Selection
    from semlabel.operations import Operations
    from semlabel.settings import Settings

_LOGS_KEPT = 100
# How long the end of a run waits for somebody who holds the warehouse.
_REPORT_PATIENCE = 5.0


def run(
    config: ConfigOption = DEFAULT_CONFIG,
    select: Annotated[
        list[str] | None,
        typer.Option("--select", help="Only these assets; comma-separated or repeated.", metavar="ASSET"),
    ] = None,
    until: Annotated[
        str | None, typer.Option("--until", help="This asset and what it needs, nothing after it.", metavar="ASSET")
    ] = None,
    job: Annotated[
        str | None,
        typer.Option("--job", help="A job by name: train_labeler, nightly_labeling, everything.", metavar="JOB"),
    ] = None,
    entities_limit: Annotated[
        int | None,
        typer.Option("--entities-limit", min=0, help="Label only K entities (a preview); 0: all.", metavar="K"),
    ] = None,
    workspace: Annotated[
        Path | None, typer.Option("--workspace", help="The workspace.yaml with the pipeline's code.", metavar="FILE")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Run the recipe: sources, training, threshold, predictions, publication; each gate before the next stage.

    Without a labeler everything runs. Afterwards it is the nightly job: no training, only what changed is scored. An
    interrupted run goes on where it was when it is started again. The exit code is 1 when a gate stands in the way.

    \b
    Examples:
      semlabel run                          everything that is needed
      semlabel run --until training_pairs   look at the data before training
      semlabel run --entities-limit 0       label every entity, not only the held-out ones
      semlabel run --job train_labeler      train a new candidate labeler
    """
    settings = project(config)
    if select and (until or job):
        raise SettingsError("--select names the assets itself; leave out --until and --job")
    names = [name.strip() for part in select or [] for name in part.split(",") if name.strip()]
    started = time.monotonic()
    location, operations = _prepare(settings, workspace)
    try:
        selection = _select(settings, location, names, until, job)
        _announce(settings, selection, entities_limit)
    except Exception as error:
        if not names and until is None and not entities_limit:
            _never_began(settings, operations, job or NIGHTLY, error)
        raise
    try:
        outcome = _execute(settings, operations, location, selection, entities_limit)
    finally:
        tell(settings, operations)
    options = {"select": ",".join(names) or None, "until": until, "job": job, "entities-limit": entities_limit}
    again = command_for(settings, "run", options | {"workspace": workspace})
    _finish(settings, outcome, time.monotonic() - started, json, again)
    raise typer.Exit(outcome.exit_code)


def _prepare(settings: "Settings", workspace: Path | None) -> "tuple[CodeLocation, Operations]":
    """The pipeline's code and `ops.sqlite`, with runs closed whose process was killed."""
    from semlabel.cli import code_location
    from semlabel.cli.reaper import Reaper
    from semlabel.operations import Operations

    if settings.scoring.backend == "ray":
        from semlabel.distributed.runtime import refuse_without_ray

        # Not after a training.
        refuse_without_ray()
    location = code_location.read_workspace(code_location.find_workspace(settings, workspace), settings.path)
    code_location.prepare_environment(settings, location)
    operations = Operations(settings.paths.ops, timedelta(hours=settings.alerts.repeat_hours))
    Reaper(settings, operations, location).close_killed()
    return location, operations


def _select(
    settings: "Settings", location: "CodeLocation", names: list[str], until: str | None, job: str | None
) -> "Selection":
    from semlabel.cli import code_location, execution
    from semlabel.labeler_files import promoted_path

    first_run = promoted_path(settings.paths.labelers) is None
    definitions = code_location.load_definitions(location)
    selection = execution.select(definitions, job=job, first_run=first_run, assets=names, until=until)
    if first_run or "checkpoint" in selection.asset_names:
        refuse_missing_base(settings)
    return selection


def _never_began(settings: "Settings", operations: "Operations", job: str, error: Exception) -> None:
    """A night that could not even begin is noted and told like one that failed; a mistyped job is told to nobody."""
    from semlabel.cli.endings import ending, raised
    from semlabel.cli.execution import new_run_id

    if job not in (*NIGHTS, *JOBS):
        return
    run_id = new_run_id()
    operations.start_run(run_id, job)
    operations.finish_run(run_id, "FAILURE", ending=ending(job, True, [raised(error)]))
    tell(settings, operations)


def _announce(settings: "Settings", selection: "Selection", entities_limit: int | None) -> None:
    from semlabel.cli.cost import announce
    from semlabel.errors import SourceError

    # The run will meet the same file, record it and say it; without a source there is nothing to estimate.
    with suppress(SourceError):
        announce(settings, selection.asset_names, entities_limit)


def _execute(
    settings: "Settings",
    operations: "Operations",
    location: "CodeLocation",
    selection: "Selection",
    entities_limit: int | None,
) -> "Outcome":
    from semlabel.cli import code_location, execution
    from semlabel.cli.endings import raised
    from semlabel.cli.live import Watch, live, quiet
    from semlabel.cli.reaper import Reaper

    run_id = execution.new_run_id()
    log = settings.paths.state / "logs" / f"{run_id}.log"
    _prune(log.parent)
    say(f"run {run_id[:8]}: {selection.label} ({len(selection.asset_names)} assets), log in {log}")
    handlers = _ends_like_an_interrupt()
    # A limited run is a preview: under the job's own name it would count as that job's night.
    limited = f" of {entities_limit} entities" if entities_limit else ""
    operations.start_run(run_id, selection.label + limited)
    outcome = execution.Outcome(run_id, "FAILURE", (), ())
    try:
        with quiet(log) as (stream, terminal), code_location.open_instance() as instance:
            watch = Watch(lambda: operations.progress_of(run_id))
            with (
                live(watch, stream, terminal),
                operations.at_work(run_id),
                # It may wait for another one that is killed meanwhile.
                Reaper(settings, operations, location).while_at_work(),
            ):
                outcome = execution.execute(
                    selection, location, instance, run_id, log, watch.event, entities_limit=entities_limit
                )
    except KeyboardInterrupt:
        outcome = execution.Outcome(run_id, "CANCELED", (), ())
    except BaseException as error:
        outcome = execution.Outcome(run_id, "FAILURE", (), (raised(error),))
        raise
    finally:
        operations.finish_run(run_id, outcome.status, ending=execution.told(selection, outcome, entities_limit))
        _write_report(settings, operations, run_id)
        for number, handler in handlers.items():
            signal.signal(number, handler)
    return outcome


def _write_report(settings: "Settings", operations: "Operations", run_id: str) -> None:
    """However the run ended. Trouble here is said, not raised: it must not hide how the run ended."""
    from semlabel.errors import SemlabelError
    from semlabel.html_report import complete_report

    try:
        say(f"report: {complete_report(settings, operations, run_id, _REPORT_PATIENCE)}")
    except (SemlabelError, OSError) as error:
        say(f"no report was written: {error}")


def _ends_like_an_interrupt() -> dict[int, Any]:
    """Make a terminated run, and one whose terminal went away, end as cleanly as an interrupted one.

    Returns the handlers that were there. What the caller chose to ignore (`nohup`) stays ignored.
    """
    there = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    for number, handler in there.items():
        if handler != signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler)
    return {int(number): handler for number, handler in there.items()}


def _prune(folder: Path) -> None:
    """Keep the newest logs only: a night a day must not fill a disk in a year."""
    for old in sorted(folder.glob("*.log"), key=lambda file: file.stat().st_mtime, reverse=True)[_LOGS_KEPT:]:
        old.unlink()


def _finish(settings: "Settings", outcome: "Outcome", seconds: float, json: bool, again: str) -> None:
    """The last words: the summary on stdout, what went wrong on stderr, and how to run the same `again`."""
    from semlabel.cli.document import status_document
    from semlabel.cli.summary import run_summary

    document = status_document(settings, operations_of(settings), outcome.run_id)
    if json:
        show_json(document)
    elif outcome.status != "CANCELED":
        show()
        show(run_summary(document, settings, seconds))
    if outcome.status == "CANCELED":
        say("\ninterrupted: nothing is lost, whatever was committed stays, the published table is as it was.")
        say(f"Go on with: {again}")
        return
    for failure in outcome.failures:
        say(f"error: {failure.step}: {failure.message}")
    if outcome.failed_gates:
        say(f"error: gates that did not pass: {', '.join(outcome.failed_gates)}; the published table is as it was")
    elif any(not failure.mendable and not failure.gate for failure in outcome.failures):
        say(f"the whole story: {settings.paths.state / 'logs' / (outcome.run_id + '.log')}")
