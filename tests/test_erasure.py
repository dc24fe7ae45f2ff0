"""An erased person is nowhere any more, readers notice nothing, and nobody else loses anything."""

import json
import os
import sqlite3
from pathlib import Path
from types import SimpleNamespace

import duckdb
import pandas as pd
import pyarrow.parquet as pq
import pytest

from semlabel import erase_versions, processes, published
from semlabel.cli import run_command
from semlabel.digests import text_id
from semlabel.erase_traces import Traces
from semlabel.erasure import PLACES, erase
from semlabel.errors import LeaseHeld, SemlabelError
from semlabel.gates import GateResult
from semlabel.judging.store import Judgement, add_judgements, read_judgements
from semlabel.judging.taught import Asked, read_asked, write_asked
from semlabel.operations import Operations
from semlabel.publish import current_publication, publish, verify_version
from semlabel.published import version_names
from semlabel.remembered_splits import assign_for_good, remembered
from semlabel.settings import Settings, Splits, load_settings
from semlabel.sources import ERASED, read_entities, read_references
from semlabel.warehouse import Warehouse
from tests.cli_settings import smallest
from tests.storage import Project, Scorer

PERSON = "person-4711"
OLD_TEXT, TEXT = "Ann was a florist in Bern once.", 'Ann runs a "secret" bakery in Bern.'
OTHERS = {"e1": "alpha", "e2": "beta", "e3": "gamma"}
MANIFEST = {"digest": "labeler", "scorer_digest": "scorer", "base_model": "tiny", "threshold": 0.5}


class World:
    """A project in which one person has left traces everywhere, over three published versions."""

    def __init__(self, root: Path) -> None:
        self.root = root
        judged = smallest().replace("[sources]", '[sources]\njudgements = "judgements.csv"')
        (root / "pipeline.toml").write_text(judged)
        self.settings: Settings = load_settings(root / "pipeline.toml")
        paths = self.settings.paths
        paths.create()
        project = Project(paths.state)
        self.operations = project.operations
        self.operations.finish_run("run", "SUCCESS")
        for texts in (OTHERS, OTHERS | {PERSON: OLD_TEXT}, OTHERS | {PERSON: TEXT, "twin": "beta"}):
            night(project, paths.published, texts)
        pairs = [(PERSON, "c1", True), ("e1", "c1", False)]
        frame = pd.DataFrame(pairs, columns=["entity_id", "candidate_id", "label"])
        project.warehouse.replace_references(frame, "run")
        project.warehouse.replace_training_pairs(frame, "run")
        undecided = [(PERSON, "c2", "contradictory"), ("e1", "c2", "contradictory")]
        columns = ["entity_id", "candidate_id", "reason"]
        project.warehouse.replace_undecided(pd.DataFrame(undecided, columns=columns), "run")
        assign_for_good(project.warehouse, project.warehouse.entities(), Splits(calibrate=1, certify=1, test=1))
        project.warehouse.add_refused("run", "references", [(f"{PERSON} / c9", "unknown candidate"), ("e1", "blank")])
        project.close()
        self._leave_traces()

    def _leave_traces(self) -> None:
        paths = self.settings.paths
        rows = [
            Judgement(name, "c1", True, "random", 0.5, text_id(TEXT), "t", "labeler", "2026-11-30")
            for name in (PERSON, "e1", PERSON + "2")
        ]
        add_judgements(self.root / "judgements.csv", [], rows)
        asked = [Asked(n, "c1", "yes", "big", t, "t", "2026-11-30") for n, t in ((PERSON, text_id(TEXT)), ("e1", "u"))]
        write_asked(self.settings, asked)
        evidence = {
            "examples": [{"entity_id": PERSON, "text": TEXT}, {"entity_id": "e1", "text": "alpha"}],
            "limits": {},
        }
        result = GateResult("catalog_contract", "catalog", "ERROR", "fail", 1.0, 0.0, f"'{PERSON}' is wrong", evidence)
        self.operations.record_gate("run", result, "L", "S", 1)
        files = {
            paths.temporary / "spilled.tmp": TEXT,
            paths.state / "spool" / "online.jsonl": f'{{"entity_id": "{PERSON}"}}\n{{"entity_id": "e1"}}\n',
            paths.reports / "quality.html": f"<p>{TEXT.replace(chr(34), '&quot;')}</p>",
            paths.reports / "plain.html": "<p>nobody</p>",
            paths.state / "logs" / "r.log": f"first\nduplicate {PERSON} here\nlast\n",
        }
        for file, text in files.items():
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        history = paths.dagster_home / "history" / "runs.db"
        history.parent.mkdir(parents=True)
        with sqlite3.connect(history) as connection:
            connection.execute("CREATE TABLE event_logs (id INTEGER PRIMARY KEY, event TEXT)")
            told = {"step_key": PERSON, "metadata_entries": [{"records": [{"data": {"entity_id": PERSON}}]}]}
            connection.execute("INSERT INTO event_logs (event) VALUES (?)", (json.dumps(told),))
        connection.close()

    def erase(self, at=lambda place: None):
        return erase(PERSON, self.settings, self.operations, at)

    def bytes_with(self, needle: str) -> list[str]:
        """Every file of the state in whose bytes the needle stands."""
        state = self.settings.paths.state
        files = [path for path in state.rglob("*") if path.is_file() and not path.is_symlink()]
        return sorted(str(path.relative_to(state)) for path in files if needle.encode() in path.read_bytes())

    def rows(self, sql: str) -> list[tuple]:
        with Warehouse.open(self.settings.paths.warehouse, read_only=True) as warehouse:
            return warehouse.rows(sql)


