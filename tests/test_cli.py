"""The command line: exit codes, one-line errors, fixed JSON shapes, and runs through Dagster that end well or cleanly.

Runs are made with a small code location of their own, because what is tested is the running, not the recipe.
"""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from semlabel import outbox
from semlabel.cli import run_command
from semlabel.gates import GateResult
from semlabel.operations import Operations
from tests.cli_settings import smallest
from tests.receivers import web_receiver

ROOT = Path(__file__).resolve().parent.parent

SETTINGS = smallest()
NEXT = "44444444-4444-4444-8444-444444444444"
RED = GateResult("held_out_quality", "checkpoint", "ERROR", "fail", 0.61, 0.9, "AUC 0.61 is below 0.9.")

DAGSTER = """
telemetry:
  enabled: false
concurrency:
  pools:
    default_limit: 1
    granularity: op
"""

# Four assets in a row; the environment says what goes wrong.
DEFINITIONS = """
import os
import time
from pathlib import Path

import dagster as dg

from semlabel.errors import GateBlocked, SourceError


def trouble(what):
    return os.environ.get("TROUBLE") == what


@dg.asset(pool="gpu")
def entities(context) -> dg.MaterializeResult:
    print("noise on stdout")
    if trouble("source"):
        raise SourceError("entities.csv: no column entity_id; found a, b")
    return dg.MaterializeResult(metadata={"dagster/row_count": 12})


@dg.asset(deps=[entities], pool="gpu")
def checkpoint() -> dg.MaterializeResult:
    if trouble("fault"):
        raise ZeroDivisionError("a fault of the program")
    return dg.MaterializeResult()


@dg.asset(deps=[checkpoint], pool="gpu")
def predictions() -> dg.MaterializeResult:
    if trouble("slow"):
        Path(os.environ["STARTED"]).touch()
        time.sleep(60)
    return dg.MaterializeResult()


@dg.asset(deps=[predictions])
def published_predictions() -> dg.MaterializeResult:
    if trouble("blocked"):
        raise GateBlocked("held_out_quality has no verdict for the current content")
    return dg.MaterializeResult()


@dg.asset_check(asset=checkpoint, blocking=True)
def held_out_quality() -> dg.AssetCheckResult:
    return dg.AssetCheckResult(passed=not trouble("gate"), description="AUC 0.61 is below 0.9: train longer.")


@dg.asset_check(asset=predictions)
def label_rate_drift() -> dg.AssetCheckResult:
    passed = not trouble("warning")
    return dg.AssetCheckResult(passed=passed, severity=dg.AssetCheckSeverity.WARN, description="The rate moved.")


nightly = dg.define_asset_job(
    "nightly_labeling", dg.AssetSelection.all() - dg.AssetSelection.assets("checkpoint").without_checks()
)
defs = dg.Definitions(
    assets=[entities, checkpoint, predictions, published_predictions],
    asset_checks=[held_out_quality, label_rate_drift],
    jobs=[nightly],
)
"""


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    """A code location that is imported once: Python keeps modules, so every test must mean the same one."""
    folder = tmp_path_factory.mktemp("code")
    (folder / "workspace.yaml").write_text("load_from:\n  - python_module:\n      module_name: toy.definitions\n")
    (folder / "toy").mkdir()
    (folder / "toy" / "__init__.py").write_text("")
    (folder / "toy" / "definitions.py").write_text(DEFINITIONS)
    (folder / "toy" / "dagster.yaml").write_text(DAGSTER)
    yield folder / "workspace.yaml"
    sys.path[:] = [entry for entry in sys.path if entry != str(folder)]


@pytest.fixture
def project(tmp_path, workspace, monkeypatch):
    """A project with sources and settings in the current folder; nothing has run."""
    rows = range(12)
    (tmp_path / "entities.csv").write_text("entity_id,text\n" + "".join(f"e{i},text {i} of many\n" for i in rows))
    (tmp_path / "catalog.csv").write_text("candidate_id,text\na,cut wood\nb,bake bread\n")
    (tmp_path / "references.csv").write_text("entity_id,candidate_id,label\n" + "".join(f"e{i},a,1\n" for i in rows))
    (tmp_path / "pipeline.toml").write_text(SETTINGS)
    (tmp_path / "workspace.yaml").symlink_to(workspace)
    monkeypatch.chdir(tmp_path)
    for name in ("SEMLABEL_CONFIG", "DAGSTER_HOME", "TROUBLE"):
        # Set and then removed, so that whatever a run sets is taken back after the test.
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    return tmp_path


