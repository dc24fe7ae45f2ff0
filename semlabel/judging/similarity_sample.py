"""Pairs to judge before any labeler has labeled: drawn by chance from strata of how alike their texts are.

Drawn from all pairs alike, a hundred would hold two YES at 2 % prevalence, and nobody learns from that. So a third is
drawn where an entity is among the most similar to its candidate, a third among the next, a third from the rest. They
teach and never prove. Knows ids and texts; deliberately knows nothing of the warehouse, of splits or of files.
"""

from collections.abc import Collection, Mapping

import numpy as np
from numpy.typing import NDArray

from semlabel.judging import random_sample
from semlabel.judging.random_sample import Pair

BANDS = (0.05, 0.2, 1.0)
"""Strata, as shares of the entities in the order of their similarity to a candidate: up to here each."""
MOST_PAIRS = 4_000_000
MOST_ENTITIES = 2_000
"""Beyond these the similarity is looked at for entities drawn by chance only; that takes seconds."""


def draw(
    entities: Mapping[str, str], candidates: Mapping[str, str], judged: Collection[Pair], count: int
) -> dict[Pair, float]:
    """At most `count` pairs nobody has judged, each with its probability to be drawn; texts are given by id.

    The probability is that of a pair which is not judged yet: its entity's to be looked at, times its own among those
    of its stratum. Where a stratum has too few pairs the others fill up.
    """
    looked_at = random_sample.by_number(list(entities))[: _room(len(candidates))]
    names = list(candidates)
    if not looked_at or not names:
        return {}
    numbers = random_sample.numbers(looked_at, names)
    stratum = _strata([entities[name] for name in looked_at], list(candidates.values()))
    rows, columns = ({name: place for place, name in enumerate(ids)} for ids in (looked_at, names))
    for entity_id, candidate_id in judged:
        if entity_id in rows and candidate_id in columns:
            stratum[rows[entity_id], columns[candidate_id]] = len(BANDS)
    sizes = [int((stratum == band).sum()) for band in range(len(BANDS))]
    share = len(looked_at) / len(entities)
    found: dict[Pair, float] = {}
    for band, wanted in enumerate(_shares(sizes, count)):
        places = np.argwhere(stratum == band)
        order = np.argsort(numbers[places[:, 0], places[:, 1]], kind="stable")[:wanted]
        pairs = [(looked_at[row], names[column]) for row, column in places[order].tolist()]
        found |= dict.fromkeys(pairs, share * wanted / max(1, sizes[band]))
    return found


def _room(candidates: int) -> int:
    return max(1, min(MOST_ENTITIES, MOST_PAIRS // max(1, candidates)))


def _strata(entity_texts: list[str], candidate_texts: list[str]) -> NDArray[np.int8]:
    """The band of every pair (entities, candidates), by the rank of the entity for its candidate."""
    from semlabel.baselines import similarity

    alike = similarity(entity_texts, candidate_texts)
    ends = np.ceil(np.array(BANDS) * len(entity_texts))
    bands = np.searchsorted(ends, np.arange(len(entity_texts)), side="right").astype(np.int8)
    found = np.empty(alike.shape, np.int8)
    for column in range(alike.shape[1]):
        # Ties by the entities' own order, which is one of chance; by the pairs' numbers the draw would not be fair.
        found[np.argsort(-alike[:, column], kind="stable"), column] = bands
    return found


def _shares(sizes: list[int], count: int) -> list[int]:
    """How many to draw of each stratum: equally many, and what one lacks from the others."""
    taken = [0] * len(sizes)
    left = min(count, sum(sizes))
    while left:
        open_ones = [band for band, size in enumerate(sizes) if taken[band] < size]
        each, rest = divmod(left, len(open_ones))
        for place, band in enumerate(open_ones):
            more = min(each + (place < rest), sizes[band] - taken[band])
            taken[band] += more
            left -= more
    return taken
