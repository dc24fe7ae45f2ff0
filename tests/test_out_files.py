"""`--out` never takes people's work or a source away; an export that nobody has judged in may be made again."""

import csv
import json
from pathlib import Path

import pytest

from semlabel.judging.sample import sample_random
from semlabel.judging.store import read_judgements
from tests import test_teacher
from tests.test_judging import annotated, make_world
from tests.test_teacher import judgements, rows_of, said, teach

endpoint = test_teacher.endpoint


@pytest.fixture
def project(tmp_path, monkeypatch):
    world = make_world(tmp_path)
    monkeypatch.chdir(world.root)
    return world


RANDOM_SAMPLE = ("sample", "--random", "--count", "4", "--out")


def refused(command, *arguments) -> str:
    """The one line that a command ends with; the file it was to write is as it was."""
    before = {path: path.read_bytes() for path in Path().iterdir() if path.is_file()}
    code, _, err = command(*arguments)
    assert code == 2 and err.count("\n") == 1, err
    assert {path: path.read_bytes() for path in before} == before
    return err


@pytest.mark.parametrize("there", [True, False])
def test_a_sample_never_takes_the_place_of_a_source(command, project, there):
    if there:
        rows = sample_random(project.settings, project.operations, 4, ["certify"])
        project.take(project.judged("judged.csv", rows, {(row.entity_id, row.candidate_id): "yes" for row in rows}))
    for name in ("entities", "catalog", "judgements"):
        err = refused(command, *RANDOM_SAMPLE, f"{name}.csv")
        assert f"{name}.csv: is the file of [sources] {name}; choose another --out" in err
    assert len(read_judgements(project.settings)) == (4 if there else 0)
    Path("link.csv").symlink_to("judgements.csv")
    if there:
        Path("hard.csv").hardlink_to("entities.csv")
        assert "is the file of [sources] entities" in refused(command, *RANDOM_SAMPLE, "hard.csv")
    assert "is the file of [sources] judgements" in refused(command, *RANDOM_SAMPLE, "link.csv")


@pytest.mark.parametrize("name", ["prove.csv", "prove.json"])
def test_what_people_have_judged_is_never_replaced_and_an_untouched_export_is(command, project, name):
    assert command(*RANDOM_SAMPLE, name)[0] == 0
    first = Path(name).read_bytes()
    assert command(*RANDOM_SAMPLE, name)[0] == 0 and Path(name).read_bytes() == first
    rows = sample_random(project.settings, project.operations, 4, ["certify"])
    project.judged(name, rows, {(rows[2].entity_id, rows[2].candidate_id): "perhaps"})
    for arguments in (("sample", "--out"), RANDOM_SAMPLE):
        err = refused(command, *arguments, name)
        assert f"{name}: holds 1 judgements that would be lost; import it" in err and "choose another --out" in err


def test_annotators_who_disagree_and_rows_that_were_broken_are_work_too(command, project):
    assert command(*RANDOM_SAMPLE, "tasks.json")[0] == 0
    tasks = json.loads(Path("tasks.json").read_text())
    Path("tasks.json").write_text(json.dumps([annotated(tasks[0], "yes", "no"), *tasks[1:]]))
    assert "holds 1 rows that cannot be read" in refused(command, *RANDOM_SAMPLE, "tasks.json")
    assert command(*RANDOM_SAMPLE, "judge.csv")[0] == 0
    with Path("judge.csv").open("a") as file:
        file.write("e1,c1,yes\n")
    assert "holds 1 rows that cannot be read" in refused(command, *RANDOM_SAMPLE, "judge.csv")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("notes.csv", "entity_id,remark\ne1,call back\n"),
        ("other.csv", "entity_id,candidate_id,label,design\ne1,c1,yes,random\n"),
        ("notes.json", '{"a": 1}'),
        ("notes.json", "no JSON"),
    ],
)
def test_a_file_that_is_no_export_is_never_replaced(command, project, name, content):
    Path(name).write_text(content)
    err = refused(command, *RANDOM_SAMPLE, name)
    assert f"{name}: is there already and is no export of `semlabel sample`; choose another --out" in err


def test_labels_never_take_the_place_of_their_own_tables(command, project):
    options = ("--labeler", "nowhere", "--entities", "entities.csv", "--catalog", "catalog.csv", "--out")
    for name in ("entities", "catalog"):
        assert f"is the file of [sources] {name}" in refused(command, "label", *options, f"{name}.csv")


# --- the teacher


def written(name, *changes) -> None:
    """The judged file again, with other values in some rows."""
    rows = rows_of(name)
    for number, values in changes:
        rows[number] |= values
    with Path(name).open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def test_a_teacher_writes_again_what_it_said_and_never_over_what_people_made_of_it(endpoint, capfd):
    endpoint.script = [said("yes"), said("no"), said("unsure")]
    assert teach(capfd)[0] == 0 and judgements() == ["yes", "no", ""]
    assert teach(capfd)[0] == 0 and judgements() == ["yes", "no", ""]
    for change in ({"judgement": "yes"}, {"design": "active:near_threshold"}):
        written("judged.csv", (1, change))
        code, result, err = teach(capfd)
        assert (code, result) == (2, None) and "judged.csv: holds 1 judgements that would be lost" in err
        written("judged.csv", (1, {"judgement": "no", "design": "teacher"}))
    written("judged.csv", (2, {"judgement": "no"}))  # what it was unsure of, a person knew
    code, _, err = teach(capfd)
    assert code == 2 and "holds 1 judgements that would be lost" in err
    assert len(endpoint.requests) == 3


def test_rows_that_stay_judged_in_the_export_are_not_lost(endpoint, capfd):
    written("judge.csv", (0, {"judgement": "no"}))
    assert teach(capfd)[0] == 0 and judgements() == ["no", "yes", "yes"]
    assert teach(capfd)[0] == 0 and judgements() == ["no", "yes", "yes"]
    assert teach(capfd, "--out", "judge.csv")[0] == 0
    assert [row["judgement"] for row in rows_of("judge.csv")] == ["no", "yes", "yes"]
    assert len(endpoint.requests) == 2


def test_a_teacher_never_takes_the_place_of_a_source(endpoint, capfd, tmp_path):
    for name in ("entities", "catalog", "references"):
        (tmp_path / f"{name}.csv").touch()
        code, _, err = teach(capfd, "--out", f"{name}.csv")
        assert code == 2 and f"is the file of [sources] {name}" in err
    assert endpoint.requests == []
