"""`semlabel doctor`: what is damaged is found and named, and what is whole is said to be."""

import json
import shutil
from datetime import UTC, datetime, timedelta

import pytest

from semlabel.cli import run_command
from semlabel.erase_warehouse import erase_entity
from semlabel.errors import WarehouseError
from semlabel.labeler_files import switch_current
from semlabel.retention import purge
from semlabel.warehouse import Warehouse
from semlabel.warehouse_check import check_warehouse
from tests.cli_settings import smallest
from tests.serving_fixtures import make_labelers
from tests.storage import Project


@pytest.fixture(scope="module")
def labeler(tmp_path_factory):
    return make_labelers(tmp_path_factory.mktemp("doctor"))[0]


@pytest.fixture
def project(tmp_path, monkeypatch, labeler):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pipeline.toml").write_text(smallest())
    shutil.copytree(labeler, tmp_path / "run/labelers" / labeler.name)
    switch_current(tmp_path / "run/labelers", labeler.name)
    return tmp_path


def findings(capfd, *options):
    capfd.readouterr()
    code = run_command(["doctor", "--json", *options])
    return code, {finding["what"]: finding for finding in json.loads(capfd.readouterr().out)}


def test_everything_support_asks_for_is_there(project, capfd):
    code, found = findings(capfd)
    assert code == 0, found
    assert {"semlabel", "torch", "dagster", "device", "precision", "telemetry", "disk", "labeler"} <= set(found)
    assert "auto is" in found["precision"]["found"]
    assert found["telemetry"]["found"] == "off"
    assert "2 known pairs have their margins" in found["self-check"]["found"]
    assert found["warehouse"]["found"] == "not there yet"


def test_a_labeler_that_gives_other_margins_is_wrong_though_its_files_are_whole(project, capfd, monkeypatch):
    from semlabel import labeler

    monkeypatch.setattr(labeler, "KNOWN_PAIR_TOLERANCE", {"fp32": -1.0})
    code, found = findings(capfd)
    assert code == 1
    assert found["labeler"]["ok"]
    assert not found["self-check"]["ok"]
    assert "the known pair" in found["self-check"]["found"]


def test_the_self_check_can_be_left_out(project, capfd):
    assert "self-check" not in findings(capfd, "--no-self-check")[1]


def test_somebody_who_switched_telemetry_on_is_told(project, capfd, monkeypatch):
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "1")
    assert findings(capfd, "--no-self-check")[1]["telemetry"]["found"] == "somebody set RAY_USAGE_STATS_ENABLED"


DAMAGES = [
    ("UPDATE scores SET margins = margins[1:1]", "rounds have another number of margins"),
    ("UPDATE scores SET margins = list_transform(margins, lambda m: 'nan'::FLOAT)", "a margin that is no number"),
    ("UPDATE scores SET text_key = 999999", "rounds are of no entity text"),
    ("DELETE FROM scorers", "rounds are of no scorer"),
    ("DELETE FROM blocks", "rounds have another number of margins"),
    ("UPDATE entities SET text = text || '!'", "entities have another text than their identity"),
    ("INSERT INTO catalog SELECT * FROM catalog", "candidates stand twice"),
    (
        "INSERT INTO remembered_splits SELECT 'e1', unnest(['test', 'certify']), '7', now()",
        "splits are remembered twice",
    ),
]


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """A warehouse with margins in it."""
    project = Project(tmp_path_factory.mktemp("stored"), scored=True)
    project.close()
    return project.folder / "warehouse.duckdb"


def test_a_whole_warehouse_is_said_to_be_whole(stored):
    with Warehouse.open(stored, read_only=True) as warehouse:
        assert "all readable and fitting together" in check_warehouse(warehouse)


def test_what_edits_a_purge_and_an_erasure_leave_behind_fits_together(tmp_path):
    project = Project(tmp_path / "project", scored=True)
    try:
        project.put({"e1": "alpha", "e2": "another beta"}, {"c0": "candidate 0", "c9": "candidate 9"})
        project.refresh()
        purge(project.warehouse, timedelta(days=1), datetime.now(UTC))
        purged = purge(project.warehouse, timedelta(days=1), datetime.now(UTC) + timedelta(days=9))
        assert purged.texts > 0
        erase_entity(project.warehouse, "e2")
        assert "all readable and fitting together" in check_warehouse(project.warehouse)
    finally:
        project.close()


@pytest.mark.parametrize(("sql", "said"), DAMAGES)
def test_what_does_not_fit_together_is_named(stored, tmp_path, sql, said):
    damaged = tmp_path / "warehouse.duckdb"
    shutil.copyfile(stored, damaged)
    with Warehouse.open(damaged) as warehouse:
        with warehouse.transaction() as connection:
            connection.execute(sql)
        with pytest.raises(WarehouseError, match=said):
            check_warehouse(warehouse)


def test_damage_anywhere_in_the_file_is_told_as_damage_and_never_as_something_else(stored, tmp_path):
    """Blocks of the file that hold nothing may be damaged unseen; those that hold something may not."""
    content, found = stored.read_bytes(), []
    damaged = tmp_path / "warehouse.duckdb"
    for start in range(0, len(content), 2**18):
        flipped = bytearray(content)
        middle = min(start + 2**13, len(content) - 64)
        flipped[middle : middle + 64] = bytes(byte ^ 0xFF for byte in flipped[middle : middle + 64])
        damaged.write_bytes(flipped)
        try:
            with Warehouse.open(damaged, read_only=True) as warehouse:
                check_warehouse(warehouse)
        except WarehouseError as error:
            found.append(str(error))
    assert found


@pytest.mark.parametrize(
    ("chat", "ping", "said"),
    [
        ("json://h/t", "https://p/x", {"variable CHAT is set": True, "variable PING is set": True}),
        (" ", "p/x", {"variable CHAT is not set": False, "variable PING holds no http address": False}),
    ],
)
def test_a_variable_without_an_address_that_can_work_is_a_finding(project, capfd, monkeypatch, chat, ping, said):
    more = '[alerts]\nurls = ["env:CHAT"]\ndead_man = "env:PING"\n'
    (project / "pipeline.toml").write_text(smallest() + more)
    monkeypatch.setenv("CHAT", chat)
    monkeypatch.setenv("PING", ping)
    capfd.readouterr()
    run_command(["doctor", "--json"])
    found = json.loads(capfd.readouterr().out)
    assert {row["found"]: row["ok"] for row in found if row["what"] == "alerts"} == said
