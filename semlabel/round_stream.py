"""Rounds on their way to whatever scores them and back: in any order, each exactly once.

Knows texts and margins of rounds; deliberately knows nothing of tables, of models, or of where rounds are scored.
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

import numpy as np

from semlabel.errors import PromptError, WarehouseError


class Round(NamedTuple):
    """One entity text with the candidates of one block: one call of the scorer."""

    text_key: int
    block_id: int


class WantedRound(NamedTuple):
    """A round with its texts; `candidate_keys` are the text keys of `candidate_texts`.

    Rounds of one `batch` are committed together, so a run that goes on meets the same ones in it: they, and no others,
    may share a forward.
    """

    entry: Round
    entity_text: str
    candidate_keys: list[int]
    candidate_texts: list[str]
    batch: int = 0


class Partly(NamedTuple):
    """What the prompt takes of a round: the margins of those candidates, in their order, and of every candidate of the
    round why it is refused, None where it is not.
    """

    margins: np.ndarray
    problems: Sequence[str | None]


# Margins of a round, those of a part of it, or why the prompt refuses its entity.
Found = np.ndarray | Partly | PromptError
ScoreRound = Callable[[str, list[str]], np.ndarray]
ScoreBatch = Callable[[Sequence[WantedRound]], Iterable[tuple[int, Found]]]
ScoreRounds = Callable[[Iterable[WantedRound]], Iterable[tuple[Round, Found]]]


def partly(margins: np.ndarray, problems: Sequence[str | None]) -> np.ndarray | Partly:
    """Margins of the candidates without a problem, as what was found of their round."""
    return margins if all(problem is None for problem in problems) else Partly(margins, problems)


def one_by_one(score_round: ScoreRound) -> ScoreRounds:
    """Scores each round when it is asked for, here."""

    def score_rounds(wanted: Iterable[WantedRound]) -> Iterator[tuple[Round, Found]]:
        for one in wanted:
            try:
                margins: Found = score_round(one.entity_text, list(one.candidate_texts))
            except PromptError as error:
                margins = error
            yield one.entry, margins

    return score_rounds


def by_batches(score_batch: ScoreBatch) -> ScoreRounds:
    """Scores the rounds of a batch together when its first is asked for, here."""

    def score_rounds(wanted: Iterable[WantedRound]) -> Iterator[tuple[Round, Found]]:
        for _, members in groupby(wanted, key=lambda one: one.batch):
            batch = list(members)
            for number, margins in score_batch(batch):
                yield batch[number].entry, margins

    return score_rounds


def once_each(
    rounds: Sequence[Round], found: Iterable[tuple[Round, Found]], named: Callable[[Round], str]
) -> Generator[tuple[Round, Found], None, None]:
    """`found`, as long as each round is in it exactly once; `named` puts a round into words.

    Raises WarehouseError for a round that comes back twice, uncalled or never.
    """
    waiting = set(rounds)
    for entry, margins in found:
        if entry not in waiting:
            raise WarehouseError(f"{named(entry)} came back twice or was never asked for; run it again")
        waiting.remove(entry)
        yield entry, margins
    if waiting:
        some = named(min(waiting))
        raise WarehouseError(f"{len(waiting)} of {len(rounds)} rounds never came back, {some} among them; run it again")
