"""Unused margins are kept for a while and not for ever, and a compaction never risks the only copy."""

import os
import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import duckdb
import pytest

from semlabel import compaction
from semlabel.bench.refresh import World
from semlabel.compaction import compact, footprint
from semlabel.erase_warehouse import count_entity
from semlabel.errors import WarehouseError
from semlabel.retention import Purged, purge
from semlabel.upkeep import keep_up
from semlabel.warehouse import Opening, Warehouse
from tests.storage import Project, Scorer, entities, margin

MONTH = timedelta(days=30)
TODAY = datetime(2026, 3, 1, tzinfo=UTC)
OPENING = Opening(memory_limit="500MB", threads=1)
STEPS = ("copy", "verify", "sync", "rename", "done")


@pytest.fixture
def project(tmp_path):
    project = Project(tmp_path, scored=True)
    yield project
    project.close()


def pairs(project: Project) -> int:
    return project.warehouse.rows("SELECT coalesce(sum(len(margins)), 0) FROM scores")[0][0]


def later(project: Project, days: float) -> Purged:
    return purge(project.warehouse, MONTH, TODAY + timedelta(days=days))


# Retention


def test_a_removed_entity_comes_back_for_nothing_within_the_retention_time_and_not_after_it(project):
    project.put({"e1": "alpha", "e2": "beta"})
    assert later(project, 0) == later(project, 29) == Purged(0, 0, 0)
    project.put(project.ENTITIES)
    assert project.plan().pairs == 0 and later(project, 30) == Purged(0, 0, 0)
    project.put({"e1": "alpha", "e2": "beta"})
    assert later(project, 31) == later(project, 60) == Purged(0, 0, 0)
    assert later(project, 61) == Purged(5, 1, 0)
    project.put(project.ENTITIES)
    assert project.plan().pairs == 5


def test_a_superseded_text_is_purged_and_the_text_in_its_place_is_not(project):
    project.put({"e1": "edited", "e2": "beta", "e3": "gamma"})
    project.refresh()
    before = project.warehouse.content_hash()
    later(project, 0)
    assert later(project, 30) == Purged(5, 1, 0)
    assert project.warehouse.content_hash() == before and project.plan().pairs == 0


def test_a_removed_candidate_leaves_its_column_only(project):
    kept = {key: text for key, text in project.CATALOG.items() if key not in ("c1", "c4")}
    project.put(new_catalog=kept)
    before = project.warehouse.content_hash()
    later(project, 0)
    assert later(project, 30) == Purged(6, 2, 0)
    assert project.warehouse.content_hash() == before and pairs(project) == 9
    found = project.predictions()
    assert [margin(project.ENTITIES[e], kept[c]) for e, c in zip(found.entity_id, found.candidate_id, strict=True)] == (
        list(found.margin)
    )
    project.put(new_catalog=project.CATALOG)
    project.refresh()
    assert project.warehouse.coverage().missing == [] and pairs(project) == 15


def test_a_text_that_somebody_still_has_is_in_use(project):
    project.put({"e1": "alpha", "e4": "gamma"})
    later(project, 0)
    assert later(project, 90) == Purged(5, 1, 0)
    assert project.plan().pairs == 0


def test_a_superseded_scorer_is_purged_and_a_labeler_on_its_way_is_not(project):
    project.refresh(Scorer("candidate"))
    assert later(project, 0) == Purged(0, 0, 0)
    scored_at = TODAY + timedelta(days=20)
    project.warehouse.rows("UPDATE scores SET scored_at = ? WHERE scorer_key = 2", [scored_at.replace(tzinfo=None)])
    project.warehouse.rows("UPDATE scores SET scored_at = '2026-01-01' WHERE scorer_key = 1")
    assert later(project, 40) == Purged(0, 0, 0)
    project.warehouse.activate_labeler("newer", "candidate", 0.5)
    assert later(project, 41) == Purged(0, 0, 0)
    assert later(project, 71) == Purged(15, 0, 1)
    assert project.warehouse.predictions_count() == 15


def test_before_there_is_a_labeler_nothing_is_superseded(project):
    project.warehouse.rows("DELETE FROM active_labeler")
    later(project, 0)
    assert later(project, 400) == Purged(0, 0, 0)


def test_a_clock_that_went_backwards_purges_nothing_early(project):
    project.put({"e1": "alpha"})
    later(project, 100)
    assert later(project, 0) == Purged(0, 0, 0) and later(project, 129) == Purged(0, 0, 0)
    assert later(project, 130).pairs == 10


