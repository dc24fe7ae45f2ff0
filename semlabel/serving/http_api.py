"""The HTTP side: routes, bodies read within limits of bytes and time, faults as JSON, answers that end with the client.

Knows HTTP and the answers, not how they are computed. The fields of a request are checked where they are described
(`score_request`, `label_request`); OpenAPI shows the same descriptions.
"""

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any, TypeVar

from fastapi import Depends, FastAPI, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from fastapi.security import HTTPBearer
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from semlabel import __version__
from semlabel.serving import label_request, score_request
from semlabel.serving.access import Access
from semlabel.serving.answers import Answers, LabelAnswer
from semlabel.serving.faults import Fault, Kind, invalid
from semlabel.serving.http_room import Answer, InRoom, held_by
from semlabel.serving.limits import Limits
from semlabel.serving.metrics import Metrics
from semlabel.serving.room import Held

T = TypeVar("T")
Lifespan = Callable[[FastAPI], AbstractAsyncContextManager[None]]

log = logging.getLogger(__name__)

DIGEST_HEADER = "X-Labeler-Digest"
_CLIENT_LEFT = 499
_NUMBER = {"type": "number"}
_DIGEST = {"type": "string"}
_SCORED = {
    "type": "object",
    "required": ["scores", "model", "usage", "object"],
    "properties": {
        "scores": {"type": "array", "items": {"type": "array", "items": _NUMBER}},
        "model": {"type": "string"},
        "object": {"const": "scoring"},
        "usage": {
            "type": "object",
            "properties": {
                name: {"type": "integer"} for name in ("prompt_tokens", "total_tokens", "completion_tokens")
            },
        },
    },
}
_LABELED = {
    "type": "object",
    "required": ["labels", "threshold", "labeler_digest"],
    "properties": {
        "entity_id": {"type": ["string", "null"]},
        "labels": {"type": "array", "items": {"type": "object"}},
        "threshold": {"type": ["number", "null"]},
        "labeler_digest": _DIGEST,
        "publication_version": {"type": ["string", "null"]},
        "truncated": {"type": "boolean"},
        "persisted": {"type": "boolean"},
    },
}
_REFUSED = {
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "required": ["message"],
            "properties": {
                "message": {"type": "string"},
                "field": {"type": ["string", "null"]},
                "limit": {"type": ["integer", "null"]},
            },
        }
    },
}


_LABELER_RESPONSES: dict[int | str, dict[str, Any]] = {
    kind.status: {"description": "Refused.", "content": {"application/json": {"schema": _REFUSED}}}
    for kind in (Kind.UNAUTHENTICATED, Kind.UNAVAILABLE)
}


def build_app(answers: Answers, access: Access, metrics: Metrics, lifespan: Lifespan | None = None) -> FastAPI:
    """The application of one front."""
    app = FastAPI(title="semlabel", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None)
    app.add_middleware(InRoom, room=answers.room)
    limits = answers.limits
    # Only a description: the token is compared by `access`, before a body is read.
    asks = [Depends(HTTPBearer(auto_error=False))] if access.answer is not None else []

    @app.exception_handler(Fault)
    async def refused(request: Request, fault: Fault) -> Response:
        return _refusal(fault)

    @app.exception_handler(HTTPException)
    async def not_found(request: Request, error: HTTPException) -> Response:
        document = {"error": {"message": str(error.detail), "field": None, "limit": None}}
        return JSONResponse(document, error.status_code, headers=error.headers)

    @app.post(
        "/v1/score", **_described("Probabilities of label tokens.", score_request.SCHEMA, _SCORED), dependencies=asks
    )
    async def score(request: Request) -> Response:
        async def answer(watch: "_Watch") -> Response:
            asked = await _checked(request, limits, watch.held, score_request.score_request)
            watch.items = len(asked.items)
            digest = request.headers.get(DIGEST_HEADER, "")
            asking = answers.score(asked, digest, limits.request_seconds, watch.held)
            found = await _while_connected(request, asking)
            usage = {
                "prompt_tokens": found.prompt_tokens,
                "total_tokens": found.prompt_tokens,
                "completion_tokens": 0,
            }
            content = {"scores": found.scores, "model": asked.model, "usage": usage, "object": "scoring"}
            return _answered(content, found.labeler_digest)

        return await _watched("score", request, answer)

    @app.post(
        "/v1/label", **_described("Labels of an entity's text.", label_request.SCHEMA, _LABELED), dependencies=asks
    )
    async def label(request: Request) -> Response:
        async def answer(watch: "_Watch") -> Response:
            asked = await _checked(request, limits, watch.held, label_request.label_request)
            if asked.persist:
                access.check(request.headers.get("authorization"), persist=True)
            digest = request.headers.get(DIGEST_HEADER, "")
            asking = answers.label(asked, digest, limits.request_seconds, watch.held)
            found = await _while_connected(request, asking)
            watch.items = len(found.labels)
            return _answered(label_document(asked.entity_id, found), found.labeler_digest)

        return await _watched("label", request, answer)

    @app.get("/v1/labeler", dependencies=asks, summary="Which labeler answers here.", responses=_LABELER_RESPONSES)
    async def labeler(request: Request) -> Response:
        access.check(request.headers.get("authorization"))
        about = answers.about()
        return _answered(about, about["labeler_digest"])

    @app.get("/healthz", summary="The process lives.")
    async def healthz() -> Response:
        return JSONResponse({"status": "alive"})

    @app.get("/readyz", summary="Requests are answered.", responses={503: {"description": "Not yet, and why."}})
    async def readyz() -> Response:
        served = answers.engine.served
        if served is None:
            return JSONResponse({"status": "not ready", "reason": answers.engine.problem}, 503)
        return _answered({"status": "ready", "labeler_digest": served.labeler.digest}, served.labeler.digest)

    @app.get("/metrics", summary="For Prometheus.", response_class=PlainTextResponse)
    async def metrics_text() -> Response:
        metrics.gauge(answers.engine.waiting, answers.engine.served is not None)
        return Response(metrics.render(), media_type=CONTENT_TYPE_LATEST)

    async def _watched(call: str, request: Request, answer: "Callable[[_Watch], Awaitable[Response]]") -> Response:
        watch, started = _Watch(held_by(request)), time.perf_counter()
        status = 500
        try:
            access.check(request.headers.get("authorization"))
            response = await answer(watch)
            status = response.status_code
        except Fault as fault:
            response, status = _refusal(fault), fault.kind.status
        except ClientDisconnect:
            response = Response(status_code=_CLIENT_LEFT)
            status = _CLIENT_LEFT
        finally:
            seconds = time.perf_counter() - started
            metrics.observe(call, str(status), seconds, watch.items)
            log.info("http %s %d items=%d ms=%.1f", call, status, watch.items, seconds * 1e3)
        return response

    return app


