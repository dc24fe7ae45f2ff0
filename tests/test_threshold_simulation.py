"""Judgements of pairs drawn by chance may certify: the short, seeded form of `threshold_simulation.py --sampled`."""

import numpy as np
import pytest
from scipy import stats

from benchmarks.threshold_simulation import NAIVE, Design, World, fixed_cut, whole_walk


def above(miss_rate: float, trials: int, nominal: float) -> bool:
    """More misses than chance allows at `nominal`."""
    return stats.binomtest(round(miss_rate * trials), trials, nominal, alternative="greater").pvalue < 0.001


def cells(world: World, entities: int, design: Design, trials: int = 200) -> dict:
    found = fixed_cut(world, entities, trials, np.random.default_rng(5), NAIVE, design)
    return {(cell["method"], cell["limit"]): cell["miss_rate"] for cell in found}


@pytest.mark.parametrize(("entities", "drawn"), [(40, 0.5), (150, 0.2), (600, 0.05)])
def test_bounds_from_drawn_pairs_keep_their_level_under_entity_effects(entities, drawn):
    for sd in (0.5, 1.5):
        rates = cells(World(sd, 0.65), entities, Design(drawn))
        for limit in ("precision", "fpr", "fnr"):
            assert not above(rates["semlabel", limit], 200, 0.05), (sd, limit)


def test_belief_in_the_point_estimate_or_in_independent_pairs_fails_the_same_test():
    rates = cells(World(1.5, 0.65), 40, Design(0.5))
    assert above(rates["point_estimate", "precision"], 200, 0.05)
    assert above(rates["binomial", "precision"], 200, 0.05)


@pytest.mark.parametrize("drawn", [0.02, 0.2])
def test_positives_that_nobody_listed_make_bounds_safer_never_bolder(drawn):
    rates = cells(World(1.0, 0.65), 150, Design(drawn, listed=0.7))
    assert rates["semlabel", "precision"] <= 0.01 and rates["semlabel", "fpr"] <= 0.01
    assert ("semlabel", "fnr") not in rates


def test_300_flagged_drawn_pairs_are_enough_for_a_cut_and_its_floor_holds():
    found = whole_walk(World(0.5, 0.65), 0.5, 500, 30, np.random.default_rng(6), Design(0.2), calibrate=150)
    assert found["drawn_pairs"] == 20_000
    assert found["certified_rate"] >= 0.8 and not above(found["miss_rate"], 30, 0.05)


@pytest.mark.parametrize(("floor", "precision"), [(0.5, 0.65), (0.8, 0.88)])
def test_a_walk_does_not_begin_so_lax_that_it_finds_nothing_where_entities_differ_much(floor, precision):
    found = whole_walk(World(1.5, precision), floor, 150, 60, np.random.default_rng(7))
    assert found["certified_rate"] >= 0.8 and not above(found["miss_rate"], 60, 0.05)
