"""Splits for good: what an entity was once drawn for is kept in the warehouse, whether the entity is present or not.

A source that is cut short for a night forgets entities and references. What calibrated must not certify when it comes
back, or the bound that was proven on it is worth nothing. Being left out is kept for nobody who was drawn: it lasts as
long as its reason, and then the entity is what it was. Knows whose text was whose; how entities are drawn stands in
`splits`. An id and its split are kept until they are erased, and no text: that a text was another entity's is known as
long as the warehouse keeps `former_texts`.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from semlabel.digests import text_id
from semlabel.splits import HELD_OUT, LEFT_OUT, SplitResult, assign_splits

if TYPE_CHECKING:
    import pandas as pd

    from semlabel.settings import Splits
    from semlabel.warehouse import Warehouse

# The splits of those that have or had a text. A text of several splits is no longer fit for any.
_HEIRS = """SELECT heir.entity_id, list_sort(list(DISTINCT split)) FROM heirs heir JOIN texts USING (text_id)
JOIN (SELECT entity_id, text_key FROM entities UNION ALL SELECT entity_id, text_key FROM former_texts) owner
    USING (text_key)
JOIN remembered_splits known ON known.entity_id = owner.entity_id GROUP BY heir.entity_id ORDER BY heir.entity_id"""

# Held-out entities that took over the text of an entity of another split while that one had it, and have it still.
# What was used under that text is not known, so it judges nothing. Until when an entity had a text stands in
# `former_texts`; that of the night before has no end yet.
_TAKERS = """WITH had AS (SELECT entity_id, text_id, since FROM former_texts JOIN texts USING (text_key)
             UNION ALL SELECT entity_id, text_id, 'infinity'::TIMESTAMP FROM entities),
taken AS (SELECT held.entity_id, held.text_id, held.split, max(had.since) AS since
          FROM held JOIN had ON had.entity_id = held.entity_id AND had.text_id <> held.text_id GROUP BY ALL)
