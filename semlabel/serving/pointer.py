"""Which labeler should answer: the one of the current publication, or the one a directory or link names.

The promoted labeler is wanted beside it before the table of it is published, so that the switch costs nothing when it
comes. Reads links and manifests only; knows nothing of loading or scoring.
"""

from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict

from semlabel.errors import LabelerError
from semlabel.labeler_files import CURRENT, find_labeler, promoted_path
from semlabel.published import current_publication


class Wanted(NamedTuple):
    """The directory of the labeler that answers, and of one to hold ready."""

    current: Path
    ready: Path | None


class Pointer(BaseModel):
    """`labeler`: a directory or a link to one, followed. Without it `labelers` and `published` of a project decide."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    labeler: Path | None = None
    labelers: Path | None = None
    published: Path | None = None

    def publication(self) -> dict[str, Any] | None:
        """The manifest of the current publication, or None without one. Raises WarehouseError for a damaged one."""
        return current_publication(self.published) if self.published is not None else None

    def wanted(self) -> Wanted:
        """What should be loaded now. Raises LabelerError or WarehouseError when that cannot be told."""
        if self.labeler is not None:
            if not self.labeler.is_dir():
                raise LabelerError(f"{self.labeler}: no labeler directory there; name one, or promote a labeler")
            return Wanted(self.labeler.resolve(), None)
        assert self.labelers is not None
        promoted = promoted_path(self.labelers)
        publication = self.publication()
        if publication is not None:
            current = find_labeler(self.labelers, publication["labeler_digest"])
            return Wanted(current.resolve(), promoted.resolve() if promoted else None)
        if promoted is None:
            raise LabelerError(f"{self.labelers / CURRENT}: no labeler is promoted yet; run the pipeline first")
        return Wanted(promoted.resolve(), None)
