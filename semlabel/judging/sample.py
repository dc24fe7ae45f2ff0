"""An export of pairs to judge: which ones, with what they say and what the labeler says of them.

Reads the warehouse under its lease and only for reading: a run that holds it is waited for and then named, and a
project that has published nothing yet, because too little is judged, can still ask people. So can one that has not
run at all. Knows nothing of file formats.
"""

import contextlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from semlabel.errors import SemlabelError, SettingsError
from semlabel.judging import active_sample, random_sample, similarity_sample
from semlabel.judging.before_a_run import fill_from_tables
from semlabel.judging.random_sample import Pair
from semlabel.judging.store import RANDOM, STRATIFIED, Said, read_judgements, still_current
from semlabel.online_texts import held_text_ids
from semlabel.reading import reading
from semlabel.sources import read_catalog, read_entities, text_ids
from semlabel.warehouse import Opening, Warehouse

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


def sample_active(settings: "Settings", operations: "Operations | None", count: int) -> list[SampledPair]:
    """Pairs of train entities that are worth judging; see `active_sample`, and `similarity_sample` before any labeler.

    Raises SemlabelError where there is nothing to pick or judgements could not be used, LeaseHeld.
    """
    with _reading(settings, operations) as warehouse:
        judged = {row.pair for row in of_these_texts(warehouse, read_judgements(settings))}
        rows = pairs_to_teach(warehouse, judged, settings.sources.unlisted, count)
        if not rows:
            raise SemlabelError("no pair of a train entity is left to pick: all are judged; export with --random")
        _refuse_stale(rows, warehouse, settings)
    return rows


def of_these_texts(warehouse: Warehouse, rows: Sequence[Said]) -> list[Said]:
    """The rows that were said of the texts which the warehouse has now; a pair with another text is asked anew."""
    with (
        warehouse.ids("said_entities", {row.entity_id for row in rows}),
        warehouse.ids("said_candidates", {row.candidate_id for row in rows}),
    ):
        entities = dict(
            warehouse.rows("SELECT entity_id, text_id FROM entities SEMI JOIN said_entities ON id = entity_id")
        )
        candidates = dict(
            warehouse.rows("SELECT candidate_id, text_id FROM catalog SEMI JOIN said_candidates ON id = candidate_id")
        )
    return still_current(rows, entities, candidates)


def pairs_to_teach(warehouse: Warehouse, judged: Collection[Pair], unlisted: str, count: int) -> list[SampledPair]:
    """At most `count` pairs of train entities without those in `judged`: by what the labeler says of them, or where no
    labeler has labeled any by how alike their texts are.
    """
    picked = active_sample.pick(warehouse, judged, unlisted, count) if active_sample.has_labeled(warehouse) else []
    if picked:
        return _rows(warehouse, {found.pair: (found.design, None) for found in picked})
    listed = warehouse.rows(f"SELECT entity_id, candidate_id FROM reference_labels UNION {active_sample.CONTRADICTED}")
    entities = dict(warehouse.rows("SELECT entity_id, text FROM entities WHERE split = 'train' ORDER BY entity_id"))
    candidates = dict(warehouse.rows("SELECT candidate_id, text FROM catalog ORDER BY position"))
    known = {*judged, *((row[0], row[1]) for row in listed)}
    drawn = similarity_sample.draw(entities, candidates, known, count)
    return _rows(warehouse, {pair: (STRATIFIED, chance) for pair, chance in drawn.items()})


def sample_random(
    settings: "Settings", operations: "Operations | None", count: int, splits: Collection[str]
) -> list[SampledPair]:
    """The next random pairs of these splits' cross product, with their exact inclusion probability.

    Raises SemlabelError where every pair is judged or judgements could not be used, LeaseHeld while a run holds the
    warehouse.
    """
    with _reading(settings, operations) as warehouse:
        known = [row for row in read_judgements(settings) if row.design == RANDOM]
        judged = {row.pair for row in of_these_texts(warehouse, known)}
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
        rows = _rows(warehouse, dict.fromkeys(drawn.pairs, (RANDOM, drawn.probability)))
        _refuse_stale(rows, warehouse, settings)
    return rows


_OF_SPLITS = "SELECT entity_id FROM entities WHERE split IN (SELECT id FROM wanted_splits) ORDER BY 1"


@contextmanager
def _reading(settings: "Settings", operations: "Operations | None") -> Iterator[Warehouse]:
    """The project's warehouse, or before a first run one in memory that holds what its tables say."""
    with contextlib.ExitStack() as stack:
        if operations is not None and settings.paths.warehouse.exists():
            warehouse = stack.enter_context(reading(settings, "sample"))
            if warehouse.content_digest("entities") and warehouse.content_digest("catalog"):
                _refuse_useless(warehouse, settings)
                yield warehouse
                return
        warehouse = stack.enter_context(Opening.of(settings).open(Path(":memory:")))
        fill_from_tables(warehouse, settings, operations.erased_ids() if operations else ())
        _refuse_useless(warehouse, settings)
        yield warehouse


def _refuse_useless(warehouse: Warehouse, settings: "Settings") -> None:
    """Raise SettingsError where no judgement could become a label, so that nobody works in vain."""
    if settings.sources.unlisted == "negative" and not warehouse.rows("SELECT 1 FROM reference_labels LIMIT 1"):
        raise SettingsError(
            f'{settings.path}: no reference can be used, and [sources] unlisted = "negative" makes a NO of every pair '
            'that nobody listed; set unlisted = "unknown", so that judgements count by themselves'
        )


def _refuse_stale(rows: list[SampledPair], warehouse: Warehouse, settings: "Settings") -> None:
    """Raise SemlabelError where most pairs are of texts that the tables do not hold any more, and that did not come
    online either: their import would be refused, and people would have judged in vain.
    """
    source = read_entities(settings).frame
    entities = text_ids(source, "entity_id") | held_text_ids(warehouse, source)
    stale = len(rows) - len(still_current(rows, entities, text_ids(read_catalog(settings).frame, "candidate_id")))
    if stale > len(rows) / 2:
        raise SemlabelError(
            f"{stale} of {len(rows)} pairs are of texts that are not in the tables any more: let "
            "`semlabel run --until reference_labels` read them first"
        )


def _rows(warehouse: Warehouse, designs: Mapping[Pair, tuple[str, float | None]]) -> list[SampledPair]:
    """The pairs, each with its design and inclusion probability, with texts and predictions, in an order that tells
    nothing about them.
    """
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
                design=designs[pair][0],
                inclusion_probability=designs[pair][1],
                entity_text_id=entity_text_id,
                candidate_text_id=candidate_text_id,
            )
        )
    return rows
