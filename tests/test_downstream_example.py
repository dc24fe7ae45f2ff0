"""A consumer that follows the example holds exactly what is published, whatever it missed."""

import importlib.util
from pathlib import Path

import dagster as dg
import duckdb
import pytest

from semlabel.digests import text_id
from semlabel.erase_versions import erase_from_versions
from semlabel.published import current_publication, current_version
from tests.test_publish import Publisher

CONSUMER = Path(__file__).parents[1] / "examples" / "downstream" / "consumer.py"


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("downstream_consumer", CONSUMER)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def project(tmp_path):
    project = Publisher(tmp_path / "it's a project")
    yield project
    project.close()


def held(database: Path) -> set[tuple]:
    with duckdb.connect(str(database)) as connection:
        return set(connection.execute("FROM labels").fetchall())


def offered(project: Publisher) -> set[tuple]:
    with duckdb.connect(str(project.target / "current" / "predictions.duckdb"), read_only=True) as connection:
        return set(connection.execute("SELECT entity_id, candidate_id, label, margin FROM predictions").fetchall())


def test_a_consumer_follows_the_feed_and_takes_a_snapshot_when_it_missed_a_version(project, example, tmp_path):
    database = tmp_path / "consumer.duckdb"

    def follow() -> str:
        mode, version, pairs = example.follow(database, project.target)
        assert version == current_version(project.target)
        assert held(database) == offered(project) and pairs == len(held(database))
        return mode

    first = project.publish().version
    assert [follow(), follow()] == ["snapshot", "unchanged"]
    project.put({"e1": "alpha, edited", "e2": "beta", "e4": "new"}, {"c1": "candidate 1", "c7": "candidate 7"})
    project.publish()
    assert follow() == "followed"
    for number in range(2):
        project.put({"e1": f"missed {number}"})
        project.publish()
    assert [follow(), follow()] == ["snapshot", "unchanged"]
    from semlabel.publish import rollback

    rollback(project.target, first)
    assert [follow(), follow()] == ["snapshot", "unchanged"]


def test_a_feed_that_is_applied_twice_does_no_harm(project, example, tmp_path):
    database = tmp_path / "consumer.duckdb"
    first = project.publish().version
    example.follow(database, project.target)
    project.put({"e1": "edited", "e2": "beta"})
    project.publish()
    example.follow(database, project.target)
    with duckdb.connect(str(database)) as connection:
        connection.execute("UPDATE held SET version = ?", [first])
    assert example.follow(database, project.target)[0] == "followed" and held(database) == offered(project)


def test_an_erased_entity_leaves_the_consumer_too_although_no_feed_names_it(project, example, tmp_path):
    database = tmp_path / "consumer.duckdb"
    project.publish()
    example.follow(database, project.target)
    erase_from_versions(project.target, "e2")
    assert example.follow(database, project.target)[0] == "unchanged"
    assert {row[0] for row in held(database)} == {"e1", "e3"} and held(database) == offered(project)
    assert text_id("e2") in (project.target / "current" / "manifest.json").read_text()


class Follower:
    """A consumer of a project, from before anything is erased."""

    def __init__(self, example, database: Path, project: Publisher) -> None:
        self.example, self.database, self.project = example, database, project
        project.publish()
        assert self.follow() == "snapshot"

    def follow(self) -> str:
        mode, _, _ = self.example.follow(self.database, self.project.target)
        assert held(self.database) == offered(self.project)
        return mode

    def entities(self) -> set[str]:
        return {row[0] for row in held(self.database)}


@pytest.fixture
def follower(example, project, tmp_path):
    return Follower(example, tmp_path / "consumer.duckdb", project)


def erase(project: Publisher, entity_id: str, remember: bool = True) -> None:
    """What `semlabel erase` does to readers; the source lists the entity no more."""
    if remember:
        project.operations.note_erasure(text_id(entity_id), {}, finished=True)
    erase_from_versions(project.target, entity_id)
    project.put({key: text for key, text in project.ENTITIES.items() if key != entity_id})


