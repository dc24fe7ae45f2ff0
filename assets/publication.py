"""`published_predictions`: the table downstream teams read, switched only when every verdict stands.

Knows that the verdicts count and not the run: launched by whatever, alone or with everything, it reads them again for
exactly this labeler and these rows, and refuses. A refusal changes nothing: yesterday's version stays current.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import dagster as dg

from assets import drift, metadata
from assets.changes import is_preview
from assets.checks import GateCheck, gate_check
from assets.labelers import needed_labeler
from assets.verdicts import before_publication
from resources.project import ProjectResource, Step
from semlabel.errors import GateBlocked

if TYPE_CHECKING:
    from semlabel.gates import GateResult


@dg.asset(
    deps=["predictions"],
    group_name="labeling",
    kinds={"parquet", "duckdb"},
    pool="warehouse_writer",
    metadata={"dagster/column_schema": metadata.PUBLISHED},
)
def published_predictions(
    context: dg.AssetExecutionContext, project: ProjectResource
) -> Iterator[dg.MaterializeResult]:
    """A new version of the published table, or yesterday's where nothing changed; refused while a gate is red."""
    step = project.step(context)
    yield _published(step)
    step.write_report()
    # Last in the night, and told apart from the publication: a failure here is loud but undoes nothing.
    step.keep_up()


def _published(step: Step) -> dg.MaterializeResult:
    from semlabel.publish import publish

    try:
        _, manifest = needed_labeler(step)
        with step.reader() as warehouse:
            preview = is_preview(step, warehouse)
            standing = before_publication(step, warehouse, manifest)
            standing.refuse()
            done = publish(
                warehouse,
                step.operations,
                step.settings.publish,
                step.settings.paths.preview if preview else step.settings.paths.published,
                manifest.model_dump(mode="json"),
                standing.verdicts,
                step.run_id,
                preview,
                recheck=lambda: before_publication(step, warehouse, manifest).refuse(),
                add_files=lambda *places: drift.carry_on(step, warehouse, *places),
            )
    except GateBlocked as error:
        raise dg.Failure(f"Not published, the current version stays: {error}", allow_retries=False) from error
    for trouble in done.troubles:
        step.log.warning(f"{done.version} is published, but {trouble}; the next publication makes it good")
    if not preview:
        _probe(step, manifest.digest)
    return metadata.materialized(
        done.content_hash,
        done.rows,
        version=done.version,
        path=dg.MetadataValue.path(done.path),
        labels_yes=done.labels,
        unchanged=done.unchanged,
        preview=preview,
        labeler_digest=manifest.digest,
        report=metadata.report(step),
    )


def _probe(step: Step, digest: str) -> None:
    """The last step of a roll-out: servers switch with the publication. What did not is said; the table stands."""
    from semlabel.endpoints import left_behind

    for url in left_behind(step.settings.serving.endpoints, digest):
        step.log.warning(
            f"{url} still answers with another labeler than the publication ({digest[:12]}): look into its log; "
            "one_labeler_everywhere will be red in the next run"
        )


def _snapshot(step: Step) -> "GateResult":
    from semlabel import gates
    from semlabel.publish import snapshot_check

    with step.reader() as warehouse:
        snapshot = snapshot_check(_version(step), warehouse)
    return gates.snapshot_matches_warehouse(*snapshot)


def _version(step: Step) -> Path:
    return Path(str(step.materialized("published_predictions")["path"]))


snapshot_matches_warehouse = gate_check(
    GateCheck(
        "snapshot_matches_warehouse",
        subject=Step.predictions_digest,
        evidence=_snapshot,
        also=lambda step: str(_version(step)),
        one_look=True,
    )
)
