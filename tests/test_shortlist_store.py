"""Shortlists in the warehouse: exactly their missing pairs are planned, no others are shown, nothing is forgotten."""

from collections import Counter
from datetime import UTC, datetime, timedelta

import numpy as np
import pandas as pd
import pytest

from semlabel import refresh, shortlist_plan, shortlist_store
from semlabel.drift import night
from semlabel.drift.sums import Sums
from semlabel.erase_warehouse import erase_entity
from semlabel.publish import publish, snapshot_check
from semlabel.published import read_manifest
from semlabel.retention import purge
from semlabel.shortlist import Rule
from semlabel.warehouse import Warehouse
from semlabel.warehouse_check import check_warehouse
from tests.storage import Project, Scorer
from tests.test_shortlist import Letters

ENTITIES = {"e1": "aaa", "e2": "bbb", "e3": "cc a"}
CATALOG = {"c0": "a", "c1": "b", "c2": "c", "c3": "ab", "c4": "bc"}
# By hand: "bbb" is as near to "ab" as to "bc", and "ab" comes first; "cc a" is nearest to "c", then to "bc".
LISTS = {"e1": {"c0", "c3"}, "e2": {"c1", "c3"}, "e3": {"c2", "c4"}}
MANIFEST = {"digest": "labeler", "scorer_digest": "scorer", "threshold": 0.5}


class Settings:
    keep, uncertified_candidates = 7, "publish"


@pytest.fixture
def project(tmp_path):
    project = Project(tmp_path)
    project.put(ENTITIES, CATALOG)
    yield project
    project.close()


def rule(size: int = 2) -> Rule:
    return Rule(size, Letters.name, Letters.digest)


def keep(project: Project, size: int = 2, ids=None, encoder=Letters) -> int:
    return shortlist_store.keep(project.warehouse, rule(size), encoder, ids)


def refreshed(project: Project, score=None, ids=None, in_full=(), items: int = 100, run: str = "run"):
    score = score or Scorer()
    plan = shortlist_plan.plan(project.warehouse, score.scorer, ids, in_full, items)
    return refresh.execute(plan, project.warehouse, project.operations, score, run), score


def shown(project: Project) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for entity_id, candidate_id in project.warehouse.rows("SELECT entity_id, candidate_id FROM predictions"):
        found.setdefault(entity_id, set()).add(candidate_id)
    return found


def no_encoder():
    raise AssertionError("nothing was missing, so nothing is to be ranked")


def version(project: Project, folder):
    return publish(project.warehouse, project.operations, Settings(), folder, MANIFEST, [], "run", recheck=lambda: None)


def changes(done) -> list[tuple]:
    import pyarrow.parquet as pq

    rows = pq.read_table(done.path / "changes.parquet").to_pylist()
    return [(row["entity_id"], row["candidate_id"], row["causes"]) for row in rows]


# Off


def test_without_shortlists_plan_predictions_and_digests_are_those_of_before_there_were_any(project):
    project.refresh()
    before = (project.warehouse.predictions_digest(), project.warehouse.content_hash(), project.warehouse.coverage())
    views = project.warehouse.rows("SELECT view_name, sql FROM duckdb_views() WHERE NOT internal ORDER BY 1")
    shortlist_store.drop(project.warehouse)
    assert views == project.warehouse.rows("SELECT view_name, sql FROM duckdb_views() WHERE NOT internal ORDER BY 1")
    assert "shortlists" not in dict(views)["predictions"] and before[2].not_shortlisted == 0
    keep(project)
    assert project.warehouse.predictions_digest() != before[0] and project.warehouse.content_hash() != before[1]
    shortlist_store.drop(project.warehouse)
    after = (project.warehouse.predictions_digest(), project.warehouse.content_hash(), project.warehouse.coverage())
    assert after == before and project.plan().pairs == 0
    assert views == project.warehouse.rows("SELECT view_name, sql FROM duckdb_views() WHERE NOT internal ORDER BY 1")


def test_a_list_as_long_as_the_catalog_plans_the_rounds_that_no_shortlist_plans(project):
    keep(project, size=5)
    listed = shortlist_plan.plan(project.warehouse, "scorer", None, [], 2)
    plain = project.plan(items=2)
    assert (listed.rounds, listed.pairs, listed.pairs_stored) == (plain.rounds, plain.pairs, plain.pairs_stored)


# What is planned and shown


