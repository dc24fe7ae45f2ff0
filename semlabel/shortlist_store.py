"""The shortlists in the warehouse: made anew where the rule or the catalog changed, else only for new texts.

Knows tables and how they are filled; deliberately knows nothing of settings, of models or of what a margin is. A
shortlist belongs to an entity's text. All lists are of one rule and one catalog: `active_shortlist` says of which, and
as long as it has no row, every pair is predicted. A run that is killed half way leaves texts without a list; the next
one makes those.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from semlabel.progress import Progress, ProgressSink, silent
from semlabel.shortlist import Encoder, Ranker, Rule, ranker
from semlabel.warehouse import Warehouse

if TYPE_CHECKING:
    import duckdb

STAGE = "shortlists"
_BATCH = 2000
"""Texts whose lists are committed together."""


class Candidates(NamedTuple):
    """Text keys and texts of a catalog, each text once, in the order of its first id; the place of every id."""

    keys: np.ndarray
    texts: list[str]
    places: dict[str, int]


def keep(
    warehouse: Warehouse,
    rule: Rule,
    encoder: Callable[[], Encoder],
    entity_ids: Iterable[str] | None,
    progress: ProgressSink = silent,
) -> int:
    """Make the shortlists of these entities (None: all) be there, of this rule and the present catalog.

    `encoder` is asked for only where a list is missing. Returns how many lists were made.
    """
    _activate(warehouse, rule)
    missing = _without_list(warehouse, entity_ids)
    if not missing:
        return 0
    found = candidates(warehouse)
    lists = ranker(encoder(), found.texts, rule.size)
    progress(Progress(STAGE, 0, len(missing), "texts"))
    for start in range(0, len(missing), _BATCH):
        part = missing[start : start + _BATCH]
        _store(warehouse, part, found.keys, lists)
        progress(Progress(STAGE, min(start + _BATCH, len(missing)), len(missing), "texts"))
    return len(missing)


def drop(warehouse: Warehouse) -> None:
    """Predict every pair again; nothing to do where no list ever was."""
    if warehouse.shortlisted():
        with warehouse.transaction() as connection:
            _empty(connection)
            warehouse.renew_views(connection)


def candidates(warehouse: Warehouse) -> Candidates:
    """The catalog as a shortlist sees it: a text that stands under two ids is one candidate."""
    rows = warehouse.rows("SELECT text_key, any_value(text) FROM catalog GROUP BY text_key ORDER BY min(position)")
    keys = np.array([key for key, _ in rows], dtype=np.int32)
    place_of = {key: place for place, key in enumerate(keys.tolist())}
    ids = warehouse.rows("SELECT candidate_id, text_key FROM catalog")
    return Candidates(keys, [text for _, text in rows], {candidate_id: place_of[key] for candidate_id, key in ids})


def _activate(warehouse: Warehouse, rule: Rule) -> None:
    """Say of which rule and catalog the lists are; lists of others go."""
    digest = warehouse.shortlist_digest(rule.digest)
    if warehouse.rows("SELECT digest FROM active_shortlist") == [(digest,)]:
        return
    with warehouse.transaction() as connection:
        _empty(connection)
        connection.execute(
            "INSERT INTO active_shortlist VALUES (?, ?, ?, ?, ?)",
            [digest, rule.digest, rule.size, rule.encoder, rule.encoder_digest],
        )
        warehouse.renew_views(connection)


def _empty(connection: "duckdb.DuckDBPyConnection") -> None:
    for table in ("active_shortlist", "shortlists"):
        connection.execute(f"DELETE FROM {table}")


def _without_list(warehouse: Warehouse, entity_ids: Iterable[str] | None) -> list[int]:
    chosen = None if entity_ids is None else sorted(set(entity_ids))
    with warehouse.ids("wanted_entities", chosen or []):
        some = "" if chosen is None else "SEMI JOIN wanted_entities ON id = entity_id"
        rows = warehouse.rows(
            f"SELECT DISTINCT text_key FROM entities {some} ANTI JOIN shortlists USING (text_key) ORDER BY 1"
        )
    return [key for (key,) in rows]


def _store(warehouse: Warehouse, text_keys: Sequence[int], keys: np.ndarray, lists: Ranker) -> None:
    import pyarrow

    texts = dict(
        warehouse.rows(
            "SELECT text_key, any_value(text) FROM entities WHERE text_key IN (SELECT unnest(?::INTEGER[])) "
            "GROUP BY text_key",
            [list(text_keys)],
        )
    )
    kept = [keys[places] for places in lists.kept([texts[key] for key in text_keys])]
    offsets = pyarrow.array(np.cumsum([0, *map(len, kept)]), type=pyarrow.int32())
    flat = np.concatenate(kept) if kept else np.zeros(0, dtype=np.int32)
    made = pyarrow.ListArray.from_arrays(offsets, pyarrow.array(flat, type=pyarrow.int32()))
    with warehouse.transaction() as connection:
        connection.register("made_lists", pyarrow.table({"k": pyarrow.array(text_keys, pyarrow.int32()), "l": made}))
        try:
            connection.execute("INSERT INTO shortlists SELECT k, l FROM made_lists")
        finally:
            connection.unregister("made_lists")
