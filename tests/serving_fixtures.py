"""A server small enough for a test: a tiny random labeler, an engine and a front in this process, over real sockets."""

import asyncio
import http.client
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc.aio
import uvicorn

from semlabel.labeler import Labeler, measure_known_pairs
from semlabel.labeler_files import write_checkpoint, write_labeler
from semlabel.prompt import PromptSpec
from semlabel.scorer import Scorer
from semlabel.serving.access import Access
from semlabel.serving.engine import CHANNEL_OPTIONS, Engine, loader
from semlabel.serving.front import assemble, configuration
from semlabel.serving.limits import Limits
from semlabel.serving.plan import Address, Plan
from semlabel.serving.pointer import Pointer
from semlabel.serving.proto import engine_pb2_grpc
from semlabel.serving.supervisor import bound
from tests.tiny import save_tiny

SPEC = PromptSpec("Profile: {entity}\nActivity: {candidate}\nAnswer:", max_query_tokens=64, max_item_tokens=48)
QUERY = "gives the patient medicine and keeps the records"


def make_labelers(
    folder: Path,
    thresholds: tuple[float | None, ...] = (0.25,),
    seed: int = 0,
    spec: PromptSpec = SPEC,
    **model_settings: Any,
) -> list[Path]:
    """Labeler directories on one tiny checkpoint, one per threshold; `model_settings` as for `tiny_config`."""
    model = save_tiny(folder / f"model-{seed}", seed=seed, **model_settings)
    scorer = Scorer.load(model, spec, precision="fp32", device="cpu", self_check=False)
    known = measure_known_pairs(scorer, [(QUERY, "give medicine"), ("joins metal parts", "keep records")])
    checkpoint = folder / f"checkpoint-{seed}"
    write_checkpoint(checkpoint, model, prompt=scorer.prompt, base_model="tiny", precision="fp32", known_pairs=known)
    made = []
    for threshold in thresholds:
        result = SimpleNamespace(threshold=threshold, policy={"min_precision": 0.5}, word="certified")
        calibration = {"platt_a": 2.0, "platt_b": -1.0} if threshold is not None else None
        made.append(write_labeler(folder / "labelers", checkpoint, result, calibration)[1])
    return made


@dataclass
class Running:
    """A server that runs: its ports, its engine, its loop."""

    http: int
    grpc: int
    engine: Engine
    loop: asyncio.AbstractEventLoop

    def post(self, path: str, document: Any, headers: dict[str, str] | None = None) -> tuple[int, Any, dict[str, str]]:
        """Status, JSON and headers of a POST; bytes are sent as they are."""
        body = document if isinstance(document, bytes) else json.dumps(document).encode()
        return self.ask("POST", path, body, {"Content-Type": "application/json"} | (headers or {}))

    def ask(
        self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> tuple[int, Any, dict[str, str]]:
        """Status, JSON (or bytes) and headers of a request on a connection of its own."""
        connection = http.client.HTTPConnection("127.0.0.1", self.http, timeout=60)
        try:
            connection.request(method, path, body, headers or {})
            answer = connection.getresponse()
            content = answer.read()
            found = dict(answer.getheaders())
            return answer.status, json.loads(content) if "json" in found.get("content-type", "") else content, found
        finally:
            connection.close()

    def scores(self, query: Any, items: Any, **fields: Any) -> list[list[float]]:
        """The scores of a request that must succeed."""
        status, document, _ = self.post("/v1/score", {"query": query, "items": items, **fields})
        assert status == 200, document
        return document["scores"]


@contextmanager
def running(
    pointer: Pointer,
    folder: Path,
    access: Access | None = None,
    load: Any = None,
    options: dict[str, Any] | None = None,
    **limits: Any,
) -> Iterator[Running]:
    """An engine and a front that answer, until the block ends."""
    listening, reserved = bound(Address("127.0.0.1", 0), True), bound(Address("127.0.0.1", 0), False)
    plan = Plan(
        pointer=pointer,
        socket=folder / "engine",
        http=Address("127.0.0.1", listening.getsockname()[1]),
        grpc=Address("127.0.0.1", reserved.getsockname()[1]),
        device="cpu",
        poll_seconds=0.05,
        limits=Limits(**{"drain_seconds": 5.0} | limits),
        **(options or {}),
    )
    ready, over = threading.Event(), threading.Event()
    found: dict[str, Any] = {}

    async def main() -> None:
        engine = Engine(plan, load or loader(plan))
        server = grpc.aio.server(options=CHANNEL_OPTIONS)
        engine_pb2_grpc.add_EngineServicer_to_server(engine, server)
        server.add_insecure_port(f"unix:{plan.socket}")
        await server.start()
        tasks = [asyncio.create_task(engine.follow()), asyncio.create_task(engine.queue.run())]
        front = uvicorn.Server(configuration(plan, assemble(plan, access or Access(None, None))))
        front.capture_signals = _no_signals  # those are for the main thread
        found.update(engine=engine, loop=asyncio.get_running_loop())
        serving = asyncio.create_task(front.serve(sockets=[listening]))
        ready.set()
        await asyncio.to_thread(over.wait)
        front.should_exit = True
        await serving
        await engine.drain()
        await server.stop(1.0)
        for task in tasks:
            task.cancel()

    thread = threading.Thread(target=lambda: asyncio.run(main()), daemon=True)
    thread.start()
    ready.wait(60)
    server = Running(plan.http.port, plan.grpc.port, found["engine"], found["loop"])
    try:
        yield server
    finally:
        over.set()
        thread.join(30)
        reserved.close()


@contextmanager
def _no_signals() -> Iterator[None]:
    yield


def until_ready(server: Running, seconds: float = 60.0) -> str:
    """Wait for the server to answer; the digest of the labeler it answers with."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        status, document, _ = server.ask("GET", "/readyz")
        if status == 200:
            return document["labeler_digest"]
        time.sleep(0.05)
    raise AssertionError(f"not ready: {document}")


def until(condition: Callable[[], Any], seconds: float = 30.0) -> None:
    """Wait for a condition to come true."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.02)


__all__ = ["QUERY", "SPEC", "Labeler", "Running", "make_labelers", "running", "until", "until_ready"]