def test_only_shortlisted_pairs_are_scored_and_shown_and_the_second_time_none(project):
    assert keep(project) == 3
    outcome, score = refreshed(project)
    assert Counter(score.pairs) == Counter((ENTITIES[e], CATALOG[c]) for e, listed in LISTS.items() for c in listed)
    assert shown(project) == LISTS
    assert (outcome.pairs_scored, outcome.pairs_reused) == (6, 0)
    assert keep(project, encoder=no_encoder) == 0
    outcome, again = refreshed(project)
    assert again.calls == [] and (outcome.pairs_scored, outcome.pairs_reused) == (0, 6)
    check_warehouse(project.warehouse)


def test_every_pair_of_the_scope_is_scored_left_out_or_missing(project):
    keep(project)
    refreshed(project, ids=["e1", "e2"])
    coverage = project.warehouse.coverage()
    assert (coverage.expected, coverage.stored, coverage.not_shortlisted) == (15, 4, 9)
    assert set(coverage.missing) == {("e3", candidate) for candidate in LISTS["e3"]}
    refreshed(project)
    coverage = project.warehouse.coverage()
    assert coverage.stored + coverage.not_shortlisted == coverage.expected and coverage.missing == []


def test_an_entity_without_a_list_is_missing_and_not_left_out(project):
    keep(project, ids=["e1"])
    refreshed(project)
    coverage = project.warehouse.coverage()
    assert (coverage.stored, coverage.not_shortlisted) == (2, 3)
    assert set(coverage.missing) == {(entity, candidate) for entity in ("e2", "e3") for candidate in CATALOG}


def test_judged_entities_are_scored_in_full_and_shown_like_any_other(project):
    keep(project)
    outcome, score = refreshed(project, in_full=["e2"])
    assert outcome.pairs_scored == 2 + 5 + 2 and {c for e, c in score.pairs if e == "bbb"} == set(CATALOG.values())
    assert shown(project) == LISTS
    assert len(project.warehouse.margins("scorer", ["e2"])) == 5


def test_a_text_that_two_entities_have_is_planned_once_and_in_full_for_the_judged_one(project):
    project.put(ENTITIES | {"e4": "bbb"})
    keep(project)
    _, score = refreshed(project, in_full=["e4"])
    assert Counter(score.pairs)[("bbb", "a")] == 1 and max(Counter(score.pairs).values()) == 1
    assert shown(project) == LISTS | {"e4": LISTS["e2"]}


# What changes


def test_an_edited_entity_gets_a_new_list_and_the_others_keep_theirs(project):
    keep(project)
    refreshed(project)
    project.put(ENTITIES | {"e1": "ccc"})
    assert keep(project) == 1
    _, score = refreshed(project)
    assert set(score.pairs) == {("ccc", "c"), ("ccc", "bc")}
    assert shown(project) == LISTS | {"e1": {"c2", "c4"}}


def test_a_changed_catalog_moves_lists_and_what_leaves_one_is_published_with_its_cause(project, tmp_path):
    keep(project)
    refreshed(project)
    first = version(project, tmp_path / "published")
    told = read_manifest(first.path)
    assert told["rows"] == 6 and told["shortlist"]["not_shortlisted"] == 9 and told["shortlist"]["size"] == 2
    assert told["shortlist"]["digest"] == rule().digest
    project.put(None, CATALOG | {"c5": "aa"})
    assert not project.warehouse.shortlists_are_current()
    assert project.warehouse.coverage().not_shortlisted == 0  # nobody has looked at c5 yet: it is missing
    assert keep(project) == 3
    _, score = refreshed(project)
    assert score.pairs == [("aaa", "aa")]
    assert shown(project) == LISTS | {"e1": {"c0", "c5"}}
    second = version(project, tmp_path / "published")
    assert changes(second) == [("e1", "c3", ["removed", "shortlist"]), ("e1", "c5", ["added"])]
    project.put(None, CATALOG)
    keep(project)
    _, score = refreshed(project)
    assert score.calls == []  # the margin of what had left is still there
    third = version(project, tmp_path / "published")
    assert changes(third) == [("e1", "c3", ["added", "shortlist"]), ("e1", "c5", ["removed"])]
    assert snapshot_check(third.path, project.warehouse)[0] == snapshot_check(third.path, project.warehouse)[1]


def test_another_rule_makes_every_list_anew_and_scores_only_what_it_adds(project):
    keep(project)
    refreshed(project)
    assert keep(project, size=3) == 3
    outcome, _ = refreshed(project)
    assert (outcome.pairs_scored, outcome.pairs_reused) == (3, 6)


def test_a_catalog_text_under_two_ids_is_one_candidate_of_a_list(project):
    project.put(None, CATALOG | {"c9": "a"})
    keep(project)
    refreshed(project)
    assert shown(project) == LISTS | {"e1": {"c0", "c3", "c9"}}
    assert project.warehouse.coverage().missing == []


