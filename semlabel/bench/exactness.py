"""How far a method is from single prompts: the largest difference of margins, and the labels that come out otherwise.

Single prompts run one by one through the stock model are the reference, once in the precision of the method (what the
method itself does to a margin) and once in fp32 (what is served, all in all). Knows nothing of speed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from transformers import PreTrainedModel

from semlabel.bench.methods import Scored, alone
from semlabel.bench.tasks import Task


class SinglePrompts:
    """Margins of single prompts by one model, each computed once however often it is asked for."""

    def __init__(self, model: PreTrainedModel, answer_ids: tuple[int, int]) -> None:
        self._model, self._answer_ids = model, answer_ids
        self._known: dict[tuple[tuple[int, ...], tuple[int, ...]], float] = {}

    def margins(self, task: Task) -> np.ndarray:
        """Margins (items,) float32 of a task."""
        return np.array([self._margin(task.query, item) for item in task.items], dtype=np.float32)

    def _margin(self, query: list[int], item: list[int]) -> float:
        key = tuple(query), tuple(item)
        if key not in self._known:
            self._known[key] = alone(self._model, self._answer_ids, query, item)
        return self._known[key]


@dataclass(frozen=True)
class Difference:
    """Against one reference: items compared, the largest difference of margins (None: no margins), labels.

    `flips` counts decisions that differ, an answer that is missing among them; `yes` decisions that are YES in either.
    """

    compared: int
    max_margin_diff: float | None
    flips: int
    yes: int

    def to_json(self, suffix: str = "") -> dict[str, Any]:
        """The fields of a cell."""
        return {
            f"max_margin_diff{suffix}": self.max_margin_diff,
            f"label_flips{suffix}": self.flips,
            f"label_flip_share{suffix}": self.flips / self.compared if self.compared else None,
            f"label_flip_share_of_yes{suffix}": self.flips / self.yes if self.yes else None,
        }


def compared_part(tasks: Sequence[Task], items: int) -> list[Task]:
    """The first items of every task, about `items` of them in all: single prompts are slow."""
    each = max(1, items // len(tasks))
    return [task.first(each) for task in tasks]


def difference(scored: Scored, references: Sequence[np.ndarray], threshold: float) -> Difference:
    """Compare what a method gave for some tasks with the margins of the first items of each, at one threshold."""
    compared = flips = yes = 0
    largest: float | None = None
    for number, reference in enumerate(references):
        expected = reference >= threshold
        found: list[bool | None]
        if scored.margins is not None:
            margins = scored.margins[number][: len(reference)]
            largest = max(largest or 0.0, float(np.abs(margins - reference).max(initial=0.0)))
            found = (margins >= threshold).tolist()
        if scored.labels is not None:  # a method that decides by itself is held to its decisions
            found = scored.labels[number][: len(reference)]
        compared += len(reference)
        flips += sum(a is not b for a, b in zip(expected.tolist(), found, strict=True))
        yes += sum(a or bool(b) for a, b in zip(expected.tolist(), found, strict=True))
    return Difference(compared, largest, flips, yes)
