"""What a server was asked to be: addresses, processes, limits and where the labeler comes from, as one JSON value.

The supervisor hands it to the processes it starts. Secrets are not in it: those stay in the environment.
"""

from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict

from semlabel.errors import SettingsError
from semlabel.serving.limits import Limits
from semlabel.serving.pointer import Pointer

LOOPBACK = ("127.0.0.1", "::1", "localhost")


class Address(NamedTuple):
    """A host and a port to listen on."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str, option: str) -> "Address":
        """The address in HOST:PORT. Raises SettingsError."""
        host, _, port = text.rpartition(":")
        if not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
            raise SettingsError(f"{option} {text!r}: expected HOST:PORT, for example 127.0.0.1:8080")
        return cls(host.strip("[]"), int(port))


class Tls(BaseModel):
    """Files in PEM. With `clients`, only who shows a certificate of these authorities is answered."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    certificate: Path
    key: Path
    clients: Path | None = None


class Plan(BaseModel):
    """Everything the processes of one server need to know. `engine`: the module that is run as the engine process."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    pointer: Pointer
    socket: Path
    http: Address | None = None
    grpc: Address | None = None
    workers: int = 1
    device: str = "auto"
    method: str = "auto"
    threads: int = 0
    lanes: int = 0
    items_per_round: int = 200
    max_round_tokens: int = 8192
    poll_seconds: float = 1.0
    tls: Tls | None = None
    spool: Path | None = None
    engine: str = "semlabel.serving.engine"
    limits: Limits = Limits()
