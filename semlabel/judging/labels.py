"""References and judgements together: the reference labels that can be used, and why the others cannot.

Knows the order of the checks, so that a run and `semlabel check` count the same. Knows nothing of files or of the
warehouse.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from semlabel.judging.merging import REFERENCE, SOURCE, one_row_per_pair, usable_judgements
from semlabel.judging.store import TEACHER, Judgement
from semlabel.references import check_references
from semlabel.sources import RefusedRow

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Labels:
    """`kept` (entity_id, candidate_id, label, design, inclusion_probability), one row per pair; refused `references`
    (contradicting judgements among them) and `judgements`; `rows_in` is the references and the usable judgements.
    """

    kept: "pd.DataFrame"
    references: list[RefusedRow]
    judgements: list[RefusedRow]
    rows_in: int
    redundant: int
    outside_catalog: int
    notes: list[str]


def reference_labels(
    references: "pd.DataFrame",
    judgements: Sequence[Judgement],
    entities: Mapping[str, tuple[str, str]],
    candidate_text_ids: Mapping[str, str],
    catalog_ids: Sequence[str],
    unlisted: str,
    erased: Collection[str] = (),
) -> Labels:
    """What can be used of both, where `entities` gives split and text id by id.

    `candidate_text_ids` are all candidates of the source, `catalog_ids` those that are labeled. What a teacher says of
    a pair that people decided does not count: it can be wrong, and must not undo their label by contradicting it.
    """
    fresh, unusable = usable_judgements(judgements, entities, candidate_text_ids, erased)
    rows = _together(references, fresh)
    rows, overruled = _without_overruled(rows)
    left_out = candidate_text_ids.keys() - set(catalog_ids)
    checked = check_references(rows, list(entities), catalog_ids, left_out)
    splits = {entity_id: split for entity_id, (split, _) in entities.items()}
    merged = one_row_per_pair(checked.kept, splits, catalog_ids, unlisted)
    return Labels(
        kept=merged.kept,
        references=checked.refused,
        judgements=[*unusable, *overruled, *merged.refused],
        rows_in=len(rows),
        redundant=merged.redundant,
        outside_catalog=checked.left_out,
        notes=merged.notes,
    )


def _without_overruled(rows: "pd.DataFrame") -> "tuple[pd.DataFrame, list[RefusedRow]]":
    """The rows without what a teacher said of pairs that people decided, and those."""
    taught = rows["design"] == TEACHER
    if not taught.any():
        return rows, []
    pairs = list(zip(rows["entity_id"], rows["candidate_id"], strict=True))
    decided = {pair for pair, said in zip(pairs, taught, strict=True) if not said}
    overruled = [bool(said) and pair in decided for pair, said in zip(pairs, taught, strict=True)]
    reason = "a teacher said it, and people decided the pair"
    refused = [RefusedRow(SOURCE, " / ".join(pair), reason) for pair, out in zip(pairs, overruled, strict=True) if out]
    return rows[[not out for out in overruled]].reset_index(drop=True), refused


def _together(references: "pd.DataFrame", judgements: "pd.DataFrame") -> "pd.DataFrame":
    """The rows of both, each with how its pair came to be judged."""
    import pandas as pd

    rows = references.assign(design=REFERENCE, inclusion_probability=float("nan"))
    return pd.concat([rows, judgements], ignore_index=True) if len(judgements) else rows
