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
    # Who has no repository follows a link to a file of it all the same.
    for page in tmp_path.rglob("*.html"):
        for target in re.findall(r'href="([^":#?]+)["#?]', page.read_text()):
            assert target.startswith("/") or (page.parent / target).exists(), (page, target)
    for name in ("Containerfile", "examples/downstream/follow.sql", "examples/k8s/raycluster.yaml"):
        assert (tmp_path / name).read_bytes() == (ROOT / name).read_bytes()
    assert 'href="../Containerfile"' in (tmp_path / "howto" / "nightly.html").read_text()
    assert 'href="../examples/downstream/index.html"' in (tmp_path / "howto" / "roll-back.html").read_text()
    assert 'href="../../scale.html"' in (tmp_path / "examples" / "reranking" / "index.html").read_text()
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


# What the other pages say, typed after the first page in its project; what stands for something of the reader's own is
# filled in: a page's file, table, labeler or id.
TYPED = (
    "check",
    "check --config pipeline.toml",
    "run --until catalog",
    "run --until training_pairs",
    "run --config pipeline.toml",
    "status --json",
    "status --config pipeline.toml",
    "alerts",
    "alerts --config pipeline.toml",
    "alerts explain volume_change",
    "doctor",
    "sample --count 200 --out judge.csv",
    "judgements import judge.csv",
    "sample --random --split calibrate --split certify --split test --count 400 --out prove.csv",
    "judgements import prove.csv",
    "init --upgrade .",
    "init --upgrade . --yes",
    "erase 0001",
)
# What another test types with these options, where it has the state that they need.
ELSEWHERE = {
    "alerts test": "test_cli_alerts.py",
    "alerts ack": "test_cli_alerts.py",
    "approve": "test_cli_commands.py",
    "promote --reason": "test_cli_commands.py",
    "rollback": "test_cli_rollback.py",
    "rollback --resume": "test_cli_commands.py",
    "report --open": "test_html_report.py",
    "run --job": "test_cli.py",
    "run --select": "test_cli.py",
    "serve --config --http --grpc --workers": "test_serve_command.py",
    "teacher --out --model --price-in --price-out --max-cost": "test_teacher.py",
    "ui": "test_browser.py",
    "bench compare --labeler": "test_label_differences.py",
    "bench throughput": "test_bench.py",
    "bench serving --model --out": "test_bench_serving.py",
    "bench ablations --config": "test_experiments.py",
    "bench data-efficiency --config": "test_experiments.py",
    "bench formats --config": "test_experiments.py",
}
# What no test types as it stands, and why.
NEVER = {
    "bench coupling --config --generator": "it needs a generator that hours of training make; its tests name --model",
    "bench order --config --generator": "as above",
    "bench refresh --large": "it takes seven minutes; its tests are --quick",
    "bench throughput --config": "the demo's labeler takes an hour to train; its tests name --model",
    "bench throughput --quick --precision --shape --items --method --peers --gguf --model --out": "as above",
    "ui --config": "Dagster's server takes half a minute to start; the slow test starts it once",
}


def kind(line):
    """A command line as its command and its options: what tells a command that was run from one that was not."""
    words = shlex.split(line)
    grouped = words[0] in ("alerts", "judgements", "bench") and len(words) > 1 and not words[1].startswith("-")
    return " ".join(words[: 2 if grouped else 1]), {word.partition("=")[0] for word in words if word.startswith("--")}


def within(line, known):
    """The entry of `known` with the same command and at least the options of the line."""
    command, options = kind(line)
    return next((entry for entry in known if kind(entry)[0] == command and options <= kind(entry)[1]), None)


def test_every_command_that_is_written_down_is_run_by_a_test():
    typed = [*(line.removeprefix("semlabel ") for line in commands(START)), *TYPED]
    used = set()
    for page, line in written_commands():
        if within(line, typed) is None:
            entry = within(line, ELSEWHERE) or within(line, NEVER)
            assert entry is not None, f"{page}: no test runs {line!r}: add it to TYPED, ELSEWHERE or NEVER"
            used.add(entry)
    # A list that outlived the page it was for would hide the next command.
    assert used == {*ELSEWHERE, *NEVER}


@pytest.mark.parametrize("line", ELSEWHERE)
def test_what_is_said_to_be_run_elsewhere_is(line):
    text = (ROOT / "tests" / ELSEWHERE[line]).read_text()
    command, options = kind(line)
    for word in (*command.split(), *options):
        assert f'"{word}"' in text, word


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


def test_the_first_page_runs_as_it_stands_and_what_the_others_say_runs_after_it(tmp_path):
    typed, watched, variables = first_page(tmp_path)
    others = [f"semlabel {line}" for line in TYPED]
    process(tmp_path, [sys.executable, "-c", COMMANDS], variables, "\n".join([*typed, *others]))
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