def erasures(project: Publisher) -> list[tuple[str, int]]:
    return [(entry["id_digest"], entry["rows"]) for entry in current_publication(project.target)["erasures"]]


@pytest.mark.parametrize("remember", [True, False])
def test_a_consumer_that_reads_only_after_the_next_night_loses_an_erased_entity(project, follower, remember):
    erase(project, "e2", remember)
    project.publish()
    assert erasures(project) == [(text_id("e2"), 0)]
    assert follower.follow() == "followed" and follower.entities() == {"e1", "e3"}


def test_a_consumer_that_missed_versions_since_an_erasure_loses_the_entity(project, follower):
    erase(project, "e2")
    for text in ("edited", "edited again"):
        project.put({"e1": text, "e3": "gamma"})
        project.publish()
    assert follower.follow() == "snapshot" and follower.entities() == {"e1", "e3"}


def test_an_erasure_is_told_by_every_later_version_and_seeing_it_again_does_no_harm(project, follower):
    erase(project, "e2")
    assert follower.follow() == "unchanged" and erasures(project) == [(text_id("e2"), 5)]
    for text in ("edited", "edited again"):
        project.put({"e1": text, "e3": "gamma"})
        project.publish()
        assert erasures(project) == [(text_id("e2"), 0)]
        assert [follower.follow(), follower.follow()] == ["followed", "unchanged"]
    assert follower.entities() == {"e1", "e3"}


def test_several_erasures_of_several_nights_reach_one_late_consumer(project, follower):
    erase(project, "e2")
    project.publish()
    assert follower.follow() == "followed"
    project.operations.note_erasure(text_id("e3"), {}, finished=True)
    erase_from_versions(project.target, "e3")
    project.put({"e1": "alpha, edited"})
    project.publish()
    assert sorted(erasures(project)) == sorted([(text_id("e2"), 0), (text_id("e3"), 0)])
    assert follower.follow() == "followed" and follower.entities() == {"e1"}


def test_whoever_came_back_is_not_removed_by_an_old_erasure(project, follower):
    """Runs refuse an erased id as long as `ops.sqlite` knows of it; it may be lost."""
    erase(project, "e2", remember=False)
    project.publish()
    assert follower.follow() == "followed" and follower.entities() == {"e1", "e3"}
    project.put(project.ENTITIES)
    project.publish()
    assert erasures(project) == []
    assert [follower.follow(), follower.follow()] == ["followed", "unchanged"]
    assert follower.entities() == {"e1", "e2", "e3"}


def test_a_copy_with_other_pairs_than_were_published_is_taken_anew(project, follower):
    # Erased and back before the consumer looks again, but without candidate c4: no feed removes (e2, c4).
    erase(project, "e2", remember=False)
    project.put(project.ENTITIES, {key: text for key, text in project.CATALOG.items() if key != "c4"})
    project.publish()
    assert [follower.follow(), follower.follow()] == ["snapshot", "unchanged"]
    with duckdb.connect(str(follower.database)) as connection:
        connection.execute("DELETE FROM labels WHERE entity_id = 'e1'")
    assert [follower.follow(), follower.follow()] == ["snapshot", "unchanged"]


def test_the_asset_tells_how_it_came_by_its_rows(project, example, tmp_path, monkeypatch):
    monkeypatch.setenv("CONSUMER_DATABASE", str(tmp_path / "consumer.duckdb"))
    monkeypatch.setenv("CONSUMER_PUBLISHED", str(project.target))
    version = project.publish().version
    with dg.DagsterInstance.ephemeral() as instance:
        result = example.defs.resolve_implicit_global_asset_job_def().execute_in_process(instance=instance)
    (event,) = result.get_asset_materialization_events()
    told = {name: value.value for name, value in event.materialization.metadata.items()}
    assert told == {"mode": "snapshot", "published_version": version, "dagster/row_count": 15}
