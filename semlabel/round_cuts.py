"""Rounds for what texts miss: their blocks are made some pairs at a time, and held no longer.

Knows the catalog as a sequence of text keys and what is missing as a mask over it; deliberately knows nothing of why it
is missing. What a text misses is cut in the order of the catalog. A block that leaves out nothing in between is one of
at most as many as there are candidates, however texts differ, and each stored pair spoils at most one block: so blocks
of a text's own have at most `items_per_round` rows for each pair of it that is stored.
"""

from collections.abc import Sequence
from itertools import compress
from operator import attrgetter

import numpy as np

from semlabel.round_stream import Round
from semlabel.warehouse import Warehouse
from semlabel.warehouse_scores import ensure_blocks

_HELD_PAIRS = 2_000_000
"""Pairs whose blocks are made together: with shortlists nearly every text misses others, so all would be the table."""


class Rounds:
    """The rounds of a plan, made group by group of texts that miss the same."""

    def __init__(self, warehouse: Warehouse, catalog: Sequence[int], items_per_round: int) -> None:
        """`catalog`: its text keys, each once, in its order; a round has at most `items_per_round` of them."""
        self._warehouse, self._catalog, self._items = warehouse, list(catalog), items_per_round
        self._waiting: list[tuple[list[tuple[int, ...]], list[int]]] = []
        self._pairs, self._rounds = 0, list[Round]()

    def take(self, missing: np.ndarray, texts: list[int]) -> None:
        """Plan what these texts miss: `missing` is a mask over the catalog."""
        keys = tuple(compress(self._catalog, missing.tolist()))
        chunks = [keys[start : start + self._items] for start in range(0, len(keys), self._items)]
        self._waiting.append((chunks, texts))
        self._pairs += len(keys)
        if self._pairs >= _HELD_PAIRS:
            self._make()

    def made(self) -> list[Round]:
        """All rounds, text by text."""
        self._make()
        return sorted(self._rounds, key=attrgetter("text_key"))

    def _make(self) -> None:
        wanted = list(dict.fromkeys(chunk for chunks, _ in self._waiting for chunk in chunks))
        with self._warehouse.transaction() as connection:
            block_ids = dict(zip(wanted, ensure_blocks(connection, wanted), strict=True))
        for chunks, texts in self._waiting:
            blocks = [block_ids[chunk] for chunk in chunks]
            self._rounds += [Round(text_key, block_id) for text_key in texts for block_id in blocks]
        self._waiting, self._pairs = [], 0
