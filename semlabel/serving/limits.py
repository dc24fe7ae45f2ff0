"""How much one request may ask for, checked before any heavy work, and how much may wait.

Knows nothing of requests: numbers with their units.
"""

from pydantic import BaseModel, ConfigDict


class Limits(BaseModel):
    """Bytes of a body, counts of one request, seconds of its phases, and the bounds of the engine's queue."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    body_bytes: int = 16 * 2**20
    held_bytes: int = 320 * 2**20
    items: int = 20_000
    labels: int = 1_024
    readings: int = 2_000_000
    request_tokens: int = 1_000_000
    text_characters: int = 500_000
    header_seconds: float = 10.0
    body_seconds: float = 30.0
    request_seconds: float = 60.0
    drain_seconds: float = 30.0
    connections: int = 1_000
    connection_seconds: float = 60.0
    rpcs: int = 512
    streams: int = 128
    waiting_requests: int = 256
    waiting_tokens: int = 4_000_000
    batch_tokens: int = 8_192
    batch_window_seconds: float = 0.0005
