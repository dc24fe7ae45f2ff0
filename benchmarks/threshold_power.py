"""How often a floor of precision that truly holds can be shown at all, by `semlabel.bounds` and by one who knows more.

Cross products as in `threshold_simulation.py`. Beside the bound stands an *informed* test, which is told what nobody
can know: the standard deviation of the point estimate in this very population. It shows the floor when the estimate
exceeds it by 1.645 of them. Where even that test rarely succeeds, the data are too few for any bound whose level is
5 %, and the right verdict is `not_enough_data`.

    PYTHONPATH=. python benchmarks/threshold_power.py [--quick] [--out benchmarks/results]

writes threshold_power.json: `environment` and `cells`. `at_cut`: shares shown at the one cut whose true precision is
declared. `at_best_cut`: the informed test at the cut where it succeeds most often, the most a choice of cuts can give
it. `walk`: the whole walk, cuts chosen on `calibrate` entities.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from scipy import stats

from benchmarks.threshold_simulation import ALPHA, Solved, World, environment, whole_walk
from semlabel.judged import Judged, limit_bound

FLOOR = 0.5
PRECISIONS = (0.6, 0.65)
SIZES = ((100, 300), (150, 300), (150, 450), (200, 600))  # entities, flagged pairs expected at the cut
SDS = (0.0, 0.5, 1.0, 1.5)
CUTS = 25
SIGMAS = float(stats.norm.ppf(1 - ALPHA))


def ratios(judged: Judged, cuts: np.ndarray) -> np.ndarray:
    """(cuts,) shares of wrong among the flagged pairs; NaN where none is flagged."""
    return judged.points(cuts, "precision")


def informed(errors: np.ndarray) -> np.ndarray:
    """(cuts,) share of trials (trials, cuts) in which the informed test shows the floor."""
    spread = np.nanstd(errors, axis=0, ddof=1)
    return np.mean(errors <= (1 - FLOOR) - SIGMAS * spread, axis=0)


def cell(world: World, entities: int, trials: int, rng: np.random.Generator) -> dict:
    """One population and size of certify."""
    solved = world.solved()
    drawn = [solved.draw(entities, rng) for _ in range(trials)]
    shown = [limit_bound(judged, solved.cut, "precision", 1 - ALPHA).bound <= 1 - FLOOR for judged in drawn]
    cuts = solved.cut + np.linspace(0.0, 4.0, CUTS) * np.sqrt(1 + world.sd**2)
    by_cut = informed(np.array([ratios(judged, cuts) for judged in drawn]))
    best = int(np.argmax(by_cut))
    walked = whole_walk(world, FLOOR, entities, trials, rng, calibrate=max(40, entities * 3 // 10))
    return {
        "entity_sd": world.sd,
        "entities": entities,
        "flagged_pairs_expected": round(world.flagged * entities),
        "true_precision_at_cut": world.precision,
        "floor": FLOOR,
        "trials": trials,
        "at_cut": {"semlabel": float(np.mean(shown)), "informed": float(by_cut[0])},
        "at_best_cut": {"informed": float(by_cut[best]), "true_precision": _precision(solved, float(cuts[best]))},
        "walk": {"semlabel": walked["certified_rate"], "miss_rate": walked["miss_rate"]},
    }


def _precision(solved: Solved, cut: float) -> float:
    return 1 - solved.truth(cut)["precision"]


def study(quick: bool) -> Iterator[dict]:
    """All cells."""
    rng = np.random.default_rng(22)
    for precision in PRECISIONS:
        for entities, flagged in SIZES:
            for sd in SDS:
                yield cell(World(sd, precision, flagged=flagged / entities), entities, 40 if quick else 400, rng)


def main() -> None:
    """Run the study and write its JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few trials: a smoke run, not evidence")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    cells = []
    for found in study(options.quick):
        cells.append(found)
        print(json.dumps(found), file=sys.stderr, flush=True)
    options.out.mkdir(parents=True, exist_ok=True)
    target = options.out / "threshold_power.json"
    target.write_text(json.dumps({"environment": environment(), "cells": cells}, indent=1) + "\n")
    print(target)


if __name__ == "__main__":
    main()
