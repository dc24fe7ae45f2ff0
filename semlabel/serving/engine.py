"""The engine: one process per device that holds the labelers and scores whole requests, prefill only.

Speaks `engine.proto` over a Unix socket; deadlines and cancelled calls come with the calls. Token ids in, margins or
probabilities out: deliberately does not know texts, thresholds, catalogs or clients.
"""

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio

from semlabel.errors import PromptError
from semlabel.serving.batching import Queue, Request
from semlabel.serving.faults import Fault, Kind
from semlabel.serving.plan import Plan
from semlabel.serving.processes import configure_logging, end_with_parent, refusal
from semlabel.serving.proto import engine_pb2, engine_pb2_grpc
from semlabel.serving.shelf import Shelf
from semlabel.serving.wire import Work, packed_margins, packed_probabilities, unpacked

if TYPE_CHECKING:
    from semlabel.labeler import Labeler
    from semlabel.scorer import Scorer

log = logging.getLogger(__name__)

MESSAGE_BYTES = 256 * 2**20
CHANNEL_OPTIONS = [("grpc.max_receive_message_length", MESSAGE_BYTES), ("grpc.max_send_message_length", MESSAGE_BYTES)]


class Engine(engine_pb2_grpc.EngineServicer):
    """The service. `load` makes a labeler of a directory; `refuse` is told when the very first one cannot be had."""

    def __init__(
        self, plan: Plan, load: "Callable[[Path], Labeler]", refuse: Callable[[str], None] = lambda reason: None
    ) -> None:
        self.shelf = Shelf(plan.pointer, load)
        self._plan = plan
        self._refuse = refuse
        self._scoring = ThreadPoolExecutor(1, thread_name_prefix="scoring")
        self._loading = ThreadPoolExecutor(1, thread_name_prefix="loading")
        limits = plan.limits
        self.queue: Queue[bytes] = Queue(
            lambda calls: asyncio.get_running_loop().run_in_executor(self._scoring, self._turn, calls),
            batch_tokens=limits.batch_tokens,
            window_seconds=limits.batch_window_seconds,
            waiting_requests=limits.waiting_requests,
            waiting_tokens=limits.waiting_tokens,
        )
        self._draining = False
        self._changed = asyncio.Event()

    async def Score(self, message: engine_pb2.Work, context: Any) -> engine_pb2.Readings:
        """Margins or probabilities of one request."""
        try:
            work = unpacked(message)
        except ValueError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        try:
            values = await self.queue.submit(self._request(work, context.time_remaining()))
        except Fault as fault:
            if fault.retry_after is not None:
                context.set_trailing_metadata((("retry-after", f"{fault.retry_after:.1f}"),))
            await context.abort(grpc.StatusCode[fault.kind.code], fault.message)
        except PromptError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        return engine_pb2.Readings(values=b"".join(values))

    async def Watch(self, _: engine_pb2.Nothing, context: Any) -> AsyncIterator[engine_pb2.State]:
        """The state, whenever it changes and at least once a poll."""
        while True:
            changed = self._changed
            yield self._state()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(changed.wait(), self._plan.poll_seconds)

    async def follow(self) -> None:
        """Keep the shelf as the pointer wants it, for ever."""
        while True:
            changed = await asyncio.get_running_loop().run_in_executor(self._loading, self.shelf.refresh)
            if changed:
                self._tell()
            if not self.shelf.current:
                self._refuse(self.shelf.problem)
            await asyncio.sleep(self._plan.poll_seconds)

    async def drain(self) -> None:
        """Answer what waits, take nothing new."""
        self._draining = True
        self._tell()
        await self.queue.drain()

    def _tell(self) -> None:
        # An event of its own for every change: a watcher that is cancelled in the middle leaves nothing locked.
        self._changed.set()
        self._changed = asyncio.Event()

    def _request(self, work: Work, seconds: float | None) -> Request[bytes]:
        labeler = self.shelf.loaded.get(work.labeler_digest)
        if labeler is None:
            raise Fault(Kind.CONFLICT, f"labeler {work.labeler_digest[:12] or '(none)'} is not loaded")
        scorer = labeler.scorer
        rounds = scorer.rounds(work.query, work.items)
        limits = self._plan.limits
        seconds = limits.request_seconds if seconds is None else min(seconds, limits.request_seconds)
        return Request(
            [partial(_score, scorer, work, members) for members in rounds],
            [len(work.query) + sum(len(work.items[item]) for item in members) for members in rounds],
            asyncio.get_running_loop().time() + seconds,
            work.numbers,
        )

    def _turn(self, calls: Sequence[Callable[[], Any]]) -> list[Any]:
        """The results of one turn's rounds: a round alone has all threads, several share them out."""
        from semlabel.lanes import side_by_side

        lanes = min((labeler.scorer.most_lanes for labeler in list(self.shelf.loaded.values())), default=1)
        return list(side_by_side(calls, lanes))

    def _state(self) -> engine_pb2.State:
        shelf = self.shelf
        return engine_pb2.State(
            current=shelf.current,
            loaded=[
                engine_pb2.Loaded(
                    labeler_digest=digest,
                    path=str(held.path),
                    vocabulary=held.scorer.vocabulary,
                    longest_prompt=held.scorer.longest_prompt,
                )
                for digest, held in shelf.loaded.items()
            ],
            problem=shelf.problem,
            draining=self._draining,
            waiting=self.queue.requests,
        )


def _score(scorer: "Scorer", work: Work, members: range) -> bytes:
    """One round of a request: exactly one forward."""
    items = work.items[members.start : members.stop]
    if work.labels is None:
        return packed_margins([scorer.margins(work.query, items)])
    from semlabel.readout import Labels

    asked = Labels(work.labels.of_items(members), work.over_vocabulary, work.temperature)
    return packed_probabilities(scorer.probabilities(work.query, items, asked))


async def serve(engine: Engine, plan: Plan) -> None:
    """Serve until SIGTERM, then answer what waits and return."""
    plan.socket.unlink(missing_ok=True)
    server = grpc.aio.server(options=CHANNEL_OPTIONS)
    engine_pb2_grpc.add_EngineServicer_to_server(engine, server)
    server.add_insecure_port(f"unix:{plan.socket}")
    await server.start()
    tasks = [asyncio.create_task(engine.follow()), asyncio.create_task(engine.queue.run())]
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    stopping = asyncio.create_task(stop.wait())
    done, _ = await asyncio.wait([*tasks, stopping], return_when=asyncio.FIRST_COMPLETED)
    for task in done - {stopping}:
        task.result()  # a loop that ended is a fault of the program: the supervisor starts another engine
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(engine.drain(), plan.limits.drain_seconds)
    await server.stop(1.0)
    for task in tasks:
        task.cancel()


def loader(plan: Plan) -> "Callable[[Path], Labeler]":
    """Loads a labeler as the plan says: verified and self-checked."""

    def load(path: Path) -> "Labeler":
        from semlabel.labeler import Labeler

        return Labeler.load(
            path,
            device=plan.device,
            method=plan.method,
            items_per_round=plan.items_per_round,
            max_round_tokens=plan.max_round_tokens,
            lanes=plan.lanes,
        )

    return load


def main() -> None:
    """Run the engine of the plan in the first argument."""
    plan = Plan.model_validate_json(sys.argv[1])
    configure_logging("engine")
    end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.umask(0o077)
    if plan.threads:
        import torch

        torch.set_num_threads(plan.threads)
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()

    async def run() -> None:
        await serve(Engine(plan, loader(plan), refusal(plan, sys.argv)), plan)

    asyncio.run(run())


if __name__ == "__main__":
    main()
