"""The gRPC side: `semlabel.v1.Labeler`, health and reflection.

Knows the messages and the answers. A message becomes the mapping its JSON would be, so that there is one check of
every field.
"""

import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from semlabel.serving.access import Access
from semlabel.serving.answers import Answers
from semlabel.serving.faults import Fault, invalid
from semlabel.serving.label_request import LabelRequest, label_request
from semlabel.serving.limits import Limits
from semlabel.serving.metrics import Metrics
from semlabel.serving.plan import Address, Tls
from semlabel.serving.proto import labeler_pb2
from semlabel.serving.room import Held
from semlabel.serving.rpc_access import TokenInterceptor, authorization
from semlabel.serving.score_request import ScoreRequest, refuse_many, score_request

log = logging.getLogger(__name__)

SERVICE, CALLS = "semlabel.v1.Labeler", ("Score", "Label")


class LabelerService:
    """The service that clients call."""

    def __init__(self, answers: Answers, access: Access, metrics: Metrics) -> None:
        self.access, self.metrics = access, metrics
        self._answers = answers

    async def Score(self, content: bytes, context: Any) -> labeler_pb2.ScoreResponse:
        """Probabilities of label tokens."""

        async def answer(held: Held) -> tuple[labeler_pb2.ScoreResponse, int]:
            asked, digest = await held.run(partial(_score_asked, content, self._answers.limits), here=True)
            found = await self._answers.score(asked, digest, self._seconds(context), held)
            response = labeler_pb2.ScoreResponse(
                scores=[labeler_pb2.Scores(scores=row) for row in found.scores],
                model=asked.model,
                prompt_tokens=found.prompt_tokens,
                labeler_digest=found.labeler_digest,
            )
            return response, found.items

        response: labeler_pb2.ScoreResponse = await self._watched("Score", content, context, answer)
        return response

    async def Label(self, content: bytes, context: Any) -> labeler_pb2.LabelResponse:
        """Labels of one entity's text."""

        async def answer(held: Held) -> tuple[labeler_pb2.LabelResponse, int]:
            asked, digest = await held.run(partial(_label_asked, content, self._answers.limits), here=True)
            if asked.persist:
                self.access.check(authorization(context.invocation_metadata()), persist=True)
            found = await self._answers.label(asked, digest, self._seconds(context), held)
            response = labeler_pb2.LabelResponse(
                entity_id=asked.entity_id,
                labels=[labeler_pb2.Label(**vars(label)) for label in found.labels],
                threshold=found.threshold,
                labeler_digest=found.labeler_digest,
                publication_version=found.publication_version,
                truncated=found.truncated,
                persisted=found.persisted,
            )
            return response, len(found.labels)

        response: labeler_pb2.LabelResponse = await self._watched("Label", content, context, answer)
        return response

    def _seconds(self, context: Any) -> float:
        left = context.time_remaining()
        most = self._answers.limits.request_seconds
        return most if left is None else min(float(left), most)

    async def _watched(self, call: str, content: bytes, context: Any, answer: Any) -> Any:
        started, status, items = time.perf_counter(), "CANCELLED", 0
        stack = ExitStack()
        held = stack.enter_context(self._answers.room.taken())
        # When the client has taken the answer, or has left.
        context.add_done_callback(lambda _: stack.close())
        try:
            held.body(len(content))
            response, items = await answer(held)
            status = "OK"
        except Fault as fault:
            status = fault.kind.code
            if fault.retry_after is not None:
                context.set_trailing_metadata((("retry-after", f"{fault.retry_after:.1f}"),))
            await context.abort(grpc.StatusCode[status], fault.message)
        finally:
            seconds = time.perf_counter() - started
            self.metrics.observe(call, status, seconds, items)
            log.info("grpc %s %s items=%d ms=%.1f", call, status, items, seconds * 1e3)
        return response