def night(project: Project, directory: Path, texts: dict[str, str]) -> None:
    """Label and publish these entities."""
    project.put(texts)
    project.refresh(Scorer())
    publish(
        project.warehouse,
        project.operations,
        SimpleNamespace(keep=7, uncertified_candidates="publish"),
        directory,
        MANIFEST,
        [],
        "run",
        recheck=lambda: None,
    )


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    return World(tmp_path_factory.mktemp("world")).root


@pytest.fixture
def world(template, tmp_path):
    import shutil

    shutil.copytree(template, tmp_path / "world", symlinks=True)
    copied = World.__new__(World)
    copied.root = tmp_path / "world"
    copied.settings = load_settings(copied.root / "pipeline.toml")
    copied.operations = Operations(copied.settings.paths.ops)
    return copied


def current(world: World) -> dict:
    return current_publication(world.settings.paths.published)


COUNTS = {
    "published: rows": 33,
    "preview: rows": 0,
    "temporary": 1,
    "spool": 1,
    "reports": 1,
    "logs": 1,
    "history": 1,
    "operations": 3,
    "judgements": 1,
    "taught": 1,
    "warehouse: entities": 1,
    "warehouse: former_texts": 1,
    "warehouse: margins": 10,
    "warehouse: online_texts": 0,
    "warehouse: prediction_scope": 0,
    "warehouse: reference_labels": 1,
    "warehouse: refused_rows": 1,
    "warehouse: remembered_splits": 1,
    "warehouse: training_pairs": 1,
    "warehouse: undecided_pairs": 1,
}


def test_nothing_that_names_the_person_is_left_and_nobody_else_loses_anything(world):
    before = world.rows("SELECT entity_id, candidate_id, margin FROM predictions WHERE entity_id <> 'person-4711'")
    assert world.bytes_with(PERSON) and world.bytes_with(text_id(OLD_TEXT))
    receipt = world.erase()
    counts = {place: count for place, count in receipt.counts.items() if place != "published: rows"}
    assert counts == {place: count for place, count in COUNTS.items() if place != "published: rows"}
    assert receipt.counts["published: rows"] > 20
    assert (receipt.id_digest, receipt.source_lists_it) == (text_id(PERSON), None)
    # The history's step key is Dagster's own word: only what was told is cleaned.
    assert world.bytes_with(PERSON) == ["dagster/history/runs.db"]
    for trace in (TEXT, "secret", "florist", text_id(TEXT), text_id(OLD_TEXT)):
        assert world.bytes_with(trace) == []
    after = world.rows("SELECT entity_id, candidate_id, margin FROM predictions")
    assert sorted(after) == sorted(before) and len(after) == 20
    assert (world.settings.paths.reports / "plain.html").exists()
    assert (world.settings.paths.state / "logs" / "r.log").read_text() == "first\n(erased)\nlast\n"
    assert (world.settings.paths.state / "spool" / "online.jsonl").read_text() == '{"entity_id": "e1"}\n'
    assert [row.entity_id for row in read_judgements(world.settings)] == ["e1", PERSON + "2"]
    assert [row.entity_id for row in read_asked(world.settings)] == ["e1"]
    (row,) = world.operations.gates_of_run("run")
    assert row["sentence"] == "'(erased)' is wrong"
    assert row["evidence"]["examples"] == [
        {"entity_id": "(erased)", "text": "(erased)"},
        {"entity_id": "e1", "text": "alpha"},
    ]


