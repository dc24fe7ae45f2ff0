"""What a request costs in the server around the engine: Ray Serve, LitServe, and fronts with an engine behind a socket.

Every server parses the same JSON of one query and 64 items, turns the texts into ids (their bytes: no tokenizer, so
that the server is what is measured), moves them to another process that adds them up, and answers 64 numbers. Knows
nothing of semlabel. Needs an environment of its own: `pip install "ray[serve]" litserve fastapi uvicorn grpcio pyzmq
psutil`; run `python benchmarks/serving_comparison.py OUT.json`. Start-up is measured with files in the page cache.
"""

import asyncio
import http.client
import json
import os
import platform
import random
import subprocess
import sys
import tempfile
import threading
import time
from importlib.metadata import version
from pathlib import Path

SERVERS = ("fastapi_grpc", "fastapi_zmq", "litserve", "ray_serve")
ITEMS = [f"Maintain the records of department number {number}." for number in range(64)]
BODY = json.dumps({"query": "Keeps the records of a small office. " * 30, "items": ITEMS}).encode()
REQUESTS, PASSES, CLIENTS = 150, 3, 8
RATES, SECONDS = (25, 50, 75, 100, 150, 200, 300, 400, 600, 800, 1000, 1300, 1600, 2000), 5
PORTS = {name: 8801 + number for number, name in enumerate(SERVERS)}


def parsed(body: bytes) -> list[bytes]:
    """The texts of a request."""
    document = json.loads(body)
    return [document["query"].encode(), *(item.encode() for item in document["items"])]


def scored(texts: list[bytes]) -> list[float]:
    """What the engine answers: a number an item."""
    return [float(len(texts[0]) + len(text)) for text in texts[1:]]


# --8<-- ray_serve
def ray_serve(port: int) -> None:
    """Ray Serve: an ingress deployment and an engine deployment that batches."""
    import ray
    from ray import serve
    from starlette.requests import Request

    @serve.deployment(ray_actor_options={"num_cpus": 0})
    class Engine:
        @serve.batch(max_batch_size=8, batch_wait_timeout_s=0.0005)
        async def score(self, works: list[list[bytes]]) -> list[list[float]]:
            return [scored(work) for work in works]

    @serve.deployment(ray_actor_options={"num_cpus": 0})
    class Front:
        def __init__(self, engine) -> None:
            self.engine = engine

        async def __call__(self, request: Request) -> dict:
            return {"scores": await self.engine.score.remote(parsed(await request.body()))}

    ray.init(num_cpus=2, include_dashboard=False, logging_level="ERROR")
    serve.start(http_options={"port": port, "host": "127.0.0.1"})
    serve.run(Front.bind(Engine.bind()), route_prefix="/score", blocking=True)


# --8<-- fastapi_grpc
def fastapi_grpc(port: int) -> None:
    """A FastAPI front, the engine behind gRPC on a Unix socket."""
    import grpc.aio
    import uvicorn
    from fastapi import FastAPI, Request

    address = f"unix:{tempfile.mkdtemp()}/engine"
    engine = subprocess.Popen([sys.executable, __file__, "--engine", "fastapi_grpc", address])
    app = FastAPI()

    @app.post("/score")
    async def score(request: Request) -> dict:
        if not hasattr(app.state, "call"):
            app.state.call = grpc.aio.insecure_channel(address).unary_unary("/engine/Score")
        texts = parsed(await request.body())
        work = json.dumps([len(text) for text in texts]).encode()
        return {"scores": json.loads(await app.state.call(work + b"\n" + b"".join(texts)))}

    uvicorn.run(app, host="127.0.0.1", port=port, log_level="error")
    engine.kill()


def fastapi_grpc_engine(address: str) -> None:
    """Its engine."""
    import grpc
    import grpc.aio

    async def score(work: bytes, _) -> bytes:
        return json.dumps(scored(unpacked(work))).encode()

    async def main() -> None:
        server = grpc.aio.server()
        handler = grpc.unary_unary_rpc_method_handler(score)
        server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("engine", {"Score": handler})])
        server.add_insecure_port(address)
        await server.start()
        await server.wait_for_termination()

    asyncio.run(main())


