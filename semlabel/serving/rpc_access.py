"""Who may call over gRPC, asked before any message of a call is received.

Without a valid token a call is refused with its message unread, however large that is, and no stream stays open. Only
the health of the whole server is told to everybody, for probes. Knows tokens and gRPC; knows nothing of what the
methods do. Whether a token may persist is asked where a request says that it wants to.
"""

import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2

from semlabel.serving.access import Access
from semlabel.serving.faults import Fault
from semlabel.serving.metrics import Metrics

log = logging.getLogger(__name__)

_CHECK = f"/{health.SERVICE_NAME}/Check"


class TokenInterceptor(grpc.aio.ServerInterceptor):
    """Asks every call for its token. `counted`: the methods, as /SERVICE/CALL, whose refusals are measured."""

    def __init__(
        self, access: Access, healthy: health.aio.HealthServicer, metrics: Metrics, counted: Iterable[str]
    ) -> None:
        self._access, self._metrics, self._counted = access, metrics, frozenset(counted)
        self._probe = _probe(healthy)

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any
    ) -> grpc.RpcMethodHandler:
        """The method's own handler, or one that refuses."""
        try:
            self._access.check(authorization(handler_call_details.invocation_metadata))
        except Fault as fault:
            method = handler_call_details.method
            return self._probe if method == _CHECK else self._refusing(method, fault)
        return await continuation(handler_call_details)

    def _refusing(self, method: str, fault: Fault) -> grpc.RpcMethodHandler:
        async def refuse(_: Any, context: Any) -> None:
            if method in self._counted:
                call = method.rpartition("/")[2]
                self._metrics.observe(call, fault.kind.code, 0.0, 0)
                log.info("grpc %s %s items=0 ms=0.0", call, fault.kind.code)
            await context.abort(grpc.StatusCode[fault.kind.code], fault.message)

        # Taken for a stream, its message is received only when it is asked for.
        return grpc.stream_stream_rpc_method_handler(refuse)


def authorization(metadata: Iterable[tuple[str, str | bytes]] | None) -> str | None:
    """The Authorization header of a call."""
    found = dict(metadata or ()).get("authorization")
    return found if isinstance(found, str) else None


def _probe(healthy: health.aio.HealthServicer) -> grpc.RpcMethodHandler:
    """Tells how the whole server is, whatever service is asked for: that is in the message, which is not received."""

    async def check(_: Any, context: Any) -> health_pb2.HealthCheckResponse:
        return await healthy.Check(health_pb2.HealthCheckRequest(), context)

    return grpc.stream_unary_rpc_method_handler(check, None, health_pb2.HealthCheckResponse.SerializeToString)
