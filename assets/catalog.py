"""`catalog`: the candidates that every entity is judged by, and the proof that the prompt splits cleanly at them.

Knows the source, the choice of the most used candidates and the prompt's limit for an item. Knows nothing of margins.
Here stands the first stage of the recipe: one decision per prompt, the shared text in the query, the candidate in the
item, and two answers that are one token each.
"""

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
    from semlabel.sources import RefusedRow, SourceTable

_ENTITIES_PER_SPLIT_CHECK = 25


@dg.asset(
    deps=["entities"],
    group_name="sources",
    kinds={"duckdb", "table"},
    pool="warehouse_writer",
    metadata={"dagster/column_schema": metadata.CATALOG},
)
def catalog(context: dg.AssetExecutionContext, project: ProjectResource) -> dg.MaterializeResult:
    """The candidates that fit the prompt; with `catalog_top`, those that most train entities have."""
    from semlabel.pairs import select_catalog
    from semlabel.sources import read_catalog, read_references

    step = project.step(context)
    source = read_catalog(step.settings)
    references = read_references(step.settings).frame
    fitting, too_long, problem = _fitting(step, source)
    with step.writer() as warehouse:
        train_ids = [row[0] for row in warehouse.rows("SELECT entity_id FROM entities WHERE split = 'train'")]
        kept, left_out = select_catalog(fitting, references, train_ids, step.settings.sources.catalog_top)
        replaced = warehouse.replace_catalog(_certified(step, kept), step.run_id, source.digest)
        others = fitting[fitting["candidate_id"].isin(left_out)]
        warehouse.replace_left_out(others.drop(columns="item_tokens"), step.run_id, source.digest)
        refused = [*source.refused, *too_long]
        warehouse.add_refused(step.run_id, "catalog", [(row.row_id, row.reason) for row in refused])
    for warning in [*source.warnings, *problem]:
        step.log.warning(warning)
    return metadata.materialized(
        replaced.digest,
        replaced.rows,
        rows_in=source.rows_in,
        refused=len(refused),
        left_out=source.redundant + len(left_out),
        added=replaced.added,
        removed=replaced.removed,
        edited=replaced.edited,
        warnings=metadata.listed([*source.warnings, *problem]),
        refused_rows=metadata.refusals(refused),
    )


def _fitting(step: Step, source: "SourceTable") -> "tuple[pd.DataFrame, list[RefusedRow], list[str]]":
    """The candidates with `item_tokens`, the refused ones, and why lengths are unknown if they are."""
    import pandas as pd

    from semlabel.errors import PromptError
    from semlabel.sources import RefusedRow

    frame = source.frame
    try:
        prompt = prompt_in_force(step).prompt()
    except PromptError as error:
        unknown = pd.array([None] * len(frame), dtype="Int64")
        return frame.assign(item_tokens=unknown), [], [f"item lengths are unknown: {error}"]
    problems = prompt.item_problems(list(frame["text"]))
    fits = [problem is None for problem in problems]
    refused = [
        RefusedRow("catalog", candidate_id, problem)
        for candidate_id, problem in zip(frame["candidate_id"], problems, strict=True)
        if problem is not None
    ]
    kept = frame[fits].reset_index(drop=True)
    lengths = [len(item) for item in prompt.items(list(kept["text"]))]
    return kept.assign(item_tokens=pd.array(lengths, dtype="Int64")), refused, []


def _certified(step: Step, frame: "pd.DataFrame") -> "pd.DataFrame":
    """Mark the candidates the promoted labeler was certified with; before a first one, all of them will be."""
    from semlabel.digests import text_id

    promoted = promoted_labeler(step)
    if promoted is None:
        return frame.assign(certified=True)
    calibration = promoted[1].calibration
    known = set((calibration.model_extra or {}).get("certified_text_ids", ())) if calibration else set()
    return frame.assign(certified=[text_id(text) in known for text in frame["text"]])


def _subject(step: Step) -> str:
    from semlabel.gates import catalog_subject

    prompt = prompt_in_force(step)
    return catalog_subject(step.digest("catalog"), prompt.spec.digest(), prompt.tokenizer_digest())


def _contract(step: Step) -> "GateResult":
    from semlabel import gates

    told = step.materialized("catalog")
    with step.reader() as warehouse:
        found = contracts.findings(warehouse, contracts.CATALOG)
    return gates.catalog_contract(
        found.violations,
        rows=found.facts["rows"],
        refused=told["refused"],
        rows_in=told["rows_in"],
        left_out=told["left_out"],
        max_refused_fraction=step.settings.sources.max_refused_fraction,
        min_candidates=step.settings.gates.min_candidates,
    )


def _answers(step: Step) -> "GateResult":
    from semlabel import gates
    from semlabel.prompt import answer_tokens

    prompt = prompt_in_force(step)
    found = answer_tokens(prompt.spec, prompt.tokenizer())
    return gates.answers_are_single_tokens(prompt.spec.yes, prompt.spec.no, found.yes_ids, found.no_ids)


def _split_tokens(step: Step) -> "GateResult":
    """Every candidate behind one entity, and every one of a sample of entities before one candidate."""
    from semlabel import gates

    prompt = prompt_in_force(step).prompt()
    with step.reader() as warehouse:
        candidates = [row[0] for row in warehouse.rows("SELECT text FROM catalog ORDER BY position")]
        entities = [
            row[0]
            for row in warehouse.rows(
                "SELECT text FROM entities ORDER BY md5(text_id) LIMIT ?", [_ENTITIES_PER_SPLIT_CHECK]
            )
        ]
    pairs = [(entities[number % len(entities)], text) for number, text in enumerate(candidates)] if entities else []
    pairs += [(text, candidates[number % len(candidates)]) for number, text in enumerate(entities) if candidates]
    found = [(candidate, prompt.split_mismatch(entity, candidate)) for entity, candidate in pairs]
    mismatches = [{"candidate": candidate, "mismatch": problem} for candidate, problem in found if problem is not None]
    return gates.split_tokens_match(mismatches, checked=len(pairs))


catalog_contract = gate_check(
    GateCheck(
        "catalog_contract",
        subject=_subject,
        evidence=_contract,
        limits=("sources.max_refused_fraction", "gates.min_candidates"),
        also=lambda step: [step.materialized("catalog")[name] for name in ("rows_in", "refused", "left_out")],
        one_look=True,
    )
)
answers_are_single_tokens = gate_check(GateCheck("answers_are_single_tokens", subject=_subject, evidence=_answers))
split_tokens_match = gate_check(
    GateCheck("split_tokens_match", subject=_subject, evidence=_split_tokens, one_look=True)
)