SELECT DISTINCT taken.entity_id, known.split FROM taken
JOIN had ON had.text_id = taken.text_id AND had.entity_id <> taken.entity_id AND had.since > taken.since
JOIN remembered_splits known ON known.entity_id = had.entity_id
WHERE known.split NOT IN ('', taken.split) ORDER BY ALL"""


def remembered(warehouse: "Warehouse") -> dict[str, str]:
    """The split of every entity that ever had one, "" for those left out for good."""
    rows = warehouse.rows("SELECT entity_id, split FROM remembered_splits")
    return {str(entity_id): str(split) for entity_id, split in rows}


def assign_for_good(
    warehouse: "Warehouse", entities: "pd.DataFrame", splits: "Splits", pinned: Mapping[str, str] | None = None
) -> SplitResult:
    """Assign every entity of `entities` (entity_id, text) as `assign_splits` does, and remember it.

    Whoever was assigned before stays there, absent nights, other sizes and another seed notwithstanding; only new
    entities are drawn. Who cannot be used tonight, because its text is nearly that of another split, is left out
    tonight and remembered as what it was. A new id with a text that a remembered entity has or had is that entity under
    another name: it joins its split, or none where the text stood in several. `pinned` is where people's judgements say
    that entities were before anything was remembered. Raises SourceError as `assign_splits`; then nothing is
    remembered.
    """
    result, fresh = _assigned(warehouse, entities, splits, pinned or {}, near_duplicates=True)
    if fresh:
        _remember(warehouse, fresh, splits.seed)
    return result


def assign_without_remembering(
    warehouse: "Warehouse",
    entities: "pd.DataFrame",
    splits: "Splits",
    pinned: Mapping[str, str],
    near_duplicates: bool = True,
) -> SplitResult:
    """What `assign_for_good` would assign now; a warehouse that is open for reading will do."""
    return _assigned(warehouse, entities, splits, pinned, near_duplicates)[0]


def _assigned(
    warehouse: "Warehouse",
    entities: "pd.DataFrame",
    splits: "Splits",
    pinned: Mapping[str, str],
    near_duplicates: bool,
) -> tuple[SplitResult, dict[str, str]]:
    """The splits of `entities`, and those of them that are to be remembered."""
    known = remembered(warehouse)
    notes = _other_seed(warehouse, splits.seed)
    inherited: dict[str, str] = {}
    for entity_id, stood_in in _inherited(warehouse, entities, known):
        inherited[entity_id] = stood_in[0] if len(stood_in) == 1 else LEFT_OUT
        if len(stood_in) > 1:
            named = " and ".join(name or "(left out)" for name in stood_in)
            notes.append(f"left out: {entity_id} is new, but its text stood in {named} under other ids")
    unfit: dict[str, str] = {}
    for entity_id, other in _takers(warehouse, entities, known):
        unfit[entity_id] = LEFT_OUT
        notes.append(f"left out while it keeps its text: {entity_id} of {known[entity_id]} took it over from {other}")
    before = {**pinned, **inherited, **known}
    result = assign_splits(entities, splits, before | unfit, near_duplicates)
    fresh = {
        entity_id: split
        for entity_id, split in result.split.items()
        if entity_id not in known and (split != LEFT_OUT or _for_good(entity_id, inherited, result.astride))
    }
    return replace(result, notes=[*result.notes, *notes]), fresh


def _for_good(entity_id: str, inherited: Mapping[str, str], astride: Collection[str]) -> bool:
    """Whether an entity that was never drawn is left out for good.

    So it is where it may be another one under a new name, that was used for something. Beside those that have its text
    today it is none of them, and free once it has a text of its own.
    """
    return inherited.get(entity_id) == LEFT_OUT and entity_id not in astride


def _inherited(
    warehouse: "Warehouse", entities: "pd.DataFrame", known: Mapping[str, str]
) -> Sequence[tuple[str, list[str]]]:
    """The new ids whose text is that of remembered entities, with the splits of those."""
    ids, texts = entities["entity_id"], entities["text"]
    fresh = {entity_id: text_id(text) for entity_id, text in zip(ids, texts, strict=True) if entity_id not in known}
    if not known or not fresh:
        return []
    with warehouse.relation("heirs", entity_id=list(fresh), text_id=list(fresh.values())):
        return [(entity_id, stood_in) for entity_id, stood_in in warehouse.rows(_HEIRS)]


def _takers(warehouse: "Warehouse", entities: "pd.DataFrame", known: Mapping[str, str]) -> Sequence[tuple[str, str]]:
    """The held-out entities that have a text which an entity of another split had when they took it over, and that
    split. Where one of another split has it tonight, they are near-duplicates, and none of those can be used.
    """
    drawn = [
        (entity_id, text, known[entity_id])
        for entity_id, text in zip(entities["entity_id"], entities["text"], strict=True)
        if known.get(entity_id)
    ]
    stands_in: dict[str, set[str]] = {}
    for _, text, split in drawn:
        stands_in.setdefault(text, set()).add(split)
    held = [
        (entity_id, text_id(text), split)
        for entity_id, text, split in drawn
        if split in HELD_OUT and len(stands_in[text]) == 1
    ]
    if not held:
        return []
    ids, texts, splits = (list(column) for column in zip(*held, strict=True))
    with warehouse.relation("held", entity_id=ids, text_id=texts, split=splits):
        return [(entity_id, split) for entity_id, split in warehouse.rows(_TAKERS)]


def _other_seed(warehouse: "Warehouse", seed: int) -> list[str]:
    """A note where nothing was drawn with this seed yet: it moves nobody, and whoever set it may think it does."""
    seeds = [row[0] for row in warehouse.rows("SELECT DISTINCT seed FROM remembered_splits WHERE seed IS NOT NULL")]
    if not seeds or str(seed) in seeds:
        return []
    return [
        f"[splits] seed {seed} moves nobody: entities keep the split that they were drawn for with seed "
        f"{', '.join(sorted(seeds))}, and only new ones are drawn with it; another [environment] name begins anew"
    ]


def _remember(warehouse: "Warehouse", split: Mapping[str, str], seed: int) -> None:
    now = datetime.now(UTC).replace(tzinfo=None)
    with (
        warehouse.transaction() as connection,
        warehouse.relation("assigned", entity_id=list(split), split=list(split.values())),
    ):
        connection.execute(
            "INSERT INTO remembered_splits SELECT entity_id, split, ?, ? FROM assigned ORDER BY entity_id",
            [str(seed), now],
        )
