"""Packs one query and its items into one token sequence, and says who may see whom in it.

A token of an item sees the whole query and its own causal prefix, nothing else; every item's positions start where
the query ends. Inside the sequence the items stand sorted by length, so that items of one length are one
contiguous block; everything that is asked of a `Layout` answers in the caller's order.

Deliberately does not know models, text or labels: token ids in, tensors out.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

import torch

from semlabel.errors import PromptError


@dataclass(frozen=True)
class Block:
    """`count` items of `length` tokens each, side by side from index `start` of the packed sequence."""

    start: int
    count: int
    length: int

    def cut(self, count: int) -> Iterator["Block"]:
        """The block as blocks of at most `count` items, in order."""
        for first in range(0, self.count, count):
            yield Block(self.start + first * self.length, min(count, self.count - first), self.length)


class Biases:
    """The biases that a mask gives, each built once; `_cache` is the owner's."""

    _cache: dict[tuple[object, ...], torch.Tensor]

    def mask(self, window: int | None = None) -> torch.Tensor:
        """(total, total) bool, True where the row's token sees the column's."""
        raise NotImplementedError

    def bias(self, window: int | None, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """`mask` as a (total, total) additive bias: 0 where seen, -inf elsewhere."""
        key = ("bias", window, dtype, device)
        if key not in self._cache:
            self._cache[key] = hiding(~self.mask(window), dtype).to(device)
        return self._cache[key]

    def causal(self, length: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """(length, length) bias: -inf where the column's token comes after the row's."""
        key = ("causal", length, dtype, device)
        if key not in self._cache:
            self._cache[key] = causal_bias(length, dtype).to(device)
        return self._cache[key]


@dataclass(eq=False)
class Layout(Biases):
    """Where everything stands in a packed sequence of `query_length` + sum of `lengths` tokens.

    `lengths` are the items' lengths in tokens, in the caller's order; an item may be empty as long as the query is
    not. `attention_calls` counts the attention layers that have read this layout: the proof that a forward pass
    used it.
    """

    query_length: int
    lengths: tuple[int, ...]
    order: tuple[int, ...] = field(init=False)
    blocks: tuple[Block, ...] = field(init=False)
    attention_calls: int = field(init=False, default=0)
    _cache: dict[tuple[object, ...], torch.Tensor] = field(init=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        if self.query_length < 0 or min(self.lengths, default=0) < 0:
            raise ValueError("lengths are negative")
        if self.query_length == 0 and (not self.lengths or 0 in self.lengths):
            raise PromptError("an empty item after an empty query has no token to read a margin from")
        self.order = tuple(sorted(range(len(self.lengths)), key=self.lengths.__getitem__))
        blocks, start = [], self.query_length
        for length, members in groupby(self.order, key=self.lengths.__getitem__):
            if length:
                blocks.append(Block(start, len(list(members)), length))
                start += blocks[-1].count * length
        self.blocks = tuple(blocks)

    @property
    def total(self) -> int:
        """Tokens in the packed sequence."""
        return self.query_length + sum(self.lengths)

    @property
    def longest(self) -> int:
        """Tokens of the longest single prompt in the pack: the query and its longest item."""
        return self.query_length + max(self.lengths, default=0)

    @property
    def positions(self) -> torch.Tensor:
        """(1, total) int64: each token's position in its own single prompt."""
        parts = [torch.arange(self.query_length)]
        for block in self.blocks:
            parts.append(torch.arange(block.length).repeat(block.count) + self.query_length)
        return torch.cat(parts)[None]

    @property
    def last(self) -> torch.Tensor:
        """(items,) int64, caller's order: index of each item's last token; the query's last for an empty item."""
        lengths = torch.tensor([self.lengths[item] for item in self.order], dtype=torch.int64)
        ends = torch.cumsum(lengths, 0) + self.query_length - 1
        ends[lengths == 0] = self.query_length - 1
        last = torch.empty_like(ends)
        last[torch.tensor(self.order, dtype=torch.int64)] = ends
        return last

    def mask(self, window: int | None = None) -> torch.Tensor:
        """(total, total) bool, True where the row's token sees the column's; the definition all paths agree with.

        With `window`, a token sees only the `window` latest positions of its own single prompt, itself included.
        """
        positions = self.positions[0]
        owners = [torch.zeros(self.query_length, dtype=torch.int64)]
        first = 1
        for block in self.blocks:
            owners.append(torch.arange(first, first + block.count).repeat_interleave(block.length))
            first += block.count
        owner = torch.cat(owners)
        index = torch.arange(self.total)
        seen = (index[None, :] <= index[:, None]) & ((owner[None, :] == 0) | (owner[None, :] == owner[:, None]))
        if window is not None:
            seen &= positions[:, None] - positions[None, :] < window
        return seen

    def tensors(self) -> dict[str, torch.Tensor]:
        """The layout as two small int64 tensors, for callers that can only move tensors between devices."""
        return {"query_length": torch.tensor(self.query_length), "item_lengths": torch.tensor(self.lengths)}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, torch.Tensor]) -> "Layout":
        """The inverse of `tensors`; other keys of the mapping are not looked at."""
        return cls(int(tensors["query_length"]), tuple(tensors["item_lengths"].tolist()))


def hiding(hidden: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A bias to add to scores: -inf where `hidden`, else 0 (adding takes a tenth of the time of filling by a mask)."""
    return torch.zeros(hidden.shape, dtype=dtype).masked_fill_(hidden, float("-inf"))


def causal_bias(length: int, dtype: torch.dtype) -> torch.Tensor:
    """(length, length): -inf where the column's token comes after the row's, else 0."""
    return hiding(torch.ones(length, length, dtype=torch.bool).triu(1), dtype)


@dataclass(frozen=True, eq=False)
class Packed:
    """`input_ids` (1, total) int64 and the layout that says what they are."""

    input_ids: torch.Tensor
    layout: Layout


def pack(query: Sequence[int], items: Sequence[Sequence[int]]) -> Packed:
    """One packed sequence of a query's token ids and its items' token ids.

    Raises PromptError when query and an item are both empty.
    """
    layout = Layout(len(query), tuple(len(item) for item in items))
    ids = list(query)
    for item in layout.order:
        ids.extend(items[item])
    return Packed(torch.tensor([ids], dtype=torch.int64), layout)


def rounds(
    items: Sequence[Sequence[int]], items_per_round: int, max_round_tokens: int, query_length: int
) -> list[range]:
    """Cut items, in their order, into rounds of at most `items_per_round` items and `max_round_tokens` tokens.

    The query's tokens count in every round. Raises PromptError when a single item does not fit beside the query.
    """
    if items_per_round < 1:
        raise ValueError("items_per_round must be at least 1")
    cuts: list[range] = []
    start, tokens = 0, query_length
    for index, item in enumerate(items):
        if query_length + len(item) > max_round_tokens:
            raise PromptError(
                f"a query of {query_length} tokens and an item of {len(item)} exceed max_round_tokens = "
                f"{max_round_tokens}; raise it or cut the entity shorter with max_query_tokens"
            )
        if index - start == items_per_round or tokens + len(item) > max_round_tokens:
            cuts.append(range(start, index))
            start, tokens = index, query_length
        tokens += len(item)
    if start < len(items):
        cuts.append(range(start, len(items)))
    return cuts
