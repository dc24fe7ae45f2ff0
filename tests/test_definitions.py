"""The code location: what Dagster is told of the recipe, and that telling it costs nothing."""

import json
import os
import shutil
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import dagster as dg
import pytest
import yaml

from pipeline.definitions import build_defs
from semlabel.errors import SettingsError
from semlabel.gates.registry import ALWAYS, GATES
from tests.pipeline_fixtures import TinyProject, make_project

ROOT = Path(__file__).resolve().parent.parent
ASSETS = {
    "entities",
    "catalog",
    "reference_labels",
    "training_pairs",
    "checkpoint",
    "threshold",
    "predictions",
    "published_predictions",
}
TRAINING = {"training_pairs", "checkpoint", "threshold"}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> TinyProject:
    return make_project(tmp_path_factory.mktemp("definitions"))


@pytest.fixture(scope="module")
def defs(project: TinyProject) -> dg.Definitions:
    return build_defs(project.config)


def specs(defs: dg.Definitions) -> dict[str, dg.AssetSpec]:
    return {spec.key.to_user_string(): spec for spec in defs.resolve_all_asset_specs()}


def checks(defs: dg.Definitions) -> dict[str, dg.AssetCheckSpec]:
    graph = defs.resolve_asset_graph()
    return {key.name: graph.get_check_spec(key) for key in graph.asset_check_keys}


def selected(defs: dg.Definitions, job: str) -> tuple[set[str], set[str]]:
    layer = defs.resolve_job_def(job).asset_layer
    assets = {key.to_user_string() for key in layer.executable_asset_keys}
    return assets, {key.name for key in layer.asset_graph.asset_check_keys}


def test_every_stage_is_an_asset_that_tells_what_it_is(defs):
    found = specs(defs)
    assert set(found) == ASSETS
    for name, spec in found.items():
        assert spec.description and spec.owners and spec.kinds and spec.group_name != "default", name


def test_tables_show_their_columns(defs):
    tables = ASSETS - {"checkpoint", "threshold"}
    shown = {name: spec.metadata["dagster/column_schema"] for name, spec in specs(defs).items() if name in tables}
    assert [column.name for column in shown["predictions"].columns] == [
        "entity_id",
        "candidate_id",
        "margin",
        "probability",
        "label",
        "threshold",
        "labeler_digest",
        "scored_at",
        "run_id",
        "certified",
        "truncated",
    ]
    added = [column.name for column in shown["published_predictions"].columns[len(shown["predictions"].columns) :]]
    assert added == ["split"]


def test_no_gate_is_left_without_a_blocking_check_on_its_asset(defs):
    found = checks(defs)
    assert {name: spec.asset_key.to_user_string() for name, spec in found.items()} == {
        name: gate.asset for name, gate in GATES.items() if name in ALWAYS
    }
    assert all(spec.blocking for spec in found.values())


def test_the_nightly_job_trains_nothing_but_keeps_every_check(defs):
    assets, kept = selected(defs, "nightly_labeling")
    assert assets == ASSETS - TRAINING
    assert kept == set(ALWAYS)


def test_the_training_job_labels_nothing(defs):
    assets, kept = selected(defs, "train_labeler")
    assert assets == {"entities", "catalog", "reference_labels"} | TRAINING
    assert kept == {name for name, gate in GATES.items() if gate.asset in assets and name in ALWAYS}


def test_predictions_depend_on_every_stage_whose_gates_must_block_them(defs):
    deps = {dep.asset_key.to_user_string() for dep in specs(defs)["predictions"].deps}
    assert deps >= {"entities", "catalog", "training_pairs", "checkpoint", "threshold"}


def test_the_schedule_follows_the_settings_and_is_on(tmp_path):
    project = make_project(tmp_path)
    project.change(schedule={"cron": "30 5 * * 1-5", "timezone": "Europe/Berlin"})
    (schedule,) = build_defs(project.config).schedules
    assert (schedule.name, schedule.cron_schedule) == ("nightly_labeling_schedule", "30 5 * * 1-5")
    assert schedule.execution_timezone == "Europe/Berlin"
    assert schedule.default_status == dg.DefaultScheduleStatus.RUNNING
    project.change(schedule={"enabled": False})
    (schedule,) = build_defs(project.config).schedules
    assert schedule.default_status == dg.DefaultScheduleStatus.STOPPED


