"""What `ops.sqlite` must never lose, invent or misread."""

import json
import multiprocessing
import os
import signal
import sqlite3
import subprocess
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest

from semlabel import operations_schema, outbox
from semlabel.errors import WarehouseError
from semlabel.operations import Operations


@dataclass(frozen=True)
class Result:
    """The fields of a gate result that are recorded."""

    gate: str = "catalog_contract"
    asset: str = "catalog"
    severity: str = "ERROR"
    verdict: str = "pass"
    value: float | None = 0.5
    limit: float | None = 0.9
    sentence: str = "All rows are well formed."
    evidence: dict = field(default_factory=dict)
    computed: bool = True


RED = Result(verdict="fail", sentence="3 rows are broken.")


@pytest.fixture
def operations(tmp_path):
    return Operations(tmp_path / "state" / "ops.sqlite")


def kinds(operations, target="mail"):
    return [(row["severity"], row["kind"]) for row in operations.undelivered_alerts(target)]


def test_a_verdict_is_only_found_for_its_subject_its_labeler_and_its_code(operations):
    operations.record_gate("r1", Result(evidence={"rows": [1, "ü"]}), "L1", "S1", 3)
    found = operations.latest_gate("catalog_contract", "S1", "L1", 3)
    assert found is not None
    assert (found["verdict"], found["value"], found["limit"], found["computed"]) == ("pass", 0.5, 0.9, True)
    assert found["evidence"] == {"rows": [1, "ü"]}
    assert operations.latest_gate("catalog_contract", "S1")["id"] == found["id"]
    assert operations.latest_gate("catalog_contract", "S2", "L1", 3) is None
    assert operations.latest_gate("catalog_contract", "S1", "L2", 3) is None
    assert operations.latest_gate("catalog_contract", "S1", "L1", 4) is None
    assert operations.latest_gate("entities_contract", "S1", "L1", 3) is None


def test_a_newer_failure_hides_an_older_pass_of_the_same_subject(operations):
    operations.record_gate("r1", Result(), "L1", "S1", 1)
    operations.record_gate("r2", RED, "L1", "S1", 1)
    assert operations.latest_gate("catalog_contract", "S1", "L1", 1)["verdict"] == "fail"
    assert [row["run_id"] for row in operations.latest_gates()] == ["r2"]
    assert [row["verdict"] for row in operations.gates_of_run("r1")] == ["pass"]


def test_numpy_numbers_and_nan_in_a_result_do_not_lose_the_verdict(operations):
    evidence = {"share": np.float32(0.25), "counts": np.arange(3), "bad": float("nan"), "flag": np.bool_(True)}
    operations.record_gate(
        "r1", Result(value=np.float64("nan"), limit=np.float32(0.5), evidence=evidence), None, "S", 1
    )
    found = operations.latest_gate("catalog_contract", "S")
    assert found["value"] is None and found["limit"] == 0.5
    assert found["evidence"] == {"share": 0.25, "counts": [0, 1, 2], "bad": "nan", "flag": True}


def test_a_gate_that_stays_red_alerts_once_and_says_when_it_recovers(operations):
    for run, result in enumerate(
        [Result(), RED, RED, replace(RED, verdict="not_enough_data"), Result(), Result(), RED]
    ):
        operations.record_gate(f"r{run}", result, "L", f"S{run}", 1)
    assert kinds(operations) == [("ERROR", "failed"), ("ERROR", "recovered"), ("ERROR", "failed")]


def test_a_gate_red_for_over_a_day_alerts_again(operations, monkeypatch):
    operations.record_gate("r1", RED, "L", "S", 1)
    monkeypatch.setattr(outbox, "now_utc", lambda: "2999-01-01T00:00:00.000000+00:00")
    operations.record_gate("r2", RED, "L", "S", 1)
    operations.record_gate("r3", RED, "L", "S", 1)
    assert kinds(operations) == [("ERROR", "failed"), ("ERROR", "failed")]


