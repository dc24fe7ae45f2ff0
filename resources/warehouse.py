"""The warehouse as a resource: one holder at a time, across steps, runs and processes.

Knows files and leases, not tables. DuckDB lets nobody else in while one process writes, and a reader keeps writers
out, so both hold the lease: who comes second waits a bounded time and then fails naming the holder.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import dagster as dg

from resources.operations import OperationsResource
from resources.settings import SettingsResource

if TYPE_CHECKING:
    from semlabel.upkeep import Upkeep
    from semlabel.warehouse import Warehouse


class WarehouseResource(dg.ConfigurableResource):
    """Opens `warehouse.duckdb` of the project's environment for as long as a block runs."""

    settings: SettingsResource
    operations: OperationsResource

    def writer(self, run_id: str) -> "contextmanager[Warehouse]":
        """The warehouse, open for writing. Raises LeaseHeld naming the holder, WarehouseError when it cannot open."""
        return self._held(run_id, read_only=False)

    def reader(self, run_id: str) -> "contextmanager[Warehouse]":
        """The warehouse, open for reading. Raises as `writer` does, and when there is no warehouse yet."""
        return self._held(run_id, read_only=True)

    def keep_up(self, run_id: str) -> "Upkeep":
        """Purge what is past its retention time and compact the file where that gains something. Raises as `writer`."""
        from semlabel.upkeep import keep_up
        from semlabel.warehouse import LEASE, Opening

        settings = self.settings.get()
        log = dg.get_dagster_logger("semlabel")
        wait = settings.environment.lease_wait_seconds
        with self.operations.get().lease(LEASE, run_id, wait, on_wait=log.info):
            kept = settings.warehouse
            return keep_up(settings.paths.warehouse, kept.retention_days, kept.compact_factor, Opening.of(settings))

    @contextmanager
    def _held(self, run_id: str, read_only: bool) -> "Iterator[Warehouse]":
        from semlabel.compaction import discard_leftovers
        from semlabel.warehouse import LEASE, Opening

        settings = self.settings.get()
        log = dg.get_dagster_logger("semlabel")
        wait = settings.environment.lease_wait_seconds
        with self.operations.get().lease(LEASE, run_id, wait, on_wait=log.info):
            if not read_only:
                discard_leftovers(settings.paths.warehouse)
            with Opening.of(settings).open(settings.paths.warehouse, read_only) as warehouse:
                yield warehouse
