"""The commands that run nothing: what they answer, in which shape, and how they refuse."""

import json
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pyarrow.parquet as pq
import pytest

from semlabel.cli.churn import churn
from semlabel.cli.common import command_for
from semlabel.cli.cost import _stored
from semlabel.cli.text import age, interval, number, size, table
from semlabel.gates import GATES, GateResult, required_subjects
from semlabel.labeler import Labeler, measure_known_pairs
from semlabel.labeler_files import promoted_path, switch_current, write_checkpoint, write_labeler
from semlabel.manifest import read_manifest
from semlabel.operations import Operations
from semlabel.prompt import PromptSpec
from semlabel.publish import publish
from semlabel.published import current_version
from semlabel.scorer import Scorer
from semlabel.settings import load_settings
from tests.cli_settings import smallest
from tests.storage import Project, entities, margin
from tests.storage import Scorer as KnownScorer
from tests.tiny import save_tiny

EVERYDAY = ("check", "run", "status", "score", "label", "promote", "rollback", "approve")
COMMANDS = (*EVERYDAY, "serve", "report", "erase", "sample", "judgements", "alerts", "ui", "bench", "doctor")
QUERY = "The nurse gives the patient medicine."
ITEMS = ["keep records", "repair machines", "keep records"]
SETTINGS = smallest("Profile: {entity} Activity: {candidate}")


