"""The refresh costs what changed, each missing pair once, and survives being killed anywhere."""

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semlabel import refresh
from semlabel.errors import PromptError, WarehouseError
from semlabel.round_stream import Partly, by_batches, partly
from tests.storage import Project, Scorer, margin


@pytest.fixture
def project(tmp_path):
    project = Project(tmp_path)
    yield project
    project.close()


def planned_pairs(project, plan):
    """Every (entity text, candidate text) of a plan, with repetitions."""
    texts = dict(project.warehouse.rows("SELECT text_key, any_value(text) FROM entities GROUP BY 1"))
    candidates = dict(project.warehouse.rows("SELECT text_key, any_value(text) FROM catalog GROUP BY 1"))
    blocks = {}
    for block_id, key in project.warehouse.rows("SELECT block_id, candidate_text_key FROM blocks ORDER BY 1, position"):
        blocks.setdefault(block_id, []).append(candidates.get(key))
    return [(texts[entry.text_key], text) for entry in plan.rounds for text in blocks[entry.block_id]]


class NeighbourlyScorer(Scorer):
    """Margins that depend, ever so little, on which candidates meet in one call, as those of a real model may."""

    def __call__(self, entity_text, candidate_texts):
        exact = super().__call__(entity_text, candidate_texts)
        together = margin("|".join(candidate_texts), entity_text)
        return exact + np.float32(1e-4) * together


# What a change costs


def test_the_first_run_scores_every_pair_once_and_the_second_none(project):
    score = Scorer()
    outcome = project.refresh(score, items=2)
    assert Counter(score.pairs) == Counter(
        {(e, c): 1 for e in ["alpha", "beta", "gamma"] for c in Project.CATALOG.values()}
    )
    assert [len(candidates) for _, candidates in score.calls] == [2, 2, 1] * 3
    assert (outcome.pairs_scored, outcome.pairs_reused, outcome.pairs_refused) == (15, 0, 0)
    assert outcome.labels_per_s == pytest.approx(15 / outcome.seconds)
    again = Scorer()
    outcome = project.refresh(again)
    assert again.calls == [] and (outcome.pairs_scored, outcome.pairs_reused, outcome.labels_per_s) == (0, 15, 0.0)
    run = project.operations.run("run")
    assert (run["pairs_scored"], run["pairs_reused"]) == (15, 15)


def test_margins_land_at_the_pair_they_were_computed_for(project):
    project.refresh(items=2)
    found = project.predictions()
    expected = [margin(Project.ENTITIES[e], Project.CATALOG[c]) for e in Project.ENTITIES for c in Project.CATALOG]
    assert found["margin"].tolist() == [float(value) for value in expected]


def test_an_edited_entity_costs_its_row_only(project):
    project.refresh()
    project.put(Project.ENTITIES | {"e2": "beta, edited"})
    score = Scorer()
    project.refresh(score)
    assert score.pairs == [("beta, edited", text) for text in Project.CATALOG.values()]
    assert project.warehouse.coverage().missing == []


def test_a_new_candidate_costs_its_column_only(project):
    project.refresh()
    project.put(None, Project.CATALOG | {"c00": "a new one"})
    score = Scorer()
    project.refresh(score)
    assert sorted(score.pairs) == [(text, "a new one") for text in ("alpha", "beta", "gamma")]
    assert project.warehouse.predictions_count() == 18


def test_a_removed_candidate_leaves_the_predictions_and_keeps_its_margins(project):
    project.refresh()
    project.put(None, {name: text for name, text in Project.CATALOG.items() if name != "c3"})
    assert project.plan().rounds == []
    assert "c3" not in set(project.predictions()["candidate_id"]) and project.warehouse.predictions_count() == 12
    project.put(None, Project.CATALOG)
    assert project.plan().rounds == [] and project.warehouse.predictions_count() == 15


def test_a_removed_entity_leaves_the_predictions_and_its_return_costs_nothing(project):
    project.refresh()
    project.put({"e1": "alpha"})
    assert project.warehouse.predictions_count() == 5 and project.plan().pairs == 0
    project.put(Project.ENTITIES)
    assert project.plan().pairs == 0


def test_a_reverted_text_costs_nothing(project):
    project.refresh()
    before = project.warehouse.content_hash()
    project.put(Project.ENTITIES | {"e1": "changed"}, Project.CATALOG | {"c1": "changed"})
    project.refresh()
    assert project.warehouse.content_hash() != before
    project.put(Project.ENTITIES, Project.CATALOG)
    assert project.plan().rounds == []
    assert project.warehouse.content_hash() == before


