"""Probabilities: exact fit, no penalty, no rounding to one, honest refusals."""

import numpy as np
import pytest

from semlabel.calibration import Platt, brier, expected_calibration_error, fit_platt


def sampled(pairs=20_000, a=0.8, b=-3.0, seed=0):
    rng = np.random.default_rng(seed)
    margins = rng.normal(0, 2.5, pairs)
    return margins, rng.random(pairs) < 1 / (1 + np.exp(-(a * margins + b)))


def test_the_fit_equals_unpenalised_logistic_regression():
    from sklearn.linear_model import LogisticRegression

    margins, labels = sampled(4000)
    oracle = LogisticRegression(C=np.inf, tol=1e-12, max_iter=1000).fit(margins[:, None], labels)
    fitted = fit_platt(margins, labels)
    assert fitted.a == pytest.approx(oracle.coef_[0, 0], rel=1e-5)
    assert fitted.b == pytest.approx(oracle.intercept_[0], rel=1e-5)


def test_no_prior_shift_is_added_to_a_natural_cross_product():
    margins, labels = sampled()
    probabilities = fit_platt(margins, labels).probability(margins)
    assert probabilities.mean() == pytest.approx(labels.mean(), abs=1e-10)


def test_weights_count_like_repeated_pairs():
    margins, labels = sampled(500)
    weights = np.random.default_rng(1).integers(1, 4, 500)
    repeated = fit_platt(np.repeat(margins, weights), np.repeat(labels, weights))
    weighted = fit_platt(margins, labels, weights)
    assert (weighted.a, weighted.b) == pytest.approx((repeated.a, repeated.b), rel=1e-6)


def test_sampling_weights_undo_a_sampled_calibrate_split():
    margins, labels = sampled(200_000)
    keep = labels | (np.random.default_rng(2).random(labels.size) < 0.1)
    weights = np.where(labels, 1.0, 10.0)[keep]
    fitted = fit_platt(margins[keep], labels[keep], weights)
    assert (fitted.a, fitted.b) == pytest.approx((0.8, -3.0), abs=0.1)


def test_probabilities_do_not_round_to_one_where_float32_would():
    platt = Platt(1.0, 0.0)
    probabilities = platt.probability(np.array([-40.0, 0.0, 20.0, 25.0], np.float32))
    assert probabilities.dtype == np.float64
    assert probabilities[0] > 0
    assert probabilities[2] < probabilities[3] < 1.0
    assert platt.probability(np.array([-1000.0, 1000.0])).tolist() == [0.0, 1.0]


def test_margin_inverts_probability():
    platt = Platt(0.7, -2.0)
    assert platt.probability([platt.margin(0.3)])[0] == pytest.approx(0.3)
    with pytest.raises(ValueError, match="no margin"):
        Platt(0.0, 1.0).margin(0.5)


def test_extreme_margins_still_converge():
    margins, labels = sampled(3000)
    fitted = fit_platt(margins * 1e4 + 1e6, labels)
    direct = fit_platt(margins, labels)
    assert fitted.a * 1e4 == pytest.approx(direct.a, rel=1e-6)


@pytest.mark.parametrize(
    ("margins", "labels", "message"),
    [
        ([1.0, 2.0, 3.0], [True, True, True], "both labels"),
        ([], [], "both labels"),
        ([1.0, 2.0, 3.0], [False, False, True], "separate"),
        ([1.0, np.nan], [False, True], "finite"),
        ([1.0, 2.0], [False], "not one of each"),
    ],
)
def test_a_map_that_cannot_be_fitted_is_refused(margins, labels, message):
    with pytest.raises(ValueError, match=message):
        fit_platt(margins, labels)


def test_brier_and_calibration_error_have_their_textbook_values():
    assert brier([0.1, 0.9], [False, True]) == pytest.approx(0.01)
    assert expected_calibration_error([0.2] * 10, [True] * 2 + [False] * 8) == pytest.approx(0.0)
    assert expected_calibration_error([0.0] * 10, [True] * 5 + [False] * 5, bins=1) == pytest.approx(0.5)
    with pytest.raises(ValueError, match="no judged pair"):
        expected_calibration_error([], [])


def test_a_fitted_map_is_calibrated_on_fresh_pairs():
    margins, labels = sampled()
    fresh, truth = sampled(seed=9)
    assert expected_calibration_error(fit_platt(margins, labels).probability(fresh), truth) < 0.01