@pytest.fixture
def command(project, workspace, monkeypatch, capfd):
    """Run a command in this process; gives exit code, stdout and stderr."""

    def run(*arguments, trouble=""):
        monkeypatch.setenv("TROUBLE", trouble)
        if arguments[0] == "run":
            arguments = (*arguments, "--workspace", str(workspace))
        capfd.readouterr()
        code = run_command(arguments)
        return (code, *capfd.readouterr())

    return run


def operations(project):
    return Operations(project / "run" / "ops.sqlite")


def test_a_finished_run_leaves_its_record_and_keeps_noise_out(command, project):
    from dagster import DagsterInstance

    code, out, err = command("run")
    assert code == 0
    assert "12 rows" in err
    assert "pass  held_out_quality" in err
    assert "0 pairs scored" in out
    recorded = operations(project).last_run()
    assert (recorded["status"], recorded["job"]) == ("SUCCESS", "everything")
    with DagsterInstance.from_config(str(project / "run" / "dagster")) as instance:
        (run,) = instance.get_runs()
    assert run.run_id == recorded["run_id"]
    assert run.tags[".dagster/repository"] == "__repository__@toy.definitions"
    log = next((project / "run" / "logs").glob("*.log")).read_text()
    for noise in ("RUN_SUCCESS", "noise on stdout"):
        assert noise in log
        assert noise not in out + err


def test_a_failed_gate_exits_1_and_names_the_gate_and_its_reason(command, project):
    code, _, err = command("run", trouble="gate")
    assert code == 1
    assert "FAIL  held_out_quality: AUC 0.61 is below 0.9: train longer." in err
    assert "error: gates that did not pass: held_out_quality; the published table is as it was" in err
    assert operations(project).last_run()["status"] == "FAILURE"


@pytest.mark.parametrize("trouble", ["", "gate", "fault"])
def test_however_a_run_ends_it_has_a_report(command, project, trouble):
    _, _, err = command("run", trouble=trouble)
    last = operations(project).last_run()
    report = project / "run" / "reports" / f"{last['run_id']}.html"
    assert f"report: {report}" in err
    assert f"everything, {last['status']}</h1>" in report.read_text()
    assert (report.parent / "latest.html").read_text() == report.read_text()


def test_a_report_that_cannot_be_written_does_not_hide_how_the_run_ended(command, project):
    (project / "run" / "reports" / "latest.html").mkdir(parents=True)
    code, _, err = command("run", trouble="gate")
    assert code == 1
    assert "no report was written: " in err
    assert "error: gates that did not pass: held_out_quality" in err


def test_a_refused_publication_exits_1(command):
    code, _, err = command("run", trouble="blocked")
    assert code == 1
    assert "error: published_predictions: held_out_quality has no verdict for the current content" in err


def test_a_warning_does_not_stop_a_run(command):
    code, _, err = command("run", trouble="warning")
    assert code == 0
    assert "warn  label_rate_drift: The rate moved." in err


def test_an_error_a_user_can_mend_exits_2_in_one_line(command):
    code, _, err = command("run", trouble="source")
    assert code == 2
    assert err.splitlines()[-1] == "error: entities: entities.csv: no column entity_id; found a, b"
    assert "Traceback" not in err


def test_a_fault_of_the_program_points_to_the_whole_story(command, project):
    code, _, err = command("run", trouble="fault")
    assert code == 1
    assert "error: checkpoint: a fault of the program" in err
    log = Path(err.strip().splitlines()[-1].removeprefix("the whole story: "))
    assert "ZeroDivisionError" in log.read_text()


def test_machine_output_is_the_only_thing_on_stdout(command):
    _, out, err = command("run", "--json")
    assert json.loads(out)["run"]["status"] == "SUCCESS"
    assert "entities" in err


def test_until_stops_before_what_comes_after(command):
    _, _, err = command("run", "--until", "checkpoint")
    assert "pass  held_out_quality" in err
    assert "\npredictions" not in err


def test_select_runs_only_what_was_named(command):
    code, _, err = command("run", "--select", "entities")
    assert code == 0
    assert "(1 assets)" in err
    assert "checkpoint" not in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--select", "predicitons"), 'no asset is called "predicitons"; did you mean "predictions"?'),
        (("--until", "nothing"), 'no asset is called "nothing"; there are: checkpoint, entities,'),
        (("--job", "nightly"), 'no job is called "nightly"; did you mean "nightly_labeling"?'),
        (("--select", "entities", "--until", "checkpoint"), "--select names the assets itself"),
        (("--entities-limit", "-1"), "--entities-limit"),
    ],
)
def test_a_wrong_selection_is_one_line_and_exit_2(command, arguments, message):
    code, out, err = command("run", *arguments)
    assert (code, out) == (2, "")
    assert message in err.strip().splitlines()[-1]


