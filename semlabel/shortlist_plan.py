"""The plan of a refresh where only shortlisted pairs are wanted: these minus what is stored, as rounds like any other.

Knows shortlists and blocks; deliberately knows nothing of how shortlists were made. Entities that gates judge are
planned in full, so that what a shortlist loses can be measured. Pairs are held for a batch of texts at a time, so only
the rounds grow with the table.
"""

import hashlib
from collections.abc import Iterable, Sequence
from uuid import uuid4

from semlabel import refresh
from semlabel.digests import digest_of
from semlabel.refresh import RefreshPlan
from semlabel.round_stream import Round
from semlabel.warehouse import Warehouse
from semlabel.warehouse_scores import BLOCKS_AS_LISTS, ensure_blocks, scorer_key

_BATCH = 5000
"""Texts whose rounds are made together."""

# The shortlisted pairs of the texts in `wanted_texts` that a scorer has no margin for, in catalog order.
_MISSING = f"""WITH stored AS (
    SELECT s.text_key, unnest(b.candidate_text_keys) AS candidate_text_key
    FROM (SELECT text_key, block_id FROM scores SEMI JOIN wanted_texts USING (text_key) WHERE scorer_key = ?) s
    JOIN {BLOCKS_AS_LISTS} b USING (block_id)),
wanted AS (
    SELECT text_key, unnest(candidate_text_keys) AS candidate_text_key
    FROM shortlists SEMI JOIN wanted_texts USING (text_key)),
places AS (SELECT text_key AS candidate_text_key, min(position) AS place FROM catalog GROUP BY text_key)
SELECT w.text_key, list(w.candidate_text_key ORDER BY p.place)
FROM wanted w JOIN places p USING (candidate_text_key) ANTI JOIN stored USING (text_key, candidate_text_key)
GROUP BY w.text_key ORDER BY w.text_key"""


def plan(
    warehouse: Warehouse,
    scorer_digest: str,
    entity_ids: Iterable[str] | None,
    in_full: Iterable[str],
    items_per_round: int,
) -> RefreshPlan:
    """Plan the missing pairs of these entities' shortlists (None: all), and all missing pairs of those `in_full`.

    The shortlists must be there (`shortlist_store.keep`): an entity without one is wanted for nothing.
    """
    judged = sorted(set(in_full))
    whole = refresh.plan(warehouse, scorer_digest, judged, items_per_round)
    texts, entities = _texts(warehouse, entity_ids, judged)
    rounds, pairs = list(whole.rounds), whole.pairs
    for start in range(0, len(texts), _BATCH):
        part = _missing(warehouse, scorer_digest, texts[start : start + _BATCH])
        rounds += _rounds(warehouse, part, items_per_round)
        pairs += sum(len(keys) for _, keys in part)
    wanted = _wanted(warehouse, texts)
    planned = hashlib.sha256(repr(texts).encode()).hexdigest()
    lists = warehouse.rows("SELECT digest FROM active_shortlist")
    return RefreshPlan(
        plan_id=uuid4().hex,
        scorer_digest=scorer_digest,
        subject_digest=digest_of([whole.subject_digest, planned, lists]),
        rounds=rounds,
        pairs=pairs,
        pairs_stored=whole.pairs_stored + wanted - (pairs - whole.pairs),
        entities=whole.entities + entities,
    )


def _texts(warehouse: Warehouse, entity_ids: Iterable[str] | None, judged: Sequence[str]) -> tuple[list[int], int]:
    """The texts of these entities that no judged entity has, and how many entities have them."""
    chosen = None if entity_ids is None else sorted(set(entity_ids))
    with warehouse.ids("planned_entities", chosen or []), warehouse.ids("judged_entities", judged):
        some = "" if chosen is None else "SEMI JOIN planned_entities ON planned_entities.id = entity_id"
        rows = warehouse.rows(
            f"""SELECT text_key, count(*) FROM entities {some} WHERE text_key NOT IN
                (SELECT text_key FROM entities SEMI JOIN judged_entities ON judged_entities.id = entity_id)
            GROUP BY text_key ORDER BY text_key"""
        )
    return [key for key, _ in rows], sum(count for _, count in rows)


def _missing(warehouse: Warehouse, scorer_digest: str, texts: Sequence[int]) -> list[tuple[int, list[int]]]:
    key = scorer_key(warehouse.connection, scorer_digest)
    warehouse.rows("CREATE OR REPLACE TEMP TABLE wanted_texts AS SELECT unnest(?::INTEGER[]) AS text_key", [texts])
    found = warehouse.rows(_MISSING, [-1 if key is None else key])
    warehouse.rows("DROP TABLE wanted_texts")
    return [(text_key, list(keys)) for text_key, keys in found]


def _rounds(warehouse: Warehouse, missing: Sequence[tuple[int, list[int]]], items_per_round: int) -> list[Round]:
    chunks = [
        (text_key, tuple(keys[start : start + items_per_round]))
        for text_key, keys in missing
        for start in range(0, len(keys), items_per_round)
    ]
    distinct = list(dict.fromkeys(chunk for _, chunk in chunks))
    with warehouse.transaction() as connection:
        blocks = dict(zip(distinct, ensure_blocks(connection, distinct), strict=True))
    return [Round(text_key, blocks[chunk]) for text_key, chunk in chunks]


def _wanted(warehouse: Warehouse, texts: Sequence[int]) -> int:
    ((count,),) = warehouse.rows(
        "SELECT coalesce(sum(len(candidate_text_keys)), 0) FROM shortlists WHERE text_key IN "
        "(SELECT unnest(?::INTEGER[]))",
        [list(texts)],
    )
    return int(count)
