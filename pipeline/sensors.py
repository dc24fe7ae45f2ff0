"""What the daemon does between runs: it delivers alerts, and keeps the run list of `ops.sqlite` true.

Knows both lists of runs, nothing of what a run does. `semlabel run` delivers by itself and notes its own end; a run of
the schedule or of the UI only notes its start, and the daemon looks here how it ended, writes its report, and leaves
what people are to be told of it in the outbox. A run whose process was killed is ended here too, so that a night of the
schedule does not wait without end for its place in a pool. What is done stands in `ops.sqlite`, so a cleared cursor or
a restarted daemon repeats nothing.
"""

from contextlib import nullcontext

import dagster as dg

from resources.notifier import NotifierResource
from resources.project import ProjectResource

_SECONDS = 60
_ALERT_SECONDS = 20
# Dagster gives up on an evaluation after 60 s; what is not begun by then is sent by the next one.
_DELIVERING_SECONDS = 30.0


@dg.sensor(
    name="run_endings",
    minimum_interval_seconds=_SECONDS,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Notes in ops.sqlite how runs ended that were not started by `semlabel run`, ends those whose process "
    "was killed, and writes their reports.",
)
def run_endings(context: dg.SensorEvaluationContext, project: ProjectResource) -> dg.SkipReason:
    """Close the started runs of `ops.sqlite` that Dagster knows to be over, then those whose process died."""
    from semlabel.cli.execution import reap
    from semlabel.html_report import complete_report

    operations, closed = project.operations.get(), []
    for row in operations.runs():
        run = context.instance.get_run_by_id(row["run_id"]) if row["status"] == "STARTED" else None
        if run is not None and run.is_finished and _close(project, context.instance, run):
            closed.append(run.run_id[:8])
    for run_id in reap(operations, lambda: nullcontext(context.instance)):
        complete_report(project.settings.get(), operations, run_id, read=False)
        closed.append(run_id[:8])
    return dg.SkipReason(f"closed {', '.join(closed)}" if closed else "no run ended")


@dg.run_failure_sensor(
    name="run_failures",
    minimum_interval_seconds=_SECONDS,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Notes in ops.sqlite the runs that failed, also those that failed before their first step.",
)
def run_failures(context: dg.RunFailureSensorContext, project: ProjectResource) -> None:
    """Close a run that Dagster saw fail: one that never came to a step stands in no list of `ops.sqlite`."""
    _close(project, context.instance, context.dagster_run)


@dg.sensor(
    name="gate_alerts",
    minimum_interval_seconds=_ALERT_SECONDS,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Tells people which gates turned red, which runs failed and what recovered; pings after a good night.",
)
def gate_alerts(notifier: NotifierResource) -> dg.SkipReason:
    """Send what is due; a channel that fails is tried again later and shows in `semlabel alerts`."""
    return dg.SkipReason(str(notifier.deliver(_DELIVERING_SECONDS)))


def _close(project: ProjectResource, instance: dg.DagsterInstance, run: dg.DagsterRun) -> bool:
    """Note how a run ended that is over, unless that is done; whether it was done here."""
    from semlabel.cli.endings import COMMAND_TAG, recorded_ending
    from semlabel.html_report import complete_report

    operations = project.operations.get()
    row = operations.run(run.run_id)
    if row is None:
        operations.start_run(run.run_id, run.job_name)
    elif row["status"] != "STARTED":
        return False
    elif COMMAND_TAG in run.tags and run.run_id not in {dead["run_id"] for dead in operations.dead_runs(watched=False)}:
        # It is about to note its end, and knows better than Dagster whether somebody interrupted it.
        return False
    operations.finish_run(run.run_id, run.status.value, ending=recorded_ending(instance, run))
    # The warehouse is not opened here: what the run itself read for its report stays in it.
    complete_report(project.settings.get(), operations, run.run_id, read=False)
    return True
