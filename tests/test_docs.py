"""The documentation: it builds without a broken link, and its first page does what it says."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.watched import Watched
from tools.docs_reference import cli_markdown, python_markdown, settings_markdown

ROOT = Path(__file__).resolve().parent.parent
START = ROOT / "docs" / "start.md"
PYTHON_PAGE = ROOT / "docs" / "reference" / "python.md"
PYTHON = r"```python\n(.*?)```"
# A random model learns the sample by heart or not at all; what is tested is that every command works.
TINY = {
    "SEMLABEL__MODEL__PRECISION": "fp32",
    "SEMLABEL__TRAINING__PRECISION": "fp32",
    "SEMLABEL__TRAINING__LEARNING_RATE": "0.01",
    "SEMLABEL__PROMPT__MAX_ITEM_TOKENS": "96",
    "SEMLABEL__GATES__MAX_TRUNCATED_FRACTION": "1.0",
    "SEMLABEL__GATES__MIN_AUC": "0.0",
    # What a random model can show: that not everything is called YES.
    "SEMLABEL__CALIBRATION__MIN_PRECISION": "",
    "SEMLABEL__CALIBRATION__MAX_FPR": "0.99",
}


def commands(page):
    """The lines of the page that are typed: those after `$ ` in console blocks."""
    blocks = re.findall(r"```console\n(.*?)```", page.read_text(), re.S)
    return [line[2:] for block in blocks for line in block.splitlines() if line.startswith("$ ")]


def test_the_site_builds_without_a_broken_link(tmp_path):
    pytest.importorskip("mkdocs")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT), "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    settings = (tmp_path / "reference" / "settings.html").read_text()
    assert "min_average_precision_ratio" in settings
    assert "generated:" not in settings
    for page in tmp_path.rglob("*.html"):
        for picture in re.findall(r'<img[^>]* src="([^":]+)"', page.read_text()):
            assert (page.parent / picture).is_file(), (page, picture)
    assert 'src="benchmarks/results/refresh.png"' in (tmp_path / "refresh.html").read_text()


def test_every_page_is_reached_from_the_navigation():
    nav = (ROOT / "mkdocs.yml").read_text()
    for page in (ROOT / "docs").rglob("*.md"):
        assert f": {page.relative_to(ROOT / 'docs').as_posix()}\n" in nav, page


def test_the_settings_page_has_every_setting_and_its_default():
    page = settings_markdown()
    assert "## [calibration]" in page
    assert "| `confidence` | number, above 0.5, below 1 | `0.95` |" in page
    assert "| `entities` | text" in page
    assert "must be set |" in page
    assert '| `method` | "full" or "lora" | `"full"` |' in page


def test_the_command_page_has_every_command():
    page = cli_markdown()
    for command in ("init", "check", "run", "judgements import", "alerts test", "bench throughput"):
        assert f"## semlabel {command}\n" in page, command


def test_the_python_page_has_the_public_methods_and_no_private_ones():
    page = python_markdown()
    assert "Labeler.score(query: str, items: Sequence[str])" in page
    assert "### Scorer.margins" in page
    assert "Labeler._" not in page


def test_the_first_page_names_commands_that_exist():
    names = set(re.findall(r"^## semlabel (\S+)$", cli_markdown(), re.M))
    for page in sorted((ROOT / "docs").rglob("*.md")):
        for word in re.findall(r"`semlabel ([a-z]+)", page.read_text()):
            assert word in names, (page, word)


def written_commands():
    """Every `semlabel ...` that stands in a code block or between backticks of any page, with its page."""
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "semlabel/templates").glob("*.md")]
    for page in sorted(pages):
        inside = False
        for line in page.read_text().replace("\\\n", " ").splitlines():
            if line.lstrip().startswith("```"):
                inside = not inside
                continue
            spans = [line.strip()] if inside else re.findall(r"`([^`]+)`", line)
            for span in spans:
                found = re.match(r"(?:\$ |ExecStart=)?(?:\S*/)?semlabel ((?:[a-z]|-).*)", span)
                if found:
                    yield page, re.split(r"\s{3,}|\s#\s", found[1])[0]


def test_every_command_and_option_that_is_written_down_exists():
    from typer.main import get_command

    from semlabel.cli import build_app

    commands = {}

    def walk(name, command):
        commands[name] = {
            option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)
        }
        for below, inner in getattr(command, "commands", {}).items():
            walk(f"{name} {below}".strip(), inner)

    walk("", get_command(build_app()))
    seen = 0
    for page, line in written_commands():
        words = shlex.split(line)
        name = " ".join(words[:2]) if " ".join(words[:2]) in commands else words[0]
        assert name in commands, (page, line)
        for word in words:
            option = word.partition("=")[0]
            if option.startswith("--"):
                assert option in commands[name] | {"--help"}, (page, line)
        seen += 1
    assert seen > 60


# One process for all commands: what Python and Dagster import is the same for each of them.
COMMANDS = """
import os, shlex, sys
from semlabel.cli import run_command

for line in sys.stdin.read().splitlines():
    name, *arguments = shlex.split(line)
    if name == "cd":
        os.chdir(arguments[0])
    else:
        assert name == "semlabel", line
        code = run_command(arguments)
        assert code == 0, f"{line}: exit code {code}"
"""


def process(folder, command, variables, typed=""):
    """What must end well."""
    ran = subprocess.run(command, input=typed, cwd=folder, env=variables, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-3000:]


def first_page(folder):
    """The lines that are typed but for `pip install`, a random model in the base model's place, and who watches."""
    from tests.tiny import save_tiny

    typed = [line for line in commands(START) if not line.startswith("pip ")]
    assert typed[0] == "semlabel init my-labels"
    assert len(typed) == len(commands(START)) - 1
    watched = Watched(folder / "watched")
    variables = watched.environment(PYTHONPATH=str(ROOT), HF_HUB_OFFLINE="0")
    return typed, watched, variables | TINY | {"SEMLABEL__MODEL__BASE": str(save_tiny(folder / "base"))}


def left_nothing(folder, watched):
    assert (folder / "my-labels" / "labels.parquet").is_file()
    assert watched.asked == [], "an address outside this machine was asked for"
    assert watched.left == [], "files were left outside the project"
    assert {path.name for path in folder.iterdir()} == {"base", "my-labels", "watched"}


def test_the_first_page_runs_as_it_stands(tmp_path):
    typed, watched, variables = first_page(tmp_path)
    process(tmp_path, [sys.executable, "-c", COMMANDS], variables, "\n".join(typed))
    blocks = [*re.findall(PYTHON, START.read_text(), re.S), *re.findall(PYTHON, PYTHON_PAGE.read_text(), re.S)]
    assert len(blocks) == 3
    process(tmp_path / "my-labels", [sys.executable, "-c", "\n".join(blocks)], variables)
    left_nothing(tmp_path, watched)


@pytest.mark.slow  # every command is a process of its own, as people have it
def test_the_first_page_can_be_typed_into_one_shell(tmp_path):
    typed, watched, variables = first_page(tmp_path)
    script = [f'semlabel() {{ {shlex.quote(sys.executable)} -m semlabel "$@"; }}', "set -e", *typed]
    process(tmp_path, ["bash", "-c", "\n".join(script)], variables)
    left_nothing(tmp_path, watched)
