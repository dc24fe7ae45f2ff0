"""A night killed with signal 9 at any point is finished by the next one, and no reader sees that anything happened."""

import os
import random
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from semlabel.operations import Operations
from semlabel.publish import current_publication, verify_version
from semlabel.published import version_names
from semlabel.warehouse import Warehouse
from tests.kill_harness import BATCH, FIRST, PAIRS, night

ENVIRONMENT = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}


class Nights:
    """A project whose first night is over, and what its second night comes to when nobody disturbs it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.template = folder, folder / "first"
        self.template.mkdir()
        night(self.template, "first", FIRST)
        (self.template / "scored.log").unlink()
        self.versions_before = version_names(self.template / "published")
        undisturbed = self.copy("undisturbed")
        self.content, *self.points = run(undisturbed, "second").stdout.splitlines()
        self.published = whole_current(undisturbed)

    def copy(self, name: str) -> Path:
        shutil.copytree(self.template, self.folder / name, symlinks=True)
        return self.folder / name


@pytest.fixture(scope="module")
def nights(tmp_path_factory):
    return Nights(tmp_path_factory.mktemp("nights"))


def command(folder: Path, run_id: str, *kill: object) -> list[str]:
    return [sys.executable, "-m", "tests.kill_harness", str(folder), run_id, *map(str, kill)]


def run(folder: Path, run_id: str) -> subprocess.CompletedProcess:
    return subprocess.run(command(folder, run_id), env=ENVIRONMENT, capture_output=True, text=True, check=True)


def whole_current(folder: Path) -> dict:
    """The current version, proven to be whole: what a reader would find at this moment."""
    found = current_publication(folder / "published")
    return verify_version(Path(found["path"]))


def kill_and_finish(nights: Nights, folder: Path, *kill: object) -> None:
    """Kill the second night at a point, look at `current` all the while, and let another night finish the work."""
    with subprocess.Popen(command(folder, "killed", *kill), env=ENVIRONMENT, stdout=subprocess.DEVNULL) as child:
        looks = 0
        while child.poll() is None or not looks:
            seen = whole_current(folder)
            looks += 1
    assert child.returncode == -signal.SIGKILL, kill
    before, after = nights.published["previous_version"], nights.published["content_hash"]
    seen = whole_current(folder)
    assert seen["version"] == before or seen["content_hash"] == after
    assert {row["run_id"] for row in Operations(folder / "ops.sqlite").dead_runs()} >= {"killed"}
    content, *_ = run(folder, "next").stdout.splitlines()
    assert content == nights.content
    assert whole_current(folder)["content_hash"] == after
    # One that was complete when the kill came stays, current or not, until it is purged like any other.
    names = version_names(folder / "published")
    assert names[: len(nights.versions_before)] == nights.versions_before
    assert len(names) - len(nights.versions_before) in (1, 2) and whole_current(folder)["version"] == names[-1]
    for name in names:
        verify_version(folder / "published" / "versions" / name)
    scored = Counter((folder / "scored.log").read_text().splitlines())
    assert len(scored) == PAIRS and sum(scored.values()) <= PAIRS + BATCH
    with Warehouse.open(folder / "warehouse.duckdb", read_only=True) as warehouse:
        assert warehouse.coverage().missing == []
    leftovers = [*folder.glob(".warehouse*"), *(folder / "published" / "versions").glob(".*")]
    assert leftovers == []


@pytest.mark.parametrize(
    ("name", "number", "delay"),
    [("warehouse commits", 12, 0.002), ("publication: switch", 1, 0.0), ("compaction: rename", 1, 0.0)],
)
def test_a_night_killed_in_a_commit_a_publication_or_a_compaction_is_finished_by_the_next(nights, name, number, delay):
    kill_and_finish(nights, nights.copy(name.replace(" ", "-").replace(":", "")), name, number, delay)


def test_the_points_are_in_every_part_of_a_night(nights):
    parts = Counter(name.partition(" ")[0].rstrip(":") for name in nights.points)
    assert set(parts) == {"warehouse", "operations", "publication", "compaction"}
    assert parts["warehouse"] > 150 and parts["publication"] > 8 and parts["compaction"] == 5


@pytest.mark.slow
@pytest.mark.parametrize("kill", range(20))
def test_a_night_killed_at_a_random_point_is_finished_by_the_next(nights, kill):
    chance = random.Random(kill)
    # A quarter each: every part is met, although most points are commits of scores.
    part = ("warehouse", "operations", "publication", "compaction")[kill % 4]
    names = [name for name in nights.points if name.startswith(part)]
    place = chance.randrange(len(names))
    if part == "operations":
        # The first ones open the run and take its lease, the last ones depend on how quick the machine is.
        place = chance.randrange(6, 15)
    if part == "compaction":
        place = min(place, len(names) - 2)
    delay = chance.choice([0.0, chance.uniform(0.0, 0.004)])
    number = names[: place + 1].count(names[place])
    kill_and_finish(nights, nights.copy(f"random-{kill}"), names[place], number, delay)
