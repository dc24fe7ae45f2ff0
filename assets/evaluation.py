"""Margins of entities through the refresh planner, and the judged pairs of a split with theirs.

Knows how rounds reach the model and nothing of what margins are for. Whatever is scored here, to calibrate, certify,
test or publish, is stored once and never scored again under the same scorer.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from resources.project import Step
from semlabel.errors import GateBlocked

if TYPE_CHECKING:
    import pandas as pd

    from semlabel.gates import GateResult
    from semlabel.manifest import Manifest
    from semlabel.progress import Progress, ProgressSink
    from semlabel.refresh import RefreshOutcome, RefreshPlan
    from semlabel.remote_scorer import RemoteScorer
    from semlabel.round_stream import Found, Round, ScoreRounds, WantedRound
    from semlabel.scorer import Scorer
    from semlabel.warehouse import Warehouse


def score(
    step: Step,
    warehouse: "Warehouse",
    directory: Path,
    manifest: "Manifest",
    entity_ids: Sequence[str] | None,
    max_pairs: int = 0,
    in_full: Sequence[str] | None = None,
    served: bool = False,
) -> "RefreshOutcome":
    """Score what is missing of these entities (None: all) and the catalog; at most `max_pairs` pairs (0: no cap).

    With `in_full` only what stands in shortlists is wanted, but for these entities every pair is. The model is loaded
    only when something is missing. `served` says that servers may have this labeler, as they may have one that is
    promoted: then that of `[scoring] http_url` scores, where there is one. No server has a checkpoint.
    """
    from semlabel import refresh, shortlist_plan

    scoring = step.settings.scoring
    asked = (warehouse, manifest.scorer_digest, entity_ids)
    if in_full is None:
        plan = refresh.plan(*asked, scoring.items_per_round)
    else:
        plan = shortlist_plan.plan(*asked, in_full, scoring.items_per_round)
    if max_pairs and plan.pairs > max_pairs:
        plan = _capped(plan, warehouse, max_pairs)
    if scoring.backend == "ray" and plan.rounds:
        return _score_on_ray(step, warehouse, directory, plan)
    # Before the first round: a labeler that cannot be loaded is no fault of the texts.
    score_rounds = rounds_scorer(_rounds_of(step, directory, served)) if plan.rounds else _never
    return refresh.execute_rounds(
        plan, warehouse, step.operations, score_rounds, step.run_id, scoring.batch_rounds, step.progress
    )


def _score_on_ray(step: Step, warehouse: "Warehouse", directory: Path, plan: "RefreshPlan") -> "RefreshOutcome":
    """The same plan through actors; what they give back is committed here, by the same batches."""
    from semlabel import refresh
    from semlabel.distributed.plan_rounds import config_of, plan_scorer, session_for

    scoring = step.settings.scoring
    with session_for(scoring) as session:
        where = f"; dashboard: {session.dashboard}" if session.dashboard else ""
        step.log.info(f"{plan.pairs} pairs on Ray at {scoring.address}, up to {scoring.ray_scorers} scorers{where}")
        score_rounds = plan_scorer(config_of(scoring, directory, step.settings.model.device))
        sink = in_tenths(step.progress, step.log.info)
        outcome = refresh.execute_rounds(
            plan, warehouse, step.operations, score_rounds, step.run_id, scoring.batch_rounds, sink
        )
    return replace(outcome, dashboard=session.dashboard)


def in_tenths(sink: "ProgressSink", log: "Callable[[str], None]") -> "ProgressSink":
    """`sink`, and a line in the log for every tenth that is done."""
    told = 0

    def listen(progress: "Progress") -> None:
        nonlocal told
        sink(progress)
        tenth = 10 * progress.done // max(progress.total, 1)
        if tenth > told:
            told = tenth
            log(f"{progress.stage}: {progress.done} of {progress.total} {progress.unit}")

    return listen


def score_split(
    step: Step, warehouse: "Warehouse", directory: Path, manifest: "Manifest", *splits: str
) -> "RefreshOutcome":
    """Score what is missing of these splits' entities."""
    ids = [entity_id for split in splits for entity_id in split_ids(warehouse, split)]
    return score(step, warehouse, directory, manifest, ids)


def ensure_scored(step: Step, warehouse: "Warehouse", directory: Path, manifest: "Manifest", split: str) -> None:
    """Score what is missing of a split; nothing is noted where nothing is (a check must not look like a refresh)."""
    from semlabel.refresh import missing_pairs

    if missing_pairs(warehouse, manifest.scorer_digest, split_ids(warehouse, split)).pairs:
        score_split(step, warehouse, directory, manifest, split)


def split_ids(warehouse: "Warehouse", split: str) -> list[str]:
    """The entities of one split, ordered by id."""
    return [row[0] for row in warehouse.rows("SELECT entity_id FROM entities WHERE split = ? ORDER BY 1", [split])]


def reference_pairs(step: Step, warehouse: "Warehouse", split: str) -> "pd.DataFrame":
    """What is known of the pairs of a split: entity_id, candidate_id, label."""
    from semlabel.pairs import cross_product_labels

    tables = warehouse.entities(), warehouse.catalog(), warehouse.reference_labels()
    return cross_product_labels(*tables, split, step.settings.sources.unlisted, warehouse.undecided_pairs())


