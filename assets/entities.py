"""`entities`: who is to be labeled, each in one split for good, with the length of the query that is scored.

Knows the source, the updates that came online, the splits and the prompt's limit; knows nothing of candidates or
labels, except that only entities with references can be held out to judge by.
"""

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

import dagster as dg

from assets import contracts, metadata
from assets.checks import GateCheck, gate_check
from assets.labelers import promoted_labeler
from assets.prompts import prompt_in_force
from resources.project import ProjectResource, Step

if TYPE_CHECKING:
    import pandas as pd

    from semlabel.gates import GateResult
    from semlabel.online_texts import Ingested
    from semlabel.warehouse import Warehouse


@dg.asset(
    group_name="sources",
    kinds={"duckdb", "table"},
    pool="warehouse_writer",
    metadata={"dagster/column_schema": metadata.ENTITIES},
)
def entities(context: dg.AssetExecutionContext, project: ProjectResource) -> dg.MaterializeResult:
    """The entities of the source with the texts that came online, near-duplicates kept in one split."""
    from semlabel import online_texts
    from semlabel.judging.store import pinned_splits, read_judgements
    from semlabel.references import entities_to_split
    from semlabel.remembered_splits import remembered
    from semlabel.sources import ERASED, read_entities, read_references
    from semlabel.splits import LEFT_OUT

    step = project.step(context)
    erased_ids = step.operations.erased_ids()
    source = read_entities(step.settings, erased_ids)
    references = read_references(step.settings, erased_ids).frame
    pinned = pinned_splits(read_judgements(step.settings))
    with step.writer() as warehouse:
        ingested = _ingested(step, warehouse, erased_ids)
        online = online_texts.resolve(warehouse, source.frame)
        ids, unlisted = list(online.frame["entity_id"]), step.settings.sources.unlisted
        drawn = [entity_id for entity_id, split in remembered(warehouse).items() if split != LEFT_OUT]
        judged = entities_to_split(ids, references, [*pinned, *drawn], unlisted)
        frame, notes = _split(step, warehouse, online.frame, judged, pinned)
        frame, problem = _measured(step, frame)
        replaced = warehouse.replace_entities(frame, step.run_id, source.digest)
        warehouse.add_refused(step.run_id, "entities", [(row.row_id, row.reason) for row in source.refused])
    warnings = [*source.warnings, *ingested.warnings, *online.warnings, *notes, *problem]
    for warning in warnings:
        step.log.warning(warning)
    sizes = frame["split"].value_counts()
    # Refused for good and by decision: no sign of a broken export, so no fault that the gate should count.
    erased = sum(row.reason == ERASED for row in source.refused)
    return metadata.materialized(
        replaced.digest,
        replaced.rows,
        rows_in=source.rows_in,
        refused=len(source.refused) - erased,
        left_out=source.redundant + erased,
        erased=erased,
        truncated=frame["truncated"].sum(),
        added=replaced.added,
        removed=replaced.removed,
        edited=replaced.edited,
        splits=metadata.table([{"split": name or "(none)", "entities": count} for name, count in sizes.items()]),
        updates_online=ingested.updates,
        updates_refused=ingested.refused,
        texts_held_online=online.held,
        warnings=metadata.listed(warnings),
        refused_rows=metadata.refusals(source.refused),
    )


def _ingested(step: Step, warehouse: "Warehouse", erased_ids: Collection[str]) -> "Ingested":
    """What was accepted online until now, with the margins that the promoted labeler's scorer made."""
    from semlabel.online_texts import ingest

    promoted = promoted_labeler(step)
    scorer = promoted[1].scorer_digest if promoted else None
    rounds = step.settings.scoring.items_per_round
    done = ingest(warehouse, step.settings.paths.spool, scorer, step.run_id, rounds, erased_ids)
    if done.segments:
        counts = {name: value for name, value in vars(done).items() if isinstance(value, int)}
        step.log.info("updates: " + ", ".join(f"{name} {value}" for name, value in counts.items()))
    return done


def _split(
    step: Step, warehouse: "Warehouse", frame: "pd.DataFrame", judged: set[str], pinned: Mapping[str, str]
) -> "tuple[pd.DataFrame, list[str]]":
    from semlabel.remembered_splits import assign_for_good
    from semlabel.splits import LEFT_OUT

    # An entity without references cannot judge or train; it gets its split when references arrive.
    judges = frame[frame["entity_id"].isin(judged)]
    result = assign_for_good(warehouse, judges, step.settings.splits, pinned)
    split = [result.split.get(entity_id, LEFT_OUT) for entity_id in frame["entity_id"]]
    group = [result.groups.get(entity_id) for entity_id in frame["entity_id"]]
    import pandas as pd

    return frame.assign(split=split, group_id=pd.array(group, dtype="Int64")), result.notes


def _measured(step: Step, frame: "pd.DataFrame") -> "tuple[pd.DataFrame, list[str]]":
    """The frame with `query_tokens` and `truncated`. A prompt that cannot be used leaves them unknown: its own gates,
    which stand before everything that would use them, say what is wrong with it.
    """
    import pandas as pd

    from semlabel.errors import PromptError

    try:
        queries = prompt_in_force(step).prompt().queries(list(frame["text"]))
    except PromptError as error:
        unknown = pd.array([None] * len(frame), dtype="Int64")
        return frame.assign(query_tokens=unknown, truncated=False), [f"query lengths are unknown: {error}"]
    lengths = pd.array([len(query.ids) for query in queries], dtype="Int64")
    return frame.assign(query_tokens=lengths, truncated=[query.truncated for query in queries]), []


def _subject(step: Step) -> str:
    return step.digest("entities")


def _evidence(step: Step) -> "GateResult":
    from semlabel import gates

    told = step.materialized("entities")
    with step.reader() as warehouse:
        found = contracts.findings(warehouse, contracts.ENTITIES)
    settings = step.settings
    return gates.entities_contract(
        found.violations,
        rows=found.facts["rows"],
        refused=told["refused"],
        rows_in=told["rows_in"],
        left_out=told["left_out"],
        max_refused_fraction=settings.sources.max_refused_fraction,
        min_entities=settings.gates.min_entities,
        truncated=found.facts["truncated"],
        max_truncated_fraction=settings.gates.max_truncated_fraction,
    )


entities_contract = gate_check(
    GateCheck(
        "entities_contract",
        subject=_subject,
        evidence=_evidence,
        limits=("sources.max_refused_fraction", "gates.min_entities", "gates.max_truncated_fraction"),
        also=lambda step: [step.materialized("entities")[name] for name in ("rows_in", "refused", "left_out")],
        one_look=True,
    )
)
