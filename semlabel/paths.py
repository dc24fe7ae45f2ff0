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

    def sharing_dagster(self) -> list[Path]:
        """The `ops.sqlite` of every other labeler whose runs are in the same Dagster home."""
        around = self.dagster_home.parent
        # A folder with a Dagster home of its own is another environment.
        below = (folder for folder in around.iterdir() if not (folder / self.dagster_home.name).is_dir())
        files = [folder / self.ops.name for folder in (around, *sorted(below))]
        return [file for file in files if file.is_file() and file.parent != self.state]
