"""One scorer, three methods that agree: margins of a query's items from a causal language model.

`mis` packs the items behind one query and scores them in one forward; `prefix_cache` runs the query once and the
items in batches over its cache; `independent` runs every prompt by itself. Token ids in, float32 margins out:
deliberately does not know entities, thresholds or labels.
"""

import copy
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from itertools import groupby
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from transformers import PreTrainedModel

from semlabel.attention import SPLIT
from semlabel.bundles import Bundle, bundle
from semlabel.errors import LabelerError, ModelRefused, PromptError
from semlabel.heap import keep_freed_memory
from semlabel.lanes import side_by_side
from semlabel.models import (
    DTYPES,
    attention_layers,
    has_stateful_rope,
    module_refusal,
    read_config,
    resolve_device,
    resolve_precision,
    stock_attention,
    using_attention,
)
from semlabel.packing import Layout, pack, rounds
from semlabel.prompt import Prompt, PromptSpec, load_tokenizer
from semlabel.prompt_length import longest_prompt, refuse_too_long
from semlabel.readout import Labels, probabilities_of, readout, vocabulary_of
from semlabel.served_model import load_served, products

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

METHODS = ("mis", "prefix_cache", "independent")
_CACHED_ITEMS_PER_FORWARD = 32
_INDEPENDENT_TOKENS_PER_FORWARD = 2048
# Above this a round fills the processor by itself; below, as many as come to so many tokens share a forward.
_SHORT, _TOKENS_TOGETHER = 512, 2048

_Read = TypeVar("_Read")


