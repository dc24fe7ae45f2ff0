"""Who is told what, and that nobody is told twice or never, whoever sends and whenever it dies."""

import signal
import sqlite3
import subprocess
import sys
from datetime import datetime, timedelta

import pytest

from semlabel import deliveries, operations_schema, outbox
from semlabel.errors import SemlabelError
from semlabel.gates import GateResult
from semlabel.operations import Operations

CHAT, MAIL = "env:CHAT", "env:MAIL"


@pytest.fixture
def operations(tmp_path):
    return Operations(tmp_path / "ops.sqlite")


@pytest.fixture
def clock(monkeypatch):
    """The time as the outbox and the deliveries see it; it stands still until it is moved."""

    class Clock:
        now = datetime(2026, 3, 1, 4, tzinfo=operations_schema.UTC)

        def text(self):
            # Rows written in one test must not have one time.
            self.now += timedelta(milliseconds=1)
            return self.now.isoformat(timespec="microseconds")

        def move(self, **by):
            self.now += timedelta(**by)

    clock = Clock()
    for module in (outbox, deliveries):
        monkeypatch.setattr(module, "now_utc", clock.text)
    return clock


def say(operations, verdict, gate="volume_change", severity="ERROR"):
    operations.record_gate("r1", GateResult(gate, "predictions", severity, verdict, 1, 2, "Look."), None, "s", "1")


def route(operations, *targets):
    deliveries.route(operations.file, lambda _: list(targets), list(targets))


def send(operations, target, error=None):
    """One message, as a sender sends it: (kind, number) of the alert, or None when nothing is due."""
    claim = deliveries.claim(operations.file, target)
    if claim is None:
        return None
    deliveries.record(operations.file, claim.outbox_id, target, error, claim.token)
    return claim.row["kind"], claim.outbox_id


def send_all(operations, target):
    sent = []
    while (one := send(operations, target)) is not None:
        sent.append(one)
    return sent


