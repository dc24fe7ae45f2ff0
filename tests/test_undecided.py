"""Pairs that nobody can call YES or NO: never a NO where unlisted pairs are, and never left out of what is proven."""

import numpy as np
import pandas as pd
import pytest

from semlabel.digests import text_id
from semlabel.judged import Judged, limit_bound
from semlabel.judging.active_sample import pick
from semlabel.judging.coverage import covered
from semlabel.judging.labels import reference_labels
from semlabel.judging.merging import REFERENCE, UNJUDGED, one_row_per_pair
from semlabel.judging.random_sample import complete_sample, draw, left_unjudged
from semlabel.judging.sample import pairs_to_teach
from semlabel.judging.store import NEAR_THRESHOLD, RANDOM
from semlabel.pairs import build_training_pairs, cross_product_labels
from semlabel.references import CONTRADICTORY, UNREADABLE, entities_to_split
from semlabel.sources import read_references
from semlabel.thresholds import Policy, walk
from tests.storage import Project
from tests.test_judging import CATALOG, ENTITIES, SPLITS, frames, ids, judgement, references
from tests.test_pairs import CATALOG as GROUPED
from tests.test_pairs import ENTITIES as SPLIT
from tests.test_pairs import REFERENCES, settings_with
from tests.test_sources import settings_for
from tests.test_thresholds import sample

KNOWN = {name: (SPLITS[name], text_id(text)) for name, text in ENTITIES.items()}
TEXTS = {name: text_id(text) for name, text in CATALOG.items()}


def undecided(*rows) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=["entity_id", "candidate_id", "reason"])


def labels(listed, judgements=(), unlisted="negative", unreadable=()):
    frame = references(*((*row, REFERENCE) for row in listed))[["entity_id", "candidate_id", "label"]]
    frame = frame.astype({"entity_id": "str", "candidate_id": "str", "label": "bool"})
    return reference_labels(frame, judgements, KNOWN, TEXTS, list(CATALOG), unlisted, (), unreadable)


def rows_of(frame) -> list[list]:
    return frame.to_numpy().tolist()


# --- where an unlisted pair is a NO


def test_a_contradictory_pair_is_no_no():
    found = labels(
        [("e4", "c0", True), ("e4", "c1", True), ("e4", "c1", False), ("e5", "c0", True), ("e5", "c3", True)],
        [
            judgement("e5", "c3", False),  # against a reference
            judgement("e5", "c4", True, split="certify"),  # two people
            judgement("e5", "c4", False, split="certify"),
        ],
    )
    assert rows_of(found.undecided) == [
        ["e4", "c1", CONTRADICTORY],
        ["e5", "c3", CONTRADICTORY],
        ["e5", "c4", CONTRADICTORY],
    ]
    assert len(found.references) == 6
    judged = cross_product_labels(*frames(), found.kept, "certify", "negative", found.undecided)
    assert rows_of(judged) == [
        *(["e4", name, name == "c0"] for name in ("c0", "c2", "c3", "c4")),
        *(["e5", name, name == "c0"] for name in ("c0", "c1", "c2")),
    ]


def test_a_pair_whose_label_cannot_be_read_is_no_no_unless_somebody_said_it_readably():
    unreadable = [("e4", "c1"), ("e4", "c2"), ("e4", "c3"), ("gone", "c1"), ("e4", "gone")]
    found = labels([("e4", "c0", True), ("e4", "c2", True)], [judgement("e4", "c3")], unreadable=unreadable)
    assert rows_of(found.undecided) == [["e4", "c1", UNREADABLE]]
    judged = cross_product_labels(*frames(), found.kept, "certify", "negative", found.undecided)
    assert rows_of(judged) == [["e4", name, True] for name in ("c0", "c2", "c3")] + [["e4", "c4", False]]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("r.csv", "entity_id,candidate_id,label\ne,c1,yes\ne,c2,maybe\ne,c3,\n,c4,maybe\ne,c5,no\n"),
        (
            "r.jsonl",
            '{"entity_id": "e", "candidate_id": "c1", "label": true}\n'
            '{"entity_id": "e", "candidate_id": "c2", "label": 7}\n'
            '{"entity_id": "e", "candidate_id": "c3"}\n'
            '{"candidate_id": "c4"}\n'
            '{"entity_id": "e", "candidate_id": "c5", "label": false}\n',
        ),
    ],
)
@pytest.mark.parametrize("unlisted", ["negative", "unknown"])
def test_the_source_knows_which_pairs_it_could_not_read(tmp_path, name, content, unlisted):
    (tmp_path / name).write_text(content)
    table = read_references(settings_for(tmp_path, references=name, unlisted=unlisted))
    assert table.unreadable == {("e", "c2"), ("e", "c3")}
    assert (len(table.frame), len(table.refused)) == (2, 3)


