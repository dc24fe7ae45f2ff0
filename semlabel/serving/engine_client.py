"""A front's side of the engine: what it serves now, and works sent to it.

Keeps one `Served` up to date from the engine's state and the current publication. Knows nothing of HTTP or of the
services that clients call.
"""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from semlabel.errors import in_one_line
from semlabel.serving.engine import CHANNEL_OPTIONS
from semlabel.serving.faults import Fault, Kind
from semlabel.serving.plan import Plan
from semlabel.serving.proto import engine_pb2, engine_pb2_grpc
from semlabel.serving.served import FrontLabeler, PublishedCatalog, Served
from semlabel.serving.wire import Work, packed

log = logging.getLogger(__name__)

_RETRY_SECONDS = 0.2
_SILENT_SECONDS = 30.0  # it speaks at least once a poll


class EngineClient:
    """The engine behind one socket. `served` is None while it cannot answer; `waiting` is its queue's length.

    `refuse` is told when what the engine loaded first cannot be answered with.
    """

    def __init__(self, plan: Plan, refuse: Callable[[str], None] = lambda reason: None) -> None:
        self._plan, self._refuse = plan, refuse
        self._stub: engine_pb2_grpc.EngineStub | None = None
        self._labelers: dict[str, FrontLabeler] = {}
        self._catalog: PublishedCatalog | None = None
        self._reachable = False
        self._served: Served | None = None
        self.draining = False
        self.problem = "the engine is starting"
        self.waiting = 0

    @property
    def served(self) -> Served | None:
        """What is answered with now, None while nothing is."""
        return self._served if self._reachable else None

    def needed(self, labeler_digest: str = "") -> Served:
        """What is answered with; with a digest, only by that labeler. Raises Fault."""
        served = self.served
        if served is None:
            raise Fault(Kind.UNAVAILABLE, f"not ready: {self.problem}", retry_after=2.0)
        if labeler_digest in ("", served.labeler.digest):
            return served
        beside = self._labelers.get(labeler_digest)
        if beside is None:
            raise Fault(Kind.CONFLICT, f"labeler {labeler_digest[:12]} is not loaded here", "labeler_digest")
        return Served(beside, served.catalog, served.loaded)

    async def follow(self) -> None:
        """Keep `served` as the engine and the publication say, for ever."""
        # A channel belongs to the event loop it is made in.
        options = [*CHANNEL_OPTIONS, ("grpc.initial_reconnect_backoff_ms", 100), ("grpc.max_reconnect_backoff_ms", 500)]
        async with grpc.aio.insecure_channel(f"unix:{self._plan.socket}", options=options) as channel:
            self._stub = stub = engine_pb2_grpc.EngineStub(channel)
            while True:
                states = stub.Watch(engine_pb2.Nothing())
                try:
                    await self._take_all(states)
                except grpc.aio.AioRpcError as error:
                    self._lose(f"the engine is gone: {error.code().name}", "the engine is being started")
                except TimeoutError:
                    states.cancel()
                    silent = f"the engine has said nothing for {_SILENT_SECONDS:.0f} s"
                    self._lose(silent, silent)
                await asyncio.sleep(_RETRY_SECONDS)

    async def score(self, work: Work, seconds: float) -> bytes:
        """The engine's values of one work. Raises Fault."""
        if self._stub is None:
            raise Fault(Kind.UNAVAILABLE, f"not ready: {self.problem}", retry_after=2.0)
        try:
            readings = await self._stub.Score(packed(work), timeout=seconds)
        except grpc.aio.AioRpcError as error:
            told = dict(error.trailing_metadata() or ())
            retry_after = float(told["retry-after"]) if "retry-after" in told else None
            kind = Kind.of_code(error.code().name)
            if kind is Kind.UNAVAILABLE:
                raise Fault(kind, "the engine cannot answer now; send the request again", retry_after=2.0) from None
            raise Fault(kind, error.details() or kind.code, retry_after=retry_after) from None
        return bytes(readings.values)

    async def _take_all(self, states: Any) -> None:
        """Take state after state. Raises AioRpcError when the engine is gone, TimeoutError when it hangs."""
        while True:
            async with asyncio.timeout(_SILENT_SECONDS):
                state = await states.read()
            if state is grpc.aio.EOF:
                return
            await self._take(state)

    def _lose(self, event: str, problem: str) -> None:
        if self._reachable:
            log.error("%s", event)
        self._reachable, self.problem = False, problem

    async def _take(self, state: engine_pb2.State) -> None:
        self.draining, self.waiting = state.draining, state.waiting
        if not state.current or state.draining:
            self._reachable = False
            self.problem = state.problem or ("shutting down" if state.draining else "no labeler is loaded yet")
            return
        problem = ""
        try:
            self._served = await asyncio.to_thread(self._next, state)
        except Exception as error:
            # Whatever a labeler's or a publication's files hold: the front goes on with what it has.
            problem = in_one_line(error)
            if problem != self.problem:
                log.error("not switched: %s", problem)
            if self._served is None:
                self._refuse(problem)
        self.problem = problem
        self._reachable = self._served is not None

    def _next(self, state: engine_pb2.State) -> Served:
        held = {
            loaded.labeler_digest: self._labelers.get(loaded.labeler_digest)
            or FrontLabeler.load(Path(loaded.path), loaded.vocabulary, loaded.longest_prompt)
            for loaded in state.loaded
        }
        catalog = self._published(state.current)
        self._labelers, self._catalog = held, catalog
        known = self._served
        if known and known.labeler is held[state.current] and known.catalog is catalog and known.loaded == tuple(held):
            return known
        served = Served(held[state.current], catalog, tuple(held))
        if catalog is not None:
            _ = served.catalog_items  # tokenised before it is served, and a candidate that does not fit is said here
        log.info(
            "answering with labeler %s, %d candidates", served.labeler.digest[:12], len(catalog.texts) if catalog else 0
        )
        return served

    def _published(self, digest: str) -> PublishedCatalog | None:
        """The current publication's catalog once it is of the labeler that answers; until then the one before."""
        publication = self._plan.pointer.publication()
        if publication is None:
            return None
        if self._catalog is not None and self._catalog.version == publication["version"]:
            return self._catalog
        follows_publication = self._plan.pointer.labeler is None
        if follows_publication and publication["labeler_digest"] != digest:
            return self._catalog
        return PublishedCatalog.load(publication)