def test_a_refresh_that_was_killed_goes_on_with_its_own_plan_and_its_own_rounds(project):
    project.put({f"e{n}": "abc"[n % 3] * (n + 1) for n in range(40)}, CATALOG)
    keep(project)
    planned = shortlist_plan.plan(project.warehouse, "scorer", None, [], 100)
    with pytest.raises(RuntimeError, match="killed"):
        refreshed(project, Scorer(fails_at=17))
    (opened,) = project.operations.file.rows("SELECT plan_id, state FROM plans")
    outcome, score = refreshed(project)
    plans = project.operations.file.rows("SELECT plan_id, state FROM plans")
    assert plans == [{"plan_id": opened["plan_id"], "state": "done"}]
    assert outcome.pairs_scored + outcome.pairs_reused == planned.pairs == 80
    assert len(score.calls) < 40 and project.warehouse.coverage().missing == []


def test_lists_that_a_kill_left_unmade_are_made_by_the_next_run(project, monkeypatch):
    monkeypatch.setattr(shortlist_store, "_BATCH", 1)
    told = []

    def dies(progress):
        told.append(progress)
        if progress.done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        shortlist_store.keep(project.warehouse, rule(), Letters, None, dies)
    assert project.warehouse.rows("SELECT count(*) FROM shortlists") == [(2,)]
    assert keep(project) == 1
    refreshed(project)
    assert shown(project) == LISTS


def test_a_warehouse_that_is_opened_again_still_shows_shortlisted_pairs_only(project, tmp_path):
    keep(project)
    project.refresh()
    project.close()
    with Warehouse.open(tmp_path / "warehouse.duckdb") as again:
        assert again.predictions_count() == 6 and again.shortlist()["encoder"] == "letters"
    with Warehouse.open(tmp_path / "warehouse.duckdb", read_only=True) as reader:
        assert reader.rows("SELECT count(*) FROM predictions") == [(6,)]


def test_a_reference_that_no_shortlist_holds_disagrees_with_the_table_instead_of_leaving_the_count(project):
    frame = pd.DataFrame({"entity_id": list(ENTITIES), "text": list(ENTITIES.values())}, dtype=str)
    project.warehouse.replace_entities(frame.assign(split="calibrate"), "run")
    rows = [("e1", "c0", True), ("e1", "c1", True), ("e2", "c4", False)]
    references = pd.DataFrame(rows, columns=["entity_id", "candidate_id", "label"])
    project.warehouse.replace_references(references, "run")
    keep(project)
    refreshed(project)
    ((said,),) = project.warehouse.rows("SELECT label FROM predictions WHERE entity_id = 'e1' AND candidate_id = 'c0'")
    found = night.agreement_at_first(project.warehouse)
    assert found["agreement with references of YES"] == Sums.of([int(said)], [2])
    assert found["agreement with references of NO"] == Sums.of([1], [1])


# What goes


def test_erasing_an_entity_takes_its_list_and_a_purge_those_of_texts_nobody_has(project):
    keep(project)
    refreshed(project)
    erase_entity(project.warehouse, "e1")
    assert project.warehouse.rows("SELECT count(*) FROM shortlists") == [(2,)]
    project.put({"e2": "bbb"})
    purge(project.warehouse, timedelta(days=30), datetime.now(UTC))
    assert project.warehouse.rows("SELECT count(*) FROM shortlists") == [(1,)]
    assert len(project.warehouse.rows("SELECT * FROM scores")) == 2  # margins are kept for the retention time


def test_a_purge_keeps_the_margins_of_pairs_that_left_a_shortlist(project):
    keep(project, size=5)
    refreshed(project)
    keep(project)
    purge(project.warehouse, timedelta(0), datetime.now(UTC) + timedelta(days=1))
    assert int(np.sum([len(row[0]) for row in project.warehouse.rows("SELECT margins FROM scores")])) == 15
    assert shown(project) == LISTS


def test_another_list_of_pairs_that_are_scored_already_is_another_digest(project):
    keep(project)
    refreshed(project, in_full=["e1"])
    before, rows = project.warehouse.predictions_digest(), project.warehouse.predictions_count()
    other = "(SELECT list(text_key ORDER BY position) FROM catalog WHERE candidate_id IN ('c1', 'c2'))"
    of_e1 = "(SELECT text_key FROM entities WHERE entity_id = 'e1')"
    project.warehouse.rows(f"UPDATE shortlists SET candidate_text_keys = {other} WHERE text_key = {of_e1}")
    assert shown(project) == LISTS | {"e1": {"c1", "c2"}} and project.warehouse.predictions_count() == rows
    assert project.warehouse.predictions_digest() != before