def test_an_undecided_pair_is_never_trained_on():
    left = [("a", f"c{n:03d}", CONTRADICTORY) for n in range(0, 100, 2) if n not in (0, 10, 20, 30, 40, 50, 60, 70)]
    table = undecided(*left, ("a", "elsewhere", CONTRADICTORY))
    before = build_training_pairs(SPLIT, GROUPED, REFERENCES, settings_with())
    pd.testing.assert_frame_equal(
        build_training_pairs(SPLIT, GROUPED, REFERENCES, settings_with(), undecided()), before
    )
    for seed in range(10):
        pairs = build_training_pairs(SPLIT, GROUPED, REFERENCES, settings_with(seed=seed), table)
        own = set(pairs["candidate_id"][pairs["entity_id"] == "a"])
        assert len(own) == 20 and not own & {row[1] for row in left}
    # The group of its positives has only undecided ones left: the round is filled from everywhere.
    assert "hard" not in set(pairs["kind"][pairs["entity_id"] == "a"])


def test_people_are_not_asked_about_a_pair_that_another_answer_cannot_decide(tmp_path):
    project = Project(tmp_path, scored=True)
    frame = project.warehouse.entities().drop(columns="text_id").assign(split="train")
    project.warehouse.replace_entities(frame, "run")
    everything = {row.pair for row in pick(project.warehouse, [], "negative", 100)}
    contradicted, unreadable = sorted(everything)[:2]
    project.warehouse.replace_undecided(undecided((*contradicted, CONTRADICTORY), (*unreadable, UNREADABLE)), "run")
    assert {row.pair for row in pick(project.warehouse, [], "negative", 100)} == everything - {contradicted}
    project.warehouse.rows("DELETE FROM active_labeler")
    drawn = pairs_to_teach(project.warehouse, [], "negative", 100)
    assert {(row.entity_id, row.candidate_id) for row in drawn} == everything - {contradicted}
    project.close()


def test_what_is_known_of_pairs_has_another_digest_once_one_is_undecided(tmp_path):
    project = Project(tmp_path)
    assert project.warehouse.labels_digest() is None
    frame = pd.DataFrame([("e1", "c1", True)], columns=["entity_id", "candidate_id", "label"])
    plain = project.warehouse.replace_references(frame, "run").digest
    assert project.warehouse.labels_digest() == plain
    project.warehouse.replace_undecided(undecided(), "run")
    assert project.warehouse.labels_digest() == plain
    digests = set()
    for pair in (("e1", "c2"), ("e1", "c3")):
        project.warehouse.replace_undecided(undecided((*pair, CONTRADICTORY)), "run")
        digests.add(project.warehouse.labels_digest())
    assert len(digests | {plain}) == 3
    project.close()


# --- where a random sample judges


def test_the_pairs_that_a_sample_left_unjudged_are_known():
    entities, candidates = ids("e", 20), ids("c", 10)
    drawn = draw(entities, candidates, [], 100).pairs
    few = set(drawn) - set(drawn[40:44])
    assert complete_sample(entities, candidates, few) == (few, 100)
    assert sorted(left_unjudged(entities, candidates, few)) == sorted(drawn[40:44])
    assert left_unjudged(entities, candidates, set(drawn)) == [] == left_unjudged(entities, candidates, set())


def test_a_drawn_pair_without_a_label_stays_in_the_sample():
    certify = [name for name, split in SPLITS.items() if split == "certify"]
    drawn = draw(certify, list(CATALOG), [], 20).pairs
    judged = [judgement(*pair, False, RANDOM) for pair in drawn if pair != drawn[7]]
    found = labels([], judged, "unknown")
    assert rows_of(found.undecided) == [[*drawn[7], UNJUDGED]] and len(found.kept) == 19
    assert found.notes == [
        "certify is judged by 19 random pairs (100.00% of its cross product) instead of listed ones; 1 more were drawn "
        "and have no usable judgement"
    ]
    # Two people who disagree leave it as open as nobody does.
    both = [judgement(*drawn[7], label, RANDOM) for label in (True, False)]
    assert rows_of(labels([], [*judged, *both], "unknown").undecided) == [[*drawn[7], UNJUDGED]]
    # Where unlisted pairs are NO it is one, and nothing has to stand for others.
    rows = references(*((*pair, False, REFERENCE) for pair in drawn[:1]))
    assert one_row_per_pair(rows, SPLITS, list(CATALOG), "negative").undecided == []


