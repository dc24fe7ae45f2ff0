"""Several forwards at once on the CPU, each with its share of torch's threads.

Two threads in one forward of a small model wait for each other between its many short steps; two forwards with a
thread each do not, and share the weights. Knows calls and threads; deliberately does not know models or rounds.
"""

from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

import torch

_Task = TypeVar("_Task")
_Result = TypeVar("_Result")


def side_by_side(calls: Sequence[Callable[[], _Result]], lanes: int) -> Generator[_Result, None, None]:
    """The results of `calls` in their order, up to `lanes` of them at work at once.

    Fewer than two lanes or calls: one after the other in the caller's thread. The first exception ends the iteration;
    calls that have not begun by then, or when the iterator is closed, are never made, and those that have are waited
    for.
    """
    lanes = min(lanes, len(calls))
    if lanes < 2:
        yield from (call() for call in calls)
        return
    threads = torch.get_num_threads()
    share = max(1, threads // lanes)
    pool = ThreadPoolExecutor(lanes, thread_name_prefix="lane", initializer=_take, initargs=(share,))
    try:
        yield from pool.map(lambda call: call(), calls)
    finally:
        pool.shutdown(cancel_futures=True)
        # A thread that is new to torch is given what was set last, in whichever thread.
        torch.set_num_threads(threads)


def dealt_out(tasks: Sequence[_Task], lanes: Sequence[Callable[[Sequence[_Task]], Sequence[_Result]]]) -> list[_Result]:
    """The results of `tasks` in their order, each lane (at least one) at work on its part beside the others.

    A lane gives the results of the tasks it is given. Task n goes to lane n modulo the number of lanes, whichever lane
    is done first; a lane without a task is not called.
    """
    calls = [partial(lane, tasks[place :: len(lanes)]) for place, lane in enumerate(lanes[: len(tasks)])]
    results: dict[int, _Result] = {}
    for place, found in enumerate(side_by_side(calls, len(calls))):
        results.update(zip(range(place, len(tasks), len(lanes)), found, strict=True))
    return [results[number] for number in range(len(tasks))]


def _take(threads: int) -> None:
    # A thread's first look at torch's threads gives it the process's number, and would undo what was set before.
    torch.get_num_threads()
    torch.set_num_threads(threads)
