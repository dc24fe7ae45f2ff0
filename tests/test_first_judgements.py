"""A team without one reference label: two tables, people asked before anything has run, and a training run of that."""

import csv
import json
import re
import shutil
from pathlib import Path

import dagster as dg
import pytest

from semlabel.errors import SettingsError, SourceError
from semlabel.judging import similarity_sample
from semlabel.judging.before_a_run import fill_from_tables
from semlabel.judging.enough import too_thin
from semlabel.judging.sample import sample_active, sample_random
from semlabel.judging.store import NEAR_THRESHOLD, RANDOM, STRATIFIED, Judgement, pinned_splits, read_judgements
from semlabel.settings import load_settings
from semlabel.sources import read_references
from semlabel.warehouse import Warehouse
from tests.pipeline_fixtures import TRUE_CANDIDATES, failed, make_project, run
from tests.test_judging import judgement
from tests.test_judging_pipeline import references_of, told

PROVE = ("--random", "--split", "calibrate", "--split", "certify", "--split", "test")


@pytest.fixture(scope="module")
def untouched(tmp_path_factory):
    """A project in which nothing has run and nobody has judged anything."""
    project = make_project(tmp_path_factory.mktemp("first") / "untouched")
    (project.root / "references.csv").unlink()
    shutil.copy(Path(__file__).parent.parent / "workspace.yaml", project.root)
    project.change(sources={"references": "", "unlisted": "unknown", "judgements": "judgements.csv"})
    return project


@pytest.fixture
def project(untouched, tmp_path, monkeypatch):
    copy = untouched.copied(tmp_path / "labels")
    monkeypatch.chdir(copy.root)
    return copy


def judged(path, share=1.0):
    """Fill in what is true, a candidate that begins with "keep" holds for everybody, and one in sixteen wrong."""
    path = Path(path)
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    for number, row in enumerate(rows[: int(len(rows) * share)]):
        holds = (row["candidate_text"] in TRUE_CANDIDATES) != (number % 16 == 5)
        row["judgement"] = "yes" if holds else "no"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return rows


def blank(path, split, count):
    """Take the first judgements of a split out of a file again."""
    with Path(path).open(newline="") as file:
        rows = list(csv.DictReader(file))
    for row in [row for row in rows if row["split"] == split][:count]:
        row["judgement"] = ""
    with Path(path).open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return sum(row["split"] == split and bool(row["judgement"]) for row in rows)


def failures(result):
    return [event for event in result.all_events if event.event_type == dg.DagsterEventType.STEP_FAILURE]


# --- which pairs


TEXTS = {f"e{number:03d}": f"{'weld' if number % 10 == 0 else 'sell'} thing number {number}" for number in range(100)}
TOPICS = {"c0": "weld", "c1": "sell", "c2": "nothing of the kind"}


def test_a_third_is_of_the_most_similar_entities_and_the_rest_is_not_left_out():
    found = similarity_sample.draw(TEXTS, TOPICS, [], 30)
    # Strata of 5, 15 and 80 entities for each of three candidates.
    assert sorted(set(found.values())) == [10 / 240, 10 / 45, 10 / 15]
    assert [list(found.values()).count(chance) for chance in (10 / 15, 10 / 45, 10 / 240)] == [10, 10, 10]
    most = {pair for pair, chance in found.items() if chance == 10 / 15}
    assert {TEXTS[entity].split()[0] for entity, candidate in most if candidate == "c0"} == {"weld"}
    assert {TEXTS[entity].split()[0] for entity, candidate in most if candidate == "c1"} == {"sell"}


