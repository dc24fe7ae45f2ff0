"""The teacher as an asset: off unless it is named, paid within its cap and once, and believed for training alone."""

import csv
import json
from pathlib import Path

import dagster as dg
import pytest

from pipeline.definitions import build_defs
from semlabel.cli.cost import Inventory
from semlabel.digests import text_id
from semlabel.errors import SettingsError
from semlabel.judging.labels import reference_labels
from semlabel.judging.store import RANDOM, TEACHER, read_judgements
from semlabel.judging.taught import read_asked, taught_judgements
from semlabel.settings import load_settings
from tests.pipeline_fixtures import TRUE_CANDIDATES, make_project, run
from tests.test_definitions import ASSETS, TRAINING, selected, specs
from tests.test_judging import CATALOG, ENTITIES, judgement, references
from tests.test_judging_pipeline import references_of, told
from tests.test_teacher import Endpoint, said, serving

SOURCES = ["entities", "catalog", "teacher_labels", "reference_labels"]
TEACHER_SETTINGS = {"model": "big", "pairs": 24, "price_in": 1.0, "price_out": 2.0, "max_cost": 1.0, "concurrency": 1}


class Truthful(Endpoint):
    """Says yes of a candidate that begins with "keep", unless a script says otherwise."""

    def answer(self, body):
        with self.lock:
            self.requests.append(body)
            if self.script:
                return self.script.pop(0)
        candidate = body["messages"][1]["content"].rpartition("Activity: ")[2]
        return said("yes" if candidate in TRUE_CANDIDATES else "no")


@pytest.fixture(scope="module")
def untouched(tmp_path_factory):
    project = make_project(tmp_path_factory.mktemp("teacher") / "untouched")
    project.change(sources={"unlisted": "unknown", "judgements": "judgements.csv"}, teacher=TEACHER_SETTINGS)
    return project


@pytest.fixture
def project(untouched, tmp_path):
    return untouched.copied(tmp_path / "labels")


@pytest.fixture
def endpoint(monkeypatch):
    pytest.importorskip("openai")
    found = Truthful()
    with serving(found) as address:
        monkeypatch.setenv("OPENAI_BASE_URL", address)
        monkeypatch.setenv("OPENAI_API_KEY", "secret-key")
        yield found


def taught(project):
    return {pair: label for pair, (label, design, _) in references_of(project).items() if design == TEACHER}


# --- where it stands


def test_without_a_model_there_is_no_teacher_and_with_one_it_stands_before_the_reference_labels(project):
    defs = build_defs(project.config)
    assert set(specs(defs)) == {*ASSETS, "teacher_labels"}
    deps = {dep.asset_key.to_user_string() for dep in specs(defs)["reference_labels"].deps}
    assert deps == {"entities", "catalog", "teacher_labels"}
    assert selected(defs, "train_labeler")[0] == {*SOURCES, *TRAINING}
    # A night that trains nothing spends nothing.
    assert selected(defs, "nightly_labeling")[0] == ASSETS - TRAINING
    project.change(teacher={"model": ""})
    assert set(specs(build_defs(project.config))) == ASSETS


def test_several_labelers_have_a_teacher_each(project):
    project.change(environment={"labeler": "topics"})
    found = specs(build_defs(project.config))
    deps = {dep.asset_key.to_user_string() for dep in found["topics/reference_labels"].deps}
    assert deps == {"topics/entities", "topics/catalog", "topics/teacher_labels"}


def test_a_model_without_a_price_is_refused(project):
    text = project.config.read_text().replace("price_out = 2.0\n", "")
    project.config.write_text(text)
    with pytest.raises(
        SettingsError, match=r"\[teacher\] names a model and not what it costs; set price_in and price_out"
    ):
        load_settings(project.config)


