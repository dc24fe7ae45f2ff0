"""Which labeler a step is about: the one that is being made, or the promoted one.

Knows directories and manifests. In a run that trains, checks judge what that run made; in every other run they judge
the labeler that labels.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from resources.project import Step
from semlabel.errors import GateBlocked

if TYPE_CHECKING:
    from semlabel.manifest import Manifest


def promoted_labeler(step: Step) -> "tuple[Path, Manifest] | None":
    """Directory and manifest of the promoted labeler; None before the first promotion."""
    from semlabel.labeler_files import promoted_path
    from semlabel.manifest import read_manifest

    directory = promoted_path(step.settings.paths.labelers)
    return None if directory is None else (directory, read_manifest(directory))


def needed_labeler(step: Step) -> "tuple[Path, Manifest]":
    """The promoted labeler. Raises GateBlocked before the first promotion."""
    promoted = promoted_labeler(step)
    if promoted is None:
        raise GateBlocked("no labeler is promoted yet; run the whole recipe, or train_labeler and then promote one")
    return promoted


def judged_checkpoint(step: Step) -> "tuple[Path, Manifest]":
    """The checkpoint that checks are about: the newest one in a run that trains, else the promoted labeler."""
    return _made(step, "checkpoint") if step.trains else needed_labeler(step)


def judged_labeler(step: Step) -> "tuple[Path, Manifest]":
    """The labeler that checks are about: the newest one in a run that trains, else the promoted labeler."""
    return _made(step, "threshold") if step.trains else needed_labeler(step)


def newest_labeler(step: Step) -> "tuple[Path, Manifest]":
    """The labeler that `threshold` made last. Raises GateBlocked before the first one."""
    return _made(step, "threshold")


def _made(step: Step, asset: str) -> "tuple[Path, Manifest]":
    from semlabel.manifest import read_manifest

    directory = Path(str(step.materialized(asset)["path"]))
    return directory, read_manifest(directory)
