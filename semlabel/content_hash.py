"""The content hash of predictions: equal exactly for equal sets of (entity_id, candidate_id, label, margin bits).

Knows the arithmetic in SQL only; deliberately knows nothing of runs, times, files or where a relation comes from. It
does not depend on the order of rows, so no 20 million rows are sorted for it, nor on DuckDB's own hash function, so it
outlives upgrades: every id enters by its md5, every pair by the product of its two ids, and everything is summed in
integers modulo 2^61 - 1. It finds accidents, not forgers; files carry sha256 for those.
"""

from collections.abc import Callable, Sequence
from typing import Any

from semlabel.digests import digest_of

MODULUS = 2**61 - 1
_IDENTITY = "CAST(md5_number_lower({column}) & 1152921504606846975 AS HUGEINT)"
# The 32 bits of the margin and the label (unknown, no, yes) as one integer; never 0, so that no pair goes unseen.
_VALUE = """(CAST(CAST(CAST(margin AS BIT) AS INTEGER) AS BIGINT) + 2147483648) * 4
            + CASE WHEN label IS NULL THEN 1 WHEN label THEN 3 ELSE 2 END"""

Rows = Callable[[str], Sequence[tuple[Any, ...]]]


def content_sum(rows: Rows, relation: str) -> tuple[int, int]:
    """(sum, number of rows) of a relation with entity_id, candidate_id, margin FLOAT and label BOOLEAN.

    `rows` runs a query and returns its rows; `relation` is the name of a table or view, or a bracketed query. Sums of
    relations without a common pair may be added modulo `MODULUS`.
    """
    ((total, count),) = rows(
        f"""WITH candidates AS (
            SELECT candidate_id, {_IDENTITY.format(column="candidate_id")} AS identity
            FROM (SELECT DISTINCT candidate_id FROM {relation})),
        by_entity AS (
            SELECT entity_id, sum(identity * ({_VALUE})) % {MODULUS} AS part, count(*) AS pairs
            FROM {relation} JOIN candidates USING (candidate_id) GROUP BY entity_id)
        SELECT coalesce(sum(({_IDENTITY.format(column="entity_id")} * part) % {MODULUS}) % {MODULUS}, 0),
               coalesce(sum(pairs), 0)
        FROM by_entity"""
    )
    return int(total), int(count)


def content_hash(total: int, count: int) -> str:
    """The hash (hex) of a relation with this sum and number of rows."""
    return digest_of(["content", 1, count, total % MODULUS])
