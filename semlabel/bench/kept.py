"""Finished parts of a long measurement, one file each, so that a killed run goes on with the next part.

A file is there whole or not at all. Knows nothing of what is measured: arrays and plain facts in, the same out.
"""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import numpy.typing as npt

_FACTS = "facts"


@dataclass(frozen=True)
class Part:
    """What one part of a measurement found: arrays by name, and JSON values by name."""

    arrays: dict[str, npt.NDArray[Any]]
    facts: dict[str, Any] = field(default_factory=dict)


class Kept:
    """Parts below `folder`, which is made with the first of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def part(self, name: str, make: Callable[[], Part]) -> Part:
        """The part of this name, from an earlier run, or made now and kept."""
        return self.find(name) or self._keep(name, make())

    def find(self, name: str) -> Part | None:
        """The part of this name, None where it is still to be made."""
        file = self._file(name)
        if not file.exists():
            return None
        with np.load(file, allow_pickle=False) as kept:
            arrays = {key: kept[key] for key in kept.files}
        return Part(arrays, json.loads(str(arrays.pop(_FACTS))))

    def forget(self) -> None:
        """Remove all parts: what is worth keeping has been counted."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _keep(self, name: str, part: Part) -> Part:
        self.folder.mkdir(parents=True, exist_ok=True)
        fresh = self.folder / f".{name}-{uuid4().hex}.npz"
        try:
            np.savez(fresh, **part.arrays, **{_FACTS: np.array(json.dumps(part.facts))})  # type: ignore[arg-type]
            fresh.replace(self._file(name))
        finally:
            fresh.unlink(missing_ok=True)
        return part

    def _file(self, name: str) -> Path:
        return self.folder / f"{name}.npz"
