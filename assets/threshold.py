"""`threshold`: tau chosen on `calibrate`, proven once on `certify`, reported on `test`; the labeler as a directory.

Knows which split may be looked at when, and what a further look at the same certify set costs. How a threshold is
found and bounded stands in `semlabel.thresholds`.
"""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import dagster as dg

from assets import metadata
from assets.baselines import baseline_names, judged_with_baselines
from assets.checks import GateCheck, gate_check
from assets.evaluation import (
    certify_pairs,
    decided,
    ensure_scored,
    judged_pairs,
    judged_with,
    score_split,
    split_ids,
)
from assets.labelers import judged_checkpoint, judged_labeler
from assets.ledger import JUDGED, RESULT, certify_use
from assets.shortlist import at_bottom, with_shortlists
from resources.project import ProjectResource, Step
from semlabel.errors import GateBlocked

if TYPE_CHECKING:
    import pandas as pd

    from semlabel.calibration import Platt
    from semlabel.gates import GateResult
    from semlabel.manifest import Manifest
    from semlabel.thresholds import ThresholdResult
    from semlabel.warehouse import Warehouse

# Pairs that chance drew of certify, and the entities that are in a split and in none.
_COUNTS = """SELECT
    (SELECT count(*) FROM reference_labels SEMI JOIN (SELECT entity_id FROM entities WHERE split = 'certify')
        USING (entity_id) WHERE design = 'random'),
    count(*) FILTER (WHERE split <> ''), count(*) FILTER (WHERE split = '') FROM entities"""


@dg.asset(
    deps=["checkpoint"],
    group_name="training",
    kinds={"python", "scikitlearn"},
    pool="gpu",
)
def threshold(context: dg.AssetExecutionContext, project: ProjectResource) -> dg.MaterializeResult:
    """The labeler: checkpoint, probability map and a threshold shown to keep the policy, in one directory."""
    from semlabel.labeler_files import write_labeler
    from semlabel.shortlist_encoders import rule_of
    from semlabel.thresholds import Policy, walk

    step = project.step(context)
    directory, manifest = judged_checkpoint(step)
    with step.writer() as warehouse:
        ensure_scored(step, warehouse, directory, manifest, "calibrate")
        outcome = score_split(step, warehouse, directory, manifest, "certify", "test")
        calibrate = judged_pairs(step, warehouse, manifest, "calibrate")
        proof = certify_pairs(step, warehouse, manifest)
        test = judged_with_baselines(step, warehouse, manifest, "test")
        certify_ids = split_ids(warehouse, "certify")
        texts = [row[0] for row in warehouse.rows("SELECT text_id FROM catalog ORDER BY 1")]
        covers = _coverage(step, warehouse)
        rule = rule_of(step.settings)
        (calibrate, proof, test), by_size = with_shortlists(step, warehouse, rule, calibrate, proof, test)
    certify = decided(proof)
    settings = step.settings.calibration
    policy = Policy(settings.min_precision, settings.max_fpr, settings.max_fnr)
    platt = _probability_map(calibrate)
    use = certify_use(step, manifest, policy, certify, certify_ids, rule).begun(step)
    if use.number > 1:
        step.log.warning(f"look {use.number} at these certify entities: held to confidence {use.confidence:.4g}")
    result = walk(
        policy, calibrate, proof, use.confidence, settings.cuts, settings.min_expected_flagged, use.next_confidence
    )
    if covers and result.verdict == "pass":
        result = replace(result, sentence=f"{result.sentence} {covers}")
    digest, path = write_labeler(
        step.settings.paths.labelers,
        directory,
        result,
        {"platt_a": platt.a, "platt_b": platt.b, "certified_text_ids": texts},
        evidence=_checkpoint_evidence(step, manifest)
        | {RESULT: result.to_json() | {"certify_use": use.number, JUDGED: use.question.judged}},
        shortlist=rule.to_json() if rule else None,
    )
    use.complete(step, digest, result.verdict)
    calibrate, certify, test = (at_bottom(pairs, result.threshold) for pairs in (calibrate, certify, test))
    metrics = _test_metrics(step, digest, test, result.threshold)
    return metadata.materialized(
        digest,
        certify_pairs=len(certify),
        certify_undecided=len(proof) - len(certify),
        path=str(path),
        labeler_digest=digest,
        threshold=result.threshold,
        verdict=result.verdict,
        word=result.word,
        sentence=result.sentence,
        certify_uses=use.number,
        confidence=use.confidence,
        pairs_scored=outcome.pairs_scored,
        pairs_reused=outcome.pairs_reused,
        test=dg.MetadataValue.json(metrics["test"]),
        baselines=dg.MetadataValue.json(metrics["baselines"]),
        shortlist_recall_by_size=metadata.table(by_size) if by_size else None,
        report=metadata.report(step),
        **_plots(calibrate, certify, platt, result, settings.min_precision),
    )


