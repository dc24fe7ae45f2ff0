"""What an HTTP request holds of the room, from its first byte until the last part of its answer has left.

An answer that is written at once waits for its client outside of every count; so a long one is sent in parts, each when
the one before it has left, and a client has a minute to take them all. Knows ASGI and the room, not what is answered.
"""

import asyncio
import logging

from fastapi import Request, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from semlabel.serving.room import Held, Room

log = logging.getLogger(__name__)

_PART_BYTES = 64 * 1024
_SECONDS = 60.0
_HELD = "semlabel.held"


class InRoom:
    """Middleware: every request holds something of the room until it is answered."""

    def __init__(self, app: ASGIApp, room: Room) -> None:
        self._app, self._room = app, room

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the application."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        with self._room.taken() as held:
            scope[_HELD] = held
            await self._app(scope, receive, send)


def held_by(request: Request) -> Held:
    """What a request holds."""
    held: Held = request.scope[_HELD]
    return held


class Answer(Response):
    """A response that has left, but for one part, when it has been sent."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        if len(self.body) <= _PART_BYTES:
            await super().__call__(scope, receive, send)
            return
        try:
            async with asyncio.timeout(_SECONDS):
                await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
                for start in range(0, len(self.body), _PART_BYTES):
                    part = self.body[start : start + _PART_BYTES]
                    await send({"type": "http.response.body", "body": part, "more_body": True})
                # Whoever sends this waits for the parts before it.
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        except TimeoutError:
            log.warning("a client did not take its answer of %d bytes in %.0f s", len(self.body), _SECONDS)
