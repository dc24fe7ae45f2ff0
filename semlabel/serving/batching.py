"""The engine's queue: bounded, fair between requests, cut at rounds, mindful of deadlines and of clients that left.

A request is cut into rounds. Every turn takes the next round of one waiting request after the other until the token
budget is full, and hands them to one function as a whole; a long request never holds back a short one for longer than
a turn. Each round stays a forward of its own: in a shared one the shapes, and so the last bits of a margin, would
depend on who else is waiting. Knows nothing of models, labelers or transports.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, TypeVar

from semlabel.serving.faults import Fault, Kind

R = TypeVar("R")

_SMOOTHING = 0.2


@dataclass(eq=False)
class Request(Generic[R]):
    """One request: a job per round with its tokens; `deadline` is a time of the event loop's clock.

    `numbers` is how many it keeps in memory until it is answered: token ids, label ids, those of the answer.
    """

    jobs: Sequence[Callable[[], R]]
    tokens: Sequence[int]
    deadline: float
    numbers: int
    done: list[R] = field(default_factory=list)
    answer: "asyncio.Future[list[R]]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    @property
    def left(self) -> int:
        """Tokens of the rounds that are still to be scored."""
        return sum(self.tokens[len(self.done) :])


class Queue(Generic[R]):
    """Takes requests and has their rounds run, turn by turn: `run_turn` gives the results of its calls in order."""

    def __init__(
        self,
        run_turn: "Callable[[Sequence[Callable[[], R | Exception]]], asyncio.Future[list[R | Exception]]]",
        *,
        batch_tokens: int,
        window_seconds: float,
        waiting_requests: int,
        waiting_tokens: int,
    ) -> None:
        self._run_turn, self._batch_tokens, self._window = run_turn, batch_tokens, window_seconds
        self._most_requests, self._most_tokens = waiting_requests, waiting_tokens
        self._waiting: deque[Request[R]] = deque()
        self._arrived = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._closed = False
        self._tokens_per_second = 0.0

    @property
    def requests(self) -> int:
        """Requests that wait or are in the turn that runs."""
        return len(self._waiting)

    @property
    def tokens(self) -> int:
        """Tokens that are still to be scored."""
        return sum(request.left for request in self._waiting)

    async def submit(self, request: Request[R]) -> list[R]:
        """What the jobs give, in order. Raises Fault when the queue is full or closed or the deadline passes.

        A caller that is cancelled leaves: none of its rounds that were not begun is scored.
        """
        if self._closed:
            raise Fault(Kind.UNAVAILABLE, "the server is shutting down; send the request again", retry_after=1.0)
        tokens = self.tokens
        numbers = sum(waiting.numbers for waiting in self._waiting)
        if self._waiting and (
            len(self._waiting) >= self._most_requests
            or max(tokens + sum(request.tokens), numbers + request.numbers) > self._most_tokens
        ):
            raise Fault(Kind.BUSY, "too many requests are waiting; try again later", retry_after=self._estimate(tokens))
        if not request.jobs:
            return []
        self._waiting.append(request)
        self._idle.clear()
        self._arrived.set()
        return await request.answer

    async def run(self) -> None:
        """Run turns until the task is cancelled."""
        while True:
            await self._arrived.wait()
            if self._window and self.tokens < self._batch_tokens:
                await asyncio.sleep(self._window)
            turn = self._turn()
            if turn:
                await self._score(turn)
            self._forget_finished()

    async def drain(self) -> None:
        """Take no more requests and return when every waiting one is answered."""
        self._closed = True
        await self._idle.wait()

    def _turn(self) -> list[tuple[Request[R], int]]:
        """The rounds of the next turn: at least one, then as many as fit the budget, one request after the other."""
        self._forget_finished()
        turn: list[tuple[Request[R], int]] = []
        budget = self._batch_tokens
        begun = {id(request): len(request.done) for request in self._waiting}
        going = deque(self._waiting)
        while going:
            request = going.popleft()
            number = begun[id(request)]
            if turn and request.tokens[number] > budget:
                break
            turn.append((request, number))
            budget -= request.tokens[number]
            begun[id(request)] += 1
            if begun[id(request)] < len(request.jobs):
                going.append(request)
        served = {id(request) for request, _ in turn}
        # Who was served stands behind who was not.
        self._waiting = deque(sorted(self._waiting, key=lambda request: id(request) in served))
        return turn

    async def _score(self, turn: list[tuple[Request[R], int]]) -> None:
        clock = time.perf_counter()
        results = await self._run_turn([partial(_result_or_error, request.jobs[number]) for request, number in turn])
        rate = sum(request.tokens[number] for request, number in turn) / max(time.perf_counter() - clock, 1e-9)
        known = self._tokens_per_second
        self._tokens_per_second = rate if not known else known + _SMOOTHING * (rate - known)
        for (request, _), result in zip(turn, results, strict=True):
            if request.answer.done():
                continue
            if isinstance(result, Exception):
                request.answer.set_exception(result)
            else:
                request.done.append(result)
                if len(request.done) == len(request.jobs):
                    request.answer.set_result(request.done)

    def _forget_finished(self) -> None:
        now = asyncio.get_running_loop().time()
        for request in self._waiting:
            if now > request.deadline and not request.answer.done():
                request.answer.set_exception(Fault(Kind.DEADLINE, "the deadline passed before every item was scored"))
        self._waiting = deque(request for request in self._waiting if not request.answer.done())
        if not self._waiting:
            self._arrived.clear()
            self._idle.set()

    def _estimate(self, tokens: int) -> float:
        return max(1.0, tokens / self._tokens_per_second) if self._tokens_per_second else 1.0


def _result_or_error(job: Callable[[], R]) -> R | Exception:
    try:
        return job()
    except Exception as error:
        return error  # it is the answer of that request, and of no other
