"""Experiment 1, data efficiency: quality against training pairs, for semantic scoring and for packed generation.

Every method gets the same base model, pairs, epochs and entities per step, its best learning rate of several (chosen
for each size on calibrate, with the first seed; where the best is the smallest or the largest, further ones are tried),
and cuts tuned on calibrate. Trainings and judgements are kept one
by one, so that a killed run goes on, and a later one with more sizes or seeds keeps what is there. Knows nothing of
how a method learns.
"""

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from semlabel.bench.environment import environment
from semlabel.bench.experiments.curves import mean_curves, ratio_at_their_best, ratios
from semlabel.bench.experiments.cuts import best_f1_cut, f1_of
from semlabel.bench.experiments.data_efficiency_report import markdown, plot
from semlabel.bench.experiments.learners import Learner, PackedGeneration, SemanticScoring
from semlabel.bench.experiments.problem import Part, Problem, overridden
from semlabel.bench.kept import Kept
from semlabel.bench.kept import Part as KeptPart
from semlabel.bench.output import write
from semlabel.digests import digest_of
from semlabel.errors import SettingsError
from semlabel.manifest import base_identity
from semlabel.metrics import estimate, quality_draws
from semlabel.models import resolve_device, resolve_precision
from semlabel.progress import Progress, ProgressSink, silent
from semlabel.settings import Settings
from semlabel.training import TRAINING_CODE_VERSION
from semlabel.versions import SCORING_CODE_VERSION

NAME = "data_efficiency"
SCHEMA_VERSION = 2
OURS, THEIRS = "mis", "generation"
METHODS = (OURS, THEIRS)
MEASURES = ("average_precision", "f1")
_FREE = "free"
_FURTHER_RATES = 2
_RANKED, _STAMP = "ranked", "trial.txt"


@dataclass(frozen=True)
class Plan:
    """What to train and judge. `free` of the test entities are also answered by lists that are written freely."""

    sizes: tuple[int, ...] = (640, 1280, 2560, 5120, 10240)
    learning_rates: tuple[float, ...] = (1e-4, 2e-4, 4e-4)
    seeds: tuple[int, ...] = (0, 1, 2)
    calibrate: int = 40
    test: int = 60
    free: int = 20
    query_tokens: int = 256
    catalog_top: int = 200
    resamples: int = 1000

    @classmethod
    def quick(cls) -> "Plan":
        """A smoke run of minutes, not evidence."""
        return cls(
            sizes=(80, 160, 320),
            learning_rates=(2e-4,),
            seeds=(0,),
            calibrate=4,
            test=6,
            free=2,
            query_tokens=96,
            catalog_top=60,
            resamples=200,
        )

    def overrides(self) -> dict[str, Any]:
        """The settings that the plan lays over a project's."""
        return {"prompt": {"max_query_tokens": self.query_tokens}, "sources": {"catalog_top": self.catalog_top}}


def run(
    problem: Problem, plan: Plan, out: Path, progress: ProgressSink = silent, keep_in: Path | None = None
) -> dict[str, Any]:
    """Train and judge what is not there yet; write `out`/data_efficiency.json, .md and .png after every seed.

    `problem` was loaded with the plan's overrides. `keep_in` is a folder for the models of the largest size and first
    seed, one per method. Returns the document.
    """
    if len(plan.sizes) < 2 or list(plan.sizes) != sorted(set(plan.sizes)):
        raise SettingsError("sizes must be at least two, in rising order")
    study = _Study(problem, plan, out / ".experiments", progress, keep_in)
    document: dict[str, Any] = {}
    for seeds in range(1, len(plan.seeds) + 1):
        cells = list(study.cells(plan.seeds[:seeds]))
        document = study.document(cells, plan.seeds[:seeds], complete=seeds == len(plan.seeds))
        write(out, NAME, document, markdown(document), plot(document))
    return document


