"""People's judgements stay what they are: picked pairs teach, random pairs prove, none is lost or made up."""

import csv
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.stats import binomtest

from semlabel.digests import text_id
from semlabel.errors import LeaseHeld, SemlabelError, SettingsError, SourceError
from semlabel.judging import random_sample
from semlabel.judging.active_sample import THIN, has_labeled, pick
from semlabel.judging.files import FORMATS, read_judged, write_export
from semlabel.judging.importing import import_judgements
from semlabel.judging.merging import REFERENCE, one_row_per_pair, usable_judgements
from semlabel.judging.random_sample import complete_sample, draw, in_order
from semlabel.judging.sample import SampledPair, sample_active, sample_random
from semlabel.judging.store import (
    DESIGNS,
    DISAGREEMENT,
    NEAR_THRESHOLD,
    RANDOM,
    THIN_CANDIDATE,
    Judgement,
    add_judgements,
    read_judgements,
)
from semlabel.pairs import build_training_pairs, cross_product_labels
from semlabel.settings import Settings, load_settings
from semlabel.source_watch import source_files
from semlabel.sources import ERASED
from semlabel.warehouse import LEASE
from tests.cli_settings import smallest
from tests.storage import Project, Scorer

ENTITIES = {f"e{number}": f"entity text {number}" for number in range(8)}
SPLITS = dict(zip(ENTITIES, ["train"] * 4 + ["certify"] * 4, strict=True))
CATALOG = {f"c{number}": f"candidate {number}" for number in range(5)}
HOSTILE = [
    "=cmd|' /C calc'!A0",
    "@SUM(1)",
    "-1+2",
    "'=quoted",
    "'plain",
    'a;b,"c"\nd\te',
    "<script>",
    "\u202ertl",
    "007",
]


def ids(prefix: str, count: int) -> list[str]:
    return [f"{prefix}{number}" for number in range(count)]


def judgement(entity_id="e0", candidate_id="c0", label=True, design=RANDOM, **other) -> Judgement:
    values = {
        "inclusion_probability": 0.25 if design == RANDOM else None,
        "entity_text_id": text_id(ENTITIES.get(entity_id, "")),
        "candidate_text_id": text_id(CATALOG.get(candidate_id, "")),
        "labeler_digest": "labeler",
        "imported_at": "2026-11-30T00:00:00+00:00",
    }
    return Judgement(entity_id, candidate_id, label, design, **(values | other))


# --- random numbers that stay


def test_a_second_draw_goes_on_where_the_first_one_ended():
    entities, candidates = ids("e", 30), ids("c", 7)
    first = draw(entities, candidates, [], 20)
    second = draw(entities, candidates, first.pairs, 15)
    both = draw(entities, candidates, [], 35)
    assert first.pairs + second.pairs == both.pairs
    assert (first.probability, second.probability, both.probability) == (20 / 210, 35 / 210, 35 / 210)
    assert draw(entities, candidates, both.pairs, 1000).probability == 1.0
    assert draw(entities, candidates, draw(entities, candidates, [], 1000).pairs, 5).pairs == []


def test_what_is_drawn_does_not_depend_on_the_order_of_ids_or_on_memory(monkeypatch):
    entities, candidates = ids("e", 30), ids("c", 7)
    expected = draw(entities, candidates, [], 40).pairs
    assert draw(entities[::-1], candidates[::-1], [], 40).pairs == expected
    monkeypatch.setattr(random_sample, "_CHUNK", 10)
    assert draw(entities, candidates, [], 40).pairs == expected == in_order(set(expected))


def test_every_pair_is_drawn_with_the_probability_that_is_written_beside_it():
    hits, trials = np.zeros((6, 4)), 600
    for trial in range(trials):
        entities, candidates = ids(f"{trial}-", 6), ids("c", 4)
        found = draw(entities, candidates, [], 5)
        for entity_id, candidate_id in found.pairs:
            hits[entities.index(entity_id), candidates.index(candidate_id)] += 1
    assert found.probability == 5 / 24 and hits.sum() == 5 * trials
    worst = min(binomtest(int(count), trials, 5 / 24).pvalue for count in hits.ravel())
    assert worst > 0.001 / 24


