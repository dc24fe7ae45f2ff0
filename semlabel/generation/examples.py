"""The training format of packed generation: pairs to packs, packs to one text each, loss on the answer list alone.

Pure functions: the same pairs, texts and seed give the same examples. Candidates stand in random order in their
packs, so that a place in the list teaches nothing. Knows nothing of models or optimisers.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from semlabel.errors import SourceError
from semlabel.generation.prompt import PackPrompt

if TYPE_CHECKING:
    import pandas as pd

NO_LOSS = -100  # what torch's cross entropy leaves out


@dataclass(frozen=True)
class Pack:
    """One entity's text with some candidates' texts and their reference labels."""

    entity_text: str
    candidate_texts: list[str]
    labels: list[bool]

    def __post_init__(self) -> None:
        if not self.labels or len(self.labels) != len(self.candidate_texts):
            raise ValueError(f"{len(self.candidate_texts)} candidates with {len(self.labels)} labels; give one each")


@dataclass(frozen=True)
class Example:
    """Token ids of a whole prompt with its answer list; the loss is on `ids[answer_start:]`, the end token included."""

    ids: list[int]
    answer_start: int

    @property
    def targets(self) -> list[int]:
        """`ids` with NO_LOSS in place of everything before the answer list; unshifted, as transformers takes them."""
        return [*[NO_LOSS] * self.answer_start, *self.ids[self.answer_start :]]


def packs_from_pairs(
    pairs: "pd.DataFrame", entities: "pd.DataFrame", catalog: "pd.DataFrame", pack_size: int, seed: int
) -> list[Pack]:
    """Packs of `pairs` (entity_id, candidate_id, label), entities in the order in which they first appear.

    `entities` and `catalog` hold the texts (entity_id, text; candidate_id, text). Every pair is in exactly one pack;
    an entity's candidates are shuffled by `seed` and its id, then cut into packs. Raises SourceError for an id
    without a text.
    """
    import numpy as np

    texts = dict(zip(entities["entity_id"], entities["text"], strict=True))
    candidate_texts = dict(zip(catalog["candidate_id"], catalog["text"], strict=True))
    judged: dict[str, list[tuple[str, bool]]] = {}
    for entity_id, candidate_id, label in zip(pairs["entity_id"], pairs["candidate_id"], pairs["label"], strict=True):
        if entity_id not in texts or candidate_id not in candidate_texts:
            raise SourceError(
                f"training pairs: entity {entity_id!r} or candidate {candidate_id!r} has no text; rebuild the "
                "training pairs from the present tables"
            )
        judged.setdefault(entity_id, []).append((candidate_texts[candidate_id], bool(label)))
    packs = []
    for entity_id, given in judged.items():
        order = np.random.default_rng(_seed_of(seed, entity_id)).permutation(len(given))
        shuffled = [given[place] for place in order]
        for start in range(0, len(shuffled), pack_size):
            part = shuffled[start : start + pack_size]
            packs.append(Pack(texts[entity_id], [text for text, _ in part], [label for _, label in part]))
    return packs


def examples(prompt: PackPrompt, packs: Sequence[Pack]) -> list[Example]:
    """Each pack as token ids with its well-formed answer list; a candidate's text is tokenised once.

    Raises PromptError for a text that does not fit the prompt.
    """
    used = list(dict.fromkeys(text for pack in packs for text in pack.candidate_texts))
    candidates = dict(zip(used, prompt.candidates(used), strict=True))
    made = []
    for pack in packs:
        listed = prompt.listed([candidates[text] for text in pack.candidate_texts])
        asked = [*prompt.query(pack.entity_text).ids, *listed]
        made.append(Example([*asked, *prompt.grammar.answer(pack.labels)], len(asked)))
    return made


def _seed_of(seed: int, entity_id: str) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed}\n{entity_id}".encode()).digest()[:8], "big")
