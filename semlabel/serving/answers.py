"""What a client is answered: requests turned into token ids, margins into labels, for HTTP and gRPC alike.

Knows requests, the labeler that answers and the engine; knows nothing of the transports. Every answer names the
labeler's digest.
"""

import asyncio
from dataclasses import dataclass
from functools import partial
from typing import Any

from semlabel.calibration import Platt
from semlabel.decision import decide
from semlabel.errors import LabelerError, PromptError
from semlabel.prompt import Prompt
from semlabel.serving import weights
from semlabel.serving.engine_client import EngineClient
from semlabel.serving.faults import Fault, Kind, invalid
from semlabel.serving.label_request import Candidate, LabelRequest
from semlabel.serving.limits import Limits
from semlabel.serving.room import Held, Room
from semlabel.serving.score_request import ScoreRequest
from semlabel.serving.served import Served, in_parts, refuse_tokens
from semlabel.serving.updates import Updates
from semlabel.serving.wire import LabelIds, Work, margins_in


@dataclass(frozen=True)
class ScoreAnswer:
    """What the engine said; `scores` has rows in the order of the items, columns in the order of the labels."""

    values: bytes
    labels: LabelIds
    items: int
    prompt_tokens: int
    labeler_digest: str

    @property
    def scores(self) -> list[list[float]]:
        """The rows. Made when they are written: as numbers of Python's they take four times the room."""
        return self.labels.rows(self.values)


@dataclass(frozen=True)
class CandidateLabel:
    """One candidate's margin and what follows from it; None where the labeler has no calibration or threshold."""

    candidate_id: str | None
    margin: float
    probability: float | None
    label: bool | None
    certified: bool | None


@dataclass(frozen=True)
class LabelAnswer:
    """Labels in the order of the candidates."""

    labels: list[CandidateLabel]
    threshold: float | None
    labeler_digest: str
    publication_version: str | None
    truncated: bool
    persisted: bool


class Answers:
    """Answers requests through one engine; without `updates` none are kept."""

    def __init__(self, engine: EngineClient, limits: Limits, updates: Updates | None = None) -> None:
        self.engine, self.limits, self._updates = engine, limits, updates
        self.room = Room(limits.held_bytes)

    async def score(self, request: ScoreRequest, labeler_digest: str, seconds: float, held: Held) -> ScoreAnswer:
        """Scores of one request. Raises Fault."""
        served = self.engine.needed(labeler_digest)
        if held.large:
            held.take(weights.of_score(request))
        work = await held.run(partial(self._score_work, request, served))
        held.take(weights.of_work(work))
        assert work.labels is not None
        values = await self._values(work, labeler_digest, seconds) if work.items else b""
        tokens = len(work.query) + sum(map(len, work.items)) if work.items else 0
        return ScoreAnswer(values, work.labels, len(work.items), tokens, served.labeler.digest)

    async def label(self, request: LabelRequest, labeler_digest: str, seconds: float, held: Held) -> LabelAnswer:
        """Labels of one entity's text. Raises Fault."""
        served = self.engine.needed(labeler_digest)
        try:
            served.labeler.manifest.refuse_without_shortlist()
        except LabelerError as error:
            raise Fault(Kind.CONFLICT, str(error)) from None
        updates = self._updates
        if request.persist:
            if updates is None:
                raise Fault(Kind.FORBIDDEN, "persist: updates are not kept by this server", "persist")
            await asyncio.to_thread(updates.check, request, served.needed_catalog())
        if held.large:
            held.take(weights.of_label(request))
        work, truncated, candidates = await held.run(partial(self._label_work, request, served))
        held.take(weights.of_work(work, shared_items=request.candidates is None))
        margins = margins_in(await self._values(work, labeler_digest, seconds) if work.items else b"")
        if request.persist and updates is not None:
            await asyncio.to_thread(updates.keep, request, served, margins)
        manifest = served.labeler.manifest
        return LabelAnswer(
            _labels(margins, candidates, served),
            manifest.threshold,
            manifest.digest,
            served.catalog.version if served.catalog else None,
            truncated,
            persisted=request.persist,
        )

    def about(self) -> dict[str, Any]:
        """Which labeler answers here: what every other path must agree with. Raises Fault while none does."""
        served = self.engine.needed()
        manifest = served.labeler.manifest
        return {
            "labeler_digest": manifest.digest,
            "scorer_digest": manifest.scorer_digest,
            "answer_token_ids": {"yes": manifest.answer_tokens.yes.id, "no": manifest.answer_tokens.no.id},
            "threshold": manifest.threshold,
            "precision": manifest.precision,
            "loaded": list(served.loaded),
            "publication_version": served.catalog.version if served.catalog else None,
        }

    async def _values(self, work: Work, labeler_digest: str, seconds: float) -> bytes:
        try:
            return await self.engine.score(work, seconds)
        except Fault as fault:
            if fault.kind is not Kind.CONFLICT or labeler_digest:
                raise
            # The client named no labeler: that it was let go in this moment is nothing of the client's.
            raise Fault(Kind.UNAVAILABLE, "the labeler was switched; send the request again", retry_after=1.0) from None

    def _score_work(self, request: ScoreRequest, served: Served) -> Work:
        labeler = served.labeler
        try:
            query, items = labeler.tokens(
                request.query, request.items, request.parse_special, self.limits.request_tokens
            )
        except PromptError as error:
            raise Fault(Kind.INVALID, str(error)) from None
        given = request.labels if request.labels is not None else labeler.answer_ids
        by_item = bool(given) and isinstance(given[0], list)
        lists: list[Any] = given if by_item else [given]
        labeler.check_labels(lists, by_item)
        labels = LabelIds.of(lists)
        return Work(labeler.digest, query, items, labels, not request.apply_softmax, request.temperature)

    def _label_work(self, request: LabelRequest, served: Served) -> tuple[Work, bool, list[Candidate]]:
        most = self.limits.request_tokens
        labeler = served.labeler
        try:
            query = labeler.prompt.query(request.text)
        except PromptError as error:
            raise invalid("text", str(error)) from None
        if request.candidates is None:
            catalog = served.needed_catalog()
            candidates = [Candidate(*pair) for pair in zip(catalog.candidate_ids, catalog.texts, strict=True)]
            items = served.needed_items()
        else:
            candidates = [_resolved(entry, index, served) for index, entry in enumerate(request.candidates)]
            items = _items([str(candidate.text) for candidate in candidates], labeler.prompt, most)
        refuse_tokens(len(query.ids) + sum(map(len, items)), most)
        return Work(labeler.digest, query.ids, items), query.truncated, candidates


