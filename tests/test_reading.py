"""A command that only looks at the warehouse must not make a night fail, and says whom it waits for itself."""

import json
import re
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from semlabel import leases, reading, warehouse_check
from semlabel.cli import cost, run_command
from semlabel.cli.churn import churn
from semlabel.errors import LeaseHeld
from semlabel.operations import Operations
from semlabel.reading import in_turns
from semlabel.settings import load_settings
from semlabel.warehouse_check import check_in_turns, check_warehouse
from tests.cli_settings import smallest
from tests.storage import Project

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """A project's state with margins in its warehouse."""
    project = Project(tmp_path_factory.mktemp("stored") / "run", scored=True)
    project.close()
    return project.folder


@pytest.fixture
def settings(stored, tmp_path, monkeypatch):
    """Its settings; a lease that somebody holds is waited for a moment only."""
    where = f'[environment]\ndir = "{stored}"\nlease_wait_seconds = 0.1\n[publish]\ndir = "published"\n'
    (tmp_path / "pipeline.toml").write_text(f"{smallest()}\n{where}")
    monkeypatch.chdir(tmp_path)
    return load_settings(tmp_path / "pipeline.toml")


@pytest.fixture
def night(settings):
    """A night that holds the lease, and does not have the file open at this moment."""
    with Operations(settings.paths.ops).lease("warehouse", "night", 0):
        yield


def test_a_run_waits_for_who_only_looks_as_for_any_other_run(settings):
    operations = Operations(settings.paths.ops)
    with reading.reading(settings, "doctor") as warehouse:
        assert warehouse.rows("SELECT count(*) FROM entities") == [(3,)]
        with pytest.raises(LeaseHeld, match=r"run doctor-\w{8} \(pid "), operations.lease("warehouse", "night", 0):
            pytest.fail("a run met the lock of the file")
    with operations.lease("warehouse", "night", 0):
        pass


def test_where_nothing_has_run_nothing_is_made(settings, tmp_path):
    elsewhere = SimpleNamespace(paths=SimpleNamespace(ops=tmp_path / "none" / "ops.sqlite"))
    with reading.leased(elsewhere, "doctor"):
        pass
    assert not (tmp_path / "none").exists()


def test_a_run_that_waits_comes_in_between_two_turns_of_a_long_look(settings, monkeypatch):
    monkeypatch.setattr(warehouse_check, "TURN_SECONDS", 0.0)
    for module in (leases, reading):
        monkeypatch.setattr(module, "POLL_SECONDS", 0.01)
    operations, turns, came_in = Operations(settings.paths.ops), [], []

    def come_in():
        with operations.lease("warehouse", "night", 60):
            came_in.append(len(turns))

    writer = threading.Thread(target=come_in)
    take_turn = in_turns(settings, "doctor")

    def turn():
        turns.append("turn")
        if len(turns) == 2:
            writer.start()
        return take_turn()

    said = check_in_turns(turn)
    writer.join()
    assert len(turns) > 20
    assert came_in[0] < len(turns)
    with reading.reading(settings, "doctor") as warehouse:
        assert said == check_warehouse(warehouse)


def test_the_doctor_names_the_run_that_holds_the_warehouse_and_does_not_open_it(settings, night, capfd):
    assert run_command(["doctor", "--json", "--no-self-check"]) == 1
    out, err = capfd.readouterr()
    found = {finding["what"]: finding for finding in json.loads(out)}
    assert not found["warehouse"]["ok"] and "run night (pid " in found["warehouse"]["found"]
    assert "waiting at most 0.1 s for run night" in err


def test_the_churn_of_a_promotion_waits_for_the_run_that_holds_the_warehouse(settings, night):
    published = settings.paths.published / "current" / "predictions.duckdb"
    published.parent.mkdir(parents=True, exist_ok=True)
    published.touch()
    told = []
    with pytest.raises(LeaseHeld, match="run night"):
        churn(settings, SimpleNamespace(threshold=0.0, scorer_digest="scorer"), told.append)
    assert len(told) == 1


def test_the_order_benchmark_reads_the_warehouse_under_its_lease(settings, night):
    from semlabel.bench.order_data import warehouse_texts

    with pytest.raises(LeaseHeld, match="run night"):
        warehouse_texts(settings)


def test_an_estimate_counts_what_is_stored_under_the_lease_and_waits_for_nobody(settings, monkeypatch):
    monkeypatch.setattr("semlabel.labeler_files.promoted_path", lambda _: Path("labeler"))
    monkeypatch.setattr("semlabel.manifest.read_manifest", lambda _: SimpleNamespace(scorer_digest="scorer"))
    table = SimpleNamespace(frame=None)
    inventory = cost.Inventory(settings, table, table, table)

    def counted(*_):
        with pytest.raises(LeaseHeld), Operations(settings.paths.ops).lease("warehouse", "night", 0):
            pytest.fail("a run met the lock of the file")
        return {5: 3}

    monkeypatch.setattr(cost, "_stored", counted)
    assert inventory.stored() == {5: 3}
    with Operations(settings.paths.ops).lease("warehouse", "night", 0):
        assert inventory.stored() == {}


# Who opens the file, and under whose lease.
OPENERS = {
    "resources/warehouse.py",  # its own
    "semlabel/warehouse.py",  # makes it
    "semlabel/reading.py",  # its own
    "semlabel/cli/cost.py",  # `leased`
    "semlabel/erasure.py",  # its own, around all of it
    "semlabel/html_report/build.py",  # its own, around the report
    "semlabel/judging/sample.py",  # one in memory
    "semlabel/warehouse_file.py",  # connects
}


def test_nobody_opens_the_warehouse_without_its_lease():
    opens = re.compile(r"Warehouse\.open\(|Opening\.of\(|duckdb\.connect\(str\(path\)")
    folders = [ROOT / name for name in ("semlabel", "resources", "assets", "pipeline")]
    files = [path for folder in folders for path in folder.rglob("*.py")]
    assert {str(path.relative_to(ROOT)) for path in files if opens.search(path.read_text())} == OPENERS
