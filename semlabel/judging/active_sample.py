"""Pairs worth a person's time: near the threshold, against their reference, of candidates that few references know.

They teach and never prove: whoever picks pairs by their margin has chosen the errors. Knows the tables of the
warehouse; deliberately knows nothing of texts or of files.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from semlabel.judging.random_sample import Pair
from semlabel.judging.store import DISAGREEMENT, NEAR_THRESHOLD, THIN_CANDIDATE
from semlabel.references import CONTRADICTORY

if TYPE_CHECKING:
    from semlabel.warehouse import Warehouse

THIN = 20
"""A candidate is thin with fewer train entities than this that a reference says YES for."""

CONTRADICTED = f"SELECT entity_id, candidate_id FROM undecided_pairs WHERE reason = '{CONTRADICTORY}'"
"""Pairs that a further judgement cannot decide: whoever said YES or NO of them has to be corrected first."""
# What the labeler says of pairs of train entities that nobody has judged yet, beside what the references say.
_FRAME = f"""frame AS (
    SELECT p.entity_id, p.candidate_id, p.label, r.label AS reference,
           abs(CAST(p.margin AS DOUBLE) - p.threshold) AS off
    FROM predictions p
    SEMI JOIN (SELECT entity_id FROM entities WHERE split = 'train') e ON e.entity_id = p.entity_id
    LEFT JOIN reference_labels r ON r.entity_id = p.entity_id AND r.candidate_id = p.candidate_id
    ANTI JOIN judged j ON j.entity_id = p.entity_id AND j.candidate_id = p.candidate_id
    ANTI JOIN ({CONTRADICTED}) u ON u.entity_id = p.entity_id AND u.candidate_id = p.candidate_id
    WHERE r.design IS NULL OR r.design = 'reference')"""
_UNLISTED = "SELECT * FROM frame WHERE reference IS NULL"
_NEAR = f"{_UNLISTED} ORDER BY off, entity_id, candidate_id"
_DISAGREEING = "SELECT * FROM frame WHERE label <> {reference} ORDER BY off DESC, entity_id, candidate_id"
# One pair of every thin candidate before a second one of any, the thinnest first.
_THIN = f"""SELECT f.*, coalesce(n.positives, 0) AS positives,
    row_number() OVER (PARTITION BY f.candidate_id ORDER BY off, f.entity_id) AS turn
    FROM ({_UNLISTED}) f LEFT JOIN (
        SELECT candidate_id, count(*) AS positives FROM reference_labels
        SEMI JOIN (SELECT entity_id FROM entities WHERE split = 'train') USING (entity_id)
        WHERE label GROUP BY candidate_id) n ON n.candidate_id = f.candidate_id
    WHERE coalesce(n.positives, 0) < {THIN} ORDER BY turn, positives, candidate_id, entity_id"""


@dataclass(frozen=True)
class Picked:
    """A pair and the design it was picked by."""

    pair: Pair
    design: str


def has_labeled(warehouse: "Warehouse") -> bool:
    """Whether a labeler with a threshold labels here, so that its doubts can be asked for."""
    labeler = warehouse.active_labeler()
    return labeler is not None and labeler["threshold"] is not None


def pick(warehouse: "Warehouse", judged: Iterable[Pair], unlisted: str, count: int) -> list[Picked]:
    """At most `count` pairs of train entities: a third disagreeing, a third of thin candidates, the rest near tau.

    Where one kind has too few, the others fill up. Pairs in `judged` are left out.
    """
    reference = "coalesce(reference, false)" if unlisted == "negative" else "reference"
    with _judged(warehouse, judged):
        found = {
            DISAGREEMENT: _pairs(warehouse, _DISAGREEING.format(reference=reference), count),
            THIN_CANDIDATE: _pairs(warehouse, _THIN, count),
            NEAR_THRESHOLD: _pairs(warehouse, _NEAR, count),
        }
    picked: dict[Pair, str] = {}
    third = count // 3
    _take(picked, found[DISAGREEMENT], DISAGREEMENT, third)
    _take(picked, found[THIN_CANDIDATE], THIN_CANDIDATE, third)
    for design in (NEAR_THRESHOLD, DISAGREEMENT, THIN_CANDIDATE):
        _take(picked, found[design], design, count - len(picked))
    return [Picked(pair, design) for pair, design in picked.items()]


def _take(picked: dict[Pair, str], pairs: Sequence[Pair], design: str, most: int) -> None:
    fresh = [pair for pair in pairs if pair not in picked]
    picked.update(dict.fromkeys(fresh[: max(0, most)], design))


@contextmanager
def _judged(warehouse: "Warehouse", pairs: Iterable[Pair]) -> Iterator[None]:
    """The relation `judged` of these pairs, as long as the block runs."""
    import pyarrow

    columns = list(zip(*pairs, strict=True)) or [(), ()]
    arrays = [pyarrow.array(list(column), type=pyarrow.large_string()) for column in columns]
    warehouse.connection.register("judged", pyarrow.table(arrays, names=["entity_id", "candidate_id"]))
    try:
        yield
    finally:
        warehouse.connection.unregister("judged")


def _pairs(warehouse: "Warehouse", query: str, count: int) -> list[Pair]:
    rows = warehouse.rows(f"WITH {_FRAME} SELECT entity_id, candidate_id FROM ({query} LIMIT {int(count)})")
    return [(row[0], row[1]) for row in rows]
