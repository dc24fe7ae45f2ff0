"""Writes answer lists: greedy decoding over a key/value cache, free or held to the grammar of a well-formed list.

Free decoding takes the likeliest token until the end token and leaves reading the list to the strict parser. Held to
the grammar, the only choice of a line is its answer: everything between two answers is forced, and is either skipped
(it goes in with the next forward) or fed token by token. Packs are batched, and may share the cache of their query.
Deliberately does not know texts, files or which candidates are true.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from itertools import groupby
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from semlabel.errors import ModelRefused
from semlabel.generation.answers import Faults, parse
from semlabel.generation.prompt import PackPrompt
from semlabel.generation.rows import Rows, SharedQuery
from semlabel.models import module_refusal, smallest_window, stock_attention, using_attention
from semlabel.scorer import readout
from semlabel.served_model import products

_SLACK_TOKENS = 16  # a list that is not well-formed may be this much longer than one that is, then it is cut off


@dataclass(frozen=True)
class Request:
    """One entity's query and its candidates, any number of them, as token ids."""

    query: list[int]
    candidates: list[list[int]]


@dataclass(frozen=True)
class Answered:
    """The answers to one request in the order of its candidates: None where the list gave no single one.

    `margins` (float32, logit yes - logit no where the answer was chosen) exist only where the grammar was held to.
    """

    labels: list[bool | None]
    margins: np.ndarray | None
    faults: Faults


@dataclass
class Work:
    """What decoding took: packs, real tokens in, forwards, seconds; the prefill ends with the first choice."""

    packs: int = 0
    prefill_tokens: int = 0
    decoded_tokens: int = 0
    prefill_forwards: int = 0
    decode_forwards: int = 0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0

    def add(self, other: "Work") -> None:
        """Add another account to this one."""
        for one in fields(self):
            setattr(self, one.name, getattr(self, one.name) + getattr(other, one.name))


@dataclass
class _Pack:
    request: int
    start: int
    query: list[int]
    listed: list[int]
    count: int
    labels: list[bool | None] = field(default_factory=list)
    margins: list[float] = field(default_factory=list)
    faults: Faults = field(default_factory=Faults)


