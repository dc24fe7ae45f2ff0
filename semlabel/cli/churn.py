"""How many labels of the current publication another labeler would change, from margins that are stored already.

Reads the warehouse, under its lease, and the published copy. The share is given of the pairs that are YES before or
after, too: at two percent of YES the overall share makes any change look small.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from semlabel.leases import OnWait
    from semlabel.manifest import Manifest
    from semlabel.settings import Settings


@dataclass(frozen=True)
class Churn:
    """Published pairs, those of them that have a margin of the other labeler, and what would change among these."""

    pairs: int
    pairs_compared: int
    changed: int
    yes_in_either: int

    @property
    def changed_of_yes(self) -> float | None:
        """Changed labels over pairs that are YES before or after; None without any."""
        return self.changed / self.yes_in_either if self.yes_in_either else None

    def to_json(self) -> dict[str, int | float | None]:
        """All numbers as JSON values."""
        return {
            "pairs": self.pairs,
            "pairs_compared": self.pairs_compared,
            "changed": self.changed,
            "changed_share": self.changed / self.pairs_compared if self.pairs_compared else None,
            "changed_of_yes": self.changed_of_yes,
        }

    def sentence(self) -> str:
        """One sentence for people."""
        if not self.pairs_compared:
            return f"None of the {self.pairs:,} published pairs has a margin of this labeler: the next run scores them."
        text = f"{self.changed:,} of {self.pairs_compared:,} published labels change"
        if self.changed_of_yes is not None:
            text += f" ({self.changed_of_yes:.1%} of the {self.yes_in_either:,} that are YES before or after)"
        left = self.pairs - self.pairs_compared
        return text + (f"; {left:,} more pairs have no margin of this labeler yet." if left else ".")


def churn(settings: "Settings", manifest: "Manifest", on_wait: "OnWait | None" = None) -> Churn | None:
    """The churn of promoting `manifest`; None where nothing is published. Raises LeaseHeld where a run holds the
    warehouse and does not let go; `on_wait` is told of the wait.
    """
    from semlabel.decision import decision_sql
    from semlabel.reading import reading
    from semlabel.warehouse_file import literal
    from semlabel.warehouse_scores import BLOCKS_AS_LISTS, scorer_key

    published = settings.paths.published / "current" / "predictions.duckdb"
    if manifest.threshold is None or not published.exists() or not settings.paths.warehouse.exists():
        return None
    with reading(settings, "promote", on_wait) as warehouse:
        key = scorer_key(warehouse.connection, manifest.scorer_digest)
        warehouse.rows(f"ATTACH {literal(str(published))} AS published (READ_ONLY)")
        (counts,) = warehouse.rows(
            f"""WITH pairs AS (
                SELECT e.entity_id, unnest(b.candidate_text_keys) AS candidate_text_key, unnest(s.margins) AS margin
                FROM (SELECT * FROM scores WHERE scorer_key = ?) s
                JOIN {BLOCKS_AS_LISTS} b ON b.block_id = s.block_id JOIN entities e ON e.text_key = s.text_key),
            labels AS (
                SELECT p.entity_id, c.candidate_id, {decision_sql("p.margin", "?")} AS label
                FROM pairs p JOIN catalog c ON c.text_key = p.candidate_text_key)
            SELECT count(*), count(l.label), count(*) FILTER (l.label <> p.label),
                   count(*) FILTER (l.label OR (p.label AND l.label IS NOT NULL))
            FROM published.predictions p LEFT JOIN labels l USING (entity_id, candidate_id)""",
            [-1 if key is None else key, manifest.threshold],
        )
    return Churn(*(int(count) for count in counts))
