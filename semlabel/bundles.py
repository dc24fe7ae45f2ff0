"""Several short packed sequences one behind the other in one forward, so that a short round costs what its tokens cost.

The linear layers run over the tokens of all of them, without padding. Only attention pads, and only queries: those
whose lengths round up to the same multiple of 16 are one batch of it. What a token's attention is computed from, and in
which order, does not depend on the sequences that stand beside its own.

Deliberately does not know models, text or labels, nor how many tokens a forward should have.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch

from semlabel.packing import Biases, Layout, Packed, hiding

_STEP = 16


@dataclass(frozen=True, eq=False)
class Piece:
    """Tokens whose attention is one product: `count` items of `length` tokens in each of some sequences, or queries.

    `rows` (sequences, count x length) int64 are their indices in the bundle; `over` (sequences, width) int64 those of
    the queries that they see, None for the queries themselves; `unseen` (sequences, 1, width) is -inf where `over` is
    padding, else 0. Padding repeats an index of its own sequence.
    """

    rows: torch.Tensor
    count: int
    length: int
    over: torch.Tensor | None = None
    unseen: torch.Tensor | None = None


@dataclass(eq=False)
class Bundle(Biases):
    """The layouts of a forward, in their order; answers for all of them what a `Layout` answers for one."""

    layouts: tuple[Layout, ...]
    attention_calls: int = field(init=False, default=0)
    starts: tuple[int, ...] = field(init=False)
    total: int = field(init=False)
    _pieces: dict[tuple[object, ...], list[Piece]] = field(init=False, repr=False, default_factory=dict)
    _cache: dict[tuple[object, ...], torch.Tensor] = field(init=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        if not self.layouts or not all(layout.total for layout in self.layouts):
            raise ValueError("a bundle is of at least one sequence, and none of them is empty")
        starts = [0]
        for layout in self.layouts:
            starts.append(starts[-1] + layout.total)
        *self.starts, self.total = starts  # type: ignore[assignment]

    @property
    def longest(self) -> int:
        """Tokens of the longest single prompt."""
        return max(layout.longest for layout in self.layouts)

    @property
    def positions(self) -> torch.Tensor:
        """(1, total) int64: each token's position in its own single prompt."""
        return torch.cat([layout.positions for layout in self.layouts], dim=1)

    @property
    def last(self) -> torch.Tensor:
        """(items of all,) int64: index of each item's last token, the layouts' items in their orders."""
        return torch.cat([layout.last + start for layout, start in zip(self.layouts, self.starts, strict=True)])

    def mask(self, window: int | None = None) -> torch.Tensor:
        """(total, total) bool, True where the row's token sees the column's: each sequence only itself."""
        return torch.block_diag(*(layout.mask(window) for layout in self.layouts))

    def pieces(self, dtype: torch.dtype, device: torch.device) -> list[Piece]:
        """The tokens of the bundle, each in one piece. Built once per bundle."""
        key = (dtype, device)
        if key not in self._pieces:
            self._pieces[key] = list(self._made(dtype, device))
        return self._pieces[key]

    def order(self, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """(total,) int64: where each token stands among the rows of all `pieces`, one piece behind the other."""
        key = ("order", dtype, device)
        if key not in self._cache:
            rows = torch.cat([piece.rows.flatten() for piece in self.pieces(dtype, device)])
            found = torch.full((self.total,), len(rows), device=device)
            # Padding repeats an index further right: the first place is the token's own.
            found.scatter_reduce_(0, rows, torch.arange(len(rows), device=device), "amin")
            self._cache[key] = found
        return self._cache[key]

    def _made(self, dtype: torch.dtype, device: torch.device) -> Iterator[Piece]:
        by_width: dict[int, list[int]] = {}
        for number, layout in enumerate(self.layouts):
            by_width.setdefault(-(-layout.query_length // _STEP) * _STEP, []).append(number)
        for width, members in by_width.items():
            queries, padding = self._queries(width, members)
            unseen = hiding(padding, dtype)
            if width:
                yield Piece(queries.to(device), 1, width)
            same: dict[tuple[int, int], tuple[list[int], list[int]]] = {}
            for place, number in enumerate(members):
                for block in self.layouts[number].blocks:
                    places, starts = same.setdefault((block.count, block.length), ([], []))
                    places.append(place)
                    starts.append(self.starts[number] + block.start)
            for (count, length), (places, starts) in same.items():
                rows = (torch.tensor(starts)[:, None] + torch.arange(count * length)).to(device)
                if width:
                    yield Piece(rows, count, length, queries[places].to(device), unseen[places].to(device))
                else:
                    yield Piece(rows, count, length)

    def _queries(self, width: int, members: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """Indices (members, width) of queries, and (members, 1, width) True where there is none."""
        lengths = torch.tensor([[self.layouts[number].query_length] for number in members])
        starts = torch.tensor([[self.starts[number]] for number in members])
        column = torch.arange(width)[None]
        return starts + torch.minimum(column, lengths - 1), (column >= lengths)[:, None]


def bundle(packs: Sequence[Packed]) -> tuple[torch.Tensor, Bundle]:
    """`input_ids` (1, total) int64 of several packed sequences, and the bundle that says what they are."""
    return torch.cat([packed.input_ids for packed in packs], dim=1), Bundle(tuple(packed.layout for packed in packs))
