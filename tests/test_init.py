"""`semlabel init`: the project runs as it is, an upgrade shows what it does, and nobody's work is written over."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from semlabel import project_files
from semlabel.cli import run_command
from semlabel.settings import load_settings
from semlabel.sources import read_catalog, read_entities, read_references

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def project(tmp_path):
    assert run_command(["init", str(tmp_path / "my-labels")]) == 0
    return tmp_path / "my-labels"


@pytest.fixture
def newer(monkeypatch):
    """The shipped code with changes, as another version would have it."""
    shipped = project_files.shipped_code()

    def change(**files):
        changed = shipped | {name.replace("__", "/") + ".py": text.encode() for name, text in files.items() if text}
        for name, text in files.items():
            if text is None:
                changed.pop(name.replace("__", "/") + ".py")
        monkeypatch.setattr(project_files, "shipped_code", lambda: changed)

    return change


def semlabel(project, *arguments, **environment):
    """A command as a user would give it: another process, in the project's folder."""
    variables = {name: value for name, value in os.environ.items() if name not in ("SEMLABEL_CONFIG", "DAGSTER_HOME")}
    return subprocess.run(
        [sys.executable, "-m", "semlabel", *arguments],
        cwd=project,
        env=variables | {"PYTHONPATH": str(ROOT)} | environment,
        capture_output=True,
        text=True,
    )


def test_a_new_project_holds_all_that_a_code_location_needs(project):
    shipped = project_files.shipped_code()
    assert {"workspace.yaml", "pipeline/definitions.py", "pipeline/dagster.yaml", "assets/pairs.py"} <= set(shipped)
    assert not any("__pycache__" in name for name in shipped)
    for name, content in shipped.items():
        assert (project / name).read_bytes() == content
    stamp = json.loads((project / "code_location.json").read_text())
    assert set(stamp["files"]) == set(shipped)
    assert (project / ".gitignore").read_text().startswith("run/\n")


def test_every_row_of_the_sample_is_kept(project):
    settings = load_settings(project / "pipeline.toml")
    for read, rows in ((read_entities, 60), (read_catalog, 12), (read_references, 90)):
        table = read(settings)
        assert (table.rows_in, len(table.frame), table.refused, table.warnings) == (rows, rows, [], [])
    references = read_references(settings).frame
    assert set(references["entity_id"]) == {f"{n:04d}" for n in range(1, 61)}
    assert set(references["candidate_id"]) == set(read_catalog(settings).frame["candidate_id"])


@pytest.mark.parametrize("there", ["notes.txt", ".env", "pipeline.toml"])
def test_a_folder_with_anything_in_it_is_left_alone(tmp_path, capfd, there):
    (tmp_path / there).write_text("mine")
    assert run_command(["init", str(tmp_path)]) == 2
    assert f"{tmp_path} is not empty and nothing was written; name a new one" in capfd.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == [there]


def test_a_fresh_git_repository_counts_as_empty(tmp_path):
    (tmp_path / ".git").mkdir()
    assert run_command(["init", str(tmp_path)]) == 0
    assert (tmp_path / "pipeline.toml").is_file()


def test_an_existing_project_is_told_of_upgrade(project, capfd):
    assert run_command(["init", str(project)]) == 2
    assert "`semlabel init --upgrade`" in capfd.readouterr().err


def test_an_upgrade_shows_its_diff_and_writes_nothing_unasked(project, newer, capfd):
    newer(assets__pairs="# the new one\n")
    before = (project / "assets/pairs.py").read_bytes()
    capfd.readouterr()
    assert run_command(["init", "--upgrade", str(project)]) == 0
    out, err = capfd.readouterr()
    assert "--- here/assets/pairs.py\n+++ shipped/assets/pairs.py\n" in out
    assert "+# the new one\n" in out
    assert "1 files would change" in err
    assert (project / "assets/pairs.py").read_bytes() == before


def test_an_upgrade_replaces_adds_and_removes_and_is_done_then(project, newer, capfd):
    newer(assets__pairs="# the new one\n", assets__fresh="# added\n", assets__drift=None)
    assert run_command(["init", "--upgrade", str(project), "--yes"]) == 0
    assert (project / "assets/pairs.py").read_text() == "# the new one\n"
    assert (project / "assets/fresh.py").read_text() == "# added\n"
    assert not (project / "assets/drift.py").exists()
    assert list(project.rglob("*.kept*")) == []
    capfd.readouterr()
    assert run_command(["init", "--upgrade", str(project)]) == 0
    assert "nothing to change" in capfd.readouterr().err