def test_many_senders_at_once_send_every_alert_once(operations, tmp_path):
    for number in range(12):
        say(operations, "fail", gate=f"gate{number}")
    route(operations, CHAT)
    code = (
        "import sys; from pathlib import Path; from semlabel import deliveries\n"
        "from semlabel.operations import Operations\n"
        "file = Operations(Path(sys.argv[1])).file\n"
        "while deliveries.waiting(file):\n"
        "    claim = deliveries.claim(file, 'env:CHAT')\n"
        "    if claim:\n"
        "        print(claim.outbox_id)\n"
        "        deliveries.record(file, claim.outbox_id, claim.target, None, claim.token)\n"
    )
    senders = [
        subprocess.Popen([sys.executable, "-c", code, str(operations.path)], stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    sent = [int(line) for sender in senders for line in sender.communicate()[0].split()]
    assert [sender.returncode for sender in senders] == [0, 0, 0]
    assert sorted(sent) == list(range(1, 13))


def test_while_one_sends_nobody_else_does(operations):
    say(operations, "fail")
    say(operations, "fail", gate="coverage_is_complete")
    route(operations, CHAT, MAIL)
    claim = deliveries.claim(operations.file, CHAT)
    assert deliveries.claim(operations.file, CHAT) is None and deliveries.busy(operations.file, CHAT)
    assert deliveries.claim(operations.file, MAIL) is not None  # another channel is another matter
    deliveries.record(operations.file, claim.outbox_id, CHAT, None, claim.token)
    assert not deliveries.busy(operations.file, CHAT)
    assert send_all(operations, CHAT) == [("failed", 2)]


def test_what_a_killed_sender_was_sending_is_sent_again_and_said_to_be(operations):
    say(operations, "fail")
    route(operations, CHAT)
    code = (
        "import sys, time; from pathlib import Path; from semlabel import deliveries\n"
        "from semlabel.operations import Operations\n"
        "deliveries.claim(Operations(Path(sys.argv[1])).file, 'env:CHAT')\n"
        "print('ready', flush=True); time.sleep(600)\n"
    )
    sender = subprocess.Popen([sys.executable, "-c", code, str(operations.path)], stdout=subprocess.PIPE)
    try:
        assert sender.stdout.readline() == b"ready\n"
        assert deliveries.claim(operations.file, CHAT) is None
    finally:
        sender.send_signal(signal.SIGKILL)
        sender.communicate()
    claim = deliveries.claim(operations.file, CHAT)
    assert claim.interrupted and claim.outbox_id == 1
    deliveries.record(operations.file, 1, CHAT, None, claim.token)
    say(operations, "fail", gate="coverage_is_complete")
    route(operations, CHAT)
    assert not deliveries.claim(operations.file, CHAT).interrupted


def test_a_sender_that_nobody_here_can_look_for_is_not_waited_for_for_ever(operations, clock):
    say(operations, "fail")
    route(operations, CHAT)
    deliveries.claim(operations.file, CHAT)
    with operations.file.transaction() as connection:
        connection.execute("UPDATE channels SET pid_namespace = 'of another container'")
    clock.move(minutes=9)
    assert deliveries.claim(operations.file, CHAT) is None
    clock.move(minutes=2)
    assert deliveries.claim(operations.file, CHAT).interrupted


def test_a_dead_channel_is_tried_less_and_less_often_and_at_least_every_hour(operations, clock):
    say(operations, "fail")
    route(operations, CHAT)
    waits = []
    for _ in range(10):
        assert send(operations, CHAT, error="no connection") == ("failed", 1)
        seconds = 0
        while deliveries.resting(operations.file, CHAT):
            clock.move(seconds=30)
            seconds += 30
        waits.append(seconds)
    assert waits == [30, 60, 120, 240, 480, 960, 1920, 3600, 3600, 3600]
    assert send_all(operations, CHAT) == [("failed", 1)]


def test_a_dead_channel_shows_and_loses_nothing(operations, clock):
    say(operations, "fail")
    say(operations, "fail", gate="coverage_is_complete")
    route(operations, CHAT)
    send(operations, CHAT, error="no connection")
    assert send(operations, CHAT) is None
    first, second = deliveries.waiting(operations.file)
    assert (first["id"], first["attempts"], first["error"]) == (1, 1, "no connection")
    assert (second["id"], second["attempts"], second["error"]) == (2, 0, None)
    (channel,) = deliveries.channels(operations.file)
    assert (channel["failures"], channel["error"], channel["succeeded_at"]) == (1, "no connection", None)
    clock.move(minutes=1)
    assert send_all(operations, CHAT) == [("failed", 1), ("failed", 2)]
    assert deliveries.waiting(operations.file) == []
    assert deliveries.channels(operations.file)[0]["failures"] == 0


def test_a_channel_that_works_again_is_told_what_happened_without_stale_reminders(operations, clock):
    say(operations, "fail")
    route(operations, CHAT)
    send(operations, CHAT, error="no connection")
    for _ in range(3):
        clock.move(hours=25)
        say(operations, "fail")
        route(operations, CHAT)
    assert send_all(operations, CHAT) == [("failed", 1)]  # three reminders of it were waiting too
    assert deliveries.waiting(operations.file) == []
    say(operations, "pass")
    route(operations, CHAT)
    assert send_all(operations, CHAT) == [("recovered", 5)]


def test_a_reminder_that_was_due_and_not_sent_is_sent_once(operations, clock):
    say(operations, "fail")
    route(operations, CHAT)
    assert send_all(operations, CHAT) == [("failed", 1)]
    for _ in range(2):
        clock.move(hours=25)
        say(operations, "fail")
        route(operations, CHAT)
    assert send_all(operations, CHAT) == [("failed", 3)]


def test_an_alert_that_is_not_accepted_lets_the_others_pass(operations, clock):
    say(operations, "fail")
    say(operations, "fail", gate="coverage_is_complete")
    route(operations, CHAT)
    for _ in range(5):
        assert send(operations, CHAT, error="the service answered HTTP 400") == ("failed", 1)
        clock.move(hours=2)
    assert send_all(operations, CHAT) == [("failed", 2), ("failed", 1)]


def test_what_is_over_a_week_old_is_not_sent_and_still_listed(operations, clock):
    say(operations, "fail")
    route(operations, CHAT)
    clock.move(days=8)
    assert send(operations, CHAT) is None
    (row,) = deliveries.waiting(operations.file)
    assert row["given_up"] is True
    clock.move(days=30)
    assert deliveries.waiting(operations.file) == []


def test_a_channel_that_is_added_later_does_not_get_the_history(operations):
    say(operations, "fail")
    route(operations, CHAT)
    route(operations, CHAT, MAIL)
    assert send_all(operations, MAIL) == []
    say(operations, "pass")
    route(operations, CHAT, MAIL)
    assert send_all(operations, MAIL) == [("recovered", 2)]
    assert send_all(operations, CHAT) == [("failed", 1), ("recovered", 2)]


def test_alerts_of_a_channel_that_is_gone_go_to_the_one_that_took_its_place(operations):
    say(operations, "fail")
    route(operations, CHAT)
    send(operations, CHAT, error="no connection")
    route(operations, MAIL)
    assert send_all(operations, MAIL) == [("failed", 1)]
    assert [row["target"] for row in deliveries.channels(operations.file)] == [MAIL]


def test_an_acknowledged_incident_is_not_repeated_until_it_recovers(operations, clock):
    say(operations, "fail")
    (row,) = outbox.acknowledge(operations.file, "volume_change", "ann", "known")
    assert (row["incident"], row["acknowledged_by"], row["reason"]) == (1, "ann", "known")
    clock.move(hours=25)
    say(operations, "fail")
    say(operations, "pass")
    say(operations, "fail")
    clock.move(hours=25)
    say(operations, "fail")
    assert [row["kind"] for row in operations.undelivered_alerts(CHAT)] == ["failed", "recovered", "failed", "failed"]
    (row,) = outbox.open_incidents(operations.file)
    assert (row["incident"], row["acknowledged_by"]) == (3, None)


def test_an_acknowledgement_silences_a_reminder_that_waits(operations, clock):
    say(operations, "fail")
    route(operations, CHAT)
    send_all(operations, CHAT)
    clock.move(hours=25)
    say(operations, "fail")
    route(operations, CHAT)
    outbox.acknowledge(operations.file, "1", "ann")
    assert send_all(operations, CHAT) == []


def test_only_what_is_open_can_be_acknowledged(operations):
    say(operations, "fail")
    say(operations, "pass")
    for name in ("1", "volume_change", "bogus"):
        with pytest.raises(SemlabelError, match=f"no open incident is called {name}"):
            outbox.acknowledge(operations.file, name, "ann")


def test_the_time_between_reminders_is_a_setting(tmp_path, clock):
    operations = Operations(tmp_path / "ops.sqlite", timedelta(hours=2))
    say(operations, "fail")
    clock.move(hours=1)
    say(operations, "fail")
    clock.move(hours=1)
    say(operations, "fail")
    assert len(operations.undelivered_alerts(CHAT)) == 2


def test_incidents_follow_the_newest_verdicts_where_rows_were_lost(operations):
    say(operations, "fail")
    say(operations, "fail", gate="coverage_is_complete")
    say(operations, "pass", gate="coverage_is_complete")
    with operations.file.transaction() as connection:
        connection.execute("DELETE FROM outbox WHERE gate = 'volume_change' OR kind = 'recovered'")
    for _ in range(2):  # the second time there is nothing left to do
        outbox.reconcile(operations.file)
    found = {(row["gate"], row["kind"]) for row in operations.undelivered_alerts(CHAT)}
    assert found == {
        ("volume_change", "failed"),
        ("coverage_is_complete", "failed"),
        ("coverage_is_complete", "recovered"),
    }
    assert len(operations.undelivered_alerts(CHAT)) == 3


def test_an_older_file_keeps_its_alerts_and_gets_their_incidents(tmp_path, monkeypatch):
    path = tmp_path / "ops.sqlite"
    with monkeypatch.context() as older:
        older.setattr(operations_schema, "MIGRATIONS", operations_schema.MIGRATIONS[:1])
        operations_schema.OperationsFile(path)
    rows = [("a", "failed"), ("b", "failed"), ("a", "failed"), ("a", "recovered"), ("a", "failed"), ("a", "failed")]
    with sqlite3.connect(path) as connection:
        connection.executemany(
            "INSERT INTO outbox (asset, gate, severity, kind, verdict, message, run_id, created_at)"
            " VALUES ('x', ?, 'ERROR', ?, 'fail', 'm', 'r', '2026-01-01T00:00:00.000000+00:00')",
            rows,
        )
        connection.execute(
            "INSERT INTO deliveries (outbox_id, target, delivered, attempted_at) VALUES (1, 'env:CHAT', 1, '2026')"
        )
    connection.close()
    operations = Operations(path)
    found = operations.file.rows("SELECT gate, kind, incident FROM outbox ORDER BY id")
    assert [(row["gate"], row["kind"]) for row in found] == rows
    assert [row["incident"] for row in found] == [1, 2, 1, 1, 5, 5]
    assert len(operations.undelivered_alerts(CHAT)) == 5
    assert {row["gate"]: row["incident"] for row in outbox.open_incidents(operations.file)} == {"a": 5, "b": 2}
