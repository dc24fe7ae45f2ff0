"""The digest of the predictions sees margins that came in the place of others, and nothing that moves no margin."""

import shutil
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from semlabel.compaction import compact
from semlabel.retention import Purged, purge
from semlabel.warehouse import Opening
from tests.storage import Project, Scorer
from tests.test_publish import Publisher

MUCH_LATER = datetime(2100, 1, 1, tzinfo=UTC)


class Elsewhere(Scorer):
    """The same scorer on another device: its margins differ a little."""

    def __call__(self, entity_text, candidate_texts):
        return super().__call__(entity_text, candidate_texts) + np.float32(1e-3)


@pytest.fixture
def project(tmp_path):
    project = Publisher(tmp_path)
    yield project
    project.close()


def digest(project: Project) -> str:
    return project.warehouse.predictions_digest()


def clean_up(project: Project) -> Purged:
    """Purge what nothing uses, at once."""
    return purge(project.warehouse, timedelta(0), MUCH_LATER)


def rounds(project: Project) -> int:
    return project.warehouse.rows("SELECT count(*) FROM scores")[0][0]


def test_a_night_on_which_nothing_changed_keeps_the_digest(project):
    project.publish()
    before = digest(project)
    project.operations.start_run("later", "nightly_labeling")
    assert project.refresh(run="later").pairs_scored == 0 and digest(project) == before
    project.use(digest="other", scorer_digest="other scorer")
    project.refresh(Scorer("other scorer"))
    assert digest(project) != before
    project.use(digest="labeler", scorer_digest="scorer")
    assert digest(project) == before and project.publish().unchanged


def test_margins_that_were_lost_with_the_log_and_came_again_are_published_anew(tmp_path):
    path, copy = tmp_path / "warehouse.duckdb", tmp_path / "copy.duckdb"
    Project(tmp_path).close()
    shutil.copy(path, copy)
    project = Publisher(tmp_path)
    first, before = project.publish(), digest(project)
    project.close()
    shutil.copy(copy, path)
    project = Publisher(tmp_path)
    assert project.refresh(Elsewhere()).pairs_scored == 15 == project.warehouse.predictions_count()
    assert digest(project) != before
    second = project.publish()
    assert not second.unchanged and second.content_hash != first.content_hash
    assert {reason for *_, reason in project.changes()} == {"rescored"} and len(project.changes()) == 15
    project.close()


def test_a_labeler_whose_margins_were_purged_comes_back_as_other_rows(project):
    first, before = project.publish(), digest(project)
    project.use(digest="other", scorer_digest="other scorer")
    project.refresh(Scorer("other scorer"))
    assert clean_up(project) == Purged(15, 0, 1)
    project.use(digest="labeler", scorer_digest="scorer")
    project.refresh(Elsewhere(), items=2)
    assert project.warehouse.predictions_count() == first.rows and digest(project) != before
    assert not project.publish().unchanged


def test_one_round_of_many_that_came_again_is_enough(project):
    before = digest(project)
    project.warehouse.rows("DELETE FROM scores WHERE text_key = (SELECT min(text_key) FROM entities)")
    assert project.refresh().pairs_scored == 5 and digest(project) != before


def test_neither_a_purge_of_what_left_nor_a_compaction_changes_the_digest(tmp_path):
    project = Project(tmp_path, scored=True)
    project.put(None, Project.CATALOG | {"c9": "a new one"})
    project.refresh()
    assert rounds(project) == 6
    project.put(None, {name: text for name, text in Project.CATALOG.items() if name != "c1"})
    before = digest(project)
    # The rounds of five candidates become rounds of four in another block, those of the new one go.
    assert clean_up(project).pairs == 6 and rounds(project) == 3
    assert digest(project) == before
    project.close()
    opening = Opening(memory_limit="500MB", threads=1)
    assert compact(tmp_path / "warehouse.duckdb", 0, opening).skipped is None
    project = Project(tmp_path)
    assert digest(project) == before
    project.close()


def test_scores_out_of_scope_do_not_change_the_digest(tmp_path):
    project = Project(tmp_path)
    project.refresh(ids=["e1"])
    project.warehouse.set_scope(["e1"], "one")
    before = digest(project)
    assert project.refresh().pairs_scored == 10 and digest(project) == before
    project.close()
