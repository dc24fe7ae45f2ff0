"""uvicorn's HTTP protocol with limits on slow clients: who sends its headers, or takes its answer, a byte a minute.

uvicorn limits idle connections and this server limits bodies; before the body and behind the answer it would wait for
ever, with the request or the answer in memory.
"""

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

_LEAST_BYTES = 64 * 1024
"""What a client must take of its answer in every period."""


def protocol_with_time_limits(seconds: float) -> type[H11Protocol]:
    """A protocol class that cuts a connection whose next request is not there after `seconds`.

    Cut is also who takes less than 64 KiB of an answer in that time, while there is more.
    """

    class Protocol(H11Protocol):
        _timer: asyncio.TimerHandle | None = None
        _taking: asyncio.TimerHandle | None = None
        _left = 0

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._start_timer()

        def connection_lost(self, error: Exception | None) -> None:
            self._stop_timer()
            self._stop_taking()
            super().connection_lost(error)

        def data_received(self, data: bytes) -> None:
            before = self.cycle
            super().data_received(data)
            if self.cycle is not before:
                self._stop_timer()
            elif (before is None or before.response_complete) and self._timer is None:
                self._start_timer()

        def pause_writing(self) -> None:
            super().pause_writing()
            self._left = self.transport.get_write_buffer_size()
            self._taking = self.loop.call_later(seconds, self._look)

        def resume_writing(self) -> None:
            self._stop_taking()
            super().resume_writing()

        def _start_timer(self) -> None:
            self._timer = self.loop.call_later(seconds, self._too_slow)

        def _stop_timer(self) -> None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

        def _stop_taking(self) -> None:
            if self._taking is not None:
                self._taking.cancel()
                self._taking = None

        def _look(self) -> None:
            left = self.transport.get_write_buffer_size()
            if self._left - left < _LEAST_BYTES:
                self._taking = None
                # Also one that is closing already: it only waits for this client to take the rest.
                self.transport.abort()
                return
            self._left, self._taking = left, self.loop.call_later(seconds, self._look)

        def _too_slow(self) -> None:
            self._timer = None
            if not self.transport.is_closing():
                self.transport.abort()

    return Protocol
