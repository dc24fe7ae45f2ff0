"""Drift told apart from chance: tests against oracles, the sums of nights, and simulations with known truth."""

import math
from itertools import pairwise

import numpy as np
import pytest
from scipy import stats

from benchmarks.drift_simulation import (
    ALPHA,
    LIMITS,
    QUALITY,
    Kind,
    World,
    after,
    creep,
    incidents,
    jump,
    together,
)
from semlabel.drift import chance
from semlabel.drift.labels import EVERY_CANDIDATE, WINDOW, Limits, findings, spans_of
from semlabel.drift.quality import LENGTH, shifts
from semlabel.drift.spans import Span, joined
from semlabel.drift.state import History, read_history, write_history
from semlabel.drift.sums import MIN_ENTITIES, Sums, unlikely
from semlabel.errors import WarehouseError


def span(entities=5_000, yes=(500, 100), up=(0, 0), down=(0, 0), new=0, new_yes=(0, 0), **more) -> Span:
    size = len(yes)
    everyone, arrived = np.full(size, entities), np.full(size, new)
    return Span(everyone, *(np.array(part) for part in (yes, up, down)), arrived, np.array(new_yes), **more)


# --- the tests


def test_flips_have_the_p_value_of_a_fair_coin():
    found = chance.flips([9, 1, 0, 3], [1, 9, 0, 3])
    oracle = [stats.binomtest(k, n).pvalue if n else 1.0 for k, n in ((9, 10), (1, 10), (0, 0), (3, 6))]
    assert found.p == pytest.approx(np.minimum(oracle, 1.0))
    assert found.least == pytest.approx([0.5**10, 0.5**10, 1.0, 0.5**6])


def test_arrivals_are_never_less_likely_than_fisher_says_and_far_out_just_as_likely():
    rng = np.random.default_rng(0)
    yes, new_yes = rng.integers(0, 60, 2_000), rng.integers(0, 60, 2_000)
    old, new = yes + rng.integers(1, 2_000, 2_000), new_yes + rng.integers(1, 300, 2_000)
    found = chance.arrivals(yes, old, new_yes, new)
    exact = stats.hypergeom.sf(new_yes - 1, old + new, yes + new_yes, new)
    assert (found.more >= exact * (1 - 1e-6)).all()
    far = (exact < 1e-4) & (exact > 1e-200)
    assert far.sum() > 500
    assert found.more[far] == pytest.approx(exact[far], rel=0.03)
    mirrored = chance.arrivals(old - yes, old, new - new_yes, new)
    assert mirrored.fewer == pytest.approx(found.more)


def test_two_looks_together_are_fishers_method():
    one, other = chance.one(0.01, 0.9), chance.one(0.03, 1.0)
    assert one.together(other).more[0] == pytest.approx(stats.combine_pvalues([0.01, 0.03]).pvalue)


def test_a_candidate_that_can_never_be_significant_is_not_paid_for():
    p, least = np.array([1e-4] + [1.0] * 999), np.array([1e-9] + [0.5] * 999)
    assert chance.holm(p, least, 0.001)[0] == 1e-4
    assert chance.holm(p, np.zeros(1_000), 0.001)[0] == pytest.approx(0.1)


def test_holm_is_holm():
    p = np.array([0.01, 0.04, 0.03, 0.005])
    assert chance.holm(p, np.zeros(4), 0.05) == pytest.approx([0.03, 0.06, 0.06, 0.02])


def test_pairs_of_one_entity_do_not_count_as_independent():
    rng = np.random.default_rng(1)
    share = rng.beta(2, 2, 200)
    clustered = Sums.of(rng.binomial(50, share), 50)
    assert clustered.variance > 10 * clustered.share * (1 - clustered.share) / clustered.total
    assert clustered.variance == pytest.approx(np.var(share, ddof=1) / 200, rel=0.3)
    assert (Sums.of([1, 2], 5) + Sums.of([3], 5)) == Sums.of([1, 2, 3], 5)


def test_a_handful_of_entities_is_compared_with_nothing():
    few, many = Sums.of(np.ones(MIN_ENTITIES - 1)), Sums.of(np.zeros(1_000))
    assert unlikely(few, many) == (1.0, 1.0)
    assert unlikely(Sums.of(np.ones(MIN_ENTITIES)), many) == (0.0, 1.0)


# --- nights add up


def test_the_order_of_adding_nights_up_does_not_matter():
    world = World(Kind(300, 20), 1)
    for _ in range(3):
        world.night()
    one, two, three = world.history.nights
    left, right = one.then(two).then(three).to_json(), one.then(two.then(three)).to_json()
    assert {k: pytest.approx(v) for k, v in left.items()} == right
    assert joined([one, two, three]).to_json() == left


def test_a_candidate_starts_where_it_first_stands():
    before = span(yes=(500, 100)).over(["a", "b"], ["b", "c"])
    assert before.entities.tolist() == [5_000, 0] and before.yes.tolist() == [100, 0]
    grown = before.then(span(entities=5_100, yes=(130, 40), up=(3, 4)))
    assert grown.entities.tolist() == [5_000, 5_100] and grown.yes.tolist() == [100, 40]
    assert grown.up.tolist() == [3, 4]


def test_a_history_is_read_as_it_was_written_and_an_edited_one_is_refused(tmp_path):
    world = World(Kind(100, 12), 1)
    assert read_history(tmp_path) is None
    for _ in range(2):
        world.night()
    write_history(tmp_path, world.history)
    back = read_history(tmp_path)
    assert back.since.to_json() == world.history.since.to_json()
    assert (back.count, back.first, back.arrived) == (2, world.history.first, world.history.arrived)
    assert [night.to_json() for night in back.nights] == [night.to_json() for night in world.history.nights]
    (tmp_path / "drift" / "state.json").write_text("{}")
    with pytest.raises(WarehouseError, match="no readable history"):
        read_history(tmp_path)


