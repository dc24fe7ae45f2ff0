"""What publishing the present predictions would change against the version that readers see now.

Knows both tables, as far as they are published, and compares them in SQL. Knows nothing of limits. Rows of a limited
scope replace nothing, so they are compared with nothing; what was said of them says nothing of a real publication.
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

    `candidate_flips`: candidate_id, yes_either (rows YES before or now), flipped. `withheld`: predictions of candidates
    that are not published.
    """

    rows: int
    previous_rows: int = 0
    removed_fraction: float = 0.0
    candidate_flips: list[dict[str, Any]] = field(default_factory=list)
    withheld: int = 0


def is_preview(step: Step, warehouse: "Warehouse") -> bool:
    """Whether the rows are of a limited scope, whoever set it, or of an environment that only ever shows previews."""
    return step.settings.publish.preview or str(warehouse.scope()["description"]).startswith("limited")


def published_version(step: Step, warehouse: "Warehouse") -> Path | None:
    """The version that readers see now; None before the first one, and for a preview, which replaces nothing."""
    current = _replaced(step, warehouse)
    return Path(str(current["path"])) if current is not None else None


def replaces(step: Step, warehouse: "Warehouse") -> str | None:
    """The name of the version that publishing the present predictions would replace; None where it replaces nothing."""
    current = _replaced(step, warehouse)
    return str(current["version"]) if current is not None else None


def confirms(step: Step, warehouse: "Warehouse") -> bool:
    """Whether the version that readers see is of exactly these rows already, so that publishing moves nothing."""
    from semlabel.publish import publication_subject

    current = _replaced(step, warehouse)
    return current is not None and current["subject_digest"] == publication_subject(warehouse, step.settings.publish)


def approved(step: Step, warehouse: "Warehouse") -> bool:
    """Whether a person approved this change and no other: these rows, published under the present setting, after the
    version that they replace became current, by a publication or by a rollback.
    """
    from semlabel.published import current_since

    current = _replaced(step, warehouse)
    since = ""
    if current is not None:
        since = max(str(current["published_at"]), current_since(step.settings.paths.published))
    policy = step.settings.publish.uncertified_candidates
    return step.operations.approved(warehouse.predictions_digest(), since, policy)


def against_publication(step: Step, warehouse: "Warehouse") -> Change:
    """Compare what would be published with the current publication."""
    from semlabel.publish import published_relation, published_rows
    from semlabel.warehouse_file import literal

    policy = step.settings.publish.uncertified_candidates
    now, (rows, withheld) = published_relation("predictions", policy), published_rows(warehouse, policy)
    published = published_version(step, warehouse)
    if published is None:
        return Change(rows, withheld=withheld)
    files = literal(str(published / "predictions" / "*.parquet"))
    before = f"(SELECT entity_id, candidate_id, label FROM read_parquet({files}))"
    ((previous, removed),) = warehouse.rows(
        f"""SELECT count(*), count(*) FILTER (
                WHERE NOT EXISTS (SELECT 1 FROM {now} n
                                  WHERE n.entity_id = o.entity_id AND n.candidate_id = o.candidate_id))
            FROM {before} o"""
    )
    common = warehouse.frame(
        f"""SELECT candidate_id, count(*) FILTER (WHERE o.label OR n.label) AS yes_either,
                   count(*) FILTER (WHERE o.label IS DISTINCT FROM n.label) AS flipped
            FROM {before} o JOIN {now} n USING (entity_id, candidate_id)
            GROUP BY candidate_id ORDER BY candidate_id"""
    )
    flips = common.to_dict("records")
    return Change(rows, previous, removed / previous if previous else 0.0, flips, withheld)


def _replaced(step: Step, warehouse: "Warehouse") -> dict[str, Any] | None:
    """The manifest of the version that publishing would replace, with its `path`."""
    from semlabel.publish import current_publication

    return None if is_preview(step, warehouse) else current_publication(step.settings.paths.published)