def test_what_it_will_cost_is_said_before(command, project, monkeypatch):
    monkeypatch.chdir(project.root)
    Path("workspace.yaml").write_text((Path(__file__).parent.parent / "workspace.yaml").read_text())
    code, out, _ = command("check")
    assert code == 0 and "Teacher: big is asked about 24 pairs at most, about " in out
    assert "of [teacher] max_cost = 1." in out
    project.change(teacher={"max_cost": 0.0001})
    code, out, _ = command("check", "--json")
    expected = json.loads(out)["teacher"]
    assert expected["pairs"] == 24 and expected["cost"] > expected["max_cost"] == 0.0001
    assert expected["cost"] == pytest.approx(24 * (expected["tokens"] / 24 - 12 + 2 * 12) / 1e6)


# --- what it says, and what that is good for


def test_its_labels_are_reference_labels_of_train_entities_alone(project, endpoint, instance):
    result = run(project, instance, select=SOURCES)
    assert result.success
    found, facts = taught(project), told(result, "teacher_labels")
    with project.warehouse() as warehouse:
        splits = dict(warehouse.rows("SELECT entity_id, split FROM entities"))
        texts = dict(warehouse.rows("SELECT candidate_id, text FROM catalog"))
    assert len(found) == 24 == len(endpoint.requests)
    assert {splits[entity_id] for entity_id, _ in found} == {"train"}
    assert all(label == (texts[candidate_id] in TRUE_CANDIDATES) for (_, candidate_id), label in found.items())
    assert (facts["answered"], facts["refused"], facts["unsure"], facts["failed"]) == (24, 0, 0, 0)
    assert (facts["tokens_in"], facts["tokens_out"], facts["max_cost"]) == (2400, 240, 1.0)
    assert facts["cost"] == pytest.approx((2400 + 2 * 240) / 1e6)
    assert told(result, "reference_labels")["taught"] == 24
    assert endpoint.requests[0]["messages"][1]["content"].startswith("Profile: ")


def test_a_pair_is_asked_once_and_only_more_pairs_cost_more(project, endpoint, instance):
    run(project, instance, select=SOURCES)
    before = taught(project)
    result = run(project, instance, select=SOURCES)
    assert len(endpoint.requests) == 24 and taught(project) == before
    assert (told(result, "teacher_labels")["asked_before"], told(result, "teacher_labels")["answered"]) == (24, 0)
    project.change(teacher={"pairs": 30})
    run(project, instance, select=SOURCES)
    assert len(endpoint.requests) == 30 and before.items() <= taught(project).items()
    # An edited text is another question, and what was said of the old one is not used.
    entity_id = next(iter(before))[0]
    own = [pair for pair in taught(project) if pair[0] == entity_id]
    rows = [row | ({"text": "a new text"} if row["entity_id"] == entity_id else {}) for row in project.entities()]
    project.write_entities(rows)
    assert Inventory.read(project.settings).teacher.pairs == len(own)
    result = run(project, instance, select=SOURCES)
    assert told(result, "teacher_labels")["asked_before"] == 30 - len(own)
    assert len(endpoint.requests) == 30 + len(own)
    assert told(result, "reference_labels")["judgements_not_used"] <= len(own)


def test_nothing_is_asked_above_the_cap(project, endpoint, instance):
    project.change(teacher={"max_cost": 0.0001})
    result = run(project, instance, select=SOURCES)
    (failure,) = failures(result)
    assert "above [teacher] max_cost = 0.0001; lower pairs, or raise it" in str(failure.event_specific_data.error)
    assert endpoint.requests == [] and read_asked(project.settings) == []


def failures(result):
    return [event for event in result.all_events if event.event_type == dg.DagsterEventType.STEP_FAILURE]


def test_refusals_and_failures_are_counted_and_only_failures_are_asked_again(project, endpoint, instance):
    project.change(teacher={"retries": 0})
    endpoint.script = [said(None, refusal="I cannot"), said("unsure"), (400, {"error": {"message": "too long"}})]
    result = run(project, instance, select=SOURCES)
    facts = told(result, "teacher_labels")
    assert [facts[name] for name in ("answered", "refused", "unsure", "failed")] == [21, 1, 1, 1]
    assert "too long" in facts["first_failure"] and len(taught(project)) == 21
    facts = told(run(project, instance, select=SOURCES), "teacher_labels")
    assert (facts["asked_before"], facts["answered"], len(endpoint.requests)) == (23, 1, 25)