def judged_pairs(step: Step, warehouse: "Warehouse", manifest: "Manifest", split: str) -> "pd.DataFrame":
    """The judged pairs of a split: entity_id, candidate_id, label, margin. Raises GateBlocked where one is missing."""
    return _with_margins(warehouse, manifest, reference_pairs(step, warehouse, split), split)


def certify_pairs(step: Step, warehouse: "Warehouse", manifest: "Manifest") -> "pd.DataFrame":
    """The judged pairs of certify, and where a random sample judges it, behind them those that it left unjudged.

    Then a column `undecided` tells them apart, and their label says nothing: who leaves out the pairs that are hard to
    judge must not prove by the easy ones. Raises GateBlocked where a margin is missing.
    """
    import pandas as pd

    from semlabel.judging.merging import UNJUDGED

    judged = judged_pairs(step, warehouse, manifest, "certify")
    left = warehouse.frame(
        "SELECT entity_id, candidate_id FROM undecided_pairs JOIN entities USING (entity_id) "
        "SEMI JOIN catalog USING (candidate_id) WHERE split = 'certify' AND reason = ? ORDER BY ALL",
        [UNJUDGED],
    )
    if left.empty:
        return judged
    found = _with_margins(warehouse, manifest, left.assign(label=False), "certify")
    return pd.concat([judged.assign(undecided=False), found.assign(undecided=True)], ignore_index=True)


def decided(pairs: "pd.DataFrame") -> "pd.DataFrame":
    """The pairs of `certify_pairs` that have a label."""
    if "undecided" not in pairs:
        return pairs
    return pairs[~pairs["undecided"]].drop(columns="undecided").reset_index(drop=True)


def _with_margins(warehouse: "Warehouse", manifest: "Manifest", labels: "pd.DataFrame", split: str) -> "pd.DataFrame":
    margins = warehouse.margins(manifest.scorer_digest, list(labels["entity_id"].unique()))
    pairs = labels.merge(margins, on=["entity_id", "candidate_id"], how="left", validate="one_to_one")
    missing = int(pairs["margin"].isna().sum())
    if missing:
        raise GateBlocked(
            f"{missing} of {len(pairs)} judged pairs of {split} have no margin yet; score the split first"
        )
    return pairs


def _rounds_of(step: Step, directory: Path, served: bool) -> "Scorer | RemoteScorer":
    """What scores the rounds of a labeler directory: a server where one may have it, else the model loaded here.

    Gates that compare methods always load the model.
    """
    scoring = step.settings.scoring
    if not served or scoring.backend != "http":
        return step.scorer(directory)
    from semlabel.remote_scorer import RemoteScorer

    assert scoring.http_url is not None
    return RemoteScorer.load(directory, scoring.http_url, scoring.http_concurrency)


def judged_with(result: "GateResult", manifest: "Manifest") -> "GateResult":
    """A verdict that says which scorer's margins it is about, and in which precision they were computed."""
    told = {"computed_in": manifest.precision, "scorer_digest": manifest.scorer_digest}
    return replace(result, evidence=result.evidence | told)


def rounds_scorer(scorer: "Scorer | RemoteScorer") -> "ScoreRounds":
    """What scores the rounds of a plan by batches.

    A candidate that the prompt refuses takes no other out of its round; an entity that it refuses gives the reason.
    """
    import numpy as np

    from semlabel.errors import PromptError
    from semlabel.round_stream import by_batches, partly

    tokenised: dict[str, tuple[list[int], str | None]] = {}

    def items(texts: "Sequence[str]") -> tuple[list[list[int]], list[str | None]]:
        fresh = list(dict.fromkeys(text for text in texts if text not in tokenised))
        tokenised.update(zip(fresh, zip(*scorer.prompt.items_or_problems(fresh), strict=True), strict=True))
        found = [tokenised[text] for text in texts]
        return [item for item, problem in found if problem is None], [problem for _, problem in found]

    def score_batch(wanted: "Sequence[WantedRound]") -> "Iterator[tuple[int, Found]]":
        places, rounds, refused = [], [], []
        for place, one in enumerate(wanted):
            try:
                query = scorer.prompt.query(one.entity_text).ids
            except PromptError as error:
                yield place, error
                continue
            good, problems = items(one.candidate_texts)
            if not good:
                yield place, partly(np.empty(0, dtype=np.float32), problems)
                continue
            places.append(place)
            rounds.append((query, good))
            refused.append(problems)
        for number, margins in scorer.margins_of(rounds):
            yield places[number], margins if isinstance(margins, PromptError) else partly(margins, refused[number])

    return by_batches(score_batch)


def _never(wanted: "Iterable[WantedRound]") -> "Iterator[tuple[Round, Found]]":
    for one in wanted:
        raise AssertionError(f"a plan without rounds asked for the margins of {one.entry}")
    return iter(())


def _capped(plan: "RefreshPlan", warehouse: "Warehouse", max_pairs: int) -> "RefreshPlan":
    """The first rounds of a plan, as many as fit the cap, but at least one."""
    sizes = dict(warehouse.rows("SELECT block_id, count(*) FROM blocks GROUP BY block_id"))
    kept, pairs = 0, 0
    for entry in plan.rounds:
        if kept and pairs + sizes[entry.block_id] > max_pairs:
            break
        kept, pairs = kept + 1, pairs + sizes[entry.block_id]
    return replace(plan, rounds=plan.rounds[:kept], pairs=pairs)
