"""What the surroundings do to the store: a full disk, a read-only one.

Each time: one clear line, nothing lost, and the next run finishes as if nothing had been. The small disk is a real one.
"""

import shutil
import subprocess
from pathlib import Path

import pytest

from semlabel.bench.refresh import World
from semlabel.errors import SemlabelError, WarehouseError
from semlabel.operations import Operations
from semlabel.refresh import plan
from semlabel.warehouse import Warehouse
from tests.storage import Project
from tests.test_readers import Nights


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 24 MB of its own; skipped where nobody may mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=24m,mode=700", "tmpfs", folder], capture_output=True, text=True
    )
    if done.returncode:
        pytest.skip(f"a small file system cannot be mounted here: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


def leave_free(folder: Path, size: int) -> Path:
    """Fill a disk but for about `size` bytes; gives the file to delete when somebody has made room."""
    ballast = folder / "ballast"
    with ballast.open("wb") as file:
        file.write(b"\0" * max(0, shutil.disk_usage(folder).free - size))
    return ballast


def everything(warehouse: Warehouse) -> list[tuple]:
    return warehouse.rows("SELECT entity_id, candidate_id, margin FROM predictions ORDER BY ALL")


def test_a_full_disk_stops_a_refresh_with_one_line_and_the_next_run_finishes_it(small_disk, tmp_path):
    world = World(small_disk, entities=2_000, candidates=50)
    with world.open() as warehouse:
        world.fill(warehouse)
    ballast = None
    world.edits += 1
    with (
        pytest.raises(WarehouseError, match=r"the disk is full.*free some space") as refused,
        world.open() as warehouse,
    ):
        ballast = leave_free(small_disk, 60_000)
        warehouse.replace_entities(world.entities(), "bench")
        world.refresh(warehouse, plan(warehouse, "scorer", None, 50))
    assert "\n" not in str(refused.value)
    ballast.unlink()
    with world.open() as warehouse:
        warehouse.replace_entities(world.entities(), "bench")
        left = plan(warehouse, "scorer", None, 50)
        assert 0 < left.pairs <= world.pairs
        world.refresh(warehouse, left)
        assert plan(warehouse, "scorer", None, 50).pairs == 0
        assert len(everything(warehouse)) == world.pairs


def test_a_full_disk_leaves_the_published_version_as_it_is(small_disk):
    nights = Nights(small_disk, entities=2_000, candidates=50)
    first = nights.publish()
    ballast = leave_free(small_disk, 100_000)
    with pytest.raises(WarehouseError, match=r"disk is full"):
        nights.publish()
    assert (nights.published / "current").resolve().name == first
    assert [path.name for path in (nights.published / "versions").iterdir() if not path.name.startswith(".")] == [first]
    ballast.unlink()
    assert nights.publish() != first


def test_a_read_only_disk_is_told_and_changes_nothing(small_disk):
    project = Project(small_disk / "project", scored=True)
    before = everything(project.warehouse)
    project.close()
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    with pytest.raises(WarehouseError, match=r"make the file and its folder writable") as refused:
        Warehouse.open(small_disk / "project" / "warehouse.duckdb")
    assert "\n" not in str(refused.value)
    with Warehouse.open(small_disk / "project" / "warehouse.duckdb", read_only=True) as warehouse:
        assert everything(warehouse) == before


def test_a_full_disk_is_told_by_the_operational_state_too_and_keeps_what_it_had(small_disk):
    operations = Operations(small_disk / "ops.sqlite")
    operations.start_run("r1", "nightly_labeling")
    ballast = leave_free(small_disk, 0)
    with pytest.raises(SemlabelError, match="full") as refused:
        for number in range(10_000):
            operations.finish_run("r1", "FAILURE", f"note {number} " + "x" * 100_000)
    assert "\n" not in str(refused.value)
    ballast.unlink()
    operations.finish_run("r1", "SUCCESS")
    assert operations.last_run()["status"] == "SUCCESS"
