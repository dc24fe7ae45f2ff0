"""Judgements beside the references: which of them can be used, for what, and one row per judged pair.

Pairs that were picked near the threshold train and never prove; random ones prove where they are still a random sample.
Knows splits and what an unlisted pair means; deliberately knows nothing of files, margins or the warehouse.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from semlabel.digests import text_id
from semlabel.judging.random_sample import MOST_UNJUDGED, Pair, complete_sample, left_unjudged
from semlabel.judging.store import RANDOM, Judgement
from semlabel.sources import ERASED, RefusedRow
from semlabel.splits import HELD_OUT, LEFT_OUT, TRAIN

if TYPE_CHECKING:
    import pandas as pd

REFERENCE = "reference"
"""The design of a pair that the references list."""
SOURCE = "judgements"
UNJUDGED = "drawn by chance and not judged"
"""Why a pair of a random sample is undecided."""
_COLUMNS = ("entity_id", "candidate_id", "label", "design", "inclusion_probability")


@dataclass(frozen=True)
class Merged:
    """`kept` (entity_id, candidate_id, label, design, inclusion_probability), one row per pair; `refused` judgements;
    how many rows said the same as another one; and what people should know. `undecided` are the pairs that belong to a
    random sample and have no label.
    """

    kept: "pd.DataFrame"
    refused: list[RefusedRow]
    redundant: int
    notes: list[str]
    undecided: list[Pair] = field(default_factory=list)


def usable_judgements(
    judgements: Sequence[Judgement],
    entities: Mapping[str, tuple[str, str]],
    candidate_text_ids: Mapping[str, str],
    erased: Collection[str] = (),
) -> "tuple[pd.DataFrame, list[RefusedRow]]":
    """The judgements of pairs that are still what was judged, as rows of references, and the others with a reason.

    `entities` gives split and text id by id; `erased` are digests of ids.
    """
    kept: list[Judgement] = []
    refused: list[RefusedRow] = []
    for row in judgements:
        digest = text_id(row.entity_id)
        reason = _unusable(row, entities.get(row.entity_id), candidate_text_ids.get(row.candidate_id))
        if digest in erased:
            refused.append(RefusedRow(SOURCE, f"sha256:{digest}", ERASED))
        elif reason is not None:
            refused.append(RefusedRow(SOURCE, " / ".join(row.pair), reason))
        else:
            kept.append(row)
    return _frame(kept), refused


def _unusable(row: Judgement, entity: tuple[str, str] | None, candidate_text_id: str | None) -> str | None:
    if entity is None:
        return "unknown entity"
    if candidate_text_id is None:
        return "unknown candidate"
    split, entity_text_id = entity
    if (entity_text_id, candidate_text_id) != (row.entity_text_id, row.candidate_text_id):
        return "its text was changed since it was judged"
    if split == LEFT_OUT:
        return "its entity is in no split: no reference lists it"
    if split != TRAIN and row.design != RANDOM:
        return f"it was picked to teach ({row.design}), which only trains, and its entity is in {split}"
    return None


def one_row_per_pair(
    rows: "pd.DataFrame", split_of: Mapping[str, str], candidate_ids: Sequence[str], unlisted: str
) -> Merged:
    """One row per pair of checked references and judgements (columns as in `Merged.kept`, no contradictions).

    A judgement takes the place of a reference that says the same, so that it is known how the pair was picked. Where
    unlisted pairs are unknown, random judgements of a held-out split are what it is judged by, and count only as far
    as they are a random sample of its cross product (`complete_sample`). Where they are negative, every pair of an
    entity is judged already, so a judgement needs an entity with a usable reference, and only corrects its pair.
    """
    import pandas as pd

    judged = rows["design"] != REFERENCE
    if unlisted == "negative":
        unfit = judged & ~rows["entity_id"].isin(set(rows["entity_id"][~judged]))
        refused = _refused(rows[unfit], "its entity has no usable reference")
        notes: list[str] = []
        undecided: list[Pair] = []
    else:
        unfit, refused, notes, undecided = _outside_samples(rows, split_of, candidate_ids)
    fit = rows[~unfit]
    rank = fit["design"].map({RANDOM: 0, REFERENCE: 2}).fillna(1)
    kept = fit.assign(rank=rank).sort_values("rank", kind="stable").drop_duplicates(["entity_id", "candidate_id"])
    kept = kept.sort_index().drop(columns="rank").reset_index(drop=True)
    assert isinstance(kept, pd.DataFrame)
    return Merged(kept[list(_COLUMNS)], refused, len(fit) - len(kept), notes, undecided)


def _outside_samples(
    rows: "pd.DataFrame", split_of: Mapping[str, str], candidate_ids: Sequence[str]
) -> "tuple[pd.Series[bool], list[RefusedRow], list[str], list[Pair]]":
    """Which judgements are in no sample, those with the reason, what to know of each sample, what it leaves open."""
    import pandas as pd

    split = rows["entity_id"].map(split_of)
    pairs = list(zip(rows["entity_id"], rows["candidate_id"], strict=True))
    unfit = rows["design"].isna()  # nothing yet
    refused: list[RefusedRow] = []
    notes: list[str] = []
    undecided: list[Pair] = []
    for name in HELD_OUT:
        own = (split == name) & (rows["design"] == RANDOM)
        if not own.any():
            continue
        entity_ids = sorted(entity_id for entity_id, found in split_of.items() if found == name)
        sample, drawn = complete_sample(entity_ids, candidate_ids, {pairs[at] for at in own.to_numpy().nonzero()[0]})
        outside = own & pd.Series([pair not in sample for pair in pairs], index=rows.index)
        unfit |= outside
        refused += _refused(
            rows[outside],
            f"no random sample of {name}: over {MOST_UNJUDGED:.0%} of the pairs drawn before it were not judged",
        )
        share = drawn / (len(entity_ids) * len(candidate_ids))
        if sample:
            left = left_unjudged(entity_ids, candidate_ids, sample)
            undecided += left
            notes.append(
                f"{name} is judged by {len(sample)} random pairs ({share:.2%} of its cross product) instead of listed "
                "ones" + (f"; {len(left)} more were drawn and have no usable judgement" if left else "")
            )
    return unfit, refused, notes, undecided


def _refused(rows: "pd.DataFrame", reason: str) -> list[RefusedRow]:
    return [
        RefusedRow(SOURCE, f"{entity_id} / {candidate_id}", reason)
        for entity_id, candidate_id in zip(rows["entity_id"], rows["candidate_id"], strict=True)
    ]


def _frame(rows: Sequence[Judgement]) -> "pd.DataFrame":
    import pandas as pd

    values = {name: [getattr(row, name) for row in rows] for name in _COLUMNS}
    types = dict.fromkeys(_COLUMNS, "str") | {"label": "bool", "inclusion_probability": "float64"}
    return pd.DataFrame(values).astype(types)
