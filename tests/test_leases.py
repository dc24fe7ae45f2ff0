"""One writer at a time, and never a lease nobody can free."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

from semlabel import processes
from semlabel.errors import LeaseHeld
from semlabel.operations import Operations
from semlabel.operations_schema import now_utc
from semlabel.processes import ProcessIdentity

# A holder in another container of this machine: nobody here can look for its process.
ELSEWHERE = {"host": "elsewhere", "pid": 1, "pid_namespace": "4026539999"}
HOLD = (
    "import sys, time; from pathlib import Path; from semlabel.operations import Operations\n"
    "with Operations(Path(sys.argv[1])).lease('warehouse', 'night', 5):\n"
    "    print('held', flush=True)\n"
    "    sys.stdin.readline()\n"
)


@pytest.fixture
def operations(tmp_path):
    return Operations(tmp_path / "ops.sqlite")


@pytest.fixture
def holder(operations):
    child = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(operations.path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert child.stdout.readline() == b"held\n"
    yield child
    child.kill()
    child.communicate()


def put_foreign_holder(operations, **changes):
    row = {
        "name": "warehouse",
        "token": "t",
        "run_id": "night",
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "boot_id": ProcessIdentity.current().boot_id,
        "process_start": ProcessIdentity.current().process_start,
        "pid_namespace": ProcessIdentity.current().pid_namespace,
        "acquired_at": "2026-01-01T00:00:00.000000+00:00",
        "heartbeat": "2026-01-01T00:00:00.000000+00:00",
    } | changes
    with operations.file.transaction() as connection:
        connection.execute(
            f"INSERT OR REPLACE INTO leases ({', '.join(row)}) VALUES ({', '.join('?' * len(row))})",
            list(row.values()),
        )


def test_the_second_writer_waits_a_bounded_time_and_then_names_the_holder(operations, holder):
    told, started = [], time.monotonic()
    with (
        pytest.raises(LeaseHeld, match=rf"run night \(pid {holder.pid} on {socket.gethostname()}\)"),
        operations.lease("warehouse", "second", 0.4, on_wait=told.append),
    ):
        pytest.fail("two writers at once")
    assert time.monotonic() - started >= 0.4
    assert len(told) == 1 and str(holder.pid) in told[0]


def test_the_second_writer_goes_on_when_the_first_lets_go(operations, holder):
    timer = threading.Timer(0.3, lambda: (holder.stdin.write(b"\n"), holder.stdin.flush()))
    timer.start()
    with operations.lease("warehouse", "second", 60) as lease:
        lease.assert_held()
    timer.join()


def test_the_lease_of_a_killed_process_is_taken_over_at_once(operations, holder):
    holder.send_signal(signal.SIGKILL)
    started = time.monotonic()
    with operations.lease("warehouse", "second", 60):
        assert time.monotonic() - started < 10  # far below any heartbeat; the child may still be an unreaped zombie
        assert holder.returncode is None


def test_a_stopped_process_is_alive_and_keeps_its_lease(operations, holder):
    holder.send_signal(signal.SIGSTOP)
    with pytest.raises(LeaseHeld), operations.lease("warehouse", "second", 0.3):
        pytest.fail("a paused holder lost its lease")
    holder.send_signal(signal.SIGCONT)


@pytest.mark.parametrize(
    "changes",
    [
        {"boot_id": "another boot"},
        {"process_start": "12345"},
        {"pid": 2**22 + 1},
    ],
    ids=["host has booted since", "pid was reused", "process is gone"],
)
def test_each_proof_of_death_frees_the_lease(operations, changes, monkeypatch):
    monkeypatch.setattr(processes, "_pid_namespace", lambda: "4026531836")  # that of a machine without containers
    put_foreign_holder(operations, **changes)
    with operations.lease("warehouse", "second", 0):
        pass


def test_a_holder_that_nobody_here_can_look_for_keeps_its_lease_while_it_gives_signs_of_life(operations):
    put_foreign_holder(operations, **ELSEWHERE, heartbeat=now_utc())
    told = r"elsewhere.* it cannot be seen from here: after 10 minutes of silence it counts as dead \(\d+ s now\)"
    with pytest.raises(LeaseHeld, match=told), operations.lease("warehouse", "second", 0.3):
        pytest.fail("took a lease without proof")


def test_another_container_of_the_same_host_name_keeps_its_lease(operations):
    """What held it would be proven dead if its pid were looked for here."""
    put_foreign_holder(operations, pid=2**22 + 1, pid_namespace="4026539999", heartbeat=now_utc())
    with pytest.raises(LeaseHeld), operations.lease("warehouse", "second", 0.3):
        pytest.fail("a living holder lost its lease")


@pytest.mark.parametrize("patience", [60, 0])
def test_a_long_silence_that_we_watched_frees_the_lease_also_of_who_does_not_wait(operations, monkeypatch, patience):
    monkeypatch.setattr(processes, "HEARTBEAT_SECONDS", 0.05)
    put_foreign_holder(operations, **ELSEWHERE)
    with operations.lease("warehouse", "second", patience) as lease:
        lease.assert_held()


def test_a_silent_holder_that_wakes_while_we_watch_keeps_its_lease(operations):
    put_foreign_holder(operations, **ELSEWHERE)
    timer = threading.Timer(0.2, lambda: put_foreign_holder(operations, **ELSEWHERE, heartbeat=now_utc()))
    timer.start()
    with pytest.raises(LeaseHeld), operations.lease("warehouse", "second", 0):
        pytest.fail("a machine that had slept lost its lease")
    timer.join()


def test_a_holder_that_slept_through_a_takeover_is_told(operations):
    with operations.lease("warehouse", "first", 0) as lease:
        put_foreign_holder(operations, run_id="thief")
        with pytest.raises(LeaseHeld, match="run thief"):
            lease.assert_held()
    assert operations.file.first("SELECT * FROM leases")["run_id"] == "thief"  # ours to release it was not


def test_a_run_may_nest_its_own_lease_and_keeps_it_until_the_outermost_ends(operations):
    with operations.lease("warehouse", "night", 0):
        with Operations(operations.path).lease("warehouse", "night", 0):
            pass
        with pytest.raises(LeaseHeld), operations.lease("warehouse", "other", 0):
            pytest.fail("another run of the same process got in")
    assert operations.file.rows("SELECT * FROM leases") == []


def test_leases_of_other_names_do_not_wait_for_each_other(operations, holder):
    with operations.lease("published", "second", 0):
        pass


def test_the_lease_is_freed_when_the_block_raises(operations):
    with pytest.raises(RuntimeError), operations.lease("warehouse", "night", 0):
        raise RuntimeError
    with operations.lease("warehouse", "second", 0):
        pass


def test_the_heartbeat_moves_while_the_lease_is_held(operations, monkeypatch):
    monkeypatch.setattr(processes, "HEARTBEAT_SECONDS", 0.02)
    with operations.lease("warehouse", "night", 0):
        first = operations.file.first("SELECT heartbeat FROM leases")
        for _ in range(500):
            time.sleep(0.02)
            if operations.file.first("SELECT heartbeat FROM leases") != first:
                return
    pytest.fail("the heartbeat stood still")


def test_of_many_runs_only_one_is_inside(operations):
    inside, most = [], []

    def work(run):
        for _ in range(5):
            with operations.lease("warehouse", run, 60):
                inside.append(run)
                most.append(len(inside))
                inside.remove(run)

    threads = [threading.Thread(target=work, args=(f"run {number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1] * 20