def test_a_pair_picked_to_teach_leaves_nothing_open():
    assert labels([], [judgement("e0", "c1", True, NEAR_THRESHOLD)], "unknown").undecided.empty


def test_an_undecided_pair_is_wrong_whatever_a_cut_says_of_it():
    found = Judged.of(
        ["e", "e", "f", "f"], [True, True, False, False], [3.0, 2.0, 1.0, 0.0], None, [False, True, True, False]
    )
    assert {name: counts.tolist() for name, counts in found.counts(1.5).items()} == {
        "flagged": [2, 0],
        "tp": [1, 0],
        "positives": [1, 1],
        "negatives": [1, 1],
    }
    points = {limit: found.points(np.array([1.5, 0.5, -1.0]), limit).tolist() for limit in ("precision", "fpr", "fnr")}
    assert points == {"precision": [1 / 2, 2 / 3, 3 / 4], "fpr": [1 / 2, 2 / 3, 1.0], "fnr": [1 / 2, 0.0, 0.0]}
    for limit, cut in (("precision", 1.5), ("fpr", 0.5), ("fnr", 1.5)):
        assert limit_bound(found, cut, limit, 0.95).point == found.points(np.array([cut]), limit)[0]
    outside = Judged.of(["e", "e"], [True, False], [3.0, 2.0], [True, False], [False, True])
    assert outside.counts(-9.0)["flagged"].tolist() == [1] and outside.counts(-9.0)["positives"].tolist() == [2]


@pytest.mark.parametrize("limit", ["precision", "fpr", "fnr"])
def test_whoever_leaves_the_hard_pairs_unjudged_proves_no_more(limit):
    """The labels that would hurt most are not given: 4 % of the pairs, nearest above or below the cut and wrong."""
    _, truth = sample()
    cut = float(np.quantile(truth.margins, 0.985))
    wrong = (truth.margins >= cut) != truth.labels
    nearest = np.argsort(np.where(wrong, np.abs(truth.margins - cut), np.inf), kind="stable")
    hidden = np.zeros(wrong.size, bool)
    hidden[nearest[: min(int(wrong.sum()), wrong.size // 25)]] = True
    asked = limit_bound(truth, cut, limit, 0.95).bound
    left_out = Judged.of(truth.entity[~hidden], truth.labels[~hidden], truth.margins[~hidden])
    assert limit_bound(left_out, cut, limit, 0.95).bound < asked  # what was believed before
    kept = Judged.of(truth.entity, truth.labels, truth.margins, None, hidden)
    assert limit_bound(kept, cut, limit, 0.95).point >= limit_bound(truth, cut, limit, 0.95).point
    assert limit_bound(kept, cut, limit, 0.95).bound > limit_bound(left_out, cut, limit, 0.95).bound


def test_the_verdict_says_how_many_pairs_were_taken_for_wrong():
    calibrate, certify = sample()
    rng = np.random.default_rng(3)
    hidden = rng.random(certify.labels.size) < 0.01
    table = pd.DataFrame({"entity_id": certify.entity, "label": certify.labels, "margin": certify.margins})
    plain = walk(Policy(min_precision=0.4), calibrate, table)
    found = walk(Policy(min_precision=0.4), calibrate, table.assign(undecided=hidden))
    assert f"({hidden.sum()} drawn pairs that nobody judged count as wrong)" in found.sentence
    assert "nobody judged" not in plain.sentence
    assert found.misses["positives"] == int(certify.labels[~hidden].sum())
    assert found.misses["positives"] + found.misses["negatives"] == int((~hidden).sum())
    assert found.misses["fn"] <= found.misses["positives"] and found.misses["fnr_bound"] > found.misses["fnr"]


# --- whom a promise covers


def test_a_promise_says_where_it_is_not_one_for_the_table():
    assert covered("negative", False, 50, 10) == "" == covered("unknown", True, 60, 0)
    listed = "This holds for pairs like those that are listed, not for the table."
    assert covered("unknown", False, 60, 0) == covered("unknown", False, 50, 10) == listed
    assert covered("unknown", True, 1_050, 2_000) == (
        "This holds for the 1,050 entities that references or judgements name, not for the other 2,000 of the table."
    )


def test_who_was_drawn_once_stays_in_the_frame_of_the_random_sample():
    listed = references(("e0", "c0", True, REFERENCE))
    assert entities_to_split(list(ENTITIES), listed, ["e4", "gone"], "unknown") == {"e0", "e4"}
    assert entities_to_split(list(ENTITIES), listed, ["e4"], "negative") == {"e0"}
    assert entities_to_split(list(ENTITIES), listed[:0], [], "unknown") == set(ENTITIES)