class _Study:
    def __init__(
        self, problem: Problem, plan: Plan, folder: Path, progress: ProgressSink, keep_in: Path | None
    ) -> None:
        self._problem, self._plan, self._parts, self._progress = problem, plan, Kept(folder), progress
        self._keep_in = keep_in
        self._chosen: dict[tuple[str, int], float] = {}
        tables = [problem.held_out_digest, problem.training_digest]
        versions = [SCHEMA_VERSION, TRAINING_CODE_VERSION, SCORING_CODE_VERSION]
        self._shared = digest_of([versions, base_identity(problem.settings.model.base), tables])

    def cells(self, seeds: tuple[int, ...]) -> Iterator[dict[str, Any]]:
        """One flat record per method, size and seed, the first seed with all its learning rates first."""
        total = len(self._plan.seeds) * len(self._plan.sizes) * len(METHODS)
        done = 0
        for seed in seeds:
            for size in self._plan.sizes:
                for method in METHODS:
                    self._progress(Progress(f"data efficiency {method} {size} pairs seed {seed}", done, total, "cells"))
                    yield self._cell(method, size, seed)
                    done += 1

    def _cell(self, method: str, size: int, seed: int) -> dict[str, Any]:
        first = seed == self._plan.seeds[0]
        rates = list(self._plan.learning_rates if first else (self._chosen[method, size],))
        trials: dict[float, KeptPart] = {}
        best = rates[0]
        while untried := [rate for rate in rates if rate not in trials]:
            rate = untried[0]
            trial = _Trial(self, method, size, seed, rate)
            trials[rate] = self._parts.part(trial.name, trial.calibrated)
            precision = trials[rate].facts["calibrate_average_precision"]
            if precision > trials[best].facts["calibrate_average_precision"]:
                _Trial(self, method, size, seed, best).forget()
                best = rate
            elif rate != best:
                trial.forget()
            if first and len(untried) == 1:
                rates += _beyond(self._plan.learning_rates, best, rates)
        self._chosen[method, size] = best
        trial = _Trial(self, method, size, seed, best)
        judged = self._parts.part(f"{trial.name}-judged", partial(trial.judged, trials[best]))
        if self._keep_in is not None and (size, seed) == (self._plan.sizes[-1], self._plan.seeds[0]):
            trial.keep(self._keep_in / method)
        trial.forget()
        tried = {f"{rate:g}": part.facts["calibrate_average_precision"] for rate, part in trials.items()}
        about = {"method": method, "pairs": size, "seed": seed, "learning_rate": best}
        at_an_edge = first and len(trials) > 1 and best in (min(trials), max(trials))
        about |= {"calibrate_average_precision_by_rate": tried, "learning_rate_at_an_edge": at_an_edge}
        return about | trials[best].facts | judged.facts

    def document(self, cells: list[dict[str, Any]], seeds: tuple[int, ...], complete: bool) -> dict[str, Any]:
        """All that is known so far."""
        plan, problem = self._plan, self._problem
        curves = {measure: self._curves(measure, seeds) for measure in MEASURES}
        return {
            "schema_version": SCHEMA_VERSION,
            "environment": environment(resolve_device(problem.settings.model.device)),
            "model": problem.settings.model.name,
            "plan": asdict(plan),
            "training": problem.settings.training.model_dump(mode="json"),
            "held_out": problem.held_out,
            "seeds": list(seeds),
            "cells": cells,
            "curves": [
                {"measure": measure, "method": method, "pairs": size, **estimate(drawn[:, place]).to_json()}
                for measure, by_method in curves.items()
                for method, drawn in by_method.items()
                for place, size in enumerate(plan.sizes)
            ],
            "ratios": [
                {"measure": measure, **row}
                for measure, drawn in curves.items()
                for row in ratios(plan.sizes, drawn[OURS], drawn[THEIRS])
            ],
            "ratio_at_the_best_of_generation": [
                {"measure": measure, **ratio_at_their_best(plan.sizes, drawn[OURS], drawn[THEIRS])}
                for measure, drawn in curves.items()
            ],
            "missing": [],
            "complete": complete,
        }

    def _curves(self, measure: str, seeds: tuple[int, ...]) -> dict[str, np.ndarray]:
        found = {}
        for number, method in enumerate(METHODS):
            draws = [[self._draws(method, size, seed)[measure] for seed in seeds] for size in self._plan.sizes]
            found[method] = mean_curves(draws, np.random.default_rng([7, number]))
        return found

    def _draws(self, method: str, size: int, seed: int) -> dict[str, np.ndarray]:
        name = _Trial(self, method, size, seed, self._chosen[method, size]).name
        key = f"{name}-draws-{self._plan.resamples}"
        return self._parts.part(key, lambda: KeptPart(self._drawn(name))).arrays

    def _drawn(self, name: str) -> dict[str, np.ndarray]:
        judged = self._parts.find(f"{name}-judged")
        assert judged is not None  # cells come before curves
        draws = _measured(self._problem.test, judged.arrays, judged.facts["threshold"], self._plan.resamples)
        return {measure: draws[measure] for measure in MEASURES}


