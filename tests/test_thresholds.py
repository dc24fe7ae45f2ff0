"""Thresholds that hold on unseen entities: coverage by simulation, the walk's order, and honest abstention."""

import math

import numpy as np
import pytest
from scipy import special, stats

from semlabel.bounds import binomial_upper, error_bound, imagined_entity, precision_bound, upper_bounds
from semlabel.errors import SettingsError
from semlabel.gates import held_out_errors
from semlabel.judged import Judged, limit_bound
from semlabel.thresholds import Policy, choose_cuts, walk

CANDIDATES, PREVALENCE = 200, 0.02
SDS = (0.0, 0.5, 1.0, 1.5)


class World:
    """Cross products with 2 % positives whose margins shift by entity; `precision` is true at 3 flagged each."""

    def __init__(self, sd, precision=0.65):
        self.sd, self.scale = sd, math.sqrt(1 + sd * sd)
        self.cut = -self.scale * special.ndtri((1 - precision) * 3 / (CANDIDATES * (1 - PREVALENCE)))
        self.gap = self.cut + self.scale * special.ndtri(precision * 3 / (CANDIDATES * PREVALENCE))

    def precision(self, cut):
        tp = PREVALENCE * special.ndtr((self.gap - cut) / self.scale)
        fp = (1 - PREVALENCE) * special.ndtr(-cut / self.scale)
        return tp / (tp + fp)

    def draw(self, entities, rng, shift=0.0):
        labels = rng.random((entities, CANDIDATES)) < PREVALENCE
        margins = rng.standard_normal((entities, CANDIDATES)) + self.sd * rng.standard_normal((entities, 1))
        margins = margins + self.gap * labels + shift
        return Judged.of(np.repeat(np.arange(entities), CANDIDATES), labels.ravel(), margins.ravel())

    def counts(self, trials, entities, rng):
        effect = self.sd * rng.standard_normal((trials, entities))
        positives = rng.binomial(CANDIDATES, PREVALENCE, (trials, entities))
        tp = rng.binomial(positives, special.ndtr(effect + self.gap - self.cut))
        fp = rng.binomial(CANDIDATES - positives, special.ndtr(effect - self.cut))
        return fp.astype(float), (tp + fp).astype(float)


def not_above(missed, trials, level=0.05):
    return stats.binomtest(int(missed), trials, level, alternative="greater").pvalue > 0.001


@pytest.mark.parametrize("entities", [40, 150])
@pytest.mark.parametrize("sd", SDS)
def test_a_bound_from_counts_keeps_its_level_under_entity_effects(sd, entities):
    errors, totals = World(sd).counts(1500, entities, np.random.default_rng(1))
    upper = upper_bounds(errors, totals, 0.05, imagined_entity(errors, totals))["upper"]
    assert not_above((upper < 0.35).sum(), 1500)


@pytest.mark.parametrize(("entities", "trials"), [(40, 200), (150, 80)])
@pytest.mark.parametrize("sd", SDS)
def test_a_bound_from_margins_keeps_its_level_under_entity_effects(sd, entities, trials):
    world, rng = World(sd), np.random.default_rng(2)
    upper = [limit_bound(world.draw(entities, rng), world.cut, "precision", 0.95).bound for _ in range(trials)]
    assert not_above((np.array(upper) < 0.35).sum(), trials)


def test_a_binomial_bound_over_pairs_fails_that_very_simulation():
    errors, totals = World(1.5).counts(1500, 40, np.random.default_rng(1))
    missed = (binomial_upper(errors.sum(1), totals.sum(1), 0.05) < 0.35).sum()
    assert not not_above(missed, 1500)
    assert missed / 1500 > 0.3


def test_the_walk_rarely_chooses_a_threshold_that_misses_the_floor():
    rng, missed, trials = np.random.default_rng(3), 0, 0
    for sd in SDS:
        world = World(sd)
        for entities, repeats in ((40, 30), (150, 6)):
            for _ in range(repeats):
                result = walk(Policy(min_precision=0.5), world.draw(40, rng), world.draw(entities, rng))
                missed += result.threshold is not None and world.precision(result.threshold) < 0.5
                trials += 1
    assert not_above(missed, trials)


def test_fifty_entities_are_enough_to_show_a_floor_that_is_clearly_kept():
    world, rng = World(0.0), np.random.default_rng(4)
    results = [walk(Policy(min_precision=0.5), world.draw(40, rng), world.draw(50, rng)) for _ in range(40)]
    assert sum(result.verdict == "pass" for result in results) >= 39
    assert all(result.word == "certified" for result in results)


def test_without_an_entity_effect_the_bound_costs_little_more_than_the_exact_one():
    errors, totals = World(0.0).counts(400, 150, np.random.default_rng(5))
    ours = upper_bounds(errors, totals, 0.05, imagined_entity(errors, totals))["upper"]
    exact = binomial_upper(errors.sum(1), totals.sum(1), 0.05)
    assert 0.0 < np.median(ours - exact) < 0.02


