"""Promotions that meet each other or a rollback: whoever comes second waits, and record and link name one labeler."""

import shutil
import threading

import pytest

from semlabel import promotion, published
from semlabel.errors import LeaseHeld
from semlabel.labeler_files import promoted_path
from semlabel.operations import Operations
from semlabel.promotion import promote, promote_first
from semlabel.published import LEASE
from tests.serving_fixtures import make_labelers


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Two labelers on one tiny checkpoint."""
    return make_labelers(tmp_path_factory.mktemp("made"), (0.25, 4.0))


@pytest.fixture
def project(made, tmp_path):
    """Their copies in a folder where nothing is promoted, an `ops.sqlite`, and the digests of both."""
    shutil.copytree(made[0].parent, tmp_path / "labelers")
    return tmp_path / "labelers", Operations(tmp_path / "ops.sqlite"), *(path.name for path in made)


def in_use(labelers, operations):
    """What the link and the record name."""
    path, record = promoted_path(labelers), operations.promoted()
    return path and path.name, record and record["labeler_digest"]


def test_of_two_promotions_at_once_the_link_and_the_record_name_the_same_labeler(project, monkeypatch):
    labelers, operations, first, second = project
    switch, stopped, told = promotion.switch_current, threading.Event(), []

    def other():
        try:
            told.append(promote(labelers, operations, second, "bob", "", on_wait=lambda _: stopped.set()))
        finally:
            stopped.set()

    thread = threading.Thread(target=other)

    def meanwhile(folder, digest):
        if digest == first:
            thread.start()
            assert stopped.wait(60)
        return switch(folder, digest)

    monkeypatch.setattr(promotion, "switch_current", meanwhile)
    assert promote(labelers, operations, first, "ann", "") is None
    thread.join()
    assert in_use(labelers, operations) == (second, second)
    assert told == [labelers / first]


def test_a_promotion_that_somebody_does_not_let_happen_changes_nothing_and_names_who(project, monkeypatch):
    labelers, operations, first, second = project
    promote(labelers, operations, first, "ann", "")
    monkeypatch.setattr(published, "LEASE_WAIT_SECONDS", 0.1)
    with operations.lease(LEASE, "rollback-000001", 0):
        for act in (promote, promote_first):
            with pytest.raises(LeaseHeld, match=r"^run rollback-000001 \(pid .* holds the lease 'publication'") as held:
                act(labelers, operations, second, "bob", "")
            assert "\n" not in str(held.value)
    assert in_use(labelers, operations) == (first, first)


def test_a_run_promotes_the_first_labeler_and_none_upon_what_somebody_promoted_meanwhile(project):
    labelers, operations, first, second = project
    assert promote_first(labelers, operations, first, "1", "all gates passed") == labelers / first
    assert in_use(labelers, operations) == (first, first) and operations.promoted()["who"] == "run 1"
    assert promote_first(labelers, operations, second, "2", "all gates passed") == labelers / first
    assert in_use(labelers, operations) == (first, first) and operations.promoted()["who"] == "run 1"
