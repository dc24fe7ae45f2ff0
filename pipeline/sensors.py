"""Keeps the run list of `ops.sqlite` true for runs that Dagster started by itself.

Knows both lists of runs, nothing of what a run does. `semlabel run` notes its own end; a run of the schedule or of the
UI only notes its start, and the daemon looks here how it ended.
"""

import dagster as dg

from resources.project import ProjectResource

_SECONDS = 60


@dg.sensor(
    name="run_endings",
    minimum_interval_seconds=_SECONDS,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Notes in ops.sqlite how runs ended that were not started by `semlabel run`.",
)
def run_endings(context: dg.SensorEvaluationContext, project: ProjectResource) -> dg.SkipReason:
    """Close the started runs of `ops.sqlite` that Dagster knows to be over."""
    operations = project.operations.get()
    closed = []
    for row in operations.runs():
        if row["status"] != "STARTED":
            continue
        run = context.instance.get_run_by_id(row["run_id"])
        if run is not None and run.is_finished:
            operations.finish_run(row["run_id"], run.status.value)
            closed.append(row["run_id"][:8])
    return dg.SkipReason(f"closed {', '.join(closed)}" if closed else "no run ended")
