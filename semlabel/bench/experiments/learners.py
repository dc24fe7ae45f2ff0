"""Two ways to learn from the same pairs: semantic scoring, and packed generation of answer lists.

Both train through the labeler's own training (the same Trainer, optimiser, schedule and resumption), one entity's
pairs a round, and both give margins for every candidate of an entity. Knows nothing of which pairs, cuts or measures.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from semlabel.bench.experiments.problem import Problem
from semlabel.bench.experiments.whole_prompt import whole_prompt_objective
from semlabel.bench.orders import MISSING, Decisions, permutation
from semlabel.errors import PromptError, SettingsError
from semlabel.generation.answers import Faults
from semlabel.generation.generator import Answered, Generator, Request, Work
from semlabel.generation.prompt import PACK_SIZE, PackPrompt
from semlabel.generation.trainer import list_objective, pack_rounds
from semlabel.lanes import dealt_out
from semlabel.models import resolve_device, resolve_precision, stock_attention, using_attention
from semlabel.progress import ProgressSink, silent
from semlabel.prompt import Prompt, PromptSpec, load_tokenizer
from semlabel.scorer import Scorer
from semlabel.served_model import load_served
from semlabel.settings import Settings
from semlabel.training import TrainingResult, label_objective, train
from semlabel.training_data import rounds_from_pairs, training_spec

if TYPE_CHECKING:
    import pandas as pd

Margins = npt.NDArray[np.float32]
LOSSES = ("label", "whole_prompt")
_ORDER = 1  # candidates stand in a random order in the packs that are judged, the same for every model


@dataclass(frozen=True)
class Scored:
    """Margins (entities, candidates), the seconds they took without loading, and what was counted on the way."""

    margins: Margins
    seconds: float
    counts: dict[str, Any]


class Learner(Protocol):
    """A method with one set of settings."""

    name: str

    def train(self, pairs: "pd.DataFrame", folder: Path, progress: ProgressSink = silent) -> TrainingResult:
        """Train on `pairs` (entity_id, candidate_id, label) in `folder`; goes on where it was killed."""
        ...

    def score(self, model_dir: Path | str, texts: Sequence[str], threshold: float = 0.0) -> Scored:
        """Margins of every candidate of the catalog for entities; `threshold` matters to lists, which feed back."""
        ...


class SemanticScoring:
    """One decision per prompt: `loss` is `label` (the recipe) or `whole_prompt`.

    `round_items` cuts an entity's pairs into smaller rounds (0: all of an entity's pairs together).
    """

    name = "mis"

    def __init__(self, problem: Problem, settings: Settings, loss: str = "label", round_items: int = 0) -> None:
        if loss not in LOSSES:
            raise SettingsError(f"loss = {loss!r} is not known; use {' or '.join(LOSSES)}")
        self._problem, self._settings, self._loss = problem, settings, loss
        self._round_items = round_items or settings.training.items_per_round
        self._spec = PromptSpec.from_settings(settings.prompt)

    def train(self, pairs: "pd.DataFrame", folder: Path, progress: ProgressSink = silent) -> TrainingResult:
        """See `Learner.train`."""
        settings, problem = self._settings, self._problem
        spec = training_spec(self._spec, settings.training)
        prompt = Prompt(spec, load_tokenizer(settings.model.base))
        rounds = rounds_from_pairs(pairs, problem.entities, problem.candidates, prompt, self._round_items)
        objective = (label_objective if self._loss == "label" else whole_prompt_objective)(prompt)
        base, device = settings.model.base, settings.model.device
        return train(base, prompt, rounds, settings.training, folder, progress, device, objective)

    def score(self, model_dir: Path | str, texts: Sequence[str], threshold: float = 0.0) -> Scored:
        """See `Learner.score`."""
        settings = self._settings
        scorer = Scorer.load(
            model_dir,
            self._spec,
            settings.model.precision,
            settings.model.device,
            items_per_round=settings.scoring.items_per_round,
            max_round_tokens=settings.scoring.max_round_tokens,
        )
        items = scorer.prompt.items(list(self._problem.catalog["text"]))
        queries = [query.ids for query in scorer.prompt.queries(list(texts))]
        start = time.perf_counter()
        found = dict(scorer.margins_of([(query, items) for query in queries]))
        margins = np.stack([_or_raise(found[number]) for number in range(len(queries))])
        seconds = time.perf_counter() - start
        counts = {
            "precision": scorer.precision,
            "tokens_per_query": float(np.mean([len(query) for query in queries])),
            "tokens_per_item": float(np.mean([len(item) for item in items])),
        }
        return Scored(margins, seconds, counts)


class PackedGeneration:
    """Lists of up to 20 candidates in random order, one answer a line; margins are the answers' log-odds."""

    name = "generation"

    def __init__(self, problem: Problem, settings: Settings, packs_per_forward: int = 10) -> None:
        self._problem, self._settings, self._packs_per_forward = problem, settings, packs_per_forward
        self._spec = PromptSpec.from_settings(settings.prompt)

    def _prompt(self, spec: PromptSpec) -> PackPrompt:
        return PackPrompt(spec, load_tokenizer(self._settings.model.base), PACK_SIZE)

    def train(self, pairs: "pd.DataFrame", folder: Path, progress: ProgressSink = silent) -> TrainingResult:
        """See `Learner.train`."""
        settings, problem, training = self._settings, self._problem, self._settings.training
        spec = training_spec(self._spec, training)
        each = training.items_per_round
        tables = pairs, problem.entities, problem.candidates
        rounds = pack_rounds(self._prompt(spec), *tables, training.seed, each)
        single = Prompt(spec, load_tokenizer(settings.model.base))
        base, device = settings.model.base, settings.model.device
        return train(base, single, rounds, training, folder, progress, device, list_objective())

    def score(self, model_dir: Path | str, texts: Sequence[str], threshold: float = 0.0) -> Scored:
        """See `Learner.score`. Lists are held to the grammar, and a YES is written from `threshold` on."""
        generators, places, requests = self._requests(model_dir, texts, True, threshold)
        start = time.perf_counter()
        answered = _answers(generators, requests)
        seconds = time.perf_counter() - start
        margins = np.empty((len(texts), len(places)), dtype=np.float32)
        margins[:, places] = np.stack([one.margins for one in answered if one.margins is not None])
        return Scored(margins, seconds, {"precision": generators[0].precision, **_work(generators)})

    def answer(self, model_dir: Path | str, texts: Sequence[str]) -> tuple[Decisions, Faults, float]:
        """What lists written freely say (entities, candidates), their faults, and the seconds they took."""
        generators, places, requests = self._requests(model_dir, texts, False, 0.0)
        start = time.perf_counter()
        answered = _answers(generators, requests)
        seconds = time.perf_counter() - start
        decisions: Decisions = np.full((len(texts), len(places)), MISSING, dtype=np.int8)
        faults = Faults()
        for row, one in enumerate(answered):
            decisions[row, places] = [MISSING if label is None else int(label) for label in one.labels]
            faults += one.faults
        return decisions, faults, seconds

    def _requests(
        self, model_dir: Path | str, texts: Sequence[str], constrained: bool, threshold: float
    ) -> tuple[list[Generator], npt.NDArray[np.int64], list[Request]]:
        """As many generators of one model as may be at work at once; where the candidates stand, and the requests."""
        settings, prompt = self._settings, self._prompt(self._spec)
        device = resolve_device(settings.model.device)
        precision = resolve_precision(settings.model.precision, device)
        model = load_served(model_dir, precision, device)
        lanes = torch.get_num_threads() if device == "cpu" else 1
        generators = [
            Generator(
                model,
                prompt,
                constrained,
                packs_per_forward=self._packs_per_forward,
                threshold=threshold,
                precision=precision,
            )
            for _ in range(lanes)
        ]
        candidates = prompt.candidates(list(self._problem.catalog["text"]))
        places = permutation(_ORDER, len(candidates))
        listed = [candidates[place] for place in places]
        return generators, places, [Request(prompt.query(text).ids, listed) for text in texts]


def _or_raise(found: "np.ndarray | PromptError") -> np.ndarray:
    if isinstance(found, PromptError):
        raise found
    return found


def _answers(generators: Sequence[Generator], requests: Sequence[Request]) -> list[Answered]:
    """The answers to all requests, every generator at work on a part of them."""
    model = generators[0].model
    with using_attention(model, stock_attention(model.config)):
        return dealt_out(requests, [one.answer for one in generators])


def _work(generators: Sequence[Generator]) -> dict[str, Any]:
    work = Work()
    for one in generators:
        work.add(one.work)
    return {
        "packs": work.packs,
        "prefill_tokens": work.prefill_tokens,
        "decoded_tokens": work.decoded_tokens,
        "forwards": work.prefill_forwards + work.decode_forwards,
    }
