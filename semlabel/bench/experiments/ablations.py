"""Experiments 6 and 7: named variants of one recipe at equal pairs, judged on the same held-out entities.

Each variant and seed is kept when it is done, so that a killed run goes on and a longer file of variants keeps what is
there. Variants that differ only in how they are scored share a training. Knows nothing of how a variant learns.
"""

import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from semlabel.bench.environment import environment
from semlabel.bench.experiments.ablations_report import markdown, plot
from semlabel.bench.experiments.baselines import baseline_scores
from semlabel.bench.experiments.curves import mean_curves
from semlabel.bench.experiments.cuts import best_f1_cut, candidate_cuts
from semlabel.bench.experiments.learners import Learner, PackedGeneration, SemanticScoring
from semlabel.bench.experiments.problem import Problem, overridden
from semlabel.bench.experiments.variants import BASELINES, Variant
from semlabel.bench.kept import Kept, Part
from semlabel.bench.output import write
from semlabel.digests import digest_of
from semlabel.errors import SemlabelError
from semlabel.manifest import base_identity
from semlabel.metrics import estimate, quality_draws
from semlabel.models import resolve_device, resolve_precision
from semlabel.progress import Progress, ProgressSink, silent
from semlabel.training import TRAINING_CODE_VERSION
from semlabel.versions import SCORING_CODE_VERSION

SCHEMA_VERSION = 2
MEASURES = ("auc", "average_precision", "f1")


@dataclass(frozen=True)
class Plan:
    """Equal pairs for every variant, which entities judge, and for which seeds. See `data_efficiency.Plan`."""

    pairs: int = 2_400
    seeds: tuple[int, ...] = (0,)
    calibrate: int = 40
    test: int = 60
    query_tokens: int = 256
    catalog_top: int = 200
    resamples: int = 1000

    @classmethod
    def quick(cls) -> "Plan":
        """A smoke run of minutes, not evidence."""
        return cls(pairs=200, calibrate=4, test=6, query_tokens=96, catalog_top=60, resamples=200)

    def overrides(self) -> dict[str, Any]:
        """The settings that the plan lays over a project's."""
        return {"prompt": {"max_query_tokens": self.query_tokens}, "sources": {"catalog_top": self.catalog_top}}


def run(
    problem: Problem,
    variants: tuple[Variant, ...],
    plan: Plan,
    out: Path,
    name: str,
    progress: ProgressSink = silent,
) -> dict[str, Any]:
    """Train and judge the variants that are not done; write `out`/`name`.json, .md and .png. Returns the document.

    The first variant is the recipe: every other one is held against it. `problem` was loaded with the plan's overrides
    and the settings that all variants share.
    """
    study = _Study(problem, plan, out / ".experiments", progress)
    missing: list[dict[str, str]] = []
    todo = [(seed, variant) for seed in plan.seeds for variant in variants]
    for number, (seed, variant) in enumerate(todo):
        progress(Progress(f"{name}: {variant.name}, seed {seed}", number, len(todo), "variants"))
        try:
            study.part(variant, seed)
        except SemlabelError as error:
            if variant is variants[0]:
                raise
            missing.append({"variant": variant.name, "seed": str(seed), "reason": str(error)})
        waiting = {study.training(later, its_seed) for its_seed, later in todo[number + 1 :]}
        study.forget(variant, seed, waiting)
    cells = study.cells([one for one in variants if one.name not in {entry["variant"] for entry in missing}])
    document = {
        "schema_version": SCHEMA_VERSION,
        "environment": environment(resolve_device(problem.settings.model.device)),
        "model": problem.settings.model.name,
        "plan": asdict(plan),
        "variants": [asdict(variant) for variant in variants],
        "training": problem.settings.training.model_dump(mode="json"),
        "held_out": problem.held_out,
        "cells": cells,
        "missing": missing,
        "complete": True,
    }
    write(out, name, document, markdown(document), plot(document))
    return document