def test_equal_texts_are_scored_once(project):
    project.put({"e1": "same", "e2": "same", "e3": "other"}, {"c1": "twin", "c2": "twin", "c3": "single"})
    score = Scorer()
    outcome = project.refresh(score)
    assert sorted(score.pairs) == [("other", "single"), ("other", "twin"), ("same", "single"), ("same", "twin")]
    assert outcome.pairs_scored == 4 and project.warehouse.predictions_count() == len(project.predictions()) == 9
    assert project.plan().pairs == 0


def test_an_id_that_changes_and_a_text_that_moves_to_another_id_cost_nothing(project):
    project.refresh()
    project.put({"e9": "alpha", "e2": "gamma", "e3": "beta"})
    assert project.plan().pairs == 0 and project.warehouse.coverage().missing == []


def test_a_new_threshold_costs_nothing_and_a_new_scorer_everything(project):
    project.refresh()
    project.warehouse.activate_labeler("stricter", "scorer", 3.0, 1.0, 0.0)
    assert project.plan().rounds == [] and len(project.predictions()) == 15
    project.warehouse.activate_labeler("retrained", "other weights", 0.5, 1.0, 0.0)
    assert project.warehouse.predictions_count() == 0
    assert project.plan(scorer="other weights").pairs == 15
    project.refresh(Scorer("other weights"))
    assert project.predictions()["margin"].tolist()[0] == float(margin("alpha", "candidate 0", "other weights"))


def test_a_removed_candidate_is_not_scored_for_a_new_entity(project):
    project.refresh()
    project.put(Project.ENTITIES | {"e4": "delta"}, {"c1": "candidate 1", "c4": "candidate 4"})
    score = Scorer()
    project.refresh(score)
    assert score.pairs == [("delta", "candidate 1"), ("delta", "candidate 4")]


def test_a_limited_run_and_then_an_unlimited_one_equal_a_cold_run(project, tmp_path):
    limited = NeighbourlyScorer()
    project.refresh(limited, ids=["e2"], items=2)
    project.refresh(limited, items=2)
    cold = Project(tmp_path / "cold")
    everything = NeighbourlyScorer()
    cold.refresh(everything, items=2)
    assert project.warehouse.content_hash() == cold.warehouse.content_hash()
    assert Counter(limited.pairs) == Counter(everything.pairs)
    cold.close()


def test_identical_blocks_are_made_once(project):
    for _ in range(3):
        project.plan(items=2)
    project.refresh(items=2)
    project.put({"e5": "epsilon"})
    project.refresh(items=2)
    assert project.warehouse.rows("SELECT count(DISTINCT block_id), count(*) FROM blocks") == [(3, 5)]


def test_planning_for_unknown_entities_is_refused(project):
    with pytest.raises(WarehouseError, match="'nobody'"):
        project.plan(ids=["e1", "nobody"])


def test_counting_what_is_missing_writes_nothing(project):
    project.refresh(ids=["e1"])
    blocks = project.warehouse.rows("SELECT count(*) FROM blocks")
    assert refresh.missing_pairs(project.warehouse, "scorer", None) == refresh.MissingPairs(10, 5, 3)
    assert refresh.missing_pairs(project.warehouse, "new", ["e3"]) == refresh.MissingPairs(5, 0, 1)
    assert project.warehouse.rows("SELECT count(*) FROM blocks") == blocks


def test_an_empty_catalog_or_no_entity_plans_nothing(project):
    project.put(None, {})
    assert (project.plan().pairs, project.plan().entities) == (0, 3)
    project.put({}, Project.CATALOG)
    assert (project.plan().pairs, project.plan(ids=[]).entities) == (0, 0)
    assert project.refresh().pairs_scored == 0


@pytest.fixture(scope="module")
def long_lived(tmp_path_factory):
    project = Project(tmp_path_factory.mktemp("planning"))
    yield project
    project.close()


