"""Pairs: what trains and what is judged, and what a pair means that nobody listed."""

import numpy as np
import pandas as pd
import pytest

from semlabel.pairs import build_training_pairs, cross_product_labels, select_catalog
from semlabel.settings import Settings


def settings_with(unlisted: str = "negative", **training: object) -> Settings:
    return Settings.model_validate(
        {
            "sources": {"entities": "e", "catalog": "c", "references": "r", "unlisted": unlisted},
            "model": {"base": "base"},
            "prompt": {"template": "{entity} {candidate}"},
            "calibration": {"min_precision": 0.5},
            "training": {"items_per_round": 20, "positive_fraction": 0.25, "hard_fraction": 0.5, **training},
        }
    )


def entities_with(**split: str) -> pd.DataFrame:
    return pd.DataFrame({"entity_id": list(split), "split": list(split.values())}, dtype="str")


def catalog_of(count: int, groups: int) -> pd.DataFrame:
    return pd.DataFrame(
        {"candidate_id": [f"c{n:03d}" for n in range(count)], "group": [f"g{n % groups}" for n in range(count)]},
        dtype="str",
    )


def references_of(*rows: tuple[str, str, bool]) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "entity_id": pd.Series([row[0] for row in rows], dtype="str"),
            "candidate_id": pd.Series([row[1] for row in rows], dtype="str"),
            "label": pd.Series([row[2] for row in rows], dtype="bool"),
        }
    )


CATALOG = catalog_of(100, 10)
ENTITIES = entities_with(a="train", b="train", held="test", unjudged="train", out="")
REFERENCES = references_of(
    *[("a", f"c{n:03d}", True) for n in (0, 10, 20, 30, 40, 50, 60)],
    ("a", "c070", False),
    ("b", "c001", True),
    ("held", "c002", True),
    ("held", "c003", False),
    ("out", "c004", True),
)


def test_a_round_is_full_and_made_as_the_settings_say():
    pairs = build_training_pairs(ENTITIES, CATALOG, REFERENCES, settings_with())
    own = pairs[pairs["entity_id"] == "a"]
    # 25 % of 20 at most are YES; the listed NO comes first, then half of the 14 left are hard.
    assert own["kind"].value_counts().to_dict() == {"positive": 5, "listed": 1, "hard": 2, "random": 12}
    assert pairs[pairs["entity_id"] == "b"]["kind"].value_counts().to_dict() == {"positive": 1, "hard": 9, "random": 10}
    assert not pairs.duplicated(["entity_id", "candidate_id"]).any()
    assert (pairs["label"] == (pairs["kind"] == "positive")).all()
    assert list(pairs.columns) == ["entity_id", "candidate_id", "label", "split", "kind"]
    assert pairs["label"].dtype == bool


def test_hard_negatives_share_a_group_with_a_positive_and_are_never_one():
    pairs = build_training_pairs(ENTITIES, CATALOG, REFERENCES, settings_with())
    groups = CATALOG.set_index("candidate_id")["group"]
    hard = pairs[(pairs["entity_id"] == "a") & (pairs["kind"] == "hard")]
    # Group g0 has ten members: seven YES, one listed NO, two left.
    assert set(hard["candidate_id"]) == {"c080", "c090"}
    assert set(groups[hard["candidate_id"]]) == {"g0"}


def test_no_listed_yes_is_ever_sampled_as_a_no():
    for seed in range(10):
        pairs = build_training_pairs(ENTITIES, CATALOG, REFERENCES, settings_with(seed=seed))
        yes = set(zip(REFERENCES["entity_id"], REFERENCES["candidate_id"], strict=True)) - {
            ("a", "c070"),
            ("held", "c003"),
        }
        sampled = {(row.entity_id, row.candidate_id) for row in pairs.itertuples() if not row.label}
        assert not sampled & yes


def test_only_train_entities_with_references_train():
    pairs = build_training_pairs(ENTITIES, CATALOG, REFERENCES, settings_with())
    assert set(pairs["entity_id"]) == {"a", "b"}
    assert set(pairs["split"]) == {"train"}


def test_an_entity_whose_references_all_lie_outside_the_catalog_was_judged_and_says_no():
    references = references_of(("a", "left out", True), ("b", "c001", True))
    pairs = build_training_pairs(ENTITIES, CATALOG, references, settings_with())
    own = pairs[pairs["entity_id"] == "a"]
    assert own["kind"].value_counts().to_dict() == {"random": 20}
    assert "left out" not in set(pairs["candidate_id"])
    judged = cross_product_labels(ENTITIES, CATALOG, references, "train", "negative")
    assert judged.groupby("entity_id")["label"].sum().to_dict() == {"a": 0, "b": 1}


@pytest.mark.parametrize("catalog", [CATALOG.drop(columns="group"), CATALOG.assign(group="")])
def test_without_groups_every_negative_is_random(catalog):
    pairs = build_training_pairs(ENTITIES, catalog, REFERENCES, settings_with())
    assert set(pairs["kind"]) == {"positive", "listed", "random"}
    assert (pairs.groupby("entity_id").size() == 20).all()


def test_a_small_catalog_gives_every_pair_once():
    pairs = build_training_pairs(entities_with(b="train"), catalog_of(6, 3), REFERENCES, settings_with())
    assert sorted(pairs["candidate_id"]) == [f"c{n:03d}" for n in range(6)]