def test_pairs_that_joined_later_are_drawn_first_and_complete_the_sample():
    entities, candidates = ids("e", 20), ids("c", 5)
    judged = draw(entities, candidates, [], 30).pairs
    more = [*entities, *ids("new", 20)]
    cut = random_sample._number(judged[-1])
    late = draw(more, candidates, judged, 500).pairs
    below = [pair for pair in late if random_sample._number(pair) < cut]
    assert below and late[: len(below)] == below and all(pair[0].startswith("new") for pair in below)
    assert complete_sample(more, candidates, [*judged, *below]) == ({*judged, *below}, 30 + len(below))


def test_a_sample_with_holes_ends_before_too_many_of_them():
    entities, candidates = ids("e", 20), ids("c", 10)
    drawn = draw(entities, candidates, [], 100).pairs
    assert complete_sample(entities, candidates, drawn) == (set(drawn), 100)
    few = set(drawn) - set(drawn[40:44])
    assert complete_sample(entities, candidates, few) == (few, 100)
    many = [*drawn[:40], *drawn[50:]]
    assert complete_sample(entities, candidates, many) == (set(drawn[:40]), 40)
    assert complete_sample(entities, candidates, drawn[10:]) == (set(), 0)
    assert complete_sample(entities, candidates, [("elsewhere", "c0")]) == (set(), 0)


# --- what may be used for what


def test_a_judgement_is_used_only_for_what_was_judged_and_for_what_its_design_allows():
    entities = {name: (SPLITS[name], text_id(text)) for name, text in ENTITIES.items()} | {"none": ("", "t")}
    candidates = {name: text_id(text) for name, text in CATALOG.items()}
    rows = [
        judgement("e0", "c1", False, NEAR_THRESHOLD),
        judgement("e4", "c1", True, RANDOM),
        judgement("gone", "c0"),
        judgement("e0", "gone"),
        judgement("e1", "c0", entity_text_id="older"),
        judgement("e1", "c1", candidate_text_id="older"),
        judgement("none", "c0", entity_text_id="t"),
        *(judgement("e5", "c2", True, design) for design in (NEAR_THRESHOLD, THIN_CANDIDATE, DISAGREEMENT)),
        judgement("e2", "c0"),
    ]
    kept, refused = usable_judgements(rows, entities, candidates, {text_id("e2")})
    assert kept[["entity_id", "label", "design"]].to_numpy().tolist() == [
        ["e0", False, NEAR_THRESHOLD],
        ["e4", True, RANDOM],
    ]
    changed = "its text was changed since it was judged"
    assert [(row.row_id, row.reason) for row in refused] == [
        ("gone / c0", "unknown entity"),
        ("e0 / gone", "unknown candidate"),
        ("e1 / c0", changed),
        ("e1 / c1", changed),
        ("none / c0", "its entity is in no split: no reference lists it"),
        *(
            ("e5 / c2", f"it was picked to teach ({design}), which only trains, and its entity is in certify")
            for design in (NEAR_THRESHOLD, THIN_CANDIDATE, DISAGREEMENT)
        ),
        (f"sha256:{text_id('e2')}", ERASED),
    ]
    assert len(kept) + len(refused) == len(rows)


def references(*rows) -> pd.DataFrame:
    names = ["entity_id", "candidate_id", "label", "design"]
    return pd.DataFrame(rows, columns=names).assign(inclusion_probability=float("nan"))


def test_a_judgement_that_agrees_takes_the_place_of_its_reference():
    rows = references(
        ("e4", "c0", True, REFERENCE),
        ("e4", "c1", True, REFERENCE),
        ("e4", "c0", True, RANDOM),
        ("e4", "c2", False, RANDOM),
    )
    merged = one_row_per_pair(rows, SPLITS, list(CATALOG), "negative")
    found = merged.kept[["candidate_id", "label", "design"]].to_numpy().tolist()
    assert found == [["c1", True, REFERENCE], ["c0", True, RANDOM], ["c2", False, RANDOM]]
    assert (merged.redundant, merged.refused) == (1, [])


def test_where_unlisted_is_no_a_judgement_corrects_its_pair_and_never_makes_an_entity_judged():
    rows = references(("e4", "c0", True, REFERENCE), ("e4", "c3", True, RANDOM), ("e5", "c3", True, RANDOM))
    merged = one_row_per_pair(rows, SPLITS, list(CATALOG), "negative")
    assert [(row.row_id, row.reason) for row in merged.refused] == [("e5 / c3", "its entity has no usable reference")]
    labels = cross_product_labels(*frames(), merged.kept, "certify", "negative")
    assert labels["candidate_id"].tolist() == list(CATALOG) and set(labels["entity_id"]) == {"e4"}
    assert labels["label"].tolist() == [True, False, False, True, False]


