"""A whole `semlabel run`, as people start it: killed without a word, or started twice.

The tiny project of the pipeline's tests; what happens inside a night is in `test_crash.py`.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import dagster as dg
import pytest
import yaml

from tests.pipeline_fixtures import TinyProject, make_project

REPOSITORY = Path(__file__).parents[1]
WORKSPACE = REPOSITORY / "workspace.yaml"


@pytest.fixture
def project(tmp_path):
    """A project whose training takes long enough to be interrupted."""
    made = make_project(tmp_path / "project")
    made.change(training={"epochs": 12.0, "save_every_steps": 20})
    return made


def start(project: TinyProject, workspace: Path = WORKSPACE) -> subprocess.Popen[str]:
    """`semlabel run` in a process group of its own."""
    command = [sys.executable, "-m", "semlabel", "run", "--config", project.config, "--workspace", workspace]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY), "PYTHONUNBUFFERED": "1"}
    return subprocess.Popen(
        command,
        cwd=project.root,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def wait_for(project: TinyProject, stage: str, running: subprocess.Popen[str], other: str = "") -> str:
    """The id of the run, which is not `other`, once it is in a stage."""
    while running.poll() is None:
        if project.settings.paths.ops.exists():
            run_id = (project.operations.last_run() or {}).get("run_id", other)
            if run_id != other and any(row["stage"] == stage for row in project.operations.progress_of(run_id)):
                return run_id
        time.sleep(0.1)
    raise AssertionError(f"the run ended before it was {stage}: {running.stdout.read()}")


def dagster_status(project: TinyProject, run_id: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("DAGSTER_HOME", str(project.settings.paths.dagster_home))
    with dg.DagsterInstance.get() as instance:
        return instance.get_run_by_id(run_id).status.value


def test_a_run_killed_with_all_its_children_is_closed_and_finished_by_the_next_without_help(project, monkeypatch):
    killed = start(project)
    run_id = wait_for(project, "training", killed)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.communicate()
    assert dagster_status(project, run_id, monkeypatch) == "STARTED"
    again = start(project)
    # It begins to work at once: no lease of the dead one is waited for.
    second = wait_for(project, "training", again, other=run_id)
    out, _ = again.communicate()
    assert f"run {run_id[:8]} was killed; it is closed now, and its work goes on here" in out
    assert dagster_status(project, run_id, monkeypatch) == "FAILURE"
    assert dagster_status(project, second, monkeypatch) == "SUCCESS", out
    assert again.returncode == 0
    assert (project.settings.paths.published / "current" / "predictions.duckdb").exists()


@pytest.mark.slow  # two whole runs; who holds what, and for how long, is in test_leases.py
def test_two_runs_at_once_train_once_and_both_end_well(project):
    first = start(project)
    wait_for(project, "training", first)
    second = start(project)
    (told, _), (told_second, _) = first.communicate(), second.communicate()
    assert (first.returncode, second.returncode) == (0, 0), told + told_second
    assert "training: " in told and "training: " not in told_second
    assert len(list(project.settings.paths.checkpoints.glob("*/labeler.json"))) == 1


@dataclass(frozen=True)
class OneOfSeveral(TinyProject):
    """A labeler of a deployment, with a settings file of its own."""

    name: str = ""

    @property
    def config(self) -> Path:
        return self.root / f"{self.name}.toml"


@pytest.mark.slow  # the other run is killed and this one begins to train; each reason is in test_reaper.py
def test_a_killed_run_of_another_labeler_that_held_the_pool_does_not_hold_up_this_one(project, monkeypatch):
    names = ("urgency", "topics")
    modules = [{"module_name": "pipeline.labelers", "attribute": name, "working_directory": "."} for name in names]
    workspace = project.root / "workspace.yaml"
    workspace.write_text(yaml.safe_dump({"load_from": [{"python_module": module} for module in modules]}))
    for folder in ("assets", "pipeline", "resources"):
        shutil.copytree(REPOSITORY / folder, project.root / folder)
    for name in names:
        (project.root / f"{name}.toml").write_text(f'extends = "pipeline.toml"\n[environment]\nlabeler = "{name}"\n')
    urgency, topics = (OneOfSeveral(project.root, name) for name in names)
    killed = start(urgency, workspace)
    run_id = wait_for(urgency, "training", killed)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.communicate()
    other = start(topics, workspace)
    wait_for(topics, "training", other)
    os.killpg(other.pid, signal.SIGTERM)
    out, _ = other.communicate()
    assert f"run {run_id[:8]} in {urgency.settings.paths.state} was killed; it is closed now" in out
    assert dagster_status(topics, run_id, monkeypatch) == "FAILURE"
    assert urgency.operations.run(run_id)["status"] == "FAILURE"