def _coverage(step: Step, warehouse: "Warehouse") -> str:
    """Whom a promise covers, where that is not the table."""
    from semlabel.judging.coverage import covered

    ((drawn, in_splits, in_none),) = warehouse.rows(_COUNTS)
    return covered(step.settings.sources.unlisted, drawn > 0, in_splits, in_none)


def _probability_map(calibrate: "pd.DataFrame") -> "Platt":
    """Platt's map on calibrate. Raises GateBlocked where the judged pairs are too few to have one."""
    from semlabel.calibration import fit_platt

    shown = calibrate[calibrate["shortlisted"]] if "shortlisted" in calibrate else calibrate
    try:
        return fit_platt(shown["margin"].to_numpy(), shown["label"].to_numpy())
    except ValueError as error:
        raise GateBlocked(f"margins cannot be turned into probabilities on calibrate: {error}") from error


def _checkpoint_evidence(step: Step, manifest: "Manifest") -> dict[str, Any]:
    """The verdicts on the checkpoint, to travel with the labeler."""
    found = {}
    for gate in ("held_out_quality", "mis_matches_single_item", "order_invariance"):
        row = step.operations.latest_gate(gate, manifest.scorer_digest)
        if row is not None:
            found[gate] = {name: row[name] for name in ("verdict", "value", "limit", "sentence", "evaluated_at")}
    return found


def _test_metrics(step: Step, digest: str, test: "pd.DataFrame", threshold: float | None) -> dict[str, Any]:
    """Quality on `test`, read once per labeler; later calls show what was found then."""
    from semlabel.metrics import evaluate, ratio_interval

    known = step.operations.metrics(digest)
    if known is not None:
        return known
    confidence = step.settings.calibration.confidence
    ids, labels = test["entity_id"], test["label"]
    found = evaluate(ids, labels, test["margin"], threshold=threshold, confidence=confidence)
    baselines = {
        name: evaluate(ids, labels, test[name], confidence=confidence).to_json() for name in baseline_names(test)
    }
    best = max(baselines, key=lambda name: baselines[name]["average_precision"]["value"] or 0.0)
    ratio = ratio_interval(ids, labels, test["margin"], test[best], confidence=confidence)
    metrics = {
        "test": found.to_json(),
        "baselines": baselines,
        "ratio": {"value": ratio.value, "low": ratio.low, "high": ratio.high, "against": best},
        "run_id": step.run_id,
    }
    step.operations.save_metrics(digest, metrics)
    return step.operations.metrics(digest) or metrics


def _plots(
    calibrate: "pd.DataFrame",
    certify: "pd.DataFrame",
    platt: "Platt",
    result: "ThresholdResult",
    floor: float | None,
) -> dict[str, Any]:
    from semlabel import report

    margins, labels = certify["margin"].to_numpy(), certify["label"].to_numpy()
    probabilities = platt.probability(calibrate["margin"].to_numpy())
    bounds = {} if floor is None else {"floor": floor}
    walked = {
        limit: [step for step in result.steps if step["limit"] == limit]
        for limit in dict.fromkeys(step["limit"] for step in result.steps)
    }
    return {
        **{
            f"walk_{limit}": metadata.image(
                report.walk(steps, steps[0]["limit_value"], limit, result.threshold), f"the walk for {limit}"
            )
            for limit, steps in walked.items()
        },
        "certify": metadata.image(
            report.precision_recall(labels, margins, result.threshold, bounds), "precision and recall on certify"
        ),
        "reliability": metadata.image(
            report.reliability(probabilities, calibrate["label"].to_numpy()), "reliability of the probability"
        ),
    }


def _errors(step: Step) -> "GateResult":
    from semlabel import gates

    _, manifest = judged_labeler(step)
    return judged_with(gates.held_out_errors(manifest.evidence.get(RESULT, {})), manifest)


held_out_errors = gate_check(
    GateCheck("held_out_errors", subject=lambda step: judged_labeler(step)[1].digest, evidence=_errors)
)
