"""What differs between two published states, pair by pair, and why.

Knows SQL over two sets of Parquet files; deliberately knows nothing of how a version is staged or switched. Following
every change from a version to the next gives exactly the next: a pair is in the feed when its label or any bit of its
margin differs. The reason is the first cause that applies, in the order of `CAUSES`; an
entity's text was edited either in the source or online, never both.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import duckdb

CAUSES = ("scorer", "threshold", "entity_text", "candidate_text", "online_update")
# The stored margin was computed anew although neither texts nor scorer changed (an erased margin, another machine).
UNEXPLAINED = "rescored"
# The second cause of a row that was added or removed although entity and candidate were there before and after.
SHORTLIST = "shortlist"
_LEFT_OUT = (
    "e.entity_id IN (SELECT entity_id FROM scoped_entities) AND NOT list_contains(k.candidate_text_keys, c.text_key)"
)
_TOP_CANDIDATES = 50

CREATE = """CREATE OR REPLACE TEMP TABLE changes (
    publication_version VARCHAR, entity_id VARCHAR, candidate_id VARCHAR, old_label BOOLEAN, new_label BOOLEAN,
    old_margin FLOAT, new_margin FLOAT, reason VARCHAR, causes VARCHAR[])"""


def add_changes(
    connection: "duckdb.DuckDBPyConnection",
    old: str,
    new: str,
    *,
    version: str,
    old_facts: tuple[str, str],
    scorer_changed: bool,
    threshold_changed: bool,
    shortlisted: tuple[bool, bool] = (False, False),
) -> None:
    """Add what differs between relations `old` and `new` (entity_id, candidate_id, label, margin) to table `changes`.

    `old_facts`: the relations with the previous version's (entity_id, text_id) and (candidate_id, text_id); the
    present ones are the tables `entities` and `catalog`, and the view `online_entities`. `shortlisted`: whether
    the old and the new state have shortlists; a pair that came or went with one has the further cause `shortlist`.
    """
    (old_entities, old_catalog), (listed_before, listed_now) = old_facts, shortlisted
    came = "added AND oe.entity_id IS NOT NULL AND oc.candidate_id IS NOT NULL" if listed_before else "false"
    gone = f"removed AND {_LEFT_OUT}" if listed_now else "false"
    lists = "LEFT JOIN shortlists k ON k.text_key = e.text_key" if listed_now else ""
    connection.execute(
        f"""INSERT INTO changes
        WITH pairs AS (
            SELECT coalesce(n.entity_id, o.entity_id) AS entity_id,
                   coalesce(n.candidate_id, o.candidate_id) AS candidate_id,
                   o.entity_id IS NULL AS added, n.entity_id IS NULL AS removed, o.label AS old_label,
                   n.label AS new_label, o.margin AS old_margin, n.margin AS new_margin,
                   {_bits("o.margin")} IS DISTINCT FROM {_bits("n.margin")} AS moved
            FROM {old} o FULL JOIN {new} n ON n.entity_id = o.entity_id AND n.candidate_id = o.candidate_id),
        caused AS (
            SELECT p.*, {came} AS came, {gone} AS gone, list_filter([
                CASE WHEN moved AND {_literal(scorer_changed)} THEN 'scorer' END,
                CASE WHEN old_label IS DISTINCT FROM new_label AND {_literal(threshold_changed)} THEN 'threshold' END,
                CASE WHEN moved AND oe.text_id <> e.text_id AND u.entity_id IS NULL THEN 'entity_text' END,
                CASE WHEN moved AND oc.text_id <> c.text_id THEN 'candidate_text' END,
                CASE WHEN moved AND oe.text_id <> e.text_id AND u.entity_id IS NOT NULL THEN 'online_update' END],
                lambda cause: cause IS NOT NULL) AS causes
            FROM pairs p
            LEFT JOIN {old_entities} oe ON oe.entity_id = p.entity_id
            LEFT JOIN entities e ON e.entity_id = p.entity_id
            LEFT JOIN online_entities u ON u.entity_id = p.entity_id
            LEFT JOIN {old_catalog} oc ON oc.candidate_id = p.candidate_id
            LEFT JOIN catalog c ON c.candidate_id = p.candidate_id {lists}
            WHERE moved OR old_label IS DISTINCT FROM new_label),
        explained AS (
            SELECT * EXCLUDE (causes),
                   CASE WHEN came THEN ['added', '{SHORTLIST}'] WHEN gone THEN ['removed', '{SHORTLIST}']
                        WHEN added THEN ['added'] WHEN removed THEN ['removed']
                        WHEN len(causes) = 0 THEN ['{UNEXPLAINED}'] ELSE causes END AS causes
            FROM caused)
        SELECT ?, entity_id, candidate_id, old_label, new_label, old_margin, new_margin, causes[1], causes
        FROM explained ORDER BY entity_id, candidate_id""",
        [version],
    )


def summary(connection: "duckdb.DuckDBPyConnection") -> dict[str, Any]:
    """Counts over table `changes`: rows, labels that differ, rows by reason, and the candidates that changed most."""
    rows, labels = _first(
        connection, "SELECT count(*), count(*) FILTER (WHERE old_label IS DISTINCT FROM new_label) FROM changes"
    )
    by_reason = connection.execute("SELECT reason, count(*) FROM changes GROUP BY reason ORDER BY reason").fetchall()
    by_candidate = connection.execute(
        "SELECT candidate_id, reason, count(*) AS changed, "
        "count(*) FILTER (WHERE old_label IS DISTINCT FROM new_label) AS labels FROM changes "
        f"GROUP BY candidate_id, reason ORDER BY labels DESC, changed DESC, candidate_id LIMIT {_TOP_CANDIDATES}"
    ).fetchall()
    names = ("candidate_id", "reason", "rows", "labels")
    return {
        "rows": rows,
        "labels": labels,
        "by_reason": dict(by_reason),
        "by_candidate": [dict(zip(names, row, strict=True)) for row in by_candidate],
    }


def _bits(margin: str) -> str:
    return f"CAST(CAST({margin} AS BIT) AS INTEGER)"


def _literal(value: bool) -> str:
    return "true" if value else "false"


def _first(connection: "duckdb.DuckDBPyConnection", query: str) -> Sequence[Any]:
    return connection.execute(query).fetchall()[0]
