"""The files of the deployment guide fit the command: its options, its addresses, its probes and how long it drains."""

import configparser
import json
import re
import shlex
from pathlib import Path

import pytest
import yaml

from semlabel.cli import run_command
from semlabel.labeler_files import switch_current
from semlabel.serving import supervisor
from semlabel.serving.access import ANSWER_VARIABLE, PERSIST_VARIABLE, Access
from semlabel.serving.answers import Answers
from semlabel.serving.http_api import build_app
from semlabel.serving.limits import Limits
from semlabel.serving.metrics import Metrics
from semlabel.settings import load_settings
from tests.cli_settings import smallest
from tests.serving_fixtures import make_labelers

PAGE = (Path(__file__).parents[1] / "docs" / "serving.md").read_text()
# Fronts first, then the engine: each gets its time to drain and five seconds more.
DRAINED = 2 * (Limits().drain_seconds + 5)


def block(language: str) -> str:
    (found,) = re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.S | re.M)
    return found


def unit():
    parser = configparser.ConfigParser(strict=True, interpolation=None)
    parser.optionxform = str
    parser.read_string(block("ini"))
    return parser


def image() -> dict[str, str]:
    lines = block("dockerfile").replace("\\\n", " ").splitlines()
    return {line.partition(" ")[0]: line.partition(" ")[2] for line in lines if line and not line.startswith("#")}


def manifests() -> dict[str, dict]:
    return {document["kind"]: document for document in yaml.safe_load_all(block("yaml"))}


def container() -> tuple[dict, dict]:
    pod = manifests()["Deployment"]["spec"]["template"]["spec"]
    (found,) = pod["containers"]
    return pod, found


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project with a promoted labeler, in which nothing is really started."""
    (tmp_path / "pipeline.toml").write_text(smallest())
    made = make_labelers(tmp_path / "run")[0]
    assert load_settings(tmp_path / "pipeline.toml").paths.labelers == made.parent
    switch_current(made.parent, made.name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(ANSWER_VARIABLE, "t" * 20)
    return tmp_path


def planned(monkeypatch, arguments: list[str]):
    """The plan that the command makes of these arguments."""
    plans = []
    monkeypatch.setattr(supervisor, "run", lambda plan, announce: plans.append(plan))
    assert run_command(arguments) == 0
    return plans[0]


def test_the_systemd_unit_starts_what_it_says_and_waits_until_it_is_drained(project, monkeypatch):
    service = unit()["Service"]
    command = shlex.split(service["ExecStart"])
    assert command[0].startswith(service["WorkingDirectory"])
    plan = planned(monkeypatch, command[1:])
    assert plan.http.host == plan.grpc.host == "127.0.0.1" and plan.workers == 2
    # Only the supervisor is told to end: it ends the others in order.
    assert service["KillMode"] == "mixed" and float(service["TimeoutStopSec"]) >= DRAINED
    assert service["Restart"] in ("always", "on-failure")


def test_the_systemd_unit_lets_updates_be_written(project, monkeypatch):
    service = unit()["Service"]
    monkeypatch.setenv(PERSIST_VARIABLE, "p" * 20)
    plan = planned(monkeypatch, shlex.split(service["ExecStart"])[1:])
    written = Path(service["WorkingDirectory"]) / plan.spool.relative_to(project)
    assert written == Path(service["ReadWritePaths"]) and service["ProtectSystem"] == "strict"


def test_the_image_answers_where_the_pod_says_and_only_with_a_token(project, monkeypatch, capsys):
    entry, given = json.loads(image()["ENTRYPOINT"]), json.loads(image()["CMD"])
    pod, found = container()
    assert entry[0] == "semlabel" and "command" not in found and "args" not in found
    place = given[given.index("--config") + 1]
    arguments = [*entry[1:], *(str(project / "pipeline.toml") if part == place else part for part in given)]
    plan = planned(monkeypatch, arguments)
    assert {port["containerPort"] for port in found["ports"]} == {plan.http.port, plan.grpc.port}
    (volume,) = (each for each in found["volumeMounts"] if each["name"] == "project")
    assert Path(place).parent == Path(volume["mountPath"]) and volume["readOnly"]
    assert {each["name"] for each in found["volumeMounts"]} == {each["name"] for each in pod["volumes"]}
    # It listens beyond loopback, so it needs the secret that the pod brings.
    secrets = [source["secretRef"]["name"] for source in found["envFrom"]]
    assert secrets and f"{ANSWER_VARIABLE}=" in PAGE
    monkeypatch.delenv(ANSWER_VARIABLE)
    assert run_command(arguments) == 2 and ANSWER_VARIABLE in capsys.readouterr().err


def test_the_probes_ask_what_the_server_has_and_the_pod_outlives_the_draining(project):
    pod, found = container()
    app = build_app(Answers(None, Limits()), Access(None, None), Metrics())
    routes = {route.path for route in app.routes}
    named = {port["name"]: port["containerPort"] for port in found["ports"]}
    probes = {name: found[f"{name}Probe"] for name in ("startup", "readiness", "liveness")}
    assert {name: probe["httpGet"]["path"] for name, probe in probes.items()} == {
        "startup": "/readyz",
        "readiness": "/readyz",
        "liveness": "/healthz",
    }
    for probe in probes.values():
        assert probe["httpGet"]["path"] in routes and probe["httpGet"]["port"] == "http"
    pause = found["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert pod["terminationGracePeriodSeconds"] >= pause + DRAINED
    service = manifests()["Service"]["spec"]
    labels = manifests()["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert service["selector"].items() <= labels.items()
    assert manifests()["Deployment"]["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert {port["targetPort"] for port in service["ports"]} == set(named)


def test_every_option_and_path_the_page_names_is_there():
    from tools.docs_reference import cli_markdown

    known = set(re.findall(r"--[a-z][a-z-]+", re.search(r"## semlabel serve\n(.*?)\n## ", cli_markdown(), re.S)[1]))
    for line in PAGE.splitlines():
        if "semlabel serve" in line or line.startswith("CMD"):
            assert set(re.findall(r"--[a-z][a-z-]+", line)) <= known, line
