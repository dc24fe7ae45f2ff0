"""Shortlists through the whole recipe: proven with, measured by a gate that can fail, published as absence."""

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace

import dagster as dg
import pytest

from semlabel.errors import LabelerError
from semlabel.labeler import Labeler
from semlabel.labeler_files import switch_current
from semlabel.manifest import read_manifest
from semlabel.published import current_version
from semlabel.serving.answers import Answers
from semlabel.serving.faults import Fault, Kind
from semlabel.serving.label_request import label_request
from semlabel.serving.limits import Limits
from tests.pipeline_fixtures import CANDIDATES, ENTITIES, TinyProject, failed, published, quick_instance, run, verdicts
from tests.test_pipeline import NIGHT, figures, refusal, threshold_of

SIZE = 6
WORKSPACE = Path(__file__).parent.parent / "workspace.yaml"
HELD_OUT = 14 + 20 + 6


def shortlisted(project: TinyProject, **settings) -> None:
    """Turn shortlists on, with a limit that such texts can keep, and let the table shrink."""
    project.change(shortlist={"size": SIZE, "min_recall": 0.3} | settings, gates={"max_removed_fraction": 1.0})


def promote(project: TinyProject, result) -> str:
    digest = threshold_of(result)["labeler_digest"].value
    project.operations.promote(digest, "the test", "it was proven with shortlists")
    switch_current(project.settings.paths.labelers, digest)
    return digest


def recall_of(project: TinyProject, result) -> dict:
    (row,) = [row for row in project.operations.gates_of_run(result.run_id) if row["gate"] == "shortlist_recall"]
    return row


@pytest.fixture(scope="module")
def proven(first_run, tmp_path_factory) -> tuple[TinyProject, object, str]:
    """A published project, whose threshold was proven again with shortlists; that labeler is promoted."""
    project = first_run[0].copied(tmp_path_factory.mktemp("shortlisted") / "labeled")
    shortlisted(project)
    with quick_instance() as instance:
        result = run(project, instance, select=["checkpoint", "threshold"])
    assert result.success
    return project, result, promote(project, result)


@pytest.fixture(scope="module")
def first_night(proven, tmp_path_factory) -> tuple[TinyProject, dg.ExecuteInProcessResult]:
    """That project after its first night with shortlists."""
    project = proven[0].copied(tmp_path_factory.mktemp("shortlisted") / "night")
    with quick_instance() as instance:
        return project, run(project, instance, NIGHT)


@pytest.fixture
def project(proven, tmp_path: Path) -> TinyProject:
    return proven[0].copied(tmp_path / "labeled")


@pytest.fixture
def published_once(first_night, tmp_path: Path) -> TinyProject:
    assert first_night[1].success
    return first_night[0].copied(tmp_path / "labeled")


def test_a_labeler_that_was_proven_without_shortlists_is_not_used_with_them(first_run, tmp_path, instance):
    project = first_run[0].copied(tmp_path / "labeled")
    before = current_version(project.settings.paths.published)
    shortlisted(project)
    result = run(project, instance, NIGHT)
    told = refusal(result, "predictions")
    assert "was proven with no shortlist, and the settings say shortlists of 6 (tfidf," in told
    assert current_version(project.settings.paths.published) == before


def test_the_threshold_is_proven_for_the_whole_system_and_the_labeler_says_with_which_shortlists(first_run, proven):
    project, result, digest = proven
    manifest = read_manifest(project.settings.paths.labelers / digest)
    assert manifest.shortlist.size == SIZE and manifest.shortlist.encoder == "tfidf"
    before = read_manifest(first_run[0].settings.paths.labelers / first_run[0].operations.promoted()["labeler_digest"])
    assert before.shortlist is None and before.scorer_digest == manifest.scorer_digest and before.digest != digest
    misses = [made.evidence["threshold_result"]["misses"] for made in (before, manifest)]
    assert misses[0]["positives"] == misses[1]["positives"] and misses[0]["fn"] <= misses[1]["fn"]
    rows = [dict(record.data) for record in threshold_of(result)["shortlist_recall_by_size"].records]
    assert [row["size"] for row in rows] == [2, 3, 6, 12, 24] and rows[-1]["recall"] == 1
    assert threshold_of(result)["certify_uses"].value == 2  # another rule is another look at the certify entities


def test_a_night_publishes_shortlisted_pairs_and_says_how_many_it_left_out(first_night, published_once, instance):
    project, result = published_once, first_night[1]
    assert result.success and failed(result) == set() and verdicts(result)["shortlist_recall"]
    version = published(project)
    assert version["rows"] == ENTITIES * SIZE
    told = {name: version["shortlist"][name] for name in ("size", "encoder", "not_shortlisted")}
    assert told == {"size": SIZE, "encoder": "tfidf", "not_shortlisted": ENTITIES * (CANDIDATES - SIZE)}
    assert "shortlist_recall" in {row["gate"] for row in version["verdicts"]}
    (coverage,) = [
        row for row in project.operations.gates_of_run(result.run_id) if row["gate"] == "coverage_is_complete"
    ]
    counts = coverage["evidence"]
    assert counts["expected"] == counts["stored"] + counts["not_shortlisted"] + counts["refused"]
    with project.warehouse() as warehouse:
        held_out = "(SELECT entity_id FROM entities WHERE split IN ('calibrate', 'certify', 'test'))"
        ids = [row[0] for row in warehouse.rows(f"FROM {held_out}")]
        scorer = warehouse.active_labeler()["scorer_digest"]
        assert len(ids) == HELD_OUT and len(warehouse.margins(scorer, ids)) == HELD_OUT * CANDIDATES
        # Labels are the rule's, on every row; what is absent is what stands in no list.
        assert warehouse.rows("SELECT bool_and(label = (margin >= threshold)) FROM predictions") == [(True,)]
    again = run(project, instance, NIGHT)
    assert figures(project, again)[0] == 0 and published(project)["version"] == version["version"]


