"""What people really get, counted at a real HTTP server and a real SMTP server."""

import logging
import threading
from datetime import datetime, timedelta

import pytest

from semlabel import deliveries, operations_schema, outbox
from semlabel.gates import GateResult, cannot_compute
from semlabel.notify import deliver, try_channels
from semlabel.operations import Operations
from semlabel.run_news import Ending
from semlabel.settings import load_settings
from tests.cli_settings import smallest
from tests.receivers import closed_port, mail_receiver, web_receiver

ALERTS = """
[environment]
name = "prod"

[alerts]
urls = ["env:CHAT"]
"""


@pytest.fixture
def web():
    with web_receiver() as receiver:
        yield receiver


@pytest.fixture
def settings(tmp_path):
    """Settings with whatever is written below [alerts]."""

    def write(more=""):
        (tmp_path / "pipeline.toml").write_text(smallest() + ALERTS + more)
        settings = load_settings(tmp_path / "pipeline.toml")
        settings.paths.create()
        return settings

    return write


def say(settings, verdict, gate="volume_change", asset="predictions", severity="ERROR", message="Look at the sources."):
    result = GateResult(gate, asset, severity, verdict, 0.61, 0.9, message)
    Operations(settings.paths.ops).record_gate("run-1", result, None, "s", "1")


def send(settings, env):
    """A pass of a process that has just been started."""
    return deliver(Operations(settings.paths.ops), settings, env, seconds=600)


def test_an_incident_is_told_once_by_web_and_by_mail_and_its_end_too(settings, web, monkeypatch):
    with mail_receiver() as mail:
        project = settings('dead_man = ""\n[[alerts.routes]]\nurls = ["env:CHAT", "env:MAIL"]\n')
        env = {"CHAT": web.address(), "MAIL": mail.address()}
        for verdict in ("fail", "fail", "not_enough_data"):
            say(project, verdict)
            for _ in range(2):
                send(project, env)
        assert web.titles == ["semlabel prod: volume_change failed (ERROR)"]
        assert [message["subject"] for message in mail.messages] == web.titles
        say(project, "pass")
        for _ in range(2):
            send(project, env)
        assert web.titles[1:] == ["semlabel prod: volume_change recovered"]
        assert [message["subject"] for message in mail.messages] == web.titles
        later = datetime.now(operations_schema.UTC) + timedelta(hours=25)
        say(project, "fail")
        send(project, env)
        for module in (outbox, deliveries):
            monkeypatch.setattr(module, "now_utc", lambda: later.isoformat(timespec="microseconds"))
        say(project, "fail")
        for _ in range(2):
            send(project, env)
        assert web.titles[2:] == [
            "semlabel prod: volume_change failed (ERROR)",
            "semlabel prod: volume_change still failed (ERROR)",
        ]
        assert len(mail.messages) == len(web.messages) == 4


def test_a_dead_channel_loses_nothing_and_keeps_nobody_waiting(settings, web, monkeypatch):
    project = settings('routes = [{ urls = ["env:DEAD", "env:CHAT"] }]\n')
    port = closed_port()
    env = {"CHAT": web.address(), "DEAD": f"json://127.0.0.1:{port}/token"}
    say(project, "fail")
    say(project, "fail", gate="coverage_is_complete")
    told = send(project, env)
    assert (told.sent, told.errors) == ({"env:CHAT": 2}, {"env:DEAD": "no connection"})
    operations = Operations(project.paths.ops)
    assert [(row["id"], row["target"], row["error"]) for row in deliveries.waiting(operations.file)] == [
        (1, "env:DEAD", "no connection"),
        (2, "env:DEAD", None),
    ]
    say(project, "pass")
    later = datetime.now(operations_schema.UTC) + timedelta(hours=1)
    monkeypatch.setattr(deliveries, "now_utc", lambda: later.isoformat(timespec="microseconds"))
    with web_receiver(port) as alive:
        send(project, env | {"DEAD": alive.address("token")})
        assert [title.removeprefix("semlabel prod: ") for title in alive.titles] == [
            "volume_change failed (ERROR)",
            "coverage_is_complete failed (ERROR)",
            "volume_change recovered",
        ]
    assert len(web.messages) == 3
    assert deliveries.waiting(operations.file) == []


def test_a_refusal_and_a_variable_that_is_not_set_are_said(settings, web):
    project = settings('routes = [{ urls = ["env:CHAT", "env:NONE", "env:ODD"] }]\n')
    web.status = 503
    say(project, "fail")
    assert send(project, {"CHAT": web.address(), "ODD": "no-such-service://x"}).errors == {
        "env:CHAT": "the service answered HTTP 503",
        "env:NONE": "variable NONE is not set",
        "env:ODD": "variable ODD holds no address that apprise knows",
    }


