"""The container file names files and commands that are there, and what it copies is enough to build the wheel."""

import json
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from semlabel.cli import run_command
from semlabel.gates.registry import GATES
from semlabel.run_news import RUN

ROOT = Path(__file__).resolve().parent.parent
LINES = (ROOT / "Containerfile").read_text().replace("\\\n", " ").splitlines()


def given(instruction):
    """What follows an instruction, for each of its lines."""
    return [line.removeprefix(instruction).strip() for line in LINES if line.startswith(instruction + " ")]


def copied():
    """(source, place in the image) of everything that is copied."""
    found = []
    for line in given("COPY"):
        *sources, target = line.split()
        found += [(name, target + name if target.endswith("/") else target) for name in sources]
    return found


def test_every_file_that_is_copied_is_there_and_none_of_it_is_ignored():
    names = [name for name, _ in copied()]
    assert "semlabel" in names
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    assert ignored[0] == "*"
    for name in names:
        assert (ROOT / name).exists(), name
        assert f"!{name}" in ignored, name


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel, built as the image builds it from nothing but what is copied."""
    folder = tmp_path_factory.mktemp("image")
    for name, place in copied():
        target = folder / place.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copyfile(ROOT / name, target)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--no-deps", "--no-index"]
    built = subprocess.run(
        [*pip, "--no-build-isolation", "--quiet", "-w", str(folder), str(folder / "build")],
        capture_output=True,
        text=True,
    )
    assert built.returncode == 0, built.stderr
    (found,) = folder.glob("*.whl")
    return found


def test_what_is_copied_makes_a_wheel_that_can_lay_out_a_project(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    code = "semlabel/code_location/"
    assert {code + "workspace.yaml", code + "pipeline/definitions.py", code + "pipeline/dagster.yaml"} <= names
    assert {"semlabel/templates/pipeline.toml", "semlabel/templates/gitignore"} <= names
    assert {f"semlabel/runbook_pages/{gate}.md" for gate in (*GATES, RUN)} <= names
    assert not any(name.startswith(("tests/", "demo/", "tools/", "docs/")) for name in names)


def test_what_is_installed_are_extras_and_what_runs_are_commands_that_exist(capfd):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (extras,) = re.findall(r'"/build\[([a-z,-]+)\]"', "\n".join(given("RUN")))
    assert set(extras.split(",")) <= set(project["optional-dependencies"])
    (entry,) = json.loads(given("ENTRYPOINT")[0])
    command, *options = json.loads(given("CMD")[0])
    assert entry in project["scripts"]
    assert run_command([command, "--help"]) == 0
    shown = capfd.readouterr().out
    for option in options:
        assert not option.startswith("-") or option in shown, option


def test_nobody_is_root_and_the_project_is_where_it_is_mounted():
    assert given("USER") == ["labels"]
    assert given("WORKDIR") == given("VOLUME") == ["/srv/labels"]
    assert json.loads(given("CMD")[0])[-1].startswith("/srv/labels/")
    assert "HF_HOME=/srv/labels/" in given("ENV")[0]
    assert "NOT BUILT HERE" in "\n".join(LINES)
