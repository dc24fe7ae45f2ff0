"""A refresh when the sources have changed, for teams whose tables do not arrive at a fixed hour. Off by default.

Knows Dagster's runs and its own cursor; what a change is, `semlabel.source_watch` decides. The run it asks for is the
nightly one, with a cap on the pairs it may score: what is beyond it stays unpublished until a night completes it.
"""

from typing import TYPE_CHECKING

import dagster as dg

from resources.project import PAIRS_TAG, ProjectResource

if TYPE_CHECKING:
    from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition

    from semlabel.settings import Schedule

_SECONDS = 60
_AT_WORK = [dg.DagsterRunStatus.QUEUED, dg.DagsterRunStatus.STARTING, dg.DagsterRunStatus.STARTED]


def source_changes(schedule: "Schedule", job: "UnresolvedAssetJobDefinition") -> dg.SensorDefinition:
    """The sensor of the source files, running where the settings ask for it."""
    status = dg.DefaultSensorStatus.RUNNING if schedule.on_source_changes else dg.DefaultSensorStatus.STOPPED

    @dg.sensor(
        name="source_changes",
        job=job,
        minimum_interval_seconds=_SECONDS,
        default_status=status,
        description="Asks for a refresh when a source file has changed and was the same at two ticks in a row.",
    )
    def watch(context: dg.SensorEvaluationContext, project: ProjectResource) -> dg.SensorResult | dg.SkipReason:
        from semlabel import source_watch

        # A run at work may have read the files before or after they changed: look again when it is over.
        if context.instance.get_runs(dg.RunsFilter(job_name=job.name, statuses=_AT_WORK), limit=1):
            return dg.SkipReason(f"{job.name} is at work")
        files = source_watch.source_files(project.settings.get().sources)
        found = source_watch.tick(source_watch.Watched.from_text(context.cursor), source_watch.look(files))
        cursor = found.memory.to_text()
        if found.run_key is None:
            return dg.SensorResult(skip_reason=found.found, cursor=cursor)
        request = dg.RunRequest(run_key=found.run_key, tags={PAIRS_TAG: str(schedule.source_change_pairs)})
        return dg.SensorResult(run_requests=[request], cursor=cursor)

    return watch
