"""A warehouse filled from a project's tables, so that people can be asked before anything has run.

Splits come out as the first run will assign them. Knows no model: lengths in tokens and what the prompt refuses are
for the run. Deliberately knows nothing of how pairs are picked.
"""

from collections.abc import Collection
from typing import TYPE_CHECKING

from semlabel.judging.store import pinned_splits, read_judgements
from semlabel.pairs import select_catalog
from semlabel.references import check_references, entities_to_split
from semlabel.sources import read_catalog, read_entities, read_references
from semlabel.splits import TRAIN, with_splits

if TYPE_CHECKING:
    from semlabel.settings import Settings
    from semlabel.warehouse import Warehouse

_RUN = "before a run"


def fill_from_tables(warehouse: "Warehouse", settings: "Settings", erased: Collection[str]) -> None:
    """Fill entities, catalog and reference labels of an empty warehouse; `erased` are digests of ids.

    Raises SourceError where a table cannot be read, or cannot give the splits that `[splits]` asks for.
    """
    entities = read_entities(settings, erased).frame
    listed = read_references(settings, erased)
    references = listed.frame
    pinned = pinned_splits(read_judgements(settings))
    ids = list(entities["entity_id"])
    wanted = entities_to_split(ids, references, pinned, settings.sources.unlisted)
    entities, _ = with_splits(entities, wanted, settings.splits, pinned)
    train_ids = list(entities["entity_id"][entities["split"] == TRAIN])
    source = read_catalog(settings).frame
    catalog, left_out = select_catalog(source, references, train_ids, settings.sources.catalog_top)
    checked = check_references(references, ids, list(catalog["candidate_id"]), left_out, listed.unreadable)
    warehouse.replace_entities(entities, _RUN)
    warehouse.replace_catalog(catalog, _RUN)
    warehouse.replace_references(checked.kept, _RUN)
    warehouse.replace_undecided(checked.undecided, _RUN)
