"""Numbers sized for the sample do not pass as choices: they are listed once the tables are somebody's own."""

import json
import tomllib
from pathlib import Path

import pytest

from semlabel import project_files
from semlabel.cli import run_command
from semlabel.sample_settings import left_from_sample, sentence
from semlabel.settings import load_settings
from semlabel.sources import read_entities
from tests.tiny import save_tiny

TEMPLATE = Path(project_files.__file__).parent / "templates" / "pipeline.toml"


@pytest.fixture
def project(tmp_path, monkeypatch):
    project_files.lay_out(tmp_path / "my-labels")
    monkeypatch.chdir(tmp_path / "my-labels")
    monkeypatch.delenv("SEMLABEL_CONFIG", raising=False)
    return tmp_path / "my-labels"


def left(project):
    settings = load_settings(project / "pipeline.toml")
    return left_from_sample(settings, read_entities(settings).digest)


def own_tables(project):
    (project / "data/tickets.csv").write_text(
        (project / "data/tickets.csv").read_text() + "0061,A ticket of our own.\n"
    )


def test_every_number_of_the_template_that_is_no_default_is_listed_with_tables_of_ones_own(project):
    assert left(project) == {}
    own_tables(project)
    written = tomllib.loads(TEMPLATE.read_text())
    found = left(project)
    assert all(written[name.partition(".")[0]][name.partition(".")[2]] == value for name, value in found.items())
    assert {"gates.min_auc", "calibration.min_expected_flagged", "calibration.min_precision"} <= set(found)
    assert {"splits.calibrate", "splits.certify", "splits.test", "training.epochs", "prompt.max_query_tokens"} <= set(
        found
    )
    # What is the default anyway was sized for nobody.
    assert not {"training.learning_rate", "calibration.confidence", "scoring.items_per_round"} & set(found)


def test_what_was_changed_or_taken_out_is_not_listed(project):
    own_tables(project)
    text = (project / "pipeline.toml").read_text()
    before = left(project)
    (project / "pipeline.toml").write_text(text.replace("min_auc = 0.5", "min_auc = 0.8").replace("epochs = 3", ""))
    assert before.keys() - left(project).keys() == {"gates.min_auc", "training.epochs"}


def test_it_is_one_line_in_check_and_only_for_a_project_from_the_template(project, capfd, monkeypatch):
    monkeypatch.setenv("SEMLABEL__MODEL__BASE", str(save_tiny(project.parent / "base")))

    def check(*options):
        capfd.readouterr()
        assert run_command(["check", *options]) == 0
        return capfd.readouterr().out

    assert "Still as the template" not in check()
    own_tables(project)
    (line,) = (line for line in check().splitlines() if "Still as the template" in line)
    assert line.startswith("  - ") and "; [gates] min_auc = 0.5, min_average_precision_ratio = 0, " in line
    assert json.loads(check("--json"))["left_from_sample"] == left(project)
    (project / "code_location.json").unlink()
    assert "Still as the template" not in check()


def test_a_line_names_each_section_once():
    assert sentence({"splits.test": 6, "gates.min_auc": 0.5, "gates.min_entities": 50}) == (
        "Still as the template sized it for its sample: [splits] test = 6; [gates] min_auc = 0.5, min_entities = 50. "
        "Set each for your tables, or take it out for the default (a promise in [calibration] has none)."
    )
