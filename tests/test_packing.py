"""Packing: who stands where, who sees whom, and where rounds are cut."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from semlabel.errors import PromptError
from semlabel.packing import Block, Layout, pack, rounds


def test_items_answer_in_the_callers_order_though_they_stand_sorted():
    packed = pack([10, 11], [[20, 21, 22], [30], [40]])
    assert packed.input_ids.tolist() == [[10, 11, 30, 40, 20, 21, 22]]
    assert packed.layout.positions.tolist() == [[0, 1, 2, 2, 2, 3, 4]]
    assert packed.layout.last.tolist() == [6, 2, 3]
    assert packed.layout.blocks == (Block(2, 2, 1), Block(4, 1, 3))
    assert (packed.layout.total, packed.layout.longest) == (7, 5)


def test_the_mask_shows_query_and_own_prefix_and_nothing_else():
    expected = [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [1, 1, 1, 0, 0],
        [1, 1, 0, 1, 0],
        [1, 1, 0, 1, 1],
    ]
    assert Layout(2, (2, 1)).mask().int().tolist() == expected


def test_a_window_counts_logical_positions_not_places_in_the_pack():
    expected = [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [0, 1, 1, 0, 0],
        [0, 1, 0, 1, 0],
        [0, 0, 0, 1, 1],
    ]
    assert Layout(2, (2, 1)).mask(window=2).int().tolist() == expected


@given(st.integers(0, 5), st.lists(st.integers(0, 4), max_size=5), st.none() | st.integers(1, 6))
def test_the_mask_is_that_of_the_single_prompts(query_length, lengths, window):
    if query_length == 0 and (not lengths or 0 in lengths):
        return
    layout = Layout(query_length, tuple(lengths))
    owners = [None] * query_length
    for block in layout.blocks:
        owners += [(block, number) for number in range(block.count) for _ in range(block.length)]
    positions = layout.positions[0].tolist()
    mask = layout.mask(window)
    for row in range(layout.total):
        for column in range(layout.total):
            visible = owners[column] is None or owners[column] == owners[row]
            near = window is None or positions[row] - positions[column] < window
            assert mask[row, column] == (visible and column <= row and near)


def test_an_empty_item_is_read_at_the_querys_last_token():
    packed = pack([7, 8, 9], [[], [1], []])
    assert packed.layout.last.tolist() == [2, 3, 2]
    assert packed.input_ids.tolist() == [[7, 8, 9, 1]]


@pytest.mark.parametrize("items", [[], [[]], [[1], []]])
def test_an_empty_query_with_an_empty_item_is_refused(items):
    with pytest.raises(PromptError, match="empty"):
        pack([], items)


def test_the_layout_survives_as_tensors():
    layout = Layout(3, (2, 0, 5, 2))
    again = Layout.from_tensors({**layout.tensors(), "labels": torch.tensor([1])})
    assert (again.query_length, again.lengths, again.order) == (3, (2, 0, 5, 2), layout.order)
    assert torch.equal(again.last, layout.last)


def test_the_bias_is_finite_or_minus_infinity_in_half_precision():
    bias = Layout(1, (1, 500)).bias(None, torch.bfloat16, torch.device("cpu"))
    assert set(bias.unique().tolist()) == {0.0, float("-inf")}
    assert (bias == 0).any(dim=1).all()  # no row without a token to see, so softmax has no 0/0


def test_rounds_end_at_either_limit_and_lose_nothing():
    items = [[0] * length for length in (3, 3, 4, 1, 1, 1, 8)]
    assert rounds(items, 3, 100, 5) == [range(0, 3), range(3, 6), range(6, 7)]
    assert rounds(items, 100, 13, 5) == [range(0, 2), range(2, 6), range(6, 7)]
    assert rounds([], 3, 100, 5) == []


def test_an_item_that_fits_no_round_is_refused_by_size():
    with pytest.raises(PromptError, match="a query of 5 tokens and an item of 9 exceed max_round_tokens = 13"):
        rounds([[0] * 8, [0] * 9], 100, 13, 5)
