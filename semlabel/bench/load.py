"""Load on a server over loopback: requests one after another, or an open loop that sends whether answers come or not.

In an open loop the arrivals are a Poisson process, drawn beforehand; a request's time counts from when it was due, so
a client or a server that falls behind cannot make itself look quick. Knows the gRPC call; deliberately does not know
models, methods or what a rate is tried for.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio
import numpy as np

from semlabel.serving.proto import labeler_pb2, labeler_pb2_grpc

_CHANNELS = 4
_LONGEST_SECONDS = 120.0
_HEAD_START_SECONDS, _PAUSE_SECONDS = 0.05, 0.5


@dataclass(frozen=True)
class Point:
    """What came of one rate. Times are seconds from when a request was due; None where that one was never answered.

    `requests` were due in the measured time, `answered` of them in time. `late_p99` is how late the client itself was.
    """

    requests: int
    answered: int
    p50: float | None
    p95: float | None
    p99: float | None
    late_p99: float

    @property
    def achieved(self) -> float:
        """The share of the requests that was answered in time."""
        return self.answered / self.requests if self.requests else 0.0


def one_after_another(address: str, requests: Sequence[labeler_pb2.LabelRequest]) -> list[float]:
    """Seconds of every request, each sent when the one before it was answered. Raises grpc.RpcError."""
    with grpc.insecure_channel(address) as channel:
        stub = labeler_pb2_grpc.LabelerStub(channel)
        times = []
        for request in requests:
            clock = time.perf_counter()
            stub.Label(request, timeout=_LONGEST_SECONDS, wait_for_ready=True)
            times.append(time.perf_counter() - clock)
    return times


def settle(address: str, request: labeler_pb2.LabelRequest) -> None:
    """Return when the server answers again: what was too much for it may still be in its queue."""
    deadline = time.monotonic() + _LONGEST_SECONDS
    while True:
        try:
            one_after_another(address, [request])
            return
        except grpc.RpcError:
            if time.monotonic() >= deadline:
                raise
            time.sleep(_PAUSE_SECONDS)


def open_loop(
    address: str,
    requests: Iterator[labeler_pb2.LabelRequest],
    rate: float,
    warm_up_seconds: float,
    seconds: float,
    limit_seconds: float,
    seed: Sequence[int],
) -> Point:
    """Send at `rate` a second; those due after the warm-up count, and are in time until `limit_seconds` after the end.

    What is not answered by then is given up, so that its work leaves the server's queue.
    """
    due = _arrivals(rate, warm_up_seconds + seconds, seed)
    outcomes = asyncio.run(_sent(address, requests, due, warm_up_seconds + seconds + limit_seconds))
    counted = [outcome for when, outcome in zip(due, outcomes, strict=True) if when >= warm_up_seconds]
    late = [each.late for each in counted]
    times = np.array([np.inf if each.seconds is None else each.seconds for each in counted])
    return Point(
        requests=len(counted),
        answered=int(np.isfinite(times).sum()),
        p50=_percentile(times, 50),
        p95=_percentile(times, 95),
        p99=_percentile(times, 99),
        late_p99=float(np.percentile(late, 99)) if late else 0.0,
    )


@dataclass
class _Outcome:
    late: float = 0.0
    seconds: float | None = None


def _arrivals(rate: float, seconds: float, seed: Sequence[int]) -> list[float]:
    """When requests are due: of one seed the same at every rate but for the scale of time."""
    rng, due, moment = np.random.default_rng(list(seed)), [], 0.0
    while (moment := moment + float(rng.exponential(1 / rate))) < seconds:
        due.append(moment)
    return due


async def _sent(
    address: str, requests: Iterator[labeler_pb2.LabelRequest], due: Sequence[float], end: float
) -> list[_Outcome]:
    outcomes = [_Outcome() for _ in due]
    loop = asyncio.get_running_loop()
    async with _stubs(address) as stubs:
        start = loop.time() + _HEAD_START_SECONDS

        async def one(number: int, request: labeler_pb2.LabelRequest) -> None:
            outcomes[number].late = loop.time() - start - due[number]
            try:
                await stubs[number % len(stubs)].Label(request, timeout=_LONGEST_SECONDS)
            except grpc.aio.AioRpcError:
                return  # refused, too late or cut off: not answered
            outcomes[number].seconds = loop.time() - start - due[number]

        tasks = []
        for number, moment in enumerate(due):
            request = next(requests)
            await asyncio.sleep(max(0.0, start + moment - loop.time()))
            tasks.append(asyncio.create_task(one(number, request)))
        if tasks:
            _, pending = await asyncio.wait(tasks, timeout=max(0.0, start + end - loop.time()))
            for task in pending:
                task.cancel()
            await asyncio.gather(*pending, return_exceptions=True)
    return outcomes


@asynccontextmanager
async def _stubs(address: str) -> AsyncIterator[list[Any]]:
    """Several connections, so that several fronts get some each."""
    async with AsyncExitStack() as stack:
        options = [("grpc.use_local_subchannel_pool", 1)]
        channels = [
            await stack.enter_async_context(grpc.aio.insecure_channel(address, options=options))
            for _ in range(_CHANNELS)
        ]
        await asyncio.gather(*(channel.channel_ready() for channel in channels))
        yield [labeler_pb2_grpc.LabelerStub(channel) for channel in channels]


def _percentile(times: np.ndarray, share: float) -> float | None:
    """The time that `share` percent of the requests did not exceed: one that really was measured."""
    if not len(times):
        return None
    found = float(np.percentile(times, share, method="higher"))
    return found if np.isfinite(found) else None
