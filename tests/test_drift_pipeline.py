"""Drift through the whole recipe: a warning that does not block, and nights that add up in the published versions."""

from pathlib import Path

import pytest

from semlabel.drift.state import read_history
from tests.pipeline_fixtures import CANDIDATES, ENTITIES, TinyProject, failed, published, run

NIGHT = "nightly_labeling"


@pytest.fixture
def project(first_run, tmp_path: Path) -> TinyProject:
    """A copy of the project after its first run, to be broken."""
    return first_run[0].copied(tmp_path / "labeled")


def test_a_drifting_label_rate_warns_and_does_not_block(project, instance):
    project.change(gates={"max_candidate_flip_fraction": 1.0})
    project.write_catalog(
        row | {"text": "keep good machines"} if row["candidate_id"] == "c4" else row for row in project.catalog()
    )
    night = run(project, instance, NIGHT)
    assert night.success
    assert "label_rate_drift" in failed(night) <= {"label_rate_drift", "data_drift"}
    (row,) = [row for row in project.operations.gates_of_run(night.run_id) if row["gate"] == "label_rate_drift"]
    assert row["evidence"]["findings"][0]["name"] in ("c4", "all candidates")
    assert set(row["evidence"]["flips_by_reason"]) == {"candidate_text"}
    assert published(project)["rows"] == ENTITIES * CANDIDATES
    assert "label_rate_drift" in {row["gate"] for row in project.operations.undelivered_alerts("somebody")}


def test_nights_add_up_in_the_versions_and_begin_anew_with_what_was_approved(project, instance):
    def carried():
        return read_history(Path(published(project)["path"]))

    first = carried()
    assert (first.count, first.since, len(first.candidates)) == (0, None, CANDIDATES)
    for night in (1, 2):
        rows = project.entities()
        rows[night]["text"] += " and the records of the office"
        project.write_entities(rows)
        assert run(project, instance, NIGHT).success
        assert (carried().count, len(carried().nights), carried().first_version) == (night, night, first.first_version)
    rows = project.entities()
    rows[3]["text"] += " and the records of the office"
    project.write_entities(rows)
    assert run(project, instance, select=["entities", "catalog", "reference_labels", "predictions"]).success
    with project.warehouse() as warehouse:
        project.operations.approve(warehouse.predictions_digest(), "nina")
    assert run(project, instance, NIGHT).success
    assert carried().count == 0


def test_what_is_approved_after_it_was_published_ends_the_comparison_once(project, instance):
    counts = []
    for night in range(1, 4):
        rows = project.entities()
        rows[night]["text"] += " and the records of the office"
        project.write_entities(rows)
        assert run(project, instance, NIGHT).success
        counts.append(read_history(Path(published(project)["path"])).count)
        if night == 1:
            with project.warehouse() as warehouse:
                project.operations.approve(warehouse.predictions_digest(), "nina")
    assert counts == [1, 0, 1]
