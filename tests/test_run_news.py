"""A run that fails without a verdict of a gate is told once, and its end too; nothing is told twice or for nobody."""

from datetime import timedelta

import pytest

from semlabel import outbox, run_news
from semlabel.gates import GateResult
from semlabel.operations import Operations
from semlabel.operations_schema import now_utc
from semlabel.run_news import Ending

REASON = "entities: entities.csv: no such file"


@pytest.fixture
def operations(tmp_path):
    return Operations(tmp_path / "ops.sqlite")


def end(operations, run_id, status, job="nightly_labeling", whole=True, reason=REASON, blocked=False, start=True):
    if start:
        operations.start_run(run_id, job)
    operations.finish_run(run_id, status, ending=Ending(job, whole, reason, blocked))


def told(operations):
    """Job, kind and run of every row that is about a run."""
    rows = operations.file.rows("SELECT asset, kind, run_id FROM outbox WHERE gate = 'run' ORDER BY id")
    return [(row["asset"], row["kind"], row["run_id"]) for row in rows]


def open_jobs(operations):
    return [row["asset"] for row in outbox.open_incidents(operations.file) if row["gate"] == "run"]


def red(operations, run_id, severity="ERROR", verdict="fail"):
    result = GateResult("volume_change", "predictions", severity, verdict, 0.2, 0.05, "20 % would vanish.")
    operations.record_gate(run_id, result, None, "s", "1")


def test_a_failure_is_told_with_its_reason_and_closed_by_the_next_good_run(operations):
    end(operations, "r1", "FAILURE")
    (incident,) = outbox.open_incidents(operations.file)
    shown = {name: incident[name] for name in ("asset", "gate", "severity", "verdict", "message", "run_id")}
    assert shown == {
        "asset": "nightly_labeling",
        "gate": "run",
        "severity": "ERROR",
        "verdict": "fail",
        "message": f"nightly_labeling failed: {REASON}",
        "run_id": "r1",
    }
    end(operations, "r2", "SUCCESS")
    assert told(operations) == [("nightly_labeling", "failed", "r1"), ("nightly_labeling", "recovered", "r2")]
    assert outbox.open_incidents(operations.file) == []


def test_a_run_that_goes_well_tells_nothing_by_itself(operations):
    end(operations, "r1", "SUCCESS")
    assert told(operations) == []


def test_the_same_end_noted_twice_and_the_next_failures_are_told_once(operations):
    end(operations, "r1", "FAILURE")
    end(operations, "r1", "FAILURE", start=False, reason="as the daemon found it")
    for run_id in ("r2", "r3"):
        end(operations, run_id, "FAILURE", reason="something else")
    assert told(operations) == [("nightly_labeling", "failed", "r1")]


def test_an_end_noted_twice_does_not_open_again_what_a_later_run_has_closed(operations):
    end(operations, "r1", "FAILURE")
    end(operations, "r2", "SUCCESS")
    end(operations, "r1", "FAILURE", start=False)
    assert open_jobs(operations) == [] and len(told(operations)) == 2


def test_a_failure_that_is_found_after_a_later_run_went_well_says_nothing(operations):
    operations.start_run("killed", "nightly_labeling")
    began = operations.run("killed")["started_at"]
    end(operations, "r2", "SUCCESS")
    operations.mark_run_dead("killed", Ending("nightly_labeling", True, "its process died", at=began))
    assert told(operations) == []


def test_a_success_that_is_noted_after_a_later_run_failed_closes_nothing(operations):
    operations.start_run("r1", "nightly_labeling")
    ended = now_utc()
    end(operations, "r2", "FAILURE")
    operations.finish_run("r1", "SUCCESS", ending=Ending("nightly_labeling", True, at=ended))
    assert operations.run("r1")["finished_at"] == ended
    assert open_jobs(operations) == ["nightly_labeling"]


def test_what_failed_because_another_run_was_at_work_is_over_when_that_one_ends_well(operations):
    operations.start_run("long", "nightly_labeling")
    end(operations, "second", "FAILURE", reason="entities: run long holds the lease 'warehouse'")
    assert open_jobs(operations) == ["nightly_labeling"]
    end(operations, "long", "SUCCESS", start=False)
    assert open_jobs(operations) == []


def test_a_long_run_that_fails_after_a_shorter_one_went_well_is_told(operations):
    operations.start_run("long", "nightly_labeling")
    end(operations, "short", "SUCCESS")
    end(operations, "long", "FAILURE", start=False)
    assert open_jobs(operations) == ["nightly_labeling"]


