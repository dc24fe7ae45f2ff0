"""What tells people, as a resource: alerts to the team's channels, a ping after a good night.

Knows where settings and `ops.sqlite` are; what is due and how it is sent is `semlabel.notify`'s. Addresses are read
from the environment of the process that sends, so the daemon's code server needs those variables.
"""

import os
from typing import TYPE_CHECKING

import dagster as dg

from resources.operations import OperationsResource
from resources.settings import SettingsResource

if TYPE_CHECKING:
    from semlabel.notify import Told


class NotifierResource(dg.ConfigurableResource):
    """Sends what is due of the project's alerts."""

    settings: SettingsResource
    operations: OperationsResource

    def deliver(self, seconds: float) -> "Told":
        """One pass that begins no new message after `seconds`. Raises WarehouseError when `ops.sqlite` is unusable."""
        from semlabel.notify import deliver

        return deliver(self.operations.get(), self.settings.get(), os.environ, seconds=seconds)
