"""A pair whose text was edited is asked for again, and its old answer is neither in the way nor believed."""

import json

import pytest

from semlabel.digests import text_id
from semlabel.errors import SemlabelError
from semlabel.judging.merging import usable_judgements
from semlabel.judging.sample import sample_active, sample_random
from semlabel.judging.store import read_judgements
from semlabel.warehouse import Warehouse
from tests.storage import Project, Scorer
from tests.test_judging import CATALOG, ENTITIES, SPLITS, make_world

EDITED = "what it says now"


@pytest.fixture
def world(tmp_path):
    return make_world(tmp_path)


def edit(world, name: str) -> None:
    """Another text for an entity or a candidate, in its source and, as after a run, in the warehouse with margins."""
    table, key = ("entities", "entity_id") if name in ENTITIES else ("catalog", "candidate_id")
    path = world.root / f"{table}.csv"
    old = ENTITIES.get(name) or CATALOG[name]
    path.write_text(path.read_text().replace(old, EDITED))
    project = Project(world.settings.paths.state)
    frame = getattr(project.warehouse, table)().drop(columns=["text_id", "position"], errors="ignore")
    frame.loc[frame[key] == name, "text"] = EDITED
    getattr(project.warehouse, f"replace_{table}")(frame, "run")
    project.refresh(Scorer())
    project.close()


def pairs(rows) -> set[tuple[str, str]]:
    return {(row.entity_id, row.candidate_id) for row in rows}


def judge_all(world, rows, name="judged.csv"):
    return world.take(world.judged(name, rows, dict.fromkeys(pairs(rows), "no")))


@pytest.mark.parametrize("name", ["c2", "e5"])
def test_an_edited_text_brings_its_pairs_back_into_the_random_sample(world, name):
    def everything():
        return sample_random(world.settings, world.operations, 100, ["certify"])

    first = everything()
    assert len(judge_all(world, first).imported) == 20
    with pytest.raises(SemlabelError, match="all 20 pairs of certify are judged"):
        everything()
    edit(world, name)
    again = everything()
    assert pairs(again) == {pair for pair in pairs(first) if name in pair}
    assert all(EDITED in (row.entity_text, row.candidate_text) for row in again)

    done = judge_all(world, again, "again.json")  # the same answer, of another text
    assert pairs(done.imported) == pairs(again) and done.refused == []
    with pytest.raises(SemlabelError, match="all 20 pairs of certify are judged"):
        everything()
    assert judge_all(world, again, "again.json").reasons == {"already imported": len(again)}

    entities, candidates = (
        {key: text_id(EDITED if key == name else text) for key, text in texts.items()} for texts in (ENTITIES, CATALOG)
    )
    entities = {entity_id: (SPLITS[entity_id], text) for entity_id, text in entities.items()}
    kept, refused = usable_judgements(read_judgements(world.settings), entities, candidates)
    assert (len(kept), len(refused)) == (20, len(again))
    assert set(zip(kept["entity_id"], kept["candidate_id"], strict=True)) == pairs(first)


@pytest.mark.parametrize("name", ["c2", "e1"])
def test_an_edited_text_brings_its_pairs_back_to_whoever_teaches(world, name):
    first = sample_active(world.settings, world.operations, 100)
    judge_all(world, first)
    edit(world, name)
    again = sample_active(world.settings, world.operations, 100)
    # Of listed pairs only those are asked for that the labeler says otherwise of, and its margins are new ones.
    unlisted = {pair for pair in pairs(again) if pair[1] != "c0"}
    assert unlisted and unlisted == {pair for pair in pairs(first) if name in pair and pair[1] != "c0"}


def test_a_text_that_is_as_it_was_brings_its_judgement_back(world):
    first = sample_random(world.settings, world.operations, 100, ["certify"])
    judge_all(world, first)
    before = (world.root / "catalog.csv").read_text(), CATALOG["c2"]
    edit(world, "c2")
    assert len(sample_random(world.settings, world.operations, 100, ["certify"])) == 4
    (world.root / "catalog.csv").write_text(before[0])
    with Warehouse.open(world.settings.paths.warehouse) as warehouse:
        frame = warehouse.catalog().drop(columns=["text_id", "position"])
        frame.loc[frame["candidate_id"] == "c2", "text"] = before[1]
        warehouse.replace_catalog(frame, "run")
    with pytest.raises(SemlabelError, match="all 20 pairs of certify are judged"):
        sample_random(world.settings, world.operations, 100, ["certify"])


def test_the_same_pair_of_texts_twice_in_a_file_is_imported_once(world):
    rows = sample_random(world.settings, world.operations, 5, ["certify"])
    path = world.judged("judged.json", rows, dict.fromkeys(pairs(rows), "yes"))
    tasks = json.loads(path.read_text())
    path.write_text(json.dumps([*tasks, tasks[0]]))
    done = world.take(path)
    assert len(done.imported) == 5 and done.reasons == {"duplicate: stands in the file before": 1}
