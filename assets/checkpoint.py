"""`checkpoint`: the base model taught to answer, scored on `calibrate`, and its gates.

Knows what a training depends on: the same pairs, texts, settings and base weights give the same directory and train
nothing. Knows nothing of thresholds. The second and the fourth stage of the recipe are proven here: quality on the
exact prompt that is served, and margins that packing does not move.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import dagster as dg

from assets import metadata
from assets.baselines import best_baseline, judged_with_baselines
from assets.checks import GateCheck, gate_check
from assets.evaluation import ensure_scored, judged_with, reference_pairs, score_split
from assets.labelers import judged_checkpoint
from assets.parity import order_against_order, packed_against_single
from resources.project import ProjectResource, Step
from resources.scorer import forget_models

if TYPE_CHECKING:
    from semlabel.gates import GateResult
    from semlabel.manifest import Manifest
    from semlabel.prompt import Prompt
    from semlabel.training_data import TrainingRound

_CURVE_POINTS = 400


@dg.asset(
    deps=["training_pairs"],
    group_name="training",
    kinds={"pytorch", "huggingface"},
    pool="gpu",
)
def checkpoint(context: dg.AssetExecutionContext, project: ProjectResource) -> dg.MaterializeResult:
    """The fine-tuned model, with the margins of `calibrate`; unchanged input trains and scores nothing."""
    from semlabel import report

    step = project.step(context)
    _refuse_blind(step)
    directory, manifest = _trained(step)
    with step.writer() as warehouse:
        outcome = score_split(step, warehouse, directory, manifest, "calibrate")
        pairs = judged_with_baselines(step, warehouse, manifest, "calibrate")
    training = manifest.training
    return metadata.materialized(
        manifest.scorer_digest,
        training_pairs=training["pairs"],
        path=str(directory),
        scorer_digest=manifest.scorer_digest,
        precision=manifest.precision,
        base_model=manifest.base_model,
        training_steps=training["steps"],
        training_seconds=training["seconds"],
        pairs_scored=outcome.pairs_scored,
        pairs_reused=outcome.pairs_reused,
        report=metadata.report(step),
        loss=metadata.image(report.loss_curve([tuple(point) for point in training["loss_curve"]]), "training loss"),
        calibrate=metadata.image(
            report.margin_histogram(pairs["margin"].to_numpy(), pairs["label"].to_numpy()), "margins of calibrate"
        ),
    )


def _refuse_blind(step: Step) -> None:
    """Raise GateBlocked where too little is judged for any training to be measured."""
    from semlabel.errors import GateBlocked
    from semlabel.judging.enough import too_thin
    from semlabel.splits import HELD_OUT, TRAIN

    with step.reader() as warehouse:
        labels = {TRAIN: warehouse.training_pairs()["label"]} | {
            split: reference_pairs(step, warehouse, split)["label"] for split in HELD_OUT
        }
    problem = too_thin({split: (int(found.sum()), int((~found).sum())) for split, found in labels.items()})
    if problem is not None:
        raise GateBlocked(problem)


def _trained(step: Step) -> "tuple[Path, Manifest]":
    """The checkpoint of the present pairs, settings and base weights, trained when there is none yet."""
    from semlabel.digests import digest_of
    from semlabel.manifest import read_manifest
    from semlabel.models import read_config, resolve_device, resolve_precision
    from semlabel.prompt import Prompt, PromptSpec, load_tokenizer
    from semlabel.prompt_length import refuse_too_long
    from semlabel.training import training_digest
    from semlabel.training_data import training_spec
    from semlabel.versions import SCORING_CODE_VERSION

    settings = step.settings
    spec = PromptSpec.from_settings(settings.prompt)
    device = resolve_device(settings.model.device)
    served = resolve_precision(settings.model.precision, device)
    trained = resolve_precision(settings.training.precision, device)
    tokenizer = load_tokenizer(settings.model.base)
    # Before the hours of training: what cannot score every text within its limits would be refused after them.
    scoring = settings.scoring
    refuse_too_long(read_config(settings.model.base), spec, scoring.method, scoring.max_round_tokens)
    prompt = Prompt(training_spec(spec, settings.training), tokenizer)
    rounds, pairs_digest, known = _rounds(step, prompt)
    digest = training_digest(settings.model.base, prompt, rounds, settings.training, trained)
    name = digest_of([digest, spec.digest(), served, SCORING_CODE_VERSION])[:16]
    directory = settings.paths.checkpoints / name
    if directory.exists():
        manifest = read_manifest(directory)
        if manifest.known_pairs and manifest.training["pairs_digest"] == pairs_digest:
            step.log.info(f"checkpoint {name} is there already: nothing to train")
            return directory, manifest
    return directory, _train(step, directory, prompt, Prompt(spec, tokenizer), rounds, pairs_digest, served, known)


def _rounds(step: Step, prompt: "Prompt") -> "tuple[list[TrainingRound], str, list[tuple[str, str]]]":
    """The rounds to train on, the digest of their pairs, and texts for the pairs a labeler proves itself with."""
    from semlabel.training_data import rounds_from_pairs

    with step.reader() as warehouse:
        pairs, entities, catalog = warehouse.training_pairs(), warehouse.entities(), warehouse.catalog()
        candidates = warehouse.training_candidates()
    rounds = rounds_from_pairs(pairs, entities, candidates, prompt, step.settings.scoring.items_per_round)
    # Candidate texts on both sides: a labeler directory travels, so no entity's text may travel in it.
    texts = [catalog["text"].iloc[0], catalog["text"].iloc[-1]]
    return rounds, step.digest("training_pairs"), [(query, item) for query in texts for item in texts]


def _train(
    step: Step,
    directory: Path,
    training_prompt: "Prompt",
    prompt: "Prompt",
    rounds: "list[TrainingRound]",
    pairs_digest: str,
    precision: str,
    known: list[tuple[str, str]],
) -> "Manifest":
    from semlabel.labeler import measure_known_pairs, write_checkpoint
    from semlabel.training import train

    settings = step.settings
    forget_models()
    folder = settings.paths.checkpoints / "training"
    with step.alone_in("training"):
        result = train(
            settings.model.base,
            training_prompt,
            rounds,
            settings.training,
            folder,
            step.progress,
            settings.model.device,
        )
    curve = list(enumerate(result.loss_curve, start=1))
    told: dict[str, Any] = {
        "pairs_digest": pairs_digest,
        "training_digest": result.training_digest,
        "pairs": result.pairs,
        "steps": result.steps,
        "seconds": result.seconds,
        "loss_curve": curve[:: max(1, len(curve) // _CURVE_POINTS)],
        "settings": settings.training.model_dump(mode="json"),
    }
    fields: dict[str, Any] = {"base_model": settings.model.name, "precision": precision, "training": told}
    write_checkpoint(directory, result.model_dir, prompt=prompt, **fields)
    # Measured with the very model that is now kept, and written once more with what it answered.
    pairs = measure_known_pairs(step.scorer(directory), known)
    return write_checkpoint(directory, result.model_dir, prompt=prompt, known_pairs=pairs, **fields)


def _subject(step: Step) -> str:
    return judged_checkpoint(step)[1].scorer_digest


def _quality(step: Step) -> "GateResult":
    from semlabel import gates
    from semlabel.by_flagged import quality_by_flagged
    from semlabel.metrics import evaluate, ratio_interval

    directory, manifest = judged_checkpoint(step)
    with step.writer() as warehouse:
        ensure_scored(step, warehouse, directory, manifest, "calibrate")
        pairs = judged_with_baselines(step, warehouse, manifest, "calibrate")
    columns = pairs["entity_id"], pairs["label"], pairs["margin"]
    found = evaluate(*columns, confidence=_confidence(step))
    best, precisions = best_baseline(pairs)
    ratio = ratio_interval(*columns, pairs[best], confidence=_confidence(step))
    limits = step.settings.gates
    # Pairs outside a shortlist will be NO whatever their margin, and which those are is not known here.
    cuts = None if step.settings.shortlist.size else quality_by_flagged(*columns, confidence=_confidence(step))
    verdict = gates.held_out_quality(
        found.auc,
        found.average_precision,
        precisions,
        ratio,
        limits.min_auc,
        limits.min_average_precision_ratio,
        n_entities=found.n_entities,
        by_flagged=cuts,
    )
    return judged_with(verdict, manifest)


def _confidence(step: Step) -> float:
    return step.settings.calibration.confidence


held_out_quality = gate_check(
    GateCheck(
        "held_out_quality",
        subject=_subject,
        evidence=_quality,
        limits=("gates.min_auc", "gates.min_average_precision_ratio", "calibration.confidence"),
        pool="gpu",
        also=lambda step: [step.digest("entities"), step.labels_digest()] if step.trains else None,
    )
)
_PARITY_LIMITS = (
    "gates.parity_tolerance_fp32",
    "gates.parity_tolerance_bf16",
    "gates.max_label_flips_fp32",
    "gates.max_label_flips_bf16",
)
mis_matches_single_item = gate_check(
    GateCheck(
        "mis_matches_single_item",
        subject=_subject,
        evidence=packed_against_single,
        limits=("gates.parity_pairs", *_PARITY_LIMITS),
        pool="gpu",
    )
)
order_invariance = gate_check(
    GateCheck(
        "order_invariance",
        subject=_subject,
        evidence=order_against_order,
        limits=("gates.order_pairs", *_PARITY_LIMITS),
        pool="gpu",
    )
)
