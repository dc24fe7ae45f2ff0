"""Precision by pairs flagged: what a promise is chosen by is counted right, and says how little it knows."""

import numpy as np
import pytest

from semlabel.by_flagged import quality_by_flagged


def test_precision_and_recall_are_those_of_the_largest_margins():
    margins = np.arange(100, 0, -1.0)
    labels = margins > 70  # the 30 largest
    rows = quality_by_flagged([f"e{n % 10}" for n in range(100)], labels, margins, resamples=50)
    assert [(row["flagged"], row["precision"], row["recall"]) for row in rows] == [
        (25, 1.0, pytest.approx(25 / 30)),
        (50, 0.6, 1.0),
    ]
    assert (rows[0]["low"], rows[0]["high"]) == (1.0, 1.0)
    assert rows[1]["low"] <= 0.6 <= rows[1]["high"]


def test_an_interval_is_over_entities_and_not_over_pairs():
    # Of ten entities every pair of five is right, and none of the others.
    entities = np.repeat(np.arange(10), 10)
    rows = quality_by_flagged(entities, entities < 5, np.ones(100))
    (row,) = rows
    assert (row["flagged"], row["precision"], row["recall"]) == (100, 0.5, 1.0)
    assert row["high"] - row["low"] > 0.5


def test_pairs_that_tie_are_flagged_together_and_no_row_comes_twice():
    margins = np.repeat([2.0, 1.0, 0.0], [60, 30, 110])
    rows = quality_by_flagged(np.arange(200) % 20, np.arange(200) % 3 == 0, margins, resamples=20)
    assert [row["flagged"] for row in rows] == [60, 200]


@pytest.mark.parametrize(("pairs", "labels"), [(24, True), (100, False)])
def test_too_few_pairs_or_no_yes_give_no_row(pairs, labels):
    assert quality_by_flagged(range(pairs), np.full(pairs, labels), np.ones(pairs)) == []
