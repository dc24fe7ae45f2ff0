"""The shared catalog, tokenised once and put once: every scorer reads the same memory, and rounds carry positions.

Knows the prompt and nothing of entities or models.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from semlabel.prompt import Prompt


@dataclass(frozen=True, eq=False)
class SharedCatalog:
    """Candidates in order: ids, what keeps each from being scored (None: nothing), and their items end to end."""

    ids: list[str]
    problems: list[str | None]
    tokens: npt.NDArray[np.int32]
    ends: npt.NDArray[np.int64]

    @classmethod
    def tokenised(cls, ids: Sequence[str], texts: Sequence[str], prompt: Prompt) -> "SharedCatalog":
        """The catalog through the one tokenisation; a candidate that the prompt refuses keeps its place."""
        items, problems = prompt.items_or_problems(texts)
        tokens = np.fromiter((token for item in items for token in item), dtype=np.int32)
        return cls(list(ids), problems, tokens, np.cumsum([len(item) for item in items], dtype=np.int64))

    def item(self, position: int) -> list[int]:
        """The token ids of one candidate."""
        start = int(self.ends[position - 1]) if position else 0
        item: list[int] = self.tokens[start : int(self.ends[position])].tolist()
        return item