def test_a_second_draw_asks_for_no_judged_pair_and_ends_with_all_of_them():
    first = similarity_sample.draw(TEXTS, TOPICS, [], 30)
    second = similarity_sample.draw(TEXTS, TOPICS, first, 60)
    assert len(second) == 60 and not set(first) & set(second)
    # Five of the most similar are left, and the others make up for what they lack.
    assert [list(second.values()).count(chance) for chance in sorted(set(second.values()))] == [27, 28, 5]
    assert len(similarity_sample.draw(TEXTS, TOPICS, [*first, *second], 1000)) == 300 - 90
    assert similarity_sample.draw(TEXTS, TOPICS, [(e, c) for e in TEXTS for c in TOPICS], 5) == {}


def test_every_pair_of_a_stratum_is_drawn_with_the_probability_beside_it():
    hits, trials, expected = 0, 200, 0.0
    for trial in range(trials):
        entities = {f"{trial}-{name}": text for name, text in TEXTS.items()}
        found = similarity_sample.draw(entities, TOPICS, [], 30)
        pair = (f"{trial}-e055", "c0")
        hits += pair in found
        expected = 10 / 240
    # 200 draws of a pair with probability 1/24: 8.3 on average, 2.8 the standard deviation.
    assert abs(hits - trials * expected) < 3.3 * 2.83


def test_where_there_are_too_many_entities_chance_says_which_are_looked_at(monkeypatch):
    monkeypatch.setattr(similarity_sample, "MOST_ENTITIES", 20)
    found = similarity_sample.draw(TEXTS, TOPICS, [], 1000)
    assert len({entity for entity, _ in found}) == 20 and len(found) == 60
    assert {round(chance, 12) for chance in found.values()} == {0.2}


# --- before a first run


def test_people_can_be_asked_right_after_init_and_nothing_is_written_but_the_export(command, project):
    before = {path for path in project.root.rglob("*") if "base" not in path.parts}
    code, out, err = command("sample", "--count", "30", "--out", "teach.csv")
    assert code == 0 and "30 pairs to judge in teach.csv" in out, err
    assert "they teach. For pairs that prove: semlabel sample --random --split calibrate" in " ".join(err.split())
    code, out, _ = command("sample", *PROVE, "--count", "20", "--out", "prove.json", "--json")
    assert json.loads(out) == {
        "out": "prove.json",
        "pairs": 20,
        "designs": {RANDOM: 20},
        "inclusion_probability": 20 / (40 * 8),
    }
    after = {path for path in project.root.rglob("*") if "base" not in path.parts}
    assert {path.name for path in after - before} == {"teach.csv", "prove.json"}
    rows = judged("teach.csv", 0)
    assert {row["split"] for row in rows} == {"train"} and len({row["candidate_id"] for row in rows}) == 8
    assert all(0 < float(row["inclusion_probability"]) <= 1 for row in rows)


@pytest.mark.parametrize("sources", [{"references": "none.csv"}, {"references": ""}])
def test_an_empty_table_of_references_is_as_good_as_none(project, sources):
    Path("none.csv").write_text("entity_id,candidate_id,label\n")
    project.change(sources=sources)
    assert len(sample_active(project.settings, None, 30)) == 30
    assert read_references(project.settings).rows_in == 0


def test_what_would_make_a_no_of_every_pair_is_refused_before_people_work_in_vain(command, project):
    project.change(sources={"unlisted": "negative"})
    with pytest.raises(SettingsError, match='unlisted = "negative" would make a NO of every pair: name them, or set'):
        load_settings(project.config)
    Path("none.csv").write_text("entity_id,candidate_id,label\n")
    project.change(sources={"references": "none.csv"})
    for options in ((), ("--random",)):
        code, _, err = command("sample", *options, "--out", "judge.csv")
        assert code == 2 and err.count("\n") == 1 and 'set unlisted = "unknown"' in err
    code, out, _ = command("check")
    assert code == 0 and 'unlisted = "negative" needs references; set "unknown"' in out


@pytest.mark.parametrize("content", [None, "", "\n"])
def test_a_file_that_is_not_there_or_holds_nothing_says_what_to_write_instead(project, content):
    project.change(sources={"references": "none.csv"})
    if content is not None:
        Path("none.csv").write_text(content)
    with pytest.raises(SourceError, match=r'say so: \[sources\] references = "" and unlisted = "unknown"'):
        read_references(project.settings)