def test_a_stale_publication_is_seen_after_the_hours_of_the_settings(tmp_path):
    project = make_project(tmp_path)
    project.change(schedule={"freshness_hours": 30.0})
    policies = {name: spec.freshness_policy for name, spec in specs(build_defs(project.config)).items()}
    assert policies.pop("published_predictions").fail_window.to_timedelta() == timedelta(hours=30)
    assert set(policies.values()) == {None}


def test_owners_come_from_the_settings(tmp_path):
    project = make_project(tmp_path)
    project.config.write_text(
        project.config.read_text() + '\n[alerts.owners]\npredictions = "nina@example.org"\n"*" = "team:data"\n'
    )
    owners = {name: list(spec.owners) for name, spec in specs(build_defs(project.config)).items()}
    assert owners["predictions"] == ["nina@example.org"]
    assert owners["catalog"] == ["team:data"]


def test_one_writer_and_one_user_of_the_accelerator_at_a_time(defs):
    pools = {key.to_user_string(): asset.op.pool for asset in defs.assets for key in asset.keys}
    assert {name for name, pool in pools.items() if pool == "gpu"} == {"checkpoint", "threshold", "predictions"}
    assert set(pools.values()) == {"gpu", "warehouse_writer"}


def test_a_broken_settings_file_is_one_line_that_names_the_key(tmp_path):
    project = make_project(tmp_path)
    project.change(gates={"min_acu": 0.9})
    with pytest.raises(SettingsError, match='min_acu is not a setting; did you mean "min_auc"'):
        build_defs(project.config)


def test_an_unknown_override_is_refused(project):
    with pytest.raises(TypeError, match="scorer is no part of a project"):
        build_defs(project.config, scorer=object())


def test_loading_the_code_location_imports_no_heavy_library_and_stays_small(project):
    heavy = ("torch", "transformers", "great_expectations", "sklearn", "scipy", "numpy", "pandas", "pyarrow", "duckdb")
    heavy += ("matplotlib", "PIL", "ray", "rich", "psutil", "openai")
    code = f"import sys; import pipeline.definitions; print([name for name in {heavy!r} if name in sys.modules])"
    output, megabytes = _measured([sys.executable, "-c", code], SEMLABEL_CONFIG=str(project.config))
    assert output.splitlines()[-1] == "[]"
    assert megabytes < 150


def test_dagster_itself_accepts_the_workspace(project, tmp_path):
    workspace = yaml.safe_load((ROOT / "workspace.yaml").read_text())
    assert workspace["load_from"][0]["python_module"]["working_directory"] == "."
    shutil.copy(ROOT / "pipeline" / "dagster.yaml", tmp_path / "dagster.yaml")
    dagster = Path(sys.executable).with_name("dagster")
    command = [str(dagster), "definitions", "validate", "-w", "workspace.yaml"]
    _, megabytes = _measured(command, SEMLABEL_CONFIG=str(project.config), DAGSTER_HOME=str(tmp_path))
    assert megabytes < 150


def test_the_shipped_instance_settings_limit_pools_and_free_what_a_dead_run_held(tmp_path, monkeypatch):
    shutil.copy(ROOT / "pipeline" / "dagster.yaml", tmp_path / "dagster.yaml")
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    with dg.DagsterInstance.get() as instance:
        assert not instance.telemetry_enabled
        assert instance.run_monitoring_enabled
        assert instance.run_monitoring_max_runtime_seconds >= 12 * 3600
        assert instance.get_settings("run_monitoring")["free_slots_after_run_end_seconds"] == 60
        pools = instance.get_concurrency_config().pool_config
        assert (pools.default_pool_limit, pools.pool_granularity.value) == (1, "op")


def _measured(command: list[str], **env: str) -> tuple[str, float]:
    """What a command that must succeed prints, and its peak memory in MB."""
    # Through a small process: a child forked from this large one would be charged for its size.
    code = (
        "import json, resource, subprocess, sys; done = subprocess.run(sys.argv[1:], capture_output=True, text=True); "
        "peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024; "
        "print(json.dumps([done.returncode, done.stdout + done.stderr, done.stdout, peak]))"
    )
    measuring = [sys.executable, "-c", code, *command]
    told = subprocess.run(measuring, cwd=ROOT, env=os.environ | env, capture_output=True, text=True, check=True)
    status, everything, output, megabytes = json.loads(told.stdout)
    assert status == 0, everything
    return output, megabytes
