"""References and judgements together: the reference labels that can be used, and why the others cannot.

Knows the order of the checks, so that a run and `semlabel check` count the same. Knows nothing of files or of the
warehouse.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from semlabel.judging.merging import REFERENCE, SOURCE, UNJUDGED, one_row_per_pair, usable_judgements
from semlabel.judging.random_sample import Pair
from semlabel.judging.store import TEACHER, Judgement
from semlabel.references import check_references, undecided_frame
from semlabel.sources import RefusedRow

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Labels:
    """`kept` (entity_id, candidate_id, label, design, inclusion_probability), one row per pair; refused `references`
    (contradicting judgements among them) and `judgements`; `rows_in` is the references and the usable judgements.
    `undecided` (entity_id, candidate_id, reason): pairs that are neither YES nor NO, though they could count as one.
    """

    kept: "pd.DataFrame"
    references: list[RefusedRow]
    judgements: list[RefusedRow]
    rows_in: int
    redundant: int
    outside_catalog: int
    notes: list[str]
    undecided: "pd.DataFrame"


def reference_labels(
    references: "pd.DataFrame",
    judgements: Sequence[Judgement],
    entities: Mapping[str, tuple[str, str]],
    candidate_text_ids: Mapping[str, str],
    catalog_ids: Sequence[str],
    unlisted: str,
    erased: Collection[str] = (),
    unreadable: Iterable[Pair] = (),
) -> Labels:
    """What can be used of both, where `entities` gives split and text id by id.

    `candidate_text_ids` are all candidates of the source, `catalog_ids` those that are labeled, `unreadable` the pairs
    of references that were refused for their label. What a teacher says of a pair that people decided does not count:
    it can be wrong, and must not undo their label by contradicting it.
    """
    fresh, unusable = usable_judgements(judgements, entities, candidate_text_ids, erased)
    rows = _together(references, fresh)
    rows, overruled = _without_overruled(rows)
    left_out = candidate_text_ids.keys() - set(catalog_ids)
    checked = check_references(rows, list(entities), catalog_ids, left_out, unreadable)
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
        undecided=_undecided(checked.undecided, merged.undecided),
    )


def _undecided(named: "pd.DataFrame", drawn: Iterable[Pair]) -> "pd.DataFrame":
    """Both kinds, each pair once: that chance drew it says more, because then it stands for others."""
    said = zip(named["entity_id"], named["candidate_id"], named["reason"], strict=True)
    reason_of = {(entity_id, candidate_id): reason for entity_id, candidate_id, reason in said}
    return undecided_frame(reason_of | dict.fromkeys(drawn, UNJUDGED))


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