def test_an_import_before_a_first_run_makes_what_it_needs_and_other_commands_bear_it(command, project):
    command("sample", "--count", "10", "--out", "teach.csv")
    judged("teach.csv")
    code, out, err = command("judgements", "import", "teach.csv")
    assert code == 0 and "10 judgements imported" in out
    assert "semlabel check says what is still too thin" in " ".join(err.split())
    found = read_judgements(project.settings)
    assert {(row.design, row.split) for row in found} == {(STRATIFIED, "train")}
    assert all(row.inclusion_probability for row in found)
    for name in ("status", "alerts", "check", "doctor"):
        code, _, err = command(name)
        assert code in (0, 1) and "Traceback" not in err, name
    again = {(row.entity_id, row.candidate_id) for row in sample_active(project.settings, project.operations, 200)}
    assert not again & {row.pair for row in found} and len(again) == 20 * 8 - 10


def test_an_import_without_a_place_makes_nothing(command, project):
    command("sample", "--count", "10", "--out", "teach.csv")
    judged("teach.csv")
    project.change(sources={"judgements": ""})
    code, _, err = command("judgements", "import", "teach.csv")
    assert code == 2 and 'set [sources] judgements = "judgements.csv"' in err
    assert not (project.root / "run").exists()


# --- splits that stay


def splits_now(project):
    """The splits as they come out of the tables."""
    with Warehouse.open(Path(":memory:")) as warehouse:
        fill_from_tables(warehouse, project.settings, ())
        return dict(warehouse.rows("SELECT entity_id, split FROM entities"))


def test_a_judged_entity_keeps_the_split_it_was_exported_with(project):
    rows = sample_random(project.settings, None, 320, ["calibrate", "certify", "test"])
    before = {row.entity_id: row.split for row in rows}
    texts = {(row.entity_id, row.candidate_id): (row.entity_text_id, row.candidate_text_id) for row in rows}
    header = ",".join(Judgement.__dataclass_fields__)
    lines = [
        ",".join((row.entity_id, row.candidate_id, "no", RANDOM, "1.0", *texts[row.entity_id, row.candidate_id]))
        + f",,now,{row.split}"
        for row in rows
    ]
    Path("judgements.csv").write_text("\n".join([header, *lines]) + "\n")
    moved = [
        {"entity_id": f"new{number}", "text": f"{number} {number * 7919} {number * 104729} of its own"}
        for number in range(60)
    ]
    project.write_entities([*project.entities(), *moved])
    project.change(splits={"seed": 8})
    after = splits_now(project)
    assert len(after) == 120 and {name: after[name] for name in before} == before
    Path("judgements.csv").unlink()
    assert splits_now(project) != after


def test_an_entity_that_a_picked_pair_is_of_trains_whatever_else_is_said():
    rows = [
        judgement("e0", "c0", split="certify"),
        judgement("e0", "c1", design=STRATIFIED, split="train"),
        judgement("e0", "c2", split="test"),
        judgement("e1", "c0", split="test"),
        judgement("e1", "c1", split="certify"),
        judgement("e2", "c0"),
        judgement("e3", "c0", design=NEAR_THRESHOLD),
    ]
    # What was picked in a file from before splits were kept was of train entities too.
    assert pinned_splits(rows) == {"e0": "train", "e1": "test", "e3": "train"}


def test_judgements_of_a_file_without_splits_are_read_as_before(project):
    names = [name for name in Judgement.__dataclass_fields__ if name != "split"]
    Path("judgements.csv").write_text(f"{','.join(names)}\ne0,c0,yes,random,0.5,t,u,,now\n")
    (found,) = read_judgements(project.settings)
    assert (found.pair, found.split) == (("e0", "c0"), "")


