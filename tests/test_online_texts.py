"""Online texts reach the table once, the newest one holds against a lagging source, and a newer source takes over."""

import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from semlabel import spool
from semlabel.digests import text_id
from semlabel.erase_warehouse import count_entity
from semlabel.online_texts import ingest, resolve
from semlabel.publish import publish
from semlabel.retention import purge
from semlabel.sources import ERASED
from semlabel.spool import SpoolWriter
from tests.storage import Project, Scorer, margin
from tests.test_spool import update

ROOT = Path(__file__).parents[1]
TEXTS = list(Project.CATALOG.values())
MANIFEST = {"digest": "labeler", "scorer_digest": "scorer", "base_model": "tiny", "threshold": 0.5}


def accepted(entity_id, text, version, scorer="scorer", at="2126-11-30T12:00:00+00:00"):
    """An update as a server writes it: margins of the whole catalog."""
    return update(
        entity_id,
        text,
        version,
        scorer_digest=scorer,
        accepted_at=at,
        candidate_text_ids=[text_id(candidate) for candidate in TEXTS],
        margins=np.array([margin(text, candidate, scorer) for candidate in TEXTS], dtype=np.float32),
    )


class Nights:
    """A scored project whose nights read a source, after what came online."""

    def __init__(self, folder):
        self.project = Project(folder, scored=True)
        self.warehouse, self.spool = self.project.warehouse, folder / "spool"
        self.source = dict(Project.ENTITIES)
        self.versions = {}
        self.run = 0

    def online(self, *updates):
        writer = SpoolWriter(self.spool)
        for each in updates:
            writer.append(each)
        writer.seal()

    def night(self, **options):
        """Ingest and read the source; what was ingested. Nothing is scored."""
        self.run += 1
        done = ingest(self.warehouse, self.spool, "scorer", f"night {self.run}", 100, **options)
        versions = [self.versions.get(entity_id, "") for entity_id in self.source]
        columns = {"entity_id": list(self.source), "text": list(self.source.values()), "text_version": versions}
        self.resolved = resolve(self.warehouse, pd.DataFrame(columns, dtype=str))
        self.warehouse.replace_entities(self.resolved.frame, f"night {self.run}")
        return done

    def text(self, entity_id="e1"):
        ((text,),) = self.warehouse.rows("SELECT text FROM entities WHERE entity_id = ?", [entity_id])
        return text

    def rows(self, sql):
        return self.warehouse.rows(sql)


@pytest.fixture
def nights(tmp_path):
    found = Nights(tmp_path)
    yield found
    found.project.close()


def test_an_update_brings_its_text_and_margins_and_the_night_scores_nothing(nights):
    nights.online(accepted("e1", "delta", 1))
    done = nights.night()
    assert (done.updates, done.pairs, done.segments, done.rescored) == (1, 5, 1, 0)
    assert nights.text() == "delta" and list(nights.spool.glob("*.sealed")) == []
    scorer = Scorer()
    assert nights.project.refresh(scorer).pairs_scored == 0 and scorer.calls == []
    found = nights.project.predictions().query("entity_id == 'e1'")
    assert found["margin"].tolist() == [margin("delta", text) for text in TEXTS]


def test_an_update_of_another_scorer_brings_its_text_and_is_scored_again(nights):
    nights.online(accepted("e1", "delta", 1, scorer="an older one"))
    done = nights.night()
    assert (done.updates, done.pairs, done.rescored) == (1, 0, 1) and nights.text() == "delta"
    scorer = Scorer()
    nights.project.refresh(scorer)
    assert scorer.pairs == [("delta", text) for text in TEXTS]


def test_a_source_that_lags_does_not_bring_back_what_is_older(nights):
    nights.online(accepted("e1", "B", 1))
    nights.night()
    for _ in range(2):  # the source still says what it said when the update was accepted
        nights.night()
        assert nights.text() == "B" and nights.resolved.held == 1
    nights.source["e1"] = "B"
    nights.night()
    assert (nights.text(), nights.resolved.caught_up) == ("B", 1)
    nights.source["e1"] = "C"
    nights.night()
    assert (nights.text(), nights.resolved.overtaken) == ("C", 1)


