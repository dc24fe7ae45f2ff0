"""The folder of one training: what it was started for, the checkpoint it can go on from, and its finished model.

Knows nothing of models: it sees digests, folders and numbers. A checkpoint counts only once its marker is written, and
the marker is written last, so whatever a kill leaves behind is either whole or thrown away.
"""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

STATE_FILE = "training.json"
_MARKER = "complete.json"
_PREFIX = "checkpoint-"


@dataclass(frozen=True)
class Resumable:
    """A whole checkpoint: its folder, the optimiser steps it has behind it, the items and seconds these took."""

    path: Path
    step: int
    pairs: int
    seconds: float


class TrainingState:
    """Folder `directory` used for the training `digest`; anything of another training in it is removed."""

    def __init__(self, directory: Path, digest: str) -> None:
        self.directory = directory
        self.digest = digest
        self.checkpoints = directory / "trainer"
        self.model_dir = directory / "model"

    def finished(self) -> dict[str, Any] | None:
        """What `finish` recorded, when this very training has ended and its model is still there."""
        recorded = self._recorded()
        if recorded.get("training_digest") != self.digest or "result" not in recorded:
            return None
        sizes = _sizes(self.model_dir) if self.model_dir.is_dir() else {}
        return recorded["result"] if sizes == recorded["files"] else None

    def begin(self) -> Resumable | None:
        """Make the folder ready; the checkpoint to go on from, or None for a fresh start."""
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self._recorded().get("training_digest") != self.digest:
            self._remove(self.checkpoints, self.model_dir)
            self._record({"training_digest": self.digest})
        whole = [found for path in self._checkpoint_dirs() if (found := self._resumable(path)) is not None]
        last = max(whole, key=lambda found: found.step, default=None)
        self._remove(*(path for path in self._checkpoint_dirs() if last is None or path != last.path))
        return last

    def keep_only(self, step: int, pairs: int, seconds: float) -> None:
        """Mark the checkpoint of `step`, just written, as whole, and remove the ones before it."""
        path = self.checkpoints / f"{_PREFIX}{step}"
        marker = {"step": step, "pairs": pairs, "seconds": seconds, "files": _sizes(path)}
        _write_json(path / _MARKER, marker)
        self._remove(*(other for other in self._checkpoint_dirs() if other != path))

    def finish(self, staged_model: Path, result: dict[str, Any]) -> None:
        """Put the trained model in place, record the result, and drop the checkpoints."""
        self._remove(self.model_dir)
        staged_model.rename(self.model_dir)
        self._record({"training_digest": self.digest, "files": _sizes(self.model_dir), "result": result})
        self._remove(self.checkpoints)

    def _recorded(self) -> dict[str, Any]:
        file = self.directory / STATE_FILE
        return json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}

    def _record(self, content: dict[str, Any]) -> None:
        _write_json(self.directory / STATE_FILE, content)

    def _checkpoint_dirs(self) -> list[Path]:
        return sorted(self.checkpoints.glob(f"{_PREFIX}*"))

    def _resumable(self, path: Path) -> Resumable | None:
        marker = path / _MARKER
        if not marker.exists():
            return None
        content = json.loads(marker.read_text(encoding="utf-8"))
        if _sizes(path) != content["files"]:
            return None
        return Resumable(path, content["step"], content["pairs"], content["seconds"])

    @staticmethod
    def _remove(*paths: Path) -> None:
        for path in paths:
            if path.exists():
                shutil.rmtree(path)


def _sizes(directory: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in sorted(directory.iterdir()) if path.name != _MARKER}


def _write_json(file: Path, content: dict[str, Any]) -> None:
    fresh = file.with_name(f".{file.name}.new")
    fresh.write_text(json.dumps(content, sort_keys=True), encoding="utf-8")
    fresh.replace(file)
