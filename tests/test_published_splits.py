"""A reader of the published table must not take rows that the labeler was trained on for evidence of its quality."""

import json
import re
from pathlib import Path

import duckdb
import pandas as pd
import pyarrow.parquet as pq
import pytest

from semlabel.content_hash import content_hash, content_sum
from semlabel.erase_versions import erase_from_versions
from semlabel.publish import files_of, snapshot_check, verify_version
from semlabel.published import rollback, write_manifest
from tests.storage import entities
from tests.test_publish import Publisher

PAGE = Path(__file__).parents[1] / "docs" / "howto" / "read-the-table.md"
SPLITS = {"e1": "train", "e2": "test", "e3": ""}


class Split(Publisher):
    """A project whose entities are in splits, as a night leaves them in the warehouse."""

    def night(self, splits: dict[str, str], texts: dict[str, str] | None = None, groups: dict | None = None) -> None:
        """The entities as they are tonight: those with a split are remembered with it, as `assign_for_good` does."""
        frame = entities(texts or {entity_id: self.ENTITIES.get(entity_id, entity_id) for entity_id in splits})
        group = pd.array([(groups or {}).get(entity_id) for entity_id in frame["entity_id"]], dtype="Int64")
        self.warehouse.replace_entities(frame.assign(split=frame["entity_id"].map(splits), group_id=group), "run")
        known = {row[0] for row in self.warehouse.rows("SELECT entity_id FROM remembered_splits")}
        for entity_id, split in splits.items():
            if split and entity_id not in known:
                self.remember(entity_id, split)

    def remember(self, entity_id: str, split: str) -> None:
        self.warehouse.rows("INSERT INTO remembered_splits VALUES (?, ?, '7', now())", [entity_id, split])

    def splits(self) -> dict[str, str]:
        """The split of every entity, as the rows of the current version tell it."""
        frame = pq.read_table(self.target / "current" / "predictions").to_pandas()
        told = frame.groupby("entity_id")["split"].unique()
        assert all(len(splits) == 1 for splits in told)
        return {entity_id: splits[0] for entity_id, splits in told.items()}


@pytest.fixture
def project(tmp_path):
    project = Split(tmp_path)
    project.night(SPLITS)
    yield project
    project.close()


def without_split(version: Path) -> None:
    """Make a version what versions were before there was a `split`: schema 1, in every format."""
    manifest = verify_version(version)
    for file in version.rglob("*"):
        file.chmod(0o755 if file.is_dir() else 0o644)
    for file in version.rglob("*.parquet"):
        table = pq.read_table(file)
        if "split" in table.column_names:
            pq.write_table(table.drop_columns(["split"]), file)
    with duckdb.connect(str(version / "predictions.duckdb")) as connection:
        connection.execute("DROP VIEW labels")
        for name in ("predictions", "entities"):
            connection.execute(f"ALTER TABLE {name} DROP COLUMN split")
        connection.execute("CREATE VIEW labels AS SELECT * FROM predictions WHERE label")
    told = {name: value for name, value in manifest.items() if name != "manifest_digest"}
    # Another schema was another subject: the night after an upgrade finds something to publish.
    write_manifest(version, told | {"schema_version": 1, "subject_digest": "of schema 1", "files": files_of(version)})


# What a reader is told


def test_a_reader_of_any_format_can_tell_training_rows_from_unseen_ones(project):
    version = project.publish().path
    assert project.splits() == SPLITS
    positives = pq.read_table(version / "labels").to_pandas()
    told = set(zip(positives["entity_id"], positives["split"], strict=True))
    assert told and told <= SPLITS.items()
    by_entity = pq.read_table(version / "entities.parquet").to_pandas()
    assert dict(zip(by_entity["entity_id"], by_entity["split"], strict=True)) == SPLITS
    with duckdb.connect(str(version / "predictions.duckdb"), read_only=True) as connection:
        by_rows = connection.execute("SELECT entity_id, split, count(*) FROM predictions GROUP BY ALL").fetchall()
        by_labels = connection.execute("SELECT DISTINCT entity_id, split FROM labels").fetchall()
        columns = [row[0] for row in connection.execute("DESCRIBE predictions").fetchall()]
    assert sorted(by_rows) == [("e1", "train", 5), ("e2", "test", 5), ("e3", "", 5)]
    assert set(by_labels) == told
    # Behind the columns that there were: who reads by position reads what it always read.
    assert columns == [*project.predictions().columns, "split"]
    assert json.loads((version / "manifest.json").read_text())["schema_version"] == 2


def test_who_was_trained_on_is_told_as_trained_on_a_night_it_is_left_out(project):
    project.night({"e1": "", "e2": "", "e3": ""})
    project.publish()
    assert project.splits() == {"e1": "train", "e2": "", "e3": ""}


def test_a_text_that_was_trained_on_is_no_evidence_under_another_id(project):
    project.night(
        {"e1": "train", "e2": "test", "twin": "", "heir": ""},
        {"e1": "alpha, edited", "e2": "beta", "twin": "alpha, edited", "heir": "alpha"},
    )
    project.publish()
    assert project.splits() == {"e1": "train", "e2": "test", "twin": "train", "heir": "train"}