class _Trial:
    """One training: a method, a size, a seed and a learning rate."""

    def __init__(self, study: _Study, method: str, size: int, seed: int, rate: float) -> None:
        self._study, self._problem, self._size = study, study._problem, size
        base = self._problem.settings
        training = {"max_pairs": size, "seed": base.training.seed + seed, "learning_rate": rate}
        self._settings: Settings = overridden(base, {"training": training})
        makes: dict[str, type[SemanticScoring] | type[PackedGeneration]] = {
            OURS: SemanticScoring,
            THEIRS: PackedGeneration,
        }
        self._learner: Learner = makes[method](self._problem, self._settings)
        self._label = f"{method}-{size}-seed{seed}-rate{rate:g}"

    @cached_property
    def name(self) -> str:
        """Says what it is to people, and by a digest everything it depends on."""
        settings, device = self._settings, resolve_device(self._settings.model.device)
        steering = settings.training.model_dump(mode="json", exclude={"save_every_steps"})
        precisions = [resolve_precision(one.precision, device) for one in (settings.training, settings.model)]
        key = [self._study._shared, self._label, steering, settings.prompt.model_dump(mode="json"), precisions]
        return f"{self._label}-{digest_of([*key, self._study._plan.free])[:12]}"

    @property
    def _folder(self) -> Path:
        return self._study._parts.folder / f"training-{self.name}"

    def forget(self) -> None:
        """Remove the trained model, half a gigabyte of it."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def keep(self, target: Path) -> None:
        """Put a copy of the model at `target`, trained anew where it was removed; its own copy, once there, stays."""
        stamp = target / _STAMP
        if stamp.exists() and stamp.read_text(encoding="utf-8") == self.name:
            return
        _, trained = self._trained()
        fresh = target.with_name(f".{target.name}.new")
        shutil.rmtree(fresh, ignore_errors=True)
        shutil.copytree(trained.model_dir, fresh)
        (fresh / _STAMP).write_text(self.name, encoding="utf-8")
        shutil.rmtree(target, ignore_errors=True)
        fresh.rename(target)

    def _trained(self) -> Any:
        pairs = self._problem.pairs(self._settings)
        progress = self._study._progress

        def told(update: Progress) -> None:
            progress(Progress(f"{self._label}: {update.stage}", update.done, update.total, update.unit))

        return pairs, self._learner.train(pairs, self._folder, told)

    def _score(self, model_dir: Path, part: Part, threshold: float = 0.0) -> Any:
        labels = len(part.texts) * len(self._problem.catalog)
        self._study._progress(Progress(f"{self._label}: judging", 0, labels, "labels"))
        return self._learner.score(model_dir, part.texts, threshold)

    def calibrated(self) -> KeptPart:
        """Train, and score calibrate."""
        from sklearn.metrics import average_precision_score

        pairs, trained = self._trained()
        part = self._problem.calibrate
        scored = self._score(trained.model_dir, part)
        facts = {
            "pairs_trained": len(pairs),
            "positives_trained": int(pairs["label"].sum()),
            "entities_trained": int(pairs["entity_id"].nunique()),
            "steps": trained.steps,
            "training_seconds": trained.seconds,
            "last_losses": trained.loss_curve[-10:],
            "calibrate_average_precision": float(average_precision_score(part.labels, part.of(scored.margins))),
        }
        return KeptPart({"margins": scored.margins}, facts)

    def judged(self, trial: KeptPart) -> KeptPart:
        """Choose the cuts on calibrate, and judge test with them."""
        _, trained = self._trained()
        threshold, ranking = self._cuts(trained.model_dir, self._problem.calibrate, trial.arrays["margins"])
        part = self._problem.test
        scored = self._score(trained.model_dir, part, threshold)
        arrays = {"margins": scored.margins}
        if ranking != threshold:
            arrays[_RANKED] = self._score(trained.model_dir, part, ranking).margins
        measured = _measured(part, arrays, threshold, resamples=0)
        facts = {
            "threshold": threshold,
            "feedback_threshold_of_average_precision": ranking,
            **{name: float(found[0]) for name, found in measured.items() if np.isfinite(found[0])},
            "labels_per_s": scored.margins.size / scored.seconds,
            "scoring": scored.counts,
        }
        if isinstance(self._learner, PackedGeneration) and self._study._plan.free:
            few = part.first(self._study._plan.free)
            decisions, faults, seconds = self._learner.answer(trained.model_dir, few.texts)
            held = few.of(scored.margins[: len(few.texts)]) >= threshold
            facts[_FREE] = {
                **faults.to_json(),
                "f1": f1_of(few.labels, few.of(decisions) == 1),
                "f1_constrained": f1_of(few.labels, held),
                "labels_per_s": decisions.size / seconds,
            }
            arrays[_FREE] = decisions
        return KeptPart(arrays, facts)

    def _cuts(self, model_dir: Path, part: Part, margins: np.ndarray) -> tuple[float, float]:
        """The cut with the best F1 on calibrate, and the one under whose answers average precision is best there.

        A list feeds its answers back, so a cut changes its margins: each is tried as it would be used, beside the
        answers that are written without one. Where nothing is fed back both are one.
        """
        from sklearn.metrics import average_precision_score

        cut = best_f1_cut(part.labels, part.of(margins))
        if not isinstance(self._learner, PackedGeneration):
            return cut, cut
        tried = {0.0: part.of(margins), cut: part.of(self._score(model_dir, part, cut).margins)}
        f1 = {threshold: f1_of(part.labels, found >= threshold) for threshold, found in tried.items()}
        ranked = {threshold: average_precision_score(part.labels, found) for threshold, found in tried.items()}
        return max(f1, key=lambda threshold: f1[threshold]), max(ranked, key=lambda threshold: ranked[threshold])


def _beyond(planned: Sequence[float], best: float, tried: Sequence[float]) -> list[float]:
    """One rate further out where the best of all that were tried is the smallest or the largest."""
    if len(planned) < 2 or len(tried) >= len(planned) + _FURTHER_RATES:
        return []
    rates = sorted(tried)
    if best == rates[-1]:
        return [best * best / rates[-2]]
    return [best * best / rates[1]] if best == rates[0] else []


def _measured(part: Part, arrays: dict[str, np.ndarray], threshold: float, resamples: int) -> dict[str, np.ndarray]:
    """Draws of every measure: decisions of the margins at their cut, ranking of those that were made to rank by."""
    margins = part.of(arrays["margins"])
    draws = quality_draws(part.rows, part.labels, margins, margins >= threshold, resamples)
    if _RANKED in arrays:
        ranked = part.of(arrays[_RANKED])
        by_rank = quality_draws(part.rows, part.labels, ranked, None, resamples)
        draws |= {measure: by_rank[measure] for measure in ("auc", "average_precision")}
    return draws
