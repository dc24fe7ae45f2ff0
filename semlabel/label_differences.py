"""Two scorings of the same pairs, by two machines, backends or batch sizes: where labels differ and why they may.

Knows files of predictions and one cut; deliberately knows nothing of who made them. A label may differ where the first
margin lies within rounding of the cut, and such pairs are counted; anywhere else, and for a pair that only one side
has, the two are not the same labeler's work.
"""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from semlabel.decision import decision_sql
from semlabel.errors import SourceError
from semlabel.warehouse_file import literal

if TYPE_CHECKING:
    import duckdb

    from semlabel.manifest import Manifest

_SHOWN = 20
_COLUMNS = {"entity_id", "candidate_id", "margin"}


@dataclass(frozen=True)
class DifferingPair:
    """A pair whose label differs although its margin is clear of the cut."""

    entity_id: str
    candidate_id: str
    first: float
    second: float


@dataclass(frozen=True)
class LabelDifferences:
    """What was counted at a cut, with the differing pairs beyond rounding (the first 20, furthest from the cut first).

    `pairs` have a margin on both sides. `moved`: their margins are not equal bit for bit. `near`: the first margin is
    within `rounding` of the cut; `changed_near` of those have another label. `changed` have another label and are not
    near. `yes` are YES on either side.
    """

    threshold: float
    rounding: float
    pairs: int
    only_first: int
    only_second: int
    moved: int
    largest: float
    near: int
    changed_near: int
    changed: int
    yes: int
    examples: tuple[DifferingPair, ...]

    @property
    def same(self) -> bool:
        """Whether both sides have the same pairs and the same labels but for rounding; not so for no pair at all."""
        return self.pairs > 0 and not (self.changed or self.only_first or self.only_second)

    def to_json(self) -> dict[str, Any]:
        """All numbers as JSON values."""
        return asdict(self) | {"same": self.same, "examples": [asdict(pair) for pair in self.examples]}

    def sentence(self) -> str:
        """One sentence for people."""
        text = (
            f"{self.pairs:,} pairs: {self.moved:,} margins differ, by at most {self.largest:.3g}; {self.near:,} are "
            f"within {self.rounding:g} of the cut {self.threshold:g}, {self.changed_near:,} labels differ there; "
            f"{self.changed:,} labels differ beyond it"
        )
        alone = [f"{n:,} are only in the {name}" for n, name in self._alone() if n]
        return text + "".join(f"; {part}" for part in alone) + "."

    def _alone(self) -> tuple[tuple[int, str], ...]:
        return (self.only_first, "first"), (self.only_second, "second")


def rounding_of(manifest: "Manifest", cap: float) -> float:
    """How far two ways of scoring were seen to move this labeler's margins; `cap` at most, or where nobody looked."""
    measured = manifest.evidence.get("mis_matches_single_item", {}).get("value")
    return min(float(measured), cap) if measured else cap


def compare(first: Path, second: Path, threshold: float, rounding: float) -> LabelDifferences:
    """Compare two scorings: a Parquet file, a folder of such, or a published version.

    Pairs without a margin (refused ones) count as not there. Raises SourceError for what holds no predictions, for a
    margin that is not finite and for a pair that stands twice.
    """
    import duckdb

    with duckdb.connect() as connection:
        for name, path in (("a", first), ("b", second)):
            _take(connection, name, path)
        return _compared(connection, threshold, rounding)


def _take(connection: "duckdb.DuckDBPyConnection", name: str, path: Path) -> None:
    """Make a view of the predictions in a path."""
    import duckdb

    files = _files(path)
    if not files:
        raise SourceError(f"{path}: no Parquet file there: name a version, a Parquet file or a folder of them")
    relation = f"read_parquet([{', '.join(literal(str(file)) for file in files)}])"
    try:
        found = {column for column, *_ in connection.execute(f"DESCRIBE SELECT * FROM {relation}").fetchall()}
    except duckdb.Error as error:
        raise SourceError(f"{path}: cannot be read ({str(error).splitlines()[0][:200]}): write it again") from error
    if missing := sorted(_COLUMNS - found):
        raise SourceError(f"{path}: no column {', '.join(missing)} among {', '.join(sorted(found))}: not predictions")
    connection.execute(
        f"CREATE TEMP VIEW {name} AS SELECT CAST(entity_id AS VARCHAR) AS entity_id, CAST(candidate_id AS VARCHAR) AS "
        f"candidate_id, CAST(margin AS FLOAT) AS margin FROM {relation} WHERE margin IS NOT NULL"
    )
    for broken, problem in (
        ("WHERE NOT isfinite(margin)", "has a margin that is not finite, which decides nothing: score it again"),
        ("GROUP BY ALL HAVING count(*) > 1", "stands there twice: mend it"),
    ):
        found_pair = connection.execute(
            f"SELECT entity_id, candidate_id FROM {name} {broken} ORDER BY ALL LIMIT 1"
        ).fetchall()
        for entity_id, candidate_id in found_pair:
            raise SourceError(f"{path}: entity {entity_id!r} with candidate {candidate_id!r} {problem}")


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    # A published version has its labels and changes as Parquet too.
    folder = path / "predictions" if (path / "predictions").is_dir() else path
    return sorted(folder.rglob("*.parquet"))


def _compared(connection: "duckdb.DuckDBPyConnection", threshold: float, rounding: float) -> LabelDifferences:
    """The counts at a cut, on margins as they were stored."""
    connection.execute(
        f"""CREATE TEMP VIEW both_sides AS SELECT entity_id, candidate_id, a.margin AS first, b.margin AS second,
            {decision_sql("a.margin", threshold)} AS label, {decision_sql("b.margin", threshold)} AS other,
            {rounding > 0} AND abs(CAST(a.margin AS DOUBLE) - {float(threshold)!r}) <= {float(rounding)!r} AS near
        FROM a FULL JOIN b USING (entity_id, candidate_id)"""
    )
    (counts,) = connection.execute(
        """SELECT count(*) FILTER (first IS NOT NULL AND second IS NOT NULL), count(*) FILTER (second IS NULL),
            count(*) FILTER (first IS NULL), count(*) FILTER (CAST(first AS BIT) <> CAST(second AS BIT)),
            coalesce(max(abs(CAST(first AS DOUBLE) - second)), 0), count(*) FILTER (near AND second IS NOT NULL),
            count(*) FILTER (label <> other AND near), count(*) FILTER (label <> other AND NOT near),
            count(*) FILTER (label IS NOT NULL AND other IS NOT NULL AND (label OR other))
        FROM both_sides"""
    ).fetchall()
    examples = connection.execute(
        f"""SELECT entity_id, candidate_id, first, second FROM both_sides WHERE label <> other AND NOT near
        ORDER BY abs(first - {float(threshold)!r}) DESC, entity_id, candidate_id LIMIT {_SHOWN}"""
    ).fetchall()
    names = ("pairs", "only_first", "only_second", "moved", "largest", "near", "changed_near", "changed", "yes")
    found = dict(zip(names, counts, strict=True))
    return LabelDifferences(threshold, rounding, examples=tuple(DifferingPair(*row) for row in examples), **found)
