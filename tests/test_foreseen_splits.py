"""What `semlabel check` and the announcement of a run say of splits and sizes is what the run then does."""

import json
import random
import subprocess
import sys
from collections import Counter
from contextlib import contextmanager

import pytest

from semlabel import foreseen_splits
from semlabel.bench.experiments.problem import load_problem
from semlabel.cli.cost import Inventory
from semlabel.digests import text_id
from semlabel.splits import HELD_OUT
from tests.pipeline_fixtures import CANDIDATES, ENTITIES, WORDS, make_project, run

SHARES = {"calibrate": 0.1, "certify": 0.15, "test": 0.1}


@pytest.fixture
def project(tmp_path):
    return make_project(tmp_path / "fresh")


@pytest.fixture
def labeled(first_run, tmp_path):
    return first_run[0].copied(tmp_path / "labeled")


def inventory(project):
    return Inventory.read(project.settings)


def said(project):
    """What is told of splits: entities of each, those that train, those held out, and what the run will note."""
    found = inventory(project)
    told = {name: split["entities"] for name, split in found.findings.splits.items()}
    return told, found.sizes.train, found.sizes.held_out, found.findings.split_notes


def done(project, instance):
    """What the run makes of it: entities of each split."""
    assert run(project, instance, select=["entities"]).success
    with project.warehouse() as warehouse:
        return dict(warehouse.rows("SELECT split, count(*) FROM entities WHERE split <> '' GROUP BY split"))