# --8<-- fastapi_zmq
def fastapi_zmq(port: int) -> None:
    """A FastAPI front, the engine behind ZeroMQ on a Unix socket."""
    import uvicorn
    import zmq
    import zmq.asyncio
    from fastapi import FastAPI, Request

    address = f"ipc://{tempfile.mkdtemp()}/engine"
    engine = subprocess.Popen([sys.executable, __file__, "--engine", "fastapi_zmq", address])
    app = FastAPI()
    waiting: dict[bytes, asyncio.Future] = {}

    async def receive(socket) -> None:
        while True:
            number, answer = await socket.recv_multipart()
            waiting.pop(number).set_result(answer)

    @app.post("/score")
    async def score(request: Request) -> dict:
        if not hasattr(app.state, "socket"):
            app.state.socket = zmq.asyncio.Context.instance().socket(zmq.DEALER)
            app.state.socket.connect(address)
            app.state.receiving = asyncio.create_task(receive(app.state.socket))
        texts = parsed(await request.body())
        number = str(time.perf_counter_ns()).encode()
        waiting[number] = asyncio.get_running_loop().create_future()
        work = json.dumps([len(text) for text in texts]).encode() + b"\n" + b"".join(texts)
        answer = waiting[number]
        await app.state.socket.send_multipart([number, work])
        return {"scores": json.loads(await answer)}

    uvicorn.run(app, host="127.0.0.1", port=port, log_level="error")
    engine.kill()


def fastapi_zmq_engine(address: str) -> None:
    """Its engine."""
    import zmq

    socket = zmq.Context.instance().socket(zmq.ROUTER)
    socket.bind(address)
    while True:
        who, number, work = socket.recv_multipart()
        socket.send_multipart([who, number, json.dumps(scored(unpacked(work))).encode()])


# --8<-- litserve
def litserve(port: int) -> None:
    """LitServe, whose worker process is the engine."""
    import litserve as ls

    api = lit_api()(max_batch_size=8, batch_timeout=0.0005, api_path="/score")
    server = ls.LitServer(api, accelerator="cpu", timeout=30)
    server.run(port=port, host="127.0.0.1", generate_client_file=False, log_level="error")


def lit_api() -> type:
    """Its API class, which its worker must find by name."""
    import litserve as ls

    class Api(ls.LitAPI):
        def setup(self, device: str) -> None:
            pass

        def decode_request(self, request: dict) -> list[bytes]:
            return [request["query"].encode(), *(item.encode() for item in request["items"])]

        def predict(self, works: list[list[bytes]]) -> list[list[float]]:
            return [scored(work) for work in works]

        def batch(self, inputs: list) -> list:
            return inputs

        def unbatch(self, output: list) -> list:
            return output

        def encode_response(self, output: list[float]) -> dict:
            return {"scores": output}

    # Its worker is spawned, so the class must be found by name in this module.
    Api.__qualname__ = "Api"
    globals()["Api"] = Api
    return Api


# --8<-- measuring
def unpacked(work: bytes) -> list[bytes]:
    """The texts of a work that came over a socket."""
    lengths, _, content = work.partition(b"\n")
    texts, start = [], 0
    for length in json.loads(lengths):
        texts.append(content[start : start + length])
        start += length
    return texts


