"""Which model is measured, with which prompt and threshold: a labeler directory, or any model directory.

Knows nothing of how it is measured.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from semlabel.digests import digest_of
from semlabel.labeler_files import promoted_path
from semlabel.manifest import MANIFEST_FILE, base_identity, read_manifest
from semlabel.prompt import PromptSpec

if TYPE_CHECKING:
    from semlabel.settings import Settings

_PLAIN = PromptSpec("{entity}\n\nDoes this hold, yes or no? {candidate}")


@dataclass(frozen=True)
class Subject:
    """The model under measurement. `threshold` is the labeler's, None for a plain model; `digest` its identity."""

    path: str
    spec: PromptSpec
    threshold: float | None
    digest: str


def subject_of(model: str | None, settings: "Settings | None") -> Subject:
    """The model at path `model`, else the promoted labeler of `settings`, else their base model.

    A labeler brings its own prompt; a plain model takes that of `settings`, else a short one. Raises LabelerError
    where the labeler's manifest cannot be read or disagrees with itself.
    """
    path = model
    if path is None:
        if settings is None:
            raise ValueError("neither a model nor settings that name one")
        promoted = promoted_path(settings.paths.labelers)
        path = settings.model.base if promoted is None else str(promoted)
    if (Path(path) / MANIFEST_FILE).exists():
        manifest = read_manifest(Path(path))
        return Subject(path, manifest.prompt.spec(), manifest.threshold, manifest.digest)
    spec = _PLAIN if settings is None else PromptSpec.from_settings(settings.prompt)
    return Subject(path, spec, None, digest_of(base_identity(path)))
