"""Upkeep of the warehouse at the end of a night: purge what its retention time has run out for, then compact the file.

Knows the order of the two and what is told of them; deliberately knows nothing of Dagster. Callers hold the writer's
lease and have the warehouse closed.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from semlabel.compaction import Compaction, compact, discard_leftovers, nothing_to_gain, settled
from semlabel.retention import Purged, purge
from semlabel.warehouse import Opening


@dataclass(frozen=True)
class Upkeep:
    """What was purged and what became of the file."""

    purged: Purged
    compaction: Compaction

    def sentence(self) -> str:
        """One line for a log."""
        gone = f"{self.purged.pairs:,} margins past their retention time were purged"
        before, after = self.compaction.bytes_before, self.compaction.bytes_after
        if self.compaction.skipped:
            return f"{gone}; the file stays at {before:,} bytes ({self.compaction.skipped})"
        return f"{gone}; the file shrank from {before:,} to {after:,} bytes"


def keep_up(
    path: Path, retention_days: float, compact_factor: float, opening: Opening, now: datetime | None = None
) -> Upkeep:
    """Purge, then compact where that gains something. Raises WarehouseError; then nothing that is used is lost."""
    with opening.open(path) as warehouse:
        purged = purge(warehouse, timedelta(days=retention_days), now)
        left_alone = nothing_to_gain(settled(warehouse), compact_factor)
    if left_alone is not None:
        discard_leftovers(path)
        return Upkeep(purged, left_alone)
    return Upkeep(purged, compact(path, compact_factor, opening))