@pytest.mark.parametrize("status", [200, 500])
def test_no_part_of_an_address_is_written_or_logged_anywhere(settings, web, capfd, caplog, status):
    project = settings('dead_man = "env:PING"\n')
    secrets = ("t0ken-in-path", "pa55word", "us3r", "qu3ry", "h3ader", "p1ng")
    env = {
        "CHAT": f"json://us3r:pa55word@127.0.0.1:{web.port}/t0ken-in-path?+X-Key=h3ader&-key=qu3ry&cto=200&rto=200",
        "PING": f"http://127.0.0.1:{web.port}/p1ng",
    }
    web.status = status
    caplog.set_level(logging.DEBUG)
    for name in ("apprise", "urllib3", "requests"):
        caplog.set_level(logging.DEBUG, logger=name)
    operations = Operations(project.paths.ops)
    operations.start_run("run-1", "nightly_labeling")
    operations.finish_run("run-1", "SUCCESS")
    say(project, "fail", severity="WARN", gate="label_rate_drift")
    told = send(project, env)
    try_channels(operations, project, env)
    assert len(web.messages) == 2 and web.pings == ["/p1ng"]
    assert bool(told.errors) == (status == 500)
    stored = b"".join(file.read_bytes() for file in project.paths.state.glob("ops.sqlite*"))
    shown = "".join(capfd.readouterr()) + caplog.text + str(told) + repr(web.messages)
    for secret in secrets:
        assert secret not in shown and secret.encode() not in stored


def test_hostile_words_stay_words_in_a_mail_and_in_a_chat(settings, web):
    hostile = (
        "x\x07\u202e<script>alert(1)</script> <!channel> @everyone [pay](http://evil.example) `rm`\r\nBcc: all@x.y"
    )
    with mail_receiver() as mail:
        project = settings('routes = [{ urls = ["env:CHAT", "env:MAIL"] }]\n')
        say(project, "fail", message=hostile)
        send(project, {"CHAT": web.address(), "MAIL": mail.address()})
        (message,) = mail.messages
        assert message["bcc"] is None
        mailed = message.get_body(("html", "plain")).get_content()
    for text in (mailed, web.messages[0]["message"]):
        for harm in ("<script", "<!channel", "@everyone", "](", "http://evil", "\x07", "\u202e", "`"):
            assert harm not in text
        assert "everyone" in text


def test_alerts_go_where_the_routes_say_and_to_all_when_none_does(settings):
    project = settings(
        'routes = [{ gates = ["volume_change"], severities = ["ERROR"], urls = ["env:PAGER"] },'
        ' { owners = ["team:search"], urls = ["env:SEARCH", "env:PAGER"] }]\n'
        '[alerts.owners]\npredictions = "team:search"\n'
    )
    asked = {
        ("predictions", "volume_change", "ERROR"): ["env:PAGER", "env:SEARCH"],
        ("predictions", "volume_change", "WARN"): ["env:SEARCH", "env:PAGER"],
        ("catalog", "catalog_contract", "ERROR"): ["env:CHAT"],
    }
    assert {key: project.alerts.recipients(*key) for key in asked} == asked
    assert project.alerts.channels == ["env:CHAT", "env:PAGER", "env:SEARCH"]


def test_a_failed_run_is_routed_like_a_gate_and_reaches_people(settings, web):
    project = settings(
        'routes = [{ gates = ["run"], assets = ["nightly_labeling"], urls = ["env:PAGER"] },'
        ' { assets = ["train_labeler"], urls = ["env:MAIL"] }]\n'
    )
    assert project.alerts.recipients("nightly_labeling", "run", "ERROR") == ["env:PAGER"]
    assert project.alerts.recipients("train_labeler", "run", "ERROR") == ["env:MAIL"]
    operations = Operations(project.paths.ops)
    operations.start_run("n1", "nightly_labeling")
    operations.finish_run("n1", "FAILURE", ending=Ending("nightly_labeling", True, "entities.csv: no such file"))
    send(project, {"PAGER": web.address()})
    assert web.titles == ["semlabel prod: run failed (ERROR)"]
    assert web.messages[0]["message"].startswith("nightly_labeling failed: entities.csv: no such file")


def night(settings, run_id="n1", job="nightly_labeling", status="SUCCESS", gate="pass"):
    operations = Operations(settings.paths.ops)
    operations.start_run(run_id, job)
    result = GateResult("volume_change", "predictions", "ERROR", gate, 1, 1, "Look.")
    operations.record_gate(run_id, result, None, run_id, "1")
    operations.finish_run(run_id, status)


