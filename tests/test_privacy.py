"""Nothing leaves: no telemetry of any library, no address but this machine, no file outside the project."""

import subprocess
import sys
from pathlib import Path

import dagster as dg
import pytest
import yaml

from semlabel import privacy
from semlabel.cli import run_command
from semlabel.project_files import shipped_code
from tests.tiny import save_tiny
from tests.watched import Watched

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def watched(tmp_path):
    return Watched(tmp_path / "watched")


def python(watched, *arguments, cwd=ROOT, **variables):
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env=watched.environment(PYTHONPATH=str(ROOT), **variables),
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize(
    "line",
    [
        "socket.create_connection(('192.0.2.1', 80), timeout=1)",
        "socket.create_connection(('telemetry.example', 80), timeout=1)",
        "socket.socket(type=socket.SOCK_DGRAM).sendto(b'x', ('192.0.2.1', 53))",
        "socket.socket(socket.AF_INET6).connect(('2001:db8::1', 80))",
        "import os, sys; os.execv(sys.executable, ['python', '-c', "
        "'import socket; socket.socket().connect_ex((\"192.0.2.1\", 80))'])",
    ],
)
def test_the_trap_notices_whoever_leaves(watched, line):
    python(watched, "-c", f"import socket; {line}")
    assert len(watched.asked) == 1


def test_the_trap_lets_this_machine_talk_to_itself(watched):
    code = (
        "import socket; server = socket.create_server(('127.0.0.1', 0));"
        "socket.create_connection(('localhost', server.getsockname()[1])); print('met')"
    )
    assert python(watched, "-c", code).stdout == "met\n"
    assert watched.asked == []


def test_telemetry_is_off_before_any_library_is_imported(watched):
    names = sorted(privacy.NO_TELEMETRY)
    code = f"import os, semlabel; print([os.environ.get(name) for name in {names!r}])"
    found = python(watched, "-c", f"import os; [os.environ.pop(name, None) for name in {names!r}]; {code}")
    assert found.stdout.strip() == str([privacy.NO_TELEMETRY[name] for name in names])


def test_who_wants_to_be_counted_is_obeyed():
    environment = {"RAY_USAGE_STATS_ENABLED": "1"}
    privacy.switch_off_telemetry(environment)
    assert environment["RAY_USAGE_STATS_ENABLED"] == "1"
    assert environment["DAGSTER_DISABLE_TELEMETRY"] == "1"


def test_the_libraries_say_so_themselves(watched):
    code = (
        "import semlabel; from huggingface_hub import constants; from dagster._core.telemetry_upload import "
        "is_running_in_test; print(constants.HF_HUB_DISABLE_TELEMETRY, is_running_in_test())"
    )
    assert python(watched, "-c", code).stdout.strip() == "True True"


def test_the_dagster_settings_that_ship_and_are_laid_out_have_telemetry_off(tmp_path):
    assert run_command(["init", str(tmp_path / "project")]) == 0
    laid_out = (tmp_path / "project/pipeline/dagster.yaml").read_bytes()
    assert laid_out == shipped_code()["pipeline/dagster.yaml"]
    assert yaml.safe_load(laid_out)["telemetry"] == {"enabled": False}
    (tmp_path / "home").mkdir()
    (tmp_path / "home/dagster.yaml").write_bytes(laid_out)
    with dg.DagsterInstance.from_config(str(tmp_path / "home")) as instance:
        assert not instance.telemetry_enabled


def test_no_page_starts_dagster_where_it_would_report(tmp_path):
    """`dagster dev` without DAGSTER_HOME has a home of its own, in which telemetry is on."""
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "semlabel/templates").rglob("*.*")]
    for page in pages:
        if page.suffix in (".md", ".toml"):
            for line in page.read_text().splitlines():
                assert "dagster dev" not in line or "DAGSTER_HOME" in line, (page, line)


def test_offline_means_that_nobody_is_asked(watched, tmp_path):
    assert run_command(["init", str(tmp_path / "project")]) == 0
    ran = python(watched, "-m", "semlabel", "run", "--until", "catalog", cwd=tmp_path / "project", HF_HUB_OFFLINE="1")
    assert watched.asked == []
    assert watched.left == []
    assert ran.returncode != 0
    assert "HuggingFaceTB/SmolLM2-135M-Instruct" in ran.stderr
    assert "Traceback" not in ran.stderr


@pytest.mark.slow  # the first page of the docs is run under the same watch (test_docs.py)
def test_a_model_on_this_disk_is_asked_of_nobody(watched, tmp_path):
    """Without HF_HUB_OFFLINE too: a folder needs no hub."""
    assert run_command(["init", str(tmp_path / "project")]) == 0
    base = save_tiny(tmp_path / "base")
    variables = {"SEMLABEL__MODEL__BASE": str(base), "HF_HUB_OFFLINE": "0", "SEMLABEL__PROMPT__MAX_ITEM_TOKENS": "96"}
    before = {path.name for path in (tmp_path / "project").iterdir()}
    ran = python(watched, "-m", "semlabel", "run", "--until", "catalog", cwd=tmp_path / "project", **variables)
    assert ran.returncode == 0, ran.stderr
    assert watched.asked == []
    assert watched.left == []
    assert {path.name for path in (tmp_path / "project").iterdir()} - before == {"run"}
