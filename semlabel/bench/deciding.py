"""Decisions of one model about one cross of entities and candidates: by packed scoring, and by lists, free or held.

Loads a model when it is asked for and lets the one before it go. Knows nothing of orders, noise or files.
"""

from dataclasses import asdict
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from transformers import PreTrainedModel

from semlabel.bench.order_data import SYNTHETIC_CANDIDATES, Cross, Texts, cross_of, synthetic_cross
from semlabel.bench.orders import MISSING, Decisions
from semlabel.bench.subject import Subject
from semlabel.bench.throughput import left_out
from semlabel.errors import SemlabelError
from semlabel.generation.answers import Faults
from semlabel.generation.generator import Generator, Request
from semlabel.generation.prompt import PackPrompt
from semlabel.manifest import base_identity
from semlabel.models import resolve_precision
from semlabel.scorer import Scorer
from semlabel.served_model import load_served
from semlabel.versions import SCORING_CODE_VERSION

Margins = npt.NDArray[np.float32]


class DecidingPlan(Protocol):
    """What the plans of the measurements that decide have in common."""

    @property
    def precisions(self) -> tuple[str, ...]:
        """In which packed scoring decides."""
        ...

    @property
    def decisions(self) -> int:
        """Bounds the entities of the cross; with the subject's own threshold there are ten times as many."""
        ...

    @property
    def items_per_round(self) -> int:
        """Of packed scoring."""
        ...

    @property
    def generator(self) -> str | None:
        """The model that writes lists; None: the subject's."""
        ...

    @property
    def generation_precision(self) -> str:
        """In which it writes them."""
        ...

    @property
    def packs_per_forward(self) -> int:
        """Of generation."""
        ...


class Deciding:
    """Decides in those of the plan's precisions that are served here (`precisions`).

    Raises SemlabelError when there are none.
    """

    def __init__(self, subject: Subject, plan: DecidingPlan, texts: Texts | None, device: str) -> None:
        absent = {entry["precision"] for entry in left_out(plan.precisions, device)}
        self.precisions = [precision for precision in plan.precisions if precision not in absent]
        if not self.precisions:
            raise SemlabelError("none of the precisions can be scored here; use fp32")
        self._subject, self._device, self._items_per_round = subject, device, plan.items_per_round
        self._decisions, self._packs_per_forward = plan.decisions, plan.packs_per_forward
        self._generator = plan.generator or subject.path
        self.generation_precision = resolve_precision(plan.generation_precision, device)
        self._scorer: Scorer | None = None
        scorer = self.scorer(self.precisions[0])
        self._packs = PackPrompt(subject.spec, scorer.tokenizer)
        self.tokenizer = scorer.tokenizer
        embeddings: Any = scorer.model.get_input_embeddings()
        self.embeddings = int(embeddings.num_embeddings)
        self.cross = self._cross(scorer, texts)

    def identity(self, plan: Any) -> list[Any]:
        """What decisions depend on besides the texts: the plan (a dataclass), both models by their files, the code."""
        generator = "" if self._generator == self._subject.path else base_identity(self._generator)
        return [asdict(plan), self._subject.digest, generator, SCORING_CODE_VERSION]

    def _cross(self, scorer: Scorer, texts: Texts | None) -> Cross:
        if texts is not None:
            return cross_of(texts, scorer.prompt, self._packs, self._most_entities(len(texts.candidates)))
        last_id = scorer.prompt.item("a")[-1]
        entities = self._most_entities(SYNTHETIC_CANDIDATES)
        return synthetic_cross(scorer.tokenizer, self.embeddings, last_id, entities)

    def _most_entities(self, candidates: int) -> int:
        """Entities that suffice for the decisions, and with a threshold ten times as many to find the YES labels in."""
        enough = -(-self._decisions // candidates)
        return enough if self._subject.threshold is None else 10 * enough

    def scorer(self, precision: str) -> Scorer:
        """The scorer in this precision; another precision's goes."""
        if self._scorer is None or self._scorer.precision != precision:
            self._scorer = None  # the old weights go before the new ones come
            subject = self._subject
            size = self._items_per_round
            self._scorer = Scorer.load(subject.path, subject.spec, precision, self._device, items_per_round=size)
        return self._scorer

    def forget_scorer(self) -> None:
        """Let the scorer's weights go: what follows is generated."""
        self._scorer = None

    @cached_property
    def _generating_model(self) -> PreTrainedModel:
        return load_served(self._generator, self.generation_precision, self._device)

    def answers(self, constrained: bool, entity: int, listed: list[list[int]]) -> tuple[Decisions, Faults]:
        """The decisions (candidates,) of lists about some candidates (token ids) of an entity, and their faults."""
        size = self._packs_per_forward
        generator = Generator(
            self._generating_model,
            self._packs,
            constrained=constrained,
            packs_per_forward=size,
            precision=self.generation_precision,
        )
        (answered,) = generator.answer([Request(self.cross.pack_queries[entity], listed)])
        decided = [MISSING if label is None else int(label) for label in answered.labels]
        return np.array(decided, dtype=np.int8), answered.faults


def cut_of(margins: Margins, threshold: float | None, yes_share: float) -> float:
    """The subject's own threshold, else the margin from which on `yes_share` of the decisions are YES."""
    # `higher`, so that the cut is a margin that occurs and at least one decision is YES.
    return float(np.quantile(margins, 1 - yes_share, method="higher")) if threshold is None else threshold


def of_lists(faults: Faults) -> dict[str, int]:
    """The faults of answer lists under names that say so."""
    return {"lists" if name == "lists" else f"lists_{name}": count for name, count in faults.to_json().items()}