@pytest.fixture(scope="module")
def labelers(tmp_path_factory):
    """A folder with two labelers on one tiny checkpoint: one with a threshold, one that certified nothing."""
    folder = tmp_path_factory.mktemp("labelers")
    model = save_tiny(folder / "model")
    spec = PromptSpec(
        template="Profile: {entity} Activity: {candidate}",
        format="readout",
        yes="Yes",
        no="No",
        readout_token=None,
        max_query_tokens=128,
        max_item_tokens=32,
    )
    scorer = Scorer.load(model, spec, precision="fp32", device="cpu")
    known = measure_known_pairs(scorer, [(QUERY, ITEMS[0])])
    write_checkpoint(
        folder / "checkpoint",
        model,
        prompt=scorer.prompt,
        base_model="tiny",
        precision="fp32",
        known_pairs=known,
        training={"pairs_digest": "p" * 64},
    )
    made = {}
    for name, threshold in (("certified", 0.25), ("stricter", 4.0), ("uncertified", None)):
        result = SimpleNamespace(threshold=threshold, policy={"min_precision": 0.5}, word="certified")
        calibration = {"platt_a": 1.5, "platt_b": -0.5} if threshold is not None else None
        made[name] = write_labeler(folder / "all", folder / "checkpoint", result, calibration)[1]
    return made


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project that has not run, in the current folder."""
    (tmp_path / "entities.csv").write_text("entity_id,text\n" + "".join(f"e{i},text {i} of many\n" for i in range(12)))
    (tmp_path / "catalog.csv").write_text("candidate_id,text\na,keep records\nb,repair machines\n")
    (tmp_path / "references.csv").write_text(
        "entity_id,candidate_id,label\n" + "".join(f"e{i},a,1\n" for i in range(12))
    )
    (tmp_path / "pipeline.toml").write_text(SETTINGS)
    (tmp_path / "workspace.yaml").write_text("load_from:\n  - python_module:\n      module_name: toy.definitions\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SEMLABEL_CONFIG", raising=False)
    return tmp_path


@pytest.fixture
def ran(project, labelers):
    """The project with `ops.sqlite` and both labelers, none of them promoted."""
    shutil.copytree(labelers["certified"].parent, project / "run" / "labelers")
    return Operations(project / "run" / "ops.sqlite")


def pass_gates(operations, manifest, but=()):
    """Record a pass for every gate that judges the labeler itself."""
    required = required_subjects(
        manifest.model_dump(mode="json"), dict.fromkeys(("catalog", "entities", "predictions"), "x")
    )
    for gate, subject in required.items():
        verdict = "fail" if gate in but else "pass"
        result = GateResult(
            gate, GATES[gate].asset, "ERROR", verdict, 0.61, 0.9, "AUC 0.61 is below 0.9: train longer."
        )
        operations.record_gate("r1", result, None, subject, GATES[gate].code_version)


# --- help and errors


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_teaches_with_an_example(command, name):
    code, out, _ = command(name, "--help")
    assert code == 0
    assert f"  semlabel {name}" in out


def test_the_command_line_imports_nothing_heavy():
    code = (
        "import sys, semlabel.cli, semlabel.cli.execution, semlabel.cli.cost, semlabel.cli.document;"
        "heavy = {'torch', 'transformers', 'dagster', 'great_expectations', 'sklearn', 'scipy', 'duckdb', 'pandas'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parent.parent
    )
    assert found.stdout.strip() == "[]", found.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("bogus",), "No such command 'bogus'"),
        (("status", "--bogus"), "No such option: --bogus"),
        (("score", "--query", "x"), "Missing option '--labeler'"),
        (("status", "--config", "missing.toml"), "missing.toml: no such settings file"),
        (("score", "--labeler", ".", "--item", "x"), "--query TEXT or with --query-file FILE"),
        (("score", "--labeler", ".", "--query", "x"), "--item TEXT (repeated) or with --items-file FILE"),
        (("score", "--labeler", ".", "--query", "x", "--item", "y"), "this is not a labeler directory"),
        (("promote", "abc"), "nothing has run here yet"),
        (("approve", "abc"), "nothing has run here yet"),
        (("rollback", "v1"), "nothing has run here yet"),
    ],
)
def test_a_mistake_is_one_line_on_stderr_and_exit_2(command, arguments, message):
    code, out, err = command(*arguments)
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert err.startswith("error: ")
    assert message in err


# --- status


def test_before_a_first_run_every_field_is_there_and_null(command, project):
    code, out, err = command("status", "--json")
    document = json.loads(out)
    assert (code, err) == (0, "")
    names = ("id", "job", "status", "started_at", "finished_at")
    names += ("pairs_scored", "pairs_reused", "model_loads", "labels_per_s")
    assert {name: document["run"][name] for name in names} == dict.fromkeys(names)
    assert document["gates"] == []
    names = ("digest", "threshold", "base_model", "precision")
    assert {name: document["labeler"][name] for name in names} == dict.fromkeys(names)
    metrics = dict.fromkeys(("auc", "average_precision", "precision", "recall"))
    assert document["metrics"]["test"] == metrics
    assert document["metrics"]["baselines"] == {}
    fields = ("version", "path", "rows", "labeler_digest", "published_at")
    assert {name: document["publication"][name] for name in fields} == dict.fromkeys(fields)
    assert not (project / "run").exists()


def test_status_reports_run_gates_labeler_and_metrics(command, ran, labelers):
    manifest = read_manifest(labelers["certified"])
    pass_gates(ran, manifest, but=("held_out_quality",))
    ran.start_run("r1", "everything")
    ran.add_to_run("r1", pairs_scored=300, pairs_reused=7, model_loads=1, scoring_seconds=2.0)
    ran.finish_run("r1", "SUCCESS")
    estimate = {"value": 0.95, "low": 0.94, "high": 0.96}
    ran.save_metrics(
        manifest.digest,
        {
            "test": {"auc": estimate, "recall": 0.5, "precision": {"value": float("nan"), "low": None, "high": None}},
            "baselines": {"tfidf_cosine": {"auc": estimate, "average_precision": 0.3}},
        },
    )
    switch_current(Path("run/labelers"), manifest.digest)
    _, out, _ = command("status", "--json")
    document = json.loads(out)
    assert document["run"]["labels_per_s"] == 150.0
    assert [document["run"][name] for name in ("pairs_scored", "pairs_reused", "model_loads")] == [300, 7, 1]
    gate = next(gate for gate in document["gates"] if gate["gate"] == "held_out_quality")
    assert (gate["asset"], gate["verdict"], gate["value"], gate["limit"]) == ("checkpoint", "fail", 0.61, 0.9)
    assert document["labeler"]["digest"] == manifest.digest
    assert document["labeler"]["threshold"] == 0.25
    assert document["metrics"]["test"]["auc"] == 0.95
    assert document["metrics"]["test"]["precision"] is None
    assert document["metrics"]["intervals"]["auc"] == [0.94, 0.96]
    assert document["metrics"]["baselines"] == {"tfidf_cosine": {"auc": 0.95, "average_precision": 0.3}}
    assert "The promise was shown on certify" not in command("status")[1]
    ran.save_metrics(manifest.digest, {"test": {"auc": estimate, "precision": estimate}, "baselines": {}})
    assert "The promise was shown on certify" in command("status")[1]


def test_before_certify_is_looked_at_status_says_what_could_be_promised_and_afterwards_no_more(command, ran):
    row = {"flagged": 25, "precision": 0.72, "low": 0.6, "high": 0.84, "recall": 0.22}
    none_told = row | {"flagged": 50, "precision": 0.5, "low": None, "high": None}

    def judged(gate, **evidence):
        asset = GATES[gate].asset
        ran.record_gate("r1", GateResult(gate, asset, "ERROR", "pass", 1, 1, "Fine.", evidence), None, "s", "1")

    judged("held_out_quality", by_flagged=[row, none_told])
    _, out, _ = command("status")
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert "25 0.720 (0.600-0.840) 0.220" in lines and "50 0.500 0.220" in lines
    assert "no promise: certify shows that" in out
    assert json.loads(command("status", "--json")[1])["on_calibrate"] == [row, none_told]
    judged("held_out_errors")
    assert "on calibrate" not in command("status")[1]
    assert json.loads(command("status", "--json")[1])["on_calibrate"] is None
    # A checkpoint that was judged by a version without these numbers.
    judged("held_out_quality")
    assert json.loads(command("status", "--json")[1])["on_calibrate"] is None


def test_gates_stand_in_the_order_of_the_recipe(command, ran):
    for gate in reversed(GATES.values()):
        ran.record_gate("r1", GateResult(gate.name, gate.asset, gate.severity, "pass", 1, 1, "Fine."), None, "s", "1")
    _, out, _ = command("status", "--json")
    assert [gate["gate"] for gate in json.loads(out)["gates"]] == list(GATES)


def test_status_for_people_says_what_to_do_about_a_failed_gate(command, ran, labelers):
    pass_gates(ran, read_manifest(labelers["certified"]), but=("held_out_quality",))
    code, out, _ = command("status")
    assert code == 0
    assert "held_out_quality" in out
    assert "FAIL" in out
    assert "AUC 0.61 is below 0.9: train longer." in out
    assert "Published: nothing yet." in out


def test_status_of_a_run_at_work_tells_how_far_it_is_and_of_a_killed_one_that_it_is_gone(command, ran):
    ran.start_run("r1", "everything")
    ran.set_progress("r1", "scoring", 300, 900, "pairs")
    _, out, _ = command("status")
    assert "At work: scoring, 300 of 900 pairs" in out
    gone = subprocess.run(
        [sys.executable, "-c", "import sys; from semlabel.operations import Operations; from pathlib import Path;"
         "Operations(Path(sys.argv[1])).start_run('r2', 'everything')", str(ran.path)],
        check=False, capture_output=True, cwd=Path(__file__).parent.parent,
    )  # fmt: skip
    assert gone.returncode == 0, gone.stderr
    _, out, _ = command("status")
    assert "Its process was killed" in out
    _, out, _ = command("status", "--json")
    assert json.loads(out)["progress"]["killed"] is True


# --- score and label


def test_score_gives_what_the_labeler_gives_in_the_order_asked(command, labelers):
    arguments = [part for item in ITEMS for part in ("--item", item)]
    code, out, _ = command("score", "--labeler", str(labelers["certified"]), "--query", QUERY, *arguments)
    labeler = Labeler.load(labelers["certified"])
    margins = labeler.score(QUERY, ITEMS)
    assert code == 0
    assert json.loads(out) == [
        {"item": item, "margin": float(margin), "probability": probability, "label": float(margin) >= 0.25}
        for item, margin, probability in zip(ITEMS, margins, labeler.probabilities(margins).tolist(), strict=True)
    ]


def test_an_uncertified_labeler_scores_but_does_not_decide(command, labelers):
    _, out, _ = command("score", "--labeler", str(labelers["uncertified"]), "--query", QUERY, "--item", "x")
    (row,) = json.loads(out)
    assert isinstance(row["margin"], float)
    assert (row["probability"], row["label"]) == (None, None)


def test_texts_from_files_are_not_changed(command, project, labelers):
    (project / "query.txt").write_bytes("Zeile eins\r\n zwei é\r\n".encode())
    (project / "items.txt").write_bytes("keep records\r\ngrün\u2028still one\n".encode())
    _, out, _ = command(
        "score", "--labeler", str(labelers["certified"]), "--query-file", "query.txt", "--items-file", "items.txt"
    )
    assert [row["item"] for row in json.loads(out)] == ["keep records", "grün\u2028still one"]
    margins = Labeler.load(labelers["certified"]).score(
        "Zeile eins\r\n zwei é", ["keep records", "grün\u2028still one"]
    )
    assert [row["margin"] for row in json.loads(out)] == [float(margin) for margin in margins]


def test_no_candidates_in_the_file_is_an_empty_answer(command, project, labelers):
    (project / "items.txt").write_text("")
    _, out, _ = command("score", "--labeler", str(labelers["certified"]), "--query", QUERY, "--items-file", "items.txt")
    assert json.loads(out) == []


def test_a_blank_candidate_is_refused_in_one_line(command, labelers):
    code, out, err = command("score", "--labeler", str(labelers["certified"]), "--query", QUERY, "--item", " ")
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1


def test_label_writes_every_pair_and_counts_the_refused(command, project, labelers):
    (project / "entities.csv").write_text("entity_id,text\n007,The nurse gives medicine.\n1e5,\n")
    code, out, _ = command(
        "label", "--labeler", str(labelers["certified"]), "--entities", "entities.csv", "--catalog", "catalog.csv",
        "--out", "out.parquet", "--json",
    )  # fmt: skip
    assert code == 1  # one of four source rows was refused, more than one in a hundred
    assert json.loads(out)["rows"] == 2
    assert json.loads(out)["refused"] == 1
    rows = pq.read_table(project / "out.parquet").to_pylist()
    margins = Labeler.load(labelers["certified"]).score(
        "The nurse gives medicine.", ["keep records", "repair machines"]
    )
    assert [(row["entity_id"], row["candidate_id"]) for row in rows] == [("007", "a"), ("007", "b")]
    assert [row["margin"] for row in rows] == [float(margin) for margin in margins]
    assert [row["label"] for row in rows] == [float(margin) >= 0.25 for margin in margins]
    assert list(project.glob(".*.part")) == []


# --- promote, approve


def test_a_labeler_whose_gates_did_not_pass_is_not_promoted(command, ran, labelers, project):
    manifest = read_manifest(labelers["certified"])
    code, _, err = command("promote", manifest.digest[:10])
    assert code == 1
    assert "is not promoted: " in err
    pass_gates(ran, manifest, but=("held_out_quality",))
    code, _, err = command("promote", manifest.digest[:10])
    assert code == 1
    assert "held_out_quality (fail)" in err
    assert promoted_path(project / "run" / "labelers") is None
    assert ran.promoted() is None


def test_a_promotion_keeps_who_and_why(command, ran, labelers, project):
    manifest = read_manifest(labelers["certified"])
    pass_gates(ran, manifest)
    code, out, _ = command("promote", manifest.digest[:10], "--who", "ada", "--reason", "spring", "--json")
    assert code == 0
    assert json.loads(out)["promoted"] == manifest.digest
    assert promoted_path(project / "run" / "labelers").name == manifest.digest
    assert (ran.promoted()["who"], ran.promoted()["reason"]) == ("ada", "spring")


def test_a_promotion_beside_another_one_is_refused_in_one_line_that_names_it(command, ran, labelers, monkeypatch):
    manifest = read_manifest(labelers["certified"])
    pass_gates(ran, manifest)
    monkeypatch.setattr("semlabel.published.LEASE_WAIT_SECONDS", 0.1)
    with ran.lease("publication", "promotion-of-another", 0):
        code, out, err = command("promote", manifest.digest)
    assert (code, out, ran.promoted()) == (2, "", None)
    waiting, refused = err.splitlines()
    assert waiting.startswith("waiting at most") and refused.startswith("error: run promotion-of-another (pid ")


@pytest.fixture(scope="module")
def published_state(labelers, tmp_path_factory):
    """A state folder with two published versions: of the certified labeler, then of the stricter one."""
    folder = tmp_path_factory.mktemp("published") / "run"
    stored = Project(folder)
    shutil.copytree(labelers["certified"].parent, folder / "labelers")
    stored.operations.start_run("r1", "everything")
    for name in ("certified", "stricter"):
        manifest = read_manifest(labelers[name])
        pass_gates(stored.operations, manifest)
        stored.warehouse.activate_labeler(manifest.digest, manifest.scorer_digest, manifest.threshold, 1.5, -0.5)
        stored.refresh(KnownScorer(manifest.scorer_digest), run="r1")
        settings = SimpleNamespace(keep=7, uncertified_candidates="publish")
        told = manifest.model_dump(mode="json")
        publish(
            stored.warehouse, stored.operations, settings, folder / "published", told, [], "r1", recheck=lambda: None
        )
    stored.close()
    return folder


@pytest.fixture
def published(published_state, project):
    """The project with a copy of that state; gives its `ops.sqlite`."""
    shutil.copytree(published_state, project / "run", symlinks=True)
    return Operations(project / "run" / "ops.sqlite")


def stored_margins(scorer):
    return [float(margin(e, c, scorer)) for e in Project.ENTITIES.values() for c in Project.CATALOG.values()]


def test_a_promotion_tells_how_many_published_labels_change(command, published, labelers):
    manifest = read_manifest(labelers["certified"])
    margins = stored_margins(manifest.scorer_digest)
    changed = sum(0.25 <= value < 4.0 for value in margins)
    assert 0 < changed < len(margins)
    _, out, _ = command("promote", manifest.digest, "--json")
    assert json.loads(out)["churn"] == {
        "pairs": 15,
        "pairs_compared": 15,
        "changed": changed,
        "changed_share": changed / 15,
        "changed_of_yes": changed / sum(value >= 0.25 for value in margins),
    }


def test_a_labeler_that_scored_nothing_yet_says_so_instead_of_no_change(published, project):
    other = SimpleNamespace(scorer_digest="another", threshold=0.0)
    found = churn(load_settings(project / "pipeline.toml"), other)
    assert (found.pairs, found.pairs_compared) == (15, 0)
    assert found.sentence().startswith("None of the 15 published pairs has a margin of this labeler")


def test_stored_pairs_are_counted_by_text_as_the_sources_have_them_now(published, labelers, project):
    scorer = read_manifest(labelers["certified"]).scorer_digest
    frame = entities({"e1": "alpha", "renamed": "beta", "new": "delta"})
    assert _stored(project / "run" / "warehouse.duckdb", scorer, frame) == {5: 2}
    assert _stored(project / "run" / "warehouse.duckdb", "another", frame) == {}


def test_status_names_the_published_version(command, published, labelers, project):
    _, out, _ = command("status", "--json")
    publication = json.loads(out)["publication"]
    assert publication["version"] == current_version(project / "run" / "published")
    assert publication["path"] == str(project / "run" / "published" / "versions" / publication["version"])
    assert (publication["rows"], publication["labeler_digest"]) == (15, read_manifest(labelers["stricter"]).digest)
    assert publication["stale"] is False


def test_a_night_that_failed_says_of_when_the_data_is_that_readers_still_get(command, published):
    published.finish_run("r1", "SUCCESS")
    assert "Serving data of" not in command("status")[1]
    published.start_run("r2", "nightly_labeling")
    assert "Serving data of" not in command("status")[1]
    published.finish_run("r2", "FAILURE", "entities.csv: no such file")
    _, out, _ = command("status", "--json")
    as_of = json.loads(out)["publication"]["as_of"]
    assert as_of is not None
    assert (
        f"Serving data of {as_of[:16].replace('T', ' ')} UTC: the last run ended with FAILURE."
        in command("status")[1].splitlines()
    )


def test_the_three_lines_that_read_the_table_do_read_it(command, published):
    _, out, _ = command("status")
    lines = [line.strip() for line in out.splitlines()]
    start = lines.index("import duckdb")
    snippet = "\n".join(lines[start : start + 3])
    shown = subprocess.run([sys.executable, "-c", snippet], capture_output=True, text=True)
    assert shown.returncode == 0, shown.stderr
    assert "candidate_id" in shown.stdout


def test_an_edited_labeler_is_not_promoted(command, ran, labelers, project):
    manifest = read_manifest(labelers["certified"])
    pass_gates(ran, manifest)
    weights = project / "run" / "labelers" / manifest.digest / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    code, _, err = command("promote", manifest.digest)
    assert code == 2
    assert "weights digest" in err


def test_only_the_change_that_waits_can_be_approved(command, ran):
    ran.record_gate(
        "r1", GateResult("volume_change", "predictions", "ERROR", "fail", 0.4, 0.05, "40 % gone."), None, "ab12", "1"
    )
    code, _, err = command("approve", "ff")
    assert code == 2
    assert "waiting: ab12" in err
    assert not ran.approved("ab12")
    code, out, _ = command("approve", "ab", "--who", "ada")
    assert code == 0
    assert "the next run may publish it" in out
    assert ran.approved("ab12")


def test_a_drift_that_is_meant_can_be_approved_although_it_held_nothing_back(command, ran):
    for gate in ("label_rate_drift", "data_drift"):
        ran.record_gate("r1", GateResult(gate, "predictions", "WARN", "fail", 0.1, 0.005, "moved"), None, "cd34", "1")
    code, out, _ = command("approve", "cd3", "--who", "ada")
    assert code == 0 and "the next run begins the comparison anew" in out
    assert ran.approved("cd34")


def test_publishing_goes_on_after_resume(command, ran):
    ran.set_publishing_paused(True, "bad catalog")
    _, out, _ = command("status")
    assert "Publishing is paused (bad catalog)" in out
    code, _, _ = command("rollback", "--resume")
    assert code == 0
    assert ran.publishing_paused() is None


# --- check and doctor


def test_check_counts_and_writes_nothing(command, project):
    code, out, _ = command("check", "--json")
    document = json.loads(out)
    assert code == 0
    assert document["sources"]["entities"]["rows"] == 12
    assert document["job"] == "everything"
    assert (document["train_entities"], document["held_out_entities"], document["catalog_used"]) == (9, 3, 2)
    stages = {stage["stage"]: stage["pairs"] for stage in document["estimate"]["stages"]}
    assert (stages["train"], stages["score held-out entities"], stages["score predictions"]) == (18, 6, 18)
    assert document["model"]["present"] is False
    assert not (project / "run").exists()


def test_check_exits_1_when_too_many_rows_would_be_refused(command, project):
    (project / "catalog.csv").write_text("candidate_id,text\na,keep records\nb,\n")
    code, out, err = command("check")
    assert code == 1
    assert "refused b" in out
    assert "catalog: more than 1.0% of the rows would be refused" in err


def test_check_exits_2_for_a_source_with_other_columns(command, project):
    (project / "catalog.csv").write_text("id,title\na,keep records\n")
    code, _, err = command("check")
    assert code == 2
    assert "catalog.csv" in err
    assert "candidate_id" in err


def test_a_missing_workspace_is_named_with_the_way_out(command, project):
    (project / "workspace.yaml").unlink()
    code, _, err = command("check")
    assert code == 2
    assert "no workspace.yaml in" in err
    assert "--workspace" in err


def test_a_workspace_of_another_shape_is_refused(command, project):
    (project / "workspace.yaml").write_text("load_from: []\n")
    code, _, err = command("run")
    assert code == 2
    assert "expected load_from with a python_module first" in err


def test_doctor_finds_an_edited_file(command, ran, labelers, project):
    digest = labelers["certified"].name
    switch_current(project / "run" / "labelers", digest)
    code, out, _ = command("doctor", "--json")
    assert code == 0, out
    found = {finding["what"]: finding["ok"] for finding in json.loads(out)}
    assert found["labeler"] is True
    (project / "run" / "labelers" / digest / "config.json").write_text("{}")
    code, out, _ = command("doctor")
    assert code == 1
    assert "WRONG" in out
    assert "config.json" in out


# --- text


def test_a_named_command_can_be_pasted_where_the_program_is_not_on_the_path(project, monkeypatch):
    settings = load_settings(project / "pipeline.toml")
    assert command_for(settings, "run") == "semlabel run"
    monkeypatch.setattr("sys.argv", [str(project / ".venv" / "bin" / "semlabel"), "run"])
    assert command_for(settings, "run") == ".venv/bin/semlabel run"
    (project / "demo").mkdir()
    monkeypatch.chdir(project / "demo")
    assert command_for(settings, "ui") == f"{project}/.venv/bin/semlabel ui --config {project}/pipeline.toml"


def test_numbers_read_like_numbers():
    told = ["-", "0", "12,345", "0.123", "12,346", "3e-07"]
    assert [number(v) for v in (None, 0, 12345, 0.12345, 12345.6, 3e-7)] == told
    assert interval(0.95, 0.94, 0.96) == "0.950 (0.940-0.960)"
    assert interval(0.95, None, None) == "0.950"
    assert [size(v) for v in (5, 3400, 1.24e9)] == ["5 B", "3.4 kB", "1.2 GB"]


def test_ages_read_like_speech():
    now = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
    at = [
        None,
        "2026-03-01T11:59:30+00:00",
        "2026-03-01T11:00:00",
        "2026-03-01T04:00:00+00:00",
        "2026-02-20T12:00:00+00:00",
    ]
    assert [age(when, now) for when in at] == ["never", "just now", "60 min ago", "8 h ago", "9 days ago"]


def test_a_table_is_aligned_and_cuts_nothing():
    assert table(["a", "n"], [["long name", "1"], ["b", "234"]], right=(1,)) == (
        "a            n\n---------  ---\nlong name    1\nb          234"
    )