def test_a_month_and_the_whole_time_are_judged_beside_the_night():
    night = span(up=(1, 0))
    short = spans_of([night] * 3, joined([night] * 3), night)
    assert [found.up[0] for found in short.values()] == [1, 4]
    long = spans_of([night] * WINDOW, joined([night] * 200), night)
    assert [found.up[0] for found in long.values()] == [1, WINDOW, 201]
    history = History("l", "v", ("a", "b"), (), {}, {})
    for _ in range(WINDOW + 5):
        history = history.after(night, {}, {})
    assert (history.count, len(history.nights), history.since.up[0]) == (WINDOW + 5, WINDOW, WINDOW + 5)


# --- what is told


def test_a_move_of_labels_is_told_with_its_candidate_and_its_shares():
    (found,) = findings(["a", "b"], {"tonight": span(up=(250, 3), down=(0, 4))}, LIMITS)
    assert (found.name, found.span, found.up, found.down) == ("a", "tonight", 250, 0)
    assert (found.before, found.now, found.arrived) == (0.1, pytest.approx(0.15), None)


def test_a_move_that_is_no_chance_but_does_not_matter_is_not_told():
    moved = span(entities=1_000_000, yes=(100_000, 100), up=(900, 0))
    assert findings(["a", "b"], {"tonight": moved}, LIMITS) == []
    assert len(findings(["a", "b"], {"tonight": moved}, Limits(ALPHA, 0.0005, 0.01))) == 1


def test_entities_that_arrive_with_other_labels_are_told():
    arrived = span(new=1_000, new_yes=(200, 20))
    (found,) = findings(["a", "b"], {"tonight": arrived}, LIMITS)
    assert (found.name, found.arrived) == ("a", 0.2)


def test_many_candidates_that_move_a_little_are_told_together():
    size = 300
    before = Sums.of(np.full(2_000, 30.0), size)
    moved = Span(
        *(np.full(size, 2_000), np.full(size, 200), np.full(size, 3), np.full(size, 0)),
        *(np.zeros(size, int), np.zeros(size, int)),
        flip_sum=900.0,
        flip_squares=900.0,
        before=before,
    )
    (found,) = findings([f"c{n}" for n in range(size)], {"tonight": moved}, LIMITS)
    assert (found.name, found.up) == (EVERY_CANDIDATE, 900)


def test_shorter_texts_are_told_and_in_characters():
    rng = np.random.default_rng(0)
    before, now = (Sums.of(np.log(length) + 0.5 * rng.standard_normal(3_000)) for length in (900, 700))
    (against_first, against_last) = shifts({LENGTH: now}, {LENGTH: before}, {LENGTH: before}, QUALITY)
    assert (against_first.against, against_last.against) == ("the labeler's first version", "the version before")
    assert against_last.before == pytest.approx(900, rel=0.03) and against_last.now == pytest.approx(700, rel=0.03)
    assert math.log(900 / 700) > math.log1p(QUALITY.length)
    assert shifts({LENGTH: before}, {LENGTH: before}, {}, QUALITY) == []


def test_agreement_that_sinks_is_told_and_a_new_measure_is_compared_with_nothing():
    rng = np.random.default_rng(0)
    first, arrived = Sums.of(rng.binomial(10, 0.8, 200), 10), Sums.of(rng.binomial(10, 0.5, 150), 10)
    name = "agreement with references of YES"
    (found,) = shifts({name: arrived, "other": first}, {}, {name: first}, QUALITY)
    assert (found.name, round(found.before, 1), round(found.now, 1)) == (name, 0.8, 0.5)


# --- simulation with known truth, the short form of benchmarks/drift_simulation.py


SMALL = Kind(entities=1_000, candidates=60, rates=(0.01, 0.05, 0.1))


def test_stable_nights_raise_no_alarms():
    alerts = 0
    for seed in range(3):
        world = World(SMALL, seed)
        nights = [world.night() for _ in range(120)]
        alerts += incidents([bool(labels or quality) for labels, quality in nights])
    # Together a whole year of nights, where one alarm is allowed for.
    assert alerts <= 2


def test_without_holm_the_same_nights_would_raise_alarms():
    world = World(SMALL, 1)
    nights = [world.night() for _ in range(WINDOW)]
    assert not any(labels for labels, _ in nights)
    month = joined(world.history.nights)
    looks = chance.flips(month.up, month.down), chance.arrivals(month.yes, month.entities, month.new_yes, month.new)
    assert sum((look.p < 0.05).sum() for look in looks) >= 2


@pytest.fixture(scope="module")
def stable() -> World:
    """The world of the issue of drift: 5,000 entities, 200 candidates that correlate, two weeks old."""
    return after(Kind(), 14, 3)


@pytest.mark.parametrize("way", ["the same entities", "all entities are new"])
def test_a_frequent_candidate_that_jumps_is_seen_the_same_night(stable, way):
    assert [jump(stable, trial, way) for trial in range(3)] == [1, 1, 1]


@pytest.mark.parametrize("way", ["all entities", "fresh entities"])
def test_a_tenth_of_a_point_a_night_is_seen_within_a_month(stable, way):
    assert creep(stable, 1, 0.02, way) <= 30


@pytest.mark.parametrize("way", ["all up", "up and down", "fresh entities"])
def test_a_hundred_candidates_that_move_a_point_are_seen_within_a_month(stable, way):
    assert together(stable, 1, way) <= 30


def test_an_alarm_that_goes_on_is_one_incident():
    nights = [False, True, True, False, True]
    assert incidents(nights) == 2 == sum(now > before for before, now in pairwise([False, *nights]))
