"""`ops.sqlite` as a resource: gate results, run progress, leases, promotions.

Knows nothing of what is recorded. The file lies beside the warehouse but is never locked for long, so it can be asked
while a night's writer holds the warehouse.
"""

from datetime import timedelta
from typing import TYPE_CHECKING

import dagster as dg
from pydantic import PrivateAttr

from resources.settings import SettingsResource

if TYPE_CHECKING:
    from semlabel.operations import Operations


class OperationsResource(dg.ConfigurableResource):
    """Opens `ops.sqlite` of the project's environment when it is first asked for."""

    settings: SettingsResource
    _open: "Operations | None" = PrivateAttr(default=None)

    def get(self) -> "Operations":
        """The open `ops.sqlite`. Raises WarehouseError when the file is newer than this code."""
        if self._open is None:
            from semlabel.operations import Operations

            settings = self.settings.get()
            settings.paths.create()
            self._open = Operations(settings.paths.ops, timedelta(hours=settings.alerts.repeat_hours))
        return self._open