def test_a_recall_below_its_limit_is_shown_and_holds_the_publication(project, instance):
    before = current_version(project.settings.paths.published)
    project.change(shortlist={"min_recall": 0.99})
    result = run(project, instance, NIGHT)
    row = recall_of(project, result)
    assert row["verdict"] == "fail" and row["limit"] == 0.99 and 0 < row["value"] < 0.99
    of_references, of_labeler = row["evidence"]["claims"]
    assert of_references["entities"] == of_labeler["entities"] == 20
    assert of_references["bound"] < of_references["recall"] == of_references["kept"] / of_references["total"] < 0.99
    assert "raise [shortlist] size" in row["sentence"]
    assert not result.success and current_version(project.settings.paths.published) == before
    alone = run(project, instance, select=["published_predictions"])
    assert "raise [shortlist] size" in refusal(alone, "published_predictions")
    assert current_version(project.settings.paths.published) == before


def test_a_new_candidate_is_looked_at_for_every_entity_and_scored_where_it_is_near(published_once, instance):
    project = published_once
    rows = [*project.catalog(), {"candidate_id": "c8", "text": "keep the plan of the nurse", "group": "g0"}]
    project.write_catalog(rows)
    project.change(gates={"max_candidate_flip_fraction": 1.0})
    result = run(project, instance, NIGHT)
    assert result.success, failed(result)
    version = published(project)
    assert version["rows"] == ENTITIES * SIZE
    assert version["shortlist"]["not_shortlisted"] == ENTITIES * (CANDIDATES + 1 - SIZE)
    scored = figures(project, result)[0]
    with project.warehouse() as warehouse:
        ((near, others),) = warehouse.rows(
            "SELECT count(*) FILTER (WHERE candidate_id = 'c8'), count(*) FILTER (WHERE candidate_id <> 'c8') "
            "FROM predictions JOIN entities USING (entity_id) WHERE split = 'train'"
        )
    assert near + others == (ENTITIES - HELD_OUT) * SIZE and HELD_OUT <= scored <= HELD_OUT + near + others


def test_turned_off_again_every_pair_is_back_and_the_gate_is_gone(published_once, first_run, instance):
    project = published_once
    project.change(shortlist={"size": 0})
    old = first_run[0].operations.promoted()["labeler_digest"]
    project.operations.promote(old, "the test", "back to the labeler without shortlists")
    switch_current(project.settings.paths.labelers, old)
    result = run(project, instance, NIGHT)
    assert result.success and "shortlist_recall" not in verdicts(result)
    version = published(project)
    assert version["rows"] == ENTITIES * CANDIDATES and "shortlist" not in version
    with project.warehouse() as warehouse:
        assert warehouse.rows("SELECT count(*) FROM shortlists") == [(0,)]


def test_online_such_a_labeler_is_refused_in_one_line(proven):
    project, _, digest = proven
    manifest = read_manifest(project.settings.paths.labelers / digest)
    served = SimpleNamespace(labeler=SimpleNamespace(manifest=manifest))
    answers = Answers(SimpleNamespace(needed=lambda digest: served), Limits())
    with (
        answers.room.taken() as held,
        pytest.raises(Fault, match=r"shortlists of 6 leave out.*read the published table") as refusal,
    ):
        asyncio.run(answers.label(label_request({"text": "plan the work"}, Limits()), "", 1.0, held))
    assert refusal.value.kind is Kind.CONFLICT and "\n" not in refusal.value.message


def test_check_and_status_account_for_every_pair(published_once, capfd):
    from semlabel.cli import run_command

    project = published_once
    config = ["--config", str(project.config)]
    capfd.readouterr()
    code = run_command(["check", "--json", "--workspace", str(WORKSPACE), *config])
    document = json.loads(capfd.readouterr().out)
    assert code == 0 and document["estimate"]["pairs_to_score"] == 0
    found = document["shortlists"]
    assert found["pairs"] == ENTITIES * CANDIDATES == found["predicted"] + found["not_shortlisted"]
    assert (found["predicted"], found["scored_to_judge"]) == (ENTITIES * SIZE, HELD_OUT * (CANDIDATES - SIZE))
    run_command(["check", "--workspace", str(WORKSPACE), *config])
    assert "Shortlists: 6 candidates an entity (tfidf): of 480 pairs 360 are predicted, 120" in capfd.readouterr().out
    run_command(["status", *config])
    assert "120 more pairs are outside the shortlists of 6 and count as NO." in capfd.readouterr().out


def test_outside_the_pipeline_such_a_labeler_scores_and_does_not_decide(proven):
    project, _, digest = proven
    labeler = Labeler.load(project.settings.paths.labelers / digest, device="cpu")
    assert len(labeler.score("plan the work", ["keep the plan", "sell goods"])) == 2
    with pytest.raises(LabelerError, match="shortlists of 6 leave out, which only the pipeline knows"):
        labeler.decide("plan the work", ["keep the plan"])