def build_server(
    service: LabelerService, address: Address, tls: Tls | None, limits: Limits
) -> tuple[grpc.aio.Server, int, health.aio.HealthServicer]:
    """A server that is not started yet, the port it listens on, and its health service."""
    options = [
        ("grpc.max_receive_message_length", limits.body_bytes),
        ("grpc.so_reuseport", 1),
        ("grpc.max_concurrent_streams", limits.streams),
        # Else streams are reset that a client was told it may open.
        ("grpc.http.overload_protection", 0),
        ("grpc.max_allowed_incoming_connections", limits.connections),
        ("grpc.server_handshake_timeout_ms", int(limits.header_seconds * 1e3)),
        # Who keeps a call open for ever loses it with its connection; others connect again, perhaps to another front.
        # What is under way then may take as long as any request may.
        ("grpc.max_connection_age_ms", int(limits.connection_seconds * 1e3)),
        ("grpc.max_connection_age_grace_ms", int(limits.request_seconds * 1e3)),
    ]
    healthy = health.aio.HealthServicer()
    tokens = TokenInterceptor(service.access, healthy, service.metrics, [f"/{SERVICE}/{call}" for call in CALLS])
    server = grpc.aio.server(interceptors=[tokens], options=options, maximum_concurrent_rpcs=limits.rpcs)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, _handlers(service)),))
    health_pb2_grpc.add_HealthServicer_to_server(healthy, server)
    reflection.enable_server_reflection([SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME], server)
    host = f"[{address.host}]" if ":" in address.host else address.host
    if tls is None:
        port = server.add_insecure_port(f"{host}:{address.port}")
    else:
        pair = [(tls.key.read_bytes(), tls.certificate.read_bytes())]
        clients = tls.clients.read_bytes() if tls.clients else None
        credentials = grpc.ssl_server_credentials(pair, clients, require_client_auth=clients is not None)
        port = server.add_secure_port(f"{host}:{address.port}", credentials)
    return server, port, healthy


def _handlers(service: LabelerService) -> dict[str, Any]:
    """The calls by name. They take bytes: those that are no message gRPC itself would call a server's fault."""

    def handler(call: Callable[[bytes, Any], Awaitable[Any]]) -> Any:
        return grpc.unary_unary_rpc_method_handler(call, None, lambda response: response.SerializeToString())

    return {call: handler(getattr(service, call)) for call in CALLS}


def _message(kind: type[Message], content: bytes) -> Any:
    try:
        return kind.FromString(content)
    except DecodeError:
        raise invalid("body", f"the bytes are no {kind.DESCRIPTOR.full_name}") from None


def _score_asked(content: bytes, limits: Limits) -> tuple[ScoreRequest, str]:
    """The request in a message, and the labeler that it names."""
    message = _message(labeler_pb2.ScoreRequest, content)
    return score_request(_score_fields(message, limits), limits), message.labeler_digest


def _label_asked(content: bytes, limits: Limits) -> tuple[LabelRequest, str]:
    message = _message(labeler_pb2.LabelRequest, content)
    return label_request(_label_fields(message, limits), limits), message.labeler_digest


async def set_health(healthy: health.aio.HealthServicer, ready: bool) -> None:
    """Tell whether the service answers."""
    status = health_pb2.HealthCheckResponse.SERVING if ready else health_pb2.HealthCheckResponse.NOT_SERVING
    for name in ("", SERVICE):
        await healthy.set(name, status)


def _score_fields(request: labeler_pb2.ScoreRequest, limits: Limits) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "apply_softmax": request.apply_softmax,
        "item_first": request.item_first,
        "parse_special": request.parse_special,
    }
    match request.WhichOneof("query"):
        case "query_text":
            fields["query"] = request.query_text
        case "query_ids":
            fields["query"] = list(request.query_ids.ids)
    match request.WhichOneof("items"):
        case "item_texts":
            fields["items"] = list(_few("items", request.item_texts.texts, limits))
        case "item_ids":
            fields["items"] = [list(item.ids) for item in _few("items", request.item_ids.lists, limits)]
    match request.WhichOneof("labels"):
        case "label_token_ids":
            fields["label_token_ids"] = list(request.label_token_ids.ids)
        case "label_token_ids_by_item":
            lists = _few("label_token_ids", request.label_token_ids_by_item.lists, limits)
            fields["label_token_ids"] = [list(ids.ids) for ids in lists]
    for name in ("temperature", "model"):
        if request.HasField(name):
            fields[name] = getattr(request, name)
    return fields


def _label_fields(request: labeler_pb2.LabelRequest, limits: Limits) -> dict[str, Any]:
    fields: dict[str, Any] = {"text": request.text, "persist": request.persist}
    for name in ("entity_id", "text_version"):
        if request.HasField(name):
            fields[name] = getattr(request, name)
    if request.candidates:
        fields["candidates"] = [
            {name: getattr(candidate, name) for name in ("candidate_id", "text") if candidate.HasField(name)}
            for candidate in _few("candidates", request.candidates, limits)
        ]
    return fields


def _few(field: str, values: Sequence[Any], limits: Limits) -> Sequence[Any]:
    """These, once it is known that they are not too many: as objects of Python they take many times their bytes."""
    refuse_many(field, len(values), limits)
    return values