def test_the_limit_on_entities_reaches_the_run(command, project):
    from dagster import DagsterInstance

    command("run", "--select", "entities", "--entities-limit", "0")
    with DagsterInstance.from_config(str(project / "run" / "dagster")) as instance:
        assert instance.get_runs()[0].tags["semlabel/entities_limit"] == "0"


def test_the_shipped_dagster_settings_are_laid_out_once_and_then_left_alone(command, project):
    laid_out = project / "run" / "dagster" / "dagster.yaml"
    command("run", "--select", "entities")
    assert laid_out.read_text() == DAGSTER
    laid_out.write_text(DAGSTER + "# mine\n")
    command("run", "--select", "entities")
    assert laid_out.read_text() == DAGSTER + "# mine\n"


@pytest.mark.parametrize(("trouble", "code"), [("", 0), ("fault", 1)])
def test_a_run_tells_people_at_its_end_however_it_ended(command, project, monkeypatch, trouble, code):
    (project / "pipeline.toml").write_text(SETTINGS + '[alerts]\nurls = ["env:CHAT"]\ndead_man = "env:PING"\n')
    result = GateResult("held_out_quality", "checkpoint", "WARN", "fail", 0.61, 0.9, "AUC 0.61 is below 0.9.")
    (project / "run").mkdir()
    operations(project).record_gate("earlier", result, None, "s", "1")
    with web_receiver() as web:
        monkeypatch.setenv("CHAT", web.address("t0ken"))
        monkeypatch.setenv("PING", f"http://127.0.0.1:{web.port}/p1ng")
        found, _, err = command("run", trouble=trouble)
        assert found == code
        failed = ["semlabel: run failed (ERROR)"] if code else []
        assert web.titles == ["semlabel: held_out_quality failed (WARN)", *failed]
        assert len(web.pings) == (1 if code == 0 else 0)
        assert f"alerts: {len(web.titles)} to env:CHAT" in err
        command("run", trouble=trouble)
        assert len(web.messages) == 1 + len(failed)
        monkeypatch.setenv("CHAT", "json://127.0.0.1:1/t0ken")
        operations(project).record_gate("earlier", replace(result, verdict="pass"), None, "s", "1")
        found, out, err = command("run", trouble=trouble)
    assert found == code  # a channel that is down changes nothing about the run
    assert "env:CHAT failed (no connection)" in err
    assert "env:CHAT FAILS (no connection)" in out
    assert "t0ken" not in out + err


def incidents(project):
    """Open incidents as `semlabel alerts --json` has them: gate, job and message."""
    found = outbox.open_incidents(operations(project).file)
    return [(row["gate"], row["asset"], row["message"]) for row in found]


@pytest.mark.parametrize(
    ("trouble", "said"),
    [
        ("source", "everything failed: entities: entities.csv: no column entity_id; found a, b"),
        (
            "fault",
            "everything failed: checkpoint failed (ZeroDivisionError): look into the log of the run, mend the cause "
            "and run it again.",
        ),
        (
            "blocked",
            "everything failed: published_predictions: held_out_quality has no verdict for the current content",
        ),
    ],
)
def test_a_run_that_fails_without_a_verdict_is_told_once_and_closed_by_the_next_good_one(
    command, project, trouble, said
):
    for _ in range(2):
        command("run", trouble=trouble)
        assert incidents(project) == [("run", "nightly_labeling", said)]
    _, out, _ = command("status")
    assert "Alerts: 1 open incident; see `semlabel alerts`" in out
    _, out, _ = command("alerts")
    assert f"run: {said}" in out
    command("run", "--until", "checkpoint")
    assert len(incidents(project)) == 1
    command("run")
    assert incidents(project) == []
    assert [row["kind"] for row in operations(project).file.rows("SELECT kind FROM outbox")] == ["failed", "recovered"]


