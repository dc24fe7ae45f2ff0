"""Several labelers in one deployment: each has its own tables, gates and publication, and all share one code."""

import csv
import os
import subprocess
import sys
from pathlib import Path

import dagster as dg
import pytest

from semlabel.cli import run_command
from semlabel.cli.code_location import read_workspace
from semlabel.errors import SettingsError
from semlabel.operations import Operations
from semlabel.published import current_publication
from semlabel.settings import load_settings
from semlabel.warehouse import Warehouse
from tests.pipeline_fixtures import make_project
from tests.tiny import save_tiny

ROOT = Path(__file__).resolve().parent.parent
SETTINGS = """
extends = "pipeline.toml"

[environment]
labeler = "{name}"

[sources]
catalog = "{name}.csv"
references = "{name}-references.csv"

[model]
base = "./{model}"

[prompt]
template = "{name}: {{entity}}\\nActivity: {{candidate}}"
"""
WORKSPACE = """
load_from:
  - python_module: {module_name: pipeline.labelers, attribute: topics, working_directory: ., location_name: topics}
  - python_module: {module_name: pipeline.labelers, attribute: urgency, working_directory: ., location_name: urgency}
"""


def settings_files(root):
    for name, model in (("topics", "base"), ("urgency", "other")):
        (root / f"{name}.toml").write_text(SETTINGS.format(name=name, model=model))
    (root / "workspace.yaml").write_text(WORKSPACE)


