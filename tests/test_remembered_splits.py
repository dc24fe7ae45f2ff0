"""Splits for good: who leaves for a night comes back to the split it was in, so that a proven bound stays honest."""

import random
from collections import Counter
from collections.abc import Mapping
from datetime import timedelta

import pandas as pd
import pytest

from semlabel.compaction import compact
from semlabel.erase_warehouse import erase_entity
from semlabel.errors import SourceError
from semlabel.remembered_splits import assign_for_good, remembered
from semlabel.retention import purge
from semlabel.settings import Splits
from semlabel.splits import HELD_OUT, SplitResult, assign_splits
from semlabel.warehouse import Warehouse
from tests.pipeline_fixtures import run, verdicts

SIZES = Splits(calibrate=8, certify=10, test=6)
WORDS = [f"word{number}" for number in range(500)]


def text(seed: object) -> str:
    return " ".join(random.Random(str(seed)).choices(WORDS, k=20))


ALL = {f"e{number:03}": text(number) for number in range(60)}


def frame(texts: Mapping[str, str]) -> pd.DataFrame:
    return pd.DataFrame({"entity_id": list(texts), "text": list(texts.values())}, dtype="str")


class Nights:
    """A warehouse, and nights on which its source has some texts. `first` is what was drawn on the first night."""

    def __init__(self, warehouse: Warehouse) -> None:
        self.warehouse = warehouse
        self.first = self.night(ALL).split

    def night(self, texts: Mapping[str, str], sizes: Splits = SIZES) -> SplitResult:
        table = frame(texts)
        result = assign_for_good(self.warehouse, table, sizes)
        self.warehouse.replace_entities(table.assign(split=table["entity_id"].map(result.split)), "run")
        return result

    def of(self, *splits: str) -> dict[str, str]:
        """The texts of the entities that were drawn for these splits."""
        return {entity_id: ALL[entity_id] for entity_id, split in self.first.items() if split in splits}

    def one_of(self, split: str) -> str:
        return min(self.of(split))

    def memory(self) -> list[tuple]:
        return self.warehouse.rows("SELECT * FROM remembered_splits ORDER BY entity_id")


@pytest.fixture
def nights(tmp_path):
    with Warehouse.open(tmp_path / "warehouse.duckdb", threads=1) as warehouse:
        yield Nights(warehouse)


