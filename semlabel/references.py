"""Which references can be used with these entities and this catalog, and why the others cannot.

Knows nothing of where the tables came from or what an unlisted pair means.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from semlabel.sources import RefusedRow

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class ReferenceCheck:
    """`kept` (entity_id, candidate_id, label) and the refused rows; together they are the references checked.

    `left_out` counts kept references to candidates that `catalog_top` left out. They stay, because they show that
    their entity was judged: without them its unlisted pairs would count as unknown.
    """

    kept: "pd.DataFrame"
    refused: list[RefusedRow]
    left_out: int


def check_references(
    references: "pd.DataFrame",
    entity_ids: Collection[str],
    candidate_ids: Collection[str],
    left_out_ids: Collection[str] = (),
) -> ReferenceCheck:
    """Refuse references to unknown entities or candidates, and pairs that are both YES and NO.

    `references` has the columns entity_id, candidate_id, label (bool); `candidate_ids` are the catalog's,
    `left_out_ids` those that the source has but the catalog leaves out.
    """
    import numpy as np

    entity_known = references["entity_id"].isin(list(entity_ids)).to_numpy()
    in_catalog = references["candidate_id"].isin(list(candidate_ids)).to_numpy()
    in_left_out = references["candidate_id"].isin(list(left_out_ids)).to_numpy() & ~in_catalog
    labels_per_pair = references.groupby(["entity_id", "candidate_id"], sort=False)["label"].transform("nunique")
    reasons = np.select(
        [~entity_known, ~(in_catalog | in_left_out), labels_per_pair.to_numpy() > 1],
        ["unknown entity", "unknown candidate", "contradictory: listed as YES and as NO"],
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
    return ReferenceCheck(kept=kept, refused=refused, left_out=int((in_left_out & good).sum()))
