"""From a request at noon to the next morning's table: the labels of the answer are published, and nothing is scored."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from semlabel.erasure import erase
from semlabel.serving.access import Access
from semlabel.serving.pointer import Pointer
from tests.pipeline_fixtures import TinyProject, published, run
from tests.serving_fixtures import running, until_ready

NIGHT = "nightly_labeling"
TOKEN = "t" * 20
TEXT = "weld metal machines and answer people"


@pytest.fixture
def project(first_run, tmp_path: Path) -> TinyProject:
    return first_run[0].copied(tmp_path / "labeled")


def persist(project: TinyProject, folder: Path, entity_id: str, text: str, version: int) -> dict[str, float]:
    """Send an update to a server of the project; the margins of the answer by candidate."""
    paths, scoring = project.settings.paths, project.settings.scoring
    options = {"spool": paths.spool, "items_per_round": scoring.items_per_round}
    pointer = Pointer(labelers=paths.labelers, published=paths.published)
    with running(pointer, folder, Access(None, TOKEN.encode()), options=options) as server:
        until_ready(server)
        document = {"entity_id": entity_id, "text": text, "persist": True, "text_version": version}
        status, answer, _ = server.post("/v1/label", document, {"Authorization": f"Bearer {TOKEN}"})
    assert status == 200 and answer["persisted"], answer
    return {row["candidate_id"]: row["margin"] for row in answer["labels"]}


def test_an_update_at_noon_is_in_the_mornings_table_until_the_source_says_something_newer(project, instance, tmp_path):
    before = published(project)["version"]
    margins = persist(project, tmp_path, "001", TEXT, 3)
    night = run(project, instance, NIGHT)
    assert night.success
    row = project.operations.run(night.run_id)
    assert (row["pairs_scored"], row["model_loads"]) == (0, 0)
    version = published(project)
    assert version["previous_version"] == before
    assert version["changes"]["by_reason"] == {"online_update": len(margins)}
    rows = pq.read_table(Path(version["path"]) / "predictions", filters=[("entity_id", "=", "001")]).to_pylist()
    assert {row["candidate_id"]: row["margin"] for row in rows} == margins
    # The source still says what it said at noon: nothing changes, and nothing is scored.
    again = run(project, instance, NIGHT)
    assert again.success and published(project)["version"] == version["version"]

    rows = [row | {"text": "plan the office"} if row["entity_id"] == "001" else row for row in project.entities()]
    project.write_entities(rows)
    assert run(project, instance, NIGHT).success
    assert set(published(project)["changes"]["by_reason"]) == {"entity_text"}


def test_an_erased_entity_is_gone_from_the_spool_and_from_the_online_texts(project, instance, tmp_path):
    persist(project, tmp_path, "002", TEXT, 1)
    assert run(project, instance, NIGHT).success
    persist(project, tmp_path, "002", TEXT + " again", 2)
    for row in project.operations.runs():
        project.operations.finish_run(row["run_id"], "SUCCESS")  # `semlabel run` does, and an erasure waits for it
    receipt = erase("002", project.settings, project.operations)
    assert (receipt.counts["spool"], receipt.counts["warehouse: online_texts"]) == (1, 1)
    spool = project.settings.paths.spool
    held = b"".join(file.read_bytes() for file in spool.iterdir())
    assert b"weld metal machines" not in held and b'"002"' not in held
    with project.warehouse() as warehouse:
        assert warehouse.rows("SELECT * FROM online_texts") == []
    assert run(project, instance, NIGHT).success
    rows = pq.read_table(Path(published(project)["path"]) / "entities.parquet").to_pylist()
    assert "002" not in {row["entity_id"] for row in rows}
