"""Which references can be used with these entities and this catalog, why the others cannot, and who may be in a split.

Knows nothing of where the tables came from.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from semlabel.sources import RefusedRow

if TYPE_CHECKING:
    import pandas as pd

CONTRADICTORY, UNREADABLE = "contradictory", "label not readable"
"""Why a pair that references name is undecided."""
_CONTRADICTS = f"{CONTRADICTORY}: listed as YES and as NO"


@dataclass(frozen=True)
class ReferenceCheck:
    """`kept` (entity_id, candidate_id, label) and the refused rows; together they are the references checked.

    `undecided` (entity_id, candidate_id, reason) are pairs that references name without a usable label: not YES, and
    not NO either where unlisted pairs are. `left_out` counts kept references to candidates that `catalog_top` left out.
    They stay, because they show that their entity was judged: without them its unlisted pairs would count as unknown.
    """

    kept: "pd.DataFrame"
    refused: list[RefusedRow]
    left_out: int
    undecided: "pd.DataFrame"


def entities_to_split(
    entity_ids: Collection[str], references: "pd.DataFrame", also_ids: Collection[str], unlisted: str
) -> set[str]:
    """The entities that can train or be judged by: those that `references` name.

    Where unlisted pairs are unknown, also `also_ids`: those that people's judgements name and those that were drawn
    before, because a random sample of a split is one of all its entities. And where no reference says anything every
    entity: anyone can be asked about.
    """
    named = set(references["entity_id"])
    if unlisted == "negative":
        return named & set(entity_ids)
    return (named | set(also_ids)) & set(entity_ids) if named else set(entity_ids)


def check_references(
    references: "pd.DataFrame",
    entity_ids: Collection[str],
    candidate_ids: Collection[str],
    left_out_ids: Collection[str] = (),
    unreadable: Iterable[tuple[str, str]] = (),
) -> ReferenceCheck:
    """Refuse references to unknown entities or candidates, and pairs that are both YES and NO.

    `references` has the columns entity_id, candidate_id, label (bool); `candidate_ids` are the catalog's,
    `left_out_ids` those that the source has but the catalog leaves out. `unreadable` are pairs (entity, candidate) of
    rows that were refused for their label.
    """
    import numpy as np

    entity_known = references["entity_id"].isin(list(entity_ids)).to_numpy()
    in_catalog = references["candidate_id"].isin(list(candidate_ids)).to_numpy()
    in_left_out = references["candidate_id"].isin(list(left_out_ids)).to_numpy() & ~in_catalog
    labels_per_pair = references.groupby(["entity_id", "candidate_id"], sort=False)["label"].transform("nunique")
    reasons = np.select(
        [~entity_known, ~(in_catalog | in_left_out), labels_per_pair.to_numpy() > 1],
        ["unknown entity", "unknown candidate", _CONTRADICTS],
        default="",
    )
    good = reasons == ""
    bad = references[~good]
    refused = [
        RefusedRow("references", f"{entity_id} / {candidate_id}", str(reason))
        for entity_id, candidate_id, reason in zip(bad["entity_id"], bad["candidate_id"], reasons[~good], strict=True)
    ]
    kept = references[good].reset_index(drop=True)
    if len(kept) + len(refused) != len(references):
        raise AssertionError(f"{len(references)} references in, {len(kept)} kept, {len(refused)} refused")
    entities, candidates = set(entity_ids), {*candidate_ids, *left_out_ids}
    named = {pair for pair in unreadable if pair[0] in entities and pair[1] in candidates}
    against = set(_pairs(references[reasons == _CONTRADICTS]))
    reason_of = dict.fromkeys(named - set(_pairs(kept)), UNREADABLE) | dict.fromkeys(against, CONTRADICTORY)
    left_out = int((in_left_out & good).sum())
    return ReferenceCheck(kept=kept, refused=refused, left_out=left_out, undecided=undecided_frame(reason_of))


def undecided_frame(reason_of: Mapping[tuple[str, str], str]) -> "pd.DataFrame":
    """The frame (entity_id, candidate_id, reason) of the pairs whose reason is given, ordered by their ids."""
    import pandas as pd

    rows = [(*pair, reason) for pair, reason in sorted(reason_of.items())]
    return pd.DataFrame(rows, columns=["entity_id", "candidate_id", "reason"], dtype="str")


def _pairs(rows: "pd.DataFrame") -> Iterator[tuple[str, str]]:
    return zip(rows["entity_id"], rows["candidate_id"], strict=True)
