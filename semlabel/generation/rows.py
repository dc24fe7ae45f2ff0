"""Several prompts that grow together over one key/value cache, each by its own next tokens.

Blocks of unequal length are padded on the right and the padding is masked, so that a row's tokens see its own real
tokens only and no row is ever without one. A query that all rows share is run once. Deliberately does not know what
the tokens mean or which one comes next.
"""

from collections.abc import Sequence
from typing import Any

import torch
from transformers import PreTrainedModel

from semlabel.scorer import cache_name, repeated


class SharedQuery:
    """The cache of one query, run once; every `Rows` made from it starts behind that query."""

    def __init__(self, model: PreTrainedModel, ids: Sequence[int]) -> None:
        outputs = model.base_model(input_ids=torch.tensor([list(ids)], device=model.device), use_cache=True)
        self.length = len(ids)
        self.cache: Any = getattr(outputs, cache_name(model))


class Rows:
    """`count` growing prompts of one model. `forwards` counts the passes, `tokens` the real tokens that went in."""

    def __init__(self, model: PreTrainedModel, count: int, shared: SharedQuery | None = None) -> None:
        self._model, self._name = model, cache_name(model)
        start = shared.length if shared else 0
        self._cache: Any = repeated(shared.cache, count) if shared else None
        self._lengths = torch.full((count,), start)
        self._seen = torch.ones(count, start, dtype=torch.int64)
        self.forwards = self.tokens = 0

    def append(self, blocks: Sequence[Sequence[int]], last: bool = False) -> torch.Tensor:
        """Hidden states (count, width) at each row's last token after it has grown by its block of token ids.

        A row that is done takes an empty block; its hidden state then means nothing. With `last` nothing will be
        appended any more: padding on the right of what is read then needs no mask, and the rows are used up.
        """
        added = torch.tensor([len(block) for block in blocks])
        if not bool((self._lengths + added > 0).all()):
            raise ValueError("a row has no token at all")
        width = int(added.max())
        ids = torch.tensor([[*block, *[0] * (width - len(block))] for block in blocks])
        steps = torch.arange(width)
        # Padding repeats the position before it: a model with a table of positions must find it there.
        places = torch.minimum(steps[None], (added - 1).clamp(min=0)[:, None])
        positions = (self._lengths[:, None] + places).clamp(max=int((self._lengths + added).max()) - 1)
        self._seen = torch.cat([self._seen, (steps[None] < added[:, None]).long()], dim=1)
        self._lengths = self._lengths + added
        device = self._model.device
        masked = not bool(self._seen[:, :-width].all() if last else self._seen.all())
        outputs = self._model.base_model(
            input_ids=ids.to(device),
            position_ids=positions.to(device),
            attention_mask=self._seen.to(device) if masked else None,
            use_cache=True,
            **{self._name: self._cache},
        )
        self._cache = getattr(outputs, self._name)
        self.forwards += 1
        self.tokens += int(added.sum())
        ends = (added - 1).clamp(min=0).to(device)
        hidden: torch.Tensor = outputs.last_hidden_state[torch.arange(len(blocks), device=device), ends]
        return hidden