def test_a_near_duplicate_of_a_training_entity_is_no_evidence_while_both_are_left_out(project):
    project.night({"e1": "", "e2": "", "e3": ""}, groups={"e1": 5, "e2": 5, "e3": 6})
    project.publish()
    assert project.splits() == {"e1": "train", "e2": "train", "e3": ""}
    project.night(SPLITS, groups={"e1": 5, "e2": 6})
    project.publish()
    assert project.splits() == SPLITS


def test_whoever_an_earlier_version_left_out_may_have_been_trained_on(project):
    project.remember("e3", "")
    project.publish()
    assert project.splits() == SPLITS | {"e3": "train"}


def test_training_entities_that_left_their_source_still_mark_their_text(project):
    project.night({"e2": "test", "e3": "", "e4": ""}, {"e2": "beta", "e3": "gamma", "e4": "alpha"})
    project.publish()
    assert project.splits() == {"e2": "test", "e3": "", "e4": "train"}


# At what cost


def test_an_entity_that_gets_a_split_is_told_with_it_and_nothing_is_scored_again(project):
    first = project.publish()
    scored = project.warehouse.rows("SELECT * FROM scores ORDER BY ALL")
    project.night(SPLITS | {"e3": "certify"})
    second = project.publish()
    assert project.splits() == SPLITS | {"e3": "certify"}
    assert project.warehouse.rows("SELECT * FROM scores ORDER BY ALL") == scored
    assert (second.unchanged, second.content_hash, project.changes()) == (False, first.content_hash, [])
    assert project.publish().unchanged is True


def test_withheld_rows_and_several_buckets_keep_each_entity_in_its_split(project, monkeypatch):
    monkeypatch.setattr("semlabel.publish.BUCKET_ROWS", 20)
    splits = {f"n{number}": ("train", "test", "", "calibrate", "certify")[number % 5] for number in range(10)}
    project.night(splits)
    frame = project.warehouse.catalog()[["candidate_id", "text"]].assign(certified=[True, True, True, False, False])
    project.warehouse.replace_catalog(frame, "run")
    project.settings.uncertified_candidates = "withhold"
    done = project.publish()
    assert (done.rows, verify_version(done.path)["buckets"], project.splits()) == (30, 4, splits)
    snapshot = snapshot_check(done.path, project.warehouse)
    assert snapshot.found_hash == snapshot.expected_hash and snapshot.found_rows == 30


# Versions without the column


def test_the_night_after_an_upgrade_publishes_the_column_although_no_row_changed(project):
    first = project.publish()
    without_split(first.path)
    second = project.publish()
    assert (second.unchanged, second.content_hash, project.changes()) == (False, first.content_hash, [])
    assert project.splits() == SPLITS and verify_version(second.path)["previous_version"] == first.version


def test_a_version_without_the_column_is_still_compared_followed_and_rolled_back_to(project):
    first = project.publish()
    without_split(first.path)
    assert snapshot_check(first.path, project.warehouse).found_hash == first.content_hash
    project.night(SPLITS, project.ENTITIES | {"e2": "edited"})
    project.publish()
    assert {(entity_id, reason) for entity_id, *_, reason in project.changes()} == {("e2", "entity_text")}
    assert rollback(project.target, first.version)["schema_version"] == 1
    old = pq.read_table(project.target / "current" / "predictions")
    assert old.num_rows == 15 and "split" not in old.column_names


def test_an_erasure_leaves_every_version_with_the_columns_it_had(project):
    old = project.publish()
    without_split(old.path)
    project.night(SPLITS, project.ENTITIES | {"e2": "edited"})
    new = project.publish()
    assert erase_from_versions(project.target, "e2") == [old.version, new.version]
    for done, has_split in ((old, False), (new, True)):
        manifest = verify_version(project.target / "versions" / done.version)
        with duckdb.connect(str(done.path / "predictions.duckdb"), read_only=True) as connection:
            found = connection.execute("SELECT * FROM predictions").df()
            total, rows = content_sum(lambda sql, run=connection: run.execute(sql).fetchall(), "predictions")
        assert sorted(found["entity_id"].unique()) == ["e1", "e3"] and ("split" in found) is has_split
        assert manifest["content_hash"] == content_hash(total, rows) and manifest["rows"] == rows == 10
    assert project.splits() == {"e1": "train", "e3": ""}


# The page


def test_the_page_s_query_does_not_take_training_rows_for_quality(project, tmp_path):
    version = project.publish().path
    rows = pq.read_table(version / "predictions").to_pandas()
    # Every YES of the training entity is right and none of the others': only `test` says how good the labeler is.
    yes = rows[rows["label"]]
    right = yes[yes["entity_id"] == "e1"]
    (tmp_path / "references.csv").write_text(
        "entity_id,candidate_id\n" + "".join(f"{row.entity_id},{row.candidate_id}\n" for row in right.itertuples())
    )
    (query,) = re.findall(r'con\.sql\("""(.*?)"""\)', PAGE.read_text(encoding="utf-8"), re.DOTALL)
    query = query.replace("data/references.csv", str(tmp_path / "references.csv"))
    with duckdb.connect(str(version / "predictions.duckdb"), read_only=True) as connection:
        told = connection.execute(query).fetchall()
    counts = yes["entity_id"].value_counts()
    assert told == [("test", 1, counts["e2"], 0.0), ("train", 1, counts["e1"], 1.0)]
