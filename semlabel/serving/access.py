"""Who may ask for what: bearer tokens from the environment, compared in constant time.

Knows two scopes: `answer` (score and label) and `persist` (label with persist = true; it includes `answer`). Knows no
transport. Tokens are never logged.
"""

import hmac
from collections.abc import Mapping
from dataclasses import dataclass

from semlabel.errors import SettingsError
from semlabel.serving.faults import Fault, Kind

ANSWER_VARIABLE, PERSIST_VARIABLE = "SEMLABEL_SERVE_TOKEN", "SEMLABEL_SERVE_PERSIST_TOKEN"
_LEAST_CHARACTERS = 16


@dataclass(frozen=True)
class Access:
    """`answer` None: everybody who can connect may score and label. `persist` None: nobody may persist."""

    answer: bytes | None
    persist: bytes | None

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> "Access":
        """The tokens of an environment. Raises SettingsError for one that can be guessed."""
        found = {}
        for variable in (ANSWER_VARIABLE, PERSIST_VARIABLE):
            token = environment.get(variable, "").strip()
            if token and len(token) < _LEAST_CHARACTERS:
                raise SettingsError(f"{variable} has {len(token)} characters; use at least {_LEAST_CHARACTERS}")
            if not (token.isascii() and token.isprintable()) or " " in token:
                raise SettingsError(f"{variable} has characters that no header can carry; use letters and digits")
            found[variable] = token.encode() if token else None
        if found[ANSWER_VARIABLE] is not None and found[ANSWER_VARIABLE] == found[PERSIST_VARIABLE]:
            raise SettingsError(f"{ANSWER_VARIABLE} and {PERSIST_VARIABLE} are the same; give each its own token")
        return cls(found[ANSWER_VARIABLE], found[PERSIST_VARIABLE])

    def check(self, authorization: str | None, persist: bool = False) -> None:
        """Raise Fault unless this Authorization header may do it."""
        scheme, _, token = (authorization or "").partition(" ")
        given = token.strip().encode("utf-8", "replace") if scheme.lower() == "bearer" else b""
        # Both comparisons are always made: the time says nothing of which token was nearly right.
        may_persist = hmac.compare_digest(given, self.persist or b"") and self.persist is not None
        may_answer = hmac.compare_digest(given, self.answer or b"") and self.answer is not None
        if not (may_persist or may_answer or self.answer is None):
            raise Fault(Kind.UNAUTHENTICATED, "send a valid token: Authorization: Bearer TOKEN")
        if persist and not may_persist:
            raise Fault(Kind.FORBIDDEN, "persist: this token may not persist updates", "persist")
