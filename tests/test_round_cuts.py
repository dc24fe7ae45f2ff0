"""Texts that each have some candidates of their own stored cost no more blocks and questions than they must."""

from collections import Counter

import numpy as np
import pytest

from semlabel import refresh, round_cuts
from semlabel.warehouse_scores import ScoredRound, ensure_blocks
from tests.storage import Project, Scorer, margin
from tests.test_refresh import planned_pairs

TEXTS = {f"e{number:02}": f"entity {number}" for number in range(30)}
CATALOG = {f"c{number:02}": f"candidate {number}" for number in range(40)}
ITEMS, LISTED = 4, 3


def shortlisted(folder, texts=TEXTS) -> Project:
    """A project that has scored three candidates of every text, no two texts the same, as after shortlists."""
    project = Project(folder)
    project.put(texts, CATALOG)
    warehouse = project.warehouse
    keys = [key for (key,) in warehouse.rows("SELECT text_key FROM catalog ORDER BY position")]
    rounds = []
    for number, (key, text) in enumerate(warehouse.rows("SELECT text_key, text FROM entities ORDER BY entity_id")):
        places = [number, (number + 11) % 40, (number + 25) % 40]
        listed = [keys[place] for place in places]
        with warehouse.transaction() as connection:
            (block_id,) = ensure_blocks(connection, [listed])
        margins = np.array([margin(text, f"candidate {place}") for place in places], dtype=np.float32)
        rounds.append(ScoredRound(key, block_id, listed, margins))
    warehouse.commit_scores(rounds, "scorer", "run")
    return project


@pytest.fixture
def project(tmp_path):
    project = shortlisted(tmp_path)
    yield project
    project.close()


def wanted() -> Counter:
    return Counter(
        {
            (text, candidate): 1
            for number, text in enumerate(TEXTS.values())
            for place, candidate in enumerate(CATALOG.values())
            if place not in (number, (number + 11) % 40, (number + 25) % 40)
        }
    )


def block_rows(project: Project) -> int:
    return project.warehouse.rows("SELECT count(*) FROM blocks")[0][0]


def test_with_shortlists_off_again_blocks_grow_with_the_lists_and_not_with_the_pairs(project):
    before = block_rows(project)
    plan = project.plan(items=ITEMS)
    assert Counter(planned_pairs(project, plan)) == wanted()  # exactly what is missing, nothing that is stored
    assert (plan.pairs, plan.pairs_stored) == (30 * 37, 30 * 3)
    assert set(Counter(entry.text_key for entry in plan.rounds).values()) == {10}  # 37 pairs in rounds of four
    # What a listed candidate spoils is at most one round of the text; the others leave out nothing in between.
    assert block_rows(project) - before <= ITEMS * (len(TEXTS) * LISTED + len(CATALOG)) < plan.pairs
    outcome = project.refresh(Scorer(), items=ITEMS)
    assert (outcome.pairs_scored, outcome.pairs_reused) == (30 * 37, 30 * 3)
    assert project.warehouse.coverage().missing == [] and project.plan(items=ITEMS).rounds == []
    found = project.warehouse.margins("scorer", sorted(TEXTS))
    expected = {(e, c): margin(TEXTS[e], CATALOG[c]) for e in TEXTS for c in CATALOG}
    assert {(row.entity_id, row.candidate_id): row.margin for row in found.itertuples()} == expected


def test_many_groups_of_texts_are_asked_for_like_one(project, tmp_path, monkeypatch):
    one = shortlisted(tmp_path / "one", {"e00": "entity 0"})
    asked = {}
    for each in (project, one):
        rows, asked[each] = each.warehouse.rows, []
        spy = lambda *query, rows=rows, seen=asked[each]: seen.append(query) or rows(*query)  # noqa: E731
        monkeypatch.setattr(each.warehouse, "rows", spy)
        each.plan(items=ITEMS)
    assert len(asked[project]) == len(asked[one])
    one.close()


@pytest.mark.parametrize("few", [1, 50])
def test_rounds_and_blocks_made_a_few_at_a_time_are_those_made_at_once(project, monkeypatch, few):
    at_once = project.plan(items=ITEMS)
    rows = block_rows(project)
    monkeypatch.setattr(round_cuts, "_HELD_PAIRS", few)
    monkeypatch.setattr(refresh, "_MOST_GROUPS", 7)
    again = project.plan(items=ITEMS)
    assert again.rounds == at_once.rounds and block_rows(project) == rows
    assert again.subject_digest == at_once.subject_digest


def test_a_new_candidate_for_all_of_them_is_one_block(project):
    project.refresh(Scorer(), items=ITEMS)
    before = block_rows(project)
    project.put(None, CATALOG | {"c05b": "a new one"})
    plan = project.plan(items=ITEMS)
    assert len(plan.rounds) == plan.pairs == 30 and len({entry.block_id for entry in plan.rounds}) == 1
    assert block_rows(project) - before == 1
