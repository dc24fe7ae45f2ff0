"""A project whose nights a server scores: what no server can have is scored here, and the server is asked again."""

import pytest

from semlabel.manifest import read_manifest
from semlabel.serving.pointer import Pointer
from tests.pipeline_fixtures import CANDIDATES, published, run
from tests.serving_fixtures import running, until_ready

NOBODY = "http://127.0.0.1:9"


@pytest.fixture
def project(first_run, tmp_path):
    return first_run[0].copied(tmp_path / "labeled")


def through(project, url):
    project.change(scoring={"backend": "http", "http_url": url})


def evidence(project, result):
    return {row["gate"]: row["evidence"] for row in project.operations.gates_of_run(result.run_id)}


def test_a_checkpoint_that_no_server_can_have_is_trained_and_judged_here(project, instance):
    before = published(project)["labeler_digest"]
    through(project, NOBODY)
    project.change(training={"seed": 8}, calibration={"min_precision": 0.4})
    result = run(project, instance, "train_labeler")
    assert result.success
    (made,) = [path for path in project.settings.paths.labelers.glob("?" * 64) if path.name != before]
    manifest = read_manifest(made)
    assert manifest.scorer_digest != read_manifest(made.with_name(before)).scorer_digest
    told = evidence(project, result)
    for gate in ("held_out_quality", "mis_matches_single_item", "order_invariance", "held_out_errors"):
        assert (told[gate]["computed_in"], told[gate]["scorer_digest"]) == ("fp32", manifest.scorer_digest), gate


def test_the_rounds_of_the_predictions_go_to_the_server_which_is_asked_again_before_they_count(
    project, instance, tmp_path
):
    paths = project.settings.paths
    with running(Pointer(labelers=paths.labelers, published=paths.published), tmp_path) as server:
        until_ready(server)
        url = f"http://127.0.0.1:{server.http}"
        through(project, url)
        rows = project.entities()
        rows[0]["text"] += " and more plans"
        project.write_entities(rows)
        night = run(project, instance, "nightly_labeling")
    assert night.success
    row = project.operations.run(night.run_id)
    assert (row["pairs_scored"], row["model_loads"]) == (CANDIDATES, 0)
    asked = evidence(project, night)["one_labeler_everywhere"]["endpoints"][-1]
    assert (asked["name"], asked["digest"]) == (f"{url}/v1/score", published(project)["labeler_digest"])


def test_a_server_that_cannot_be_reached_ends_the_night_before_the_first_round(project, instance, monkeypatch):
    monkeypatch.setattr("semlabel.remote_scorer._ATTEMPTS", 1)
    through(project, NOBODY)
    assert run(project, instance, "nightly_labeling").success  # a warning: there was nothing to score
    rows = project.entities()
    rows[0]["text"] += " and more plans"
    project.write_entities(rows)
    before = published(project)
    night = run(project, instance, "nightly_labeling")
    assert not night.success and published(project) == before
    assert project.operations.run(night.run_id)["pairs_scored"] == 0