def test_one_pair_per_entity_gets_the_exact_binomial_bound():
    for errors, pairs in ((0, 59), (3, 100), (20, 20)):
        wrong = np.zeros(pairs)
        wrong[:errors] = 1
        found = error_bound(wrong, np.ones(pairs))
        oracle = stats.beta.ppf(0.95, errors + 1, pairs - errors) if errors < pairs else 1.0
        assert found.exact
        assert found.bound == pytest.approx(oracle)
    assert error_bound(np.zeros(59), np.ones(59)).bound == pytest.approx(0.05, abs=1e-3)


def test_no_error_at_all_is_not_proof_of_perfection():
    found = precision_bound(np.full(40, 5), np.full(40, 5))
    assert found.point == 1.0
    assert found.bound == pytest.approx(0.05 ** (1 / 40), abs=0.01)
    assert precision_bound(np.full(40, 5), np.full(40, 5)).bound < precision_bound([1] * 200, [1] * 200).bound


def test_nothing_flagged_proves_nothing():
    found = precision_bound(np.zeros(50), np.zeros(50))
    assert math.isnan(found.point)
    assert found.bound == 0.0


def test_a_bound_is_wider_the_more_entities_differ():
    alike = precision_bound(np.full(60, 4), np.tile([3, 2], 30))
    apart = precision_bound(np.full(60, 4), np.tile([4, 4, 4, 1, 0, 2], 10))
    assert alike.point == apart.point
    assert apart.bound < alike.bound
    assert apart.design_effect > alike.design_effect == 1.0
    assert apart.effective_n < 240


@pytest.mark.parametrize(
    ("errors", "totals", "confidence"),
    [([2], [1], 0.95), ([-1], [1], 0.95), ([1, 1], [1], 0.95), ([0], [np.nan], 0.95), ([0], [1], 1.0)],
)
def test_counts_that_are_none_are_refused(errors, totals, confidence):
    with pytest.raises(ValueError, match=r"counts|confidence"):
        error_bound(errors, totals, confidence)


def sample(seed=7, sd=0.3, calibrate=40, certify=60, **change):
    rng, world = np.random.default_rng(seed), World(sd, **change)
    return world.draw(calibrate, rng), world.draw(certify, rng)


def test_precision_walks_strict_to_lax_and_stops_at_the_first_failure():
    result = walk(Policy(min_precision=0.5), *sample())
    cuts = [step["cut"] for step in result.steps]
    assert cuts == sorted(cuts, reverse=True)
    assert [step["ok"] for step in result.steps[:-1]] == [True] * (len(cuts) - 1)
    passed = [step for step in result.steps if step["ok"]]
    assert result.threshold == passed[-1]["cut"]
    assert result.bounds["precision"] == passed[-1]["bound"] >= 0.5
    assert 1 < len(cuts) <= 20


def test_misses_walk_lax_to_strict():
    result = walk(Policy(max_fnr=0.6), *sample())
    cuts = [step["cut"] for step in result.steps]
    assert cuts == sorted(cuts)
    assert result.verdict == "pass"
    assert result.bounds["fnr"] <= 0.6
    assert result.misses["fnr_bound"] == result.bounds["fnr"]


def test_false_positives_walk_strict_to_lax():
    result = walk(Policy(max_fpr=0.02), *sample())
    cuts = [step["cut"] for step in result.steps]
    assert (result.verdict, cuts) == ("pass", sorted(cuts, reverse=True))
    assert result.points["fpr"] < result.bounds["fpr"] <= 0.02


def test_the_walk_starts_where_enough_pairs_are_flagged():
    calibrate, certify = sample()
    cuts = choose_cuts(calibrate, certify.entities, "precision", 0.5)
    assert calibrate.counts(cuts[0])["flagged"].sum() * 60 / 40 >= 25
    strictest = float(calibrate.margins.max())
    assert cuts[0] < strictest


def test_cuts_are_chosen_without_looking_at_certify():
    calibrate, certify = sample()
    turned = Judged.of(certify.entity, ~certify.labels, certify.margins[::-1])
    first = walk(Policy(min_precision=0.5), calibrate, certify).steps[0]["cut"]
    assert walk(Policy(min_precision=0.5), calibrate, turned).steps[0]["cut"] == first


def test_several_limits_intersect_and_split_alpha():
    calibrate, certify = sample()
    one = walk(Policy(min_precision=0.5), calibrate, certify)
    both = walk(Policy(min_precision=0.5, max_fnr=0.7), calibrate, certify)
    assert both.verdict == "pass"
    assert set(both.bounds) == {"precision", "fnr"}
    assert both.bounds["precision"] >= 0.5
    assert both.bounds["fnr"] <= 0.7
    cut = both.threshold
    assert limit_bound(certify, cut, "precision", 0.975).bound == pytest.approx(1 - both.bounds["precision"])
    assert one.threshold <= cut
    assert held_out_errors(both.to_json()).passed


def test_limits_that_exclude_each_other_fail():
    result = walk(Policy(min_precision=0.8, max_fnr=0.1), *sample(certify=150))
    assert (result.verdict, result.threshold) == ("fail", None)