def materialised(root, instance, *assets):
    """Both labelers run: these assets with their checks, or everything."""
    from pipeline.assembly import build_defs
    from resources.project import asset_key
    from resources.scorer import forget_models

    for name in ("topics", "urgency"):
        forget_models()
        job = build_defs(root / f"{name}.toml").resolve_implicit_global_asset_job_def()
        keys = [asset_key(name, asset) for asset in assets] or None
        result = job.execute_in_process(instance=instance, raise_on_error=False, asset_selection=keys)
        assert result.success, name


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Both labelers with their tables read and their pairs chosen, against one Dagster instance."""
    root = tmp_path_factory.mktemp("several") / "project"
    project = make_project(root)
    save_tiny(root / "other", seed=3)
    settings_files(root)
    rows = project.catalog()
    for name, kept in (("topics", rows), ("urgency", rows[1:7])):
        ids = {row["candidate_id"] for row in kept}
        references = [row for row in project.references() if row["candidate_id"] in ids]
        for file, table in ((f"{name}.csv", kept), (f"{name}-references.csv", references)):
            with (root / file).open("w", newline="") as stream:
                writer = csv.DictWriter(stream, list(table[0]))
                writer.writeheader()
                writer.writerows(table)
    with dg.DagsterInstance.ephemeral() as instance:
        materialised(root, instance, "entities", "catalog", "reference_labels", "training_pairs")
        yield root, instance


def test_each_keeps_its_tables_and_verdicts_to_itself(made):
    root, _ = made
    for name, rows in (("topics", 8), ("urgency", 6)):
        settings = load_settings(root / f"{name}.toml")
        assert settings.paths.state == root / "run" / name
        assert settings.paths.published == root / "run" / name / "published"
        assert settings.paths.dagster_home == root / "run" / "dagster"
        operations = Operations(settings.paths.ops)
        assert len(operations.runs()) == 1
        assert "catalog_contract" in {row["gate"] for row in operations.latest_gates()}
        with Warehouse.open(settings.paths.warehouse, read_only=True) as warehouse:
            assert warehouse.rows("SELECT count(*) FROM catalog") == [(rows,)]


@pytest.mark.slow
def test_both_publish_their_own_table_of_their_own_catalog(made):
    root, instance = made
    materialised(root, instance)
    found = {name: load_settings(root / f"{name}.toml") for name in ("topics", "urgency")}
    versions = {name: current_publication(settings.paths.published) for name, settings in found.items()}
    assert {name: version["rows"] for name, version in versions.items()} == {"topics": 480, "urgency": 360}
    assert len({version["labeler_digest"] for version in versions.values()}) == 2


def test_their_assets_are_told_apart_in_one_history(made):
    _, instance = made
    keys = {key.to_user_string() for key in instance.all_asset_keys()}
    assert {"topics/entities", "urgency/entities", "topics/training_pairs"} <= keys
    assert "entities" not in keys
    (rows,) = {
        instance.get_latest_materialization_event(dg.AssetKey(["urgency", "catalog"]))
        .asset_materialization.metadata["dagster/row_count"]
        .value
    }
    assert rows == 6


def test_each_job_holds_the_assets_and_checks_of_its_labeler_only(made):
    from pipeline.assembly import build_defs

    root, _ = made
    for name in ("topics", "urgency"):
        for job, gates in (("nightly_labeling", 17), ("train_labeler", 10)):
            layer = build_defs(root / f"{name}.toml").resolve_job_def(job).asset_layer
            assert {key.path[0] for key in layer.executable_asset_keys} == {name}
            assert len(layer.asset_graph.asset_check_keys) == gates
            assert {key.asset_key.path[0] for key in layer.asset_graph.asset_check_keys} == {name}


def test_an_attribute_is_the_settings_file_of_that_name(made, monkeypatch):
    from pipeline import labelers

    root, _ = made
    monkeypatch.setattr(labelers, "FOLDER", root)
    assert labelers.urgency is labelers.urgency
    assert dg.AssetKey(["urgency", "catalog"]) in labelers.urgency.resolve_asset_graph().materializable_asset_keys
    with pytest.raises(AttributeError, match=r"nobody\.toml: no such settings file"):
        labelers.nobody  # noqa: B018


def test_a_command_takes_the_location_of_its_settings_file(tmp_path):
    settings_files(tmp_path)
    workspace = tmp_path / "workspace.yaml"
    found = read_workspace(workspace, tmp_path / "urgency.toml")
    assert (found.attribute, found.name) == ("urgency", "urgency")
    assert found.repository_tag == "__repository__@urgency"
    for other in (tmp_path / "third.toml", tmp_path / "below" / "urgency.toml"):
        with pytest.raises(SettingsError, match=r"no location is for .* put the file beside it"):
            read_workspace(workspace, other)


def test_the_folder_of_dagsters_history_is_no_name_of_a_labeler(tmp_path, capsys):
    make_project(tmp_path)
    with pytest.raises(SettingsError, match="choose another name"):
        load_settings(tmp_path / "pipeline.toml", {"SEMLABEL__ENVIRONMENT__LABELER": "Dagster"})


@pytest.fixture
def laid_out(tmp_path):
    """What `semlabel init` lays out, with two labelers and its own copy of the code."""
    root = tmp_path / "project"
    assert run_command(["init", str(root)]) == 0
    settings_files(root)
    for name in ("topics", "urgency"):
        (root / f"{name}.csv").write_text((root / "data/topics.csv").read_text())
        (root / f"{name}-references.csv").write_text((root / "data/references.csv").read_text())
    save_tiny(root / "base")
    save_tiny(root / "other", seed=3)
    return root


def program(root, *arguments):
    hidden = ("SEMLABEL_CONFIG", "DAGSTER_HOME")
    variables = {name: value for name, value in os.environ.items() if name not in hidden}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=root,
        env=variables | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )


def test_a_laid_out_project_runs_either_of_them(laid_out):
    ran = program(laid_out, "-m", "semlabel", "run", "--config", "urgency.toml", "--until", "entities")
    assert ran.returncode == 0, ran.stderr
    assert (laid_out / "run/urgency/warehouse.duckdb").is_file()
    assert not (laid_out / "run/topics").exists()


@pytest.mark.slow
def test_dagster_loads_both_locations(laid_out):
    (laid_out / "home").mkdir()
    (laid_out / "home/dagster.yaml").write_text((laid_out / "pipeline/dagster.yaml").read_text())
    os.environ["DAGSTER_HOME"] = str(laid_out / "home")
    found = program(laid_out, "-m", "dagster", "definitions", "validate", "-w", "workspace.yaml")
    assert found.returncode == 0, found.stdout + found.stderr
    assert "topics" in found.stderr + found.stdout
