"""A consumer that follows the example holds exactly what is published, whatever it missed."""

import importlib.util
from pathlib import Path

import dagster as dg
import duckdb
import pytest

from semlabel.digests import text_id
from semlabel.erase_versions import erase_from_versions
from semlabel.published import current_version
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


def test_the_asset_tells_how_it_came_by_its_rows(project, example, tmp_path, monkeypatch):
    monkeypatch.setenv("CONSUMER_DATABASE", str(tmp_path / "consumer.duckdb"))
    monkeypatch.setenv("CONSUMER_PUBLISHED", str(project.target))
    version = project.publish().version
    with dg.DagsterInstance.ephemeral() as instance:
        result = example.defs.resolve_implicit_global_asset_job_def().execute_in_process(instance=instance)
    (event,) = result.get_asset_materialization_events()
    told = {name: value.value for name, value in event.materialization.metadata.items()}
    assert told == {"mode": "snapshot", "published_version": version, "dagster/row_count": 15}