@contextmanager
def held_open(path):
    """The file open in another process, as while a run writes."""
    code = "import duckdb, sys; held = duckdb.connect(sys.argv[1]); print(flush=True); sys.stdin.read()"
    holder = subprocess.Popen([sys.executable, "-c", code, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert holder.stdout.readline() == b"\n"
        yield
    finally:
        holder.communicate()


def referenced(project, count):
    ids = {row["entity_id"] for row in project.entities()[:count]}
    project.write_references(row for row in project.references() if row["entity_id"] in ids)


def test_shares_are_of_the_entities_that_are_split_and_not_of_all_there_are(project, instance):
    project.change(splits=SHARES)
    referenced(project, 20)
    told, train, held_out, _ = said(project)
    assert told == {"train": 13, "calibrate": 2, "certify": 3, "test": 2}
    assert (train, held_out) == (13, 7)
    stages = {work.stage: work.pairs for work in inventory(project).cost(None, training=True).work}
    assert stages["train"] == 3 * 13 * CANDIDATES
    assert stages["score held-out entities"] == 7 * CANDIDATES
    assert done(project, instance) == told


def test_a_split_that_cannot_grow_is_told_as_it_is_and_not_as_it_was_asked_for(labeled, instance):
    before = {"train": 20, "calibrate": 14, "certify": 20, "test": 6}
    labeled.change(splits={"certify": 30})
    note = "certify has 20 of 30 entities: assignments stay, and no new entity is left for it"
    assert said(labeled) == (before, 20, 40, [note])
    assert note in inventory(labeled).findings.advice
    assert done(labeled, instance) == before


def test_who_was_away_is_told_in_the_split_it_comes_back_to(labeled, instance):
    rows = labeled.entities()
    chance = random.Random(1)
    labeled.write_entities(rows[20:])
    assert done(labeled, instance).keys() == {"train", *HELD_OUT}
    new = [{"entity_id": f"n{number}", "text": " ".join(chance.choices(WORDS, k=9))} for number in range(6)]
    labeled.write_entities([*rows, *new])
    labeled.write_references(
        [*labeled.references(), *({"entity_id": f"n{n}", "candidate_id": "c0", "label": "yes"} for n in range(6))]
    )
    labeled.change(splits={"test": 9})
    told, *_ = said(labeled)
    assert told == {"train": 23, "calibrate": 14, "certify": 20, "test": 9}
    assert done(labeled, instance) == told


def test_looking_ahead_writes_nothing(labeled):
    def watched(path):
        return path.is_file() and not path.name.startswith("ops.sqlite")  # its readers leave a lock file

    def state():
        return {path: path.stat().st_mtime_ns for path in labeled.root.rglob("*") if watched(path)}

    before = state()
    found = inventory(labeled)
    assert found.splits_exact and found.findings.splits["test"]["entities"] == 6
    assert state() == before


def test_while_a_run_writes_nothing_is_made_up(labeled, command_of):
    with held_open(labeled.settings.paths.warehouse):
        found = inventory(labeled)
        assert (found.findings.splits, found.splits_exact) == (None, False)
        assert "warehouse.duckdb: " in found.findings.advice[0] and "has it open" in found.findings.advice[0]
        assert (found.sizes.train, found.sizes.held_out) == (20, 40)
        _, out, _ = command_of(labeled, "check")
    assert "Splits:  about 20 entities train, about 40 are held out; 8 candidates" in out


def test_of_very_many_texts_near_duplicates_are_left_to_the_run_and_the_sizes_are_about(
    project, command_of, monkeypatch
):
    monkeypatch.setattr(foreseen_splits, "MOST_COMPARED", 59)
    found = inventory(project)
    assert (found.findings.splits, found.splits_exact) == (None, False)
    assert Counter(found.foreseen.split_of.values()) == {"train": 20, "calibrate": 14, "certify": 20, "test": 6}
    _, out, _ = command_of(project, "check")
    assert "Splits:  about 20 entities train, about 40 are held out; 8 candidates" in out


def test_who_was_erased_is_in_no_number_and_no_fault_of_the_source(labeled, command_of, instance):
    gone = labeled.entities()[0]["entity_id"]
    labeled.operations.note_erasure(text_id(gone), {})
    code, out, _ = command_of(labeled, "check", "--json")
    document = json.loads(out)
    entities = document["sources"]["entities"]
    assert (code, entities["kept"], entities["refused"], entities["erased"]) == (0, ENTITIES - 1, 0, 1)
    assert document["train_entities"] + document["held_out_entities"] == ENTITIES - 1
    told, *_ = said(labeled)
    assert done(labeled, instance) == told


def test_a_limited_run_is_told_the_entities_it_will_choose(labeled, instance):
    with labeled.warehouse() as warehouse:
        rows = warehouse.rows("SELECT entity_id FROM entities ORDER BY md5(entity_id), entity_id LIMIT 5")
    chosen = [row[0] for row in rows]
    edited = chosen[:2]
    labeled.write_entities(
        row | ({"text": f"another {row['text']}"} if row["entity_id"] in edited else {}) for row in labeled.entities()
    )
    night = inventory(labeled).cost(None, training=False, entities_limit=5)
    assert night.pairs_to_score == 2 * CANDIDATES
    result = run(labeled, instance, "nightly_labeling", tags={"semlabel/entities_limit": "5"})
    assert result.asset_materializations_for_node("predictions")[0].metadata["pairs_scored"].value == 2 * CANDIDATES


def test_a_limit_takes_no_more_held_out_entities_than_there_are(labeled):
    labeled.change(scoring={"entities": "held_out"})
    assert inventory(labeled).stored(50) == inventory(labeled).stored() == {CANDIDATES: 40}
    assert inventory(labeled).stored(5) == {CANDIDATES: 5}
    assert inventory(labeled).stored(0) == {CANDIDATES: ENTITIES}


def test_experiments_use_nobody_that_the_project_holds_out_by_what_it_remembers(labeled):
    # Drawn anew, ten of those that certify would train.
    labeled.change(splits={"certify": 10})
    with labeled.warehouse() as warehouse:
        trained = {row[0] for row in warehouse.rows("SELECT entity_id FROM entities WHERE split = 'train'")}
    assert set(load_problem(labeled.settings, calibrate=4, test=4).entities["entity_id"]) == trained


@pytest.fixture
def command_of(capfd, monkeypatch):
    """Run a command on a project; gives exit code, stdout and stderr."""

    def call(project, *arguments):
        from semlabel.cli import run_command

        monkeypatch.chdir(project.root)
        (project.root / "workspace.yaml").write_text("load_from:\n  - python_module:\n      module_name: toy\n")
        capfd.readouterr()
        code = run_command(arguments)
        return (code, *capfd.readouterr())

    return call
