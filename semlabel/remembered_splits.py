"""Splits for good: what an entity was once drawn for is kept in the warehouse, whether the entity is present or not.

A source that is cut short for a night forgets entities and references. What calibrated must not certify when it comes
back, or the bound that was proven on it is worth nothing. Knows whose text was whose; how entities are drawn stands in
`splits`. An id and its split are kept until they are erased, and no text: that a text was another entity's is known as
long as the warehouse keeps `former_texts`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from semlabel.digests import text_id
from semlabel.splits import LEFT_OUT, SplitResult, assign_splits

if TYPE_CHECKING:
    import pandas as pd

    from semlabel.settings import Splits
    from semlabel.warehouse import Warehouse

# The splits of those that have or had a text. A text of several splits is no longer fit for any.
_HEIRS = """SELECT heir.entity_id, list_sort(list(DISTINCT split)) FROM heirs heir JOIN texts USING (text_id)
JOIN (SELECT entity_id, text_key FROM entities UNION ALL SELECT entity_id, text_key FROM former_texts) owner
    USING (text_key)
JOIN remembered_splits known ON known.entity_id = owner.entity_id GROUP BY heir.entity_id ORDER BY heir.entity_id"""


def remembered(warehouse: "Warehouse") -> dict[str, str]:
    """The split of every entity that ever had one, "" for those left out."""
    rows = warehouse.rows("SELECT entity_id, split FROM remembered_splits")
    return {str(entity_id): str(split) for entity_id, split in rows}


def assign_for_good(
    warehouse: "Warehouse", entities: "pd.DataFrame", splits: "Splits", pinned: Mapping[str, str] | None = None
) -> SplitResult:
    """Assign every entity of `entities` (entity_id, text) as `assign_splits` does, and remember it.

    Whoever was assigned before stays there, absent nights, other sizes and another seed notwithstanding; only new
    entities are drawn. A new id with a text that a remembered entity has or had is that entity under another name: it
    joins its split, or none where the text stood in several. `pinned` is where people's judgements say that entities
    were before anything was remembered. Raises SourceError as `assign_splits`; then nothing is
    remembered.
    """
    known = remembered(warehouse)
    notes = _other_seed(warehouse, splits.seed)
    inherited: dict[str, str] = {}
    for entity_id, stood_in in _inherited(warehouse, entities, known):
        inherited[entity_id] = stood_in[0] if len(stood_in) == 1 else LEFT_OUT
        if len(stood_in) > 1:
            named = " and ".join(name or "(left out)" for name in stood_in)
            notes.append(f"left out: {entity_id} is new, but its text stood in {named} under other ids")
    result = assign_splits(entities, splits, {**(pinned or {}), **inherited, **known})
    changed = {entity_id: split for entity_id, split in result.split.items() if known.get(entity_id) != split}
    if changed:
        _remember(warehouse, changed, splits.seed)
    return replace(result, notes=[*result.notes, *notes])


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
        connection.execute("DELETE FROM remembered_splits WHERE entity_id IN (SELECT entity_id FROM assigned)")
        connection.execute(
            "INSERT INTO remembered_splits SELECT entity_id, split, ?, ? FROM assigned ORDER BY entity_id",
            [str(seed), now],
        )
