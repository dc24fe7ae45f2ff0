"""Which bound may certify a threshold: coverage and power of several bounds when pairs of one entity correlate.

Simulated cross products: 200 candidates, 2 % prevalence, margin = separation * label + entity effect + noise (sd 1).
Three parts: bounds at one fixed cut whose true precision is known; the whole walk (cuts chosen on 40 calibrate
entities, proven on certify), where a miss is a chosen threshold whose true precision is below the floor; and entity
effects with heavy tails, which no bound from so few entities survives and which are reported for honesty.

With `--sampled` the same for judgements of pairs drawn by chance (`semlabel sample --random`): either they are all that
is judged, or references list a part of the positives, every other pair counts as NO, and the judgements correct some.

    python benchmarks/threshold_simulation.py [--sampled] [--quick] [--out benchmarks/results]

writes threshold_simulation.json (threshold_simulation_sampled.json): `environment` and `cells`, one flat record per
setting and method.
"""

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import numpy as np
from scipy import optimize, special, stats

from semlabel.bounds import binomial_upper, error_bound
from semlabel.judged import Judged, Limit, limit_bound
from semlabel.thresholds import Policy, walk

CANDIDATES, PREVALENCE, FLAGGED = 200, 0.02, 3.0
ALPHA = 0.05


@dataclass(frozen=True)
class Design:
    """How pairs come to be judged: `drawn` is the share of the cross product in a simple random sample, `listed` the
    share of the positives that references list (None: no references, only drawn pairs are judged)."""

    drawn: float = 1.0
    listed: float | None = None


EVERY_PAIR = Design()