def ask(connection: http.client.HTTPConnection) -> float:
    """Seconds of one request, whose answer is checked."""
    started = time.perf_counter()
    connection.request("POST", "/score", BODY, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    body = answer.read()
    assert answer.status == 200 and len(json.loads(body)["scores"]) == len(ITEMS), body[:200]
    return time.perf_counter() - started


def started(name: str) -> tuple[subprocess.Popen, float]:
    """The process of a server, and the seconds until its first answer."""
    clock = time.perf_counter()
    # Ray gives its workers a lower priority than the other servers have: not here.
    given = os.environ | {"RAY_worker_niceness": "0"}
    process = subprocess.Popen([sys.executable, __file__, "--serve", name], stdout=subprocess.DEVNULL, env=given)
    while True:
        try:
            ask(http.client.HTTPConnection("127.0.0.1", PORTS[name], timeout=10))
            return process, time.perf_counter() - clock
        except (OSError, AssertionError, http.client.HTTPException):
            if time.perf_counter() - clock > 120 or process.poll() is not None:
                raise TimeoutError(f"{name} does not answer after {time.perf_counter() - clock:.0f} s") from None
            time.sleep(0.05)


def memory_mb(process: subprocess.Popen) -> float:
    """Proportional memory of a server's processes."""
    import psutil

    found = psutil.Process(process.pid)
    total = 0
    for member in [found, *found.children(recursive=True)]:
        total += member.memory_full_info().pss
    return total / 2**20


def together(name: str) -> tuple[list[float], float]:
    """Seconds of each request of several clients at once, and requests per second."""
    times: list[float] = []

    def client() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", PORTS[name])
        times.extend(ask(connection) for _ in range(REQUESTS // 2))

    clients = [threading.Thread(target=client) for _ in range(CLIENTS)]
    clock = time.perf_counter()
    for each in clients:
        each.start()
    for each in clients:
        each.join()
    return times, len(times) / (time.perf_counter() - clock)


class Line:
    """One open connection of the open-loop client: no library, so that the server gets the cores."""

    HEAD = (
        f"POST /score HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\nContent-Length: {len(BODY)}\r\n\r\n"
    )

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def ask(self) -> None:
        """One request, whose answer is checked."""
        self.writer.write(self.HEAD.encode() + BODY)
        head = (await self.reader.readuntil(b"\r\n\r\n")).lower()
        if b"transfer-encoding: chunked" in head:
            body = await self.reader.readuntil(b"0\r\n\r\n")
        else:
            body = await self.reader.readexactly(int(head.split(b"content-length:")[1].split(b"\r\n")[0]))
        assert head.startswith(b"http/1.1 200") and b"scores" in body, head


async def offered(name: str, rate: float) -> tuple[list[float], float]:
    """Seconds of each request from when it was due, and the share answered before the load ended plus a second."""
    loop, free, times = asyncio.get_running_loop(), [], []
    chance = random.Random(rate)
    due, moments = 0.0, []
    while due < SECONDS:
        due += chance.expovariate(rate)
        moments.append(due)
    begin = loop.time()

    async def one(moment: float) -> None:
        line = free.pop() if free else Line(*await asyncio.open_connection("127.0.0.1", PORTS[name]))
        await line.ask()
        free.append(line)
        times.append(loop.time() - begin - moment)

    tasks = []
    for moment in moments:
        await asyncio.sleep(max(0.0, begin + moment - loop.time()))
        tasks.append(asyncio.create_task(one(moment)))
    await asyncio.wait(tasks, timeout=1.0)
    share = len(times) / len(moments)
    await asyncio.gather(*tasks)
    return times, share


def knee(name: str) -> dict[str, object]:
    """The highest rate tried with a p99 of at most a second and 99 % answered, requests arriving by chance."""
    found: dict[str, object] = {"knee_requests_per_s": 0, "knee_p99_ms": None}
    for rate in RATES:
        times, share = asyncio.run(offered(name, rate))
        p99 = quantile(times, 0.99)
        if p99 > 1.0 or share < 0.99:
            break
        found = {"knee_requests_per_s": rate, "knee_p99_ms": round(p99 * 1e3, 2)}
    return found


def quantile(times: list[float], share: float) -> float:
    """The time below which a share of them lies."""
    return sorted(times)[min(len(times) - 1, int(share * len(times)))]


def lines(name: str) -> int:
    """Lines of this file that make a server."""
    sections = Path(__file__).read_text(encoding="utf-8").split("# --8<-- ")
    body = next(part for part in sections[1:] if part.startswith(name + "\n"))
    return sum(1 for line in body.splitlines()[1:] if line.strip())


def main(out: Path) -> None:
    """Measure every server that starts, and write the JSON."""
    running, cells = {}, {}
    for name in SERVERS:
        cells[name] = {"server": name, "lines": lines(name)}
        try:
            running[name], seconds = started(name)
        except TimeoutError as error:
            cells[name]["problem"] = str(error)
        else:
            cells[name]["start_s"] = round(seconds, 2)
    alone: dict[str, list[float]] = {name: [] for name in running}
    for _ in range(PASSES):  # in turns: whatever else runs on the machine meets all of them
        for name in running:
            connection = http.client.HTTPConnection("127.0.0.1", PORTS[name])
            alone[name] += [ask(connection) for _ in range(REQUESTS)]
    for name in running:
        times, rate = together(name)
        cells[name] |= {
            "alone_p50_ms": round(quantile(alone[name], 0.5) * 1e3, 2),
            "alone_p99_ms": round(quantile(alone[name], 0.99) * 1e3, 2),
            "clients": CLIENTS,
            "together_p50_ms": round(quantile(times, 0.5) * 1e3, 2),
            "together_p99_ms": round(quantile(times, 0.99) * 1e3, 2),
            "requests_per_s": round(rate, 1),
            "memory_mb": round(memory_mb(running[name]), 1),
        } | knee(name)
        print(cells[name], flush=True)
    packages = ("ray", "litserve", "fastapi", "uvicorn", "grpcio", "pyzmq")
    versions = {package: version(package) for package in packages}
    environment = {"machine": platform.machine(), "python": platform.python_version(), "versions": versions}
    environment["load"] = Path("/proc/loadavg").read_text().split()[:3]
    out.write_text(json.dumps({"environment": environment, "cells": list(cells.values())}, indent=1) + "\n")
    import psutil

    for process in running.values():
        members = [*psutil.Process(process.pid).children(recursive=True), process]
        for member in members:
            member.kill()


if "litserve" in sys.argv or __name__ == "__mp_main__":
    lit_api()

if __name__ == "__main__":
    if sys.argv[1] == "--serve":
        globals()[sys.argv[2]](PORTS[sys.argv[2]])
    elif sys.argv[1] == "--engine":
        globals()[f"{sys.argv[2]}_engine"](sys.argv[3])
    else:
        main(Path(sys.argv[1]))