def test_every_published_version_still_verifies_under_its_name_and_tells_of_the_erasure(world):
    folder = world.settings.paths.published
    names, was = version_names(folder), current(world)
    world.erase()
    assert version_names(folder) == names and current(world)["version"] == was["version"]
    assert not list((folder / "versions").glob(".*"))
    told = []
    for name in names:
        manifest = verify_version(folder / "versions" / name)
        told.append([(entry["id_digest"], entry["rows"]) for entry in manifest.get("erasures", [])])
        with duckdb.connect(str(folder / "versions" / name / "predictions.duckdb"), read_only=True) as connection:
            (found,) = connection.execute("SELECT count(*), count(*) FILTER (WHERE label) FROM predictions").fetchall()
        assert found == (manifest["rows"], manifest["labels"])
        assert pq.read_table(folder / "versions" / name / "predictions").num_rows == manifest["rows"]
    assert told == [[], [(text_id(PERSON), 5)], [(text_id(PERSON), 5)]]
    assert current(world)["rows"] == was["rows"] - 5 and current(world)["content_hash"] != was["content_hash"]
    with Warehouse.open(world.settings.paths.warehouse, read_only=True) as warehouse:
        assert warehouse.content_hash() == current(world)["content_hash"]


def test_every_version_published_later_tells_of_the_erasure_and_names_nobody(world):
    """Its feed is against a version that names the person no more: a reader who comes late knows only this."""
    world.erase()
    (told,) = current(world)["erasures"]
    project = Project(world.settings.paths.state)
    for text in ("alpha, edited", "alpha, edited again"):
        night(project, world.settings.paths.published, OTHERS | {"e1": text})
        assert current(world)["erasures"] == [told | {"rows": 0}]
    world.operations.note_erasure("an id that was never published", {})
    night(project, world.settings.paths.published, OTHERS)
    assert [entry["id_digest"] for entry in current(world)["erasures"]] == [
        text_id(PERSON),
        "an id that was never published",
    ]
    project.close()
    for trace in (PERSON, TEXT, text_id(TEXT), text_id(OLD_TEXT)):
        assert [name for name in world.bytes_with(trace) if name.startswith("published/")] == []
    assert verify_version(Path(current(world)["path"]))


def test_a_second_erasure_finds_nothing_and_keeps_the_receipt(world):
    first = world.erase()
    again = world.erase()
    assert again.counts == first.counts and again.started_at == first.started_at
    assert world.operations.erased_ids() == {text_id(PERSON)}


@pytest.mark.parametrize("place", PLACES)
def test_an_erasure_killed_half_way_goes_on_and_ends_with_the_same_receipt(world, place):
    def fail(reached: str) -> None:
        if reached == place:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        world.erase(fail)
    assert verify_version(Path(current(world)["path"]))
    assert world.operations.erased_ids() == {text_id(PERSON)}
    receipt = world.erase()
    assert {place: receipt.counts[place] for place in COUNTS if place != "published: rows"} == {
        place: count for place, count in COUNTS.items() if place != "published: rows"
    }
    assert world.bytes_with("secret") == [] and world.bytes_with(text_id(OLD_TEXT)) == []


@pytest.mark.parametrize("call", range(1, 8))
def test_current_stands_on_a_whole_version_at_every_step_of_a_replacement(world, monkeypatch, call):
    """Every rename and link of a replacement, in turn, is the last thing that happens."""
    calls = 0

    def counted(function):
        def wrapper(*arguments, **options):
            nonlocal calls
            calls += 1
            if calls == call:
                raise KeyboardInterrupt
            return function(*arguments, **options)

        return wrapper

    folder = world.settings.paths.published
    with monkeypatch.context() as patch:
        patch.setattr(published, "point_link", counted(published.point_link))
        patch.setattr(published.shutil, "rmtree", counted(published.shutil.rmtree))
        patch.setattr(published.shutil, "copytree", counted(published.shutil.copytree))
        with pytest.raises(KeyboardInterrupt):
            world.erase()
    assert verify_version(Path(current(world)["path"]))["version"] == version_names_or_fresh(folder)[-1]
    world.erase()
    assert len(version_names(folder)) == 3 and not list((folder / "versions").glob(".*"))
    assert all(verify_version(folder / "versions" / name) for name in version_names(folder))
    assert world.bytes_with(text_id(OLD_TEXT)) == []