def test_a_killed_run_is_told_when_it_is_found(operations):
    operations.start_run("killed", "train_labeler")
    for _ in range(2):
        operations.mark_run_dead("killed", Ending("train_labeler", True, "its process died"))
    assert told(operations) == [("train_labeler", "failed", "killed")]


def test_a_long_failure_is_repeated_until_somebody_looks_after_it(tmp_path):
    operations = Operations(tmp_path / "ops.sqlite", repeat_after=timedelta(0))
    for run_id in ("r1", "r2"):
        end(operations, run_id, "FAILURE")
    assert [run for _, _, run in told(operations)] == ["r1", "r2"]
    outbox.acknowledge(operations.file, "run", "ann", "known")
    end(operations, "r3", "FAILURE")
    assert len(told(operations)) == 2
    outbox.reconcile(operations.file)
    assert len(told(operations)) == 2


@pytest.mark.parametrize("status", ["SUCCESS", "FAILURE", "CANCELED"])
def test_a_preview_or_an_interrupted_run_neither_opens_nor_closes(operations, status):
    end(operations, "r1", "FAILURE")
    before = told(operations)
    operations.start_run("r2", "nightly_labeling of 5 entities")
    operations.finish_run("r2", status)
    end(operations, "r3", "CANCELED")
    assert told(operations) == before


def test_a_run_that_a_red_gate_stopped_is_told_by_the_gate_alone(operations):
    operations.start_run("r1", "nightly_labeling")
    red(operations, "r1")
    end(operations, "r1", "FAILURE", blocked=True)
    assert [row["gate"] for row in outbox.open_incidents(operations.file)] == ["volume_change"]


def test_a_step_that_refuses_because_of_an_earlier_red_gate_is_not_told_again(operations):
    red(operations, "r1")
    end(operations, "r2", "FAILURE", reason="published_predictions: Not published", blocked=True)
    assert open_jobs(operations) == []
    red(operations, "r3", verdict="pass")
    end(operations, "r4", "FAILURE", reason="published_predictions: publishing is paused", blocked=True)
    assert open_jobs(operations) == ["nightly_labeling"]


def test_a_red_gate_does_not_hide_a_failure_of_another_kind(operations):
    operations.start_run("r1", "nightly_labeling")
    red(operations, "r1")
    end(operations, "r1", "FAILURE", reason="predictions: the disk is full")
    assert open_jobs(operations) == ["nightly_labeling"]


def test_a_warning_is_no_reason_for_a_failure(operations):
    operations.start_run("r1", "nightly_labeling")
    red(operations, "r1", severity="WARN")
    end(operations, "r1", "FAILURE", blocked=True)
    assert open_jobs(operations) == ["nightly_labeling"]


@pytest.mark.parametrize(
    ("failed", "good", "still_open"),
    [
        ("everything", "nightly_labeling", []),  # a first run, and the night after it
        ("nightly_labeling", "everything", []),
        ("train_labeler", "everything", []),
        ("train_labeler", "nightly_labeling", ["train_labeler"]),
        ("nightly_labeling", "train_labeler", ["nightly_labeling"]),
        ("weekly_export", "nightly_labeling", ["weekly_export"]),
        ("weekly_export", "weekly_export", []),
    ],
)
def test_which_job_closes_which_incident(operations, failed, good, still_open):
    end(operations, "r1", "FAILURE", job=failed)
    end(operations, "r2", "SUCCESS", job=good)
    assert open_jobs(operations) == still_open


def test_a_part_that_fails_is_told_and_one_that_goes_well_closes_nothing(operations):
    end(operations, "r1", "FAILURE", whole=False)
    (incident,) = outbox.open_incidents(operations.file)
    assert incident["message"] == f"a part of nightly_labeling failed: {REASON}"
    end(operations, "r2", "SUCCESS", whole=False)
    assert open_jobs(operations) == ["nightly_labeling"]
    end(operations, "r3", "SUCCESS")
    assert open_jobs(operations) == []


def test_the_alert_is_written_with_the_end_of_the_run_or_not_at_all(operations, monkeypatch):
    def broken(*_):
        raise KeyboardInterrupt

    operations.start_run("r1", "nightly_labeling")
    with monkeypatch.context() as patch:
        patch.setattr(run_news, "note_verdict", broken)
        with pytest.raises(KeyboardInterrupt):
            end(operations, "r1", "FAILURE", start=False)
    assert operations.run("r1")["status"] == "STARTED"
    end(operations, "r1", "FAILURE", start=False)
    assert told(operations) == [("nightly_labeling", "failed", "r1")]
