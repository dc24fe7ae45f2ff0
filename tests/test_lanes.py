"""Forwards side by side: results in order, threads shared out and given back, nothing begun that nobody wants."""

import threading
from contextlib import closing
from functools import partial

import pytest
import torch

from semlabel.lanes import dealt_out, side_by_side


@pytest.fixture
def four_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


def test_two_calls_really_are_at_work_at_once_and_share_the_threads_out(four_threads):
    both_here = threading.Barrier(2, timeout=60)

    def call():
        both_here.wait()
        return torch.get_num_threads()

    assert list(side_by_side([call, call], lanes=2)) == [2, 2]


def test_a_lane_computes_with_its_own_threads_after_another_was_set_up(four_threads):
    first_done = threading.Event()

    def first():
        torch.ones(2**16).sum()  # the first parallel work of a thread is where torch looks up its number
        first_done.set()
        return torch.get_num_threads()

    def second():
        assert first_done.wait(60)
        torch.ones(2**16).sum()
        return torch.get_num_threads()

    assert list(side_by_side([second, first], lanes=2)) == [2, 2]


def test_results_come_in_the_order_of_the_calls_whoever_is_done_first():
    second_done = threading.Event()
    calls = [lambda: second_done.wait(60), lambda: second_done.set() or "second"]
    assert list(side_by_side(calls, lanes=2)) == [True, "second"]


def test_threads_are_given_back_to_the_caller_and_to_threads_that_come_later(four_threads):
    list(side_by_side([lambda: 1] * 5, lanes=4))
    later = []
    thread = threading.Thread(target=lambda: later.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    assert (torch.get_num_threads(), later) == (4, [4])


def test_an_exception_ends_the_iteration_and_threads_are_given_back(four_threads):
    def broken():
        raise ZeroDivisionError

    found = side_by_side([lambda: "good", broken, lambda: "never seen"], lanes=2)
    assert next(found) == "good"
    with pytest.raises(ZeroDivisionError):
        next(found)
    assert torch.get_num_threads() == 4


def test_calls_that_nobody_waits_for_any_more_are_never_made():
    made = []
    go = threading.Event()

    def call(number):
        made.append(number)
        if number:
            go.wait(60)
        return number

    found = side_by_side([lambda number=number: call(number) for number in range(50)], lanes=2)
    with closing(found):
        assert next(found) == 0
        threading.Timer(0.05, go.set).start()
    assert len(made) <= 3


@pytest.mark.parametrize(("calls", "lanes"), [(3, 1), (1, 8), (0, 8)])
def test_one_lane_or_one_call_needs_no_other_thread(calls, lanes):
    found = list(side_by_side([threading.get_ident] * calls, lanes))
    assert found == [threading.get_ident()] * calls


@pytest.mark.parametrize(("tasks", "lanes", "parts"), [
    (7, 3, {0: [0, 3, 6], 1: [1, 4], 2: [2, 5]}),
    (2, 4, {0: [0], 1: [1]}),
    (3, 1, {0: [0, 1, 2]}),
    (0, 2, {}),
])  # fmt: skip
def test_tasks_dealt_out_go_to_the_lanes_in_turn_and_results_come_in_the_order_of_the_tasks(tasks, lanes, parts):
    given = {}

    def lane(place, part):
        given[place] = list(part)
        return [(place, task) for task in part]

    found = dealt_out(range(tasks), [partial(lane, place) for place in range(lanes)])
    assert found == [(task % lanes, task) for task in range(tasks)]
    assert given == parts


@pytest.mark.parametrize("lanes", [1, 2])
def test_a_lane_that_gives_another_number_of_results_than_it_was_given_tasks_is_an_error(lanes):
    with pytest.raises(ValueError, match="zip"):
        dealt_out([1, 2, 3], [lambda part: [*part, 4]] * lanes)
