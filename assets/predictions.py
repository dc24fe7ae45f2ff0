"""`predictions`: a margin, a probability and a label for every entity in scope and every candidate.

Knows the scope and the promoted labeler; a night never changes tau. Only missing margins are computed, so an unchanged
night loads no model. The last stage of the recipe stands here: whatever path is taken, it is the same labeler.
"""

from pathlib import Path
from typing import TYPE_CHECKING

import dagster as dg

from assets import contracts, metadata
from assets.changes import against_publication, approved, replaces
from assets.checks import GateCheck, gate_check
from assets.evaluation import score
from assets.labelers import needed_labeler, newest_labeler, promoted_labeler
from assets.shortlist import judged_ids, keep_shortlists, rule_for
from assets.verdicts import before_promotion
from resources.project import ProjectResource, Step

if TYPE_CHECKING:
    from semlabel.gates import GateResult
    from semlabel.manifest import Manifest
    from semlabel.warehouse import Warehouse


@dg.asset(
    deps=["entities", "catalog", "reference_labels", "training_pairs", "checkpoint", "threshold"],
    group_name="labeling",
    kinds={"duckdb", "table", "pytorch"},
    pool="gpu",
    metadata={"dagster/column_schema": metadata.PREDICTIONS},
)
def predictions(context: dg.AssetExecutionContext, project: ProjectResource) -> dg.MaterializeResult:
    """Labels of every entity in scope under the promoted labeler; the first labeler promotes itself when it may."""
    step = project.step(context)
    directory, manifest = promoted_labeler(step) or _promote_first(step)
    rule = rule_for(step, manifest)
    with step.writer() as warehouse:
        scope, description = _scope(step, warehouse)
        warehouse.set_scope(scope, description)
        calibration = manifest.calibration
        warehouse.activate_labeler(
            manifest.digest,
            manifest.scorer_digest,
            manifest.threshold,
            calibration.platt_a if calibration else None,
            calibration.platt_b if calibration else None,
        )
        keep_shortlists(step, warehouse, rule, scope)
        in_full = judged_ids(warehouse) if rule else None
        outcome = score(step, warehouse, directory, manifest, scope, step.max_pairs, in_full, served=True)
        digest, rows = warehouse.predictions_digest(), warehouse.predictions_count()
        left_out = warehouse.not_shortlisted() if rule else None
        ((yes,),) = warehouse.rows("SELECT count(*) FILTER (WHERE label) FROM predictions")
    return metadata.materialized(
        digest,
        rows,
        run_id=step.run_id,
        scope=description,
        labeler_digest=manifest.digest,
        threshold=manifest.threshold,
        labels_yes=yes,
        share_of_yes=yes / rows if rows else None,
        pairs_scored=outcome.pairs_scored,
        pairs_reused=outcome.pairs_reused,
        pairs_refused=outcome.pairs_refused,
        pairs_not_shortlisted=left_out,
        labels_per_s=outcome.labels_per_s or None,
        ray_dashboard=dg.MetadataValue.url(outcome.dashboard) if outcome.dashboard else None,
        report=metadata.report(step),
    )


def _promote_first(step: Step) -> "tuple[Path, Manifest]":
    """Promote the newest labeler of a project that has none. Raises GateBlocked unless all its gates have passed.

    What somebody promotes meanwhile stays, and is used.
    """
    from semlabel.manifest import read_manifest
    from semlabel.promotion import promote_first

    _, manifest = newest_labeler(step)
    with step.reader() as warehouse:
        blocked = before_promotion(step, warehouse, manifest).blocked
    if blocked:
        raise dg.Failure(
            "The first labeler is not promoted: " + " ".join(row["sentence"] for row in blocked),
            metadata={"gates": metadata.table(blocked)},
            allow_retries=False,
        )
    directory = promote_first(
        step.settings.paths.labelers,
        step.operations,
        manifest.digest,
        step.run_id,
        "first labeler, all gates passed",
        on_wait=step.log.info,
    )
    step.log.info(f"labeler {directory.name[:12]} is the first one and was promoted")
    return directory, read_manifest(directory)


def _scope(step: Step, warehouse: "Warehouse") -> tuple[list[str] | None, str]:
    """The entities to label (None: all of them) and the scope in words."""
    from semlabel.estimate import everybody
    from semlabel.warehouse_schema import CHOSEN_FIRST

    held_out = "split IN ('calibrate', 'certify', 'test')"
    limit = step.entities_limit
    wanted = "true" if everybody(step.settings, limit) else held_out
    words = "all entities" if wanted == "true" else "held-out entities"
    if limit:
        chosen = f"SELECT entity_id FROM entities WHERE {wanted} ORDER BY {CHOSEN_FIRST} LIMIT ?"
        return [row[0] for row in warehouse.rows(chosen, [limit])], f"limited: {limit} of {words}"
    if wanted == "true":
        return None, words
    return [row[0] for row in warehouse.rows(f"SELECT entity_id FROM entities WHERE {wanted} ORDER BY 1")], words


