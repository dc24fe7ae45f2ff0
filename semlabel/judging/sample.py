"""An export of pairs to judge: which ones, with what they say and what the labeler says of them.

Reads the warehouse under its lease and only for reading: a run that holds it is waited for and then named, and a
project that has published nothing yet, because too little is judged, can still ask people. Knows nothing of file
formats.
"""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import uuid4

from semlabel.errors import SemlabelError
from semlabel.judging import active_sample, random_sample
from semlabel.judging.random_sample import Pair
from semlabel.judging.store import RANDOM, read_judgements
from semlabel.warehouse import LEASE, Opening, Warehouse

if TYPE_CHECKING:
    from semlabel.operations import Operations
    from semlabel.settings import Settings


@dataclass(frozen=True)
class SampledPair:
    """One row of an export. What the labeler says is None where it has said nothing of the pair."""

    entity_id: str
    candidate_id: str
    entity_text: str
    candidate_text: str
    split: str
    margin: float | None
    probability: float | None
    label: bool | None
    labeler_digest: str | None
    design: str
    inclusion_probability: float | None
    entity_text_id: str
    candidate_text_id: str


def sample_active(settings: "Settings", operations: "Operations", count: int) -> list[SampledPair]:
    """Pairs of train entities that are worth judging; see `active_sample`. Raises SemlabelError, LeaseHeld."""
    with _reading(settings, operations) as warehouse:
        judged = {row.pair for row in read_judgements(settings)}
        picked = active_sample.pick(warehouse, judged, settings.sources.unlisted, count)
        return _rows(warehouse, {found.pair: found.design for found in picked}, None)


def sample_random(
    settings: "Settings", operations: "Operations", count: int, splits: Collection[str]
) -> list[SampledPair]:
    """The next random pairs of these splits' cross product, with their exact inclusion probability.

    Raises SemlabelError where every pair is judged, LeaseHeld while a run holds the warehouse.
    """
    with _reading(settings, operations) as warehouse:
        judged = {row.pair for row in read_judgements(settings) if row.design == RANDOM}
        with warehouse.ids("wanted_splits", splits):
            entity_ids = [row[0] for row in warehouse.rows(_OF_SPLITS)]
        if not entity_ids:
            raise SemlabelError(
                f"no entity is in {', '.join(splits)} yet: one gets its split when a reference first names it; begin "
                "with references for some entities, then `semlabel run --until entities`"
            )
        candidate_ids = [row[0] for row in warehouse.rows("SELECT candidate_id FROM catalog ORDER BY position")]
        drawn = random_sample.draw(entity_ids, candidate_ids, judged, count)
        if not drawn.pairs:
            raise SemlabelError(f"all {drawn.frame} pairs of {', '.join(splits)} are judged: choose another --split")
        return _rows(warehouse, dict.fromkeys(drawn.pairs, RANDOM), drawn.probability)


_OF_SPLITS = "SELECT entity_id FROM entities WHERE split IN (SELECT id FROM wanted_splits) ORDER BY 1"


@contextmanager
def _reading(settings: "Settings", operations: "Operations") -> Iterator[Warehouse]:
    wait = settings.environment.lease_wait_seconds
    with (
        operations.lease(LEASE, f"sample-{uuid4().hex[:8]}", wait),
        Opening.of(settings).open(settings.paths.warehouse, read_only=True) as warehouse,
    ):
        yield warehouse


def _rows(warehouse: Warehouse, designs: Mapping[Pair, str], probability: float | None) -> list[SampledPair]:
    """The pairs with texts and predictions, in an order that tells nothing about them."""
    pairs = random_sample.in_order(designs)
    with (
        warehouse.ids("sampled_entities", {pair[0] for pair in pairs}),
        warehouse.ids("sampled_candidates", {pair[1] for pair in pairs}),
    ):
        entities = {
            row[0]: row[1:]
            for row in warehouse.rows(
                "SELECT entity_id, text, split, text_id FROM entities SEMI JOIN sampled_entities ON id = entity_id"
            )
        }
        candidates = {
            row[0]: row[1:]
            for row in warehouse.rows(
                "SELECT candidate_id, text, text_id FROM catalog SEMI JOIN sampled_candidates ON id = candidate_id"
            )
        }
        said = {
            (row[0], row[1]): row[2:]
            for row in warehouse.rows(
                "SELECT entity_id, candidate_id, margin, probability, label, labeler_digest FROM predictions "
                "SEMI JOIN sampled_entities s ON s.id = entity_id SEMI JOIN sampled_candidates c ON c.id = candidate_id"
            )
        }
    rows = []
    for pair in pairs:
        (entity_text, split, entity_text_id), (candidate_text, candidate_text_id) = (
            entities[pair[0]],
            candidates[pair[1]],
        )
        margin, chance, label, labeler = said.get(pair, (None, None, None, None))
        rows.append(
            SampledPair(
                *pair,
                entity_text=entity_text,
                candidate_text=candidate_text,
                split=split,
                margin=margin,
                probability=chance,
                label=label,
                labeler_digest=labeler,
                design=designs[pair],
                inclusion_probability=probability if designs[pair] == RANDOM else None,
                entity_text_id=entity_text_id,
                candidate_text_id=candidate_text_id,
            )
        )
    return rows
