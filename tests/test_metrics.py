"""Quality numbers: sklearn's definitions, intervals over entities, no false comfort from an all-NO labeler."""

import json
import math

import numpy as np
import pytest
from sklearn.metrics import average_precision_score, precision_score, recall_score, roc_auc_score

from semlabel.metrics import evaluate, label_flips, ratio_interval


def sample(entities=50, candidates=60, sd=1.0, ties=False, seed=0):
    rng = np.random.default_rng(seed)
    labels = rng.random((entities, candidates)) < 0.05
    margins = rng.standard_normal(labels.shape) + sd * rng.standard_normal((entities, 1)) + 2 * labels
    if ties:
        margins = np.round(margins)
    return np.repeat(np.arange(entities), candidates), labels.ravel(), margins.ravel()


@pytest.mark.parametrize("ties", [False, True])
def test_points_follow_sklearn_even_with_ties(ties):
    ids, labels, margins = sample(ties=ties)
    found = evaluate(ids, labels, margins, threshold=2.0, resamples=50)
    assert found.auc.value == pytest.approx(roc_auc_score(labels, margins), abs=1e-12)
    assert found.average_precision.value == pytest.approx(average_precision_score(labels, margins), abs=1e-12)
    assert found.precision.value == pytest.approx(precision_score(labels, margins >= 2.0))
    assert found.recall.value == pytest.approx(recall_score(labels, margins >= 2.0))
    assert (found.n_pairs, found.n_positive, found.n_entities) == (3000, labels.sum(), 50)


def test_resampling_by_weights_equals_repeating_the_drawn_entities():
    ids, labels, margins = sample(entities=12, ties=True)
    resamples, seed = 40, 3
    counts = np.random.default_rng(seed).multinomial(12, np.full(12, 1 / 12), size=resamples)
    auc, precision = [], []
    for drawn in counts:
        rows = np.concatenate([np.flatnonzero(ids == entity) for entity in np.repeat(np.arange(12), drawn)])
        auc.append(roc_auc_score(labels[rows], margins[rows]))
        precision.append(average_precision_score(labels[rows], margins[rows]))
    found = evaluate(ids, labels, margins, resamples=resamples, seed=seed)
    assert (found.auc.low, found.auc.high) == pytest.approx(tuple(np.quantile(auc, [0.025, 0.975])))
    expected = tuple(np.quantile(precision, [0.025, 0.975]))
    assert (found.average_precision.low, found.average_precision.high) == pytest.approx(expected)


def test_intervals_are_over_entities_not_pairs():
    ids, labels, margins = sample(sd=2.0)
    by_entity = evaluate(ids, labels, margins, threshold=3.0, resamples=400).precision
    by_pair = evaluate(np.arange(ids.size), labels, margins, threshold=3.0, resamples=400).precision
    assert by_entity.high - by_entity.low > 1.4 * (by_pair.high - by_pair.low)


def test_intervals_cover_the_truth_about_as_often_as_they_say():
    covered = 0
    truth = np.mean([roc_auc_score(*sample(entities=200, seed=1000 + i)[1:]) for i in range(20)])
    for seed in range(40):
        found = evaluate(*sample(seed=seed), resamples=150).auc
        covered += found.low <= truth <= found.high
    assert covered >= 33


def test_a_ratio_is_paired_and_so_narrower_than_its_parts():
    ids, labels, margins = sample()
    weaker = margins + np.random.default_rng(1).standard_normal(margins.size)
    ratio = ratio_interval(ids, labels, margins, weaker, resamples=300)
    expected = average_precision_score(labels, margins) / average_precision_score(labels, weaker)
    assert ratio.value == pytest.approx(expected)
    assert ratio.low < ratio.value < ratio.high
    same = ratio_interval(ids, labels, margins, margins, resamples=50)
    assert (same.value, same.low, same.high) == (1.0, 1.0, 1.0)


def test_what_is_not_defined_is_nan_and_null_never_a_number():
    ids, labels, margins = sample(entities=5)
    none = evaluate(ids, np.zeros_like(labels), margins, threshold=1.0, resamples=20)
    assert all(math.isnan(found.value) for found in (none.auc, none.average_precision, none.recall))
    all_no = evaluate(ids, labels, margins, threshold=99.0, resamples=20)
    assert math.isnan(all_no.precision.value)
    assert all_no.recall.value == 0.0
    told = json.loads(json.dumps(none.to_json(), allow_nan=False))
    assert told["auc"] == {"value": None, "low": None, "high": None}
    assert evaluate(ids, labels, margins, resamples=20).to_json()["precision"] is None


def test_row_order_and_id_type_change_nothing():
    ids, labels, margins = sample(entities=10)
    order = np.random.default_rng(0).permutation(ids.size)
    names = np.array([f"e{code:02d}" for code in ids], dtype=object)
    one = evaluate(ids, labels, margins, threshold=1.0, resamples=50)
    other = evaluate(names[order], labels[order], margins[order], threshold=1.0, resamples=50)
    assert one.auc.low == pytest.approx(other.auc.low, abs=1e-12)
    assert one.precision == other.precision


@pytest.mark.parametrize(
    ("ids", "labels", "margins", "message"),
    [
        ([], [], [], "no judged pair"),
        (["a"], [True, False], [1.0, 2.0], "not one per pair"),
        (["a", "b"], [True, False], [1.0, math.inf], "not finite"),
    ],
)
def test_bad_columns_are_refused(ids, labels, margins, message):
    with pytest.raises(ValueError, match=message):
        evaluate(ids, labels, margins)


def test_flips_are_counted_against_yes_and_not_diluted_by_no():
    before = np.array([2.0, 1.0, 0.1, -3.0, -3.0, -3.0])
    after = np.array([2.0, -1.0, -0.1, -3.0, -3.0, 3.0])
    flips = label_flips(before, after, threshold=0.0)
    assert (flips.flips, flips.yes_either, flips.pairs) == (3, 4, 6)
    assert flips.share_of_yes == 0.75
    rounded = label_flips(before, after, threshold=0.0, rounding=0.2)
    assert (rounded.flips, rounded.within_rounding) == (2, 1)
    assert math.isnan(label_flips(before, after, threshold=10.0).share_of_yes)


def test_ten_thousand_pairs_are_resampled_a_thousand_times_without_a_matrix_of_all():
    ids, labels, margins = sample(entities=50, candidates=200)
    found = evaluate(ids, labels, margins, threshold=2.0)
    assert found.auc.low < found.auc.value < found.auc.high
