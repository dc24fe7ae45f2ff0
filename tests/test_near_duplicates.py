"""Near-duplicates: whatever all texts have in common, no two that are two words apart are missed, at a bounded cost."""

import random

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semlabel import near_duplicates
from semlabel.near_duplicates import Groups, near_duplicate_links
from semlabel.splits import find_leaks

WORDS = [f"word{number}" for number in range(2_000)]


def some(seed: object, length: int, words: list[str] = WORDS) -> list[str]:
    return random.Random(str(seed)).choices(words, k=length)


def edited(words: list[str], edits: int, chance: random.Random) -> list[str]:
    words = list(words)
    for number in range(edits):
        at = chance.randrange(len(words))
        words[at : at + chance.randint(0, 1)] = chance.choice(([], [f"new{number}"]))
    return words


def around(common: list[str], own: list[str], place: str) -> str:
    """`own` with what all texts have in common before, behind or on both sides of it."""
    before = {"start": len(common), "end": 0, "both": len(common) // 2}[place]
    return " ".join([*common[:before], *own, *common[before:]])


@pytest.mark.parametrize("place", ["start", "end", "both"])
@pytest.mark.parametrize(("common", "length"), [(5, 14), (12, 20), (20, 28), (36, 45), (300, 312)])
def test_what_all_texts_begin_or_end_with_hides_no_copy(common, length, place):
    chance, shared = random.Random(length), some("shared", common)
    owns = [some(f"{length} {number}", length - common) for number in range(150)]
    originals = [around(shared, own, place) for own in owns]
    copies = [around(shared, edited(own, 2, chance), place) for own in owns]
    links = near_duplicate_links(originals + copies)
    assert sorted(links) == [(number, number + 150) for number in range(150)]


def test_a_leak_behind_a_common_opener_is_found():
    opener = "hello support team i have"
    owns = {f"e{number:03}": some(number, 9) for number in range(200)}
    copy = [*owns["e007"][:2], "other", *owns["e007"][3:7], "another", owns["e007"][8]]
    texts = {key: f"{opener} {' '.join(own)}" for key, own in (owns | {"copy": copy}).items()}
    table = pd.DataFrame({"entity_id": list(texts), "text": list(texts.values()), "split": "train"})
    table.loc[table["entity_id"] == "copy", "split"] = "certify"
    assert find_leaks(table) == [("e007", "copy", "train", "certify")]


def apart(first: list[str], second: list[str]) -> int:
    """How many words replaced, added or removed turn one into the other."""
    row = list(range(len(second) + 1))
    for i, word in enumerate(first, 1):
        before, row = row, [i]
        for j, other in enumerate(second, 1):
            row.append(min(before[j] + 1, row[-1] + 1, before[j - 1] + (word != other)))
    return row[-1]


def alike(first: list[str], second: list[str]) -> bool:
    shingles = [{tuple(words[at : at + 3]) for at in range(len(words) - 2)} for words in (first, second)]
    similar = len(shingles[0] & shingles[1]) / len(shingles[0] | shingles[1]) >= 0.8
    return similar or (min(len(first), len(second)) >= 12 and apart(first, second) <= 2)


def partition(size: int, links) -> list[int]:
    groups = Groups(size)
    for first, second in links:
        groups.join(first, second)
    return [groups.find(position) for position in range(size)]


@settings(max_examples=40)
@given(
    seed=st.integers(0, 10**6),
    common=st.integers(0, 16),
    own=st.integers(3, 12),
    vocabulary=st.integers(3, 60),
    place=st.sampled_from(["start", "end", "both"]),
)
def test_the_groups_are_those_that_comparing_every_pair_finds(seed, common, own, vocabulary, place):
    # 50 texts: more than are compared in one bucket, and not so many that anything counts as boilerplate.
    chance = random.Random(seed)
    shared = some(seed, common)
    texts = [around(shared, chance.choices(WORDS[:vocabulary], k=max(own, 10 - common)), place) for _ in range(30)]
    texts += [" ".join(edited(chance.choice(texts).split(), chance.randint(0, 3), chance)) for _ in range(20)]
    words = [text.split() for text in texts]
    pairs = [(a, b) for b in range(50) for a in range(b) if alike(words[a], words[b])]
    links = near_duplicate_links(texts)
    assert set(links) <= set(pairs)
    assert partition(50, links) == partition(50, pairs)


@pytest.mark.parametrize(
    ("own", "vocabulary"),
    [(9, 2_000), (9, 150), (2, 2_000), (3, 40)],
    ids=["many words", "few words", "one family", "one family by links"],
)
def test_many_texts_with_one_opener_cost_no_square(monkeypatch, own, vocabulary):
    compared = []
    few_words_apart = near_duplicates._few_words_apart

    def counted(first, second):
        compared.append(1)
        return few_words_apart(first, second)

    monkeypatch.setattr(near_duplicates, "_few_words_apart", counted)
    opener = some("opener", 14)
    texts = list({" ".join([*opener, *some(f"{own} {number}", own, WORDS[:vocabulary])]) for number in range(4_000)})
    links = near_duplicate_links(sorted(texts))
    assert len(compared) < 60 * len(texts)
    if own <= 3:
        assert len(links) == len(texts) - 1