def test_a_purge_that_fails_half_way_leaves_everything(project, monkeypatch):
    project.put({"e1": "alpha"}, {"c1": "candidate 1"})
    later(project, 0)
    monkeypatch.setattr("semlabel.retention.ensure_blocks", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        later(project, 31)
    assert pairs(project) == 15


def test_whose_a_text_was_is_known_as_long_as_its_margins_are_there(project):
    project.put({"e1": "edited", "e2": "beta", "e3": "gamma"})
    # Nights that fail before their upkeep: the text is left for ten days when a purge first finds it unused.
    left = (TODAY - timedelta(days=10)).replace(tzinfo=None)
    project.warehouse.rows("UPDATE former_texts SET since = ?", [left])
    later(project, 0)
    assert later(project, 25) == Purged(0, 0, 0)
    assert count_entity(project.warehouse, "e1")["margins"] == 5
    assert later(project, 30) == Purged(5, 1, 0)
    assert count_entity(project.warehouse, "e1")["margins"] == 0
    assert project.warehouse.rows("SELECT * FROM former_texts") == []


def test_a_text_that_comes_and_goes_is_remembered_once_after_the_retention_time(project):
    for _ in range(3):
        for text in ("edited", "alpha"):
            project.put({"e1": text, "e2": "beta", "e3": "gamma"})
    assert project.warehouse.rows("SELECT count(*) FROM former_texts") == [(6,)]
    ((text_key, last),) = project.warehouse.rows(
        "SELECT text_key, max(since) FROM former_texts SEMI JOIN entities USING (text_key) GROUP BY text_key"
    )
    purge(project.warehouse, MONTH, datetime.now(UTC))
    assert project.warehouse.rows("SELECT count(*) FROM former_texts") == [(6,)]
    # "edited" is gone with its margins, "alpha" is in use.
    purge(project.warehouse, MONTH, datetime.now(UTC) + timedelta(days=40))
    assert project.warehouse.rows("SELECT text_key, since FROM former_texts") == [(text_key, last)]


def test_an_interrupted_plan_still_finds_its_blocks_after_a_purge(project):
    project.put({f"e{number}": f"text {number}" for number in range(60)}, {"c0": "candidate 0", "c9": "candidate 9"})
    with pytest.raises(RuntimeError):
        project.refresh(Scorer(fails_at=40), items=1)
    later(project, 0)
    later(project, 31)
    score = Scorer()
    project.refresh(score, items=1)
    assert len(score.pairs) == 80 and project.warehouse.coverage().missing == []


# Compaction


def grown(folder: Path) -> tuple[Path, str]:
    """A warehouse whose file is mostly free space, closed; and its content hash."""
    project = Project(folder, scored=True)
    project.warehouse.rows("CREATE TABLE ballast AS SELECT md5(i::VARCHAR) AS b FROM range(60000) t(i)")
    project.warehouse.rows("CHECKPOINT")
    # Free space at the end of a file goes at the next checkpoint; that before something stays.
    project.refresh(Scorer("candidate"))
    project.warehouse.rows("CHECKPOINT")
    project.warehouse.rows("DROP TABLE ballast")
    before = project.warehouse.content_hash()
    project.close()
    return folder / "warehouse.duckdb", before


def content(path: Path) -> str:
    with OPENING.open(path) as warehouse:
        assert warehouse.coverage().missing == []
        return warehouse.content_hash()


def test_a_compacted_file_is_small_and_holds_the_same(tmp_path):
    path, before = grown(tmp_path)
    path.chmod(0o640)
    size = path.stat().st_size
    done = compact(path, 1.2, OPENING)
    assert (done.bytes_before, done.bytes_after, done.skipped) == (size, path.stat().st_size, None)
    assert done.bytes_after < size * 0.8 and content(path) == before
    assert path.stat().st_mode & 0o777 == 0o640
    assert compact(path, 1.2, OPENING).skipped == "nothing to gain"


def test_free_space_is_seen_although_the_texts_take_far_less_than_their_letters(tmp_path):
    path, _ = grown(tmp_path)
    with OPENING.open(path) as warehouse:
        warehouse.replace_entities(entities({f"e{n}": f"{n} " + "word " * 100_000 for n in range(40)}), "run")
    with OPENING.open(path) as warehouse:
        size = footprint(warehouse)
        assert size.weight > 4 * size.bytes and size.live_bytes < size.bytes / 1.2
    assert compact(path, 1.2, OPENING).skipped is None


def test_blocks_half_empty_of_purged_margins_are_not_taken_for_needed(tmp_path):
    world = World(tmp_path, 4_000, 200)
    with world.open() as warehouse:
        world.fill(warehouse)
    fresh = compact(world.path, 0, OPENING).bytes_after
    with OPENING.open(world.path) as warehouse:
        warehouse.rows("DELETE FROM scores WHERE text_key % 2 = 0")
    with OPENING.open(world.path) as warehouse:
        ((used,),) = warehouse.rows("SELECT used_blocks * block_size FROM pragma_database_size()")
        # Every second row is gone, and hardly a block.
        assert used > 0.9 * fresh and footprint(warehouse).live_bytes < 0.8 * fresh
    done = compact(world.path, 1.2, OPENING)
    assert done.skipped is None and done.bytes_after < 0.85 * fresh


def test_a_night_of_few_edits_does_not_write_its_tables_anew(tmp_path):
    world = World(tmp_path, 4_000, 2)
    with world.open() as warehouse:
        world.fill(warehouse)
    before = compact(world.path, 0, OPENING).bytes_after
    world.edit()
    with world.open() as warehouse:
        replaced = warehouse.replace_entities(world.entities(), "bench")
    assert replaced.edited == 40
    # The edited rows and little more; writing the table anew takes as much again as it has.
    assert world.path.stat().st_size < 1.35 * before


def test_new_texts_get_new_surrogates_after_a_compaction(tmp_path):
    path, _ = grown(tmp_path)
    compact(path, 0, OPENING)
    project = Project(tmp_path)
    project.put(project.ENTITIES | {"e4": "delta"})
    project.refresh()
    assert project.warehouse.rows("SELECT text_key FROM texts GROUP BY 1 HAVING count(*) > 1") == []
    assert list(project.predictions().query("entity_id == 'e4'").margin) == [
        margin("delta", text) for text in project.CATALOG.values()
    ]
    project.close()


@pytest.mark.parametrize("step", STEPS)
def test_a_failure_at_any_step_loses_nothing_and_the_next_compaction_clears_up(tmp_path, step):
    path, before = grown(tmp_path)

    def fail(reached: str) -> None:
        if reached == step:
            raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        compact(path, 1.2, OPENING, fail)
    assert content(path) == before
    compact(path, 1.2, OPENING)
    assert content(path) == before
    assert [file.name for file in tmp_path.glob(".warehouse*")] == []


CHILD = """
import os, signal, sys
from pathlib import Path
from tests.test_retention import OPENING, compact
def at(step):
    if step == sys.argv[2]:
        os.kill(os.getpid(), signal.SIGKILL)
compact(Path(sys.argv[1]), 1.2, OPENING, at)
"""


@pytest.mark.parametrize("step", ["verify", "done"])
def test_a_kill_at_any_step_loses_nothing(tmp_path, step):
    path, before = grown(tmp_path)
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
    ended = subprocess.run([sys.executable, "-c", CHILD, str(path), step], env=environment, check=False)
    assert ended.returncode == -signal.SIGKILL
    assert content(path) == before
    done = compact(path, 1.2, OPENING)
    assert done.skipped == ("nothing to gain" if step == "done" else None)
    assert content(path) == before and list(tmp_path.glob(".warehouse*")) == []


def test_a_copy_that_differs_never_takes_the_place_of_the_original(tmp_path, monkeypatch):
    path, before = grown(tmp_path)
    whole = compaction._copy

    def lossy(warehouse: Warehouse, copy: Path) -> None:
        whole(warehouse, copy)
        with duckdb.connect(str(copy)) as connection:
            connection.execute("DELETE FROM labelers")

    monkeypatch.setattr(compaction, "_copy", lossy)
    with pytest.raises(WarehouseError, match="the old file stays") as refused:
        compact(path, 1.2, OPENING)
    assert "\n" not in str(refused.value) and content(path) == before


def test_a_log_that_outlives_its_file_stops_the_compaction(tmp_path):
    path, before = grown(tmp_path)
    log = path.with_name(path.name + ".wal")
    with pytest.raises(WarehouseError, match="still there"):
        compact(path, 1.2, OPENING, lambda step: log.touch() if step == "sync" else None)
    log.unlink()
    assert content(path) == before


def test_without_room_for_a_copy_the_file_stays_and_says_why(tmp_path, monkeypatch):
    path, before = grown(tmp_path)
    usage = compaction.shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(compaction.shutil, "disk_usage", lambda _: usage)
    assert "1,000 bytes left" in compact(path, 1.2, OPENING).skipped
    assert content(path) == before


def test_upkeep_purges_first_and_then_shrinks_the_file(tmp_path):
    path, _ = grown(tmp_path)
    with OPENING.open(path) as warehouse:
        purge(warehouse, MONTH, TODAY)
        assert footprint(warehouse).live_bytes < footprint(warehouse).bytes
    done = keep_up(path, 30, 1.2, OPENING, TODAY)
    assert done.purged == Purged(0, 0, 0) and "shrank from" in done.sentence()
    assert "nothing to gain" in keep_up(path, 30, 1.2, OPENING, TODAY).sentence()