def version_names_or_fresh(folder: Path) -> list[str]:
    fresh = [path.name.removeprefix(published.REPLACING) for path in (folder / "versions").glob(".replacing-*")]
    return sorted({*version_names(folder), *fresh})


def test_a_rollback_never_meets_a_version_in_the_middle_of_its_replacement(world, monkeypatch):
    replace, asked = erase_versions.replace_version, []

    def replaced(directory, name, staged):
        asked.append(name)
        with pytest.raises(LeaseHeld), world.operations.lease(published.LEASE, "rollback", 0):
            pass
        replace(directory, name, staged)

    monkeypatch.setattr(erase_versions, "replace_version", replaced)
    world.erase()
    assert asked == version_names(world.settings.paths.published)[1:]


def test_a_text_that_somebody_else_has_keeps_its_margins(world):
    receipt = erase("twin", world.settings, world.operations)
    assert receipt.counts["warehouse: margins"] == 0 and receipt.counts["warehouse: entities"] == 1
    assert world.rows("SELECT count(*) FROM predictions WHERE entity_id = 'e2'") == [(5,)]


def test_somebody_of_whom_only_the_split_is_left_can_still_be_erased(world):
    with Warehouse.open(world.settings.paths.warehouse) as warehouse:
        entities = warehouse.entities()[["entity_id", "text"]]
        entities.loc[len(entities)] = ["gone-0815", "zeta"]
        assign_for_good(warehouse, entities, Splits(calibrate=1, certify=1, test=1))
        assert "gone-0815" in remembered(warehouse)
    receipt = erase("gone-0815", world.settings, world.operations)
    found = {place: count for place, count in receipt.counts.items() if count}
    assert found == {"temporary": 1, "warehouse: remembered_splits": 1}
    assert world.bytes_with("gone-0815") == []
    with Warehouse.open(world.settings.paths.warehouse, read_only=True) as warehouse:
        assert set(remembered(warehouse)) == {"e1", "e2", "e3", PERSON, "twin"}


# What programs write themselves: names, digests, places and times. `who` names those who run the project.
NOT_TYPED = {
    *("action", "asset", "boot_id", "counts_json", "entity_digest", "gate", "heartbeat", "host", "id_digest", "job"),
    *("kind", "labeler_digest", "name", "path", "pid_namespace", "plan_id", "process_start", "question_digest"),
    *("run_id", "scorer_digest", "set_digest", "severity", "stage", "state", "status", "subject_digest", "target"),
    *("token", "uncertified_candidates", "unit", "verdict", "version", "who"),
}


