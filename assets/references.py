"""`reference_labels`: what people or a teacher decided, as far as it can be used with these entities and this catalog.

Knows the source, the judgements that were imported, and which ids there are. Which judgement may be used for what
stands in `semlabel.judging.merging`.
"""

from typing import TYPE_CHECKING

import dagster as dg

from assets import metadata
from resources.project import ProjectResource, Step

if TYPE_CHECKING:
    import pandas as pd


@dg.asset(
    deps=["entities", "catalog"],
    group_name="sources",
    kinds={"duckdb", "table"},
    pool="warehouse_writer",
    metadata={"dagster/column_schema": metadata.REFERENCE_LABELS},
)
def reference_labels(context: dg.AssetExecutionContext, project: ProjectResource) -> dg.MaterializeResult:
    """The usable reference labels and judgements; unknown ids and contradictions are refused and counted."""
    from semlabel.digests import text_id
    from semlabel.judging.merging import one_row_per_pair, usable_judgements
    from semlabel.judging.store import read_judgements
    from semlabel.references import check_references
    from semlabel.sources import ERASED, read_catalog, read_references

    step = project.step(context)
    erased = step.operations.erased_ids()
    source = read_references(step.settings, erased)
    in_source = {row.candidate_id: text_id(row.text) for row in read_catalog(step.settings).frame.itertuples()}
    with step.writer() as warehouse:
        candidate_ids = [row[0] for row in warehouse.rows("SELECT candidate_id FROM catalog ORDER BY position")]
        known = {row[0]: row[1:] for row in warehouse.rows("SELECT entity_id, split, text_id FROM entities")}
        judgements = read_judgements(step.settings)
        fresh, unusable = usable_judgements(judgements, known, in_source, erased)
        rows = _together(source.frame, fresh)
        checked = check_references(rows, known, candidate_ids, in_source.keys() - set(candidate_ids))
        splits = {entity_id: split for entity_id, (split, _) in known.items()}
        merged = one_row_per_pair(checked.kept, splits, candidate_ids, step.settings.sources.unlisted)
        replaced = warehouse.replace_references(merged.kept, step.run_id, _digest(step, source.digest))
        refused, not_used = [*source.refused, *checked.refused], [*unusable, *merged.refused]
        warehouse.add_refused(step.run_id, "references", [(row.row_id, row.reason) for row in refused])
        warehouse.add_refused(step.run_id, "judgements", [(row.row_id, row.reason) for row in not_used])
    warnings = [*source.warnings, *merged.notes]
    if not_used:
        warnings.append(f"{len(not_used)} of {len(judgements)} judgements are not used; refused_rows says why")
    for warning in warnings:
        step.log.warning(warning)
    return metadata.materialized(
        replaced.digest,
        replaced.rows,
        rows_in=source.rows_in + len(fresh),
        refused=len(refused) - sum(row.reason == ERASED for row in refused),
        erased=sum(row.reason == ERASED for row in refused),
        redundant=source.redundant + merged.redundant,
        outside_catalog=checked.left_out,
        positives=merged.kept["label"].sum(),
        judgements=len(judgements),
        judgements_not_used=len(not_used),
        warnings=metadata.listed(warnings),
        refused_rows=metadata.refusals([*refused, *not_used]),
    )


def _together(references: "pd.DataFrame", judgements: "pd.DataFrame") -> "pd.DataFrame":
    """The rows of both, each with how its pair came to be judged."""
    import pandas as pd

    from semlabel.judging.merging import REFERENCE

    rows = references.assign(design=REFERENCE, inclusion_probability=float("nan"))
    return pd.concat([rows, judgements], ignore_index=True) if len(judgements) else rows


def _digest(step: Step, references: str) -> str:
    """What was read: the references' source, and the judgements where there are any."""
    from semlabel.digests import digest_of
    from semlabel.judging.store import judgements_digest

    judgements = judgements_digest(step.settings)
    return references if judgements is None else digest_of([references, judgements])
