"""Judgements through the recipe: read with the references, trained on, and a further look at the certify set."""

import pytest

from semlabel.judging.importing import import_judgements
from semlabel.judging.sample import sample_active, sample_random
from tests.pipeline_fixtures import run
from tests.test_judging import World

SOURCES = ["entities", "catalog", "reference_labels", "training_pairs"]


@pytest.fixture
def project(first_run, tmp_path):
    copy = first_run[0].copied(tmp_path / "labeled")
    copy.change(sources={"judgements": "judgements.csv"})
    return copy


def world_of(project) -> World:
    found = World.__new__(World)
    found.root, found.settings, found.operations = project.root, project.settings, project.operations
    return found


def references_of(project) -> dict[tuple[str, str], tuple[bool, str, float | None]]:
    with project.warehouse() as warehouse:
        rows = warehouse.rows("SELECT * FROM reference_labels")
    return {(row[0], row[1]): row[2:] for row in rows}


def told(result, asset: str) -> dict:
    events = {event.asset_key.to_user_string(): event for event in result.get_asset_materialization_events()}
    return {name: value.value for name, value in events[asset].materialization.metadata.items()}


def test_judgements_join_the_references_by_their_design_and_every_row_is_accounted_for(project, instance):
    world, before = world_of(project), references_of(project)
    active = sample_active(project.settings, world.operations, 300)
    drawn = sample_random(project.settings, world.operations, 12, ["certify"])
    listed = set(before)
    # One judgement goes against a reference; what is unlisted and held for YES becomes one.
    against = next(row for row in active if (row.entity_id, row.candidate_id) in listed)
    fresh = next(row for row in active if (row.entity_id, row.candidate_id) not in listed)
    answers = {(against.entity_id, against.candidate_id): "no", (fresh.entity_id, fresh.candidate_id): "yes"}
    import_judgements(world.judged("active.csv", active, answers), project.settings, world.operations)
    answers = {(row.entity_id, row.candidate_id): "yes" for row in drawn}
    import_judgements(world.judged("random.json", drawn, answers), project.settings, world.operations)
    stale = drawn[0].entity_id
    project.write_entities(
        row | {"text": "another"} if row["entity_id"] == stale else row for row in project.entities()
    )

    result = run(project, instance, select=SOURCES)
    assert result.success
    after, facts = references_of(project), told(result, "reference_labels")
    lost = {(row.entity_id, row.candidate_id) for row in drawn if row.entity_id == stale}
    assert after[(fresh.entity_id, fresh.candidate_id)] == (True, fresh.design, None)
    assert (against.entity_id, against.candidate_id) not in after
    for pair in set(answers) - lost:
        assert after[pair] == (True, "random", 12 / 160)
    assert {pair for pair in lost if pair in after and after[pair][1] == "random"} == set()
    assert facts["judgements"] == 14 and facts["judgements_not_used"] == len(lost)
    assert facts["refused"] == 2
    assert facts["rows_in"] == facts["dagster/row_count"] + facts["refused"] + facts["redundant"]
    with project.warehouse() as warehouse:
        pairs = warehouse.rows("SELECT entity_id, candidate_id, label FROM training_pairs")
        refused = warehouse.rows("SELECT row_id, reason FROM refused_rows WHERE source = 'judgements'")
    assert (fresh.entity_id, fresh.candidate_id, True) in pairs
    assert {row[0] for row in refused} == {" / ".join(pair) for pair in lost}
    assert {row[1] for row in refused} <= {"its text was changed since it was judged"}


def test_new_labels_of_the_same_certify_entities_are_a_further_look_held_to_more(project, instance):
    world = world_of(project)
    drawn = sample_random(project.settings, world.operations, 6, ["certify"])
    answers = {(row.entity_id, row.candidate_id): "yes" for row in drawn}
    import_judgements(world.judged("random.csv", drawn, answers), project.settings, world.operations)
    result = run(project, instance, job="train_labeler")
    facts = told(result, "threshold")
    assert facts["certify_uses"] == 2 and facts["confidence"] == pytest.approx(1 - 0.07 * 0.75 * 0.25)
    again = told(run(project, instance, job="train_labeler"), "threshold")
    assert again["certify_uses"] == 2 and again["labeler_digest"] == facts["labeler_digest"]


def test_a_pair_that_references_contradict_is_judged_and_trained_on_by_nobody(project, instance):
    with project.warehouse() as warehouse:
        splits = dict(warehouse.rows("SELECT entity_id, split FROM entities"))
    rows = project.references()
    chosen = {split: next(row for row in rows if splits[row["entity_id"]] == split) for split in ("train", "certify")}
    listed = {(row["entity_id"], row["candidate_id"]) for row in rows}
    judged = {entity_id for entity_id, _ in listed if splits[entity_id] == "certify"}
    odd = next((name, f"c{n}") for name in sorted(judged) for n in range(8) if (name, f"c{n}") not in listed)
    against = [row | {"label": "no"} for row in chosen.values()]
    unreadable = {"entity_id": odd[0], "candidate_id": odd[1], "label": "probably"}
    project.write_references([*rows, *against, unreadable])

    result = run(project, instance, job="train_labeler")
    assert told(result, "reference_labels")["undecided"] == 3
    expected = {(row["entity_id"], row["candidate_id"]) for row in chosen.values()} | {odd}
    with project.warehouse() as warehouse:
        undecided = warehouse.undecided_pairs()
        trained = {row[:2] for row in warehouse.rows("SELECT entity_id, candidate_id FROM training_pairs")}
    assert set(zip(undecided["entity_id"], undecided["candidate_id"], strict=True)) == expected
    # Eight candidates and eight pairs a round: every other pair of a train entity is trained on.
    pair = (chosen["train"]["entity_id"], chosen["train"]["candidate_id"])
    own = {f"c{n}" for n in range(8)} - {pair[1]}
    assert {candidate_id for entity_id, candidate_id in trained if entity_id == pair[0]} == own
    assert told(result, "threshold")["certify_pairs"] == 8 * len(judged) - 2
