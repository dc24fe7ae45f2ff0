"""The work that every method is given: queries and items of the wanted lengths, as random text tokens.

The items of a small task are the first items of a large one, so that one set of single prompts serves all sizes.
Deliberately does not know models or methods.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from semlabel.errors import SettingsError
from semlabel.text_tokenizer import TextTokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

# Real candidates differ in length; these differences repeat, so that the mean is the one asked for.
_SPREAD = (0, -2, 2, -1, 1, -3, 3, 0)


@dataclass(frozen=True)
class Shape:
    """Tokens of a query, and of an item on average."""

    query_tokens: int
    item_tokens: int

    @classmethod
    def parse(cls, written: str) -> "Shape":
        """From `170x8`. Raises SettingsError for anything else."""
        query, _, item = written.partition("x")
        if not (query.isdecimal() and item.isdecimal() and int(query) and int(item)):
            raise SettingsError(f"--shape {written} is no shape; give query tokens x item tokens, as in 170x8")
        return cls(int(query), int(item))

    @property
    def name(self) -> str:
        """`q170-i8`."""
        return f"q{self.query_tokens}-i{self.item_tokens}"

    def token_ratio(self, items: int) -> float:
        """R(N): tokens of N single prompts over the tokens of one packed sequence."""
        return items * (self.query_tokens + self.item_tokens) / (self.query_tokens + items * self.item_tokens)


@dataclass(frozen=True)
class Task:
    """One query with its items (token ids; the last token of an item is where its margin is read)."""

    query: list[int]
    items: list[list[int]]

    def first(self, items: int) -> "Task":
        """The same query with its first `items` items."""
        return Task(self.query, self.items[:items])

    @property
    def tokens(self) -> int:
        """Tokens of the query and of all items, each once."""
        return len(self.query) + sum(map(len, self.items))


def text_ids(tokenizer: "PreTrainedTokenizerFast", embeddings: int) -> list[int]:
    """The ids that text can be made of: no control tokens, and none that the model has no embedding for."""
    controls = set(TextTokenizer(tokenizer).controls.values())
    return [number for number in range(min(len(tokenizer), embeddings)) if number not in controls]


def random_tasks(
    shape: Shape, items: int, queries: int, words: Sequence[int], last_id: int, seed: int = 7
) -> list[Task]:
    """`queries` tasks of `items` items drawn from the ids `words`; every item ends with `last_id`."""
    tasks = []
    for number in range(queries):
        rng = np.random.default_rng([seed, shape.query_tokens, shape.item_tokens, number])
        query = rng.choice(words, shape.query_tokens).tolist()
        scale = max(1, shape.item_tokens // 8)
        lengths = [max(1, shape.item_tokens + scale * _SPREAD[n % len(_SPREAD)]) for n in range(items)]
        tasks.append(Task(query, [[*rng.choice(words, length - 1).tolist(), last_id] for length in lengths]))
    return tasks