def plant(path: Path) -> list[tuple[str, str]]:
    """A row in every table of `ops.sqlite`, with the person in every column for words; returns these columns."""
    planted = []
    with sqlite3.connect(path) as connection:
        for (table,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            row = {}
            for _, column, kind, *_ in connection.execute(f"PRAGMA table_info({table})"):
                row[column] = f"{table} {column}" if kind == "TEXT" else 990
                if kind == "TEXT" and column not in NOT_TYPED and not column.endswith("_at"):
                    row[column] = json.dumps({"of": PERSON}) if column.endswith("_json") else f"look at {PERSON}"
                    planted.append((table, column))
            places = ", ".join("?" * len(row))
            connection.execute(f"INSERT INTO {table} ({', '.join(row)}) VALUES ({places})", list(row.values()))
    connection.close()
    return planted


def test_whatever_words_stand_in_ops_sqlite_are_cleaned(world):
    world.operations.set_publishing_paused(True, f"the row of {PERSON} is wrong")
    planted = plant(world.settings.paths.ops)
    assert {("approvals", "reason"), ("promotions", "reason"), ("settings", "value")} < set(planted)
    receipt = world.erase()
    assert receipt.counts["operations"] == COUNTS["operations"] + 1 + len(planted)
    assert world.bytes_with(PERSON) == ["dagster/history/runs.db"]
    assert world.operations.publishing_paused() == "the row of (erased) is wrong"


@pytest.mark.parametrize(("split", "may_have_trained"), [("train", True), ("", True), ("certify", False)])
def test_a_labeler_is_named_whose_training_pairs_others_have_replaced_since(world, split, may_have_trained):
    labeler = world.settings.paths.labelers / ("a" * 64)
    labeler.mkdir(parents=True)
    with Warehouse.open(world.settings.paths.warehouse) as warehouse:
        frame = pd.DataFrame([("e1", "c1", False)], columns=["entity_id", "candidate_id", "label"])
        warehouse.replace_training_pairs(frame, "a later run")
        warehouse.rows("UPDATE remembered_splits SET split = ? WHERE entity_id = ?", [split, PERSON])
    receipt, again = world.erase(), world.erase()
    assert receipt.counts["warehouse: training_pairs"] == 0
    assert receipt.trained_labelers == again.trained_labelers == ([labeler.name] if may_have_trained else [])


def test_an_unknown_id_is_refused_and_not_entered(world):
    with pytest.raises(SemlabelError, match="no entity 'person-4712' is known"):
        erase("person-4712", world.settings, world.operations)
    assert world.operations.erased_ids() == frozenset()


def test_a_run_at_work_is_named_and_nothing_is_erased(world):
    world.operations.start_run("other", "nightly_labeling", pid=os.getppid())
    with pytest.raises(LeaseHeld, match=rf"run other \(pid {os.getppid()} .*at work"):
        world.erase()
    world.operations.finish_run("other", "SUCCESS")
    with (
        world.operations.lease("warehouse", "another", 1),
        pytest.raises(LeaseHeld, match=r"run another .* holds the lease"),
    ):
        world.erase()
    assert world.rows("SELECT count(*) FROM entities") == [(5,)] and world.operations.erased_ids() == frozenset()


def test_a_run_that_was_killed_in_another_container_does_not_refuse_for_ever(world, monkeypatch):
    monkeypatch.setattr(processes, "HEARTBEAT_SECONDS", 0.05)
    world.operations.start_run("night", "nightly_labeling")
    with world.operations.lease("warehouse", "night", 0):
        with world.operations.file.transaction() as connection:
            for table in ("runs", "leases"):
                connection.execute(f"UPDATE {table} SET pid_namespace = 'of another container' WHERE run_id = 'night'")
        with pytest.raises(LeaseHeld, match="run night"):
            world.erase()
        # Its signs of life end.
        with world.operations.file.transaction() as connection:
            before = "2026-01-01T00:00:00.000000+00:00"
            connection.execute("UPDATE runs SET started_at = ?, heartbeat = ? WHERE run_id = 'night'", (before, before))
            connection.execute("UPDATE leases SET token = 'its own', heartbeat = ?", (before,))
        assert world.erase().counts["warehouse: margins"] == 10


def test_a_later_run_refuses_the_row_of_an_erased_id_without_naming_it(world):
    world.erase()
    (world.root / "entities.csv").write_text(f"entity_id,text\ne1,alpha\n{PERSON},back\n{PERSON},again\n")
    (world.root / "references.csv").write_text(f"entity_id,candidate_id\n{PERSON},c1\ne1,c1\n")
    erased = world.operations.erased_ids()
    for source in (read_entities(world.settings, erased), read_references(world.settings, erased)):
        assert list(source.frame["entity_id"]) == ["e1"]
        assert {(row.row_id, row.reason) for row in source.refused} == {(f"sha256:{text_id(PERSON)}", ERASED)}
        assert not any(PERSON in warning for warning in source.warnings)


def test_the_command_prints_the_receipt_and_says_that_the_source_still_lists_it(world, capsys):
    (world.root / "entities.csv").write_text(f"entity_id,text\ne1,alpha\n{PERSON},{TEXT[:8]}\n")
    assert run_command(["erase", PERSON, "--config", str(world.root / "pipeline.toml"), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["erased"] == text_id(PERSON) and document["source_lists_it"] is True
    assert document["counts"]["warehouse: margins"] == 10
    assert run_command(["erase", PERSON, "--config", str(world.root / "pipeline.toml")]) == 0
    out = capsys.readouterr().out
    assert "still lists it" in out and PERSON not in out and "bakery" not in out


@pytest.mark.parametrize(
    ("entity_id", "text", "found"),
    [
        ("7", "value 7 of 7", False),
        ("7", "entity '7' is listed twice", True),
        ("7", '{"entity_id": "7"}', True),
        ("7", '"{\\"entity_id\\": \\"7\\"}"', True),
        ("4711", "id 4711 in a log", False),
        ("person-4711", "id person-4711 in a log", True),
        ("person-4711", "id person-47112 in a log", False),
        ("a.b*c-1", "id a.b*c-1 there", True),
        ("a.b*c-1", "id axbbc-1 there", False),
    ],
)
def test_an_id_is_found_where_it_can_be_told_from_numbers_and_words(entity_id, text, found):
    assert Traces(entity_id, ()).in_text(text) is found
