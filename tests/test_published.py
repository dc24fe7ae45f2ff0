"""A rollback and a publication that meet: the rollback wins, and `current` always stands on a whole version.

And what fails after `current` has moved is told as bookkeeping, and made good.
"""

import json
import threading
from datetime import UTC, datetime, timedelta

import pytest

from semlabel import publish as publishing
from semlabel import published
from semlabel.durable import point_link
from semlabel.errors import GateBlocked, LeaseHeld, WarehouseError
from semlabel.leases import Lease
from semlabel.operations import Operations
from semlabel.operations_schema import now_utc
from semlabel.processes import ProcessIdentity
from semlabel.publish import current_publication, verify_version
from semlabel.published import LEASE, current_version, rollback, version_names
from tests.test_publish import Publisher


@pytest.fixture
def project(tmp_path):
    project = Publisher(tmp_path)
    yield project
    project.close()


@pytest.fixture
def two(project):
    """The names of two published versions; what a third one would hold has been scored."""
    first = project.publish().version
    project.put({"e1": "edited"})
    second = project.publish().version
    project.put({"e1": "edited again"})
    return first, second


def nothing_half_made(project, versions):
    return [path.name for path in sorted((project.target / "versions").iterdir())] == list(versions)


def during_the_staging(project, action):
    """A publication, while which somebody does something; it must not switch."""
    return project.publish(add_files=lambda *_: action())


def test_a_rollback_while_a_publication_stages_is_not_undone_by_it(project, two):
    first, _ = two
    with pytest.raises(GateBlocked, match="publishing is paused \\(wrong tau\\)") as refused:
        during_the_staging(project, lambda: rollback(project.target, first, project.operations, "ann", "wrong tau"))
    assert "\n" not in str(refused.value)
    assert current_version(project.target) == first
    assert nothing_half_made(project, two)
    assert [row["action"] for row in project.operations.publications()] == ["rollback", "published", "published"]


def test_a_version_is_not_put_upon_another_one_than_it_was_made_from(project, two):
    first, second = two

    def back_and_on():
        rollback(project.target, first, project.operations)
        project.operations.set_publishing_paused(False)

    with pytest.raises(GateBlocked, match=f"current version is {first} and no longer {second}") as refused:
        during_the_staging(project, back_and_on)
    assert "\n" not in str(refused.value)
    assert current_version(project.target) == first and nothing_half_made(project, two)
    done = project.publish()
    assert verify_version(done.path)["previous_version"] == first


def test_what_nobody_published_is_not_confirmed_after_a_rollback(project, two, monkeypatch):
    first, _ = two
    project.put({"e1": "edited"})  # what the second version holds
    subject = publishing.publication_subject

    def meanwhile(*arguments):
        rollback(project.target, first, project.operations)
        return subject(*arguments)

    monkeypatch.setattr(publishing, "publication_subject", meanwhile)
    with pytest.raises(GateBlocked, match="publishing is paused"):
        project.publish()
    assert current_version(project.target) == first


def test_a_pause_that_comes_while_the_verdicts_are_asked_again_stops_the_switch(project, two):
    with pytest.raises(GateBlocked, match="hold on"):
        project.publish(recheck=lambda: project.operations.set_publishing_paused(True, "hold on"))
    assert current_version(project.target) == two[1] and nothing_half_made(project, two)


def test_a_preview_goes_on_while_publishing_is_paused(project, two, tmp_path):
    project.warehouse.set_scope(["e1"], "limited: 1 of all entities")
    done = project.publish(
        preview=True,
        target=tmp_path / "preview",
        add_files=lambda *_: rollback(project.target, two[0], project.operations),
    )
    assert current_publication(tmp_path / "preview")["version"] == done.version


class Rollback(threading.Thread):
    """A rollback beside the test, as an operator's process would be."""

    def __init__(self, project, version):
        super().__init__()
        self.project, self.version, self.error = project, version, None
        self.start()

    def run(self):
        try:
            rollback(self.project.target, self.version, self.project.operations)
        except Exception as error:
            self.error = error

    def wait_for_its_pause(self):
        while self.project.operations.publishing_paused() is None:
            assert self.is_alive()


