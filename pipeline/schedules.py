"""When the nightly job runs: as the settings say, and on by default: a schedule that nobody starts labels nothing."""

from typing import TYPE_CHECKING

import dagster as dg

if TYPE_CHECKING:
    from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition

    from semlabel.settings import Schedule


def nightly_labeling_schedule(schedule: "Schedule", job: "UnresolvedAssetJobDefinition") -> dg.ScheduleDefinition:
    """The schedule of the nightly job, in the settings' time zone."""
    status = dg.DefaultScheduleStatus.RUNNING if schedule.enabled else dg.DefaultScheduleStatus.STOPPED
    return dg.ScheduleDefinition(
        name="nightly_labeling_schedule",
        job=job,
        cron_schedule=schedule.cron,
        execution_timezone=schedule.timezone,
        default_status=status,
        description=f"Nightly at {schedule.cron} ({schedule.timezone}).",
    )
