"""What people judge of a text that came online, while the source still lags behind it, is a judgement like others."""

import pytest

from semlabel.judging.importing import CHANGED, UNCERTAIN
from semlabel.judging.sample import sample_random
from semlabel.online_texts import ingest, resolve
from semlabel.sources import read_entities
from semlabel.spool import SpoolWriter
from semlabel.warehouse import LEASE
from tests.storage import Project
from tests.test_judging import ENTITIES, SPLITS, make_world
from tests.test_spool import update

ONLINE = "what came online"


@pytest.fixture
def world(tmp_path):
    return make_world(tmp_path)


def night(world, *online: str) -> None:
    """These entities get another text online, and a run takes it over beside the source as it is."""
    project, folder = Project(world.settings.paths.state), world.settings.paths.spool
    writer = SpoolWriter(folder)
    for entity_id in online:
        writer.append(update(entity_id, f"{ONLINE} {entity_id}", accepted_at="2126-11-30T12:00:00+00:00"))
    writer.seal()
    ingest(project.warehouse, folder, None, "night", 100)
    frame = resolve(project.warehouse, read_entities(world.settings).frame).frame
    project.warehouse.replace_entities(frame.assign(split=[SPLITS[name] for name in frame["entity_id"]]), "night")
    project.close()


def everything(world):
    rows = sample_random(world.settings, world.operations, 100, ["certify"])
    return rows, world.judged("judged.csv", rows, {(row.entity_id, row.candidate_id): "yes" for row in rows})


def edit(world, entity_id: str, text: str) -> None:
    path = world.root / "entities.csv"
    path.write_text(path.read_text().replace(ENTITIES[entity_id], text))


def test_an_online_text_that_holds_is_what_the_pair_says(world):
    night(world, *(name for name, split in SPLITS.items() if split == "certify"))
    rows, path = everything(world)
    assert {row.entity_text for row in rows} == {f"{ONLINE} {name}" for name in ("e4", "e5", "e6", "e7")}
    done = world.take(path)
    assert len(done.imported) == 20 and done.refused == []
    assert world.take(path).reasons == {"already imported": 20}


def test_a_source_that_caught_up_is_no_change_and_one_that_went_on_is(world):
    night(world, "e5", "e6")
    _, path = everything(world)
    edit(world, "e5", f"{ONLINE} e5")
    edit(world, "e6", "a newer text than came online")
    done = world.take(path)
    assert done.reasons == {CHANGED: 5} and len(done.imported) == 15
    assert {row.row_id.split(" / ")[0] for row in done.refused} == {"e6"}


def test_a_text_that_nobody_sent_online_is_a_change(world):
    _, path = everything(world)
    night(world, "e5")
    edit(world, "e6", "an edited text")
    # The source still says what was judged of e5: the merge, which knows the online text, will not use it.
    assert world.take(path).reasons == {CHANGED: 5}


def test_an_import_beside_a_run_takes_what_it_can_and_says_what_to_repeat(world):
    night(world, "e5")
    _, path = everything(world)
    changed = world.settings.environment.model_copy(update={"lease_wait_seconds": 0.0})
    settings = world.settings.model_copy(update={"environment": changed})
    settings._path = world.settings.path
    patient, world.settings = world.settings, settings
    with world.operations.lease(LEASE, "nightly", 0):
        done = world.take(path)
    assert done.reasons == {UNCERTAIN: 5} and len(done.imported) == 15 and done.faulty == 5
    world.settings = patient
    again = world.take(path)
    assert len(again.imported) == 5 and again.reasons == {"already imported": 15}


def test_an_import_of_the_sources_own_texts_never_waits_for_a_run(world):
    _, path = everything(world)
    with world.operations.lease(LEASE, "nightly", 0):
        assert len(world.take(path).imported) == 20
