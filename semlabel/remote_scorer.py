"""Margins from a server that speaks the score API: `semlabel serve`, or SGLang started with `--enable-mis`.

Token ids go out and probabilities of the two answers come back, so tokenisation stays here. The margin is
log(p_yes) - log(p_no) in float64: exact to rounding as long as neither is 0, which for a server that computes in
float32 means margins up to about 100. Knows HTTP as a client; deliberately does not know entities or thresholds.
"""

import json
import math
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from semlabel.endpoints import request_headers
from semlabel.errors import LabelerError
from semlabel.labeler import KNOWN_PAIR_TOLERANCE
from semlabel.manifest import Manifest, read_manifest, verify
from semlabel.prompt import Prompt, load_tokenizer

_AGAIN = (408, 429, 500, 502, 503, 504)
_ATTEMPTS = 6
_SECONDS = 120.0
_LOOK_PAUSE = 0.05


class RemoteScorer:
    """Scores rounds through one URL, `concurrency` requests at once: the parts of a round, or several rounds."""

    def __init__(self, url: str, manifest: Manifest, prompt: Prompt, concurrency: int = 1, pause: float = 0.5) -> None:
        self.url, self.manifest, self.prompt = url.rstrip("/") + "/v1/score", manifest, prompt
        self._concurrency, self._pause = concurrency, pause

    @classmethod
    def load(cls, directory: Path, url: str, concurrency: int = 1) -> "RemoteScorer":
        """For the labeler in a directory, after the server has given its known pairs the margins they are stored with.

        Raises LabelerError when it does not, or cannot be reached.
        """
        verify(directory)
        scorer = cls.unproven(directory, url, concurrency)
        if problem := scorer.other_margin():
            raise LabelerError(f"{url}: {problem}; start the server with this labeler")
        return scorer

    @classmethod
    def unproven(cls, directory: Path, url: str, concurrency: int = 1, pause: float = 0.5) -> "RemoteScorer":
        """For the labeler in a directory, whose weights are not looked at. Nothing is asked of the server."""
        manifest = read_manifest(directory)
        prompt = Prompt(manifest.prompt.spec(), load_tokenizer(directory))
        return cls(url, manifest, prompt, concurrency, pause)

    def other_margin(self) -> str | None:
        """Which known pair has another margin there than it is stored with, in words; None where all have theirs.

        Raises LabelerError when the server gives none.
        """
        for pair in self.manifest.known_pairs:
            (found,) = self.margins(self.prompt.query(pair.query).ids, [self.prompt.item(pair.candidate)])
            if not abs(found - pair.margin) <= KNOWN_PAIR_TOLERANCE[self.manifest.precision]:
                return (
                    f"a known pair of labeler {self.manifest.digest[:12]} has margin {found:.4f} there and "
                    f"{pair.margin:.4f} here"
                )
        return None

    def margins(self, query: Sequence[int], items: Sequence[Sequence[int]]) -> np.ndarray:
        """Margins (len(items),) float32 in the order of `items`. Raises LabelerError for an answer that is not that."""
        size = max(1, math.ceil(len(items) / self._concurrency))
        parts = [items[start : start + size] for start in range(0, len(items), size)]
        with ThreadPoolExecutor(max(1, len(parts))) as pool:
            margins = list(pool.map(lambda part: self._asked(query, part), parts))
        return np.concatenate(margins) if margins else np.empty(0, dtype=np.float32)

    def margins_of(
        self, rounds: Sequence[tuple[Sequence[int], Sequence[Sequence[int]]]]
    ) -> Iterator[tuple[int, np.ndarray]]:
        """Margins of many rounds, each as (its number, what `margins` gives), as many at a time as may be asked."""
        with ThreadPoolExecutor(self._concurrency) as pool:
            yield from enumerate(pool.map(lambda one: self._asked(*one), rounds))

    def _asked(self, query: Sequence[int], items: Sequence[Sequence[int]]) -> np.ndarray:
        """One request, nothing for no items."""
        rows = self._rows(query, items) if items else []
        return np.array([self._margin(row) for row in rows], dtype=np.float64).astype(np.float32)

    def _margin(self, row: Sequence[float]) -> float:
        yes, no = row
        if not (0 < yes <= 1 and 0 < no <= 1):
            raise LabelerError(f"{self.url}: probabilities {yes!r} and {no!r} hold no margin; it is too large for them")
        return math.log(yes) - math.log(no)

    def _rows(self, query: Sequence[int], items: Sequence[Sequence[int]]) -> list[list[float]]:
        body = {
            "query": list(query),
            "items": [list(item) for item in items],
            "label_token_ids": [self.prompt.yes_id, self.prompt.no_id],
            "apply_softmax": True,
        }
        scores = self._answer(json.dumps(body).encode()).get("scores")
        rows: list[list[float]] = scores if isinstance(scores, list) else []
        if len(rows) != len(items) or any(len(row) != 2 for row in rows):
            raise LabelerError(f"{self.url}: {len(rows)} rows for {len(items)} items of 2 labels; nothing is stored")
        return rows

    def _answer(self, body: bytes) -> dict[str, Any]:
        """The JSON answer, asked for again with longer and longer pauses while the server cannot answer."""
        headers = request_headers(self.manifest.digest)
        for attempt in range(_ATTEMPTS):
            try:
                with urllib.request.urlopen(urllib.request.Request(self.url, body, headers), timeout=_SECONDS) as found:
                    answer: dict[str, Any] = json.load(found)
                    return answer
            except urllib.error.HTTPError as error:
                why, after = f"HTTP {error.code}: {error.read(300).decode('utf-8', 'replace')}", _after(error)
                if error.code not in _AGAIN:
                    break
            except (OSError, ValueError) as error:
                why, after = str(error), 0.0
            if attempt < _ATTEMPTS - 1:
                time.sleep(max(self._pause * 2**attempt, after))
        raise LabelerError(f"{self.url}: no scores from there ({' '.join(why.split())}); look at that server")


def _after(error: urllib.error.HTTPError) -> float:
    told = error.headers.get("Retry-After", "")
    return min(float(told), _SECONDS) if told.isascii() and told.isdigit() else 0.0


def ask_scorer(directory: Path, url: str) -> dict[str, Any]:
    """What a server that scores for this labeler says, in the words of `endpoints.ask_endpoints`.

    Its margins of the known pairs are all there is to ask: who speaks the score API alone has no digest to tell.
    """
    scorer = RemoteScorer.unproven(directory, url, pause=_LOOK_PAUSE)
    try:
        why = scorer.other_margin()
    except LabelerError as error:
        return {"name": scorer.url, "digest": None, "reachable": False, "why": str(error)}
    digest = None if why else scorer.manifest.digest
    return {"name": scorer.url, "digest": digest, "reachable": True, "why": why or ""}