def test_where_unlisted_is_unknown_a_split_is_judged_by_its_random_sample_alone():
    certify = [name for name, split in SPLITS.items() if split == "certify"]
    drawn = draw(certify, list(CATALOG), [], 8).pairs
    listed = [(name, "c0", True, REFERENCE) for name in ENTITIES]
    rows = references(*listed, *((*pair, False, RANDOM) for pair in drawn if pair[1] != "c0"))
    agreeing = references(*((*pair, True, RANDOM) for pair in drawn if pair[1] == "c0"))
    rows = pd.concat([rows, agreeing], ignore_index=True)
    merged = one_row_per_pair(rows, SPLITS, list(CATALOG), "unknown")
    assert merged.notes == ["certify is judged by 8 random pairs (40.00% of its cross product) instead of listed ones"]
    labels = cross_product_labels(*frames(), merged.kept, "certify", "unknown")
    assert sorted(zip(labels["entity_id"], labels["candidate_id"], strict=True)) == sorted(drawn)
    # Train entities keep what is listed for them.
    assert len(cross_product_labels(*frames(), merged.kept, "train", "unknown")) == 4


def test_where_unlisted_is_unknown_judgements_that_are_no_sample_prove_nothing():
    certify = [name for name, split in SPLITS.items() if split == "certify"]
    drawn = draw(certify, list(CATALOG), [], 8).pairs
    rows = references(
        ("e4", "c0", True, REFERENCE), *((*pair, False, RANDOM) for pair in drawn[3:] if pair != ("e4", "c0"))
    )
    merged = one_row_per_pair(rows, SPLITS, list(CATALOG), "unknown")
    assert merged.kept["design"].tolist() == [REFERENCE] and merged.notes == []
    reason = "no random sample of certify: over 5% of the pairs drawn before it were not judged"
    assert {row.reason for row in merged.refused} == {reason} and len(merged.refused) == len(rows) - 1


def test_picked_pairs_are_trained_on():
    rows = references(
        ("e0", "c0", True, REFERENCE), ("e0", "c3", True, NEAR_THRESHOLD), ("e0", "c1", False, DISAGREEMENT)
    )
    settings = load({"training": {"items_per_round": 5, "positive_fraction": 0.5}})
    pairs = build_training_pairs(*frames(), rows, settings)
    found = {(row.candidate_id, row.label, row.kind) for row in pairs.itertuples()}
    assert {("c0", True, "positive"), ("c3", True, "positive"), ("c1", False, "listed")} <= found


def frames() -> tuple[pd.DataFrame, pd.DataFrame]:
    entities = pd.DataFrame({"entity_id": list(SPLITS), "split": list(SPLITS.values())})
    return entities, pd.DataFrame({"candidate_id": list(CATALOG), "group": ""})


def load(more: dict) -> Settings:
    values = {
        "sources": {"entities": "e", "catalog": "c", "references": "r"},
        "model": {"base": "base"},
        "prompt": {"template": "{entity} {candidate}"},
        "calibration": {"min_precision": 0.5},
    }
    return Settings.model_validate(values | more)


# --- files


def sampled(number: int, text: str) -> SampledPair:
    said = number % 2 == 0
    return SampledPair(
        *(text, f"c{number}", text, f"candidate {text}", "certify"),
        margin=-1.25 if said else None,
        probability=0.125 if said else None,
        label=False if said else None,
        labeler_digest="d" * 64 if said else None,
        design=RANDOM if said else NEAR_THRESHOLD,
        inclusion_probability=1 / 3 if said else None,
        entity_text_id=text_id(text),
        candidate_text_id="t",
    )


