"""`volume_change` through the whole recipe: what would be published beside exactly what that would replace."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from assets.changes import against_publication
from assets.checks import CHECKS
from semlabel.published import current_publication, current_version, rollback
from semlabel.warehouse import Warehouse
from tests.pipeline_fixtures import CANDIDATES, ENTITIES, TinyProject, published, run
from tests.test_pipeline import NIGHT, PUBLISH, edit_warehouse, figures, refusal

HELD_OUT = 14 + 20 + 6
ROWS = ENTITIES * CANDIDATES
NO_VERDICT = "volume_change has no verdict for the current content"


@pytest.fixture
def project(first_run, tmp_path: Path) -> TinyProject:
    """A copy of the project after its first run, to be broken."""
    return first_run[0].copied(tmp_path / "labeled")


def edit_candidates(project: TinyProject, count: int) -> None:
    """Other texts for the first `count` candidates: the labeler is not certified with these."""
    project.write_catalog(
        row | {"text": row["text"] + " again"} if number < count else row
        for number, row in enumerate(project.catalog())
    )


def edit_entity(project: TinyProject, number: int) -> None:
    rows = project.entities()
    rows[number]["text"] += " and the records of the office"
    project.write_entities(rows)


def volume(project: TinyProject, result) -> dict[str, Any]:
    (row,) = [row for row in project.operations.gates_of_run(result.run_id) if row["gate"] == "volume_change"]
    return row


def current(project: TinyProject) -> str | None:
    return current_version(project.settings.paths.published)


# --- rows that are withheld


def test_rows_that_would_be_withheld_are_rows_that_vanish(project, instance):
    before = current(project)
    project.change(publish={"uncertified_candidates": "withhold"})
    edit_candidates(project, 4)
    row = volume(project, run(project, instance, NIGHT))
    assert (row["verdict"], row["value"]) == ("fail", 0.5)
    assert f"50.0% of the {ROWS} published rows would vanish ({ROWS // 2} predictions are withheld)" in row["sentence"]
    told = row["evidence"]
    assert (told["rows"], told["withheld"], told["previous_rows"]) == (ROWS // 2, ROWS // 2, ROWS)
    assert not run(project, instance, select=PUBLISH).success and current(project) == before
    project.operations.approve(row["subject_digest"], "nina")
    assert run(project, instance, NIGHT).success
    assert (published(project)["rows"], published(project)["uncertified_rows"]) == (ROWS // 2, 0)


def test_a_version_without_a_row_is_never_published_whatever_was_approved_and_is_no_first_one(project, instance):
    before = current(project)
    project.change(publish={"uncertified_candidates": "withhold"})
    edit_candidates(project, CANDIDATES)
    for _ in range(2):
        row = volume(project, run(project, instance, NIGHT))
        assert (row["verdict"], row["value"]) == ("fail", 0)
        assert row["sentence"].startswith(f"All {ROWS} predictions are of candidates the labeler is not certified with")
        assert current(project) == before
        project.operations.approve(row["subject_digest"], "nina")


def test_neither_a_verdict_nor_an_approval_outlives_the_setting_that_it_was_given_under(project, instance):
    project.change(gates={"max_candidate_flip_fraction": 1.0})
    edit_candidates(project, 4)
    assert run(project, instance, select=["entities", "catalog", "reference_labels", "predictions"]).success
    with project.warehouse() as warehouse:
        subject = warehouse.predictions_digest()
    project.operations.approve(subject, "nina")
    assert run(project, instance, NIGHT).success
    version = published(project)
    assert (version["rows"], version["uncertified_rows"]) == (ROWS, ROWS // 2)
    project.change(publish={"uncertified_candidates": "withhold"})
    assert NO_VERDICT in refusal(run(project, instance, select=PUBLISH), "published_predictions")
    row = volume(project, run(project, instance, NIGHT))
    assert (row["verdict"], row["value"], row["subject_digest"]) == ("fail", 0.5, subject)
    assert current(project) == version["version"]


def test_an_approval_counts_under_the_setting_that_the_change_was_judged_under(project, instance, command):
    def approve(row):
        assert command("approve", row["subject_digest"], "--config", str(project.config))[0] == 0

    project.change(gates={"max_candidate_flip_fraction": 1.0})
    edit_candidates(project, 4)
    project.write_entities(project.entities()[:50])
    row = volume(project, run(project, instance, NIGHT))
    assert (row["verdict"], row["value"]) == ("fail", pytest.approx(10 / 60))
    project.change(publish={"uncertified_candidates": "withhold"})
    approve(row)  # of what the message said, whatever the settings say by now
    withheld = volume(project, run(project, instance, NIGHT))
    assert (withheld["verdict"], withheld["value"]) == ("fail", pytest.approx(1 - 50 / 60 / 2))
    assert withheld["subject_digest"] == row["subject_digest"]
    approve(withheld)
    assert run(project, instance, NIGHT).success
    assert published(project)["rows"] == 50 * CANDIDATES // 2


@pytest.mark.parametrize(("policy", "counts"), [("publish", (ROWS, 0)), ("withhold", (ROWS // 2, ROWS // 2))])
def test_predictions_are_counted_once_for_what_is_published_and_withheld(project, monkeypatch, policy, counts):
    project.change(publish={"uncertified_candidates": policy})
    edit_warehouse(project, lambda warehouse: warehouse.rows("UPDATE catalog SET certified = candidate_id < 'c4'"))
    count, counted = Warehouse.predictions_count, []
    monkeypatch.setattr(Warehouse, "predictions_count", lambda self: counted.append(count(self)) or counted[-1])
    with project.warehouse() as warehouse:
        change = against_publication(SimpleNamespace(settings=project.settings), warehouse)
    assert ((change.rows, change.withheld), counted) == (counts, [ROWS])


# --- what is replaced


@pytest.mark.parametrize("how", ["by setting", "by limit"])
def test_what_passed_as_a_preview_is_compared_before_it_is_published(project, instance, how):
    before, tags = current(project), {}
    if how == "by setting":
        project.write_entities(project.entities()[:HELD_OUT])
        project.change(publish={"preview": True})
    else:
        project.change(scoring={"entities": "held_out"})
        tags = {"semlabel/entities_limit": str(HELD_OUT)}
    preview = run(project, instance, NIGHT, tags=tags)
    assert preview.success and volume(project, preview)["sentence"].startswith("This is the first publication")
    assert current_publication(project.settings.paths.preview)["rows"] == HELD_OUT * CANDIDATES
    if how == "by setting":
        project.change(publish={"preview": False})
        assert NO_VERDICT in refusal(run(project, instance, select=PUBLISH), "published_predictions")
    night = run(project, instance, NIGHT)
    row = volume(project, night)
    assert row["subject_digest"] == volume(project, preview)["subject_digest"]
    assert (row["verdict"], row["value"]) == ("fail", pytest.approx(1 / 3))
    assert not night.success and current(project) == before


def test_a_verdict_beside_a_version_that_was_rolled_back_is_given_anew(project, instance):
    first = current(project)
    edit_entity(project, 0)
    assert run(project, instance, NIGHT).success and run(project, instance, NIGHT).success
    second = current(project)
    rollback(project.settings.paths.published, first, project.operations)
    project.operations.set_publishing_paused(False)
    assert NO_VERDICT in refusal(run(project, instance, select=PUBLISH), "published_predictions")
    night = run(project, instance, NIGHT)
    assert night.success and volume(project, night)["evidence"]["replaces"] == first
    assert current(project) > second > first


def test_what_is_published_already_is_confirmed_alone(project, instance):
    before = published(project)
    assert run(project, instance, select=PUBLISH).success
    after = published(project)
    assert after["version"] == before["version"] and after["checked_at"] > before["checked_at"]


# --- what is compared


def test_what_is_judged_and_what_is_found_of_it_are_of_one_moment(project, instance):
    check, held = CHECKS["volume_change"], []
    genuine = {"subject": check.subject, "evidence": check.evidence}

    def noting(part):
        def noted(step):
            # While the lease is not let go nobody else writes.
            held.append(project.operations.file.first("SELECT token FROM leases WHERE name = 'warehouse'"))
            return part(step)

        return noted

    for name, part in genuine.items():
        object.__setattr__(check, name, noting(part))
    try:
        assert run(project, instance, checks={"volume_change": "predictions"}).success
    finally:
        for name, part in genuine.items():
            object.__setattr__(check, name, part)
    of_subject, of_evidence = held
    assert of_subject is not None and of_subject == of_evidence


# --- margins that came again


def test_margins_that_came_again_are_judged_again_and_published(project, instance):
    before = current(project)
    lost = "(SELECT min(text_key) FROM entities WHERE split = 'train')"
    edit_warehouse(project, lambda warehouse: warehouse.rows(f"DELETE FROM scores WHERE text_key = {lost}"))
    night = run(project, instance, NIGHT)
    assert night.success and figures(project, night)[0] == CANDIDATES
    rows = {row["gate"]: row["evidence"] for row in project.operations.gates_of_run(night.run_id)}
    replayed = {gate for gate in rows if "replayed_from" in rows[gate]}
    assert "held_out_quality" in replayed and not replayed & {"predictions_contract", "coverage_is_complete"}
    assert current(project) > before and published(project)["rows"] == ROWS
