"""No look at the certify entities is lost from the ledger, whenever the run is killed, and none counts twice."""

import shutil
from pathlib import Path

import pytest

from tests.pipeline_fixtures import TinyProject, run
from tests.test_pipeline import refusal, threshold_of

LOOK = ["checkpoint", "threshold"]
WALK, ENTERING = "semlabel.thresholds.walk", "semlabel.operations.Operations.complete_certify"


@pytest.fixture
def project(first_run, tmp_path: Path) -> TinyProject:
    """A project that has looked once, asking for a precision of 0.5."""
    return first_run[0].copied(tmp_path / "labeled")


def ledger(project: TinyProject) -> list[tuple]:
    rows = project.operations.file.rows("SELECT * FROM certify_ledger ORDER BY id")
    return [(row["labeler_digest"], row["verdict"]) for row in rows]


def killed_at(where: str, project: TinyProject, instance, monkeypatch) -> None:
    """A run that gets as far as `where`: the walk over certify, or entering what came of it."""

    def dies(*arguments, **options):
        raise RuntimeError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(where, dies)
        assert "killed" in refusal(run(project, instance, select=LOOK), "threshold")


def looked(project: TinyProject, instance) -> tuple[int, float, str]:
    """Which look the threshold was, the confidence it was held to, and its labeler."""
    told = threshold_of(run(project, instance, select=LOOK))
    return told["certify_uses"].value, told["confidence"].value, told["labeler_digest"].value


@pytest.mark.parametrize("where", [WALK, ENTERING])
def test_a_look_that_was_killed_counts_for_the_next_question_and_once_for_its_own(
    project, instance, monkeypatch, where
):
    (first,) = ledger(project)
    made = len(list(project.settings.paths.labelers.glob("?" * 64)))
    project.change(calibration={"min_precision": 0.4})
    killed_at(where, project, instance, monkeypatch)
    # Where the labeler was written, its result can be read: the look has happened.
    assert len(list(project.settings.paths.labelers.glob("?" * 64))) == made + (where == ENTERING)
    assert ledger(project) == [first, ("", None)]
    project.change(calibration={"min_precision": 0.45})
    number, confidence, other = looked(project, instance)
    assert (number, confidence) == (3, pytest.approx(1 - 0.07 * 3 / 64))
    project.change(calibration={"min_precision": 0.4})
    number, confidence, own = looked(project, instance)
    assert (number, confidence) == (2, pytest.approx(1 - 0.07 * 3 / 16))
    verdict = project.operations.latest_gate("held_out_errors", own)["verdict"]
    assert [labeler for labeler, _ in ledger(project)] == [first[0], own, other]
    assert ledger(project)[1] == (own, verdict)


def test_a_question_is_known_again_when_its_labeler_is_gone(project, instance):
    project.change(calibration={"min_precision": 0.4})
    number, confidence, labeler = looked(project, instance)
    shutil.rmtree(project.settings.paths.labelers / labeler)
    assert looked(project, instance) == (number, confidence, labeler) and number == 2
    assert len(ledger(project)) == 2


def test_a_look_that_an_earlier_version_entered_is_known_by_its_labeler(project, instance):
    before = ledger(project)
    project.operations.file.rows("UPDATE certify_ledger SET question_digest = NULL")
    number, _, labeler = looked(project, instance)
    assert (number, ledger(project)) == (1, before) and before[0][0] == labeler
    project.change(calibration={"min_precision": 0.4})
    assert looked(project, instance)[0] == 2
