"""`reference_labels`: what people or a teacher decided, as far as it can be used with these entities and this catalog.

Knows the source, the judgements that were imported, what a teacher said, and which ids there are. Which judgement may
be used for what stands in `semlabel.judging`.
"""

import dagster as dg

from assets import metadata
from resources.project import ProjectResource, Step


def reference_labels_after(*names: str) -> dg.AssetsDefinition:
    """The asset, made after those: a teacher's labels are read here, where there is one."""
    return dg.asset(
        name="reference_labels",
        deps=names,
        group_name="sources",
        kinds={"duckdb", "table"},
        pool="warehouse_writer",
        metadata={"dagster/column_schema": metadata.REFERENCE_LABELS},
    )(_reference_labels)


def _reference_labels(context: dg.AssetExecutionContext, project: ProjectResource) -> dg.MaterializeResult:
    """The usable reference labels and judgements; unknown ids and contradictions are refused and counted.

    Pairs that nobody can call YES or NO are kept apart, in `undecided_pairs`.
    """
    from semlabel.digests import text_id
    from semlabel.judging import labels
    from semlabel.judging.store import TEACHER, read_judgements
    from semlabel.judging.taught import taught_judgements
    from semlabel.sources import ERASED, read_catalog, read_references

    step = project.step(context)
    erased = step.operations.erased_ids()
    source = read_references(step.settings, erased)
    in_source = {row.candidate_id: text_id(row.text) for row in read_catalog(step.settings).frame.itertuples()}
    with step.writer() as warehouse:
        candidate_ids = [row[0] for row in warehouse.rows("SELECT candidate_id FROM catalog ORDER BY position")]
        known = {row[0]: row[1:] for row in warehouse.rows("SELECT entity_id, split, text_id FROM entities")}
        judgements = [*read_judgements(step.settings), *taught_judgements(step.settings)]
        unlisted = step.settings.sources.unlisted
        found = labels.reference_labels(
            *(source.frame, judgements, known, in_source, candidate_ids, unlisted, erased, source.unreadable)
        )
        replaced = warehouse.replace_references(found.kept, step.run_id, _digest(step, source.digest))
        warehouse.replace_undecided(found.undecided, step.run_id)
        digest = warehouse.labels_digest()
        refused, not_used = [*source.refused, *found.references], found.judgements
        warehouse.add_refused(step.run_id, "references", [(row.row_id, row.reason) for row in refused])
        warehouse.add_refused(step.run_id, "judgements", [(row.row_id, row.reason) for row in not_used])
    warnings = [*source.warnings, *found.notes]
    if not_used:
        warnings.append(f"{len(not_used)} of {len(judgements)} judgements are not used; refused_rows says why")
    for warning in warnings:
        step.log.warning(warning)
    return metadata.materialized(
        digest or replaced.digest,
        replaced.rows,
        rows_in=source.rows_in - len(source.frame) + found.rows_in,
        refused=len(refused) - sum(row.reason == ERASED for row in refused),
        erased=sum(row.reason == ERASED for row in refused),
        redundant=source.redundant + found.redundant,
        outside_catalog=found.outside_catalog,
        undecided=len(found.undecided),
        positives=found.kept["label"].sum(),
        judgements=len(judgements),
        judgements_not_used=len(not_used),
        taught=(found.kept["design"] == TEACHER).sum(),
        warnings=metadata.listed(warnings),
        refused_rows=metadata.refusals([*refused, *not_used]),
    )


reference_labels = reference_labels_after("entities", "catalog")


def _digest(step: Step, references: str) -> str:
    """What was read: the references' source, and the judgements and the teacher's labels where there are any."""
    from semlabel.digests import digest_of
    from semlabel.judging.store import judgements_digest
    from semlabel.judging.taught import taught_digest

    others = [digest for digest in (judgements_digest(step.settings), taught_digest(step.settings)) if digest]
    return digest_of([references, *others]) if others else references