def test_a_then_b_then_a_stays_a_while_the_source_lags_behind(nights):
    nights.source["e1"] = "A"
    nights.night()
    nights.online(accepted("e1", "B", 1), accepted("e1", "A", 2))
    for lagging in ("A", "B", "A"):
        nights.source["e1"] = lagging
        nights.night()
        assert nights.text() == "A"
    nights.source["e1"] = "D"
    nights.night()
    assert nights.text() == "D"


def test_versions_may_come_in_any_order_and_over_several_nights(nights):
    nights.online(accepted("e1", "C", 3))
    nights.online(accepted("e1", "B", 2))
    done = nights.night()
    assert (nights.text(), done.updates, done.superseded) == ("C", 1, 1)
    nights.online(accepted("e1", "A", 1))
    nights.night()
    for lagging in ("A", "B", "alpha"):
        nights.source["e1"] = lagging
        nights.night()
        assert nights.text() == "C"


def test_a_version_that_comes_again_changes_nothing_and_with_another_text_is_refused(nights):
    nights.online(accepted("e1", "B", 1))
    nights.night()
    nights.online(accepted("e1", "B", 1), accepted("e1", "C", 1))
    done = nights.night()
    assert (done.updates, done.repeated, done.refused, nights.text()) == (0, 1, 1, "B")
    assert nights.rows("SELECT row_id, reason FROM refused_rows WHERE source = 'updates'") == [
        ("e1", "text_version 1 came before with another text")
    ]


def test_where_the_source_has_versions_the_higher_one_counts_whatever_the_texts_are(nights):
    nights.online(accepted("e1", "B", 5))
    for version, text, expected in (("4", "C", "B"), ("5", "X", "B"), ("", "alpha", "B"), ("6", "alpha", "alpha")):
        nights.source["e1"], nights.versions["e1"] = text, version
        nights.night()
        assert nights.text() == expected, version
        if version == "5":
            assert nights.resolved.warnings == ["'e1': text_version 5 has another text online, which holds"]


def test_any_number_of_the_source_compares_and_any_other_version_leaves_it_to_the_texts(nights):
    nights.online(accepted("e1", "B", 5))
    cases = [("4.5", "C", "B"), ("-1", "C", "B"), ("5.0", "X", "B"), ("v9", "alpha", "B"), ("5.5", "alpha", "alpha")]
    for version, text, expected in cases:
        nights.source["e1"], nights.versions["e1"] = text, version
        nights.night()
        assert nights.text() == expected, version


def test_a_version_of_thousands_of_digits_is_a_number_like_any_other(nights):
    nights.online(accepted("e1", "B", 5))
    nights.source["e1"], nights.versions["e1"] = "C", "9" * 5_000
    nights.night()
    assert nights.text() == "C"


def test_a_segment_that_comes_late_does_not_override_what_the_source_said_since(nights):
    late = accepted("e1", "B", 1, at="2026-01-01T12:00:00+00:00")
    nights.source["e1"] = "C"
    nights.night()  # the source changed after the update was accepted
    nights.online(late)
    nights.night()
    assert nights.text() == "C"


def test_a_new_source_text_ends_an_online_text_and_a_newer_update_begins_again(nights):
    nights.online(accepted("e1", "B", 1))
    nights.night()
    nights.source["e1"] = "C"
    nights.night()
    nights.online(accepted("e1", "D", 2))
    nights.night()
    assert nights.text() == "D"
    # The source has moved past B: should it say so again, that is news.
    nights.source["e1"] = "B"
    nights.night()
    assert nights.text() == "B"


