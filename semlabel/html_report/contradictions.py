"""Reference labels that contradict each other: the likeliest label noise, found without asking any labeler.

Knows the tables of the warehouse. Looks at entities of `train` and `calibrate` only: references of `certify` and `test`
are what proves, and whoever mends those after a look has judged with an eye on the result.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from semlabel.warehouse import Warehouse

_SPLITS = "('train', 'calibrate')"


@dataclass(frozen=True)
class Contradiction:
    """Two entities that say the same and are judged differently for one candidate."""

    yes_entity_id: str
    no_entity_id: str
    candidate_id: str
    listed: bool


@dataclass(frozen=True)
class Contradictions:
    """How many there are, and the first of them."""

    total: int
    first: list[Contradiction]


def judged_differently(warehouse: "Warehouse", unlisted: str, most: int) -> Contradictions:
    """Near-duplicates of which one is listed YES and one listed NO for the same candidate.

    With `unlisted` "negative" also entities with the very same text of which only one is listed.
    """
    found = f"""WITH held AS (SELECT entity_id, group_id, text_id FROM entities WHERE split IN {_SPLITS}),
        judged AS (SELECT h.*, r.candidate_id, r.label FROM held h JOIN reference_labels r USING (entity_id)),
        known AS (SELECT DISTINCT entity_id, group_id, text_id FROM judged)
        SELECT a.entity_id, b.entity_id, a.candidate_id, n.label IS NOT NULL AS listed
        FROM judged a
        JOIN known b ON b.group_id = a.group_id AND b.entity_id <> a.entity_id
        LEFT JOIN judged n ON n.entity_id = b.entity_id AND n.candidate_id = a.candidate_id
        ANTI JOIN undecided_pairs u ON u.entity_id = b.entity_id AND u.candidate_id = a.candidate_id
        WHERE a.label AND (NOT n.label OR (n.label IS NULL AND ? AND b.text_id = a.text_id))"""
    negative = unlisted == "negative"
    ((total,),) = warehouse.rows(f"SELECT count(*) FROM ({found})", [negative])
    rows = warehouse.rows(f"{found} ORDER BY 1, 2, 3 LIMIT {int(most)}", [negative])
    return Contradictions(int(total), [Contradiction(*row) for row in rows])


def refused_references(warehouse: "Warehouse", run_id: str, most: int) -> tuple[dict[str, int], list[str]]:
    """The references that a run refused, counted by reason, and the first contradictory ones (`entity / candidate`)."""
    by_reason = warehouse.rows(
        "SELECT reason, count(*) FROM refused_rows WHERE run_id = ? AND source = 'references' GROUP BY ALL ORDER BY 1",
        [run_id],
    )
    contradictory = warehouse.rows(
        "SELECT DISTINCT row_id FROM refused_rows WHERE run_id = ? AND source = 'references' "
        f"AND starts_with(reason, 'contradictory') ORDER BY 1 LIMIT {int(most)}",
        [run_id],
    )
    return {str(reason): int(count) for reason, count in by_reason}, [str(row[0]) for row in contradictory]