def test_a_good_night_is_pinged_once_and_the_next_one_again(settings, web):
    project = settings('dead_man = "env:PING"\n')
    env = {"PING": f"http://127.0.0.1:{web.port}/ping"}
    night(project)
    for _ in range(2):
        send(project, env)
    assert web.pings == ["/ping"]
    night(project, "n2")
    send(project, env)
    assert web.pings == ["/ping", "/ping"]


@pytest.mark.parametrize(
    "bad",
    [
        {"status": "FAILURE"},
        {"gate": "fail"},
        {"gate": "not_enough_data"},
        {"job": "train_labeler"},
        {"job": "nightly_labeling of 5 entities"},
        {"job": "nightly_labeling until entities"},
    ],
)
def test_what_is_no_good_night_is_not_pinged(settings, web, bad):
    project = settings('dead_man = "env:PING"\n')
    night(project, **bad)
    deliver(Operations(project.paths.ops), project, {"PING": f"http://127.0.0.1:{web.port}/"}, seconds=0)
    assert web.pings == []


def test_a_ping_that_failed_is_sent_later_but_not_days_later(settings, web, monkeypatch):
    from semlabel import notify

    project = settings('dead_man = "env:PING"\n')
    env = {"PING": f"http://127.0.0.1:{web.port}/ping"}
    night(project)
    web.status = 500
    told = send(project, env)
    assert told.errors == {"env:PING": "the service answered HTTP 500"}
    web.status = 200
    send(project, env)
    assert len(web.pings) == 1  # it rests like every channel that failed
    now = datetime.now(operations_schema.UTC)
    monkeypatch.setattr(deliveries, "now_utc", lambda: (now + timedelta(hours=1)).isoformat(timespec="microseconds"))
    with monkeypatch.context() as days_later:
        days_later.setattr(notify, "now_utc", lambda: (now + timedelta(days=2)).isoformat())
        send(project, env)
    assert len(web.pings) == 1
    send(project, env)
    send(project, env)
    assert len(web.pings) == 2


def test_a_gate_that_could_not_be_computed_is_told_without_the_texts_it_failed_on(settings, web):
    project = settings()
    operations = Operations(project.paths.ops)
    foreign = cannot_compute("predictions_contract", "ValueError: Nina Example, 12 Main Street")
    ours = cannot_compute("entities_contract", "SourceError: entities.csv: no column entity_id; found a, b")
    own_words = cannot_compute("held_out_errors", "the threshold was not searched")
    for result in (foreign, ours, own_words):
        operations.record_gate("run-1", result, None, "s", "1")
    send(project, {"CHAT": web.address()})
    first, second, third = (message["message"] for message in web.messages)
    assert "Nina" not in first and "could not be computed (ValueError)" in first
    assert "entities.csv: no column entity_id; found a, b" in second
    assert "the threshold was not searched" in third


def test_a_run_that_ends_while_the_daemon_sends_waits_and_sends_the_rest_only(settings, web):
    project = settings()
    say(project, "fail")
    say(project, "fail", gate="coverage_is_complete")
    file = Operations(project.paths.ops).file
    deliveries.route(file, lambda _: ["env:CHAT"], ["env:CHAT"])
    claim = deliveries.claim(file, "env:CHAT")
    assert send(project, {"CHAT": web.address()}).sent == {}
    waiting = threading.Event()
    run = threading.Thread(
        target=lambda: (
            waiting.set(),
            deliver(Operations(project.paths.ops), project, {"CHAT": web.address()}, seconds=600, patience=600),
        )
    )
    run.start()
    waiting.wait()
    deliveries.record(file, claim.outbox_id, claim.target, None, claim.token)
    run.join()
    assert web.titles == ["semlabel prod: coverage_is_complete failed (ERROR)"]


def test_a_test_message_tells_which_channel_works_and_wakes_one_that_rested(settings, web):
    project = settings('routes = [{ urls = ["env:DEAD"] }]\n')
    say(project, "fail")
    port = closed_port()
    env = {"CHAT": web.address(), "DEAD": f"json://127.0.0.1:{port}/"}
    send(project, env)
    operations = Operations(project.paths.ops)
    assert try_channels(operations, project, env) == {"env:CHAT": None, "env:DEAD": "no connection"}
    assert web.titles == ["semlabel prod: test of the alerts"]
    env["DEAD"] = web.address()
    assert set(try_channels(operations, project, env).values()) == {None}
    assert send(project, env).sent == {"env:DEAD": 1}
