"""Readers never see half a version, and nothing is published that is not proven."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import duckdb
import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from semlabel import publish as publishing
from semlabel import published
from semlabel.errors import GateBlocked, WarehouseError
from semlabel.publish import current_publication, publish, rollback, snapshot_check, verify_version
from tests.storage import Project, Scorer, catalog

MANIFEST = {"digest": "labeler", "scorer_digest": "scorer", "base_model": "tiny", "threshold": 0.5}
VERDICT = {
    "gate": "held_out_errors",
    "asset": "threshold",
    "severity": "ERROR",
    "verdict": "pass",
    "value": np.float32(1),
}


class Publisher(Project):
    """A project with scored predictions and a folder to publish them to."""

    def __init__(self, folder: Path, keep: int = 7, uncertified: str = "publish") -> None:
        super().__init__(folder, scored=True)
        self.target = folder / "published"
        self.settings = SimpleNamespace(keep=keep, uncertified_candidates=uncertified)
        self.manifest = dict(MANIFEST)

    def publish(self, recheck=lambda: None, preview=False, target=None, add_files=None):
        self.refresh(Scorer(self.manifest["scorer_digest"]))
        return publish(
            self.warehouse,
            self.operations,
            self.settings,
            target or self.target,
            self.manifest,
            [VERDICT],
            "run",
            preview,
            recheck=recheck,
            add_files=add_files,
        )

    def use(self, **facts):
        """Activate another labeler."""
        self.manifest |= facts
        self.warehouse.activate_labeler(
            self.manifest["digest"], self.manifest["scorer_digest"], self.manifest["threshold"], 1.5, -0.25
        )

    def changes(self):
        """The change feed of the current version as tuples."""
        frame = pq.read_table(self.target / "current" / "changes.parquet").to_pandas()
        names = ["entity_id", "candidate_id", "old_label", "new_label", "reason"]
        return [tuple(row) for row in frame[names].itertuples(index=False)]


@pytest.fixture
def project(tmp_path):
    project = Publisher(tmp_path)
    yield project
    project.close()


def tree(directory):
    """Names and contents of everything published."""
    return {str(p.relative_to(directory)): p.read_bytes() for p in directory.rglob("*") if p.is_file()}


def refuse():
    raise GateBlocked("coverage_is_complete is red")


# What is published


def test_every_format_holds_exactly_the_rows_of_the_warehouse(project):
    done = project.publish()
    expected = project.predictions().assign(split="")
    path = project.target / "current"
    by_pyarrow = pq.read_table(path / "predictions").to_pandas()
    by_pandas = pd.read_parquet(path / "predictions")
    with duckdb.connect(str(path / "predictions.duckdb"), read_only=True) as connection:
        by_duckdb = connection.execute("SELECT * FROM predictions").df()
        labels = connection.execute("SELECT count(*) FROM labels").fetchall()
        assert connection.execute("SELECT candidate_id, text FROM catalog").fetchall() == list(project.CATALOG.items())
    for found in (by_pyarrow, by_pandas, by_duckdb):
        pd.testing.assert_frame_equal(found, expected, check_dtype=False)
        assert found["margin"].dtype == np.float32
    positives = pq.read_table(path / "labels").to_pandas()
    pd.testing.assert_frame_equal(positives, expected[expected["label"]].reset_index(drop=True), check_dtype=False)
    assert labels == [(len(positives),)]
    assert (done.rows, done.labels, done.unchanged) == (15, len(positives), False)
    assert done.content_hash == project.warehouse.content_hash()


def test_an_entity_without_any_label_is_told_from_one_that_was_not_scored(project):
    project.use(digest="strict", threshold=1000.0)
    project.publish()
    entities = pq.read_table(project.target / "current" / "entities.parquet").to_pandas()
    assert entities[["entity_id", "pairs", "labels"]].values.tolist() == [[e, 5, 0] for e in ("e1", "e2", "e3")]


def test_the_manifest_says_what_a_reader_must_know(project):
    done = project.publish()
    manifest = verify_version(done.path)
    assert manifest["version"] == done.version == done.path.name and manifest["previous_version"] is None
    assert (manifest["rows"], manifest["entities"], manifest["candidates"]) == (15, 3, 5)
    assert (manifest["labeler_digest"], manifest["scorer_digest"], manifest["threshold"]) == ("labeler", "scorer", 0.5)
    assert manifest["sources"]["entities"]["digest"] == project.warehouse.content_digest("entities")
    assert manifest["verdicts"][0]["gate"] == "held_out_errors" and manifest["verdicts"][0]["value"] == 1.0
    assert manifest["as_of"] <= manifest["published_at"] and manifest["published_at"].endswith("+00:00")
    names = {"predictions/bucket-0000.parquet", "labels/bucket-0000.parquet", "predictions.duckdb", "changes.parquet"}
    assert names <= set(manifest["files"]) and manifest["uncertified_rows"] == 0
    current = current_publication(project.target)
    assert current["path"] == str(done.path) and current["rows"] == 15 and current["checked_at"]
    assert project.operations.publications()[0]["version"] == done.version


@pytest.mark.parametrize("nasty", ["a\0b", "'); DROP TABLE x; --", "007", "é\u0301 𝔘", '"quoted"\n', " "])
def test_texts_and_ids_are_published_byte_for_byte(project, nasty):
    project.put({nasty: nasty, "e1": "alpha"}, {nasty: nasty, "c1": "one"})
    project.publish()
    path = project.target / "current"
    found = pq.read_table(path / "predictions").to_pylist()
    assert {(row["entity_id"], row["candidate_id"]) for row in found} == {
        (entity, candidate) for entity in (nasty, "e1") for candidate in (nasty, "c1")
    }
    assert nasty in {row["text"] for row in pq.read_table(path / "catalog.parquet").to_pylist()}
    assert snapshot_check(path, project.warehouse)[:2] == (project.warehouse.content_hash(),) * 2


def test_rows_are_the_same_however_many_buckets_they_are_in(project, monkeypatch):
    project.put({f"e{number:02}": f"entity {number}" for number in range(20)})
    one = project.publish()
    monkeypatch.setattr(publishing, "BUCKET_ROWS", 30)
    project.use(digest="another", threshold=0.25)
    four = project.publish()
    manifest = verify_version(four.path)
    assert manifest["buckets"] == 4 and four.rows == one.rows == 100
    assert four.content_hash == project.warehouse.content_hash()
    old, new = (pq.read_table(done.path / "predictions").to_pandas() for done in (one, four))
    both = old.merge(new, on=["entity_id", "candidate_id"])
    assert (both["margin_x"] == both["margin_y"]).all() and len(both) == 100
    flipped = both[both["label_x"] != both["label_y"]]
    assert sorted((e, c) for e, c, *_ in project.changes()) == sorted(
        zip(flipped["entity_id"], flipped["candidate_id"], strict=True)
    )
    assert len(flipped) > 0
    monkeypatch.setattr(publishing, "BUCKET_ROWS", 60)
    project.put({f"e{number:02}": f"entity {number}" for number in range(1, 20)})
    project.publish()
    assert {(entity, reason) for entity, *_, reason in project.changes()} == {("e00", "removed")}
    assert verify_version(current_path(project))["buckets"] == 2


def current_path(project):
    return Path(current_publication(project.target)["path"])


def test_uncertified_candidates_are_published_or_withheld_as_the_settings_say(project):
    frame = catalog(project.CATALOG)
    frame.loc[4, "certified"] = False
    project.warehouse.replace_catalog(frame, "run")
    done = project.publish()
    assert (done.rows, verify_version(done.path)["uncertified_rows"]) == (15, 3)
    project.settings.uncertified_candidates = "withhold"
    done = project.publish()
    assert (done.rows, done.unchanged) == (12, False)
    snapshot = snapshot_check(done.path, project.warehouse)
    assert snapshot.expected_hash == snapshot.found_hash == done.content_hash and snapshot.found_rows == 12


def test_a_version_of_nothing_but_withheld_rows_is_not_published(project):
    first = project.publish()
    project.settings.uncertified_candidates = "withhold"
    project.warehouse.replace_catalog(catalog(project.CATALOG).assign(certified=False), "run")
    with pytest.raises(GateBlocked, match="not certified with, and these are withheld"):
        project.publish()
    assert current_publication(project.target)["version"] == first.version


def test_duckdb_1_can_read_the_copy(project):
    path = project.publish().path / "predictions.duckdb"
    with duckdb.connect(str(path), read_only=True) as connection:
        ((tags,),) = connection.execute(
            "SELECT tags FROM duckdb_databases() WHERE database_name = 'predictions'"
        ).fetchall()
    assert tags["storage_version"].startswith("v1.0.0")


# Nothing new, nothing moved


def test_an_unchanged_subject_makes_no_new_version_and_only_says_it_was_checked(project):
    first = project.publish()
    before, checked = tree(first.path), current_publication(project.target)["checked_at"]
    second = project.publish()
    assert second == publishing.Publication(first.version, first.path, 15, first.labels, first.content_hash, True)
    assert tree(first.path) == before and published.version_names(project.target) == [first.version]
    assert current_publication(project.target)["checked_at"] > checked
    assert len(project.operations.publications()) == 1


def test_an_unchanged_subject_with_a_red_gate_is_not_confirmed(project):
    project.publish()
    checked = current_publication(project.target)["checked_at"]
    with pytest.raises(GateBlocked):
        project.publish(recheck=refuse)
    assert current_publication(project.target)["checked_at"] == checked


def test_a_refused_recheck_leaves_the_published_version_untouched(project):
    first = project.publish()
    before = tree(project.target)
    project.put({"e1": "edited"})
    with pytest.raises(GateBlocked, match="coverage_is_complete is red"):
        project.publish(recheck=refuse)
    assert tree(project.target) == before
    assert current_publication(project.target)["version"] == first.version
    assert project.publish().unchanged is False


def test_the_recheck_sees_the_complete_version_and_the_old_current(project):
    first, seen = project.publish(), []

    def look():
        newest = published.version_names(project.target)[-1]
        seen.append(
            (verify_version(project.target / "versions" / newest)["version"], current_publication(project.target))
        )

    project.put({"e1": "edited"})
    second = project.publish(recheck=look)
    ((version, current),) = seen
    assert version == second.version and current["version"] == first.version


STEPS = ("_write_tables", "_verified_copy", "_sources", "rename", "write_manifest", "fsync_tree", "switch")


def test_a_failure_at_any_step_leaves_the_published_version_untouched(project, monkeypatch):
    first = project.publish()
    before = tree(first.path)
    project.put({"e1": "edited"})

    def broken(*_, **__):
        raise OSError(28, "No space left on device")

    for step in STEPS:
        target = publishing._Stage if hasattr(publishing._Stage, step) else publishing
        with monkeypatch.context() as patch:
            patch.setattr(target, step, broken)
            with pytest.raises(WarehouseError, match="free some disk space"):
                project.publish()
        assert current_publication(project.target)["version"] == first.version, step
        assert tree(first.path) == before and verify_version(first.path)
    done = project.publish()
    assert not done.unchanged and verify_version(done.path)["rows"] == 5
    assert not list((project.target / "versions").glob(".*"))


def test_a_staged_version_that_is_not_the_warehouse_is_never_switched_to(project, monkeypatch):
    first = project.publish()
    project.put({"e1": "edited"})
    copy = publishing._Stage._copy

    def tampered(stage, query, name):
        rows = copy(stage, query, name)
        if name.startswith("predictions/"):
            stage.warehouse.rows(
                "CREATE OR REPLACE TEMP TABLE bucket AS SELECT * REPLACE (margin + 1 AS margin) FROM bucket"
            )
        return rows

    monkeypatch.setattr(publishing._Stage, "_copy", tampered)
    with pytest.raises(WarehouseError, match="does not hold the warehouse's rows"):
        project.publish()
    assert published.version_names(project.target) == [first.version]


def test_nothing_is_published_while_paused_empty_or_of_another_labeler(project):
    project.operations.set_publishing_paused(True, "bad night")
    with pytest.raises(GateBlocked, match="bad night"):
        project.publish()
    project.operations.set_publishing_paused(False)
    project.manifest["digest"] = "somebody else's"
    with pytest.raises(GateBlocked, match="of labeler labeler and not of somebody"):
        project.publish()
    project.manifest["digest"] = "labeler"
    project.put({})
    with pytest.raises(GateBlocked, match="no predictions to publish"):
        project.publish()
    assert current_publication(project.target) is None


def test_a_preview_never_moves_current(project, tmp_path):
    first = project.publish()
    project.warehouse.set_scope(["e1"], "limited: 1 of all entities")
    preview = project.publish(preview=True, target=tmp_path / "preview")
    assert preview.rows == 5 and current_publication(tmp_path / "preview")["preview"] is True
    assert current_publication(project.target)["version"] == first.version
    with pytest.raises(GateBlocked, match="holds complete versions"):
        project.publish(preview=True)
    with pytest.raises(GateBlocked, match="holds previews"):
        project.publish(target=tmp_path / "preview")
    assert current_publication(project.target)["version"] == first.version
    project.operations.set_publishing_paused(True)
    project.warehouse.set_scope(["e2"], "limited: another")
    assert project.publish(preview=True, target=tmp_path / "preview").unchanged is False


# Changes


def test_following_every_change_gives_exactly_the_next_version(project):
    state = {}
    steps = [
        lambda: None,
        lambda: project.put(project.ENTITIES | {"e2": "beta, edited", "e4": "delta"}),
        lambda: project.put({"e2": "beta, edited", "e4": "delta"}, project.CATALOG | {"c9": "new"}),
        lambda: project.use(digest="stricter", threshold=2.0),
        lambda: project.put(None, {"c0": "candidate zero", "c9": "new"}),
        lambda: project.use(digest="retrained", scorer_digest="other weights"),
    ]
    previous = None
    for step in steps:
        step()
        done = project.publish()
        manifest = verify_version(done.path)
        assert manifest["previous_version"] == previous
        feed = pq.read_table(done.path / "changes.parquet").to_pylist()
        if previous is None:
            assert feed == []
        for row in feed:
            pair = (row["entity_id"], row["candidate_id"])
            assert state.get(pair, (None, None)) == (row["old_label"], row["old_margin"])
            if row["reason"] == "removed":
                del state[pair]
            else:
                state[pair] = (row["new_label"], row["new_margin"])
            assert row["publication_version"] == done.version and row["causes"][0] == row["reason"]
        table = pq.read_table(done.path / "predictions").to_pylist()
        now = {(row["entity_id"], row["candidate_id"]): (row["label"], row["margin"]) for row in table}
        state = now if previous is None else state
        assert state == now
        previous = done.version


def test_the_reason_is_the_first_cause_that_applies(project):
    project.publish()
    project.put({"e1": "alpha", "e2": "beta, edited", "e4": "delta"}, project.CATALOG | {"c0": "candidate zero"})
    project.publish()
    reasons = {(entity, candidate): reason for entity, candidate, *_, reason in project.changes()}
    assert {reason for (entity, _), reason in reasons.items() if entity == "e4"} == {"added"}
    assert {reason for (entity, _), reason in reasons.items() if entity == "e3"} == {"removed"}
    assert reasons[("e1", "c0")] == "candidate_text" and reasons[("e2", "c1")] == "entity_text"
    assert reasons[("e2", "c0")] == "entity_text"
    assert ("e1", "c1") not in reasons
    feed = pq.read_table(project.target / "current" / "changes.parquet").to_pylist()
    both = next(row for row in feed if (row["entity_id"], row["candidate_id"]) == ("e2", "c0"))
    assert both["causes"] == ["entity_text", "candidate_text"]
    summary = current_publication(project.target)["changes"]
    assert summary["by_reason"] == {"added": 5, "candidate_text": 1, "entity_text": 5, "removed": 5}
    assert summary["rows"] == 16 == sum(row["rows"] for row in summary["by_candidate"])
    project.use(digest="stricter", threshold=2.0)
    project.publish()
    assert {reason for *_, reason in project.changes()} == {"threshold"}
    assert all(old is True and new is False for _, _, old, new, _ in project.changes())
    project.use(digest="retrained", scorer_digest="other weights", threshold=0.5)
    project.publish()
    assert {reason for *_, reason in project.changes()} == {"scorer"} and len(project.changes()) == 15


def test_a_margin_that_moved_without_a_cause_says_so(project):
    project.publish()
    project.warehouse.rows("UPDATE scores SET margins = list_transform(margins, lambda m: (m + 0.001)::FLOAT)")
    project.put(project.ENTITIES | {"e4": "delta"})
    project.publish()
    assert {reason for entity, *_, reason in project.changes() if entity != "e4"} == {"rescored"}


# Versions


def test_an_edited_version_does_not_verify_and_the_difference_is_named(project):
    done = project.publish()
    file = done.path / "labels" / "bucket-0000.parquet"
    original = file.read_bytes()
    file.chmod(0o644)
    file.write_bytes(original[:-1] + bytes([original[-1] ^ 1]))
    with pytest.raises(WarehouseError, match=r"labels/bucket-0000.parquet has changed"):
        verify_version(done.path)
    file.unlink()
    with pytest.raises(WarehouseError, match=r"labels/bucket-0000.parquet is missing"):
        verify_version(done.path)
    file.write_bytes(original)
    (done.path / "extra.txt").write_text("x")
    with pytest.raises(WarehouseError, match=r"extra.txt does not belong"):
        verify_version(done.path)
    (done.path / "extra.txt").unlink()
    manifest = done.path / "manifest.json"
    manifest.chmod(0o644)
    text = manifest.read_text()
    manifest.write_text(text.replace('"rows": 15', '"rows": 16', 1))
    with pytest.raises(WarehouseError, match="edited"):
        verify_version(done.path)
    manifest.unlink()
    with pytest.raises(WarehouseError, match=r"no readable manifest.json"):
        current_publication(project.target)


def test_a_damaged_current_version_is_replaced_and_not_confirmed(project):
    first = project.publish()
    (first.path / "entities.parquet").unlink()
    second = project.publish()
    assert not second.unchanged and second.version > first.version
    assert verify_version(second.path)["previous_version"] is None


def test_rollback_makes_an_earlier_version_current_and_pauses_publishing(project):
    first = project.publish()
    project.put({"e1": "edited"})
    second = project.publish()
    manifest = rollback(project.target, first.version, project.operations, "ann", "wrong source")
    assert manifest["version"] == first.version == current_publication(project.target)["version"]
    assert project.operations.publications()[0]["action"] == "rollback"
    project.put({"e1": "edited again"})
    with pytest.raises(GateBlocked, match="wrong source"):
        project.publish()
    project.operations.set_publishing_paused(False)
    third = project.publish()
    assert third.version > second.version
    assert verify_version(third.path)["previous_version"] == first.version


def test_rollback_to_an_unknown_or_damaged_version_changes_nothing(project):
    first = project.publish()
    project.put({"e1": "edited"})
    second = project.publish()
    with pytest.raises(WarehouseError, match=f"there is no version 'yesterday'; kept are: {first.version}"):
        rollback(project.target, "yesterday", project.operations)
    with pytest.raises(WarehouseError, match="there is no version"):
        rollback(project.target, "../../x")
    (first.path / "catalog.parquet").unlink()
    with pytest.raises(WarehouseError, match=r"catalog.parquet is missing"):
        rollback(project.target, first.version, project.operations)
    assert current_publication(project.target)["version"] == second.version
    assert project.operations.publishing_paused() is None


def test_versions_go_only_beyond_keep_and_a_day_after_they_were_superseded(project, monkeypatch):
    project.settings.keep = 2
    versions = []
    for number in range(5):
        project.put({"e1": f"text {number}"})
        versions.append(project.publish().version)
    assert published.version_names(project.target) == versions  # none was superseded long enough
    now = datetime.now(UTC)
    monkeypatch.setattr(published, "_now", lambda: now + timedelta(hours=23, minutes=59))
    assert published.purge(project.target, 2) == []
    monkeypatch.setattr(published, "_now", lambda: now + timedelta(hours=25))
    assert published.purge(project.target, 2) == versions[:3]
    assert published.version_names(project.target) == versions[3:]
    assert verify_version(current_path(project))["version"] == versions[-1]


def test_a_lost_history_delays_deletions_and_hastens_none(project, monkeypatch):
    versions = []
    for number in range(3):
        project.put({"e1": f"text {number}"})
        versions.append(project.publish().version)
    now = datetime.now(UTC)
    monkeypatch.setattr(published, "_now", lambda: now + timedelta(days=9))
    (project.target / "history.json").write_text("{ torn")
    assert published.purge(project.target, 1) == []
    published.confirm(project.target)
    assert published.purge(project.target, 1) == []
    monkeypatch.setattr(published, "_now", lambda: now + timedelta(days=10))
    assert published.purge(project.target, 1) == versions[:2]


def test_the_current_version_is_never_purged_even_when_it_is_the_oldest(project, monkeypatch):
    first = project.publish()
    for number in range(3):
        project.put({"e1": f"text {number}"})
        project.publish()
    rollback(project.target, first.version)
    monkeypatch.setattr(published, "_now", lambda: datetime.now(UTC) + timedelta(days=30))
    published.purge(project.target, 1)
    assert current_publication(project.target)["version"] == first.version and verify_version(first.path)


def test_a_clock_that_went_backwards_deletes_nothing(project, monkeypatch):
    for number in range(3):
        project.put({"e1": f"text {number}"})
        project.publish()
    monkeypatch.setattr(published, "_now", lambda: datetime.now(UTC) - timedelta(days=300))
    assert published.purge(project.target, 1) == []
    project.put({"e1": "later in the past"})
    version = project.publish().version
    assert published.version_names(project.target)[-1] == version


def test_current_is_a_relative_link_so_the_folder_can_be_moved(project, tmp_path):
    project.publish()
    assert not (project.target / "current").readlink().is_absolute()
    shutil.move(project.target, tmp_path / "elsewhere")
    assert verify_version(Path(current_publication(tmp_path / "elsewhere")["path"]))["rows"] == 15


def test_a_snapshot_that_differs_from_the_warehouse_is_seen(project):
    done = project.publish()
    snapshot = snapshot_check(done.path, project.warehouse)
    assert snapshot.expected_hash == snapshot.found_hash == done.content_hash
    assert (snapshot.expected_rows, snapshot.found_rows) == (15, 15)
    project.use(digest="strictest", threshold=1000.0)
    snapshot = snapshot_check(done.path, project.warehouse)
    assert snapshot.expected_hash != snapshot.found_hash and snapshot.expected_rows == snapshot.found_rows


def test_a_read_only_warehouse_can_be_published(tmp_path):
    project = Publisher(tmp_path)
    project.close()
    with publishing.Warehouse.open(tmp_path / "warehouse.duckdb", read_only=True) as warehouse:
        done = publish(
            warehouse,
            project.operations,
            project.settings,
            project.target,
            MANIFEST,
            [],
            "run",
            recheck=lambda: None,
        )
    assert verify_version(done.path)["rows"] == 15


CHILD = """
import sys
from pathlib import Path
from tests.test_publish import Publisher
project = Publisher(Path(sys.argv[1]), keep=3)
print("ready", flush=True)
number = 0
while True:
    number += 1
    project.put({"e1": f"{sys.argv[2]}: text {number}", "e2": "beta"})
    project.publish()
    print(number, flush=True)
"""


def test_a_publisher_killed_at_any_moment_leaves_a_whole_current_version(tmp_path):
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
    moments = random.Random(7)
    for attempt in range(3):
        command = [sys.executable, "-c", CHILD, str(tmp_path / "project"), str(attempt)]
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as child:
            assert child.stdout.readline() == b"ready\n"
            for _ in range(moments.randint(1, 3)):
                child.stdout.readline()
            time.sleep(moments.random() * 0.3)
            child.send_signal(signal.SIGKILL)
        target = tmp_path / "project" / "published"
        current = current_publication(target)
        assert verify_version(Path(current["path"]))["rows"] == 10
        json.loads((target / "history.json").read_text())
    project = Publisher(tmp_path / "project")
    done = project.publish()
    assert snapshot_check(done.path, project.warehouse).found_hash == project.warehouse.content_hash()
    assert not list((target / "versions").glob(".*"))
    project.close()
