"""A run that was killed where nobody can look for its process ends all the same, and a living one never does."""

import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import dagster as dg
import pytest

from pipeline.assembly import build_defs
from semlabel import processes
from semlabel.cli import execution, run_command
from semlabel.operations import Operations
from tests.pipeline_fixtures import make_project

UNSEEN = "4026539999"
WORKSPACE = Path(__file__).parents[1] / "workspace.yaml"


@pytest.fixture
def operations(tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "HEARTBEAT_SECONDS", 0.05)
    return Operations(tmp_path / "ops.sqlite")


def ago(minutes):
    return (datetime.now(UTC) - timedelta(minutes=minutes)).isoformat(timespec="microseconds")


def begin_elsewhere(operations, run_id="night", minutes=0.0, **columns):
    """A run of another container of this machine, that gave its last sign of life so many minutes ago."""
    operations.start_run(run_id, "nightly_labeling")
    values = {"pid_namespace": UNSEEN, "started_at": ago(120), "heartbeat": ago(minutes)} | columns
    with operations.file.transaction() as connection:
        given = ", ".join(f"{name} = ?" for name in values)
        connection.execute(f"UPDATE runs SET {given} WHERE run_id = ?", (*values.values(), run_id))


def dead(operations, **options):
    return [row["run_id"] for row in operations.dead_runs(**options)]


def test_a_run_of_another_container_is_dead_after_ten_minutes_of_silence_and_not_before(operations):
    begin_elsewhere(operations, "living", minutes=9.5)
    begin_elsewhere(operations, "killed", minutes=10.5)
    assert dead(operations) == dead(operations, watched=False) == ["killed"]


def test_a_run_that_only_slept_wakes_while_it_is_watched(operations, monkeypatch):
    begin_elsewhere(operations, minutes=60)
    assert dead(operations, watched=False) == ["night"]
    monkeypatch.setattr(time, "sleep", lambda seconds: wake(operations))
    assert dead(operations) == []


def wake(operations):
    with operations.file.transaction() as connection:
        connection.execute("UPDATE runs SET heartbeat = ?", (ago(0),))


def test_a_run_that_ends_while_it_is_watched_is_not_dead(operations, monkeypatch):
    begin_elsewhere(operations, minutes=60)
    monkeypatch.setattr(time, "sleep", lambda seconds: operations.finish_run("night", "SUCCESS"))
    assert dead(operations) == []


def test_progress_is_the_sign_of_life_of_a_run_of_an_earlier_version(operations):
    begin_elsewhere(operations, heartbeat=None, pid_namespace=None, process_start="12345")
    assert dead(operations) == ["night"]
    operations.set_progress("night", "scoring", 1, 2, "pairs")
    assert dead(operations) == []


def test_a_run_at_work_gives_signs_of_life_until_it_ends(operations):
    operations.start_run("night", "nightly_labeling")
    first = operations.run("night")["heartbeat"]
    with operations.at_work("night"):
        for _ in range(1200):
            if operations.run("night")["heartbeat"] > first:
                break
            time.sleep(0.05)
        assert operations.run("night")["heartbeat"] > first
        assert "run-night" in {thread.name for thread in threading.enumerate()}
    assert "run-night" not in {thread.name for thread in threading.enumerate()}


def test_noting_a_run_again_is_a_sign_of_life_and_leaves_it_to_its_process(operations):
    begin_elsewhere(operations, minutes=9)
    before = operations.run("night")
    operations.start_run("night", "nightly_labeling")
    after = operations.run("night")
    assert after["heartbeat"] > before["heartbeat"]
    assert after["pid_namespace"] == UNSEEN


def test_closing_a_silent_run_frees_the_leases_that_it_held(operations):
    begin_elsewhere(operations, minutes=60)
    with operations.lease("warehouse", "night", 0), operations.lease("publication", "other", 0):
        with operations.file.transaction() as connection:
            row = (UNSEEN, ago(60))
            connection.execute("UPDATE leases SET pid_namespace = ?, heartbeat = ?, token = 'its own'", row)
        operations.mark_run_dead("night")
        assert [row["name"] for row in operations.file.rows("SELECT name FROM leases")] == ["publication"]
    assert operations.run("night")["status"] == "FAILURE"


class Heart:
    """Stands in for the signs of life of a run."""

    def __init__(self, beaten, run_id):
        self.beaten, self.run_id = beaten, run_id
        beaten.append(("begins", run_id))

    def stop(self):
        self.beaten.append(("ends", self.run_id))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()


@pytest.fixture
def beaten(monkeypatch):
    found = []
    monkeypatch.setattr(Operations, "at_work", lambda self, run_id: Heart(found, run_id))
    return found


def test_a_run_of_dagster_gives_signs_of_life_from_its_first_step_to_its_end(tmp_path, beaten):
    project = make_project(tmp_path / "project")
    job = build_defs(project.config).resolve_implicit_global_asset_job_def()
    keys = [dg.AssetKey("entities"), dg.AssetKey("catalog")]
    with dg.DagsterInstance.ephemeral() as instance:
        result = job.execute_in_process(instance=instance, asset_selection=keys, raise_on_error=False)
    assert result.success
    assert beaten == [("begins", result.run_id), ("ends", result.run_id)]


def test_a_run_of_the_command_gives_signs_of_life_while_it_waits_for_its_first_step(tmp_path, beaten, monkeypatch):
    monkeypatch.setattr(execution, "execute", lambda *given, **options: execution.Outcome(given[3], "SUCCESS", (), ()))
    project = make_project(tmp_path / "project")
    arguments = ["run", "--config", str(project.config), "--workspace", str(WORKSPACE), "--until", "entities"]
    assert run_command(arguments) == 0
    run_id = project.operations.last_run()["run_id"]
    assert beaten == [("begins", run_id), ("ends", run_id)]
