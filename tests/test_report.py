"""Plots: always a small image, whatever the numbers are; the numbers behind them are right."""

import numpy as np
import pytest

from semlabel import report

PNG = b"\x89PNG\r\n\x1a\n"
RNG = np.random.default_rng(3)
MARGINS = RNG.normal(size=10_000)
LABELS = RNG.random(10_000) < 0.02
STEPS = [
    {"cut": 2.0, "flagged": 60, "tp": 40, "point": 0.66, "bound": 0.55, "ok": True},
    {"cut": 1.5, "flagged": 90, "tp": 50, "point": 0.55, "bound": 0.47, "ok": False},
    {"cut": 9.0, "flagged": 0, "tp": 0, "point": None, "bound": None, "ok": False},
]


@pytest.mark.parametrize(
    "image",
    [
        pytest.param(lambda: report.loss_curve(list(RNG.random(5_000))), id="loss"),
        pytest.param(lambda: report.loss_curve([(10, 0.7), (20, 0.5)]), id="loss-by-step"),
        pytest.param(lambda: report.margin_histogram(MARGINS, LABELS, 0.4), id="margins"),
        pytest.param(lambda: report.precision_recall(LABELS, MARGINS, 0.4, {"floor": 0.5}), id="precision-recall"),
        pytest.param(lambda: report.reliability(1 / (1 + np.exp(-MARGINS)), LABELS), id="reliability"),
        pytest.param(lambda: report.reliability(1 / (1 + np.exp(-MARGINS)), LABELS, before=LABELS), id="before-after"),
        pytest.param(lambda: report.prediction_histogram(range(41), [5] * 40, 3.0), id="predictions"),
        pytest.param(lambda: report.walk(STEPS, 0.5), id="walk"),
    ],
)
def test_no_plot_outgrows_the_event_log(image):
    png = image()
    assert png.startswith(PNG)
    assert len(png) <= report.MAX_BYTES


@pytest.mark.parametrize(
    "image",
    [
        pytest.param(lambda: report.loss_curve([]), id="no-steps"),
        pytest.param(lambda: report.margin_histogram([], []), id="no-pairs"),
        pytest.param(lambda: report.margin_histogram([1.0, 1.0], [True, True]), id="one-value"),
        pytest.param(lambda: report.precision_recall([False, False], [0.1, 0.2], 0.0), id="no-positives"),
        pytest.param(lambda: report.precision_recall([True], [0.1], 9.0), id="nothing-flagged"),
        pytest.param(lambda: report.reliability([0.5], [True]), id="one-pair"),
        pytest.param(lambda: report.prediction_histogram([0, 1], [0]), id="no-predictions"),
        pytest.param(lambda: report.walk([]), id="no-cuts"),
    ],
)
def test_a_plot_of_too_little_data_never_stops_a_run(image):
    assert image().startswith(PNG)


def test_labels_of_another_length_are_not_plotted_shifted():
    with pytest.raises(ValueError, match="one length"):
        report.margin_histogram([0.1, 0.2], [True])


def test_tied_margins_are_flagged_together():
    recall, precision = report._precision_recall(np.array([2.0, 1.0, 1.0, 0.0]), np.array([True, True, False, False]))
    assert recall.tolist() == [0.5, 1.0, 1.0]
    assert precision.tolist() == [1.0, 2 / 3, 0.5]


def test_a_curve_of_precision_begins_at_its_first_yes():
    recall, precision = report._precision_recall(np.array([3.0, 2.0, 1.0]), np.array([False, True, True]))
    assert recall.tolist() == [0.5, 1.0]
    assert precision.tolist() == [0.5, 2 / 3]


def test_a_calibration_plot_shows_the_pairs_that_are_labeled_yes_and_not_only_those_near_zero():
    probability = np.array([0.9, 0.001, 0.5, 0.001, 0.5, 0.001, 0.1])
    groups = report._of_equal_yes(probability, 2)
    assert [probability[group].tolist() for group in groups] == [[0.001, 0.001, 0.001, 0.1, 0.5, 0.5], [0.9]]
    assert sorted(np.concatenate(groups).tolist()) == list(range(7))
    assert [group.size for group in report._of_equal_yes(np.zeros(3), 10)] == [3]
    assert [group.tolist() for group in report._of_equal_yes(np.array([0.7]), 10)] == [[0]]


def test_the_smoothed_loss_is_the_mean_of_the_last_steps():
    assert report._running_mean(np.array([4.0, 2.0, 0.0, 1.0]), 2).tolist() == [4.0, 3.0, 1.0, 0.5]


def test_an_inline_image_decodes_to_the_same_bytes():
    text = report.inline_image(PNG, "loss")
    assert text == "![loss](data:image/png;base64,iVBORw0KGgo=)"