@pytest.mark.parametrize("suffix", FORMATS)
def test_hostile_ids_and_texts_come_back_byte_for_byte_and_are_no_formulas(tmp_path, suffix):
    rows = [sampled(number, text) for number, text in enumerate(HOSTILE)]
    path = tmp_path / f"judge{suffix}"
    write_export(path, rows)
    if suffix == ".csv":
        with path.open(newline="") as file:
            cells = [cell for row in list(csv.reader(file))[1:] for cell in row]
        assert [cell for cell in cells if cell.startswith(("=", "+", "@", "\t", "\r"))] == []
        assert [cell for cell in cells if cell.startswith("-") and cell != "-1.25"] == []
    back = read_judged(path)
    assert [row.problem for row in back] == [None] * len(rows)
    assert [row.cells["entity_id"] for row in back] == HOSTILE
    assert [row.cells["design"] for row in back] == [row.design for row in rows]
    assert [row.cells["inclusion_probability"] for row in back] == [repr(1 / 3), ""] * 4 + [repr(1 / 3)]


def test_label_studio_gets_what_its_prediction_format_asks_for(tmp_path):
    write_export(tmp_path / "tasks.json", [sampled(0, "a"), sampled(1, "b")])
    first, second = json.loads((tmp_path / "tasks.json").read_text())
    assert first["data"]["entity_text"] == "a" and first["data"]["design"] == RANDOM
    choice = {"from_name": "judgement", "to_name": "candidate_text", "type": "choices", "value": {"choices": ["no"]}}
    assert first["predictions"] == [{"model_version": "d" * 64, "score": 0.875, "result": [choice]}]
    assert second["predictions"] == []


def annotated(task: dict, *choices: str | None, cancelled: bool = False) -> dict:
    parts = [
        {"was_cancelled": cancelled, "result": []}
        if choice is None
        else {
            "was_cancelled": cancelled,
            "completed_by": 3,
            "result": [{"from_name": "judgement", "type": "choices", "value": {"choices": [choice]}}],
        }
        for choice in choices
    ]
    return task | {"annotations": parts}


# --- a project that people judge for


@pytest.fixture
def world(tmp_path):
    return make_world(tmp_path)


