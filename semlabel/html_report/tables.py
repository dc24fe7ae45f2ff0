"""The part of a report that is read from the warehouse: everything about judged pairs, predictions and references.

The training stands here too, so that its plot is drawn once and kept with the rest.
Knows which questions the warehouse is asked and puts the answers into their sections. Reads only, and scores nothing.
"""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from semlabel.html_report import contradictions, mistakes, quality, subject, wrong_pairs
from semlabel.html_report.markup import Html, joined, paragraph

if TYPE_CHECKING:
    from semlabel.manifest import Manifest
    from semlabel.operations import Operations
    from semlabel.settings import Settings
    from semlabel.warehouse import Warehouse

_BINS = 40


def tables_part(
    settings: "Settings",
    operations: "Operations",
    run_id: str,
    manifest: "Manifest | None",
    warehouse: "Warehouse",
) -> Html:
    """The sections about pairs, or sentences where there is no labeler yet."""
    unlisted = settings.sources.unlisted
    refused, contradictory = contradictions.refused_references(warehouse, run_id, mistakes.MOST_PAIRS)
    found = contradictions.judged_differently(warehouse, unlisted, mistakes.MOST_PAIRS)
    named = [one.yes_entity_id for one in found.first] + [one.no_entity_id for one in found.first]
    parts = [_when(operations, run_id)]
    if manifest is None:
        texts = _texts(settings, warehouse, named)
        parts.append(paragraph("There is no labeler yet, so there are no margins to show."))
        return joined([*parts, mistakes.references_section(refused, contradictory, found, texts)])
    calibrate = subject.held_out(warehouse, manifest, "calibrate", unlisted)
    certify: subject.HeldOut | None = subject.held_out(warehouse, manifest, "certify", unlisted)
    if certify is not None and not subject.proven_on(settings, operations, manifest, certify):
        certify = None
    positives = wrong_pairs.false_positives(calibrate.pairs, manifest.threshold, mistakes.MOST_PAIRS)
    negatives = wrong_pairs.false_negatives(calibrate.pairs, manifest.threshold, mistakes.MOST_PAIRS)
    texts = _texts(settings, warehouse, [*named, *positives["entity_id"], *negatives["entity_id"]])
    return joined(
        [
            *parts,
            quality.training_section(manifest),
            quality.threshold_section(manifest, calibrate, certify),
            quality.calibration_section(manifest, calibrate, certify),
            quality.margins_section(manifest, calibrate, _spread(warehouse, manifest)),
            mistakes.candidates_section(manifest, calibrate.pairs, texts),
            mistakes.pairs_section(manifest, positives, negatives, texts),
            mistakes.references_section(refused, contradictory, found, texts),
        ]
    )


def _when(operations: "Operations", run_id: str) -> Html:
    told = f"What follows was read from the warehouse at {datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC."
    last = operations.last_run()
    if last is not None and last["run_id"] != run_id:
        told += " Later runs may have changed it."
    return paragraph(told)


def _spread(warehouse: "Warehouse", manifest: "Manifest") -> quality.Spread | None:
    """The margins of all predictions in bins of one width; None where the predictions are another labeler's."""
    active = warehouse.active_labeler()
    if active is None or active["labeler_digest"] != manifest.digest:
        return None
    ((low, high),) = warehouse.rows("SELECT min(margin), max(margin) FROM predictions")
    if low is None:
        return None
    width = max(float(high) - float(low), 1e-6) / _BINS
    counted = dict(
        warehouse.rows(
            "SELECT least(CAST(floor((CAST(margin AS DOUBLE) - ?) / ?) AS INTEGER), ?), count(*) FROM predictions "
            "GROUP BY 1",
            [float(low), width, _BINS - 1],
        )
    )
    edges = [float(low) + width * number for number in range(_BINS + 1)]
    return quality.Spread(edges, [int(counted.get(number, 0)) for number in range(_BINS)])


def _texts(settings: "Settings", warehouse: "Warehouse", entity_ids: Iterable[str]) -> mistakes.Texts:
    candidates = dict(warehouse.rows("SELECT candidate_id, text FROM catalog"))
    if not settings.report.texts:
        return mistakes.Texts({}, candidates)
    with warehouse.ids("shown_entities", sorted(set(entity_ids))):
        entities = warehouse.rows("SELECT entity_id, text FROM entities SEMI JOIN shown_entities ON id = entity_id")
    return mistakes.Texts(dict(entities), candidates)
