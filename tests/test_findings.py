"""Findings: what is too thin is said before a run, with the setting to look at; what is enough is not complained of."""

import pandas as pd
import pytest

from semlabel.bounds import binomial_upper
from semlabel.families import largest_family
from semlabel.findings import faultless_labels, find, least_auc
from semlabel.settings import Settings


def settings(**sections):
    return Settings.model_validate(
        {
            "sources": {"entities": "e.csv", "catalog": "c.csv", "references": "r.csv"} | sections.pop("sources", {}),
            "model": {"base": "absent"},
            "prompt": {"template": "{entity} {candidate}"} | sections.pop("prompt", {}),
            "calibration": {"min_precision": 0.6, "min_expected_flagged": 1},
            "splits": {"calibrate": 2, "certify": 3, "test": 1},
        }
        | sections
    )


def tables(entities=12, candidates=2, yes=((0, 0),), no=()):
    return (
        pd.DataFrame(
            {
                "entity_id": [f"e{n}" for n in range(entities)],
                "text": [f"entity {'xyz' * (n + 1)}" for n in range(entities)],
            }
        ),
        pd.DataFrame(
            {
                "candidate_id": [f"c{n}" for n in range(candidates)],
                "text": [f"candidate {n}" for n in range(candidates)],
            }
        ),
        pd.DataFrame(
            [(f"e{e}", f"c{c}", label) for pairs, label in ((yes, True), (no, False)) for e, c in pairs],
            columns=["entity_id", "candidate_id", "label"],
        ).astype({"label": bool}),
    )


def advice(*frames, **sections):
    return "\n".join(find(settings(**sections), *frames).advice)


def test_counts_are_those_of_the_tables():
    entities, catalog, references = tables(yes=[(n, 0) for n in range(12)], no=[(0, 1)])
    entities.loc[1, "text"] = entities.loc[0, "text"]
    found = find(settings(), entities, catalog, references)
    assert (found.positives, found.negatives, found.judged_entities) == (12, 1, 12)
    assert found.positives_per_candidate == {"c0": 12, "c1": 0}
    assert found.same_texts == {"entities": 1, "candidates": 0}
    assert sum(split["entities"] for split in found.splits.values()) == 12
    assert sum(split["positives"] for split in found.splits.values()) == 12
    assert found.splits["certify"]["entities"] in (3, 4)
    assert found.scripts == {"Latin": 1.0}
    assert found.to_json()["candidates_with_few_positives"] == ["c1"]


def test_ids_that_do_not_meet_are_counted_by_reason():
    frames = tables(yes=[(n, 0) for n in range(12)] + [(99, 0), (0, 7)], no=[(0, 0)])
    found = find(settings(), *frames)
    assert found.unusable == {
        "unknown entity": 1,
        "unknown candidate": 1,
        "contradictory: listed as YES and as NO": 2,
    }
    assert "4 references cannot be used" in found.advice[0]


def test_nothing_to_learn_from_is_said_first_and_alone():
    assert advice(*tables(yes=(), no=[(n, 0) for n in range(12)])) == (
        "No reference says YES: nothing can be learned. Check the label column in [sources.columns]."
    )


def test_more_held_out_than_there_is_names_the_splits():
    assert "lower [splits]" in advice(*tables(entities=4, yes=[(n, 0) for n in range(4)]))


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({"prompt": {"max_query_tokens": 9}}, "[prompt] max_query_tokens = 9"),
        ({"prompt": {"max_item_tokens": 2}}, "[prompt] max_item_tokens = 2"),
        ({"sources": {"unlisted": "unknown"}}, 'unlisted = "unknown", but no reference says NO'),
        ({"calibration": {"min_precision": 0.9}}, "needs 29 correct labels in certify"),
        ({"calibration": {"max_fpr": 0.1}}, "calibrate has"),
        ({"calibration": {"min_precision": 0.4}}, "is kept by saying YES to everything (50.0% of the pairs are YES)"),
        ({}, "1 candidates have fewer than 5 YES (c1)"),
        ({}, "YES to train on"),
        ({}, "certify has"),
        ({}, "is needed there to show [gates] min_auc = 0.9. Raise [splits] calibrate"),
    ],
)
def test_what_is_too_thin_names_its_setting(sections, said):
    assert said in advice(*tables(yes=[(n, 0) for n in range(12)]), **sections)