numbers = count()
ENTITY_TEXTS = st.dictionaries(st.sampled_from("abcd"), st.sampled_from(["x", "y", "z", "w"]), max_size=4)
CATALOG_TEXTS = st.dictionaries(st.sampled_from("pqrstu"), st.sampled_from("123456"), max_size=6)
STEPS = st.lists(
    st.tuples(
        ENTITY_TEXTS,
        CATALOG_TEXTS,
        st.integers(0, 1),  # which of two scorers
        st.sampled_from([1, 2, 3, 100]),  # candidates per round
        st.one_of(st.none(), st.integers(0, 3)),  # killed after so many rounds
        st.booleans(),  # limited to half of the entities
    ),
    min_size=1,
    max_size=3,
)


@settings(max_examples=12)
@given(steps=STEPS)
def test_a_plan_covers_exactly_the_missing_pairs_each_once_after_any_edits(long_lived, steps):
    project, example = long_lived, next(numbers)
    stored = {}
    for entity_texts, catalog_texts, which, items, killed_after, limited in steps:
        project.put(entity_texts, catalog_texts)
        name = f"scorer {example}.{which}"
        known = stored.setdefault(name, set())
        ids = sorted(entity_texts)[::2] if limited else None
        wanted = {(entity_texts[e], c) for e in (entity_texts if ids is None else ids) for c in catalog_texts.values()}
        plan = project.plan(ids, items, name)
        assert Counter(planned_pairs(project, plan)) == Counter(wanted - known)
        assert (plan.pairs, plan.pairs_stored) == (len(wanted - known), len(wanted & known))
        score = Scorer(name, fails_at=killed_after)
        try:
            refresh.execute(plan, project.warehouse, project.operations, score, "run")
        except RuntimeError:
            assert len(score.calls) == killed_after
        known |= set(score.pairs)
        assert len(score.pairs) == len(set(score.pairs))
        found = project.warehouse.margins(name, sorted(entity_texts))
        expected = {
            (entity, candidate, margin(entity_text, candidate_text, name))
            for entity, entity_text in entity_texts.items()
            for candidate, candidate_text in catalog_texts.items()
            if (entity_text, candidate_text) in known
        }
        assert set(found.itertuples(index=False, name=None)) == expected and len(found) == len(expected)


# Interruptions


MANY = {f"e{number:03}": f"entity number {number}" for number in range(17)}


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """The content hash of a run that nobody disturbed."""
    project = Project(tmp_path_factory.mktemp("uninterrupted"))
    project.put(MANY)
    project.refresh(NeighbourlyScorer(), items=2)
    value = project.warehouse.content_hash()
    project.close()
    return value


@pytest.mark.parametrize("kills", [[0], [50], [5, 0, 1, 20]])
def test_a_run_killed_while_scoring_resumes_and_equals_an_uninterrupted_one(tmp_path, uninterrupted, kills):
    project = Project(tmp_path)
    project.put(MANY)
    scored = Counter()
    for fails_at in [*kills, None]:
        score = NeighbourlyScorer(fails_at=fails_at)
        try:
            plan = project.plan(items=2)
            refresh.execute(plan, project.warehouse, project.operations, score, "run", batch_rounds=100)
        except RuntimeError:
            project.warehouse.close()
            project = Project(tmp_path)
        scored.update(score.pairs)
    batch = 1 * 2  # 2 % of 51 rounds, two candidates each
    assert project.warehouse.content_hash() == uninterrupted
    assert len(scored) == 85 and sum(scored.values()) - 85 <= batch * len(kills)
    assert project.plan(items=2).rounds == []
    (done,) = project.operations.finished_plans()
    assert (done["rounds_total"], done["pairs"]) == (51, 85) and done["measured_seconds"] > 0
    project.close()


def test_no_batch_is_more_than_a_fiftieth_of_the_plan_nor_more_than_asked_for(project):
    project.put({f"e{number:03}": f"entity {number}" for number in range(200)}, {"c": "only"})
    commits = []
    project.warehouse.commit_scores = lambda rounds, *_: commits.append(len(rounds))
    refresh.execute(project.plan(), project.warehouse, project.operations, Scorer(), "run", batch_rounds=100)
    assert set(commits) == {4} and sum(commits) == 200
    commits.clear()
    plan = project.plan(scorer="other")
    refresh.execute(plan, project.warehouse, project.operations, Scorer("other"), "run", batch_rounds=3)
    assert max(commits) == 4  # rounds of one pair: as many as have the pairs of three rounds of 32
    texts = {f"e{number:03}": f"entity {number}" for number in range(200)}
    project.put(texts, {f"c{number}": f"candidate {number}" for number in range(32)})
    commits.clear()
    plan = project.plan(scorer="third")
    refresh.execute(plan, project.warehouse, project.operations, Scorer("third"), "run", batch_rounds=3)
    assert max(commits) == 3