class Generator:
    """Packed generation by one model.

    `constrained` holds decoding to the grammar, with YES from `threshold` (logits) on; `skip_forced` then feeds forced
    tokens together with what follows them. `shared_query` runs an entity's query once for all its packs, else packs of
    all requests are batched as whole prompts. `packs_per_forward` bounds a batch. `precision` is that of the matrix
    products of an fp32 model (see `served_model`); `work` adds up what was done.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        prompt: PackPrompt,
        constrained: bool = False,
        skip_forced: bool = True,
        shared_query: bool = True,
        packs_per_forward: int = 8,
        threshold: float = 0.0,
        precision: str = "fp32",
    ) -> None:
        # What is refused here is what a padded batch over a cache cannot serve, as with the method `prefix_cache`.
        if problem := module_refusal(model, "prefix_cache"):
            raise ModelRefused(problem.replace('; use method = "independent"', "; it cannot generate in batches"))
        self.model, self.prompt = model.eval(), prompt
        self.constrained, self.skip_forced, self.shared_query = constrained, skip_forced, shared_query
        self.packs_per_forward, self.threshold, self.precision = packs_per_forward, threshold, precision
        self.work = Work()
        self._window = smallest_window(model.config)

    def answer(self, requests: Sequence[Request]) -> list[Answered]:
        """The answers to every request. Raises ModelRefused where a sliding window is shorter than a pack."""
        packs = [pack for number, request in enumerate(requests) for pack in self._packs(number, request)]
        with torch.inference_mode(), using_attention(self.model, stock_attention(self.model.config)):
            for batch, shared in self._batches(packs):
                self._decode(batch, shared)
        answered = []
        for number in range(len(requests)):
            mine = [pack for pack in packs if pack.request == number]
            margins = np.array([m for pack in mine for m in pack.margins], dtype=np.float32)
            faults = sum((pack.faults for pack in mine), Faults())
            labels = [label for pack in mine for label in pack.labels]
            answered.append(Answered(labels, margins if self.constrained else None, faults))
        return answered

    def _packs(self, number: int, request: Request) -> list[_Pack]:
        packs = []
        for start in range(0, len(request.candidates), self.prompt.pack_size):
            part = request.candidates[start : start + self.prompt.pack_size]
            pack = _Pack(number, start, request.query, self.prompt.listed(part), len(part))
            longest = len(pack.query) + len(pack.listed) + self._limit(pack.count)
            if self._window is not None and longest > self._window:
                raise ModelRefused(
                    f"{self.model.config.model_type} has a sliding window of {self._window} tokens, a pack takes "
                    f"{longest}; use a smaller pack_size"
                )
            packs.append(pack)
        return packs

    def _limit(self, count: int) -> int:
        return len(self.prompt.grammar.answer([True] * count)) + _SLACK_TOKENS

    def _batches(self, packs: list[_Pack]) -> Iterator[tuple[list[_Pack], SharedQuery | None]]:
        """Batches of packs, each with the shared query it stands behind (None: whole prompts)."""
        size = self.packs_per_forward
        if not self.shared_query:
            by_length = sorted(packs, key=lambda pack: len(pack.query) + len(pack.listed))
            for start in range(0, len(by_length), size):
                yield by_length[start : start + size], None
            return
        for _, members in groupby(packs, key=lambda pack: pack.request):
            mine = list(members)
            shared = None
            if mine[0].query:
                start_time = self._now()
                with products(self.model, self.precision):
                    shared = SharedQuery(self.model, mine[0].query)
                self.work.prefill_seconds += self._now() - start_time
                self.work.prefill_tokens += shared.length
                self.work.prefill_forwards += 1
            for start in range(0, len(mine), size):
                yield mine[start : start + size], shared

    def _decode(self, packs: list[_Pack], shared: SharedQuery | None) -> None:
        rows = Rows(self.model, len(packs), shared)
        prompts = [pack.listed if shared else [*pack.query, *pack.listed] for pack in packs]
        work = Work(packs=len(packs))
        start = self._now()
        if self.constrained:
            lead = self.prompt.grammar.lead(0)
            hidden = self._append(rows, [[*prompt, *lead] for prompt in prompts])
        else:
            hidden = self._grown(rows, prompts)
        work.prefill_seconds, work.prefill_tokens, work.prefill_forwards = (
            self._now() - start,
            rows.tokens,
            rows.forwards,
        )
        start = self._now()
        (self._held if self.constrained else self._free)(rows, packs, hidden)
        work.decode_seconds = self._now() - start
        work.decoded_tokens = rows.tokens - work.prefill_tokens
        work.decode_forwards = rows.forwards - work.prefill_forwards
        self.work.add(work)

    def _held(self, rows: Rows, packs: list[_Pack], hidden: torch.Tensor) -> None:
        """Lines one after the other: read a choice, then feed it with all that is forced up to the next one."""
        grammar = self.prompt.grammar
        lines = max(pack.count for pack in packs)
        for line in range(lines):
            margins = readout(hidden, self.model, grammar.yes[0], grammar.no[0]).tolist()
            blocks: list[list[int]] = []
            for pack, margin in zip(packs, margins, strict=True):
                if line < pack.count:
                    pack.margins.append(margin)
                    pack.labels.append(margin >= self.threshold)
                more = line + 1 < pack.count
                blocks.append([*self._chosen(pack), *grammar.lead(line + 1)] if more else [])
            if line + 1 < lines:
                hidden = self._append(rows, blocks)
        for pack in packs:
            pack.faults = Faults(lists=1, candidates=pack.count)

    def _chosen(self, pack: _Pack) -> tuple[int, ...]:
        return self.prompt.grammar.yes if pack.labels[-1] else self.prompt.grammar.no

    def _grown(self, rows: Rows, blocks: list[list[int]]) -> torch.Tensor:
        with products(self.model, self.precision):
            return rows.append(blocks)

    def _append(self, rows: Rows, blocks: list[list[int]]) -> torch.Tensor:
        """One forward for the blocks, or one for every token of theirs when forced tokens are not to be skipped."""
        if self.skip_forced or not rows.forwards:
            return self._grown(rows, blocks)
        hidden: torch.Tensor | None = None
        for step in range(max(map(len, blocks))):
            now = self._grown(rows, [block[step : step + 1] for block in blocks])
            if hidden is None:
                hidden = now
            else:
                alive = torch.tensor([step < len(block) for block in blocks], device=now.device)
                hidden = torch.where(alive[:, None], now, hidden)
        assert hidden is not None  # a line always has a token
        return hidden

    def _free(self, rows: Rows, packs: list[_Pack], hidden: torch.Tensor) -> None:
        """The likeliest token of the whole vocabulary, until every row has written its end or the limit."""
        head: Any = self.model.get_output_embeddings()
        end = self.prompt.grammar.end
        written: list[list[int]] = [[] for _ in packs]
        finished = [False] * len(packs)
        limits = [self._limit(pack.count) for pack in packs]
        while True:
            blocks: list[list[int]] = []
            for row, token in enumerate(head(hidden).argmax(dim=-1).tolist()):
                alive = not finished[row] and len(written[row]) < limits[row]
                finished[row] = finished[row] or (alive and token == end)
                grows = alive and token != end
                if grows:
                    written[row].append(token)
                blocks.append([token] if grows and len(written[row]) < limits[row] else [])
            if not any(blocks):
                break
            hidden = self._grown(rows, blocks)
        for pack, ids, whole in zip(packs, written, finished, strict=True):
            parsed = parse(self.prompt.text_of(ids), pack.count, self.prompt.yes, self.prompt.no, whole)
            pack.labels, pack.faults = parsed.labels, parsed.faults

    def _now(self) -> float:
        if self.model.device.type == "cuda":
            torch.cuda.synchronize(self.model.device)
        return time.perf_counter()
