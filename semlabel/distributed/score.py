"""Third stage: token ids become margins, on actors that load the model once and prove it before the first round.

Knows the one scorer and nothing of texts or labels. What a round cannot be scored for stays with it as a reason; a
model that does not prove itself ends the job.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from semlabel.distributed.accounting import same_rounds
from semlabel.distributed.catalog import SharedCatalog
from semlabel.distributed.config import MisConfig
from semlabel.distributed.runtime import require_ray
from semlabel.distributed.schemas import SCORED, table
from semlabel.errors import DistributedError, PromptError

if TYPE_CHECKING:
    from semlabel.scorer import Scorer

_PASSED_ON = ("entity_id", "round", "candidate_ids", "truncated", "problems", "error")


class Score:
    """An actor with a model. `catalog` is a reference into the object store; its pages are shared on a node."""

    def __init__(self, config: MisConfig, catalog: Any = None) -> None:
        self._catalog: SharedCatalog | None = None if catalog is None else require_ray().get(catalog)
        self._blocks: dict[tuple[int, ...], tuple[list[str], list[list[int]], list[str | None]]] = {}
        self._scorer = load_scorer(config)

    def __call__(self, batch: pa.Table) -> pa.Table:
        """The margins of a batch of rounds, in its order."""
        rows = batch.to_pylist()
        prepared = [self._prepared(row) for row in rows]
        wanted = [place for place, (found, _) in enumerate(prepared) if found["error"] is None]
        for number, margins in self._scorer.margins_of(
            [(rows[place]["query"], prepared[place][1]) for place in wanted]
        ):
            found, _ = prepared[wanted[number]]
            if isinstance(margins, PromptError):
                found["error"] = str(margins)
            else:
                good = [place for place, problem in enumerate(found["problems"]) if problem is None]
                found["margins"] = _spread(margins, good, len(found["candidate_ids"]))
        return same_rounds("score", batch, table([found for found, _ in prepared], SCORED))

    def _prepared(self, row: Mapping[str, Any]) -> tuple[dict[str, Any], list[list[int]]]:
        """A scored round without its margins, and the items that the prompt does not refuse."""
        found: dict[str, Any] = {column: row[column] for column in _PASSED_ON}
        items = row["items"]
        if row["positions"] is not None:
            found["candidate_ids"], items, found["problems"] = self._block(tuple(row["positions"]))
        found["margins"] = [None] * len(found["candidate_ids"])
        if found["error"] is not None:
            return found, []
        return found, [items[place] for place, problem in enumerate(found["problems"]) if problem is None]

    def _block(self, positions: tuple[int, ...]) -> tuple[list[str], list[list[int]], list[str | None]]:
        """Ids, items and problems of candidates of the shared catalog; there are few such blocks, so they are kept."""
        catalog = self._catalog
        if catalog is None:
            raise DistributedError("a round asks for the shared catalog of a job that has none")
        if positions not in self._blocks:
            ids, items = [catalog.ids[place] for place in positions], [catalog.item(place) for place in positions]
            self._blocks[positions] = ids, items, [catalog.problems[place] for place in positions]
        return self._blocks[positions]


def load_scorer(config: MisConfig) -> "Scorer":
    """The scorer of a config, self-checked; a labeler's known pairs and its digest too."""
    import torch

    from semlabel.labeler import Labeler
    from semlabel.scorer import Scorer

    if config.threads:
        torch.set_num_threads(config.threads)
    limits: dict[str, Any] = {"items_per_round": config.items_per_round, "max_round_tokens": config.max_round_tokens}
    if config.labeler is not None:
        labeler = Labeler.load(config.path, device=config.device, method=config.method, **limits)
        config.refuse_other(labeler.manifest)
        return labeler.scorer
    return Scorer.load(config.path, config.spec, config.precision, config.device, config.method, **limits)


def _spread(margins: np.ndarray, places: Sequence[int], count: int) -> list[float | None]:
    """Margins at their places among `count` candidates, None elsewhere; float32 survives the way through float."""
    if len(margins) != len(places):
        raise DistributedError(f"{len(margins)} margins for {len(places)} items; nothing of this round is kept")
    spread: list[float | None] = [None] * count
    for place, margin in zip(places, margins.tolist(), strict=True):
        spread[place] = margin
    return spread