class _Study:
    def __init__(self, problem: Problem, plan: Plan, folder: Path, progress: ProgressSink) -> None:
        self._problem, self._plan, self._parts, self._progress = problem, plan, Kept(folder), progress

    @cached_property
    def _shared(self) -> str:
        base = self._problem.settings.model.base
        tables = [self._problem.held_out_digest, self._problem.training_digest]
        versions = [SCHEMA_VERSION, TRAINING_CODE_VERSION, SCORING_CODE_VERSION]
        return digest_of([versions, base_identity(base), tables])

    def part(self, variant: Variant, seed: int) -> Part:
        """What a variant gave: margins of calibrate and test, and what it took."""
        trial = _Trial(self, variant, seed)
        return self._parts.part(trial.name, trial.baseline if variant.method in BASELINES else trial.learned)

    def training(self, variant: Variant, seed: int) -> str:
        """The name of the training that a variant needs, unless its part is there already."""
        trial = _Trial(self, variant, seed)
        return "" if self._parts.find(trial.name) is not None else trial.training

    def forget(self, variant: Variant, seed: int, waiting: set[str]) -> None:
        """Remove the trained model, unless another variant waits for it."""
        trial = _Trial(self, variant, seed)
        if trial.training not in waiting:
            shutil.rmtree(self._parts.folder / trial.training, ignore_errors=True)

    def cells(self, variants: list[Variant]) -> list[dict[str, Any]]:
        """One flat record per variant, over all seeds; the recipe also with cuts of every candidate's own."""
        drawn = {variant.name: self._draws(variant) for variant in variants}
        recipe = drawn[variants[0].name]
        cells = [self._cell(variant, drawn[variant.name], recipe) for variant in variants]
        for shrink, label in ((False, "per-candidate cuts"), (True, "per-candidate cuts, shrunk")):
            own = self._draws(variants[0], shrink)
            about = {"variant": f"{variants[0].name}, {label}", "method": variants[0].method}
            cells.append(about | _estimates(own, recipe, ("f1",)) | dict.fromkeys(_COSTS))
        return cells

    def _cell(self, variant: Variant, drawn: dict[str, np.ndarray], recipe: dict[str, np.ndarray]) -> dict[str, Any]:
        facts = [self.part(variant, seed).facts for seed in self._plan.seeds]
        costs = {name: _mean([one.get(name) for one in facts]) for name in _COSTS}
        about = {"variant": variant.name, "method": variant.method}
        return about | _estimates(drawn, recipe, MEASURES) | costs | {"seeds": facts}

    def _draws(self, variant: Variant, shrink: bool | None = None) -> dict[str, np.ndarray]:
        """Draws (1 + resamples,) of every measure, over entities and seeds; `shrink` None: one cut for all."""
        found = [self._seed_draws(self.part(variant, seed), shrink) for seed in self._plan.seeds]
        return {
            measure: mean_curves([[draws[measure] for draws in found]], np.random.default_rng(7))[:, 0]
            for measure in MEASURES
        }

    def _seed_draws(self, part: Part, shrink: bool | None) -> dict[str, np.ndarray]:
        calibrate, test = self._problem.calibrate, self._problem.test
        margins = test.of(part.arrays["test"])
        own = calibrate.of(part.arrays["calibrate"])
        if shrink is None:
            flagged = margins >= part.facts["threshold"]
        else:
            flagged = margins >= candidate_cuts(calibrate, own, len(self._problem.catalog), shrink)[test.columns]
        return quality_draws(test.rows, test.labels, margins, flagged, self._plan.resamples)


_COSTS = (
    "pairs_trained",
    "entities_trained",
    "steps",
    "training_seconds",
    "labels_per_s",
    "tokens_per_query",
    "tokens_per_item",
)