def test_rounds_that_are_committed_together_and_no_others_share_a_batch(project):
    project.put({f"e{number:03}": f"entity {number}" for number in range(200)}, {"c": "only"})
    seen = []

    def score_batch(wanted):
        seen.append([one.entity_text for one in wanted])
        return enumerate(np.zeros((len(wanted), 1), dtype=np.float32))

    plan = project.plan()
    refresh.execute_rounds(plan, project.warehouse, project.operations, by_batches(score_batch), "run", batch_rounds=8)
    assert {len(batch) for batch in seen} == {4} and len({text for batch in seen for text in batch}) == 200


CHILD = """
import sys, time
from pathlib import Path
from tests.storage import Project
from tests.test_refresh import MANY, NeighbourlyScorer

class SlowScorer(NeighbourlyScorer):
    def __call__(self, entity_text, candidate_texts):
        time.sleep(0.01)
        with open(sys.argv[2], "a") as log:
            log.write("".join(f"{entity_text}|{text}\\n" for text in candidate_texts))
        return super().__call__(entity_text, candidate_texts)

project = Project(Path(sys.argv[1]))
project.operations.start_run(sys.argv[3], "nightly_labeling")
with project.operations.lease("warehouse", sys.argv[3], 30):
    project.put(MANY)
    project.refresh(SlowScorer(), items=2, run=sys.argv[3])
    project.close()
"""


def test_a_process_killed_with_signal_9_resumes_and_equals_an_uninterrupted_one(tmp_path, uninterrupted):
    log = tmp_path / "scored.log"
    log.touch()
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
    command = [sys.executable, "-c", CHILD, str(tmp_path / "project"), str(log)]
    with subprocess.Popen([*command, "first"], env=environment) as child:
        while len(log.read_text().splitlines()) < 30 and child.poll() is None:
            time.sleep(0.001)
        child.send_signal(signal.SIGKILL)
    assert child.returncode == -signal.SIGKILL
    subprocess.run([*command, "second"], env=environment, check=True)
    scored = Counter(log.read_text().splitlines())
    assert len(scored) == 85 and sum(scored.values()) <= 85 + 2
    project = Project(tmp_path / "project")
    assert project.warehouse.content_hash() == uninterrupted
    assert {"first", "second"} <= {run["run_id"] for run in project.operations.dead_runs()}
    by_run = dict(project.warehouse.rows("SELECT run_id, sum(len(margins)) FROM scores GROUP BY 1"))
    assert set(by_run) == {"first", "second"} and sum(by_run.values()) == 85
    assert project.operations.run("second")["pairs_scored"] == by_run["second"]
    project.close()


def test_an_interrupted_plan_goes_on_with_its_own_rounds(project):
    project.put(MANY)
    first = project.plan(items=2)
    with pytest.raises(RuntimeError):
        refresh.execute(first, project.warehouse, project.operations, Scorer(fails_at=10), "run")
    row = project.operations.open_plan("scorer", first.subject_digest)
    assert (row["plan_id"], row["state"], row["rounds_done"]) == (first.plan_id, "open", 10)
    second = project.plan(items=2)
    assert second.subject_digest == first.subject_digest
    score = Scorer()
    refresh.execute(second, project.warehouse, project.operations, score, "run")
    assert len(score.calls) == 41
    assert [plan["plan_id"] for plan in project.operations.finished_plans()] == [first.plan_id]


def test_an_interrupted_plan_is_left_when_the_inputs_have_changed(project):
    first = project.plan(items=2)
    with pytest.raises(RuntimeError):
        refresh.execute(first, project.warehouse, project.operations, Scorer(fails_at=2), "run")
    project.put(Project.ENTITIES | {"e4": "delta"})
    second = project.plan(items=2)
    assert second.subject_digest != first.subject_digest
    score = Scorer()
    refresh.execute(second, project.warehouse, project.operations, score, "run")
    assert len(score.pairs) == 20 - 4 and project.warehouse.coverage().missing == []


def test_a_plan_of_another_warehouse_with_equal_content_is_not_continued(project, tmp_path):
    with pytest.raises(RuntimeError):
        project.refresh(Scorer(fails_at=1), items=2)
    project.warehouse.rows("UPDATE meta SET warehouse_id = 'a new file'")
    score = Scorer()
    project.refresh(score, items=2)
    assert len(score.calls) == 8 and project.warehouse.coverage().missing == []