def test_publishing_is_paused_before_a_rollback_waits_for_anybody(project, two):
    first, second = two
    with project.operations.lease(LEASE, "night", 0):
        operator = Rollback(project, first)
        operator.wait_for_its_pause()
        assert project.operations.publishing_paused().startswith(f"a rollback to {first} has begun (pid ")
        assert current_version(project.target) == second
    operator.join()
    assert operator.error is None
    assert current_version(project.target) == first
    assert project.operations.publishing_paused() == f"rolled back to {first}"


def test_a_rollback_to_a_version_that_was_purged_meanwhile_is_refused_and_changes_nothing(project, two, monkeypatch):
    first, second = two
    with project.operations.lease(LEASE, "night", 0):
        operator = Rollback(project, first)
        operator.wait_for_its_pause()
        monkeypatch.setattr(published, "_now", lambda: datetime.now(UTC) + timedelta(hours=25))
        assert published.purge(project.target, 1) == [first]
    operator.join()
    assert str(operator.error).endswith(f"there is no version {first!r}; kept are: {second}")
    assert current_version(project.target) == second and verify_version(project.target / "current")
    assert project.operations.publishing_paused() is None


def test_a_publication_takes_no_version_away_that_a_rollback_may_wait_for(project, two, monkeypatch):
    first, _ = two
    project.settings.keep = 1
    monkeypatch.setattr(published, "_now", lambda: datetime.now(UTC) + timedelta(hours=25))
    switch, operators = publishing.switch, []

    def late(*arguments):
        # The last question was answered: it is too late to stop this one, so it is rolled back right after.
        operators.append(Rollback(project, first))
        operators[0].wait_for_its_pause()
        switch(*arguments)

    monkeypatch.setattr(publishing, "switch", late)
    done = project.publish()
    operators[0].join()
    assert operators[0].error is None
    assert current_version(project.target) == first and done.version in version_names(project.target)


def test_a_version_is_proven_whole_while_nobody_can_take_it_away(project, two, monkeypatch):
    verify, asked = published.verify_version, []

    def proven(path):
        asked.append(path.name)
        with pytest.raises(LeaseHeld), project.operations.lease(LEASE, "night", 0):
            pass
        return verify(path)

    monkeypatch.setattr(published, "verify_version", proven)
    rollback(project.target, two[0], project.operations)
    assert asked == [two[0]]


def test_what_belongs_to_a_rollback_is_done_before_anybody_else_may_switch(project, two):
    seen = []

    def also(manifest):
        seen.append((manifest["version"], current_version(project.target)))
        with pytest.raises(LeaseHeld), project.operations.lease(LEASE, "night", 0):
            pass

    rollback(project.target, two[0], project.operations, also=also)
    assert seen == [(two[0], two[0])]


def test_a_killed_holder_blocks_neither_a_rollback_nor_a_night(project, two):
    me = ProcessIdentity.current()
    process = (me.host, 2**22 + 1, me.boot_id, "0", me.pid_namespace)
    dead = (LEASE, "token", "killed", *process, now_utc(), now_utc())
    for act in (
        lambda: rollback(project.target, two[0], project.operations),
        lambda: project.operations.set_publishing_paused(False) or project.publish(),
    ):
        with project.operations.file.transaction() as connection:
            connection.execute(
                "INSERT INTO leases (name, token, run_id, host, pid, boot_id, process_start, pid_namespace,"
                " acquired_at, heartbeat) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                dead,
            )
        act()
        assert project.operations.file.rows("SELECT * FROM leases") == []
    assert current_version(project.target) == version_names(project.target)[-1] > two[1]


@pytest.mark.parametrize("paused", [None, "", "bad night"])
def test_a_refused_rollback_leaves_the_pause_as_it_was(project, two, paused):
    first, second = two
    if paused is not None:
        project.operations.set_publishing_paused(True, paused)
    (project.target / "versions" / first / "catalog.parquet").unlink()
    with pytest.raises(WarehouseError, match=r"catalog.parquet is missing"):
        rollback(project.target, first, project.operations)
    assert project.operations.publishing_paused() == paused
    assert current_version(project.target) == second