def test_updates_of_an_entity_that_leaves_wait_for_it_and_go_with_the_retention_time(nights):
    nights.online(accepted("e1", "B", 1, at="2026-11-30T12:00:00+00:00"))
    nights.night()
    kept = nights.source.pop("e1")
    nights.night()
    nights.source["e1"] = kept
    nights.night()
    assert nights.text() == "B"
    del nights.source["e1"]
    nights.night()
    purge(nights.warehouse, pd.Timedelta(days=1).to_pytimedelta(), pd.Timestamp("2027-06-01", tz="UTC").to_pydatetime())
    assert nights.rows("SELECT * FROM online_texts") == []


def test_whose_an_update_was_is_known_as_long_as_its_margins_are_there(nights):
    # An entity that no source ever had, and two texts: the second one takes the place of the first.
    for version, text in ((1, "B"), (2, "C")):
        nights.online(accepted("new", text, version, at="2026-01-01T12:00:00+00:00"))
        nights.night()

    def purged(day: str) -> tuple[int, int]:
        moment = pd.Timestamp(day, tz="UTC").to_pydatetime()
        done = purge(nights.warehouse, pd.Timedelta(days=30).to_pytimedelta(), moment)
        return done.pairs, count_entity(nights.warehouse, "new")["margins"]

    assert purged("2026-01-20") == (0, 10)
    # The updates go, their margins were found unused later than that.
    assert purged("2026-02-10") == (0, 10) and nights.rows("SELECT * FROM online_texts") == []
    assert purged("2026-02-20") == (10, 0) and nights.rows("SELECT * FROM former_texts") == []


def test_an_erased_entity_does_not_come_back_from_the_spool(nights):
    nights.online(accepted("e1", "secret", 1), accepted("e2", "B", 1))
    done = nights.night(erased=[text_id("e1")])
    assert (done.updates, done.refused) == (1, 1)
    assert nights.rows("SELECT entity_id FROM online_texts") == [("e2",)]
    assert nights.rows("SELECT row_id, reason FROM refused_rows WHERE source = 'updates'") == [
        (f"sha256:{text_id('e1')}", ERASED)
    ]


def test_a_damaged_line_is_refused_with_its_place_and_its_segment_is_kept(nights):
    nights.online(accepted("e1", "B", 1), accepted("e2", "C", 1))
    (path,) = spool.sealed(nights.spool)
    lines = path.read_bytes().split(b"\n")
    path.write_bytes(b"\n".join([lines[0], lines[1][:-9] + b"damaged!}", *lines[2:]]))
    done = nights.night()
    assert (nights.text("e1"), nights.text("e2"), done.refused) == ("alpha", "C", 1)
    assert [file.suffix for file in nights.spool.iterdir()] == [spool.DAMAGED] and len(done.warnings) == 1
    assert nights.night().segments == 0


def test_twins_with_one_text_are_one_pair_and_unknown_candidates_are_left(nights):
    nights.project.put(new_catalog={"c0": "candidate 0", "new": "another candidate"})
    nights.online(accepted("e1", "same", 1), accepted("e2", "same", 1))
    assert nights.night().pairs == 5
    scorer = Scorer()
    nights.project.refresh(scorer)
    assert sorted(scorer.pairs) == sorted((text, "another candidate") for text in ("gamma", "same"))


def changes_of(nights):
    publication = publish(
        nights.warehouse,
        nights.project.operations,
        SimpleNamespace(keep=7, uncertified_candidates="publish"),
        nights.project.folder / "published",
        MANIFEST,
        [],
        "run",
        recheck=lambda: None,
    )
    files = publication.path / "changes.parquet"
    return dict(nights.rows(f"SELECT entity_id, list(DISTINCT reason) FROM read_parquet('{files}') GROUP BY entity_id"))


def test_the_publication_tells_online_texts_from_those_of_the_source(nights):
    changes_of(nights)
    nights.online(accepted("e1", "B", 1), accepted("e3", "D", 1))
    nights.source |= {"e2": "C", "e3": "D"}  # e3: the source says it too by now
    nights.night()
    nights.project.refresh()
    assert changes_of(nights) == {"e1": ["online_update"], "e2": ["entity_text"], "e3": ["online_update"]}
    nights.source["e1"] = "E"
    nights.night()
    nights.project.refresh()
    assert changes_of(nights) == {"e1": ["entity_text"]}


