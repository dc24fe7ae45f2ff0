"""Real receivers of alerts on this machine: an HTTP server and an SMTP server that count what arrives.

Timeouts are generous because a busy machine is no fault of the code under test.
"""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email import message_from_bytes, policy
from email.message import EmailMessage
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from aiosmtpd.controller import Controller

PATIENT = "cto=200&rto=200"


@dataclass
class WebReceiver:
    """What an HTTP server got. `status` is what it answers, `on_message` is called before it answers."""

    port: int = 0
    status: int = 200
    messages: list[dict[str, Any]] = field(default_factory=list)
    pings: list[str] = field(default_factory=list)
    on_message: Callable[[], None] = lambda: None

    @property
    def titles(self) -> list[str]:
        return [message["title"] for message in self.messages]

    def address(self, secret: str = "") -> str:
        """The apprise URL of this server."""
        return f"json://127.0.0.1:{self.port}/{secret}?{PATIENT}"


@contextmanager
def web_receiver(port: int = 0) -> Iterator[WebReceiver]:
    """An HTTP server for as long as the block runs."""
    received = WebReceiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.messages.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            received.on_message()
            self._answer()

        def do_GET(self) -> None:
            received.pings.append(self.path)
            self._answer()

        def _answer(self) -> None:
            self.send_response(received.status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    received.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield received
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@dataclass
class MailReceiver:
    """What an SMTP server got."""

    port: int = 0
    messages: list[EmailMessage] = field(default_factory=list)

    def address(self) -> str:
        """The apprise URL of this server."""
        sender = "from=semlabel@example.org&to=team@example.org&mode=insecure"
        return f"mailto://127.0.0.1:{self.port}?{sender}&{PATIENT}"


@contextmanager
def mail_receiver() -> Iterator[MailReceiver]:
    """An SMTP server for as long as the block runs."""
    received = MailReceiver()

    class Handler:
        async def handle_DATA(self, _server: Any, _session: Any, envelope: Any) -> str:
            received.messages.append(message_from_bytes(envelope.content, policy=policy.default))
            return "250 OK"

    controller = Controller(Handler(), hostname="127.0.0.1", port=_free_port(), ready_timeout=200)
    controller.start()
    received.port = controller.port
    try:
        yield received
    finally:
        controller.stop()


def _free_port() -> int:
    # The controller proves its start by connecting to the port it was given, so it cannot choose one itself.
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def closed_port() -> int:
    """A port on which nobody listens."""
    return _free_port()