def test_an_endpoint_that_answers_nothing_or_is_not_named_stops_the_run(project, endpoint, instance, monkeypatch):
    project.change(teacher={"retries": 0, "pairs": 2})
    endpoint.script = [(400, {"error": {"message": "no such format"}})] * 2
    (failure,) = failures(run(project, instance, select=SOURCES))
    assert "the teacher answered nothing: " in str(failure.event_specific_data.error)
    monkeypatch.delenv("OPENAI_BASE_URL")
    (failure,) = failures(run(project, instance, select=SOURCES))
    assert "set OPENAI_BASE_URL in the environment" in str(failure.event_specific_data.error)


def test_what_a_teacher_said_is_not_used_once_there_is_none(project, endpoint, instance):
    run(project, instance, select=SOURCES)
    project.change(teacher={"model": ""})
    run(project, instance, select=["reference_labels"])
    assert taught(project) == {} and taught_judgements(project.settings) == []
    assert len(read_asked(project.settings)) == 24


# --- a teacher never proves, and never overrules people

LISTED = references(("e0", "c0", True, "reference"))[["entity_id", "candidate_id", "label"]]
SPLIT_OF = dict(zip(ENTITIES, ["train"] * 4 + ["certify"] * 4, strict=True))


def merged(*rows, unlisted="unknown"):
    known = {name: (SPLIT_OF[name], text_id(text)) for name, text in ENTITIES.items()}
    texts = {name: text_id(text) for name, text in CATALOG.items()}
    found = reference_labels(LISTED, rows, known, texts, list(CATALOG), unlisted)
    kept = {(row.entity_id, row.candidate_id): (row.label, row.design) for row in found.kept.itertuples()}
    assert len(found.kept) + len(found.references) + len(found.judgements) + found.redundant == 1 + len(rows)
    return kept, {row.row_id: row.reason for row in found.judgements}, found.references


@pytest.mark.parametrize("split", ["calibrate", "certify", "test"])
def test_no_teachers_label_is_ever_in_a_held_out_split(split, monkeypatch):
    monkeypatch.setitem(SPLIT_OF, "e5", split)
    kept, refused, _ = merged(judgement("e5", "c1", design=TEACHER), judgement("e1", "c1", design=TEACHER))
    assert kept == {("e0", "c0"): (True, "reference"), ("e1", "c1"): (True, TEACHER)}
    assert refused == {"e5 / c1": f"it was picked to teach (teacher), which only trains, and its entity is in {split}"}


def test_people_are_believed_and_keep_their_label_when_a_teacher_says_otherwise():
    kept, refused, contradictory = merged(
        judgement("e0", "c0", False, design=TEACHER),
        judgement("e1", "c1", False, design=TEACHER),
        judgement("e1", "c1", True, design=RANDOM),
    )
    assert kept == {("e0", "c0"): (True, "reference"), ("e1", "c1"): (True, RANDOM)}
    assert refused == dict.fromkeys(("e0 / c0", "e1 / c1"), "a teacher said it, and people decided the pair")
    assert contradictory == []


def test_what_the_command_was_told_is_marked_as_a_teachers_when_it_is_imported(command, project, endpoint, monkeypatch):
    monkeypatch.chdir(project.root)
    assert command("sample", "--count", "6", "--out", "judge.csv")[0] == 0
    options = ("--model", "big", "--price-in", "0", "--price-out", "0", "--max-cost", "0")
    code, _, err = command("teacher", "judge.csv", "--out", "judged.csv", *options)
    assert code == 0, err
    with Path("judged.csv").open(newline="") as file:
        assert {row["design"] for row in csv.DictReader(file)} == {TEACHER}
    assert command("judgements", "import", "judged.csv")[0] == 0
    assert {(row.design, row.split) for row in read_judgements(project.settings)} == {(TEACHER, "train")}
