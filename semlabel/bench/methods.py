"""What is compared: every method scores the same tasks with a setting that is searched for.

`mis` is the labeler's own scorer. `independent` runs whole prompts in padded batches sorted by length, `prefix_cache`
runs a query once and batches its items over the cache, both on stock transformers and both reading two rows of the
head. Deliberately does not know clocks, tables or which method should win.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import torch
from transformers import PreTrainedModel

from semlabel.bench.tasks import Task
from semlabel.errors import PromptError
from semlabel.generation.rows import Rows, SharedQuery
from semlabel.lanes import side_by_side
from semlabel.models import stock_attention, using_attention
from semlabel.packing import rounds
from semlabel.scorer import Scorer, readout

Setting = dict[str, Any]
Label = bool | None


@dataclass
class Account:
    """Real tokens and forwards that one call took; seconds where a method tells its phases apart."""

    prefill_tokens: int = 0
    decoded_tokens: int = 0
    forwards: int = 0
    prefill_seconds: float | None = None
    decode_seconds: float | None = None

    def __add__(self, other: "Account") -> "Account":
        both = {one.name: (getattr(self, one.name), getattr(other, one.name)) for one in fields(self)}
        added: dict[str, Any] = {name: None if None in parts else sum(parts) for name, parts in both.items()}
        return Account(**added)


@dataclass(frozen=True)
class Scored:
    """What a method gave for every task: margins, or labels (None: no answer) where it decides by itself, or both."""

    margins: list[np.ndarray] | None
    labels: list[list[Label]] | None = None
    account: Account = field(default_factory=Account)


class Method(Protocol):
    """One way to score tasks. A ladder is a list of settings to try in this order until they stop getting faster.

    `has_lanes`: it takes a setting `lanes`, how many tasks are at work at once, each on its share of the threads.
    `sets_up`: the first call with a setting makes what later ones find there. One that runs on another engine than
    torch tells how that was built in an attribute `engine`.
    """

    name: str
    has_lanes: bool
    sets_up: bool

    def ladders(self, tasks: Sequence[Task]) -> list[list[Setting]]:
        """The settings worth trying for these tasks."""
        ...

    def run(self, tasks: Sequence[Task], setting: Setting) -> Scored:
        """Score all tasks."""
        ...


def in_lanes(run: Callable[[Sequence[Task]], Scored], tasks: Sequence[Task], lanes: int) -> Scored:
    """`run` on each of `lanes` parts of the tasks, side by side, as if it had been run on all of them."""
    bounds = np.linspace(0, len(tasks), min(lanes, len(tasks)) + 1).round().astype(int).tolist()
    calls = [partial(run, tasks[start:end]) for start, end in pairwise(bounds)]
    first, *rest = side_by_side(calls, lanes)
    margins, labels, account = first.margins, first.labels, first.account
    for part in rest:
        margins = None if margins is None or part.margins is None else [*margins, *part.margins]
        labels = None if labels is None or part.labels is None else [*labels, *part.labels]
        account += part.account
    if rest:  # phases of parts that ran side by side do not add up to anything
        account.prefill_seconds = account.decode_seconds = None
    return Scored(margins, labels, account)


def doubling(start: int, limit: int) -> list[int]:
    """`start`, twice that, and so on below `limit`, then `limit` itself."""
    sizes = []
    while start < limit:
        sizes.append(start)
        start *= 2
    return [*sizes, limit]


class Mis:
    """Packed scoring by a loaded Scorer; searched: items per round."""

    name = "mis"
    has_lanes = True
    sets_up = False

    def __init__(self, scorer: Scorer) -> None:
        self.scorer = scorer

    def ladders(self, tasks: Sequence[Task]) -> list[list[Setting]]:
        items = max(len(task.items) for task in tasks)
        return [[{"items_per_round": size} for size in reversed([*doubling(64, items)][-3:])]]

    def run(self, tasks: Sequence[Task], setting: Setting) -> Scored:
        self.scorer.items_per_round, self.scorer.lanes = setting["items_per_round"], setting.get("lanes", 1)
        before = self.scorer.forwards
        margins: list[np.ndarray] = [np.empty(0)] * len(tasks)
        for number, found in self.scorer.margins_of([(task.query, task.items) for task in tasks]):
            if isinstance(found, PromptError):
                raise found
            margins[number] = found
        forwards = self.scorer.forwards - before
        return Scored(margins, account=Account(sum(map(self._tokens, tasks)), forwards=forwards))

    def _tokens(self, task: Task) -> int:
        """Tokens that go in: the query once for every round."""
        scorer = self.scorer
        cuts = rounds(task.items, scorer.items_per_round, scorer.max_round_tokens, len(task.query))
        return task.tokens + (len(cuts) - 1) * len(task.query)


class Independent:
    """Whole prompts in padded batches of similar length; searched: prompts per forward. Queries may share a batch."""

    name = "independent"
    has_lanes = True
    sets_up = False

    def __init__(self, model: PreTrainedModel, answer_ids: tuple[int, int]) -> None:
        self.model, self.answer_ids = model, answer_ids

    def ladders(self, tasks: Sequence[Task]) -> list[list[Setting]]:
        prompts = sum(len(task.items) for task in tasks)
        return [[{"prompts_per_forward": size} for size in doubling(1, min(prompts, 64))]]

    def run(self, tasks: Sequence[Task], setting: Setting) -> Scored:
        return in_lanes(partial(self._tasks, size=setting["prompts_per_forward"]), tasks, setting.get("lanes", 1))

    def _tasks(self, tasks: Sequence[Task], size: int) -> Scored:
        prompts = [[*task.query, *item] for task in tasks for item in task.items]
        order = sorted(range(len(prompts)), key=lambda number: len(prompts[number]))
        margins = torch.empty(len(prompts))
        account = Account()
        with torch.inference_mode(), using_attention(self.model, stock_attention(self.model.config)):
            for start in range(0, len(order), size):
                members = order[start : start + size]
                margins[members] = self._batch([prompts[number] for number in members]).cpu()
                account.forwards += 1
        account.prefill_tokens = sum(map(len, prompts))
        parts = margins.split([len(task.items) for task in tasks])
        return Scored([part.numpy() for part in parts], account=account)

    def _batch(self, prompts: list[list[int]]) -> torch.Tensor:
        # Padding stands right of every token that is read: causal attention never looks there, so no mask is needed.
        width = max(map(len, prompts))
        device = self.model.device
        ids = torch.tensor([[*prompt, *[0] * (width - len(prompt))] for prompt in prompts], device=device)
        hidden = self.model.base_model(input_ids=ids, use_cache=False).last_hidden_state
        last = torch.tensor([len(prompt) - 1 for prompt in prompts], device=device)
        return readout(hidden[torch.arange(len(prompts), device=device), last], self.model, *self.answer_ids)


class PrefixCache:
    """The query once, its items in batches over the cache; searched: items per forward."""

    name = "prefix_cache"
    has_lanes = True
    sets_up = False

    def __init__(self, model: PreTrainedModel, answer_ids: tuple[int, int]) -> None:
        self.model, self.answer_ids = model, answer_ids

    def ladders(self, tasks: Sequence[Task]) -> list[list[Setting]]:
        items = max(len(task.items) for task in tasks)
        return [[{"items_per_forward": size} for size in doubling(4, min(items, 128))]]

    def run(self, tasks: Sequence[Task], setting: Setting) -> Scored:
        return in_lanes(partial(self._tasks, size=setting["items_per_forward"]), tasks, setting.get("lanes", 1))

    def _tasks(self, tasks: Sequence[Task], size: int) -> Scored:
        account = Account()
        with torch.inference_mode(), using_attention(self.model, stock_attention(self.model.config)):
            margins = [self._task(task, size, account) for task in tasks]
        account.prefill_tokens = sum(task.tokens for task in tasks)
        return Scored(margins, account=account)

    def _task(self, task: Task, size: int, account: Account) -> np.ndarray:
        shared = SharedQuery(self.model, task.query)
        account.forwards += 1
        order = sorted(range(len(task.items)), key=lambda number: len(task.items[number]))
        margins = torch.empty(len(order))
        for start in range(0, len(order), size):
            members = order[start : start + size]
            hidden = self._batch(shared, [task.items[number] for number in members])
            margins[members] = readout(hidden, self.model, *self.answer_ids).cpu()
            account.forwards += 1
        return margins.numpy()

    def _batch(self, shared: SharedQuery, items: list[list[int]]) -> torch.Tensor:
        """Hidden states at the items' last tokens. The last forward over the cache needs no mask for its padding."""
        return Rows(self.model, len(items), shared).append(items, last=True)


def alone(model: PreTrainedModel, answer_ids: tuple[int, int], query: list[int], item: list[int]) -> float:
    """The margin of one whole prompt run by itself: what every method is held against."""
    with torch.inference_mode(), using_attention(model, stock_attention(model.config)):
        ids = torch.tensor([[*query, *item]], device=model.device)
        hidden = model.base_model(input_ids=ids, use_cache=False).last_hidden_state[0, -1:]
        return float(readout(hidden, model, *answer_ids)[0])