def _items(texts: list[str], prompt: Prompt, most: int) -> list[list[int]]:
    done = 0

    def of(part: list[str]) -> list[list[int]]:
        nonlocal done
        for index, problem in enumerate(prompt.item_problems(part), start=done):
            if problem is not None:
                limit = prompt.spec.max_item_tokens
                raise invalid(f"candidates[{index}]", f"takes more than {limit} tokens or is blank", limit)
        done += len(part)
        return prompt.items(part)

    try:
        return in_parts(texts, of, most)
    except PromptError:
        # It names the text.
        raise invalid("candidates", "a text among them cannot be tokenised as text; change it") from None


def _resolved(entry: Candidate, index: int, served: Served) -> Candidate:
    """A candidate with its text, taken from the catalog where only the id was given."""
    if entry.text is not None:
        return entry
    catalog = served.needed_catalog()
    try:
        return Candidate(entry.candidate_id, catalog.texts[catalog.candidate_ids.index(str(entry.candidate_id))])
    except ValueError:
        raise invalid(f"candidates[{index}].candidate_id", "is no candidate of the current catalog") from None


def _labels(margins: Any, candidates: list[Candidate], served: Served) -> list[CandidateLabel]:
    manifest, catalog = served.labeler.manifest, served.catalog
    nothing: list[Any] = [None] * len(candidates)
    calibration = manifest.calibration
    probabilities = (
        Platt(calibration.platt_a, calibration.platt_b).probability(margins).tolist() if calibration else nothing
    )
    labels = decide(margins, manifest.threshold).tolist() if manifest.threshold is not None else nothing
    # What was proven of one labeler says nothing of another that answers with its catalog.
    certified = catalog.certified_pairs if catalog and catalog.labeler_digest == manifest.digest else {}
    return [
        CandidateLabel(
            candidate.candidate_id, margin, probability, label, certified.get((candidate.candidate_id, candidate.text))
        )
        for candidate, margin, probability, label in zip(
            candidates, margins.tolist(), probabilities, labels, strict=True
        )
    ]