INGEST = """
import os, signal, sys
from pathlib import Path
from semlabel.online_texts import ingest
from semlabel.warehouse import Warehouse
folder, step, number = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
reached = []
def at(name):
    reached.append(name)
    if name == step and reached.count(name) == number:
        os.kill(os.getpid(), signal.SIGKILL)
with Warehouse.open(folder / "warehouse.duckdb") as warehouse:
    ingest(warehouse, folder / "spool", "scorer", "killed", 100, at=at)
"""


def state_of(folder):
    """Everything that an ingestion leaves behind, times and surrogates aside."""
    with_texts = "JOIN texts USING (text_key)"
    project = Project(folder)
    rows = project.warehouse.rows
    found = (
        rows("SELECT entity_id, text_version, text, state, list_sort(older) FROM online_texts ORDER BY 1"),
        rows(
            f"SELECT text_id, sum(len(margins)), sum(list_sum(margins)) FROM scores {with_texts} GROUP BY 1 ORDER BY 1"
        ),
        rows("SELECT row_id, reason FROM refused_rows ORDER BY ALL"),
        rows("SELECT name, updates FROM ingested_segments ORDER BY ALL"),
    )
    project.close()
    return found, sorted(path.suffix for path in (folder / "spool").iterdir())


@pytest.fixture(scope="module")
def waiting(tmp_path_factory):
    """A project with three segments in its spool, and what they come to when nobody disturbs it."""
    folder = tmp_path_factory.mktemp("waiting")
    nights = Nights(folder / "before")
    nights.online(accepted("e1", "B", 1), accepted("e2", "C", 1), accepted("e1", "X", 1))
    nights.online(accepted("e1", "D", 2), accepted("e1", "C", 3))
    nights.online(accepted("e1", "D", 2), accepted("e3", "E", 9))
    nights.project.close()
    shutil.copytree(folder / "before", folder / "undisturbed")
    finish(folder / "undisturbed")
    return folder / "before", state_of(folder / "undisturbed")


def finish(folder):
    project = Project(folder)
    ingest(project.warehouse, folder / "spool", "scorer", "next", 100)
    project.close()


def killed_at(folder, step, number):
    command = [sys.executable, "-c", INGEST, str(folder), step, str(number)]
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": str(ROOT)}, check=False)
    assert done.returncode == -signal.SIGKILL


@pytest.mark.parametrize(("step", "number"), [("commit", 2), ("remove", 2)])
def test_an_ingestion_that_is_killed_is_finished_once_by_the_next(waiting, tmp_path, step, number):
    before, expected = waiting
    shutil.copytree(before, tmp_path / "killed")
    killed_at(tmp_path / "killed", step, number)
    assert len(spool.sealed(tmp_path / "killed" / "spool")) == 2
    finish(tmp_path / "killed")
    assert state_of(tmp_path / "killed") == expected


@pytest.mark.slow
@pytest.mark.parametrize("kill", range(20))
def test_an_ingestion_that_is_killed_at_any_time_is_finished_once_by_the_next(waiting, tmp_path, kill):
    before, expected = waiting
    shutil.copytree(before, tmp_path / "killed")
    chance = random.Random(kill)
    command = [sys.executable, "-c", INGEST, str(tmp_path / "killed"), "", "0"]
    with subprocess.Popen(command, env=os.environ | {"PYTHONPATH": str(ROOT)}) as child:
        # From the first writing of the warehouse on: before that there is nothing to interrupt.
        while child.poll() is None and len(spool.sealed(tmp_path / "killed" / "spool")) == 3:
            if chance.random() < 0.01:
                break
        child.send_signal(signal.SIGKILL)
    finish(tmp_path / "killed")
    assert state_of(tmp_path / "killed") == expected
