"""The body of `/v1/score`: every field checked, each error naming its field, its index and the limit.

Knows the shape of a request, not the labeler: what depends on the tokenizer or the vocabulary is checked where those
are known. HTTP and gRPC both hand in the fields as one mapping, so there is one check.
"""

import difflib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from semlabel.serving.faults import Fault, Kind, invalid
from semlabel.serving.limits import Limits
from semlabel.text_tokenizer import repaired

FLAG = {"type": ["boolean", "null"], "default": False}
NO_MEANING = {"enum": [None, False]}
"""What a field may hold that is not known here."""
FIELDS: dict[str, dict[str, Any]] = {
    "query": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "integer"}}, {"type": "null"}]},
    "items": {
        "anyOf": [
            {"type": "string"},
            {"type": "array", "items": {"type": "string"}},
            {"type": "array", "items": {"type": "array", "items": {"type": "integer"}}},
        ]
    },
    "label_token_ids": {
        "anyOf": [
            {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0}},
            {"type": "array", "items": {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0}}},
            {"type": "null"},
        ]
    },
    "apply_softmax": FLAG,
    "temperature": {"type": ["number", "null"], "exclusiveMinimum": 0, "default": 1.0},
    "item_first": {"enum": [False, None], "default": False},
    "model": {"type": ["string", "null"], "default": "default", "maxLength": 256},
    "parse_special": FLAG,
}
SCHEMA = {
    "type": "object",
    "properties": FIELDS,
    "additionalProperties": NO_MEANING,
    "required": ["items"],
    "title": "ScoreRequest",
}
_LONGEST_MODEL_NAME = 256
_LONGEST_FIELD_NAME = 64

Part = str | list[int]


@dataclass(frozen=True)
class ScoreRequest:
    """A checked request. `labels` is None for the labeler's yes and no, one list for all items, or one list an item."""

    query: Part
    items: list[str] | list[list[int]]
    labels: list[int] | list[list[int]] | None
    apply_softmax: bool
    temperature: float
    model: str
    parse_special: bool


def score_request(document: Any, limits: Limits) -> ScoreRequest:
    """The request in a JSON document (or a mapping of the same fields). Raises Fault."""
    if not isinstance(document, Mapping):
        raise invalid("body", "expected a JSON object")
    refuse_unknown(document, FIELDS)
    items = _items(document.get("items"), limits)
    query = document.get("query")
    query = "" if query is None else query
    if isinstance(query, str):
        refuse_long(query, "query", limits)
    else:
        query = token_ids(query, "query")
    if items and query and isinstance(query, str) != isinstance(items[0], str):
        raise invalid("items", "query and items must both be text or both be token ids")
    if flag(document, "item_first"):
        raise invalid("item_first", "items share the query, so the query comes first: send item_first = false")
    labels = _labels(document.get("label_token_ids"), len(items), limits)
    return ScoreRequest(
        query,
        items,
        labels,
        flag(document, "apply_softmax"),
        _temperature(document.get("temperature", 1.0)),
        _model(document.get("model", "default")),
        flag(document, "parse_special"),
    )


def refuse_unknown(document: Mapping[str, Any], known: Mapping[str, Any]) -> None:
    """Raise Fault for a field that has a value and no meaning here: a misspelled one would be ignored in silence."""
    for name, value in document.items():
        if name not in known and value is not None and value is not False:
            name = repaired(name[:_LONGEST_FIELD_NAME])
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {close[0]}?" if close else f"known are {', '.join(known)}"
            raise invalid(name, f"is no field of this request; {hint}")


def refuse_many(field: str, number: int, limits: Limits) -> None:
    """Raise Fault for more items, or candidates, or lists of labels, than one request may have."""
    if number > limits.items:
        what = "lists of labels" if field == "label_token_ids" else field
        raise invalid(field, f"{number} {what}; at most {limits.items} in one request", limits.items)


