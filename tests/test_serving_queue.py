"""The engine's queue: what meets in a turn, and whose an error is."""

import asyncio

import pytest

from semlabel.serving.batching import Queue, Request
from semlabel.serving.faults import Kind


def broken():
    raise ZeroDivisionError


def answered(*asked):
    """The answers to requests (jobs, tokens) that wait together, or their errors; and the rounds of every turn."""
    turns = []

    async def run_turn(calls):
        turns.append(len(calls))
        return [call() for call in calls]

    async def served():
        queue = Queue(run_turn, batch_tokens=100, window_seconds=0.01, waiting_requests=9, waiting_tokens=10**6)
        deadline = asyncio.get_running_loop().time() + 60
        answers = [asyncio.ensure_future(queue.submit(Request(*one, deadline, 0))) for one in asked]
        running = asyncio.ensure_future(queue.run())
        found = await asyncio.gather(*answers, return_exceptions=True)
        running.cancel()
        return found

    return asyncio.run(served()), turns


def test_the_rounds_of_a_turn_are_handed_over_together_and_an_error_is_the_answer_of_its_request_alone():
    (first, second, third), turns = answered(
        ([lambda: "a", lambda: "b"], [40, 40]), ([broken], [10]), ([lambda: "c"], [50])
    )
    assert (first, third) == (["a", "b"], ["c"])
    assert isinstance(second, ZeroDivisionError)
    assert turns == [3, 1]  # 40 + 10 + 50 tokens; the second round of the first request waits for the next turn


@pytest.mark.parametrize("rounds", [1, 2])
def test_a_round_longer_than_the_budget_has_a_turn_of_its_own(rounds):
    assert answered(([lambda: 1] * rounds, [200] * rounds)) == ([[1] * rounds], [1] * rounds)


def test_what_waits_is_bounded_by_the_numbers_it_keeps_too():
    async def served():
        queue = Queue(None, batch_tokens=1, window_seconds=0.0, waiting_requests=9, waiting_tokens=1000)
        deadline = asyncio.get_running_loop().time() + 60

        def submitted(numbers):
            return asyncio.ensure_future(queue.submit(Request([lambda: 1], [1], deadline, numbers)))

        # Alone a request is taken however large it is: there are limits of its own for that.
        first, refused, fitting = submitted(900), submitted(101), submitted(100)
        found = await asyncio.wait([refused], timeout=30)
        for task in (first, fitting):
            assert not task.done()
            task.cancel()
        return found[0].pop().exception()

    fault = asyncio.run(served())
    assert (fault.kind, fault.retry_after) == (Kind.BUSY, 1.0)
