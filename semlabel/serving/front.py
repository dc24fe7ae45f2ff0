"""A front process: takes HTTP and gRPC requests, parses and tokenises them, and asks the engine.

Any number of fronts share the listening sockets; they keep nothing of a request. Deliberately does not load weights.
"""

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable
from typing import Any

import uvicorn
from fastapi import FastAPI
from grpc_health.v1 import health

from semlabel.serving.access import Access
from semlabel.serving.answers import Answers
from semlabel.serving.engine_client import EngineClient
from semlabel.serving.http_api import build_app
from semlabel.serving.http_protocol import protocol_with_time_limits
from semlabel.serving.metrics import Metrics
from semlabel.serving.plan import Plan
from semlabel.serving.processes import configure_logging, end_with_parent, refusal
from semlabel.serving.rpc_api import LabelerService, build_server, set_health
from semlabel.serving.updates import Updates

_HEALTH_EVERY_SECONDS = 0.5


def assemble(plan: Plan, access: Access, refuse: Callable[[str], None] = lambda reason: None) -> FastAPI:
    """The application of one front; the engine client and the gRPC server live as long as it does.

    `refuse` is told when what the engine loaded first cannot be answered with.
    """
    metrics = Metrics()

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with contextlib.AsyncExitStack() as stack:
            if updates is not None:
                stack.push_async_callback(updates.close)
                await stack.enter_async_context(_running(updates.seal_in_time()))
            await stack.enter_async_context(_running(answers.engine.follow()))
            if plan.grpc is not None:
                service = LabelerService(answers, access, metrics)
                server, _, healthy = build_server(service, plan.grpc, plan.tls, plan.limits)
                await server.start()
                stack.push_async_callback(server.stop, plan.limits.drain_seconds)

                await stack.enter_async_context(_running(_tell(answers, healthy)))
            await stack.enter_async_context(_running(_measure(answers, metrics)))
            yield

    # Nobody may persist without a token of its own, so without one there is nothing to write.
    updates = Updates(plan.spool) if plan.spool is not None and access.persist is not None else None
    answers = Answers(EngineClient(plan, refuse), plan.limits, updates)
    return build_app(answers, access, metrics, lifespan)


async def _tell(answers: Answers, healthy: health.aio.HealthServicer) -> None:
    while True:
        await set_health(healthy, answers.engine.served is not None)
        await asyncio.sleep(_HEALTH_EVERY_SECONDS)


async def _measure(answers: Answers, metrics: Metrics) -> None:
    """Keep the gauges right in every front: whichever is asked for the metrics adds up what all of them say."""
    while True:
        metrics.gauge(answers.engine.waiting, answers.engine.served is not None)
        await asyncio.sleep(_HEALTH_EVERY_SECONDS)


@contextlib.asynccontextmanager
async def _running(work: Any) -> AsyncIterator[None]:
    """A task beside the block; if it fails the process ends, and the supervisor starts another one."""
    task = asyncio.create_task(work)

    def end(done: "asyncio.Task[Any]") -> None:
        if not done.cancelled() and done.exception() is not None:
            os.kill(os.getpid(), signal.SIGTERM)

    task.add_done_callback(end)
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def configuration(plan: Plan, app: FastAPI) -> uvicorn.Config:
    """How uvicorn serves a front."""
    tls: dict[str, Any] = {}
    if plan.tls is not None:
        tls = {"ssl_certfile": plan.tls.certificate, "ssl_keyfile": plan.tls.key}
        if plan.tls.clients is not None:
            import ssl

            tls |= {"ssl_ca_certs": str(plan.tls.clients), "ssl_cert_reqs": ssl.CERT_REQUIRED}
    return uvicorn.Config(
        app,
        http=protocol_with_time_limits(plan.limits.header_seconds),
        ws="none",
        lifespan="on",
        access_log=False,
        log_config=None,
        log_level="warning",
        server_header=False,
        limit_concurrency=plan.limits.connections,
        timeout_keep_alive=int(plan.limits.header_seconds),
        timeout_graceful_shutdown=int(plan.limits.drain_seconds),
        **tls,
    )


def main() -> None:
    """Run a front of the plan in the first argument on the inherited socket of the second."""
    plan = Plan.model_validate_json(sys.argv[1])
    configure_logging("front")
    end_with_parent()
    os.umask(0o077)
    listening = socket.socket(fileno=int(sys.argv[2]))
    app = assemble(plan, Access.from_environment(os.environ), refusal(plan, sys.argv))
    server = uvicorn.Server(configuration(plan, app))
    server.run(sockets=[listening])


if __name__ == "__main__":
    main()
