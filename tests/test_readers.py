"""Readers beside a writer: whoever reads while versions are switched sees one whole version, and never an error."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest

from semlabel.bench.refresh import World
from semlabel.publish import publish
from semlabel.published import current_publication

READER = Path(__file__).with_name("published_reader.py")
POLICY = SimpleNamespace(keep=7, uncertified_candidates="publish")


class Nights:
    """A project whose every publication is another: each night a labeler with a threshold of its own."""

    def __init__(self, folder: Path, entities: int, candidates: int) -> None:
        self.world = World(folder, entities, candidates)
        self.warehouse = self.world.open()
        self.world.fill(self.warehouse)
        self.published = folder / "published"
        self.count = 0

    def publish(self) -> str:
        digest, threshold = f"labeler-{self.count}", -1.0 + 0.25 * self.count
        self.count += 1
        self.warehouse.activate_labeler(digest, "scorer", threshold, 1.0, 0.0)
        manifest = {"digest": digest, "scorer_digest": "scorer", "base_model": "none", "threshold": threshold}
        operations, folder = self.world.operations, self.published
        return publish(self.warehouse, operations, POLICY, folder, manifest, [], "bench", recheck=lambda: None).version


def read_while_publishing(nights: Nights, publications: int, processes: int, reads: int) -> tuple[list[dict], set[str]]:
    """What every read of every process saw, and the versions published meanwhile and before."""
    versions = {nights.publish()}
    arguments = [[sys.executable, READER, nights.published, str(reads), str(number)] for number in range(processes)]
    readers = [
        subprocess.Popen(argument, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for argument in arguments
    ]
    versions |= {nights.publish() for _ in range(publications)}
    told = [reader.communicate() for reader in readers]
    assert [(reader.returncode, err[-2000:]) for reader, (_, err) in zip(readers, told, strict=True)] == [
        (0, "") for _ in readers
    ]
    return [json.loads(line) for out, _ in told for line in out.splitlines()], versions


def check(seen: list[dict], versions: set[str], processes: int, reads: int) -> None:
    assert len(seen) == processes * reads
    assert [read for read in seen if not read["equal"]] == []
    assert {read["version"] for read in seen} <= versions
    assert set(Counter(read["way"] for read in seen)) == {"with_duckdb", "with_pyarrow", "with_pandas"}


def test_a_reader_never_sees_half_a_version_while_others_are_published(tmp_path):
    nights = Nights(tmp_path, entities=300, candidates=20)
    seen, versions = read_while_publishing(nights, publications=6, processes=2, reads=30)
    check(seen, versions, processes=2, reads=30)
    assert seen[0]["found"][0] == 6_000


@pytest.mark.slow
def test_a_thousand_reads_of_two_million_rows_during_twenty_publications(tmp_path):
    nights = Nights(tmp_path, entities=10_000, candidates=200)
    seen, versions = read_while_publishing(nights, publications=20, processes=4, reads=250)
    check(seen, versions, processes=4, reads=250)
    assert (len(versions), seen[0]["found"][0]) == (21, 2_000_000)
    assert len({read["version"] for read in seen}) > 5


OLDER = """
import duckdb, sys
with duckdb.connect(sys.argv[1], read_only=True) as connection:
    query = "SELECT count(*), count(*) FILTER (label), count(DISTINCT entity_id) FROM predictions"
    print(duckdb.__version__, *connection.execute(query).fetchone())
"""


@pytest.mark.slow  # needs a package index
def test_an_older_duckdb_reads_the_copy(tmp_path):
    nights = Nights(tmp_path, entities=300, candidates=20)
    nights.publish()
    manifest = current_publication(nights.published)
    wanted = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", tmp_path / "older"]
    installed = subprocess.run([*wanted, "duckdb==1.4.4"], capture_output=True, text=True, check=False)
    if installed.returncode:
        pytest.skip(f"duckdb 1.4.4 cannot be installed here: {installed.stderr.strip()[-200:]}")
    reader = [sys.executable, "-c", OLDER, nights.published / "current" / "predictions.duckdb"]
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "older")}
    read = subprocess.run(reader, env=environment, capture_output=True, text=True, check=True)
    assert read.stdout.split() == ["1.4.4", "6000", str(manifest["labels"]), "300"]