def refuse_long(text: str, field: str, limits: Limits) -> None:
    """Raise Fault for a text longer than any prompt: while it is tokenised, each character may take 500 bytes."""
    if len(text) > limits.text_characters:
        most = limits.text_characters
        raise invalid(field, f"{len(text)} characters; at most {most} in one text", most)


def flag(document: Mapping[str, Any], name: str) -> bool:
    """A boolean field, false when it is left out."""
    value = document.get(name)
    if value is None:
        return False
    if not isinstance(value, bool):
        raise invalid(name, "expected true or false")
    return value


def token_ids(value: Any, field: str) -> list[int]:
    """A list of token ids that are not negative. Raises Fault naming `field`."""
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        raise invalid(field, "expected text or a list of token ids")
    ids = list(value)
    for position, token in enumerate(ids):
        if type(token) is not int or token < 0:
            raise invalid(field, f"entry {position} is no token id; expected whole numbers from 0")
    return ids


def _items(value: Any, limits: Limits) -> list[str] | list[list[int]]:
    if value is None:
        raise invalid("items", "is missing; send a text, a list of texts or a list of token id lists")
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list):
        raise invalid("items", "expected a text, a list of texts or a list of token id lists")
    refuse_many("items", len(value), limits)
    if all(isinstance(item, str) for item in value):
        if max(map(len, value), default=0) > limits.text_characters:
            for index, item in enumerate(value):
                refuse_long(item, f"items[{index}]", limits)
        return value
    if any(isinstance(item, str) for item in value):
        raise invalid("items", "texts and token ids are mixed; send one kind")
    return [token_ids(item, f"items[{index}]") for index, item in enumerate(value)]


def _labels(value: Any, items: int, limits: Limits) -> list[int] | list[list[int]] | None:
    if value is None:
        return None
    if not isinstance(value, list):
        raise invalid("label_token_ids", "expected a list of token ids, or one list an item")
    by_item = any(isinstance(entry, list) for entry in value)
    if not by_item:
        labels = _label_list(value, "label_token_ids", limits)
        _refuse_readings(items * len(labels), limits)
        return labels
    if len(value) != items:
        raise invalid("label_token_ids", f"{len(value)} lists of labels for {items} items; send one list an item")
    lists = [_label_list(entry, f"label_token_ids[{index}]", limits) for index, entry in enumerate(value)]
    _refuse_readings(sum(map(len, lists)), limits)
    return lists


def _label_list(value: Any, field: str, limits: Limits) -> list[int]:
    ids = token_ids(value, field)
    if not ids:
        raise invalid(field, "is empty; name at least one label token, or leave it out for the labeler's yes and no")
    if len(ids) > limits.labels:
        raise invalid(field, f"{len(ids)} labels; at most {limits.labels}", limits.labels)
    if len(set(ids)) != len(ids):
        raise invalid(field, "names a label token twice")
    return ids


def _refuse_readings(readings: int, limits: Limits) -> None:
    if readings > limits.readings:
        raise invalid("label_token_ids", f"{readings} scores asked for; at most {limits.readings}", limits.readings)


def _temperature(value: Any) -> float:
    if value is None:
        return 1.0
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise invalid("temperature", "expected a number")
    try:
        temperature = float(value)
    except OverflowError:
        temperature = math.inf
    if not math.isfinite(temperature) or temperature <= 0:
        raise invalid("temperature", "must be finite and greater than 0")
    return temperature


def _model(value: Any) -> str:
    if value is None:
        return "default"
    if not isinstance(value, str) or len(value) > _LONGEST_MODEL_NAME:
        raise invalid("model", f"expected a text of at most {_LONGEST_MODEL_NAME} characters", _LONGEST_MODEL_NAME)
    return repaired(value)


def too_large(limit: int) -> Fault:
    """A body of more bytes than are read."""
    return Fault(Kind.TOO_LARGE, f"body: more than {limit} bytes", "body", limit)