def _contract(step: Step) -> "GateResult":
    from semlabel import gates

    with step.reader() as warehouse:
        found = contracts.findings(warehouse, contracts.PREDICTIONS)
    return gates.predictions_contract(found.violations, rows=found.facts["rows"])


def _coverage(step: Step) -> "GateResult":
    from semlabel import gates

    with step.reader() as warehouse:
        coverage = warehouse.coverage()
        refused = _refused(step, warehouse) if coverage.missing else {}
        rows = warehouse.rows("SELECT entity_id, count(*) FROM predictions GROUP BY entity_id") if refused else []
        candidates = warehouse.rows("SELECT count(*) FROM catalog")[0][0]
        wanted = warehouse.shortlist_sizes(refused) if refused else {}
    had = dict(rows)
    without = {entity_id: wanted.get(entity_id, candidates) - had.get(entity_id, 0) for entity_id in refused}
    excused = {
        entity_id: without[entity_id] if pairs is None else min(pairs, without[entity_id])
        for entity_id, pairs in refused.items()
    }
    missing = [
        {"entity_id": entity, "candidate_id": candidate}
        for entity, candidate in coverage.missing
        if entity not in refused or excused[entity] < without[entity]
    ]
    return gates.coverage_is_complete(
        coverage.expected, coverage.stored, missing, sum(excused.values()), coverage.not_shortlisted
    )


def _refused(step: Step, warehouse: "Warehouse") -> dict[str, int | None]:
    """The entities in scope of which the prompt refused something when the predictions were made: how many pairs, None
    for all of them.
    """
    from semlabel.refresh import PAIRS, STAGE

    run_id = step.materialized("predictions")["run_id"]
    rows = warehouse.rows(
        "SELECT row_id, CASE WHEN bool_or(source = ?) THEN NULL ELSE count(DISTINCT reason) END FROM refused_rows "
        "SEMI JOIN scoped_entities ON entity_id = row_id WHERE run_id = ? AND source IN (?, ?) GROUP BY row_id",
        [STAGE, run_id, STAGE, PAIRS],
    )
    return dict(rows)


def _volume(step: Step) -> "GateResult":
    from semlabel import gates

    with step.reader() as warehouse:
        subject = warehouse.predictions_digest()
        change = against_publication(step, warehouse)
        meant = approved(step, warehouse)
    limits = step.settings.gates
    return gates.volume_change(
        change.removed_fraction,
        change.previous_rows,
        change.candidate_flips,
        limits.max_removed_fraction,
        limits.max_candidate_flip_fraction,
        approved=meant,
        rows=change.rows,
        withheld=change.withheld,
        subject=subject,
    )


def _approved(step: Step) -> bool:
    with step.reader() as warehouse:
        return approved(step, warehouse)


def _everywhere(step: Step) -> "GateResult":
    from semlabel import gates
    from semlabel.endpoints import ask_endpoints
    from semlabel.published import current_publication

    directory, manifest = needed_labeler(step)
    recorded = step.operations.promoted()
    with step.reader() as warehouse:
        active = warehouse.active_labeler()
    paths = {
        "warehouse": active["labeler_digest"] if active else None,
        "promotions": recorded["labeler_digest"] if recorded else None,
    }
    endpoints = [{"name": name, "digest": digest, "reachable": True} for name, digest in paths.items()]
    urls = step.settings.serving.endpoints
    publication = current_publication(step.settings.paths.published) if urls else None
    published = publication is not None and publication["labeler_digest"] == manifest.digest
    endpoints += ask_endpoints(urls, manifest, published)
    scoring = step.settings.scoring
    if scoring.backend == "http" and scoring.http_url is not None:
        from semlabel.remote_scorer import ask_scorer

        endpoints.append(ask_scorer(directory, scoring.http_url))
    return gates.one_labeler_everywhere(manifest.digest, endpoints)


def _nothing_known(step: Step) -> str:
    """A basis that never repeats: what is asked may have changed without a trace."""
    return step.run_id


predictions_contract = gate_check(
    GateCheck("predictions_contract", subject=Step.predictions_digest, evidence=_contract, one_look=True)
)
coverage_is_complete = gate_check(
    GateCheck("coverage_is_complete", subject=Step.predictions_digest, evidence=_coverage, one_look=True)
)
volume_change = gate_check(
    GateCheck(
        "volume_change",
        subject=Step.predictions_digest,
        evidence=_volume,
        limits=(
            "gates.max_removed_fraction",
            "gates.max_candidate_flip_fraction",
            "publish.uncertified_candidates",
        ),
        also=_approved,
        replaces=replaces,
        one_look=True,
    )
)
one_labeler_everywhere = gate_check(
    GateCheck("one_labeler_everywhere", subject=Step.predictions_digest, evidence=_everywhere, also=_nothing_known)
)