def test_a_change_of_severity_closes_the_old_alert(operations):
    operations.record_gate("r1", RED, "L", "S", 1)
    operations.record_gate("r2", replace(RED, severity="WARN"), "L", "S", 1)
    operations.record_gate("r3", replace(RED, severity="WARN"), "L", "S", 1)
    assert kinds(operations) == [("ERROR", "failed"), ("ERROR", "recovered"), ("WARN", "failed")]


def test_an_alert_survives_a_sender_that_is_down(operations):
    operations.record_gate("r1", RED, "L", "S", 1)
    (row,) = operations.undelivered_alerts("mail")
    operations.record_delivery(row["id"], "mail", error="connection refused")
    assert len(operations.undelivered_alerts("mail")) == 1
    operations.record_delivery(row["id"], "mail")
    assert operations.undelivered_alerts("mail") == []
    assert len(operations.undelivered_alerts("chat")) == 1


def test_a_verdict_and_its_alert_are_written_together_or_not_at_all(operations, monkeypatch):
    def broken(*_, **__):
        raise RuntimeError("outbox")

    monkeypatch.setattr(outbox, "note_verdict", broken)
    with pytest.raises(RuntimeError):
        operations.record_gate("r1", RED, "L", "S", 1)
    assert operations.latest_gates() == []


def test_the_figures_of_a_run_add_up_and_give_its_rate(operations):
    assert operations.last_run() is None
    operations.start_run("r1", "nightly_labeling")
    assert operations.last_run()["labels_per_s"] is None
    operations.add_to_run("r1", pairs_scored=100, scoring_seconds=2.0, model_loads=1)
    operations.add_to_run("r1", pairs_scored=np.int64(50), pairs_reused=7, scoring_seconds=1.0)
    operations.finish_run("r1", "SUCCESS")
    run = operations.last_run()
    assert (run["pairs_scored"], run["pairs_reused"], run["model_loads"], run["labels_per_s"]) == (150, 7, 1, 50.0)
    assert run["status"] == "SUCCESS" and run["finished_at"] >= run["started_at"]
    with pytest.raises(ValueError, match="never started"):
        operations.add_to_run("unknown", pairs_scored=1)


def test_a_step_process_does_not_take_a_run_over_from_its_living_owner(operations):
    operations.start_run("r1", "nightly_labeling")
    owner = operations.run("r1")["pid"]
    child = multiprocessing.get_context("spawn").Process(target=_start_again, args=(operations.path,))
    child.start()
    child.join()
    assert child.exitcode == 0
    assert operations.run("r1")["pid"] == owner == os.getpid()
    assert operations.dead_runs() == []


def _start_again(path: Path) -> None:
    Operations(path).start_run("r1", "nightly_labeling")


def test_a_killed_run_is_found_and_closed_as_a_failure(operations):
    operations.start_run("alive", "nightly_labeling")
    code = (
        "import sys, time; from pathlib import Path; from semlabel.operations import Operations\n"
        "ops = Operations(Path(sys.argv[1])); ops.start_run('dead', 'nightly_labeling')\n"
        "with ops.lease('warehouse', 'dead', 5):\n    print('ready', flush=True); time.sleep(600)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", code, str(operations.path)], stdout=subprocess.PIPE)
    try:
        assert child.stdout.readline() == b"ready\n"
        assert operations.dead_runs() == []
        child.send_signal(signal.SIGKILL)
        while operations.dead_runs() == []:  # also while it is an unreaped zombie
            pass
    finally:
        child.kill()
        child.wait()
        child.stdout.close()
    assert [run["run_id"] for run in operations.dead_runs()] == ["dead"]
    operations.mark_run_dead("dead")
    run = operations.run("dead")
    assert run["status"] == "FAILURE" and "died" in run["note"]
    assert operations.dead_runs() == []
    assert operations.file.rows("SELECT * FROM leases") == []
    operations.mark_run_dead("alive")
    assert operations.run("alive")["status"] == "FAILURE"