def moved(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    return {key: (before[key], split) for key, split in after.items() if key in before and before[key] != split}


def test_what_certified_does_not_calibrate_after_a_night_on_which_it_was_away(nights):
    # Certify and calibrate are away, then certify is back: there is room in calibrate.
    nights.night(nights.of("train", "test"))
    present = nights.of("train", "test", "certify")
    forgetful = assign_splits(frame(present), SIZES, {key: nights.first[key] for key in nights.of("train", "test")})
    assert Counter(moved(nights.first, forgetful.split).values())["certify", "calibrate"] >= 8
    assert moved(nights.first, nights.night(present).split) == {}
    assert nights.night(ALL).split == nights.first


@pytest.mark.parametrize("away", ["train", *HELD_OUT])
def test_nobody_comes_back_to_another_split_though_new_entities_took_the_places(nights, away):
    new = {f"n{number:02}": text(f"new {number}") for number in range(20)}
    some = set(sorted(nights.of(away))[1:])  # one stays, so that there is somebody left to train on
    during = nights.night({key: value for key, value in ALL.items() if key not in some} | new)
    taken = {name for name, split in during.split.items() if name in new and split == away}
    assert taken and moved(nights.first, during.split) == {}
    after = nights.night(ALL | new)
    assert moved(nights.first, after.split) == moved(during.split, after.split) == {}
    assert Counter(after.split.values())[away] == len(nights.of(away)) + len(taken)


def test_places_are_filled_from_new_entities_when_a_split_is_to_be_larger(nights):
    away = set(list(nights.of("certify"))[:4])
    nights.night({key: value for key, value in ALL.items() if key not in away})
    new = {f"n{number:02}": text(f"new {number}") for number in range(20)}
    larger = SIZES.model_copy(update={"certify": 15})
    after = nights.night(ALL | new, larger)
    assert moved(nights.first, after.split) == {} and after.notes == []
    assert Counter(after.split.values()) == {"train": 36 + 15, "calibrate": 8, "certify": 15, "test": 6}
    smaller = nights.night(ALL | new, Splits(calibrate=1, certify=1, test=1))
    assert smaller.split == after.split


def test_another_seed_moves_nobody_and_says_so_until_it_has_drawn_somebody(nights):
    other = SIZES.model_copy(update={"seed": 8})
    assert assign_splits(frame(ALL), other).split != nights.first
    told = nights.night(ALL, other)
    assert told.split == nights.first and "seed 8 moves nobody" in told.notes[0] and "with seed 7" in told.notes[0]
    new = ALL | {"n": text("new")}
    assert len(nights.night(new, other).notes) == 1 and nights.night(new, other).notes == []
    assert nights.night(new, other).split == nights.first | {"n": "train"}


PLACEHOLDER = "the profile of this person is not available at the moment please try again later or ask somebody"


def test_a_night_of_placeholders_leaves_nobody_out_for_longer(nights):
    some = {min(nights.of(split)) for split in ("train", *HELD_OUT)} | set(list(nights.of("train"))[-2:])
    placeholders = dict.fromkeys(some, PLACEHOLDER)
    before = nights.memory()
    during = nights.night(ALL | placeholders | {"new": PLACEHOLDER})
    assert {key for key, split in during.split.items() if split == ""} == {*some, "new"}
    later = nights.night(ALL | placeholders | {"new": PLACEHOLDER, "newer": PLACEHOLDER})
    assert {key for key, split in later.split.items() if split == ""} == {*some, "new", "newer"}
    assert nights.memory() == before
    after = nights.night(ALL | {"new": text("new"), "newer": text("newer")})
    assert after.split == nights.first | {"new": "train", "newer": "train"}
    assert after.notes == []


def test_who_is_alike_across_splits_stays_out_as_long_as_it_is_whoever_was_away(nights):
    trained, tested = nights.one_of("train"), nights.one_of("test")
    twin = ALL | {tested: f"{ALL[trained]} again"}
    out = {trained: "", tested: ""}
    assert nights.night(twin).split == nights.first | out
    assert nights.night(twin).split == nights.first | out
    nights.night({key: value for key, value in twin.items() if key not in out})
    assert nights.night(twin).split == nights.first | out
    assert nights.night(ALL).split == nights.first
    assert nights.night(twin).split == nights.first | out


@pytest.mark.parametrize("judges", HELD_OUT)
def test_who_took_over_the_text_of_another_split_judges_nothing_by_it_once_that_one_has_moved_on(nights, judges):
    trained, taker = nights.one_of("train"), nights.one_of(judges)
    taken = ALL | {taker: ALL[trained]}
    assert nights.night(taken).split == nights.first | {trained: "", taker: ""}
    moved_on = taken | {trained: text("moved on")}
    told = nights.night(moved_on)
    assert told.split == nights.first | {taker: ""}
    assert f"left out while it keeps its text: {taker} of {judges} took it over from train" in told.notes
    nights.night({key: value for key, value in moved_on.items() if key != taker})
    assert nights.night(moved_on).split == nights.first | {taker: ""}
    assert nights.night(moved_on | {taker: text("of its own")}).split == nights.first
    assert nights.night(ALL).split == nights.first


@pytest.mark.parametrize("judges", HELD_OUT)
def test_whose_text_another_one_had_for_a_night_judges_by_it_as_before(nights, judges):
    trained, owner = nights.one_of("train"), nights.one_of(judges)
    assert nights.night(ALL | {trained: ALL[owner]}).split == nights.first | {trained: "", owner: ""}
    for _ in range(2):
        assert nights.night(ALL | {trained: text("moved on")}).split == nights.first


def test_a_night_on_which_every_text_stood_in_the_next_row_moves_nobody(nights):
    shifted = dict(zip(ALL, [*list(ALL.values())[1:], ALL["e000"]], strict=True))
    for texts in (shifted, ALL, ALL):
        assert nights.night(texts).split == nights.first


@pytest.mark.parametrize("split", ["train", *HELD_OUT])
def test_a_text_that_comes_back_under_another_id_stands_in_the_split_it_stood_in(nights, split):
    gone = nights.one_of(split)
    without = {key: value for key, value in ALL.items() if key != gone}
    nights.night(without)
    result = nights.night(without | {"renamed": ALL[gone]})
    assert result.split["renamed"] == split and moved(nights.first, result.split) == {}
    assert nights.night(ALL | {"renamed": ALL[gone]}).split[gone] == split


def test_the_text_an_entity_had_before_it_was_edited_stands_where_it_stood(nights):
    edited = nights.one_of("certify")
    nights.night(ALL | {edited: text("edited")})
    assert nights.night(ALL | {edited: text("edited"), "heir": ALL[edited]}).split["heir"] == "certify"


def test_a_new_id_whose_text_stood_in_two_splits_is_left_out_and_noted(nights):
    trained, certified = nights.one_of("train"), nights.one_of("certify")
    without = {key: value for key, value in ALL.items() if key not in (trained, certified)}
    nights.night(without)
    nights.night(without | {certified: ALL[trained]})
    nights.night(without)
    result = nights.night(without | {"heir": ALL[trained]})
    assert result.split["heir"] == ""
    assert "left out: heir is new, but its text stood in certify and train under other ids" in result.notes


def test_ids_are_remembered_byte_for_byte(nights):
    ids = ["007", "7", "1e5", "nan", "NULL", "é", "e\u0301", "E000", " e000", "e000 ", "1234567890123456", "'\";--"]
    rows = {entity_id: text(f"strange {entity_id!r}") for entity_id in ids}
    drawn = nights.night(ALL | rows, Splits(calibrate=14, certify=12, test=8)).split
    assert {key: split for key, split in remembered(nights.warehouse).items() if key in rows} == {
        key: drawn[key] for key in rows
    }
    assert len({drawn[key] for key in rows}) > 1
    nights.night(ALL)
    assert nights.night(ALL | rows).split == drawn


def test_an_unchanged_night_writes_nothing(nights):
    before = nights.memory()
    assert len(before) == 60 and {row[2] for row in before} == {"7"}
    nights.night(ALL)
    nights.night(nights.of("train"))
    assert nights.memory() == before


def test_what_could_not_be_drawn_is_not_remembered(tmp_path):
    with Warehouse.open(tmp_path / "warehouse.duckdb", threads=1) as warehouse:
        with pytest.raises(SourceError, match="20 entities cannot give 8 calibrate"):
            assign_for_good(warehouse, frame(dict(list(ALL.items())[:20])), SIZES)
        assert remembered(warehouse) == {}


def test_neither_a_purge_nor_a_compaction_forgets_whom_the_source_lost(tmp_path):
    path = tmp_path / "warehouse.duckdb"
    with Warehouse.open(path, threads=1) as warehouse:
        nights = Nights(warehouse)
        nights.night(nights.of("train", "test"))
        purge(warehouse, timedelta(0))
        purge(warehouse, timedelta(0))
        assert warehouse.rows("SELECT count(*) FROM former_texts") == [(0,)]
    assert compact(path, 0).skipped is None
    with Warehouse.open(path, threads=1) as warehouse:
        assert assign_for_good(warehouse, frame(ALL), SIZES).split == nights.first


def test_an_erased_entity_is_not_remembered_and_nobody_else_is_forgotten(nights):
    erased = nights.one_of("certify")
    nights.night({key: value for key, value in ALL.items() if key != erased})
    erase_entity(nights.warehouse, erased)
    assert remembered(nights.warehouse) == {key: split for key, split in nights.first.items() if key != erased}


# Through the pipeline


def splits_of(project) -> dict[str, str]:
    with project.warehouse() as warehouse:
        return dict(warehouse.rows("SELECT entity_id, split FROM entities"))


def test_nights_without_entities_or_without_their_references_move_nobody(first_run, instance, tmp_path):
    project = first_run[0].copied(tmp_path / "labeled")
    first, rows, references = splits_of(project), project.entities(), project.references()
    assert set(first.values()) == {"train", *HELD_OUT}

    def night(entities: set[str], referenced: set[str]) -> dict[str, str]:
        project.write_entities(row for row in rows if first[row["entity_id"]] in entities)
        project.write_references(row for row in references if first[row["entity_id"]] in referenced)
        assert run(project, instance, select=["entities"]).success
        return splits_of(project)

    whole = {"train", *HELD_OUT}
    night({"train", "test"}, whole)
    assert moved(first, night({"train", "test", "certify"}, whole)) == {}
    # Without references they judge nothing, and stand nowhere.
    without = night(whole, {"train", "test"})
    assert {without[key] for key, split in first.items() if split in ("calibrate", "certify")} == {""}
    without = night(whole, {"train", "test", "certify"})
    assert {without[key] for key, split in first.items() if split == "certify"} == {"certify"}
    assert night(whole, whole) == first


def test_after_a_night_of_placeholders_everybody_stands_where_it_stood(first_run, instance, tmp_path):
    project = first_run[0].copied(tmp_path / "labeled")
    first, rows = splits_of(project), project.entities()
    some = {min(key for key, split in first.items() if split == name) for name in ("train", *HELD_OUT)}
    text = "the profile of this person is not available now"
    project.write_entities(row | ({"text": text} if row["entity_id"] in some else {}) for row in rows)
    night = run(project, instance, select=["entities"])
    assert verdicts(night)["entities_contract"]
    assert splits_of(project) == first | dict.fromkeys(some, "")
    project.write_entities(rows)
    assert verdicts(run(project, instance, select=["entities"]))["entities_contract"]
    assert splits_of(project) == first


def test_an_entity_in_another_split_than_it_was_given_breaks_the_contract(first_run, instance, tmp_path):
    project = first_run[0].copied(tmp_path / "labeled")
    assert run(project, instance, select=["entities"]).success
    with Warehouse.open(project.settings.paths.warehouse) as warehouse:
        table = warehouse.entities().drop(columns="text_id")
        table.loc[table["split"] == "calibrate", "split"] = "certify"
        warehouse.replace_entities(table, "a careless script")
    from assets.contracts import ENTITIES, findings

    with project.warehouse() as warehouse:
        (broken,) = findings(warehouse, ENTITIES).violations
    assert (broken["rows"], broken["rule"][:39]) == (14, "every entity stands in the split it was")
