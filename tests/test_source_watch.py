"""A change of the sources asks for exactly one run, and a file that is still being written for none."""

import os
from pathlib import Path

import dagster as dg
import pytest

from pipeline.definitions import build_defs
from semlabel.settings import load_settings
from semlabel.source_watch import Tick, Watched, look, source_files, tick
from tests.cli_settings import smallest


class Watch:
    """One file watched over many ticks, with the memory going through its text form every time."""

    def __init__(self, folder: Path) -> None:
        self.file, self.memory = folder / "entities.csv", None
        self.file.write_text("one")

    def tick(self) -> Tick:
        found = tick(Watched.from_text(self.memory), look([self.file]))
        self.memory = found.memory.to_text()
        return found

    def write(self, text: str, nanoseconds: int) -> None:
        self.file.write_text(text)
        os.utime(self.file, ns=(nanoseconds, nanoseconds))


@pytest.fixture
def watch(tmp_path):
    watch = Watch(tmp_path)
    watch.tick()
    watch.tick()
    return watch


def test_what_was_there_from_the_start_asks_for_nothing(tmp_path):
    watch = Watch(tmp_path)
    assert [watch.tick().run_key for _ in range(4)] == [None] * 4
    assert watch.tick().found == "nothing has changed"


def test_a_change_asks_once_and_only_when_two_ticks_saw_it_alike(watch):
    watch.write("two words", 1)
    assert watch.tick().run_key is None
    asked = watch.tick()
    assert asked.run_key.startswith("source_changes-") and asked.found == f"changed: {watch.file}"
    assert [watch.tick().run_key for _ in range(3)] == [None] * 3


def test_a_file_that_grows_at_every_tick_asks_for_nothing_until_it_rests(watch):
    for size in range(5, 10):
        watch.write("x" * size, size)
        assert watch.tick().found == f"still changing: {watch.file}"
    assert watch.tick().run_key is not None


@pytest.mark.parametrize("change", ["size", "mtime", "inode"])
def test_each_of_size_time_and_inode_is_a_change(watch, change):
    before = watch.file.stat()
    if change == "inode":
        fresh = watch.file.with_name("fresh")
        fresh.write_text("one")
        fresh.replace(watch.file)
    else:
        watch.file.write_text("four" if change == "size" else "one")
    later = before.st_mtime_ns + (10**9 if change == "mtime" else 0)
    os.utime(watch.file, ns=(later, later))
    watch.tick()
    assert watch.tick().run_key is not None


def test_a_missing_file_asks_for_nothing_and_its_return_in_new_shape_does(watch):
    watch.file.unlink()
    assert [watch.tick().found for _ in range(3)] == [f"missing: {watch.file}"] * 3
    watch.write("back again", 7)
    assert watch.tick().run_key is None
    assert watch.tick().run_key is not None


def test_a_change_that_is_taken_back_before_it_came_to_rest_asks_for_nothing(watch):
    before = watch.file.stat()
    aside = watch.file.rename(watch.file.with_name("aside"))
    watch.write("other", 7)
    watch.tick()
    aside.replace(watch.file)
    assert look([watch.file])[str(watch.file)] == [before.st_size, before.st_mtime_ns, before.st_ino]
    assert [watch.tick().run_key for _ in range(3)] == [None] * 3


def test_the_same_state_has_the_same_key_and_another_state_another(tmp_path):
    keys = []
    for nanoseconds in (1, 1, 2):
        watch = Watch(tmp_path)
        watch.write("one", 0)
        watch.tick(), watch.tick()
        watch.write("two", nanoseconds)
        watch.tick()
        keys.append(watch.tick().run_key)
    assert keys[0] == keys[1] != keys[2]


def project(folder: Path, schedule: str = "") -> Path:
    text = smallest().replace('"catalog.csv"', '"duckdb:shop.duckdb#SELECT 1"') + schedule
    (folder / "pipeline.toml").write_text(text)
    for name in ("entities.csv", "shop.duckdb", "references.csv"):
        (folder / name).write_text(name)
    return folder / "pipeline.toml"


def test_the_files_behind_the_sources_are_watched_once_each(tmp_path):
    files = source_files(load_settings(project(tmp_path)).sources)
    assert files == [tmp_path / "entities.csv", tmp_path / "shop.duckdb", tmp_path / "references.csv"]
    (tmp_path / "shop.duckdb.wal").touch()
    assert source_files(load_settings(tmp_path / "pipeline.toml").sources)[2] == tmp_path / "shop.duckdb.wal"


@pytest.mark.parametrize(
    ("schedule", "status"),
    [
        ("", dg.DefaultSensorStatus.STOPPED),
        ("[schedule]\non_source_changes = true\n", dg.DefaultSensorStatus.RUNNING),
    ],
)
def test_the_sensor_is_off_unless_the_settings_ask_for_it(tmp_path, schedule, status):
    sensor = build_defs(project(tmp_path, schedule)).resolve_sensor_def("source_changes")
    assert sensor.default_status == status


def evaluate(defs: dg.Definitions, instance: dg.DagsterInstance, cursor: str | None):
    repository = defs.get_repository_def()
    with dg.build_sensor_context(
        instance=instance, cursor=cursor, repository_def=repository, resources=defs.resources
    ) as context:
        return repository.get_sensor_def("source_changes").evaluate_tick(context)


def test_the_sensor_asks_for_the_nightly_job_with_the_cap_and_holds_still_while_it_runs(tmp_path):
    defs = build_defs(project(tmp_path, "[schedule]\nsource_change_pairs = 321\n"))
    with dg.DagsterInstance.ephemeral() as instance:
        cursor = None
        for _ in range(2):
            cursor = evaluate(defs, instance, cursor).cursor
        (tmp_path / "shop.duckdb").write_text("another shop")
        cursor = evaluate(defs, instance, cursor).cursor
        with_run = instance.create_run_for_job(defs.resolve_job_def("nightly_labeling"))
        instance.report_run_failed(with_run)
        asked = evaluate(defs, instance, cursor)
        (request,) = asked.run_requests
        assert request.tags["semlabel/max_pairs"] == "321"
        assert request.run_key == evaluate(defs, instance, cursor).run_requests[0].run_key
        assert evaluate(defs, instance, asked.cursor).run_requests == []
        instance.create_run_for_job(defs.resolve_job_def("nightly_labeling"), status=dg.DagsterRunStatus.STARTED)
        held = evaluate(defs, instance, cursor)
        assert held.run_requests == [] and held.skip_message == "nightly_labeling is at work"
