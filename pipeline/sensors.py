"""What the daemon does between runs: it delivers alerts, and keeps the run list of `ops.sqlite` true.

Knows both lists of runs, nothing of what a run does. `semlabel run` delivers by itself and notes its own end; a run of
the schedule or of the UI only notes its start, and the daemon looks here how it ended and writes its report. Neither
sensor has a cursor: what is done stands in `ops.sqlite`, so a cleared cursor or a restarted daemon repeats nothing.
"""

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
    description="Notes in ops.sqlite how runs ended that were not started by `semlabel run`, and writes their reports.",
)
def run_endings(context: dg.SensorEvaluationContext, project: ProjectResource) -> dg.SkipReason:
    """Close the started runs of `ops.sqlite` that Dagster knows to be over."""
    from semlabel.html_report import complete_report

    operations = project.operations.get()
    closed = []
    for row in operations.runs():
        if row["status"] != "STARTED":
            continue
        run = context.instance.get_run_by_id(row["run_id"])
        if run is not None and run.is_finished:
            operations.finish_run(row["run_id"], run.status.value)
            # The warehouse is not opened here: what the run itself read for its report stays in it.
            complete_report(project.settings.get(), operations, row["run_id"], read=False)
            closed.append(row["run_id"][:8])
    return dg.SkipReason(f"closed {', '.join(closed)}" if closed else "no run ended")


@dg.sensor(
    name="gate_alerts",
    minimum_interval_seconds=_ALERT_SECONDS,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Tells people which gates turned red and which recovered, and pings after a good night.",
)
def gate_alerts(notifier: NotifierResource) -> dg.SkipReason:
    """Send what is due; a channel that fails is tried again later and shows in `semlabel alerts`."""
    return dg.SkipReason(str(notifier.deliver(_DELIVERING_SECONDS)))
