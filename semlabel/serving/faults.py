"""What a request can be refused with: one kind per cause, the same over HTTP, gRPC and between processes.

Knows no transport library: a kind names its HTTP status and its gRPC code. A fault's message never holds a client's
text.
"""

from enum import Enum
from typing import Any


class Kind(Enum):
    """A cause, as (HTTP status, name of the gRPC code)."""

    INVALID = (400, "INVALID_ARGUMENT")
    UNAUTHENTICATED = (401, "UNAUTHENTICATED")
    FORBIDDEN = (403, "PERMISSION_DENIED")
    UNKNOWN = (404, "NOT_FOUND")
    TIMED_OUT = (408, "CANCELLED")
    CONFLICT = (409, "FAILED_PRECONDITION")
    TOO_LARGE = (413, "OUT_OF_RANGE")
    BUSY = (429, "RESOURCE_EXHAUSTED")
    UNAVAILABLE = (503, "UNAVAILABLE")
    DEADLINE = (504, "DEADLINE_EXCEEDED")

    @property
    def status(self) -> int:
        """The HTTP status."""
        return self.value[0]

    @property
    def code(self) -> str:
        """The name of the gRPC code."""
        return self.value[1]

    @classmethod
    def of_code(cls, code: str) -> "Kind":
        """The kind of a gRPC code's name; a code that none has is the server's own failure."""
        return next((kind for kind in cls if kind.code == code), cls.UNAVAILABLE)


class Fault(Exception):
    """A request that is not answered. `field` and `limit` name what it broke; `retry_after` is in seconds."""

    def __init__(
        self,
        kind: Kind,
        message: str,
        field: str | None = None,
        limit: int | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.kind, self.message, self.field, self.limit, self.retry_after = kind, message, field, limit, retry_after

    def document(self) -> dict[str, Any]:
        """The JSON body."""
        return {"error": {"message": self.message, "field": self.field, "limit": self.limit}}


def invalid(field: str, message: str, limit: int | None = None) -> Fault:
    """A field that is not what it should be."""
    return Fault(Kind.INVALID, f"{field}: {message}", field, limit)
