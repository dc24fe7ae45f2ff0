"""Drift through the whole recipe: a warning that does not block, and nights that add up in the published versions."""

from pathlib import Path

import pytest

from semlabel.drift.state import read_history
from semlabel.warehouse import Warehouse
from tests.pipeline_fixtures import CANDIDATES, ENTITIES, TinyProject, failed, published, run

NIGHT = "nightly_labeling"
PREDICT = ["entities", "catalog", "reference_labels", "predictions"]


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


def drift(project: TinyProject, result) -> dict[str, dict]:
    rows = project.operations.gates_of_run(result.run_id)
    return {row["gate"]: row for row in rows if row["gate"] in ("label_rate_drift", "data_drift")}


def test_a_verdict_is_not_shown_again_when_what_it_was_compared_with_was_approved_since(project, instance):
    rows = project.entities()
    rows[1]["text"] += " and the records of the office"
    project.write_entities(rows)
    assert run(project, instance, NIGHT).success
    with project.warehouse() as warehouse:
        earlier = warehouse.predictions_digest()
    project.write_catalog(
        row | {"text": "keep good machines"} if row["candidate_id"] == "c4" else row for row in project.catalog()
    )
    red = drift(project, run(project, instance, select=PREDICT))["label_rate_drift"]
    assert (red["verdict"], red["evidence"]["nights"]) == ("fail", 2)
    project.operations.approve(earlier, "nina")
    for row in drift(project, run(project, instance, select=PREDICT)).values():
        assert row["subject_digest"] == red["subject_digest"] != earlier
        assert (row["verdict"], row["evidence"]["nights"]) == ("pass", 0)


def test_a_verdict_is_not_shown_again_under_another_rounding_or_other_training_pairs(project, instance):
    def shown_again():
        rows = drift(project, run(project, instance, select=["predictions"]))
        return {gate for gate, row in rows.items() if "replayed_from" in row["evidence"]}

    assert shown_again() == set()  # beside the version that the first run published they are judged for the first time
    assert shown_again() == {"label_rate_drift", "data_drift"}
    project.change(gates={"parity_tolerance_fp32": 0.002})
    assert shown_again() == {"label_rate_drift"}
    with Warehouse.open(project.settings.paths.warehouse) as warehouse:
        warehouse.replace_training_pairs(warehouse.training_pairs()[1:], "another run")
    assert shown_again() == set()
