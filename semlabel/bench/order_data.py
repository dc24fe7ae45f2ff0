"""What the order benchmark decides about: entities and candidates as token ids, for single prompts and for packs.

Real ones come from a warehouse that a run has filled, synthetic ones are random words. Knows nothing of orders.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from semlabel.bench.tasks import Shape, random_tasks, text_ids
from semlabel.digests import digest_of
from semlabel.errors import SemlabelError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from semlabel.generation.prompt import PackPrompt
    from semlabel.prompt import Prompt
    from semlabel.settings import Settings

_SYNTHETIC = Shape(170, 8)
SYNTHETIC_CANDIDATES = 200
_SEED = 7


@dataclass(frozen=True)
class Texts:
    """Entity texts and candidate texts; every entity is decided about with every candidate."""

    entities: list[str]
    candidates: list[str]
    source: str


@dataclass(frozen=True)
class Cross:
    """The same as token ids: queries and items of single prompts, queries and candidates of packs."""

    queries: list[list[int]]
    items: list[list[int]]
    pack_queries: list[list[int]]
    pack_candidates: list[list[int]]
    source: str

    def digest(self) -> str:
        """The identity of all of it."""
        return digest_of([self.queries, self.items, self.pack_queries, self.pack_candidates])


def warehouse_texts(settings: "Settings") -> Texts:
    """All entities (in random order, the same every time) and the catalog of a project's warehouse.

    Raises SemlabelError where no run has filled it, LeaseHeld while one holds it.
    """
    from semlabel.reading import reading

    warehouse = settings.paths.warehouse
    if not warehouse.exists():
        raise SemlabelError(f"{warehouse}: not there yet; run `semlabel run` first, or use --synthetic")
    with reading(settings, "bench") as opened:
        entities = opened.entities().sort_values("entity_id")["text"].tolist()
        candidates = opened.catalog().sort_values("candidate_id")["text"].tolist()
    if not entities or not candidates:
        raise SemlabelError(f"{warehouse}: has no entities or no catalog; run `semlabel run` first")
    order = np.random.default_rng(_SEED).permutation(len(entities))
    return Texts([entities[place] for place in order], candidates, str(warehouse))


def cross_of(texts: Texts, prompt: "Prompt", packs: "PackPrompt", most_entities: int) -> Cross:
    """Token ids of up to `most_entities` entities; candidates that do not fit the prompt are left out and counted."""
    fits = [problem is None for problem in prompt.item_problems(texts.candidates)]
    candidates = [text for text, fit in zip(texts.candidates, fits, strict=True) if fit]
    if not candidates:
        raise SemlabelError(f"{texts.source}: no candidate fits the prompt; raise [prompt] max_item_tokens")
    entities = texts.entities[:most_entities]
    return Cross(
        queries=[query.ids for query in prompt.queries(entities)],
        items=prompt.items(candidates),
        pack_queries=[packs.query(entity).ids for entity in entities],
        pack_candidates=packs.candidates(candidates),
        source=f"{texts.source} ({len(fits) - len(candidates)} candidates left out)",
    )


def synthetic_cross(
    tokenizer: "PreTrainedTokenizerFast",
    embeddings: int,
    last_id: int,
    entities: int,
    candidates: int = SYNTHETIC_CANDIDATES,
    shape: Shape = _SYNTHETIC,
) -> Cross:
    """Random words: `entities` queries, and one list of items for all of them."""
    words: Sequence[int] = text_ids(tokenizer, embeddings)
    queries = [task.query for task in random_tasks(shape, 0, entities, words, last_id, _SEED)]
    (listed,) = random_tasks(shape, candidates, 1, words, last_id, _SEED + 1)
    return Cross(queries, listed.items, queries, [item[:-1] for item in listed.items], f"synthetic, {shape.name}")
