"""uvicorn's HTTP protocol with a time limit on the headers of a request: a client that sends a byte a minute is cut.

uvicorn limits idle connections and this server limits bodies; between the two it waits for headers for ever.
"""

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol


def protocol_with_header_timeout(seconds: float) -> type[H11Protocol]:
    """A protocol class that closes a connection whose next request is not there after `seconds`."""

    class Protocol(H11Protocol):
        _timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._start_timer()

        def connection_lost(self, error: Exception | None) -> None:
            self._stop_timer()
            super().connection_lost(error)

        def data_received(self, data: bytes) -> None:
            before = self.cycle
            super().data_received(data)
            if self.cycle is not before:
                self._stop_timer()
            elif (before is None or before.response_complete) and self._timer is None:
                self._start_timer()

        def _start_timer(self) -> None:
            self._timer = self.loop.call_later(seconds, self._too_slow)

        def _stop_timer(self) -> None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

        def _too_slow(self) -> None:
            self._timer = None
            if not self.transport.is_closing():
                self.transport.abort()

    return Protocol