def test_progress_is_kept_by_stage_and_the_moving_one_comes_last(operations):
    operations.set_progress("r1", "training", 10, 10, "rounds")
    operations.set_progress("r1", "scoring", 1, 20, "pairs")
    operations.set_progress("r2", "scoring", 5, 5, "pairs")
    operations.set_progress("r1", "scoring", np.int64(2), 20, "pairs")
    stages = operations.progress_of("r1")
    assert [(row["stage"], row["done"], row["total"]) for row in stages] == [("training", 10, 10), ("scoring", 2, 20)]


def test_a_plan_is_open_until_it_is_done_and_only_for_its_subject(operations):
    operations.save_plan("p1", "scorer", "S1", 10, b"rounds", pairs=100, estimated_seconds=5.0)
    assert operations.open_plan("scorer", "S1")["payload"] == b"rounds"
    assert operations.open_plan("scorer", "S2") is None
    assert operations.open_plan("other", "S1") is None
    operations.update_plan("p1", 4, "open", seconds=1.0)
    assert operations.open_plan("scorer", "S1")["rounds_done"] == 4
    operations.update_plan("p1", 10, "done", seconds=2.5)
    assert operations.open_plan("scorer", "S1") is None
    (done,) = operations.finished_plans()
    assert (done["estimated_seconds"], done["measured_seconds"], done["pairs"]) == (5.0, 3.5, 100)


def test_a_new_plan_for_the_same_subject_supersedes_the_old_one(operations):
    operations.save_plan("p1", "scorer", "S1", 10, b"old")
    operations.save_plan("p2", "scorer", "S1", 8, b"new")
    assert operations.open_plan("scorer", "S1")["plan_id"] == "p2"
    operations.update_plan("p2", 8, "done")
    assert operations.open_plan("scorer", "S1") is None


def test_the_newest_promotion_counts_and_an_approval_only_for_its_subject(operations):
    assert operations.promoted() is None
    operations.promote("L1", "ann", "first")
    operations.promote("L2", "bob", "better")
    assert operations.promoted()["labeler_digest"] == "L2" and operations.promoted()["who"] == "bob"
    operations.approve("S1", "ann")
    assert operations.approved("S1") and not operations.approved("S2")
    assert operations.approved("S1", "2020-01-01T00:00:00.000000+00:00")
    assert not operations.approved("S1", "2999-01-01T00:00:00.000000+00:00")


def test_an_approval_counts_for_what_one_setting_publishes_and_one_that_does_not_tell_for_each(operations):
    operations.approve("S1", "ann", uncertified_candidates="publish")
    operations.approve("S2", "ann")
    asked = [(subject, policy) for subject in ("S1", "S2") for policy in (None, "publish", "withhold")]
    counts = [operations.approved(subject, uncertified_candidates=policy) for subject, policy in asked]
    assert counts == [True, True, False, True, True, True]


def test_every_use_of_a_certify_set_is_in_the_ledger(operations):
    for labeler, verdict in (("L1", "fail"), ("L2", "pass")):
        use = operations.begin_certify("C1", f"asked {labeler}", ["a", "b"], confidence=0.95)
        operations.complete_certify(use, labeler, verdict)
    shown = ("labeler_digest", "question_digest", "verdict", "confidence")
    assert [tuple(row[name] for name in shown) for row in operations.certify_uses("C1")] == [
        ("L1", "asked L1", "fail", 0.95),
        ("L2", "asked L2", "pass", 0.95),
    ]
    assert operations.certify_uses("C2") == []


def test_a_look_that_never_ended_counts_and_what_came_of_one_is_entered_once(operations):
    use = operations.begin_certify("C1", "asked", ["a"])
    (row,) = operations.certify_looks(["a"])
    assert (row["id"], row["labeler_digest"], row["verdict"]) == (use, "", None)
    operations.complete_certify(use, "L1", "pass")
    operations.complete_certify(use, "L2", "fail")
    (row,) = operations.certify_looks(["a"])
    assert (row["labeler_digest"], row["verdict"]) == ("L1", "pass")