@dataclass(frozen=True)
class World:
    """One population. `sd`: entity effect; `spread`: coefficient of variation of positives per entity; `tail`:
    degrees of freedom of the entity effect (0: normal). `precision` holds where an entity has `flagged` pairs."""

    sd: float
    precision: float
    spread: float = 0.0
    tail: int = 0
    flagged: float = FLAGGED

    def effects(self, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
        """Entity effects with standard deviation `sd`."""
        if self.tail:
            return rng.standard_t(self.tail, shape) * self.sd / np.sqrt(self.tail / (self.tail - 2))
        return rng.standard_normal(shape) * self.sd

    def solved(self) -> "Solved":
        """The separation and cut that give the wanted precision, and true error ratios at any cut."""
        grid = self.effects((200_000,), np.random.default_rng(0)) if self.tail else None
        negatives, positives = CANDIDATES * (1 - PREVALENCE), CANDIDATES * PREVALENCE

        def above(cut: float) -> float:
            if grid is None:
                return float(special.ndtr(-cut / np.sqrt(1 + self.sd**2)))
            return float(special.ndtr(grid - cut).mean())

        cut = optimize.brentq(lambda c: negatives * above(c) - (1 - self.precision) * self.flagged, -5, 40)
        gap = optimize.brentq(lambda c: positives * above(c) - self.precision * self.flagged, -30, 40)
        return Solved(self, cut - gap, cut, above)


@dataclass(frozen=True)
class Solved:
    """A world with its separation and the cut of interest."""

    world: World
    separation: float
    cut: float
    above: Callable[[float], float]

    def truth(self, cut: float) -> dict[str, float]:
        """True 1 - precision, fpr and fnr at `cut`."""
        tp = PREVALENCE * self.above(cut - self.separation)
        fp = (1 - PREVALENCE) * self.above(cut)
        return {"precision": fp / max(tp + fp, 1e-300), "fpr": fp / (1 - PREVALENCE), "fnr": 1 - tp / PREVALENCE}

    def draw(self, entities: int, rng: np.random.Generator, design: Design = EVERY_PAIR) -> Judged:
        """What is judged of one cross product of `entities`."""
        share = np.full(entities, PREVALENCE)
        if self.world.spread:
            shape = 1 / self.world.spread**2
            share = np.minimum(share * rng.gamma(shape, 1 / shape, entities), 0.5)
        pairs = np.arange(entities * CANDIDATES)
        drawn = pairs
        if design.drawn < 1:
            drawn = np.sort(rng.choice(pairs.size, round(design.drawn * pairs.size), replace=False, shuffle=False))
        if design.listed is None:
            pairs = drawn
        entity = pairs // CANDIDATES
        labels = rng.random(pairs.size) < share[entity]
        margins = rng.standard_normal(pairs.size) + self.world.effects((entities,), rng)[entity]
        margins += self.separation * labels
        if design.listed is not None:
            known = rng.random(pairs.size) < design.listed
            known[drawn] = True
            labels &= known
        return Judged.of(entity, labels, margins)


def _ratio(errors: np.ndarray, totals: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Ratio, linearised standard error, effective entities and pairs of each trial (trials, entities)."""
    count, pairs = errors.shape[1], np.maximum(totals.sum(1), 1e-9)
    ratio = errors.sum(1) / pairs
    residual = errors - ratio[:, None] * totals
    error = np.sqrt(count / (count - 1) * (residual**2).sum(1)) / pairs
    return ratio, error, pairs**2 / np.maximum((totals**2).sum(1), 1e-9), pairs


def binomial(errors: np.ndarray, totals: np.ndarray, alpha: float) -> np.ndarray:
    """Clopper-Pearson over pairs, as if they were independent."""
    return binomial_upper(errors.sum(1), totals.sum(1), alpha)


def point_estimate(errors: np.ndarray, totals: np.ndarray, alpha: float) -> np.ndarray:
    """No bound at all: what was found is believed."""
    return _ratio(errors, totals)[0]


def design_effect(errors: np.ndarray, totals: np.ndarray, alpha: float) -> np.ndarray:
    """Clopper-Pearson with the pairs divided by the estimated design effect."""
    ratio, error, _, pairs = _ratio(errors, totals)
    worth = pairs / np.maximum(1.0, error**2 / np.maximum(ratio * (1 - ratio) / pairs, 1e-12))
    return binomial_upper(ratio * worth, worth, alpha)


def linearised_t(errors: np.ndarray, totals: np.ndarray, alpha: float) -> np.ndarray:
    """Linearised ratio estimator, Student t at effective entities - 1."""
    ratio, error, effective, _ = _ratio(errors, totals)
    return ratio + special.stdtrit(np.maximum(effective - 1, 1), 1 - alpha) * error


def jackknife_t(errors: np.ndarray, totals: np.ndarray, alpha: float) -> np.ndarray:
    """Delete-one-entity jackknife, Student t at entities - 1."""
    count = errors.shape[1]
    left = (errors.sum(1, keepdims=True) - errors) / np.maximum(totals.sum(1, keepdims=True) - totals, 1e-9)
    error = np.sqrt((count - 1) / count * ((left - left.mean(1, keepdims=True)) ** 2).sum(1))
    return _ratio(errors, totals)[0] + special.stdtrit(count - 1, 1 - alpha) * error


def bootstrap_t(errors: np.ndarray, totals: np.ndarray, alpha: float) -> np.ndarray:
    """Studentised bootstrap over entities, 1,000 resamples."""
    count = errors.shape[1]
    weights = np.random.default_rng(5).multinomial(count, np.full(count, 1 / count), 1000).astype(float)
    ratio, error, _, _ = _ratio(errors, totals)
    again, pairs = weights @ errors.T, np.maximum(weights @ totals.T, 1e-9)
    star = again / pairs
    square = weights @ (errors**2).T - 2 * star * (weights @ (errors * totals).T) + star**2 * (weights @ (totals**2).T)
    spread = np.sqrt(np.maximum(square, 0) * count / (count - 1)) / pairs
    pivot = np.where(spread > 1e-9, (star - ratio) / np.maximum(spread, 1e-9), -np.inf)
    low = np.quantile(pivot, alpha, axis=0, method="inverted_cdf")
    return np.where(np.isfinite(low), ratio - np.where(np.isfinite(low), low, 0) * error, 1.0)


def betting(errors: np.ndarray, totals: np.ndarray, alpha: float) -> np.ndarray:
    """Finite-sample e-value bound over entities: a mixture of constant bets that no entity of 200 pairs can ruin."""
    found = np.ones(len(errors))
    for candidate in np.linspace(0.99, 0.01, 50):
        gain = candidate * totals - errors  # mean <= 0 whenever the error ratio is at least `candidate`
        worst = (1 - candidate) * CANDIDATES
        bets = np.array([0.2, 0.5, 0.9])[:, None, None] / worst
        wealth = np.exp(np.log1p(bets * gain[None]).sum(2)).mean(0)
        found = np.where(wealth >= 1 / alpha, candidate, found)
    return found


Method = Callable[[np.ndarray, np.ndarray, float], np.ndarray]
OTHERS: tuple[Method, ...] = (binomial, design_effect, linearised_t, jackknife_t, bootstrap_t, betting)
NAIVE: tuple[Method, ...] = (point_estimate, binomial)


def fixed_cut(
    world: World,
    entities: int,
    trials: int,
    rng: np.random.Generator,
    others: Sequence[Method] = OTHERS,
    design: Design = EVERY_PAIR,
) -> Iterator[dict]:
    """Coverage of every bound at the one cut whose truth is known."""
    solved = world.solved()
    truth = solved.truth(solved.cut)
    # Entities without a judged pair stay zero, as if they were not there.
    errors, totals = np.zeros((trials, entities)), np.zeros((trials, entities))
    # Of positives that nobody listed or found, no judged pair tells: misses are those among the known ones.
    limits: tuple[Limit, ...] = ("precision", "fpr", "fnr") if design.listed is None else ("precision", "fpr")
    upper: dict[tuple[str, str], list[float]] = {}
    for trial in range(trials):
        judged = solved.draw(entities, rng, design)
        counts = judged.counts(solved.cut)
        wrong, flagged = counts["flagged"] - counts["tp"], counts["flagged"]
        errors[trial, : judged.entities], totals[trial, : judged.entities] = wrong, flagged
        for limit in limits:
            found = limit_bound(judged, solved.cut, limit, 1 - ALPHA).bound
            upper.setdefault(("semlabel", limit), []).append(found)
        halved = limit_bound(judged, solved.cut, "precision", 1 - ALPHA / 2).bound
        upper.setdefault(("semlabel, alpha 0.025", "precision"), []).append(halved)
        found = error_bound(wrong, flagged, 1 - ALPHA).bound
        upper.setdefault(("semlabel, counts only", "precision"), []).append(found)
    for method in others:
        upper[(method.__name__, "precision")] = method(errors, totals, ALPHA).tolist()
    for (method, limit), values in upper.items():
        missed = int((np.array(values) < truth[limit]).sum())
        nominal = ALPHA / 2 if "0.025" in method else ALPHA
        yield _cell("fixed cut", world, entities, trials, design) | {
            "method": method,
            "limit": limit,
            "true_error_ratio": truth[limit],
            "miss_rate": missed / trials,
            "nominal": nominal,
            "significantly_above_nominal": bool(
                stats.binomtest(missed, trials, nominal, alternative="greater").pvalue < 0.01
            ),
            "median_excess": float(np.median(values) - truth[limit]),
            "share_shown_at_floor_0.5": float(np.mean(np.array(values) <= 0.5)) if limit == "precision" else None,
        }


def whole_walk(
    world: World,
    floor: float,
    entities: int,
    trials: int,
    rng: np.random.Generator,
    design: Design = EVERY_PAIR,
    calibrate: int = 40,
) -> dict:
    """Misses and power of the walk with the bound of `semlabel.bounds`; both splits are judged by one design."""
    solved = world.solved()
    certified, missed, recall, start = 0, 0, [], time.perf_counter()
    for _ in range(trials):
        held_out = solved.draw(calibrate, rng, design), solved.draw(entities, rng, design)
        result = walk(Policy(min_precision=floor), *held_out)
        if result.threshold is not None:
            truth = solved.truth(result.threshold)
            assert result.word == "certified", "a cell with too few entities shows nothing"
            certified += 1
            missed += 1 - truth["precision"] < floor
            recall.append(1 - truth["fnr"])
    return _cell("walk", world, entities, trials, design) | {
        "method": "semlabel",
        "limit": "precision",
        "floor": floor,
        "miss_rate": missed / trials,
        "nominal": ALPHA,
        "significantly_above_nominal": bool(
            stats.binomtest(missed, trials, ALPHA, alternative="greater").pvalue < 0.01
        ),
        "certified_rate": certified / trials,
        "mean_recall": float(np.mean(recall)) if recall else None,
        "seconds_per_walk": (time.perf_counter() - start) / trials,
    }


def _cell(part: str, world: World, entities: int, trials: int, design: Design) -> dict:
    return {
        "part": part,
        "entities": entities,
        "trials": trials,
        "entity_sd": world.sd,
        "entity_effect": f"t{world.tail}" if world.tail else "normal",
        "precision_at_3_flagged": world.precision,
        "positives_spread": world.spread,
        "drawn_share": design.drawn,
        "drawn_pairs": round(design.drawn * entities * CANDIDATES),
        "listed_share_of_positives": design.listed,
    }


def study(quick: bool) -> Iterator[dict]:
    """All cells."""
    rng = np.random.default_rng(20)
    fixed, walks = (200, 40) if quick else (800, 200)
    sds = (0.0, 0.5, 1.0, 1.5)
    for spread in (0.0, 0.7):
        for precision in (0.5, 0.65, 0.9):
            for entities in (40, 150):
                for sd in sds:
                    others = () if spread else OTHERS
                    yield from fixed_cut(World(sd, precision, spread), entities, fixed, rng, others)
    for spread, floor, precision in ((0.0, 0.5, 0.65), (0.0, 0.8, 0.88), (0.7, 0.5, 0.65)):
        for entities in (40, 50, 150):
            for sd in sds:
                yield whole_walk(World(sd, precision, spread), floor, entities, walks, rng)
    for entities in (40, 150):
        for sd in (0.5, 1.0):
            yield from fixed_cut(World(sd, 0.65, 0.0, tail=4), entities, fixed // 3, rng)


# Dense and thin samples; the last one has about one pair of every entity.
SAMPLES = ((40, 0.5), (40, 0.2), (150, 0.2), (150, 0.05), (600, 0.05), (1200, 0.005))


def study_of_samples(quick: bool) -> Iterator[dict]:
    """The cells of judgements drawn by chance."""
    rng = np.random.default_rng(21)
    fixed, walks = (100, 20) if quick else (500, 300)
    sds = (0.0, 0.5, 1.0, 1.5)
    for spread, precision in ((0.0, 0.65), (0.7, 0.65), (0.0, 0.9)):
        for entities, drawn in SAMPLES:
            for sd in sds:
                yield from fixed_cut(World(sd, precision, spread), entities, fixed, rng, NAIVE, Design(drawn))
    for drawn in (0.02, 0.2):
        for sd in sds:
            yield from fixed_cut(World(sd, 0.65), 150, fixed, rng, NAIVE, Design(drawn, listed=0.7))
    # 20,000 drawn pairs hold 300 flagged ones, 5,000 hold 75; the floor is 10 or 15 points below the truth.
    for entities, drawn in ((200, 0.5), (2000, 0.05), (500, 0.05)):
        for precision in (0.6, 0.65):
            for sd in sds:
                world, calibrate = World(sd, precision), max(40, entities * 3 // 10)
                yield whole_walk(world, 0.5, entities, walks, rng, Design(drawn), calibrate)


def environment() -> dict:
    """Where and with what this ran."""
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    return {
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "numpy": version("numpy"),
        "scipy": version("scipy"),
        "commit": commit or None,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def main() -> None:
    """Run the study and write its JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sampled", action="store_true", help="judgements of pairs drawn by chance")
    parser.add_argument("--quick", action="store_true", help="few trials: a smoke run, not evidence")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    cells = []
    for cell in (study_of_samples if options.sampled else study)(options.quick):
        cells.append(cell)
        told = f"certified {cell['certified_rate']:.0%}" if cell["part"] == "walk" else f"+{cell['median_excess']:.3f}"
        mark = " ABOVE NOMINAL" if cell["significantly_above_nominal"] else ""
        name = f"{cell['part']} {cell['limit']} n={cell['entities']} sd={cell['entity_sd']} {cell['entity_effect']}"
        name += f" drawn={cell['drawn_share']} listed={cell['listed_share_of_positives']}"
        world = f"precision={cell['precision_at_3_flagged']} spread={cell['positives_spread']}"
        print(
            f"{name} {world} {cell['method']}: missed {cell['miss_rate']:.1%}, {told}{mark}",
            file=sys.stderr,
            flush=True,
        )
    options.out.mkdir(parents=True, exist_ok=True)
    target = options.out / f"threshold_simulation{'_sampled' if options.sampled else ''}.json"
    target.write_text(json.dumps({"environment": environment(), "cells": cells}, indent=1) + "\n")
    print(target)


if __name__ == "__main__":
    main()
