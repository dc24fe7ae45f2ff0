"""`semlabel alerts` and what status and a run say of alerts: exit codes, shapes, and whom they reach."""

import json

import pytest

from semlabel import deliveries
from semlabel.gates import GateResult
from semlabel.operations import Operations
from tests.cli_settings import smallest
from tests.receivers import closed_port, web_receiver


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project in the current folder with a channel CHAT; nothing has run."""
    (tmp_path / "pipeline.toml").write_text(smallest() + '[alerts]\nurls = ["env:CHAT"]\n')
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SEMLABEL_CONFIG", raising=False)
    monkeypatch.setenv("CHAT", f"json://127.0.0.1:{closed_port()}/t0ken")
    return tmp_path


@pytest.fixture
def red(project):
    """`ops.sqlite` with one open incident that the channel did not take."""
    operations = Operations(project / "run" / "ops.sqlite")
    result = GateResult("volume_change", "predictions", "ERROR", "fail", 0.2, 0.05, "20 % would vanish: look.")
    operations.record_gate("r1", result, None, "s", "1")
    deliveries.route(operations.file, lambda _: ["env:CHAT"], ["env:CHAT"])
    claim = deliveries.claim(operations.file, "env:CHAT")
    deliveries.record(operations.file, 1, "env:CHAT", "no connection", claim.token)
    return operations


def test_before_a_first_run_there_is_nothing_and_nothing_is_made(command, project):
    code, out, err = command("alerts", "--json")
    assert (code, err) == (0, "")
    channel = {"target": "env:CHAT", "failures": None, "error": None, "attempted_at": None, "succeeded_at": None}
    assert json.loads(out) == {"incidents": [], "undelivered": [], "channels": [channel]}
    code, out, _ = command("alerts")
    assert (code, "No open incident." in out) == (0, True)
    assert not (project / "run").exists()


def test_open_incidents_and_what_did_not_arrive_are_listed(command, red):
    code, out, err = command("alerts", "--json")
    assert (code, err) == (0, "")
    document = json.loads(out)
    (incident,) = document["incidents"]
    assert {
        name: incident[name] for name in ("incident", "gate", "asset", "severity", "verdict", "run_id", "told")
    } == {
        "incident": 1,
        "gate": "volume_change",
        "asset": "predictions",
        "severity": "ERROR",
        "verdict": "fail",
        "run_id": "r1",
        "told": 0,
    }
    (row,) = document["undelivered"]
    assert (row["id"], row["target"], row["attempts"], row["error"]) == (1, "env:CHAT", 1, "no connection")
    assert (document["channels"][0]["failures"], document["channels"][0]["error"]) == (1, "no connection")
    _, out, _ = command("alerts")
    for part in ("volume_change", "20 % would vanish: look.", "nobody yet", "no connection, 1 attempt", "FAILS"):
        assert part in out


def test_status_shows_a_channel_that_fails_and_what_waits_for_it(command, red):
    _, out, _ = command("status")
    line = "Alerts: 1 open incident, 1 alert not delivered, env:CHAT FAILS (no connection); see `semlabel alerts`"
    assert line in out.splitlines()
    _, out, _ = command("status", "--json")
    assert json.loads(out)["alerts"]["undelivered"][0]["error"] == "no connection"


def test_what_is_acknowledged_says_by_whom_and_why(command, red):
    code, out, _ = command("alerts", "ack", "volume_change", "--who", "ann", "--reason", "known", "--json")
    assert code == 0
    assert [(row["incident"], row["acknowledged_by"], row["reason"]) for row in json.loads(out)] == [
        (1, "ann", "known")
    ]
    assert "ann" in command("alerts")[1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("alerts", "ack", "bogus"), "no open incident is called bogus"),
        (("alerts", "ack"), "Missing argument"),
        (("alerts", "bogus"), "No such command 'bogus'"),
    ],
)
def test_a_mistake_is_one_line_and_exit_2(command, red, arguments, message):
    code, out, err = command(*arguments)
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1 and message in err


def test_a_test_says_which_channel_fails_and_exits_1(command, project, monkeypatch):
    (project / "pipeline.toml").write_text(
        smallest() + '[alerts]\nurls = ["env:CHAT"]\nroutes = [{ urls = ["env:PAGER"], gates = ["volume_change"] }]\n'
        'dead_man = "env:PING"\n'
    )
    with web_receiver() as web:
        monkeypatch.setenv("PAGER", web.address("t0ken"))
        code, out, err = command("alerts", "test", "--json")
        assert (code, err) == (1, "")
        assert json.loads(out) == [
            {"target": "env:CHAT", "ok": False, "error": "no connection"},
            {"target": "env:PAGER", "ok": True, "error": None},
            {"target": "env:PING", "ok": False, "error": "variable PING is not set"},
        ]
        monkeypatch.setenv("CHAT", web.address("t0ken"))
        monkeypatch.setenv("PING", f"http://127.0.0.1:{web.port}/p1ng")
        code, out, _ = command("alerts", "test")
        assert code == 0
        assert "t0ken" not in out
        assert "ok env:PING can be pinged; not done now" in " ".join(out.split())
        assert "p1ng" not in out and web.pings == []
        assert web.titles == ["semlabel: test of the alerts"] * 3
    assert not (project / "run").exists()


@pytest.mark.parametrize(
    ("address", "error"),
    [
        (" ", "variable PING is not set"),
        ("hc-ping.example/uuid", "variable PING holds no http address"),
        ("htps://hc-ping.example/uuid", "variable PING holds no http address"),
        ("https://[hc-ping.example/uuid", "variable PING holds no address that can be read"),
        ("https://hc-ping.example:80a/uuid", "variable PING holds no address that can be read"),
        ("https:///uuid", "variable PING holds an address that cannot be pinged: write https://HOST/PATH"),
        ("https://me:pw@hc-ping.example/uuid", "variable PING holds an address that cannot be pinged"),
        ("https://hc-ping.example/my night", "variable PING holds an address that cannot be pinged"),
        ("https://hc-ping.example/ü", "variable PING holds an address that cannot be pinged"),
        ("HTTPS://hc-ping.example/uuid", None),
    ],
)
def test_a_dead_man_address_that_cannot_work_is_found_before_a_night_and_nothing_is_pinged(
    command, project, monkeypatch, address, error
):
    (project / "pipeline.toml").write_text(smallest() + '[alerts]\ndead_man = "env:PING"\n')
    monkeypatch.setenv("PING", address)
    monkeypatch.setattr("urllib.request.urlopen", None)
    code, out, err = command("alerts", "test", "--json")
    (row,) = json.loads(out)
    assert (code, err, row["target"], row["ok"]) == (int(error is not None), "", "env:PING", error is None)
    assert (row["error"] or "").startswith(error or "")
    assert "uuid" not in out and "pw" not in out


def test_the_runbook_page_of_a_gate_is_there_without_a_project_and_a_wrong_name_is_one_line(
    command, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    code, out, err = command("alerts", "explain", "held_out_quality")
    assert (code, err) == (0, "")
    assert out.startswith("# held_out_quality\n") and "## How to fix\n" in out
    for arguments in (("alerts", "--json", "explain", "run"), ("alerts", "explain", "run", "--json")):
        assert json.loads(command(*arguments)[1])["page"].startswith("# run\n")
    code, out, err = command("alerts", "explain", "held_out_qualty")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert 'did you mean "held_out_quality"?' in err


def test_options_before_a_subcommand_count_too(command, red, project):
    (project / "pipeline.toml").rename(project / "mine.toml")
    for arguments in (
        ("alerts", "--config", "mine.toml", "--json", "ack", "1"),
        ("alerts", "ack", "1", "-c", "mine.toml"),
    ):
        code, out, err = command(*arguments)
        assert (code, err) == (0, "")
        assert out.startswith("[") == ("--json" in arguments)


def test_a_test_without_a_channel_says_what_to_set(command, project):
    (project / "pipeline.toml").write_text(smallest())
    code, out, err = command("alerts", "test")
    assert (code, out) == (2, "")
    assert "set [alerts] urls" in err
    assert "Nobody is told" in command("alerts")[1]
