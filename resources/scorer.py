"""The model that scores, as a resource: loaded when the first round needs it, once per process, counted.

Knows directories and digests, not tables or gates. Loading verifies every digest and proves the packing on the spot;
a run in which nothing is to be scored never gets here.
"""

from pathlib import Path
from typing import TYPE_CHECKING

import dagster as dg

from resources.operations import OperationsResource
from resources.settings import SettingsResource

if TYPE_CHECKING:
    from semlabel.scorer import Scorer

# One model per process: a second one would double the memory, and a run serves one labeler.
_loaded: "dict[tuple[str, ...], Scorer]" = {}


class ScorerResource(dg.ConfigurableResource):
    """Loads checkpoint or labeler directories; the same scorer digest is loaded once per process."""

    settings: SettingsResource
    operations: OperationsResource

    def get(self, directory: Path, run_id: str) -> "Scorer":
        """The scorer of a checkpoint or labeler directory. Raises LabelerError or ModelRefused when it proves unfit."""
        from semlabel.manifest import read_manifest

        scoring, model = self.settings.get().scoring, self.settings.get().model
        rounds = (str(scoring.items_per_round), str(scoring.max_round_tokens), str(scoring.lanes))
        key = (read_manifest(directory).scorer_digest, model.device, scoring.method, *rounds)
        if key not in _loaded:
            _loaded.clear()
            _loaded[key] = self._load(directory)
            self.operations.get().add_to_run(run_id, model_loads=1)
        return _loaded[key]

    def _load(self, directory: Path) -> "Scorer":
        import torch

        from semlabel.labeler import Labeler

        scoring, model = self.settings.get().scoring, self.settings.get().model
        if scoring.threads:
            torch.set_num_threads(scoring.threads)
        return Labeler.load(
            directory,
            device=model.device,
            method=scoring.method,
            items_per_round=scoring.items_per_round,
            max_round_tokens=scoring.max_round_tokens,
            lanes=scoring.lanes,
        ).scorer


def forget_models() -> None:
    """Let go of the loaded model: training needs the memory, and tests start as a new process would."""
    _loaded.clear()