def test_unknown_means_that_only_listed_pairs_train_and_are_judged():
    pairs = build_training_pairs(ENTITIES, CATALOG, REFERENCES, settings_with("unknown"))
    assert pairs[pairs["entity_id"] == "a"]["kind"].value_counts().to_dict() == {"positive": 5, "listed": 1}
    assert pairs[pairs["entity_id"] == "b"]["kind"].to_list() == ["positive"]
    judged = cross_product_labels(ENTITIES, CATALOG, REFERENCES, "test", "unknown")
    assert judged.to_numpy().tolist() == [["held", "c002", True], ["held", "c003", False]]


def test_the_judged_pairs_are_the_whole_cross_product_of_a_split():
    entities = entities_with(z="test", a="test", t="train", unjudged="test")
    references = references_of(("a", "c001", True), ("z", "c000", True), ("t", "c002", True))
    judged = cross_product_labels(entities, catalog_of(3, 1), references, "test", "negative")
    assert judged.to_numpy().tolist() == [
        ["z", "c000", True],
        ["z", "c001", False],
        ["z", "c002", False],
        ["a", "c000", False],
        ["a", "c001", True],
        ["a", "c002", False],
    ]


@pytest.mark.parametrize("unlisted", ["negative", "unknown"])
def test_nothing_to_judge_or_train_on_is_an_empty_table_with_its_columns(unlisted):
    nobody = entities_with(x="certify")
    judged = cross_product_labels(nobody, CATALOG, REFERENCES, "test", unlisted)
    assert (len(judged), list(judged.columns), judged["label"].dtype) == (
        0,
        ["entity_id", "candidate_id", "label"],
        bool,
    )
    pairs = build_training_pairs(nobody, CATALOG, REFERENCES, settings_with(unlisted))
    assert (len(pairs), pairs["label"].dtype) == (0, bool)


def test_pairs_are_the_same_whatever_the_order_of_rows_and_the_other_entities():
    settings = settings_with()
    expected = build_training_pairs(ENTITIES, CATALOG, REFERENCES, settings)
    shuffled = build_training_pairs(ENTITIES[::-1], CATALOG, REFERENCES.sample(frac=1, random_state=3), settings)
    pd.testing.assert_frame_equal(shuffled, expected)
    alone = build_training_pairs(entities_with(b="train"), CATALOG, REFERENCES, settings)
    pd.testing.assert_frame_equal(alone, expected[expected["entity_id"] == "b"].reset_index(drop=True))
    assert not build_training_pairs(ENTITIES, CATALOG, REFERENCES, settings_with(seed=8)).equals(expected)


def test_rows_of_an_entity_stand_together_and_a_cap_takes_whole_entities():
    entities = entities_with(**{f"e{n}": "train" for n in range(30)})
    references = references_of(*[(f"e{n}", f"c{n:03d}", True) for n in range(30)])
    everything = build_training_pairs(entities, CATALOG, references, settings_with())
    blocks = (everything["entity_id"] != everything["entity_id"].shift()).sum()
    assert (len(everything), blocks) == (600, 30)
    assert everything["entity_id"].drop_duplicates().tolist() != sorted(entities["entity_id"])
    capped = build_training_pairs(entities, CATALOG, references, settings_with(max_pairs=150))
    pd.testing.assert_frame_equal(capped, everything[:140])
    assert len(build_training_pairs(entities, CATALOG, references, settings_with(max_pairs=7))) == 7


def test_the_catalog_keeps_what_train_entities_use_most_and_never_looks_at_held_out_ones():
    references = references_of(
        ("a", "c003", True),
        ("b", "c003", True),
        ("b", "c001", True),
        ("a", "c000", False),
        ("b", "c000", False),
        *[(f"held{n}", "c002", True) for n in range(9)],
    )
    kept, left_out = select_catalog(catalog_of(5, 1), references, ["a", "b"], 2)
    assert kept["candidate_id"].tolist() == ["c001", "c003"]
    assert left_out == ["c000", "c002", "c004"]
    # Ties go to the earlier candidate, also among those nobody uses.
    kept, left_out = select_catalog(catalog_of(5, 1), references, ["a", "b"], 3)
    assert (kept["candidate_id"].tolist(), left_out) == (["c000", "c001", "c003"], ["c002", "c004"])


@pytest.mark.parametrize("top", [0, 5, 6])
def test_a_catalog_that_is_small_enough_is_kept_whole(top):
    kept, left_out = select_catalog(catalog_of(5, 1), REFERENCES, ["a"], top)
    assert (kept["candidate_id"].tolist(), left_out) == ([f"c{n:03d}" for n in range(5)], [])


def test_a_large_table_is_sampled_evenly_and_completely():
    count = 3_000
    entities = entities_with(**{f"e{n}": "train" for n in range(count)})
    chosen = np.random.default_rng(0).integers(0, 100, count)
    references = references_of(*[(f"e{n}", f"c{c:03d}", True) for n, c in enumerate(chosen)])
    pairs = build_training_pairs(entities, CATALOG, references, settings_with(hard_fraction=0.0))
    assert len(pairs) == count * 20
    uses = pairs[~pairs["label"]]["candidate_id"].value_counts()
    assert (len(uses), uses.min() > 450, uses.max() < 690) == (100, True, True)
