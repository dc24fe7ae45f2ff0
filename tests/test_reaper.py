"""A killed run of one labeler must not hold its place in a pool against the others that share its Dagster home."""

import shutil
import subprocess
import sys
import time
from pathlib import Path

import dagster as dg
import pytest

from semlabel import processes
from semlabel.cli import reaper, run_command
from semlabel.cli.code_location import open_instance, read_workspace
from semlabel.cli.reaper import Reaper
from semlabel.operations import Operations
from semlabel.settings import load_settings
from tests.cli_settings import smallest
from tests.pipeline_fixtures import make_project
from tests.receivers import web_receiver

ROOT = Path(__file__).resolve().parent.parent
NIGHT = "nightly_labeling"
DIED = f"{NIGHT} failed: its process died: the next run goes on with its work"
WORKSPACE = """
load_from:
  - python_module: {module_name: pipeline.labelers, attribute: topics, working_directory: ., location_name: topics}
  - python_module: {module_name: pipeline.labelers, attribute: urgency, working_directory: ., location_name: urgency}
"""
KILLED = (
    "import os, sys; from pathlib import Path; from semlabel.operations import Operations\n"
    "Operations(Path(sys.argv[1])).start_run(sys.argv[2], sys.argv[3]); os.kill(os.getpid(), 9)\n"
)


@dg.asset(pool="gpu")
def predictions():
    pass


JOB = dg.Definitions(assets=[predictions], jobs=[dg.define_asset_job(NIGHT, "*")]).resolve_job_def(NIGHT)


class Deployment:
    """Two labelers with a channel each, one Dagster home, and a run of one of them that holds the pool."""

    def __init__(self, root):
        (root / "workspace.yaml").write_text(WORKSPACE)
        for name in ("topics", "urgency"):
            text = f'{smallest()}\n[environment]\nlabeler = "{name}"\n[alerts]\nurls = ["env:{name.upper()}"]\n'
            (root / f"{name}.toml").write_text(text)
        self.settings = {name: load_settings(root / f"{name}.toml") for name in ("topics", "urgency")}
        for settings in self.settings.values():
            settings.paths.create()
        self.home = self.settings["topics"].paths.dagster_home
        shutil.copy(ROOT / "pipeline" / "dagster.yaml", self.home)
        self.workspace = root / "workspace.yaml"

    def operations(self, name):
        return Operations(self.settings[name].paths.ops)

    def reaper(self, name):
        """What a run of this labeler has at its start."""
        settings = self.settings[name]
        return Reaper(settings, self.operations(name), read_workspace(self.workspace, settings.path))

    def hold(self, name, alive=False):
        """A run of this labeler that holds the pool, and is killed at once unless it is this process's."""
        with open_instance() as instance:
            run_id = instance.create_run_for_job(JOB, status="STARTED").run_id
            instance.event_log_storage.initialize_concurrency_limit_to_default("gpu")
            claim = instance.event_log_storage.claim_concurrency_slot("gpu", run_id, "predictions")
            assert claim.is_claimed
        if alive:
            self.operations(name).start_run(run_id, NIGHT)
        else:
            self.kill(name, run_id)
        return run_id

    def kill(self, name, run_id):
        command = [sys.executable, "-c", KILLED, str(self.settings[name].paths.ops), run_id, NIGHT]
        assert subprocess.run(command, cwd=ROOT, check=False).returncode == -9

    def holder(self):
        """The run that holds the pool, or None."""
        with open_instance() as instance:
            slots = instance.event_log_storage.get_concurrency_info("gpu").claimed_slots
        return slots[0].run_id if slots else None

    def status(self, run_id):
        with open_instance() as instance:
            return instance.get_run_by_id(run_id).status.value

    def told(self, name):
        return [row["message"] for row in self.operations(name).file.rows("SELECT message FROM outbox")]


@pytest.fixture
def deployment(tmp_path, monkeypatch):
    made = Deployment(tmp_path)
    monkeypatch.setenv("DAGSTER_HOME", str(made.home))
    return made


def test_the_killed_run_of_another_labeler_is_closed_and_its_own_people_are_told(deployment, monkeypatch, capsys):
    run_id = deployment.hold("urgency")
    assert deployment.holder() == run_id
    with web_receiver() as theirs, web_receiver() as ours:
        monkeypatch.setenv("URGENCY", theirs.address())
        monkeypatch.setenv("TOPICS", ours.address())
        deployment.reaper("topics").close_killed()
    assert deployment.holder() is None
    assert deployment.status(run_id) == "FAILURE"
    assert deployment.operations("urgency").run(run_id)["status"] == "FAILURE"
    assert deployment.told("urgency") == [DIED] and deployment.told("topics") == []
    (message,) = theirs.messages
    assert "urgency" in message["title"] and DIED in message["message"]
    assert ours.messages == []
    told = f"run {run_id[:8]} in {deployment.settings['urgency'].paths.state} was killed; it is closed now"
    assert told in capsys.readouterr().err


def test_a_living_run_of_another_labeler_keeps_its_place(deployment):
    run_id = deployment.hold("urgency", alive=True)
    deployment.reaper("topics").close_killed()
    assert deployment.holder() == run_id
    assert deployment.operations("urgency").run(run_id)["status"] == "STARTED"
    assert deployment.told("urgency") == []