class _Watch:
    def __init__(self, held: Held) -> None:
        self.held, self.items = held, 0


def label_document(entity_id: str | None, found: LabelAnswer) -> dict[str, Any]:
    """The JSON of a label answer."""
    return {
        "entity_id": entity_id,
        "labels": [vars(label) for label in found.labels],
        "threshold": found.threshold,
        "labeler_digest": found.labeler_digest,
        "publication_version": found.publication_version,
        "truncated": found.truncated,
        "persisted": found.persisted,
    }


def _answered(content: Any, digest: str) -> Response:
    return Answer(_json(content), media_type="application/json", headers={DIGEST_HEADER: digest})


def _json(content: Any) -> bytes:
    # A lone surrogate has no UTF-8: an id that came with one goes back escaped, as it came.
    return json.dumps(content, allow_nan=False, separators=(",", ":")).encode("ascii")


def _refusal(fault: Fault) -> Response:
    headers = {}
    if fault.retry_after is not None:
        headers["Retry-After"] = str(max(1, round(fault.retry_after)))
    if fault.kind is Kind.UNAUTHENTICATED:
        headers["WWW-Authenticate"] = "Bearer"
    if fault.kind in (Kind.TOO_LARGE, Kind.TIMED_OUT):
        headers["Connection"] = "close"
    return Response(_json(fault.document()), fault.kind.status, headers, media_type="application/json")


async def _checked(request: Request, limits: Limits, held: Held, check: Callable[[Any, Limits], T]) -> T:
    """The request in a body that is neither too large nor too slow. Raises Fault."""
    most_bytes, seconds = limits.body_bytes, limits.body_seconds
    declared = request.headers.get("content-length", "0")
    if not declared.isascii() or not declared.isdigit() or int(declared) > most_bytes:
        raise score_request.too_large(most_bytes)
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(seconds):
            async for part in request.stream():
                size += len(part)
                if size > most_bytes:
                    raise score_request.too_large(most_bytes)
                held.body(len(part))
                parts.append(part)
    except TimeoutError:
        raise Fault(Kind.TIMED_OUT, f"body: not complete after {seconds:g} seconds", "body") from None
    body = b"".join(parts)
    parts.clear()
    return await held.run(partial(_read, body, limits, check), here=True)


def _read(body: bytes, limits: Limits, check: Callable[[Any, Limits], T]) -> T:
    return check(_parsed(body), limits)


def _parsed(body: bytes) -> Any:
    try:
        return json.loads(body.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise invalid("body", f"is not UTF-8 at byte {error.start}") from None
    except RecursionError:
        raise invalid("body", "is nested too deeply") from None
    except ValueError as error:
        raise invalid("body", f"is no JSON: {type(error).__name__}") from None


async def _while_connected(request: Request, answer: "Awaitable[T]") -> T:
    """The answer, or ClientDisconnect as soon as nobody waits for it: then its work is cancelled, in the engine too."""
    task = asyncio.ensure_future(answer)
    leaving = asyncio.ensure_future(_left(request))
    try:
        await asyncio.wait([task, leaving], return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientDisconnect
    finally:
        for each in (task, leaving):
            each.cancel()


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _described(summary: str, body: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
    """What OpenAPI says of a call: its body, its answer, and how it refuses."""
    refused = {"description": "Refused.", "content": {"application/json": {"schema": _REFUSED}}}
    statuses = sorted({kind.status for kind in Kind})
    return {
        "summary": summary,
        "openapi_extra": {"requestBody": {"required": True, "content": {"application/json": {"schema": body}}}},
        "responses": {
            200: {"description": "Answered.", "content": {"application/json": {"schema": answer}}},
            **dict.fromkeys(statuses, refused),
        },
    }
