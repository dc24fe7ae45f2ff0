"""Content identities: the one place where something is turned into a digest.

Knows nothing of what the content means. Texts are hashed byte for byte: no normalisation, so two texts that only
look alike are two texts.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

_CHUNK = 1 << 20


def text_id(text: str) -> str:
    """sha256 (hex) of the UTF-8 bytes of `text`. Raises UnicodeEncodeError on lone surrogates."""
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def digest_of(value: Any) -> str:
    """sha256 (hex) of the canonical JSON of `value` (sorted keys, no blanks, no NaN)."""
    canonical = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(canonical.encode("utf-8")).hexdigest()


def file_digest(path: Path) -> str:
    """sha256 (hex) of the bytes of a file, read in chunks."""
    hasher = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            hasher.update(chunk)
    return hasher.hexdigest()