def test_a_rollback_that_fails_does_not_end_the_pause_of_another_one(project, two, monkeypatch):
    first, second = two

    def overtaken(path):
        project.operations.set_publishing_paused(True, "somebody else's reason")
        raise WarehouseError("damaged")

    monkeypatch.setattr(published, "verify_version", overtaken)
    with pytest.raises(WarehouseError, match="damaged"):
        rollback(project.target, first, project.operations)
    assert project.operations.publishing_paused() == "somebody else's reason"
    assert current_version(project.target) == second


# What follows the switch is bookkeeping


def on_record(project):
    """Every version in the books, oldest first, with whose run it is told to be."""
    return [(row["version"], row["run_id"]) for row in reversed(project.operations.publications())]


def history(project):
    """The versions in `history.json` that are told to be current until now, and the others."""
    entries = json.loads((project.target / "history.json").read_text())["versions"]
    return [{entry["version"] for entry in entries if (entry["until"] is None) is now} for now in (True, False)]


FULL = OSError(28, "No space left on device")
NO_ROOM = WarehouseError("ops.sqlite: database or disk is full: free some disk space")


def failing(error, before=lambda *arguments: None):
    def fail(*arguments, **_):
        before(*arguments)
        raise error

    return fail


@pytest.mark.parametrize(
    ("owner", "name", "fault", "error", "told"),
    [
        (published, "point_link", failing(FULL, point_link), FULL, "`current` may not outlast a power failure"),
        (published, "replace_file", failing(FULL), FULL, "since when it is current could not be noted in history.json"),
        (Operations, "record_publication", failing(NO_ROOM), NO_ROOM, "it could not be entered into ops.sqlite"),
        (publishing, "purge", failing(FULL), FULL, "versions beyond `keep` could not be removed"),
    ],
)
def test_what_fails_after_the_switch_is_told_as_what_it_is_and_made_good(
    project, two, monkeypatch, owner, name, fault, error, told
):
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, fault)
        done = project.publish()
    assert not done.unchanged and current_version(project.target) == done.version > two[1]
    assert done.troubles == (f"{told} ({error})",)
    again = project.publish()
    assert (again.version, again.unchanged, again.troubles) == (done.version, True, ())
    assert project.publish().unchanged
    assert on_record(project) == [(version, "run") for version in (*two, done.version)]
    assert history(project) == [{done.version}, set(two)]


def test_a_lease_that_cannot_be_given_back_does_not_undo_a_publication_either(project, two, monkeypatch):
    release = Lease._release

    def no_room_after_the_switch(lease):
        if current_version(project.target) > two[1]:
            raise NO_ROOM
        release(lease)

    monkeypatch.setattr(Lease, "_release", no_room_after_the_switch)
    done = project.publish()
    assert current_version(project.target) == done.version > two[1]
    assert done.troubles == (f"the lease could not be given back before this process ends ({NO_ROOM})",)


def test_a_rollback_whose_history_cannot_be_written_is_a_rollback_all_the_same(project, two, monkeypatch):
    first, _ = two
    said, also = [], []
    monkeypatch.setattr(published, "replace_file", failing(FULL))
    rollback(project.target, first, project.operations, also=also.append, on_wait=said.append)
    assert current_version(project.target) == first and [manifest["version"] for manifest in also] == [first]
    assert said == [f"rolled back, but that could not be noted in history.json ({FULL}); the next publication does"]


@pytest.mark.parametrize("unchanged", [True, False])
def test_a_publication_killed_right_after_its_switch_is_entered_once_by_the_next(project, two, monkeypatch, unchanged):
    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(publishing, "confirm", killed)
        with pytest.raises(KeyboardInterrupt):
            project.publish()
    killed_one = current_version(project.target)
    assert killed_one > two[1] and [version for version, _ in on_record(project)] == [*two]
    (project.target / ".history.json-0f").write_text("{ torn")
    if not unchanged:
        project.put({"e1": "edited a third time"})
    done = project.publish()
    assert done.unchanged is unchanged and (done.version == killed_one) is unchanged
    expected = dict.fromkeys((*two, killed_one, done.version))
    assert [version for version, _ in on_record(project)] == [*expected]
    assert history(project) == [{done.version}, {*expected} - {done.version}]
    assert not list(project.target.glob(".*"))
