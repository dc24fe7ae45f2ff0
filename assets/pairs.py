"""`training_pairs`: which pairs the labeler learns from, one reference label each, train entities only.

Knows how evidence about the pairs is gathered. How pairs are sampled stands in `semlabel.pairs`.
"""

from typing import TYPE_CHECKING

import dagster as dg

from assets import contracts, metadata
from assets.checks import GateCheck, gate_check
from assets.labelers import needed_labeler
from resources.project import ProjectResource, Step

if TYPE_CHECKING:
    from semlabel.gates import GateResult


@dg.asset(
    deps=["entities", "catalog", "reference_labels"],
    group_name="training",
    kinds={"duckdb", "table"},
    pool="warehouse_writer",
    metadata={"dagster/column_schema": metadata.TRAINING_PAIRS},
)
def training_pairs(context: dg.AssetExecutionContext, project: ProjectResource) -> dg.MaterializeResult:
    """Positives, hard negatives (of the same group as a positive) and random ones of every train entity."""
    from semlabel.pairs import build_training_pairs

    step = project.step(context)
    with step.writer() as warehouse:
        candidates = warehouse.training_candidates()
        tables = warehouse.entities(), candidates, warehouse.reference_labels()
        pairs = build_training_pairs(*tables, step.settings, warehouse.undecided_pairs())
        replaced = warehouse.replace_training_pairs(pairs, step.run_id)
    kinds = pairs["kind"].value_counts()
    return metadata.materialized(
        replaced.digest,
        replaced.rows,
        entities=pairs["entity_id"].nunique(),
        positives=pairs["label"].sum(),
        kinds=metadata.table([{"kind": kind, "pairs": count} for kind, count in kinds.items()]),
    )


def _subject(step: Step) -> str:
    if step.trains:
        return step.digest("training_pairs")
    return str(needed_labeler(step)[1].training["pairs_digest"])


def _contract(step: Step) -> "GateResult":
    from semlabel import gates

    _refuse_other_pairs(step)
    references = step.materialized("reference_labels")
    with step.reader() as warehouse:
        found = contracts.findings(warehouse, contracts.TRAINING_PAIRS)
    return gates.pairs_contract(
        found.violations,
        rows=found.facts["rows"],
        positives=found.facts["positives"],
        reference_problems=references["refused"],
        reference_rows=references["rows_in"],
        max_reference_problem_fraction=step.settings.sources.max_reference_problem_fraction,
    )


def _splits(step: Step) -> "GateResult":
    from semlabel import gates
    from semlabel.splits import find_leaks

    _refuse_other_pairs(step)
    with step.reader() as warehouse:
        shared = warehouse.rows(
            "SELECT DISTINCT entity_id FROM training_pairs ANTI JOIN "
            "(SELECT entity_id FROM entities WHERE split = 'train') USING (entity_id) ORDER BY 1"
        )
        sizes = dict(warehouse.rows("SELECT split, count(*) FROM entities WHERE split <> '' GROUP BY split"))
        leaks = find_leaks(warehouse.entities())
    names = ("entity", "near_duplicate", "split", "other_split")
    near = [dict(zip(names, leak, strict=True)) for leak in leaks]
    return gates.splits_do_not_leak([row[0] for row in shared], near, sizes)


def _refuse_other_pairs(step: Step) -> None:
    """A verdict about the promoted labeler's pairs can only be replayed once other pairs have taken their place."""
    from semlabel.errors import GateBlocked

    if step.digest("training_pairs") != _subject(step):
        raise GateBlocked("the promoted labeler's training pairs are gone and left no verdict; train a labeler again")


pairs_contract = gate_check(
    GateCheck(
        "pairs_contract",
        subject=_subject,
        evidence=_contract,
        limits=("sources.max_reference_problem_fraction",),
        also=lambda step: _reference_counts(step) if step.trains else None,
    )
)
splits_do_not_leak = gate_check(
    GateCheck(
        "splits_do_not_leak",
        subject=_subject,
        evidence=_splits,
        also=lambda step: step.digest("entities") if step.trains else None,
    )
)


def _reference_counts(step: Step) -> list[int]:
    told = step.materialized("reference_labels")
    return [told["rows_in"], told["refused"]]
