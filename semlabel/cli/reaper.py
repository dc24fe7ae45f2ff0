"""Closing runs whose process was killed: of every labeler that shares this Dagster home, while a run is at work too.

A killed run keeps its place in Dagster's pools, where the runs of all labelers of a deployment wait for each other
without end. So a run looks at the `ops.sqlite` of each of them before it begins, and again every minute: the one it
waits for may be killed later. Knows where these files lie and whose settings tell their people; deliberately knows
nothing of what makes a process dead, or of how a run is closed.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from semlabel.cli.alerts import tell
from semlabel.cli.code_location import labelers_of, open_instance
from semlabel.cli.common import say
from semlabel.cli.execution import reap
from semlabel.errors import SemlabelError, SettingsError, first_line
from semlabel.operations import Operations
from semlabel.outbox import REPEAT_AFTER
from semlabel.repeated import Repeated
from semlabel.settings import load_settings

if TYPE_CHECKING:
    from semlabel.cli.code_location import CodeLocation
    from semlabel.settings import Settings

LOOK_SECONDS = 60.0


@dataclass(frozen=True)
class Reaper:
    """Closes killed runs of the labeler with these settings, and of those that `location` runs beside it."""

    settings: "Settings"
    operations: Operations
    location: "CodeLocation"

    def close_killed(self) -> None:
        """Close them, say so, and let the people of each labeler know at once."""
        killed = reap(self.operations, open_instance)
        for run_id in killed:
            say(f"run {run_id[:8]} was killed; it is closed now, and its work goes on here")
        if killed:
            # Not hours later, when this run is over.
            tell(self.settings, self.operations)
        for ops in self.settings.paths.sharing_dagster():
            try:
                self._close_of_another(ops)
            except SemlabelError as error:
                # What is wrong with another labeler's files must not stop this one.
                say(f"killed runs of {ops.parent} were not looked for: {error}")

    def while_at_work(self) -> Repeated:
        """Do the same every minute until the block ends."""
        return Repeated(self._look, LOOK_SECONDS, "reaper")

    def _look(self) -> None:
        try:
            self.close_killed()
        except Exception as error:
            # Whatever it is (Dagster's storage may be locked), the next look may go well, and the run must not miss it.
            say(f"killed runs were not looked for: {type(error).__name__}: {first_line(error)}")

    def _close_of_another(self, ops: Path) -> None:
        theirs = self._settings_of(ops)
        operations = Operations(ops, timedelta(hours=theirs.alerts.repeat_hours) if theirs else REPEAT_AFTER)
        killed = reap(operations, open_instance)
        for run_id in killed:
            say(f"run {run_id[:8]} in {ops.parent} was killed; it is closed now, and its next run goes on with it")
        if killed and theirs is not None:
            tell(theirs, operations)
        elif killed:
            say(f"no settings file beside {self.location.workspace} is of {ops.parent}: its next run tells its people")

    def _settings_of(self, ops: Path) -> "Settings | None":
        """The settings of the labeler whose `ops.sqlite` this is; None where no settings file here is its own."""
        return next((found for found in self._others() if found.paths.ops.resolve() == ops.resolve()), None)

    def _others(self) -> Iterator["Settings"]:
        for file in labelers_of(self.location.workspace):
            try:
                yield load_settings(file, os.environ)
            except SettingsError:
                # Somebody is writing it; what it says is asked again by the runs of its own.
                continue