def test_enough_of_everything_is_not_complained_of():
    yes = [(n, n % 2) for n in range(400)]
    splits = {"calibrate": 60, "certify": 80, "test": 20}
    frames = tables(entities=400, yes=yes)
    frames[0]["text"] = [f"{n} {n * 7919} {n * 104729} {n * 1299709} of its own" for n in range(400)]
    assert advice(*frames, splits=splits, gates={"min_auc": 0.0}) == ""


@pytest.mark.parametrize(
    ("limit", "positives", "negatives", "auc"),
    [
        (0.9, 82, 2_138, 0.94),
        (0.9, 1_000, 11_000, 0.915),
        (0.9, 5, 5, 0.985),
        (0.999, 5, 5, 1.0),
        (0.9, 0, 100, None),
        (0.0, 5, 5, 0.0),
    ],
)
def test_the_auc_that_is_needed_is_further_above_its_limit_where_few_pairs_are_judged(limit, positives, negatives, auc):
    assert least_auc(limit, positives, negatives, 0.95) == auc


def test_an_auc_that_hundreds_of_yes_can_show_is_not_warned_of():
    frames = tables(entities=400, yes=[(n, n % 2) for n in range(400)])
    splits = {"calibrate": 300, "certify": 20, "test": 20}
    assert "min_auc" in advice(*frames, splits=splits | {"calibrate": 60})
    assert "min_auc" not in advice(*frames, splits=splits)


def with_family(size, entities=100):
    """Tables in which the first `size` entities differ in two words of many, and the others in all."""
    frames = tables(entities=entities, yes=[(n, n % 2) for n in range(entities)])
    shared = " ".join(f"{n * 7919}" for n in range(40))
    frames[0]["text"] = [
        f"plugin {n} {shared}" if n < size else " ".join(f"{n}x{n * word}" for word in range(1, 14))
        for n in range(entities)
    ]
    return frames


def test_a_family_of_near_duplicates_that_is_much_of_what_trains_is_told_with_its_split():
    found = find(settings(splits={"calibrate": 10, "certify": 10, "test": 10}), *with_family(35))
    assert found.advice[-1] == (
        "The largest family of near-duplicates has 35 entities (e0, e1, e10 and 32 more), 35% of those that are split: "
        "all in train (50% of it). They stay together and teach hardly more than one of them; leave some out of the "
        "references if that is not meant."
    )
    assert found.to_json()["largest_family"]["in_split"] == {"train": 35}


@pytest.mark.parametrize(("size", "entities"), [(9, 100), (10, 201), (1, 100)])
def test_a_family_that_is_small_or_a_small_part_is_not_told(size, entities):
    frames = with_family(size, entities)
    found = find(settings(splits={"calibrate": 10, "certify": 10, "test": 10}), *frames)
    assert "near-duplicates" not in "".join(found.advice)
    told = found.largest_family
    assert (told and told["entities"]) == (size if size > 1 else None)


def test_a_family_across_two_splits_is_told_as_left_out():
    groups = {f"e{n:02}": 1 if n < 12 else n for n in range(40)}
    family = largest_family(groups, {name: "" if group == 1 else "train" for name, group in groups.items()})
    assert family.large and "30% of those that are split: 12 left out." in family.sentence()


@pytest.mark.parametrize(("ceiling", "confidence", "count"), [(0.1, 0.95, 29), (0.05, 0.95, 59), (0.5, 0.95, 5)])
def test_the_faultless_count_is_where_the_bound_meets_the_limit(ceiling, confidence, count):
    assert faultless_labels(ceiling, confidence) == count
    assert float(binomial_upper(0.0, float(count), 1 - confidence)) <= ceiling
    assert float(binomial_upper(0.0, float(count - 1), 1 - confidence)) > ceiling
