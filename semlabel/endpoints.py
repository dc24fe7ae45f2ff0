"""Asks servers of the same labeler what they answer: the digest, the answer tokens, the threshold, and stored pairs.

Knows HTTP as a client and a labeler's manifest; knows nothing of gates or of how a server works. A server that does not
answer is not an error here: it is reported as not reached.
"""

import json
import os
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from semlabel.decision import decide
from semlabel.labeler import KNOWN_PAIR_TOLERANCE

if TYPE_CHECKING:
    from semlabel.manifest import Manifest

TOKEN_VARIABLE = "SEMLABEL_SERVE_TOKEN"
_SECONDS, _LOOK_SECONDS = 10.0, 0.5
_MOST_BYTES = 16 * 2**20


def ask_endpoints(urls: Sequence[str], manifest: "Manifest", published: bool = False) -> list[dict[str, Any]]:
    """What each server says: `name`, `reachable`, `digest` (None where it does not use this labeler rightly), `why`.

    `published`: what is current is this labeler's already, so that every server must answer with it. Until then it is
    enough to hold it ready.
    """
    return [_ask(url.rstrip("/"), manifest, published) for url in urls]


def left_behind(urls: Sequence[str], digest: str, seconds: float = 15.0) -> list[str]:
    """The servers that answer, and not with this labeler, although they had this long to switch to it."""
    deadline = time.monotonic() + seconds
    behind = [url.rstrip("/") for url in urls]
    while behind:
        behind = [url for url in behind if _answers_with_another(url, digest)]
        if time.monotonic() >= deadline:
            break
        time.sleep(_LOOK_SECONDS)
    return behind


def _answers_with_another(url: str, digest: str) -> bool:
    try:
        return bool(_json(f"{url}/v1/labeler").get("labeler_digest") != digest)
    except (OSError, ValueError, TypeError):  # an HTTPError is an OSError: it refuses, and proves nothing
        return False


def _ask(url: str, manifest: "Manifest", published: bool) -> dict[str, Any]:
    try:
        about = _json(f"{url}/v1/labeler")
        # Before a publication the server holds the promoted labeler ready: that one is asked for by its name.
        holds = manifest.digest in [about.get("labeler_digest"), *([] if published else about.get("loaded", []))]
        if not holds:
            return _said(url, about.get("labeler_digest"), "")
        # With shortlists it rightly refuses to label: what it says of itself is all there is to ask.
        why = _difference(about, manifest) or ("" if manifest.shortlist else _probe(url, manifest))
    except urllib.error.HTTPError as error:
        # It lives and refuses: no proof that it uses another labeler, and none that it uses this one.
        return _silent(url, f"HTTP {error.code}")
    except (OSError, ValueError, TypeError, LookupError) as error:  # nobody there, or no server of ours
        return _silent(url, type(error).__name__)
    return _said(url, None if why else manifest.digest, why)


def _difference(about: dict[str, Any], manifest: "Manifest") -> str:
    if about.get("labeler_digest") != manifest.digest:
        return ""  # held ready: what it says of itself is about the one that still answers
    tokens = {"yes": manifest.answer_tokens.yes.id, "no": manifest.answer_tokens.no.id}
    expected = {"threshold": manifest.threshold, "answer_token_ids": tokens}
    return "; ".join(f"{name} is {about.get(name)!r}" for name, value in expected.items() if about.get(name) != value)


def _probe(url: str, manifest: "Manifest") -> str:
    """Why the known pairs do not get the margins and labels they are stored with; empty when they do."""
    tolerance = KNOWN_PAIR_TOLERANCE[manifest.precision]
    for pair in manifest.known_pairs:
        body = {"text": pair.query, "candidates": [{"text": pair.candidate}]}
        answer = _json(f"{url}/v1/label", body, manifest.digest)
        (found,) = answer["labels"]
        if answer.get("labeler_digest") != manifest.digest or not abs(found["margin"] - pair.margin) <= tolerance:
            return f"a known pair has margin {found['margin']:.4f} there and {pair.margin:.4f} in the labeler"
        if manifest.threshold is not None and found["label"] != bool(decide(found["margin"], manifest.threshold)):
            return "a known pair has another label than its margin gives"
    return ""


def _said(url: str, digest: str | None, why: str) -> dict[str, Any]:
    return {"name": url, "digest": digest, "reachable": True, "why": why}


def _silent(url: str, why: str) -> dict[str, Any]:
    return {"name": url, "digest": None, "reachable": False, "why": why}


def request_headers(labeler_digest: str = "") -> dict[str, str]:
    """The headers of a request: the token of the environment where there is one, and which labeler is to answer."""
    headers = {"Content-Type": "application/json"}
    if labeler_digest:
        headers["X-Labeler-Digest"] = labeler_digest
    if token := os.environ.get(TOKEN_VARIABLE):
        headers["Authorization"] = f"Bearer {token}"
    return headers


def _json(url: str, body: dict[str, Any] | None = None, labeler_digest: str = "") -> dict[str, Any]:
    data = json.dumps(body).encode() if body is not None else None
    request = urllib.request.Request(url, data, request_headers(labeler_digest))
    with urllib.request.urlopen(request, timeout=_SECONDS, context=ssl.create_default_context()) as answer:
        document = json.loads(answer.read(_MOST_BYTES))
    if not isinstance(document, dict):
        raise TypeError("no JSON object")
    return document