def make_world(tmp_path) -> "World":
    """A project with eight entities and five candidates, all labeled; references say YES for c0 everywhere."""
    (tmp_path / "pipeline.toml").write_text(smallest().replace("[sources]", '[sources]\njudgements = "judgements.csv"'))
    with (tmp_path / "entities.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("entity_id", "text"), *ENTITIES.items()])
    with (tmp_path / "catalog.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("candidate_id", "text"), *CATALOG.items()])
    settings = load_settings(tmp_path / "pipeline.toml")
    settings.paths.create()
    project = Project(settings.paths.state)
    frame = pd.DataFrame({"entity_id": list(ENTITIES), "text": list(ENTITIES.values()), "split": list(SPLITS.values())})
    project.warehouse.replace_entities(frame, "run")
    project.put(new_catalog=CATALOG)
    listed = [(name, "c0", True) for name in ENTITIES]
    project.warehouse.replace_references(pd.DataFrame(listed, columns=["entity_id", "candidate_id", "label"]), "run")
    project.refresh(Scorer())
    project.close()
    project.operations.finish_run("run", "SUCCESS")
    return World(tmp_path, settings, project)


class World:
    def __init__(self, root: Path, settings: Settings, project: Project) -> None:
        self.root, self.settings, self.operations = root, settings, project.operations

    def judged(self, name: str, rows: list[SampledPair], answers: dict) -> Path:
        """A judged export: `answers` by pair."""
        path = self.root / name
        write_export(path, rows)
        if name.endswith(".json"):
            tasks = json.loads(path.read_text())
            pairs = [(task["data"]["entity_id"], task["data"]["candidate_id"]) for task in tasks]
            done = [annotated(task, answers.get(pair)) for task, pair in zip(tasks, pairs, strict=True)]
            path.write_text(json.dumps(done))
            return path
        with path.open(newline="") as file:
            table = list(csv.DictReader(file))
        for row in table:
            row["judgement"] = answers.get((row["entity_id"], row["candidate_id"]), "")
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(table[0]))
            writer.writeheader()
            writer.writerows(table)
        return path

    def take(self, path: Path):
        return import_judgements(path, self.settings, self.operations)

    def predictions(self) -> dict[tuple[str, str], tuple[float, bool]]:
        from semlabel.warehouse import Warehouse

        with Warehouse.open(self.settings.paths.warehouse, read_only=True) as warehouse:
            rows = warehouse.rows("SELECT entity_id, candidate_id, margin, label FROM predictions")
        return {(row[0], row[1]): (row[2], row[3]) for row in rows}


def test_active_pairs_are_the_nearest_the_most_wrong_and_the_thinnest_of_train_entities(world):
    said = world.predictions()
    train = {pair: said[pair] for pair in said if SPLITS[pair[0]] == "train"}
    listed = {pair for pair in train if pair[1] == "c0"}
    wrong = sorted((p for p, (_, yes) in train.items() if yes != (p in listed)), key=lambda p: -abs(train[p][0] - 0.5))
    rows = sample_active(world.settings, world.operations, 6)
    by_design = {design: {(r.entity_id, r.candidate_id) for r in rows if r.design == design} for design in DESIGNS}
    assert by_design[DISAGREEMENT] == set(wrong[:2])
    # c0 has four references, the others none: the first turn of the two that come first by name.
    thin = [min((p for p in train if p[1] == name), key=lambda p: abs(train[p][0] - 0.5)) for name in ("c1", "c2")]
    assert by_design[THIN_CANDIDATE] == set(thin) - set(wrong[:2])
    near = sorted(set(train) - listed, key=lambda p: abs(train[p][0] - 0.5))
    rest = [pair for pair in near if pair not in by_design[DISAGREEMENT] | by_design[THIN_CANDIDATE]]
    assert by_design[NEAR_THRESHOLD] == set(rest[: 6 - len(wrong[:2]) - len(by_design[THIN_CANDIDATE])])
    assert all(row.inclusion_probability is None and row.split == "train" for row in rows) and not by_design[RANDOM]
    assert [(row.margin, row.label) for row in rows] == [said[(row.entity_id, row.candidate_id)] for row in rows]
    assert {row.labeler_digest for row in rows} == {"labeler"} and THIN > 4


def test_judged_pairs_are_not_asked_for_again_and_all_of_train_is_the_most(world):
    first = sample_active(world.settings, world.operations, 7)
    answers = {(row.entity_id, row.candidate_id): "no" for row in first}
    done = world.take(world.judged("first.csv", first, answers))
    assert (len(done.imported), done.refused) == (7, [])
    second = sample_active(world.settings, world.operations, 100)
    pairs = [(row.entity_id, row.candidate_id) for row in second]
    assert len(pairs) == len(set(pairs)) and not set(pairs) & set(answers)
    # Listed pairs are asked for only where the labeler says otherwise.
    said = world.predictions()
    free = {pair for pair in said if SPLITS[pair[0]] == "train" and (pair[1] != "c0" or not said[pair][1])}
    assert set(pairs) == free - set(answers)


def test_random_pairs_come_with_their_exact_probability_and_know_no_labels(world):
    rows = sample_random(world.settings, world.operations, 5, ["certify"])
    drawn = draw([name for name in SPLITS if SPLITS[name] == "certify"], list(CATALOG), [], 5)
    assert [(row.entity_id, row.candidate_id) for row in rows] == drawn.pairs
    assert {(row.design, row.inclusion_probability, row.split) for row in rows} == {(RANDOM, 5 / 20, "certify")}
    assert [row.entity_text for row in rows] == [ENTITIES[row.entity_id] for row in rows]
    both = sample_random(world.settings, world.operations, 100, ["certify", "train"])
    assert len(both) == 40 and {row.inclusion_probability for row in both} == {1.0}
    with pytest.raises(SemlabelError, match="no entity is in calibrate yet: one gets its split when a reference"):
        sample_random(world.settings, world.operations, 5, ["calibrate"])


def test_every_row_that_comes_back_is_imported_or_refused_with_its_reason(world):
    rows = sample_random(world.settings, world.operations, 20, ["certify"])
    pairs = [(row.entity_id, row.candidate_id) for row in rows]
    answers = dict(zip(pairs, ["yes", "NO", "1", "false", "maybe", "  "], strict=False))
    path = world.judged("judged.csv", rows, answers)
    table = list(csv.reader(path.open(newline="")))
    column = {name: number for number, name in enumerate(table[0])}
    changes = {7: ("entity_id", "gone"), 8: ("candidate_id", "gone"), 9: ("design", "chosen"), 10: ("design", "random")}
    for line, (name, value) in changes.items():
        table[line][column[name]], table[line][column["judgement"]] = value, "yes"
    table[10][column["inclusion_probability"]] = "1.5"
    table[11][column["entity_text_id"]], table[11][column["judgement"]] = "older", "yes"
    table.append(table[1])
    table.append(["too", "short"])
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(table)
    done = world.take(path)
    assert done.rows_in == 22 == len(done.imported) + len(done.refused)
    assert [(row.pair, row.label) for row in done.imported] == list(
        zip(pairs, (True, False, True, False), strict=False)
    )
    assert done.reasons == {
        "the judgement is neither yes nor no": 1,
        "not judged yet": 10,
        "unknown entity": 1,
        "unknown candidate": 1,
        f"the design is none of {', '.join(DESIGNS)}": 1,
        "a random pair without its inclusion probability": 1,
        "a text was changed since the export": 1,
        "duplicate: stands in the file before": 1,
        f"has 2 cells where the header has {len(table[0])}": 1,
    }
    assert done.faulty == 8
    stored = world.root / "judgements.csv"
    before = stored.read_bytes()
    again = world.take(path)
    assert not again.imported and again.reasons["already imported"] == 5 and stored.read_bytes() == before
    assert {row.inclusion_probability for row in read_judgements(world.settings)} == {1.0}


def test_label_studio_exports_come_back_in_both_of_its_forms(world):
    rows = sample_random(world.settings, world.operations, 6, ["certify"])
    write_export(world.root / "tasks.json", rows)
    tasks = json.loads((world.root / "tasks.json").read_text())
    done = [
        annotated(tasks[0], "yes", "yes"),
        annotated(tasks[1], "yes", "no"),
        annotated(tasks[2], "yes", cancelled=True),
        annotated(tasks[3], None),
        tasks[4]["data"] | {"judgement": "no", "annotator": 1},
        {"data": {"entity_id": "e4"}},
        annotated(tasks[5], "unsure"),
    ]
    (world.root / "done.json").write_text(json.dumps(done))
    found = world.take(world.root / "done.json")
    assert [(row.candidate_id, row.label) for row in found.imported] == [
        (rows[0].candidate_id, True),
        (rows[4].candidate_id, False),
    ]
    assert found.reasons == {
        "annotators disagree: no and yes": 1,
        "not judged yet": 2,
        "lacks candidate_id, design, entity_text_id, candidate_text_id of the export": 1,
        "the judgement is neither yes nor no": 1,
    }


def test_an_edited_text_makes_its_judgement_stale_at_import(world):
    rows = sample_random(world.settings, world.operations, 20, ["certify"])
    edited = rows[0].entity_id
    path = world.judged("judged.json", rows, {(row.entity_id, row.candidate_id): "yes" for row in rows})
    table = (world.root / "entities.csv").read_text().replace(ENTITIES[edited], "another text")
    (world.root / "entities.csv").write_text(table)
    done = world.take(path)
    assert done.reasons == {"a text was changed since the export": 5} and len(done.imported) == 15


def test_the_warehouse_is_only_read_and_never_while_a_run_holds_it(world):
    before = world.settings.paths.warehouse.read_bytes()
    sample_active(world.settings, world.operations, 5)
    sample_random(world.settings, world.operations, 5, ["certify"])
    assert world.settings.paths.warehouse.read_bytes() == before
    quick = world.settings.model_copy(
        update={"environment": world.settings.environment.model_copy(update={"lease_wait_seconds": 0.0})}
    )
    quick._path = world.settings.path
    with world.operations.lease(LEASE, "nightly", 0), pytest.raises(LeaseHeld, match="nightly"):
        sample_active(quick, world.operations, 5)


def test_a_damaged_judgements_file_is_named_and_never_half_read(world):
    add_judgements(world.root / "judgements.csv", [], [judgement(), judgement("e1", "c1", False, NEAR_THRESHOLD)])
    assert [row.pair for row in read_judgements(world.settings)] == [("e0", "c0"), ("e1", "c1")]
    text = (world.root / "judgements.csv").read_text()
    for damage in (
        text + "e2,c",
        text.replace("random", "picked"),
        text.replace(",yes,", ",,"),
        text.replace("0.25", ""),
    ):
        (world.root / "judgements.csv").write_text(damage)
        with pytest.raises(SourceError, match=r"judgements\.csv: line \d: .*; mend that line or take it out"):
            read_judgements(world.settings)


# --- the commands


@pytest.fixture
def project(world, monkeypatch):
    monkeypatch.chdir(world.root)
    return world


def test_the_commands_say_what_comes_next_and_refuse_what_would_flatter(command, project):
    code, out, err = command("sample", "--count", "6", "--out", "judge.csv")
    assert code == 0 and "6 pairs to judge in judge.csv" in out and "judgements import judge.csv" in err
    code, out, _ = command("sample", "--random", "--count", "4", "--out", "random.json", "--json")
    told = {"out": "random.json", "pairs": 4, "designs": {"random": 4}, "inclusion_probability": 0.2}
    assert code == 0 and json.loads(out) == told
    code, _, err = command("sample", "--split", "certify", "--out", "judge.csv")
    assert code == 2 and "pairs that the labeler picks may train but never calibrate, certify or test" in err
    for arguments, said in (
        (("--random", "--split", "all"), "--split is 'all'; expected one of train, calibrate, certify, test"),
        (("--out", "judge.xlsx"), "expected a name that ends in .csv or .json"),
    ):
        code, _, err = command("sample", "--out", "judge.csv", *arguments)
        assert code == 2 and said in err and err.count("\n") == 1
    code, out, _ = command("judgements", "import", "judge.csv", "--json")
    assert code == 0 and json.loads(out)["reasons"] == {"not judged yet": 6}
    (project.root / "broken.csv").write_text("entity_id,candidate_id\n")
    code, _, err = command("judgements", "import", "broken.csv")
    assert code == 2 and "expected entity_id, candidate_id, design" in err and err.count("\n") == 1
    (project.root / "broken.json").write_text("{")
    code, _, err = command("judgements", "import", "broken.json")
    assert code == 2 and "is no JSON" in err and err.count("\n") == 1


def test_an_import_with_faulty_rows_exits_1_and_a_project_without_a_place_says_so(command, project):
    rows = sample_random(project.settings, project.operations, 4, ["certify"])
    project.judged("judged.csv", rows, {(row.entity_id, row.candidate_id): "perhaps" for row in rows[:1]})
    code, out, err = command("judgements", "import", "judged.csv")
    assert code == 1 and "4 rows: 0 judgements imported" in out and "neither yes nor no" in err
    text = (project.root / "pipeline.toml").read_text().replace('judgements = "judgements.csv"', "")
    (project.root / "pipeline.toml").write_text(text)
    code, _, err = command("judgements", "import", "judged.csv")
    assert code == 2 and 'set [sources] judgements = "judgements.csv"' in err
    with pytest.raises(SettingsError):
        import_judgements(Path("judged.csv"), load_settings(project.root / "pipeline.toml"), project.operations)
    assert read_judgements(load_settings(project.root / "pipeline.toml")) == []


def test_the_judgements_file_is_nobody_elses(project):
    text = (project.root / "pipeline.toml").read_text()
    for other in ("references.csv", "judgements.parquet", "duckdb:a.db#SELECT 1"):
        (project.root / "pipeline.toml").write_text(text.replace("judgements.csv", other))
        with pytest.raises(SettingsError, match=r"judgements"):
            load_settings(project.root / "pipeline.toml")


def test_new_judgements_are_a_change_of_the_sources(world):
    before = source_files(world.settings.sources)
    add_judgements(world.root / "judgements.csv", [], [judgement()])
    assert source_files(world.settings.sources) == [*before, world.root / "judgements.csv"] and len(before) == 3


def test_where_the_labeler_has_labeled_no_train_entity_pairs_are_drawn_by_similarity(tmp_path):
    project = Project(tmp_path)
    assert has_labeled(project.warehouse) and pick(project.warehouse, [], "negative", 5) == []
    project.warehouse.rows("DELETE FROM active_labeler")
    assert not has_labeled(project.warehouse)
    project.close()


def test_pairs_of_tables_that_were_replaced_since_are_not_given_to_people(world):
    for name, key in (("entities.csv", "entity_id"), ("catalog.csv", "candidate_id")):
        (world.root / name).write_text(f"{key},text\nother,another text\n")
    for sample in (sample_active, lambda *given: sample_random(*given, ["certify"])):
        with pytest.raises(SemlabelError, match="5 of 5 pairs are of texts that are not in the tables any more"):
            sample(world.settings, world.operations, 5)
