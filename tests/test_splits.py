"""Splits: disjoint, the asked sizes, near-duplicates together, and the same tomorrow."""

import random
from collections import Counter

import pandas as pd
import pytest

from semlabel.errors import SourceError
from semlabel.near_duplicates import near_duplicate_links
from semlabel.settings import Splits
from semlabel.splits import assign_splits, find_leaks

WORDS = [f"word{number}" for number in range(2_000)]
SIZES = Splits(calibrate=40, certify=50, test=50)


def text(seed: object, length: int = 60) -> str:
    return " ".join(random.Random(str(seed)).choices(WORDS, k=length))


def table(count: int, **extra: str) -> pd.DataFrame:
    texts = {f"e{number:04d}": text(number) for number in range(count)} | extra
    return pd.DataFrame({"entity_id": list(texts), "text": list(texts.values())}, dtype="str")


def with_splits(entities: pd.DataFrame, split: dict[str, str]) -> pd.DataFrame:
    return entities.assign(split=entities["entity_id"].map(split))


def test_whole_numbers_give_exactly_that_many_entities():
    result = assign_splits(table(400), SIZES)
    assert Counter(result.split.values()) == {"train": 260, "calibrate": 40, "certify": 50, "test": 50}
    assert result.notes == []


def test_fractions_are_shares_of_all_entities():
    result = assign_splits(table(200), Splits(calibrate=0.1, certify=0.15, test=0.1))
    assert Counter(result.split.values()) == {"train": 130, "calibrate": 20, "certify": 30, "test": 20}


def test_neither_the_order_of_rows_nor_other_entities_texts_decide():
    entities = table(300)
    shuffled = entities.sample(frac=1.0, random_state=1)
    first, second = assign_splits(entities, SIZES), assign_splits(shuffled, SIZES)
    assert first.split == second.split
    assert first.groups == second.groups
    assert assign_splits(entities, SIZES.model_copy(update={"seed": 8})).split != first.split


def test_an_empty_table_gives_empty_splits():
    assert assign_splits(table(0), SIZES).split == {}
    assert find_leaks(with_splits(table(0), {})) == []


BASE = text("base", 40)
VARIANTS = {
    "case": BASE.upper(),
    "spacing": f"  {BASE.replace(' ', '   ', 5)}\n",
    "one word replaced": BASE.replace(BASE.split()[20], "other"),
    "one word added": f"{BASE} more",
    "one word removed": BASE.partition(" ")[2],
    "two words replaced": BASE.replace(BASE.split()[10], "other").replace(BASE.split()[30], "another"),
}


@pytest.mark.parametrize("kind", VARIANTS)
@pytest.mark.parametrize("length", [12, 40])
def test_near_duplicates_are_found_whatever_changed(kind, length):
    if length == 12:
        short = text("short", 12)
        words = short.split()
        variants = {
            "case": short.title(),
            "spacing": short.replace(" ", "\t"),
            "one word replaced": short.replace(words[6], "other"),
            "one word added": f"{short} more",
            "one word removed": " ".join([*words[1:], "x"]),
            "two words replaced": short.replace(words[0], "other").replace(words[11], "another"),
        }
        pair = [short, variants[kind]]
    else:
        pair = [BASE, VARIANTS[kind]]
    others = [text(f"other {number}", length) for number in range(20)]
    assert near_duplicate_links([*others[:10], pair[0], *others[10:], pair[1]]) == [(10, 21)]


def edited(words: list[str], edits: int, generator: random.Random) -> list[str]:
    words = list(words)
    for number in range(edits):
        at = generator.randrange(len(words))
        words[at : at + generator.randint(0, 1)] = generator.choice(([], [f"new{number}"]))
    return words


@pytest.mark.parametrize("length", [14, 20, 28, 33, 60, 120])
def test_two_words_are_never_enough_to_hide_a_copy(length):
    generator = random.Random(length)
    originals = [text(f"{length} {number}", length) for number in range(60)]
    copies = [" ".join(edited(original.split(), 2, generator)) for original in originals]
    assert sorted(near_duplicate_links(originals + copies)) == [(number, number + 60) for number in range(60)]


def test_texts_that_only_share_a_topic_or_are_short_stay_apart():
    half = text("half", 30)
    assert near_duplicate_links([f"{half} {text('a', 30)}", f"{half} {text('b', 30)}"]) == []
    assert near_duplicate_links(["registered nurse", "registered dentist", "nurse", ""]) == []


def test_boilerplate_on_every_profile_makes_no_duplicates_and_hides_none():
    boilerplate = text("boilerplate", 300)
    texts = [f"{text(number, 30)} {boilerplate}" for number in range(100)]
    texts.append(texts[7].replace(texts[7].split()[3], "other"))
    assert near_duplicate_links(texts) == [(7, 100)]