@pytest.mark.parametrize("gone", [False, True])
def test_what_a_team_changed_is_kept_beside_the_new_file(project, newer, capfd, gone):
    (project / "assets/pairs.py").write_text("# ours\n")
    newer(assets__pairs=None if gone else "# the new one\n")
    assert run_command(["init", "--upgrade", str(project), "--yes"]) == 0
    err = capfd.readouterr().err
    assert "assets/pairs.py: changed in this project" in err
    assert "kept as assets/pairs.py.kept" in err
    assert (project / "assets/pairs.py.kept").read_text() == "# ours\n"
    assert (project / "assets/pairs.py").exists() is not gone


def test_a_second_upgrade_keeps_what_the_first_one_kept(project, newer):
    for number in (1, 2):
        (project / "assets/pairs.py").write_text(f"# ours {number}\n")
        assert run_command(["init", "--upgrade", str(project), "--yes"]) == 0
    kept = sorted(path.read_text() for path in project.glob("assets/pairs.py.kept*"))
    assert kept == ["# ours 1\n", "# ours 2\n"]


def test_an_upgrade_leaves_the_teams_own_files(project, newer):
    (project / "pipeline.toml").write_text("# ours\n")
    (project / "data/tickets.csv").unlink()
    newer(assets__pairs="# the new one\n")
    assert run_command(["init", "--upgrade", str(project), "--yes"]) == 0
    assert (project / "pipeline.toml").read_text() == "# ours\n"
    assert not (project / "data/tickets.csv").exists()


@pytest.mark.parametrize("name", ["../victim.py", "assets/../../victim.py", "/etc/victim", "README.md"])
def test_a_stamp_cannot_name_files_outside_the_code(project, tmp_path, capfd, name):
    (tmp_path / "victim.py").write_text("mine")
    (project / "code_location.json").write_text(json.dumps({"semlabel": "0", "files": {name: "0"}}))
    assert run_command(["init", "--upgrade", str(project), "--yes"]) == 2
    assert "is no file of a code location" in capfd.readouterr().err
    assert (tmp_path / "victim.py").read_text() == "mine"


@pytest.mark.parametrize("stamp", [None, "{", "[]", '{"files": {}}'])
def test_a_folder_without_a_stamp_is_no_project(project, capfd, stamp):
    (project / "code_location.json").unlink()
    if stamp is not None:
        (project / "code_location.json").write_text(stamp)
    assert run_command(["init", "--upgrade", str(project)]) == 2
    assert capfd.readouterr().err.count("\n") == 1


@pytest.mark.slow  # the first page of the documentation does the same in the fast suite
def test_the_sample_runs_to_an_honest_end(project):
    """With a random model: every stage works, and the verdict is what sixty tickets can show."""
    from tests.tiny import save_tiny

    base = str(save_tiny(project / "base"))
    checked = semlabel(project, "check", SEMLABEL__MODEL__BASE=base)
    assert checked.returncode == 0, checked.stderr
    assert "certify has 20 entities: a bound counts as shown from 40 on" in checked.stdout
    assert "Look at:" in checked.stdout
    overrides = {
        "SEMLABEL__MODEL__BASE": base,
        "SEMLABEL__MODEL__PRECISION": "fp32",
        "SEMLABEL__TRAINING__PRECISION": "fp32",
        "SEMLABEL__TRAINING__LEARNING_RATE": "0.01",
        "SEMLABEL__PROMPT__MAX_ITEM_TOKENS": "96",
        "SEMLABEL__GATES__MIN_AUC": "0.0",
        "SEMLABEL__GATES__MAX_TRUNCATED_FRACTION": "1.0",
    }
    ran = semlabel(project, "run", **overrides)
    status = json.loads(semlabel(project, "status", "--json", **overrides).stdout)
    verdicts = {gate["gate"]: gate["verdict"] for gate in status["gates"]}
    assert (ran.returncode, verdicts.get("held_out_errors")) in ((0, "pass"), (1, "not_enough_data")), ran.stderr
    assert {verdicts[gate] for gate in ("catalog_contract", "entities_contract", "pairs_contract")} == {"pass"}
    assert not (project / "run" / "published").exists() or not any((project / "run" / "published").iterdir())
