"""The splits that the next run will give these tables, told without giving them.

Goes by what the warehouse remembers, where a run has been, and writes nowhere. Deliberately knows nothing of what is
done with splits, nor of texts that came online: the run alone takes those.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from semlabel.errors import LeaseHeld, SourceError, WarehouseError
from semlabel.families import Family, largest_family
from semlabel.judging.store import TEACHER, pinned_splits
from semlabel.references import entities_to_split
from semlabel.remembered_splits import assign_without_remembering
from semlabel.splits import SplitResult, assign_splits

if TYPE_CHECKING:
    import pandas as pd

    from semlabel.judging.store import Judgement
    from semlabel.settings import Settings

MOST_COMPARED = 50_000
"""Near-duplicates of more texts than these are left to the run."""


@dataclass(frozen=True)
class Foreseen:
    """`split_of` every entity that is to be split, None where that is not known, and the `notes` of the run.

    `entities` are to be split; `problem` says why nothing is known. Not `exact`: near-duplicates were not looked for,
    so no `family` of them is known.
    """

    entities: int
    split_of: dict[str, str] | None
    problem: str | None = None
    notes: tuple[str, ...] = ()
    exact: bool = True
    family: Family | None = None


def foresee(
    settings: "Settings",
    entities: "pd.DataFrame",
    references: "pd.DataFrame",
    judgements: "Iterable[Judgement]",
    thorough: bool = False,
) -> Foreseen:
    """The splits of the `entities` as the source has them, with the references and all that was judged.

    `thorough`: near-duplicates are looked for however many texts there are.
    """
    # As in a run: what a teacher says is asked of entities that have their split.
    pinned = pinned_splits(row for row in judgements if row.design != TEACHER)
    wanted = entities_to_split(list(entities["entity_id"]), references, pinned, settings.sources.unlisted)
    if not wanted:
        return Foreseen(0, None)
    own = entities[entities["entity_id"].isin(list(wanted))]
    exact = thorough or len(own) <= MOST_COMPARED
    try:
        result = _assigned(settings, own, pinned, exact)
    except (LeaseHeld, SourceError, WarehouseError) as error:
        return Foreseen(len(own), None, str(error))
    family = largest_family(result.groups, result.split)
    return Foreseen(len(own), result.split, None, tuple(result.notes), exact, family)


def _assigned(settings: "Settings", own: "pd.DataFrame", pinned: dict[str, str], exact: bool) -> SplitResult:
    if not settings.paths.warehouse.exists():
        return assign_splits(own, settings.splits, pinned, near_duplicates=exact)
    from semlabel.reading import reading

    # Whoever only asks does not wait for a run that may take hours.
    with reading(settings, "check", wait_seconds=0) as warehouse:
        return assign_without_remembering(warehouse, own, settings.splits, pinned, near_duplicates=exact)
