"""The sensor that tells people, as the daemon runs it: killed, restarted, and without its cursor."""

import os
import subprocess
import sys
from pathlib import Path

import dagster as dg
import pytest

from pipeline.sensors import gate_alerts
from resources.notifier import NotifierResource
from resources.operations import OperationsResource
from resources.settings import SettingsResource
from semlabel.gates import GateResult
from semlabel.operations import Operations
from tests.cli_settings import smallest
from tests.receivers import web_receiver

ROOT = Path(__file__).resolve().parent.parent

# One evaluation in a process of its own, as a code server makes it.
EVALUATION = "import sys; from tests.test_sensors import evaluate; print(evaluate(sys.argv[1]))"


def evaluate(config):
    """What one evaluation says; the cursor is empty, as after it was cleared."""
    settings = SettingsResource(config_path=str(config))
    notifier = NotifierResource(settings=settings, operations=OperationsResource(settings=settings))
    with (
        dg.DagsterInstance.ephemeral() as instance,
        dg.build_sensor_context(instance=instance, cursor=None, resources={"notifier": notifier}) as context,
    ):
        return gate_alerts(context).skip_message


@pytest.fixture
def config(tmp_path):
    (tmp_path / "pipeline.toml").write_text(smallest() + '[alerts]\nurls = ["env:CHAT"]\n')
    return tmp_path / "pipeline.toml"


def say(config, verdict):
    result = GateResult("volume_change", "predictions", "ERROR", verdict, 0.2, 0.05, "Look at the sources.")
    operations = Operations(config.parent / "run" / "ops.sqlite")
    operations.record_gate("r1", result, None, "s", "1")


def test_a_sensor_that_is_killed_while_it_sends_tells_it_again_and_says_so_and_then_no_more(config, monkeypatch):
    say(config, "fail")
    with web_receiver() as web:
        monkeypatch.setenv("CHAT", web.address())
        process = subprocess.Popen(
            [sys.executable, "-c", EVALUATION, str(config)], cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}
        )
        web.on_message = process.kill  # the message has arrived, and nobody can note that it did
        assert process.wait() == -9
        web.on_message = lambda: None
        assert evaluate(config) == "1 to env:CHAT"
        assert evaluate(config) == "nothing to tell"
        first, second = (message["message"] for message in web.messages)
        assert "Alert 1 of incident 1" in first and "Alert 1 of incident 1" in second
        assert "already" not in first and "You may have alert 1 already" in second
        say(config, "fail")
        assert evaluate(config) == "nothing to tell"
        say(config, "pass")
        assert evaluate(config) == "1 to env:CHAT"
        assert evaluate(config) == "nothing to tell"
        assert web.titles[2:] == ["semlabel: volume_change recovered"]


def test_the_sensor_runs_by_itself_and_often_enough():
    assert gate_alerts.default_status == dg.DefaultSensorStatus.RUNNING
    assert gate_alerts.minimum_interval_seconds <= 30