def test_a_set_with_one_entity_more_or_less_is_looked_at_again_and_a_disjoint_one_is_not(operations):
    operations.begin_certify("C1", "asked", ["a", "b"])
    for entities, looks in ((["a"], 1), (["a", "b", "c"], 1), (["c", "d"], 0)):
        assert len(operations.certify_looks(entities)) == looks
    operations.file.rows("DELETE FROM certify_entities")  # as a use that an earlier version entered
    assert len(operations.certify_looks(["c"])) == 1


def test_metrics_publications_and_the_pause_are_kept(operations):
    assert operations.metrics("L1") is None and operations.publishing_paused() is None
    operations.save_metrics("L1", {"auc": np.float64(0.5)})
    operations.save_metrics("L1", {"auc": np.float64(0.75)})
    assert operations.metrics("L1") == {"auc": 0.75}
    operations.record_publication("000001-x", "/published", "published", labeler_digest="L1", run_id="r1")
    assert operations.publications()[0]["version"] == "000001-x"
    operations.set_publishing_paused(True, "rolled back")
    assert operations.publishing_paused() == "rolled back"
    operations.set_publishing_paused(False)
    assert operations.publishing_paused() is None


@pytest.mark.parametrize("text", ["a\0b", "'); DROP TABLE runs; --", "𝔘 e\u0301 \u202e", '"quoted"\n'])
def test_texts_come_back_byte_for_byte(operations, text):
    operations.start_run(text, text)
    operations.record_gate(text, replace(RED, sentence=text, evidence={text: text}), text, text, text)
    found = operations.latest_gate("catalog_contract", text, text, text)
    assert (found["run_id"], found["sentence"], found["evidence"]) == (text, text, {text: text})
    assert operations.run(text)["job"] == text


def test_a_newer_file_is_refused_and_left_as_it_is(tmp_path):
    path = tmp_path / "ops.sqlite"
    Operations(path).start_run("r1", "job")
    with sqlite3.connect(path) as connection:
        connection.execute(f"PRAGMA user_version = {len(operations_schema.MIGRATIONS) + 1}")
    connection.close()
    with pytest.raises(WarehouseError, match="newer semlabel"):
        Operations(path)
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT run_id FROM runs").fetchall() == [("r1",)]
    connection.close()


def test_a_migration_keeps_the_rows_of_an_older_file(tmp_path, monkeypatch):
    path = tmp_path / "ops.sqlite"
    Operations(path).start_run("r1", "job")
    later = (*operations_schema.MIGRATIONS, ("ALTER TABLE runs ADD COLUMN colour TEXT",))
    monkeypatch.setattr(operations_schema, "MIGRATIONS", later)
    assert Operations(path).run("r1")["colour"] is None


def test_a_file_that_is_no_database_is_refused_in_one_line(tmp_path):
    path = tmp_path / "ops.sqlite"
    path.write_text("not a database, but long enough to look at" * 100)
    with pytest.raises(WarehouseError, match=r"not a SQLite file") as refused:
        Operations(path)
    assert "\n" not in str(refused.value)


def test_many_processes_may_open_a_new_file_at_once(tmp_path):
    path = tmp_path / "state" / "ops.sqlite"
    code = (
        "import sys; from pathlib import Path; from semlabel.operations import Operations\n"
        "ops = Operations(Path(sys.argv[1]))\n"
        "for i in range(20): ops.record_publication(f'{sys.argv[2]}-{i}', 'p', 'published')\n"
    )
    children = [subprocess.Popen([sys.executable, "-c", code, str(path), str(number)]) for number in range(4)]
    assert [child.wait() for child in children] == [0, 0, 0, 0]
    assert len({row["version"] for row in Operations(path).publications(limit=1000)}) == 80


def test_gate_results_have_the_columns_others_read(operations):
    operations.record_gate("r1", Result(), "L", "S", 1)
    (row,) = operations.file.rows("SELECT * FROM gate_results")
    promised = (
        "run_id gate asset severity verdict value limit_value labeler_digest subject_digest gate_code_version "
        "evidence_json evaluated_at"
    )
    assert set(promised.split()) <= set(row)
    assert json.loads(row["evidence_json"]) == {}
    assert row["evaluated_at"].endswith("+00:00")
