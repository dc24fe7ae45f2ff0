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


def test_nights_add_up_in_the_versions_and_begin_anew_once_with_what_was_approved(project, instance):
    def edit(number):
        rows = project.entities()
        rows[number]["text"] += " and the records of the office"
        project.write_entities(rows)

    def carried():
        return read_history(Path(published(project)["path"]))

    def approve():
        with project.warehouse() as warehouse:
            project.operations.approve(warehouse.predictions_digest(), "nina")

    first = carried()
    assert (first.count, first.since, len(first.candidates)) == (0, None, CANDIDATES)
    for night in (1, 2):
        edit(night)
        assert run(project, instance, NIGHT).success
        assert (carried().count, len(carried().nights), carried().first_version) == (night, night, first.first_version)
    # Approved after it was published: the next version begins anew, and that once.
    approve()
    counts = []
    for night in (3, 4):
        edit(night)
        assert run(project, instance, NIGHT).success
        counts.append(carried().count)
    assert counts == [0, 1]
    # Approved before it is published: that very version begins anew.
    edit(5)
    assert run(project, instance, select=["entities", "catalog", "reference_labels", "predictions"]).success
    approve()
    assert run(project, instance, NIGHT).success
    assert carried().count == 0
