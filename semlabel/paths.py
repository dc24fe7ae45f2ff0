"""Where one environment of a project keeps its state.

Knows names only; which folder each is comes from the settings.
"""

from dataclasses import dataclass, fields
from pathlib import Path


@dataclass(frozen=True)
class Paths:
    """Where one environment of a project keeps its state. All absolute; nothing is created before `create()`."""

    state: Path
    warehouse: Path
    ops: Path
    labelers: Path
    checkpoints: Path
    published: Path
    preview: Path
    reports: Path
    dagster_home: Path
    lock: Path
    temporary: Path
    spool: Path

    def create(self) -> None:
        """Make the folders, readable by their owner only: they hold people's texts."""
        files = {self.warehouse, self.ops, self.lock}
        for folder in (getattr(self, field.name) for field in fields(self)):
            if folder not in files:
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