def test_a_red_gate_is_not_told_a_second_time_as_a_failed_run(command, project, monkeypatch):
    operations(project).record_gate("earlier", RED, None, "s", "1")
    command("run", trouble="blocked")
    assert [gate for gate, _, _ in incidents(project)] == ["held_out_quality"]
    monkeypatch.setattr("semlabel.cli.execution.new_run_id", lambda: NEXT)
    operations(project).record_gate(NEXT, RED, None, "s", "1")
    command("run", trouble="gate")
    assert operations(project).run(NEXT)["status"] == "FAILURE"
    assert [gate for gate, _, _ in incidents(project)] == ["held_out_quality"]


def test_a_check_of_somebody_else_that_stops_a_run_is_told_as_a_failed_run(command, project):
    command("run", trouble="gate")
    assert incidents(project) == [
        ("run", "nightly_labeling", "everything failed: gates that did not pass: held_out_quality")
    ]


def test_a_preview_that_fails_alerts_nobody(command, project):
    code, _, _ = command("run", "--entities-limit", "5", trouble="source")
    assert code == 2
    assert incidents(project) == []


def test_a_run_that_ends_outside_of_any_step_is_told_too(command, project, monkeypatch):
    def broken(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("semlabel.cli.execution.execute", broken)
    with pytest.raises(OSError, match="No space"):
        command("run")
    ((gate, job, said),) = incidents(project)
    assert (gate, job) == ("run", "nightly_labeling")
    assert said.startswith("everything failed: the run failed (OSError): look into the log")


def test_a_night_that_could_not_begin_is_told_and_a_mistyped_command_is_not(command, project):
    for mistyped in (("--until", "nothing"), ("--job", "nightly"), ("--select", "predicitons")):
        assert command("run", *mistyped)[0] == 2
    assert incidents(project) == []
    current = project / "run" / "labelers" / "current"
    current.parent.mkdir(parents=True, exist_ok=True)
    current.symlink_to("gone")
    for _ in range(2):
        code, _, err = command("run")
        assert code == 2 and "points to gone, which is gone" in err.splitlines()[-1]
    ((gate, job, said),) = incidents(project)
    assert (gate, job) == ("run", "nightly_labeling")
    assert said.startswith("nightly_labeling failed: the run: ") and "promote a labeler that exists" in said
    current.unlink()
    command("run")
    assert incidents(project) == []


# --- interrupted and killed


def started(project, workspace, trouble="slow"):
    """A run in a process of its own that has reached its slow step."""
    flag = project / "started"
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SEMLABEL", "DAGSTER"))}
    process = subprocess.Popen(
        [sys.executable, "-m", "semlabel", "run", "--workspace", str(workspace), "--entities-limit", "0"],
        cwd=project,
        env=kept | {"PYTHONPATH": str(ROOT), "TROUBLE": trouble, "STARTED": str(flag)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Under nohup the tests ignore this signal, and a child would inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),
    )
    for _ in range(1200):
        if flag.exists() or process.poll() is not None:
            break
        time.sleep(0.1)
    assert flag.exists(), process.communicate()
    return process


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGHUP])
def test_an_interrupted_run_says_how_to_go_on_and_holds_nothing(command, project, workspace, stop):
    process = started(project, workspace)
    process.send_signal(stop)
    _, err = process.communicate(timeout=200)
    assert process.returncode == 130
    assert err.splitlines()[-2:] == [
        "interrupted: nothing is lost, whatever was committed stays, the published table is as it was.",
        f"Go on with: semlabel run --entities-limit 0 --workspace {workspace}",
    ]
    assert "Traceback" not in err
    assert operations(project).last_run()["status"] == "CANCELED"
    assert incidents(project) == []
    assert slots(project) == []


def test_a_killed_run_is_closed_by_the_next_and_its_slot_is_free(command, project, workspace):
    process = started(project, workspace)
    process.kill()
    process.communicate()
    assert slots(project) != []
    code, _, err = command("run")
    assert code == 0
    assert "was killed; it is closed now" in err
    assert [run["status"] for run in operations(project).runs()] == ["SUCCESS", "FAILURE"]
    told = operations(project).file.rows("SELECT gate, kind, message FROM outbox")
    assert [(row["gate"], row["kind"]) for row in told] == [("run", "failed"), ("run", "recovered")]
    assert told[0]["message"] == "everything failed: its process died: the next run goes on with its work"
    assert slots(project) == []


def slots(project):
    """Pool slots that somebody holds."""
    from dagster import DagsterInstance

    with DagsterInstance.from_config(str(project / "run" / "dagster")) as instance:
        return list(instance.event_log_storage.get_concurrency_info("gpu").claimed_slots)