# Texts and scorers that misbehave


def test_a_round_that_the_prompt_refuses_does_not_stop_the_others(project):
    class Picky(Scorer):
        def __call__(self, entity_text, candidate_texts):
            if entity_text == "beta":
                raise PromptError("beta is too long")
            return super().__call__(entity_text, candidate_texts)

    outcome = project.refresh(Picky(), items=2)
    assert (outcome.pairs_scored, outcome.pairs_refused) == (10, 5)
    rows = project.warehouse.rows("SELECT DISTINCT source, row_id, reason FROM refused_rows")
    assert rows == [("scoring", "e2", "beta is too long")]
    assert {entity for entity, _ in project.warehouse.coverage().missing} == {"e2"}
    assert project.plan().pairs == 5
    assert project.refresh().pairs_scored == 5


def test_a_candidate_that_the_prompt_refuses_takes_no_other_out_of_its_round(project):
    picky = PickyAboutCandidates("candidate 1")
    with pytest.raises(RuntimeError):
        refresh.execute_rounds(
            project.plan(items=3), project.warehouse, project.operations, picky.failing_after(3), "run", batch_rounds=1
        )
    outcome = refresh.execute_rounds(project.plan(items=3), project.warehouse, project.operations, picky, "run")
    assert (outcome.pairs_scored + outcome.pairs_reused, outcome.pairs_refused) == (12, 3)
    rows = project.warehouse.rows("SELECT DISTINCT source, row_id, reason FROM refused_rows")
    reason = "candidate 'c1': it is too long"
    assert sorted(rows) == [("scoring pairs", entity_id, reason) for entity_id in ("e1", "e2", "e3")]
    assert {candidate for _, candidate in project.warehouse.coverage().missing} == {"c1"}
    texts = {**project.ENTITIES, **project.CATALOG}
    for row in project.predictions().itertuples():
        assert row.margin == margin(texts[row.entity_id], texts[row.candidate_id])
    assert project.plan().pairs == 3
    assert project.refresh().pairs_scored == 3 and project.warehouse.coverage().missing == []


def test_a_round_that_comes_back_with_other_candidates_than_it_had_is_not_stored(project):
    def short(wanted):
        for one in wanted:
            yield one.entry, Partly(np.zeros(1, np.float32), [None, "too long"])

    with pytest.raises(WarehouseError, match="3 candidates of a round came back as 2"):
        refresh.execute_rounds(project.plan(items=3), project.warehouse, project.operations, short, "run")
    assert project.warehouse.rows("SELECT * FROM scores") == []


class PickyAboutCandidates:
    """Scores the rounds of a plan but for one candidate text."""

    def __init__(self, refused, fails_after=None):
        self.refused, self.fails_after = refused, fails_after

    def failing_after(self, rounds):
        return PickyAboutCandidates(self.refused, rounds)

    def __call__(self, wanted):
        for number, one in enumerate(wanted):
            if number == self.fails_after:
                raise RuntimeError("killed")
            problems = ["it is too long" if text == self.refused else None for text in one.candidate_texts]
            good = [text for text, problem in zip(one.candidate_texts, problems, strict=True) if problem is None]
            yield one.entry, partly(Scorer()(one.entity_text, good), problems)


@pytest.mark.parametrize("wrong", [np.zeros(3, np.float32), np.full(2, np.nan, np.float32), np.zeros(2), None])
def test_a_scorer_that_answers_nonsense_stops_the_run_and_nothing_of_it_is_stored(project, wrong):
    with pytest.raises(WarehouseError):
        refresh.execute(project.plan(items=2), project.warehouse, project.operations, lambda *_: wrong, "run")
    assert project.warehouse.rows("SELECT * FROM scores") == []


def test_progress_reaches_the_total_and_never_falls(project):
    seen = []
    refresh.execute(project.plan(items=2), project.warehouse, project.operations, Scorer(), "run", progress=seen.append)
    assert [step.done for step in seen] == sorted(step.done for step in seen)
    assert (seen[0].done, seen[-1].done, seen[-1].total, seen[-1].unit) == (0, 15, 15, "pairs")
    (row,) = project.operations.progress_of("run")
    assert (row["stage"], row["done"], row["total"]) == ("scoring", 15, 15)
