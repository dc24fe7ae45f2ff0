"""One night as the warehouse and the published version show it: what changed in labels, and how things look now.

Knows SQL over the warehouse and the Parquet files of a version; deliberately knows nothing of tests and limits.
Everything is counted per candidate or per entity inside DuckDB, so the pairs never leave it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from semlabel.drift.quality import AGREEMENT, LENGTH
from semlabel.drift.spans import Span
from semlabel.drift.state import FOLDER
from semlabel.drift.sums import Sums
from semlabel.sources import ERASED
from semlabel.warehouse_file import literal

if TYPE_CHECKING:
    from semlabel.warehouse import Warehouse

REFERENCES = "references.parquet"
CUTS = 9
# Letters by script, as they stand between brackets of a pattern; Latin with marks apart, because marks tell languages
# that share an alphabet from each other.
SCRIPTS: Mapping[str, str] = {
    "Latin": "A-Za-z",
    "Latin with marks": r"\x{00C0}-\x{024F}\x{1E00}-\x{1EFF}",
    "Cyrillic": r"\p{Cyrillic}",
    "Greek": r"\p{Greek}",
    "Arabic": r"\p{Arabic}",
    "Hebrew": r"\p{Hebrew}",
    "Devanagari": r"\p{Devanagari}",
    "Han": r"\p{Han}",
    "kana": r"\p{Hiragana}\p{Katakana}",
    "Hangul": r"\p{Hangul}",
    "Thai": r"\p{Thai}",
}
_ANY_LETTER = r"\p{L}"
_SUMS = "count(*), sum({a}), sum({m}), sum({a} * {a}), sum({a} * {m}), sum({m} * {m})"
# Pairs that were picked for what they teach say nothing about how often the labeler is right.
_PICKED = "design NOT IN ('reference', 'random')"
# What an entity was judged by: its listed references, as one identity that changes when one of them does.
_REFERENCES_OF = (
    "SELECT entity_id, sha256(string_agg(candidate_id || chr(0) || CAST(label AS VARCHAR), chr(1) "
    f"ORDER BY candidate_id)) AS references_id FROM reference_labels WHERE NOT {_PICKED} GROUP BY entity_id"
)
# Neither trained on nor set aside to certify or test: what may be looked at as often as one likes.
_MAY_BE_SEEN = (
    "SELECT entity_id FROM entities WHERE split NOT IN ('certify', 'test') "
    "AND entity_id NOT IN (SELECT entity_id FROM training_pairs)"
)


@dataclass(frozen=True, eq=False)
class Night:
    """The span of the night over `candidates`, and the flipped labels by reason. `share_changed` is flips over rows
    that are YES in either version."""

    candidates: tuple[str, ...]
    span: Span
    reasons: dict[str, int] = field(default_factory=dict)

    @property
    def share_changed(self) -> float:
        """Changed labels over labels that are YES before or now, among the pairs that both versions have."""
        either = int(self.span.yes.sum() + self.span.up.sum())
        return int(self.span.up.sum() + self.span.down.sum()) / either if either else 0.0


def night_against(warehouse: "Warehouse", version: Path) -> Night:
    """What the present predictions change against a published version."""
    before = f"read_parquet({literal(str(version / 'predictions' / '*.parquet'))})"
    entities = f"(SELECT * FROM read_parquet({literal(str(version / 'entities.parquet'))}) WHERE pairs > 0)"
    catalog = f"read_parquet({literal(str(version / 'catalog.parquet'))})"
    candidates = tuple(row[0] for row in warehouse.rows("SELECT candidate_id FROM catalog ORDER BY position"))
    pairs = f"{before} o JOIN predictions n USING (entity_id, candidate_id)"
    stayed = _counted(
        warehouse,
        candidates,
        f"""SELECT candidate_id, count(*), count(*) FILTER (WHERE o.label), count(*) FILTER (WHERE n.label > o.label),
                   count(*) FILTER (WHERE n.label < o.label)
            FROM {before} o LEFT JOIN predictions n USING (entity_id, candidate_id) GROUP BY candidate_id""",
        4,
    )
    arrived = _counted(
        warehouse,
        candidates,
        f"""SELECT n.candidate_id, count(*), count(*) FILTER (WHERE n.label) FROM predictions n
            ANTI JOIN {entities} e ON e.entity_id = n.entity_id
            SEMI JOIN (SELECT DISTINCT candidate_id FROM {before}) c ON c.candidate_id = n.candidate_id
            GROUP BY n.candidate_id""",
        2,
    )
    ((flip_sum, flip_squares),) = warehouse.rows(
        f"""SELECT coalesce(sum(step), 0), coalesce(sum(step * step), 0) FROM (
            SELECT sum(CAST(n.label AS INTEGER) - CAST(o.label AS INTEGER)) AS step FROM {pairs} GROUP BY entity_id)"""
    )
    per_entity = "SELECT count(*) FILTER (WHERE {of}.label) AS hits, count(*) AS total FROM"
    was = _sums(
        warehouse,
        f"{per_entity.format(of='o')} {before} o SEMI JOIN catalog c ON c.candidate_id = o.candidate_id "
        "GROUP BY o.entity_id",
    )
    came = _sums(
        warehouse,
        f"{per_entity.format(of='n')} predictions n ANTI JOIN {entities} e ON e.entity_id = n.entity_id "
        f"SEMI JOIN (SELECT DISTINCT candidate_id FROM {before}) c ON c.candidate_id = n.candidate_id "
        "GROUP BY n.entity_id",
    )
    reasons = warehouse.rows(
        f"""SELECT CASE WHEN oe.text_id <> ne.text_id AND u.entity_id IS NULL THEN 'entity_text'
                        WHEN oc.text_id <> nc.text_id THEN 'candidate_text'
                        WHEN oe.text_id <> ne.text_id THEN 'online_update' ELSE 'rescored' END AS reason, count(*)
            FROM {pairs} JOIN {entities} oe USING (entity_id) JOIN entities ne USING (entity_id)
            JOIN {catalog} oc USING (candidate_id) JOIN catalog nc USING (candidate_id)
            LEFT JOIN online_entities u USING (entity_id)
            WHERE o.label IS DISTINCT FROM n.label GROUP BY 1 ORDER BY 1"""
    )
    entities_before, yes, up, down = stayed
    new, new_yes = arrived
    span = Span(
        *(entities_before, yes, up, down, new, new_yes),
        flip_sum=float(flip_sum),
        flip_squares=float(flip_squares),
        before=was,
        surplus=came.less(was.share),
    )
    return Night(candidates, span, dict(reasons))


def margin_cuts(warehouse: "Warehouse") -> tuple[float, ...]:
    """The cuts that divide the margins of the present predictions into ten equal parts."""
    parts = [place / (CUTS + 1) for place in range(1, CUTS + 1)]
    ((cuts,),) = warehouse.rows(f"SELECT quantile_cont(CAST(margin AS DOUBLE), {parts}) FROM predictions")
    return tuple(float(cut) for cut in cuts or ())


def measures_now(warehouse: "Warehouse", cuts: Sequence[float], rounding: float) -> dict[str, Sums]:
    """The measures of the present predictions and texts: margins, pairs near tau, truncation, refusals, texts."""
    found: dict[str, Sums] = {}
    edges = [None, *cuts, None]
    parts = {
        f"margins, part {number + 1} of {CUTS + 1}": _between(low, high)
        for number, (low, high) in enumerate(pairwise(edges))
    }
    parts["within rounding of tau"] = f"abs(CAST(margin AS DOUBLE) - threshold) <= {float(rounding)!r}"
    hits = {name: f"count(*) FILTER (WHERE {condition})" for name, condition in parts.items()}
    found |= _sums_of_all(warehouse, hits, "count(*)", "predictions GROUP BY entity_id")
    found["truncated"] = _sums(warehouse, "SELECT CAST(truncated AS INTEGER) AS hits, 1 AS total FROM scoped_entities")
    found[LENGTH] = _sums(warehouse, "SELECT ln(greatest(length(text), 1)) AS hits, 1 AS total FROM scoped_entities")
    hits = {f"letters in {script}": _letters(letters) for script, letters in SCRIPTS.items()}
    found |= _sums_of_all(warehouse, hits, _letters(_ANY_LETTER), "scoped_entities")
    found["refused"] = _refused(warehouse)
    return found


def agreement_at_first(warehouse: "Warehouse") -> dict[str, Sums]:
    """Agreement with the references that are there when a labeler is new: of calibrate, which it was not trained on."""
    return _agreement(warehouse, "SELECT entity_id FROM entities WHERE split = 'calibrate'")


def agreement_of_arrivals(warehouse: "Warehouse", version: Path) -> dict[str, Sums]:
    """Agreement with the references of entities whose references are new or changed since a version was published."""
    path = version / FOLDER / REFERENCES
    if not path.exists():
        return {}
    known = f"read_parquet({literal(str(path))})"
    changed = f"SELECT r.entity_id FROM ({_REFERENCES_OF}) r ANTI JOIN {known} k USING (entity_id, references_id)"
    return _agreement(warehouse, f"SELECT entity_id FROM ({changed}) SEMI JOIN ({_MAY_BE_SEEN}) USING (entity_id)")


def write_references(warehouse: "Warehouse", staged: Path) -> None:
    """Keep in a staged version which references were known, so that the next one can tell what arrived."""
    target = staged / FOLDER / REFERENCES
    target.parent.mkdir(exist_ok=True)
    warehouse.rows(
        f"COPY (SELECT r.* FROM ({_REFERENCES_OF}) r ORDER BY entity_id) TO {literal(str(target))} "
        "(FORMAT parquet, COMPRESSION zstd)"
    )


def _agreement(warehouse: "Warehouse", entities: str) -> dict[str, Sums]:
    found = {}
    # Where there are shortlists a pair that none holds is NO: left out, it would only be missing from the count.
    predicted = "SELECT entity_id, candidate_id, label FROM predictions"
    if warehouse.shortlisted():
        predicted = (
            "SELECT e.entity_id, c.candidate_id, coalesce(p.label, false) AS label "
            "FROM (SELECT entity_id FROM scoped_entities SEMI JOIN reference_labels USING (entity_id)) e "
            "CROSS JOIN catalog c LEFT JOIN predictions p ON p.entity_id = e.entity_id "
            "AND p.candidate_id = c.candidate_id"
        )
    for answer in (True, False):
        sums = _sums(
            warehouse,
            f"""SELECT count(*) FILTER (WHERE p.label = r.label) AS hits, count(*) AS total FROM reference_labels r
                JOIN ({predicted}) p USING (entity_id, candidate_id)
                WHERE r.label = {str(answer).lower()} AND NOT {_PICKED} AND r.entity_id IN ({entities})
                GROUP BY r.entity_id""",
        )
        if sums.entities:
            found[f"{AGREEMENT} {'YES' if answer else 'NO'}"] = sums
    return found


def _refused(warehouse: "Warehouse") -> Sums:
    """Source rows of entities that the newest reading refused; erased ones were refused on purpose."""
    content = warehouse.content("entities")
    rows = int(content["rows"]) if content else 0
    since = content["checked_at"] if content else None
    ((refused,),) = warehouse.rows(
        "SELECT count(*) FROM refused_rows WHERE source = 'entities' AND refused_at >= ? AND reason <> ?",
        [since, ERASED],
    )
    return Sums(rows + refused, refused, rows + refused, refused, refused, rows + refused)


def _counted(warehouse: "Warehouse", candidates: Sequence[str], query: str, columns: int) -> list[np.ndarray]:
    """The counts of a query (candidate_id, then `columns` numbers) as arrays in the order of the candidates."""
    place = {candidate: number for number, candidate in enumerate(candidates)}
    counts = np.zeros((columns, len(candidates)), np.int64)
    for candidate, *numbers in warehouse.rows(query):
        if candidate in place:
            counts[:, place[candidate]] = numbers
    return list(counts)


def _sums(warehouse: "Warehouse", per_entity: str) -> Sums:
    """The sums of a query with one row (hits, total) per entity."""
    (row,) = warehouse.rows(f"SELECT {_SUMS.format(a='hits', m='total')} FROM ({per_entity})")
    return Sums.of_row(row)


def _sums_of_all(warehouse: "Warehouse", hits: Mapping[str, str], total: str, source: str) -> dict[str, Sums]:
    """The sums of several measures that share their total, in one pass over `source` (one row per entity)."""
    counts = ", ".join(f"{expression} AS m{n}" for n, expression in enumerate(hits.values()))
    columns = ", ".join(_SUMS.format(a=f"m{n}", m="total") for n in range(len(hits)))
    (row,) = warehouse.rows(f"SELECT {columns} FROM (SELECT {total} AS total, {counts} FROM {source})")
    return {name: Sums.of_row(row[6 * n : 6 * n + 6]) for n, name in enumerate(hits)}


def _between(low: float | None, high: float | None) -> str:
    margin = "CAST(margin AS DOUBLE)"
    parts = [f"{margin} >= {low!r}"] if low is not None else []
    parts += [f"{margin} < {high!r}"] if high is not None else []
    return " AND ".join(parts) or "true"


def _letters(letters: str) -> str:
    return f"length(regexp_replace(text, {literal(f'[^{letters}]')}, '', 'g'))"