def test_a_floor_out_of_reach_fails():
    result = walk(Policy(min_precision=0.9), *sample(certify=150, precision=0.5))
    assert (result.verdict, result.threshold, result.more_entities_needed) == ("fail", None, None)
    assert not held_out_errors(result.to_json()).passed


def test_who_looks_again_is_told_of_more_entities_than_who_looks_once():
    rng, world = np.random.default_rng(11), World(0.3)
    tables = world.draw(40, rng), world.draw(25, rng)
    once, again = (walk(Policy(min_precision=0.75), *tables, next_confidence=at) for at in (None, 0.99))
    assert once.verdict == again.verdict == "not_enough_data"
    # One-sided quantiles of 95 % and 99 %, squared: as many times the entities for a bound of the same width.
    assert again.more_entities_needed == math.ceil((25 + once.more_entities_needed) * (2.3263479 / 1.6448536) ** 2) - 25


def test_too_little_data_says_how_many_more_entities_to_judge():
    rng, world = np.random.default_rng(11), World(0.3)
    calibrate = world.draw(40, rng)
    short = walk(Policy(min_precision=0.75), calibrate, world.draw(25, rng))
    assert (short.verdict, short.threshold) == ("not_enough_data", None)
    assert short.more_entities_needed > 0
    assert str(short.more_entities_needed) in short.sentence
    assert held_out_errors(short.to_json()).verdict == "not_enough_data"
    larger = [world.draw(25 + short.more_entities_needed, rng) for _ in range(10)]
    assert sum(walk(Policy(min_precision=0.75), calibrate, each).verdict == "pass" for each in larger) >= 5


def test_a_cut_without_flagged_pairs_is_a_failure():
    rng, world = np.random.default_rng(12), World(0.0)
    result = walk(Policy(min_precision=0.5), world.draw(40, rng), world.draw(50, rng, shift=-50.0))
    assert result.verdict == "fail"
    assert result.steps[0]["flagged"] == 0
    assert "No pair is flagged" in result.sentence


def test_an_empty_split_never_passes():
    calibrate, certify = sample()
    nothing = Judged.of([], [], [])
    for pair in ((calibrate, nothing), (nothing, certify), (nothing, nothing)):
        result = walk(Policy(min_precision=0.5), *pair)
        assert (result.verdict, result.threshold) == ("not_enough_data", None)
        assert result.more_entities_needed >= 1


def test_coverage_not_shown_is_called_estimated():
    rng, world = np.random.default_rng(13), World(0.0, precision=0.9)
    calibrate = world.draw(40, rng)
    words = [walk(Policy(min_precision=0.5), calibrate, world.draw(count, rng)).word for count in (39, 40)]
    assert words == ["estimated", "certified"]


def test_pairs_that_show_no_spread_between_entities_certify_nothing():
    # One judged NO of each entity: whether whole entities lie high or low cannot be seen.
    entities = np.repeat(np.arange(60), 5)
    labels, margins = np.tile([True, True, True, True, False], 60), np.tile([4.0, 3.0, 2.5, 2.0, -1.0], 60)
    judged = Judged.of(entities, labels, margins)
    result = walk(Policy(min_precision=0.5), judged, judged)
    assert (result.verdict, result.word) == ("pass", "estimated")


def test_ids_and_row_order_change_nothing():
    calibrate, certify = sample()
    order = np.random.default_rng(0).permutation(certify.margins.size)
    table = {
        "entity_id": np.array([f"id-{999 - code}" for code in certify.entity])[order],
        "label": certify.labels[order],
        "margin": certify.margins[order],
    }
    one, other = (walk(Policy(min_precision=0.5), calibrate, proof) for proof in (certify, table))
    assert one.threshold == other.threshold
    assert one.bounds["precision"] == pytest.approx(other.bounds["precision"], abs=1e-12)


def test_a_threshold_means_the_same_in_float32():
    rng = np.random.default_rng(14)
    coarse = [
        Judged.of(split.entity, split.labels, np.round(split.margins * 4).astype(np.float32) / 4)
        for split in sample(int(rng.integers(1000)))
    ]
    result = walk(Policy(min_precision=0.5), *coarse)
    margins = coarse[1].margins.astype(np.float32)
    assert result.threshold == float(np.float32(result.threshold))
    assert ((margins >= result.threshold) == (coarse[1].margins >= result.threshold)).all()
    assert not (margins == np.float32(result.threshold)).any()


def test_a_policy_without_limits_or_with_impossible_ones_is_refused():
    calibrate, certify = sample()
    with pytest.raises(SettingsError, match="no error limit"):
        walk(Policy(), calibrate, certify)
    with pytest.raises(SettingsError, match="between 0 and 1"):
        walk(Policy(min_precision=1.0), calibrate, certify)


def test_margins_that_are_no_numbers_are_refused():
    with pytest.raises(ValueError, match="1 margins are not finite"):
        Judged.of(["a", "b"], [True, False], [1.0, np.nan])
    with pytest.raises(ValueError, match="not one per pair"):
        Judged.of(["a", "b"], [True, False], [1.0])
