"""The body of `/v1/label`: an entity's text and, if not the whole catalog is meant, the candidates to decide on.

Knows the shape of a request, not the catalog. HTTP and gRPC both hand in the fields as one mapping.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from semlabel.serving.faults import invalid
from semlabel.serving.limits import Limits
from semlabel.serving.score_request import FLAG, NO_MEANING, flag, refuse_long, refuse_many, refuse_unknown

_ID = {"type": "string", "minLength": 1}
_CANDIDATE = {
    "type": "object",
    "properties": {"candidate_id": {"anyOf": [_ID, {"type": "null"}]}, "text": {"anyOf": [_ID, {"type": "null"}]}},
    "additionalProperties": NO_MEANING,
    "anyOf": [
        {"required": ["candidate_id"], "properties": {"candidate_id": _ID}},
        {"required": ["text"], "properties": {"text": _ID}},
    ],
}
FIELDS: dict[str, dict[str, Any]] = {
    "entity_id": {"anyOf": [_ID, {"type": "null"}]},
    "text": {"type": "string", "minLength": 1},
    "candidates": {
        "description": "Texts, or candidates of the catalog by their id, or ids with texts of their own.",
        "anyOf": [
            {"type": "array", "items": {"type": "string", "minLength": 1}},
            {"type": "array", "items": _CANDIDATE},
            {"type": "null"},
        ],
    },
    "persist": FLAG,
    "text_version": {"anyOf": [{"type": "integer", "minimum": 0, "maximum": 2**63 - 1}, {"type": "null"}]},
}
SCHEMA = {
    "type": "object",
    "properties": FIELDS,
    "additionalProperties": NO_MEANING,
    "required": ["text"],
    "title": "LabelRequest",
}


@dataclass(frozen=True)
class Candidate:
    """A candidate by id, by text, or both."""

    candidate_id: str | None
    text: str | None


@dataclass(frozen=True)
class LabelRequest:
    """A checked request. `candidates` None means the whole catalog."""

    entity_id: str | None
    text: str
    candidates: list[Candidate] | None
    persist: bool
    text_version: int | None


def label_request(document: Any, limits: Limits) -> LabelRequest:
    """The request in a JSON document (or a mapping of the same fields). Raises Fault."""
    if not isinstance(document, Mapping):
        raise invalid("body", "expected a JSON object")
    refuse_unknown(document, FIELDS)
    text = document.get("text")
    if not isinstance(text, str) or not text.strip():
        raise invalid("text", "expected the entity's text, not blank")
    refuse_long(text, "text", limits)
    request = LabelRequest(
        _optional_text(document.get("entity_id"), "entity_id"),
        text,
        _candidates(document.get("candidates"), limits),
        flag(document, "persist"),
        _version(document.get("text_version")),
    )
    if request.persist:
        for name in ("entity_id", "text_version"):
            if getattr(request, name) is None:
                raise invalid(name, "is needed with persist = true")
        if request.candidates is not None:
            raise invalid("candidates", "persist = true stores the whole catalog's margins: leave candidates out")
    return request


def _candidates(value: Any, limits: Limits) -> list[Candidate] | None:
    if value is None:
        return None
    if not isinstance(value, list):
        raise invalid("candidates", "expected a list of texts or of objects with candidate_id and text")
    refuse_many("candidates", len(value), limits)
    return [_candidate(entry, f"candidates[{index}]", limits) for index, entry in enumerate(value)]


def _candidate(entry: Any, field: str, limits: Limits) -> Candidate:
    if isinstance(entry, str):
        entry = {"text": entry}
    if not isinstance(entry, Mapping) or not (entry.get("candidate_id") or entry.get("text")):
        raise invalid(field, "expected a text, or an object with candidate_id or text")
    refuse_unknown(entry, {"candidate_id": None, "text": None})
    found = Candidate(*(_optional_text(entry.get(name), f"{field}.{name}") for name in ("candidate_id", "text")))
    refuse_long(found.text or "", f"{field}.text", limits)
    return found


def _optional_text(value: Any, field: str) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) or not value.strip():
        raise invalid(field, "expected a text that is not blank")
    return value


def _version(value: Any) -> int | None:
    if value is None:
        return None
    if type(value) is not int or not 0 <= value < 2**63:
        raise invalid("text_version", "expected a whole number from 0")
    return value