def test_a_run_that_waits_already_gets_the_place_of_one_that_is_killed_meanwhile(deployment, monkeypatch):
    monkeypatch.setattr(reaper, "LOOK_SECONDS", 0.05)
    run_id = deployment.hold("urgency", alive=True)
    with deployment.reaper("topics").while_at_work():
        time.sleep(0.2)
        assert deployment.holder() == run_id
        with deployment.operations("urgency").file.transaction() as connection:
            connection.execute("DELETE FROM runs")
        deployment.kill("urgency", run_id)
        for _ in range(1200):
            if deployment.holder() is None:
                return
            time.sleep(0.05)
    pytest.fail("the place stayed taken")


def test_a_run_killed_in_another_container_is_closed_when_it_has_been_silent(deployment, monkeypatch):
    monkeypatch.setattr(processes, "HEARTBEAT_SECONDS", 0.05)
    run_id = deployment.hold("urgency", alive=True)
    before = "2026-01-01T00:00:00.000000+00:00"
    with deployment.operations("urgency").file.transaction() as connection:
        elsewhere = "pid_namespace = 'another', host = '1f0a2b3c4d5e'"
        connection.execute(f"UPDATE runs SET {elsewhere}, started_at = ?", (before,))
    deployment.reaper("topics").close_killed()
    assert deployment.holder() == run_id  # its last sign of life is of this minute
    with deployment.operations("urgency").file.transaction() as connection:
        connection.execute("UPDATE runs SET heartbeat = ?", (before,))
    deployment.reaper("topics").close_killed()
    assert deployment.holder() is None and deployment.status(run_id) == "FAILURE"
    assert deployment.told("urgency") == [DIED]


def test_a_look_that_fails_is_not_the_last_one(deployment, monkeypatch, capsys):
    monkeypatch.setattr(reaper, "LOOK_SECONDS", 0.02)
    looks = []

    def locked(*_):
        looks.append("look")
        raise TimeoutError("database is locked")

    monkeypatch.setattr(reaper, "reap", locked)
    with deployment.reaper("topics").while_at_work():
        for _ in range(1200):
            if len(looks) > 1:
                break
            time.sleep(0.05)
    assert len(looks) > 1
    assert "killed runs were not looked for: TimeoutError: database is locked" in capsys.readouterr().err


def test_a_labeler_that_no_settings_file_names_is_closed_and_told_by_its_next_run(deployment, capsys):
    (deployment.workspace.parent / "urgency.toml").unlink()
    run_id = deployment.hold("urgency")
    deployment.reaper("topics").close_killed()
    assert deployment.holder() is None
    assert deployment.operations("urgency").run(run_id)["status"] == "FAILURE"
    assert deployment.told("urgency") == [DIED]  # it waits there for whoever sends it
    assert "its next run tells its people" in capsys.readouterr().err


def test_damaged_files_of_another_labeler_stop_nobody(deployment, capsys):
    deployment.settings["urgency"].paths.ops.write_bytes(b"no SQLite file at all, but as long as a header would be" * 9)
    run_id = deployment.hold("topics")
    deployment.reaper("topics").close_killed()
    assert deployment.holder() is None and deployment.status(run_id) == "FAILURE"
    said = capsys.readouterr().err
    assert f"run {run_id[:8]} was killed; it is closed now, and its work goes on here" in said
    assert f"killed runs of {deployment.settings['urgency'].paths.state} were not looked for: " in said


def test_another_environment_has_a_dagster_home_of_its_own_and_is_left_alone(deployment, tmp_path):
    (tmp_path / "prod.toml").write_text(smallest() + '\n[environment]\nname = "prod"\n')
    prod = load_settings(tmp_path / "prod.toml")
    prod.paths.create()
    Operations(prod.paths.ops)
    deployment.operations("topics"), deployment.operations("urgency")
    Operations(deployment.home.parent / "ops.sqlite")  # the labeler without a name
    around = deployment.settings["topics"].paths.sharing_dagster()
    assert around == [deployment.home.parent / "ops.sqlite", deployment.settings["urgency"].paths.ops]
    assert prod.paths.sharing_dagster() == []


def test_a_run_looks_before_it_begins_and_while_it_is_at_work(tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(Reaper, "close_killed", lambda self: calls.append("before"))
    monkeypatch.setattr(Reaper, "while_at_work", lambda self: Beside(calls))
    # It reads the settings when it is imported, and another test of this process may have done that.
    monkeypatch.setitem(sys.modules, "pipeline.definitions", None)
    monkeypatch.delitem(sys.modules, "pipeline.definitions")
    project = make_project(tmp_path / "project")
    workspace = str(ROOT / "workspace.yaml")
    arguments = ["run", "--config", str(project.config), "--workspace", workspace, "--until", "entities"]
    assert run_command(arguments) == 0
    assert calls == ["before", "begin", "end"]


class Beside:
    def __init__(self, calls):
        self.calls = calls

    def __enter__(self):
        self.calls.append("begin")

    def __exit__(self, *_):
        self.calls.append("end")
