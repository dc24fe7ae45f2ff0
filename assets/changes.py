"""What publishing the present predictions would change against the version that readers see now.

Knows both tables and compares them in SQL. Knows nothing of limits. Rows of a limited scope replace nothing, so they
are compared with nothing.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from resources.project import Step

if TYPE_CHECKING:
    from semlabel.warehouse import Warehouse


@dataclass(frozen=True)
class Change:
    """Rows now and before, the share of the old ones that are gone, and per candidate what turned over.

    `candidate_flips`: candidate_id, yes_either (rows YES before or now), flipped.
    """

    rows: int
    previous_rows: int = 0
    removed_fraction: float = 0.0
    candidate_flips: list[dict[str, Any]] = field(default_factory=list)


def is_preview(step: Step, warehouse: "Warehouse") -> bool:
    """Whether the rows are of a limited scope, whoever set it, or of an environment that only ever shows previews."""
    return step.settings.publish.preview or str(warehouse.scope()["description"]).startswith("limited")


def published_version(step: Step, warehouse: "Warehouse") -> Path | None:
    """The version that readers see now; None before the first one, and for a preview, which replaces nothing."""
    from semlabel.publish import current_publication

    current = None if is_preview(step, warehouse) else current_publication(step.settings.paths.published)
    return Path(str(current["path"])) if current is not None else None


def publication_basis(step: Step) -> list[Any]:
    """What a comparison with the publication depends on besides the predictions: its version, and an approval."""
    from semlabel.publish import current_publication

    published = current_publication(step.settings.paths.published) or {}
    return [published.get("version"), step.operations.approved(step.predictions_digest())]


def against_publication(step: Step, warehouse: "Warehouse") -> Change:
    """Compare the predictions with the current publication."""
    from semlabel.warehouse_file import literal

    ((rows,),) = warehouse.rows("SELECT count(*) FROM predictions")
    published = published_version(step, warehouse)
    if published is None:
        return Change(rows)
    files = literal(str(published / "predictions" / "*.parquet"))
    before = f"(SELECT entity_id, candidate_id, label FROM read_parquet({files}))"
    ((previous, removed),) = warehouse.rows(
        f"""SELECT count(*), count(*) FILTER (
                WHERE NOT EXISTS (SELECT 1 FROM predictions n
                                  WHERE n.entity_id = o.entity_id AND n.candidate_id = o.candidate_id))
            FROM {before} o"""
    )
    common = warehouse.frame(
        f"""SELECT candidate_id, count(*) FILTER (WHERE o.label OR n.label) AS yes_either,
                   count(*) FILTER (WHERE o.label IS DISTINCT FROM n.label) AS flipped
            FROM {before} o JOIN predictions n USING (entity_id, candidate_id)
            GROUP BY candidate_id ORDER BY candidate_id"""
    )
    flips = common.to_dict("records")
    return Change(rows, previous, removed / previous if previous else 0.0, flips)
