"""The publishing asset: what fails once readers have the new version is a warning of the run, and no refusal."""

import logging
from pathlib import Path

import pytest

from tests.pipeline_fixtures import TinyProject, published, run


@pytest.fixture
def project(first_run, tmp_path: Path) -> TinyProject:
    """A copy of the project after its first run."""
    return first_run[0].copied(tmp_path / "labeled")


def test_a_history_that_cannot_be_written_is_a_warning_of_a_run_that_published(project, instance, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    before = published(project)["version"]
    rows = project.entities()
    rows[0]["text"] += " and the records of the office"
    project.write_entities(rows)
    monkeypatch.setattr("semlabel.published.replace_file", full)
    result = run(project, instance, "nightly_labeling")
    assert result.success
    now = published(project)["version"]
    assert now > before
    told = [entry.user_message for entry in instance.all_logs(result.run_id) if entry.level == logging.WARNING]
    assert [line for line in told if line.startswith(f"{now} is published")] == [
        f"{now} is published, but since when it is current could not be noted in history.json "
        "([Errno 28] No space left on device); the next publication makes it good"
    ]
