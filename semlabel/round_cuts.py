"""Rounds for what texts miss: the catalog cut so that texts share blocks wherever they can.

Knows the catalog as a sequence of text keys and what is missing as a mask over it; deliberately knows nothing of why it
is missing. The catalog is cut into runs of a round's candidates. A run that a text misses as a whole is one block for
all such texts, however they differ otherwise; what is left of its other runs makes blocks of its own, so a text whose
stored candidates lie in k runs has at most k runs of them. No text gets more rounds for that than its pairs need.
"""

from collections.abc import Sequence
from itertools import compress
from operator import attrgetter

import numpy as np

from semlabel.round_stream import Round
from semlabel.warehouse import Warehouse
from semlabel.warehouse_scores import ensure_blocks

_HELD_PAIRS = 2_000_000
"""Pairs whose blocks are made together: what is held must not grow with the table."""


class Rounds:
    """The rounds of a plan, made group by group of texts that miss the same."""

    def __init__(self, warehouse: Warehouse, catalog: Sequence[int], items_per_round: int) -> None:
        """`catalog`: its text keys, each once, in its order; a round has at most `items_per_round` of them."""
        self._warehouse, self._catalog, self._items = warehouse, list(catalog), items_per_round
        self._runs = [
            tuple(self._catalog[start : start + items_per_round])
            for start in range(0, len(self._catalog) - items_per_round + 1, items_per_round)
        ]
        self._waiting: list[tuple[list[tuple[int, ...]], list[int]]] = []
        self._pairs, self._rounds = 0, list[Round]()

    def take(self, missing: np.ndarray, texts: list[int]) -> None:
        """Plan what these texts miss: `missing` is a mask over the catalog."""
        self._waiting.append((self._chunks(missing), texts))
        self._pairs += int(np.count_nonzero(missing))
        if self._pairs >= _HELD_PAIRS:
            self._make()

    def made(self) -> list[Round]:
        """All rounds, text by text."""
        self._make()
        return sorted(self._rounds, key=attrgetter("text_key"))

    def _chunks(self, missing: np.ndarray) -> list[tuple[int, ...]]:
        in_runs = len(self._runs) * self._items
        whole = missing[:in_runs].reshape(len(self._runs), self._items).all(axis=1)
        rest = missing.copy()
        rest[:in_runs] &= ~np.repeat(whole, self._items)
        own = tuple(compress(self._catalog, rest.tolist()))
        runs = list(compress(self._runs, whole.tolist()))
        return [*runs, *(own[start : start + self._items] for start in range(0, len(own), self._items))]

    def _make(self) -> None:
        wanted = list(dict.fromkeys(chunk for chunks, _ in self._waiting for chunk in chunks))
        with self._warehouse.transaction() as connection:
            block_ids = dict(zip(wanted, ensure_blocks(connection, wanted), strict=True))
        for chunks, texts in self._waiting:
            blocks = [block_ids[chunk] for chunk in chunks]
            self._rounds += [Round(text_key, block_id) for text_key in texts for block_id in blocks]
        self._waiting, self._pairs = [], 0
