"""Who is dead, who lives, and whom nobody here can look for: a wrong answer takes a lease from a living night."""

import shutil
import socket
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from semlabel import processes
from semlabel.errors import LeaseHeld
from semlabel.operations import Operations
from semlabel.processes import ProcessIdentity

ROOT = Path(__file__).resolve().parent.parent
OF_THE_MACHINE = "4026531836"
NO_SUCH_PID = 2**22 + 1


@pytest.fixture
def me():
    return ProcessIdentity.current()


def ago(seconds):
    return (datetime.now(UTC) - timedelta(seconds=seconds)).isoformat()


def test_this_process_lives(me):
    assert me.alive() is True
    assert me.pid_namespace == str(Path("/proc/self/ns/pid").stat().st_ino)


@pytest.mark.parametrize(
    "changes", [{"pid": NO_SUCH_PID}, {"process_start": "12345"}], ids=["it is gone", "its pid was reused"]
)
def test_a_process_that_can_be_looked_for_is_proven_dead_whatever_the_host_was_called(me, changes):
    assert replace(me, **changes).alive() is False
    assert replace(me, host="renamed", **changes).alive() is False
    assert replace(me, host="renamed").alive() is True


@pytest.mark.parametrize("host", [socket.gethostname(), "1f0a2b3c4d5e"])
@pytest.mark.parametrize("pid", [1, NO_SUCH_PID])
def test_a_pid_of_another_container_says_nothing_though_the_host_has_the_same_name(me, host, pid):
    """Containers of one pod, or with the host's network, share its name; others have a new one each time."""
    other = replace(me, host=host, pid=pid, pid_namespace="4026539999", process_start="12345")
    assert other.alive() is None


def test_a_machine_that_booted_since_has_no_process_of_before(me, monkeypatch):
    monkeypatch.setattr(processes, "_pid_namespace", lambda: OF_THE_MACHINE)
    before = replace(me, boot_id="another boot", pid_namespace=OF_THE_MACHINE)
    assert before.alive() is False
    assert replace(before, host="elsewhere").alive() is None


def test_a_container_of_the_same_name_on_another_machine_is_not_taken_for_one_of_before_the_boot(me, monkeypatch):
    monkeypatch.setattr(processes, "_pid_namespace", lambda: "4026532001")
    for namespace in ("4026532001", "4026532002", OF_THE_MACHINE):
        assert replace(me, boot_id="another boot", pid_namespace=namespace).alive() is None


def test_what_an_earlier_version_noted_is_looked_for_only_where_that_can_find_it(me):
    row = {"host": me.host, "pid": me.pid, "boot_id": me.boot_id, "process_start": me.process_start}
    assert ProcessIdentity.of_row(row | {"pid_namespace": None}).alive() is True
    for changes in ({"pid": NO_SUCH_PID}, {"process_start": "12345"}, {"process_start": ""}, {"boot_id": "another"}):
        assert ProcessIdentity.of_row(row | {"pid_namespace": None} | changes).alive() is None


def test_who_sees_the_processes_of_another_namespace_looks_for_nobody(me, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(Path, "readlink", lambda path: Path("4711"))
        misled = ProcessIdentity.current()
        assert (misled.pid_namespace, misled.process_start) == ("", "")
        assert me.alive() is None and misled.alive() is None
    assert misled.alive() is None


def test_silence_counts_only_where_nobody_can_look_and_while_it_lasts(me, monkeypatch):
    monkeypatch.setattr(processes, "HEARTBEAT_SECONDS", 5.0)
    unseen = replace(me, pid_namespace="4026539999")
    assert me.gone(ago(10_000), 10_000) is False
    assert replace(me, pid=NO_SUCH_PID).gone(ago(0), 0) is True
    assert unseen.gone(ago(590), 60) is False
    assert unseen.gone(ago(610), 9.9) is False
    assert unseen.gone(ago(610), 10.0) is True
    assert unseen.silent(ago(610)) and not unseen.silent(ago(590)) and not me.silent(ago(610))


INSIDE = (
    "import sys; from pathlib import Path; from semlabel.operations import Operations\n"
    "operations = Operations(Path(sys.argv[1])); operations.start_run('night', 'nightly_labeling')\n"
    "with operations.lease('warehouse', 'night', 0):\n    print('at work', flush=True); input()\n"
)


def test_a_night_in_a_namespace_of_its_own_is_not_taken_for_dead(tmp_path):
    """The real thing, where this machine allows it: in there its pid is 1, which here is somebody else."""
    alone = ["unshare", "--pid", "--fork", "--mount-proc"]
    if shutil.which("unshare") is None or subprocess.run([*alone, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no namespace can be made here")
    command = [*alone, sys.executable, "-c", INSIDE, str(tmp_path / "ops.sqlite")]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout.readline() == "at work\n"
        operations = Operations(tmp_path / "ops.sqlite")
        run = operations.run("night")
        assert (run["host"], run["pid"]) == (socket.gethostname(), 1)
        assert operations.dead_runs(watched=False) == []
        with pytest.raises(LeaseHeld, match="run night"), operations.lease("warehouse", "second", 0):
            pytest.fail("two writers at once")
        child.communicate("\n")