def test_a_big_family_is_linked_without_looking_at_all_its_pairs():
    family = [BASE.replace(BASE.split()[20], f"name{number}") for number in range(40)]
    links = near_duplicate_links(family + [text(number, 40) for number in range(1_000)])
    assert len(links) == 39
    assert {position for link in links for position in link} == set(range(40))


def test_near_duplicates_never_stand_on_both_sides():
    originals = table(300)
    extra = {f"d{number:04d}": originals["text"][number].upper() + " more" for number in range(0, 300, 3)}
    entities = table(300, **extra)
    result = assign_splits(entities, SIZES)
    for number in range(0, 300, 3):
        assert result.split[f"d{number:04d}"] == result.split[f"e{number:04d}"]
        assert result.groups[f"d{number:04d}"] == result.groups[f"e{number:04d}"]
    assert len(set(result.groups.values())) == 300
    sizes = Counter(result.split.values())
    # Never fewer than asked, and a pair can go over by one.
    assert all(
        wanted <= sizes[name] <= wanted + 1 for name, wanted in (("calibrate", 40), ("certify", 50), ("test", 50))
    )
    assert find_leaks(with_splits(entities, result.split)) == []


def test_a_leak_is_found_and_both_sides_named():
    entities = table(50, copy=text(7).title())
    split = dict.fromkeys(entities["entity_id"], "train") | {"copy": "test"}
    assert find_leaks(with_splits(entities, split)) == [("e0007", "copy", "train", "test")]
    assert find_leaks(with_splits(entities, split | {"copy": ""})) == []


def test_a_family_of_look_alikes_is_not_most_of_a_held_out_split():
    family = {f"f{number:02d}": BASE.replace(BASE.split()[20], f"name{number}") for number in range(30)}
    for seed in range(5):
        result = assign_splits(table(300, **family), SIZES.model_copy(update={"seed": seed}))
        assert {result.split[key] for key in family} == {"train"}


def test_assignments_stay_and_only_new_entities_fill_up():
    before = assign_splits(table(300), SIZES)
    larger = Splits(calibrate=45, certify=50, test=50)
    after = assign_splits(table(330), larger, previous=before.split)
    assert all(after.split[entity_id] == split for entity_id, split in before.split.items())
    assert Counter(after.split.values()) == {"train": 185, "calibrate": 45, "certify": 50, "test": 50}
    assert {key: after.groups[key] for key in before.groups} == before.groups


def test_a_split_that_cannot_grow_says_so_and_moves_nobody():
    before = assign_splits(table(300), SIZES)
    after = assign_splits(table(300), Splits(calibrate=60, certify=50, test=50), previous=before.split)
    assert after.split == before.split
    assert after.notes == ["calibrate has 40 of 60 entities: assignments stay, and no new entity is left for it"]


def test_a_new_near_duplicate_joins_its_twin():
    before = assign_splits(table(300), SIZES)
    held_out = next(entity_id for entity_id, split in before.split.items() if split == "certify")
    twin = {"a twin": table(300).set_index("entity_id")["text"][held_out].upper()}
    after = assign_splits(table(300, **twin), SIZES, previous=before.split)
    assert after.split["a twin"] == "certify"


def test_entities_that_grow_alike_across_splits_are_left_out_and_noted_as_long_as_they_are_alike():
    before = assign_splits(table(300), SIZES)
    trained = next(key for key, split in before.split.items() if split == "train")
    tested = next(key for key, split in before.split.items() if split == "test")
    edited = table(300, twin=text("twin"))
    same = edited.set_index("entity_id")["text"][trained]
    edited.loc[edited["entity_id"].isin([tested, "twin"]), "text"] = same
    after = assign_splits(edited, SIZES, previous=before.split)
    assert [after.split[key] for key in (trained, tested, "twin")] == ["", "", ""]
    assert after.astride == {trained, tested, "twin"}
    assert len(after.notes) == 2
    assert "near-duplicates in test and train: " in after.notes[0]
    assert trained in after.notes[0] and tested in after.notes[0]
    assert after.notes[1] == "test has 49 of 50 entities: assignments stay, and no new entity is left for it"
    again = assign_splits(table(300), SIZES, previous=before.split)
    assert (again.split, again.astride, again.notes) == (before.split, frozenset(), [])


def test_who_is_left_out_for_good_stays_out():
    before = assign_splits(table(300), SIZES)
    gone = next(key for key, split in before.split.items() if split == "test")
    again = assign_splits(table(300), SIZES, previous=before.split | {gone: ""})
    assert again.split == before.split | {gone: ""}
    assert again.astride == frozenset()


def test_too_few_entities_are_refused_with_the_numbers():
    with pytest.raises(SourceError, match="140 entities cannot give 40 calibrate"):
        assign_splits(table(140), SIZES)
    family = {f"f{number:03d}": BASE.replace(BASE.split()[20], f"name{number}") for number in range(45)}
    with pytest.raises(SourceError, match="too many are near-duplicates"):
        assign_splits(table(100, **family), SIZES)
