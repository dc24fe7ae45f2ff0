"""`reference_labels`: what people or a teacher decided, as far as it can be used with these entities and this catalog.

Knows the source and which ids there are. Knows nothing of what an unlisted pair means: that is for the pairs.
"""

import dagster as dg

from assets import metadata
from resources.project import ProjectResource


@dg.asset(
    deps=["entities", "catalog"],
    group_name="sources",
    kinds={"duckdb", "table"},
    pool="warehouse_writer",
    metadata={"dagster/column_schema": metadata.REFERENCE_LABELS},
)
def reference_labels(context: dg.AssetExecutionContext, project: ProjectResource) -> dg.MaterializeResult:
    """The usable reference labels; those that name unknown ids or contradict each other are refused and counted."""
    from semlabel.references import check_references
    from semlabel.sources import ERASED, read_catalog, read_references

    step = project.step(context)
    source = read_references(step.settings, step.operations.erased_ids())
    in_source = set(read_catalog(step.settings).frame["candidate_id"])
    with step.writer() as warehouse:
        entity_ids = [row[0] for row in warehouse.rows("SELECT entity_id FROM entities")]
        candidate_ids = [row[0] for row in warehouse.rows("SELECT candidate_id FROM catalog")]
        checked = check_references(source.frame, entity_ids, candidate_ids, in_source - set(candidate_ids))
        replaced = warehouse.replace_references(checked.kept, step.run_id, source.digest)
        refused = [*source.refused, *checked.refused]
        warehouse.add_refused(step.run_id, "references", [(row.row_id, row.reason) for row in refused])
    for warning in source.warnings:
        step.log.warning(warning)
    return metadata.materialized(
        replaced.digest,
        replaced.rows,
        rows_in=source.rows_in,
        refused=len(refused) - sum(row.reason == ERASED for row in refused),
        erased=sum(row.reason == ERASED for row in refused),
        redundant=source.redundant,
        outside_catalog=checked.left_out,
        positives=checked.kept["label"].sum(),
        warnings=metadata.listed(source.warnings),
        refused_rows=metadata.refusals(refused),
    )