class Scorer:
    """Margins of items under one model, one prompt and one method.

    `method` is `mis`, `prefix_cache` or `independent` (`auto` is `mis`). `precision` is fp32 or bf16: what matrix
    products are computed in; margins are float32, and so are the states between layers of an fp32 model. `lanes`
    bounds the forwards that `margins_of` has at work at once on a CPU; 0 is one for each of torch's threads. `forwards`
    counts forward passes. Raises ModelRefused when the method cannot score this model exactly; `self_check` proves
    what a config does not tell. One scorer serves one caller at a time.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: "PreTrainedTokenizerFast",
        prompt: Prompt,
        method: str = "mis",
        items_per_round: int = 200,
        precision: str = "fp32",
        max_round_tokens: int = 8192,
        lanes: int = 0,
    ) -> None:
        method = "mis" if method == "auto" else method
        if method not in METHODS:
            raise ModelRefused(f"[scoring] method = {method!r} is not known; use auto, {', '.join(METHODS)}")
        if problem := module_refusal(model, method):
            raise ModelRefused(problem)
        if model.dtype not in (torch.float32, DTYPES[precision]):
            raise LabelerError(f"the model was loaded in {model.dtype}, the scorer is asked for {precision}")
        self.model, self.tokenizer, self.prompt = model.eval(), tokenizer, prompt
        self.method, self.precision = method, precision
        self.items_per_round, self.max_round_tokens = items_per_round, max_round_tokens
        self.lanes = lanes
        self.forwards = 0
        self._counting = Lock()
        self._attention = SPLIT if method == "mis" else stock_attention(model.config)
        # Plain functions: with bound ones the scorer would refer to itself, and its weights would outlive its last use.
        self._hidden: Callable[[Scorer, list[int], list[list[int]]], torch.Tensor] = {
            "mis": Scorer._one,
            "prefix_cache": Scorer._over_cache,
            "independent": Scorer._alone,
        }[method]
        embeddings: Any = model.get_input_embeddings()
        self._vocabulary = int(embeddings.num_embeddings)
        self._longest = longest_prompt(model.config, method, prompt.spec.max_query_tokens)

    def __repr__(self) -> str:
        return f"Scorer({self.model.config.model_type}, {self.method}, {self.precision}, {self.model.device})"

    @classmethod
    def load(
        cls,
        path: str | Path,
        prompt_spec: PromptSpec,
        precision: str = "auto",
        device: str = "auto",
        method: str = "auto",
        items_per_round: int = 200,
        max_round_tokens: int = 8192,
        self_check: bool = True,
        lanes: int = 0,
    ) -> "Scorer":
        """Model, tokenizer and prompt from one directory, self-checked.

        Raises PromptError, ModelRefused, LabelerError or SettingsError, each naming what does not fit.
        """
        device = resolve_device(device)
        precision = resolve_precision(precision, device)
        tokenizer = load_tokenizer(path)
        prompt = Prompt(prompt_spec, tokenizer)
        refuse_too_long(read_config(path), prompt_spec, method, max_round_tokens)
        keep_freed_memory()
        model = load_served(path, precision, device, SPLIT if method in ("auto", "mis") else "stock")
        scorer = cls(model, tokenizer, prompt, method, items_per_round, precision, max_round_tokens, lanes)
        if self_check:
            scorer.self_check()
        return scorer

    def self_check(self) -> float:
        """Score known prompts packed, reordered and alone; the largest difference of margins on success.

        Raises ModelRefused when this method does not give this model's margins, LabelerError when the margins do
        not vary or the prompt's tokens are not what they should be.
        """
        from semlabel.self_check import check

        return check(self)

    def margins(self, query: Sequence[int], items: Sequence[Sequence[int]]) -> np.ndarray:
        """Margins (len(items),) float32 in the order of `items`, scored in as many rounds as the limits ask for.

        An empty item is scored at the query's last token. Raises PromptError for an empty item after an empty
        query, a prompt longer than the model or its checked window allows, or ids outside the vocabulary;
        RuntimeError while the model is in training mode; LabelerError when a margin is not a finite number.
        """
        if not items:
            return np.empty(0, dtype=np.float32)

        def read(_: range, hidden: torch.Tensor) -> torch.Tensor:
            return readout(hidden, self.model, self.prompt.yes_id, self.prompt.no_id).cpu()

        return _finite(torch.cat(self._read_rounds(query, items, read)).numpy())

    def margins_of(
        self, rounds: Sequence[tuple[Sequence[int], Sequence[Sequence[int]]]]
    ) -> Iterator[tuple[int, np.ndarray | PromptError]]:
        """Margins of many rounds, each as (its number, what `margins` gives): the short ones together in one forward.

        Longer ones come first, each as soon as it and those before it are scored. Which short rounds meet depends on
        `rounds` alone; margins are those of `margins` up to rounding, in fp32 at most 1e-4. A round that `margins`
        raises a PromptError for has that error in the place of margins; whatever else it raises ends the iteration.
        Nothing else may be asked of this scorer until then.
        """
        work: list[tuple[list[int], Callable[[], Sequence[np.ndarray | PromptError]]]] = []
        short = []
        for number, (query, items) in enumerate(rounds):
            tokens = len(query) + sum(map(len, items))
            if self.method == "mis" and tokens <= _SHORT and self._is_one_round(query, items):
                short.append((tokens, number))
            else:
                work.append(([number], partial(self._margins_or_refusal, query, items)))
        for members in _bundled(sorted(short)):
            work.append((members, partial(self._together, [rounds[number] for number in members])))
        found = side_by_side([call for _, call in work], self.most_lanes)
        with using_attention(self.model, self._attention), closing(found):
            for (members, _), margins in zip(work, found, strict=True):
                yield from zip(members, margins, strict=True)

    @property
    def most_lanes(self) -> int:
        """Forwards that may be at work at once: one where the device is not the CPU or the model keeps frequencies."""
        if self.model.device.type != "cpu" or has_stateful_rope(self.model.config):
            return 1
        return self.lanes or torch.get_num_threads()

    def _is_one_round(self, query: Sequence[int], items: Sequence[Sequence[int]]) -> bool:
        try:
            return len(self.rounds(query, items)) == 1
        except PromptError:
            return False

    def _margins_or_refusal(
        self, query: Sequence[int], items: Sequence[Sequence[int]]
    ) -> tuple[np.ndarray | PromptError]:
        try:
            return (self.margins(query, items),)
        except PromptError as error:
            return (error,)

    def _together(self, rounds: Sequence[tuple[Sequence[int], Sequence[Sequence[int]]]]) -> list[np.ndarray]:
        """Margins of short rounds in one forward."""
        ids, layouts = bundle([pack(query, items) for query, items in rounds])
        with self._scoring():
            hidden = self._packed(ids, layouts)
            margins = readout(hidden, self.model, self.prompt.yes_id, self.prompt.no_id).cpu().numpy()
        return np.split(_finite(margins), np.cumsum([len(items) for _, items in rounds])[:-1])

    def probabilities(self, query: Sequence[int], items: Sequence[Sequence[int]], labels: Labels) -> list[np.ndarray]:
        """Probabilities of each item's label tokens, float64, one array an item in the order of `items`.

        Everything else is as in `margins`. Raises PromptError for a label token that the model's head has no row for.
        """
        if len(labels.ids) != len(items):
            raise PromptError(f"{len(labels.ids)} lists of label tokens for {len(items)} items; give one an item")
        asked = {token for ids in labels.ids for token in ids}
        if asked and not 0 <= min(asked) <= max(asked) < self.vocabulary:
            raise PromptError(
                f"label tokens {min(asked)} to {max(asked)} are outside the vocabulary of {self.vocabulary}"
            )

        def read(members: range, hidden: torch.Tensor) -> list[np.ndarray]:
            part = replace(labels, ids=labels.ids[members.start : members.stop])
            return probabilities_of(hidden, self.model, part)

        return [row for rows in self._read_rounds(query, items, read) for row in rows]

    def rounds(self, query: Sequence[int], items: Sequence[Sequence[int]]) -> list[range]:
        """The rounds that `margins` would score these items in. Raises PromptError where it would."""
        self._validate(query, items)
        return rounds(items, self.items_per_round, self.max_round_tokens, len(query)) if items else []

    @property
    def vocabulary(self) -> int:
        """Label tokens lie below it."""
        return vocabulary_of(self.model)

    @property
    def longest_prompt(self) -> int:
        """The most tokens that a query and one of its items may have together."""
        return min(self._longest, self.max_round_tokens)

    def _read_rounds(
        self, query: Sequence[int], items: Sequence[Sequence[int]], read: Callable[[range, torch.Tensor], _Read]
    ) -> list[_Read]:
        """What `read` makes of each round: its members, and the hidden states (items, width) at their last tokens."""
        prefix, rest = list(query), [list(item) for item in items]
        with self._scoring():
            return [
                read(members, self._hidden(self, prefix, rest[members.start : members.stop]))
                for members in self.rounds(prefix, rest)
            ]

    @contextmanager
    def _scoring(self) -> Iterator[None]:
        """Raises RuntimeError while the model is in training mode."""
        if self.model.training:
            raise RuntimeError("the model is in training mode: call model.eval() before scoring")
        with torch.inference_mode(), using_attention(self.model, self._attention):
            yield

    def plain_margin(self, prompt_ids: Sequence[int]) -> float:
        """The margin of one whole prompt by the untouched model, its own head included: what all methods must give."""
        arguments: dict[str, Any] = {"logits_to_keep": 1} if self._takes("logits_to_keep", self.model) else {}
        stock = stock_attention(self.model.config)
        with torch.inference_mode(), using_attention(self.model, stock), products(self.model, self.precision):
            self._restore_frequencies()
            logits = self.model(input_ids=self._tensor([list(prompt_ids)]), use_cache=False, **arguments).logits
        last = logits[0, -1].float()
        return float(last[self.prompt.yes_id] - last[self.prompt.no_id])

    def _validate(self, query: Sequence[int], items: Sequence[Sequence[int]]) -> None:
        if not items:
            return
        longest = len(query) + max(map(len, items))
        if longest > self._longest:
            raise PromptError(f"a prompt of {longest} tokens; this model is served with at most {self._longest}")
        ids = [*query, *(token for item in items for token in item)]
        if ids and not 0 <= min(ids) <= max(ids) < self._vocabulary:
            raise PromptError(f"token ids {min(ids)} to {max(ids)} are outside the vocabulary of {self._vocabulary}")
        if not query and not all(items):
            raise PromptError("an empty item after an empty query has no token to read a margin from")

    def _one(self, query: list[int], items: list[list[int]]) -> torch.Tensor:
        packed = pack(query, items)
        # By the same path as together with others, so that nobody's margin depends on who was there.
        if packed.layout.total <= _SHORT:
            return self._packed(*bundle([packed]))
        return self._packed(packed.input_ids, packed.layout)

    def _packed(self, ids: torch.Tensor, layout: Layout | Bundle) -> torch.Tensor:
        outputs = self._forward(ids, layout.positions, mis_layout=layout)
        if layout.attention_calls != attention_layers(self.model.config):
            raise ModelRefused(
                f"{self.model.config.model_type} ran the packed attention {layout.attention_calls} times in "
                f'{attention_layers(self.model.config)} layers; use method = "prefix_cache"'
            )
        hidden: torch.Tensor = outputs.last_hidden_state[0, layout.last.to(self.model.device)]
        return hidden

    def _over_cache(self, query: list[int], items: list[list[int]]) -> torch.Tensor:
        found: dict[int, torch.Tensor] = {}
        name = cache_name(self.model)
        base = None
        if query:
            outputs = self._forward(torch.tensor([query]), torch.arange(len(query))[None], use_cache=True)
            base = getattr(outputs, name)
            found = dict.fromkeys(range(len(items)), outputs.last_hidden_state[0, -1])  # stays for the empty items
        order = sorted((item for item in range(len(items)) if items[item]), key=lambda item: len(items[item]))
        for start in range(0, len(order), _CACHED_ITEMS_PER_FORWARD):
            members = order[start : start + _CACHED_ITEMS_PER_FORWARD]
            width = len(items[members[-1]])
            # Padding stands right of every token that is read, where causal attention never looks.
            ids = torch.tensor([items[item] + [0] * (width - len(items[item])) for item in members])
            positions = (torch.arange(width) + len(query))[None].expand(len(members), -1)
            arguments = {} if base is None else {name: repeated(base, len(members)), "use_cache": True}
            hidden = self._forward(ids, positions, **arguments).last_hidden_state
            last = torch.tensor([len(items[item]) - 1 for item in members], device=hidden.device)
            found |= zip(members, hidden[torch.arange(len(members), device=hidden.device), last], strict=True)
        return torch.stack([found[item] for item in range(len(items))])

    def _alone(self, query: list[int], items: list[list[int]]) -> torch.Tensor:
        found: dict[int, torch.Tensor] = {}
        order = sorted(range(len(items)), key=lambda item: len(items[item]))
        for length, members in groupby(order, key=lambda item: len(items[item])):
            group = list(members)
            # Prompts of one length need neither padding nor mask: exact for every kind of layer.
            size = max(1, _INDEPENDENT_TOKENS_PER_FORWARD // (len(query) + length))
            for start in range(0, len(group), size):
                part = group[start : start + size]
                self._restore_frequencies()
                ids = torch.tensor([query + items[item] for item in part])
                positions = torch.arange(ids.shape[1])[None].expand(len(part), -1)
                found |= zip(part, self._forward(ids, positions).last_hidden_state[:, -1], strict=True)
        return torch.stack([found[item] for item in range(len(items))])

    def _forward(self, ids: torch.Tensor, positions: torch.Tensor, **arguments: Any) -> Any:
        device = self.model.device
        with self._counting:
            self.forwards += 1
        with products(self.model, self.precision):
            return self.model.base_model(
                input_ids=ids.to(device), position_ids=positions.to(device), **({"use_cache": False} | arguments)
            )

    def _restore_frequencies(self) -> None:
        """Dynamic-NTK RoPE keeps the frequencies of the longest prompt it has met; one short forward resets them."""
        if has_stateful_rope(self.model.config):
            self.model.base_model(input_ids=self._tensor([[self.prompt.yes_id]]), use_cache=False)

    def _tensor(self, rows: list[list[int]]) -> torch.Tensor:
        return torch.tensor(rows, device=self.model.device)

    @staticmethod
    def _takes(name: str, module: torch.nn.Module) -> bool:
        return name in inspect.signature(module.forward).parameters


def _bundled(short: Sequence[tuple[int, int]]) -> Iterator[list[int]]:
    """Numbers of rounds, given as (tokens, number) in order of tokens, as many together as a forward should have."""
    members: list[int] = []
    total = 0
    for tokens, number in short:
        if members and total + tokens > _TOKENS_TOGETHER:
            yield members
            members, total = [], 0
        members.append(number)
        total += tokens
    if members:
        yield members


def _finite(margins: np.ndarray) -> np.ndarray:
    if not np.isfinite(margins).all():
        raise LabelerError(f"{int((~np.isfinite(margins)).sum())} margins are not finite; the weights are broken")
    return margins


def cache_name(model: PreTrainedModel) -> str:
    """What this model and this version of transformers call the key/value cache."""
    return "cache" if "cache" in inspect.signature(model.base_model.forward).parameters else "past_key_values"


def repeated(cache: Any, times: int) -> Any:
    """A copy of a one-row cache that serves `times` rows, leaving the original as it was."""
    copied = copy.deepcopy(cache)
    for layer in copied.layers:
        if type(layer).__name__ in ("DynamicLayer", "DynamicSlidingWindowLayer") and layer.keys is not None:
            layer.keys = layer.keys.expand(times, -1, -1, -1)
            layer.values = layer.values.expand(times, -1, -1, -1)
        else:
            layer.batch_repeat_interleave(times)
    return copied