class _Trial:
    """One variant with one seed."""

    def __init__(self, study: _Study, variant: Variant, seed: int) -> None:
        self._study, self._problem, self._variant, self._seed = study, study._problem, variant, seed
        base = study._problem.settings
        equal = {"training": {"max_pairs": study._plan.pairs, "seed": base.training.seed + seed}}
        self._settings = overridden(base, variant.settings, equal)
        kind = "".join(letter if letter.isalnum() else "-" for letter in variant.name)
        self._label = f"{kind}-seed{seed}"

    @cached_property
    def _steering(self) -> list[Any]:
        """What the weights depend on."""
        variant, training, device = self._variant, self._settings.training, self._settings.model.device
        how = training.model_dump(mode="json", exclude={"save_every_steps"})
        precision = resolve_precision(training.precision, resolve_device(device))
        what = [variant.method, variant.loss, variant.round_items, variant.train]
        return [self._study._shared, what, how, self._settings.prompt.model_dump(mode="json"), precision]

    @cached_property
    def training(self) -> str:
        """The folder of the training."""
        return f"training-{digest_of(self._steering)[:16]}"

    @cached_property
    def name(self) -> str:
        """Says what it is to people, and by a digest everything it depends on."""
        settings = self._settings
        served = resolve_precision(settings.model.precision, resolve_device(settings.model.device))
        return f"{self._label}-{digest_of([self._steering, served, settings.scoring.items_per_round])[:12]}"

    def baseline(self) -> Part:
        """Fit a baseline on the pairs and score both parts."""
        pairs = self._problem.pairs(self._settings)
        scores, chosen = baseline_scores(self._problem, self._variant.method, pairs, self._settings.training.seed)
        return self._judged(scores, {"pairs_trained": len(pairs), "chosen": chosen})

    def learned(self) -> Part:
        """Train unless the base model is judged as it is, and score both parts."""
        learner, facts = self._learner(), {}
        model_dir: Path | str = self._settings.model.base
        if self._variant.train:
            pairs = self._problem.pairs(self._settings)
            trained = learner.train(pairs, self._study._parts.folder / self.training, self._told("training"))
            model_dir = trained.model_dir
            facts = {
                "pairs_trained": len(pairs),
                "entities_trained": int(pairs["entity_id"].nunique()),
                "steps": trained.steps,
                "training_seconds": trained.seconds,
                "last_losses": trained.loss_curve[-10:],
            }
        self._told("judging")(Progress("", 0, 0, "labels"))
        calibrate = learner.score(model_dir, self._problem.calibrate.texts)
        test = learner.score(model_dir, self._problem.test.texts)
        facts |= {"labels_per_s": test.margins.size / test.seconds, **test.counts}
        return self._judged({"calibrate": calibrate.margins, "test": test.margins}, facts)

    def _learner(self) -> Learner:
        variant = self._variant
        if variant.method == "generation":
            return PackedGeneration(self._problem, self._settings)
        return SemanticScoring(self._problem, self._settings, variant.loss, variant.round_items)

    def _judged(self, margins: dict[str, Any], facts: dict[str, Any]) -> Part:
        part = self._problem.calibrate
        threshold = best_f1_cut(part.labels, part.of(margins["calibrate"]))
        return Part(margins, facts | {"threshold": threshold, "settings": self._variant.settings})

    def _told(self, stage: str) -> Callable[[Progress], None]:
        progress, label = self._study._progress, self._label
        return lambda update: progress(Progress(f"{label}: {stage}", update.done, update.total, update.unit))


def _estimates(
    drawn: dict[str, np.ndarray], recipe: dict[str, np.ndarray], measures: tuple[str, ...]
) -> dict[str, Any]:
    """Every measure and its difference from the recipe's on the same drawn entities; None for other measures."""
    found: dict[str, Any] = {}
    for measure in MEASURES:
        known = measure in measures
        found[measure] = estimate(drawn[measure]).to_json() if known else None
        found[f"{measure}_difference"] = estimate(drawn[measure] - recipe[measure]).to_json() if known else None
    return found


def _mean(values: list[Any]) -> float | None:
    known = [float(value) for value in values if value is not None]
    return float(np.mean(known)) if known else None