def splits_of(project):
    with project.warehouse() as warehouse:
        return dict(warehouse.rows("SELECT entity_id, split FROM entities"))


# --- the whole road


@pytest.mark.parametrize(
    ("judged", "said"),
    [
        ({"train": (3, 3), "calibrate": (1, 1), "certify": (0, 1), "test": (1, 0)}, None),
        (
            {"train": (3, 0), "calibrate": (1, 1), "certify": (1, 1), "test": (1, 1)},
            "with `semlabel sample --out teach.csv`",
        ),
        (
            {"train": (3, 3), "calibrate": (0, 9), "certify": (0, 0), "test": (1, 1)},
            "--split calibrate --split certify",
        ),
    ],
)
def test_a_training_that_nothing_could_measure_is_not_begun(judged, said):
    found = too_thin(judged)
    assert found is None if said is None else said in found


def test_from_two_tables_to_a_labeler(command, project, instance):
    code, out, _ = command("check")
    assert code == 0 and "Nobody has judged anything that can be used. `semlabel sample --count 200" in out
    command("sample", "--count", "120", "--out", "teach.csv")
    judged("teach.csv")
    assert command("judgements", "import", "teach.csv")[0] == 0
    code, out, _ = command("check")
    assert code == 0 and "calibrate, certify, test: no YES or no NO is judged there" in out
    assert "Judgements among them: 120" in out
    (failure,) = failures(run(project, instance))
    assert failure.step_key == "checkpoint"
    problem = str(failure.event_specific_data.error)
    assert "calibrate 0 YES and 0 NO, certify 0 YES and 0 NO, test 0 YES and 0 NO): ask people with" in problem
    assert "`semlabel sample --random --split calibrate --split certify --split test --out prove.csv`" in problem
    command("sample", *PROVE, "--count", "320", "--out", "prove.csv")
    judged("prove.csv", 0.97)
    certify = blank("prove.csv", "certify", 2)
    assert command("judgements", "import", "prove.csv")[0] == 0
    code, out, _ = command("check")
    assert code == 0 and "is judged there" not in out and "20 entities train, 40 are held out" in out
    assert re.search(r"train 20 \(\d+ YES, \d+ NO\), calibrate 14 \(\d+ YES, \d+ NO\)", out), out

    result = run(project, instance)
    assert failed(result) == set()
    threshold = told(result, "threshold")
    assert (threshold["certify_undecided"], threshold["certify_pairs"]) == (2, certify)
    assert "(2 drawn pairs that nobody judged count as wrong)" in threshold["sentence"]
    designs = {design for _, design, _ in references_of(project).values()}
    assert designs == {RANDOM, STRATIFIED}
    with project.warehouse() as warehouse:
        ((pairs,),) = warehouse.rows("SELECT count(*) FROM training_pairs")
        assert 110 < pairs <= 120
        assert warehouse.active_labeler()["threshold"] is not None
    # Now a labeler has labeled, and its doubts are what is asked for.
    assert {row.design for row in sample_active(project.settings, project.operations, 9)} & {STRATIFIED} == set()

    # References that come later name few: who was drawn stays drawn, and a new entity is not promised anything.
    ((entity_id, candidate_id),) = [pair for pair, (label, design, _) in references_of(project).items() if label][:1]
    project.write_references([{"entity_id": entity_id, "candidate_id": candidate_id, "label": "yes"}])
    project.change(sources={"references": "references.csv"})
    before = splits_of(project)
    stranger = {"entity_id": "new", "text": "a line of work that nobody was asked about"}
    project.write_entities([*project.entities(), stranger])
    promised = told(run(project, instance, job="train_labeler"), "threshold")["sentence"]
    assert splits_of(project) == before | {"new": ""} and "" not in before.values()
    assert promised == (
        f"{threshold['sentence']} This holds for the 60 entities that references or judgements name, not for the other "
        "1 of the table."
    )
