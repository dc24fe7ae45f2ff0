"""`semlabel serve` as processes: answers, survives a killed engine, drains on SIGTERM, refuses what would be unsafe."""

import contextlib
import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time

import psutil
import pytest

from semlabel.cli import run_command
from semlabel.manifest import Manifest
from semlabel.serving.access import ANSWER_VARIABLE, PERSIST_VARIABLE
from tests.cli_settings import smallest
from tests.serving_fixtures import QUERY, make_labelers

DOCUMENT = {"query": QUERY, "items": ["sell", "weld"]}


@pytest.fixture(scope="module")
def labeler(tmp_path_factory):
    return make_labelers(tmp_path_factory.mktemp("labelers"))[0]


class Served:
    """The command as a process of its own."""

    def __init__(self, labeler, folder, *options):
        self.log = (folder / "log").open("w+")
        addresses = ["--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--device", "cpu", "--config", "none.toml"]
        command = [sys.executable, "-m", "semlabel", "serve", "--labeler", str(labeler), *addresses, *options]
        self.process = subprocess.Popen(command, stderr=self.log, cwd=folder)
        self.port = 0

    def text(self):
        self.log.flush()
        return (self.log.seek(0), self.log.read())[1]

    def ask(self, method, path, document=None, headers=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, path, json.dumps(document).encode() if document else None, headers or {})
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def status(self, method, path, document=None, headers=None):
        try:
            return self.ask(method, path, document, headers)[0]
        except (OSError, http.client.HTTPException):
            return None

    def until(self, condition, seconds=120.0):
        deadline = time.monotonic() + seconds
        while not condition():
            assert self.process.poll() is None and time.monotonic() < deadline, self.text()
            time.sleep(0.05)

    def ready(self):
        self.until(lambda: re.search(r"http://127\.0\.0\.1:(\d+)", self.text()))
        self.port = int(re.search(r"http://127\.0\.0\.1:(\d+)", self.text())[1])
        self.until(lambda: self.status("GET", "/readyz") == 200)

    def scores(self):
        """The scores of DOCUMENT; of several fronts one is ready before the others."""
        answers = []

        def answered():
            answers.append(served_answer := self.ask("POST", "/v1/score", DOCUMENT))
            return served_answer[0] != 503

        self.until(answered)
        assert answers[-1][0] == 200
        return json.loads(answers[-1][1])["scores"]

    def processes(self, module):
        found = []
        for child in psutil.Process(self.process.pid).children():
            with contextlib.suppress(psutil.NoSuchProcess):  # it has just died
                if f"semlabel.serving.{module}" in child.cmdline():
                    found.append(child)
        return found


def test_a_server_survives_its_engine_and_drains_when_told_to_end(labeler, tmp_path):
    served = Served(labeler, tmp_path, "--workers", "2")
    try:
        served.ready()
        before = served.scores()
        assert f"labeler {labeler.name[:12]}; fp32; threshold 0.2500; no token is asked for" in served.text()
        assert (len(served.processes("engine")), len(served.processes("front"))) == (1, 2)

        served.processes("engine")[0].send_signal(signal.SIGKILL)
        served.until(lambda: served.status("GET", "/readyz") == 503)
        assert served.status("POST", "/v1/score", DOCUMENT) == 503
        assert served.status("GET", "/healthz") == 200
        # A front that dies while nothing is ready must not leave its "not ready" in the metrics for ever.
        served.until(lambda: b"semlabel_ready 0.0" in served.ask("GET", "/metrics")[1])
        served.processes("front")[0].send_signal(signal.SIGKILL)
        served.until(lambda: served.status("GET", "/readyz") == 200)
        assert served.scores() == before
        served.until(lambda: len(served.processes("front")) == 2 and served.status("GET", "/metrics") == 200)
        served.until(lambda: b"semlabel_ready 1.0" in served.ask("GET", "/metrics")[1])

        found = []
        many = {"query": QUERY, "items": ["weld metal parts together"] * 20_000}
        asking = threading.Thread(target=lambda: found.append(served.ask("POST", "/v1/score", many)))
        asking.start()
        served.until(lambda: b"semlabel_engine_waiting 1.0" in served.ask("GET", "/metrics")[1])
        children = psutil.Process(served.process.pid).children(recursive=True)
        served.process.terminate()
        assert served.process.wait(60) == 0
        asking.join()
        assert found[0][0] == 200 and len(json.loads(found[0][1])["scores"]) == 20_000
        assert not any(child.is_running() for child in children)
    finally:
        served.process.kill()


def test_nothing_is_left_when_the_supervisor_is_killed(labeler, tmp_path):
    served = Served(labeler, tmp_path)
    try:
        served.ready()
        children = psutil.Process(served.process.pid).children(recursive=True)
        assert len(children) >= 2
        served.process.kill()
        _, alive = psutil.wait_procs(children, timeout=60)
        assert alive == []
    finally:
        served.process.kill()


def refused(labeler, folder, *options):
    """Exit code and stderr of a server that must not stay."""
    served = Served(labeler, folder, *options)
    try:
        code = served.process.wait(600)
    finally:
        served.process.kill()
    return code, served.text()


def resealed(labeler, folder, **changes):
    """A copy of a labeler whose digests are all right: only who loads it can tell that it is not."""
    copy = folder / "resealed"
    shutil.copytree(labeler, copy)
    content = json.loads((copy / "labeler.json").read_text()) | changes
    (copy / "labeler.json").write_text(Manifest.sealed(**content).to_json())
    return copy


def test_a_labeler_that_is_refused_at_the_start_ends_the_server_with_the_reason_and_the_fix(labeler, tmp_path):
    other = resealed(labeler, tmp_path, scoring_code_version=0)
    code, told = refused(other, tmp_path)
    assert code == 2
    last = told.splitlines()[-1]
    assert last.startswith(f"error: {other}: certified with scoring code 0")
    assert last.endswith("run the train_labeler job again to certify it with this version")
    assert "starting it again" not in told and "Traceback" not in told


def test_a_device_that_is_not_there_ends_it_too(labeler, tmp_path):
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is one")
    code, told = refused(labeler, tmp_path, "--device", "cuda")
    assert code == 2 and told.splitlines()[-1].startswith("error: ") and "use auto or cpu" in told.splitlines()[-1]


def test_a_labeler_that_is_refused_later_leaves_the_one_that_answers(labeler, tmp_path):
    link = tmp_path / "current"
    link.symlink_to(labeler)
    served = Served(link, tmp_path)
    try:
        served.ready()
        before = served.scores()
        other = resealed(labeler, tmp_path, scoring_code_version=0)
        link.unlink()
        link.symlink_to(other)
        served.until(lambda: "labeler not loaded: " in served.text())
        assert served.scores() == before and served.status("GET", "/readyz") == 200
        # An engine that is started again is not starting the server: it waits, and says why.
        served.processes("engine")[0].send_signal(signal.SIGKILL)
        served.until(lambda: b"certified with scoring code 0" in served.ask("GET", "/readyz")[1])
        link.unlink()
        link.symlink_to(labeler)
        served.until(lambda: served.status("GET", "/readyz") == 200)
        assert served.scores() == before
    finally:
        served.process.kill()


@pytest.fixture(scope="module")
def pem_files(tmp_path_factory):
    """A certificate with its key, another key, its key with a password, and a text that is none of them."""
    folder = tmp_path_factory.mktemp("pem")

    def openssl(*arguments):
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    new = ("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost")
    openssl(*new, "-keyout", "key.pem", "-out", "cert.pem")
    openssl(*new, "-keyout", "other.pem", "-out", "unused.pem")
    openssl("rsa", "-aes128", "-in", "key.pem", "-passout", "pass:secret", "-out", "locked.pem")
    (folder / "text.pem").write_text("not a certificate")
    return folder


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--http", "0.0.0.0:0"], "SEMLABEL_SERVE_TOKEN"),
        (["--grpc", "0.0.0.0:0"], "SEMLABEL_SERVE_TOKEN"),
        (["--http", "nonsense"], "HOST:PORT"),
        (["--tls-cert", "a.pem"], "belong together"),
        (["--tls-cert", "a.pem", "--tls-key", "b.pem"], "no such file"),
        (["--labeler", "nowhere"], "no labeler directory"),
        (["--device", "tpu"], "use auto, cpu, cuda"),
        (["--tls-cert", "text.pem", "--tls-key", "text.pem"], "--tls-key text.pem cannot be used"),
        (["--tls-cert", "cert.pem", "--tls-key", "other.pem"], "key values mismatch"),
        (["--tls-cert", "cert.pem", "--tls-key", "locked.pem"], "without a password"),
        (["--tls-cert", "cert.pem", "--tls-key", "key.pem", "--tls-client-ca", "text.pem"], "--tls-client-ca text.pem"),
    ],
)
def test_what_would_be_unsafe_or_cannot_work_is_refused_at_once(
    labeler, pem_files, capsys, monkeypatch, options, message
):
    monkeypatch.chdir(pem_files)
    monkeypatch.delenv("SEMLABEL_SERVE_TOKEN", raising=False)
    arguments = ["serve", "--labeler", str(labeler), "--config", "none.toml", *options]
    assert run_command(arguments) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


@pytest.mark.parametrize("option", ["--http", "--grpc"])
def test_an_address_that_is_taken_is_one_line(labeler, capsys, monkeypatch, tmp_path, option):
    monkeypatch.chdir(tmp_path)
    others = {"--http": "127.0.0.1:0", "--grpc": "127.0.0.1:0"}
    with socket.socket() as taken:
        # As another server's gRPC has it: such ports can be shared, and then half of the calls would go astray.
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        addresses = others | {option: f"127.0.0.1:{taken.getsockname()[1]}"}
        options = [part for pair in addresses.items() for part in pair]
        assert run_command(["serve", "--labeler", str(labeler), "--config", "none.toml", *options]) == 2
    error = capsys.readouterr().err
    assert f"error: {addresses[option]} cannot be had" in error.splitlines()[-1] and "Traceback" not in error


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ({ANSWER_VARIABLE: "short"}, "at least 16"),
        ({ANSWER_VARIABLE: "a token with blanks in it"}, "no header can carry"),
        ({ANSWER_VARIABLE: "é" * 20}, "no header can carry"),
        ({ANSWER_VARIABLE: "t" * 20, PERSIST_VARIABLE: "t" * 20}, "are the same"),
        ({PERSIST_VARIABLE: "p" * 20}, "updates are kept in a project"),
    ],
)
def test_tokens_that_would_not_protect_are_refused_and_never_shown(
    labeler, capsys, monkeypatch, tmp_path, tokens, message
):
    monkeypatch.chdir(tmp_path)
    for variable, token in tokens.items():
        monkeypatch.setenv(variable, token)
    assert run_command(["serve", "--labeler", str(labeler), "--config", "none.toml"]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert not any(token in error for token in tokens.values())


def test_the_environment_of_a_test_has_no_server_token():
    assert not any(name.startswith("SEMLABEL_SERVE") for name in os.environ)


def test_a_folder_that_cannot_keep_updates_is_refused_before_anything_is_confirmed(
    labeler, capsys, monkeypatch, tmp_path
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SEMLABEL_SERVE_PERSIST_TOKEN", "p" * 20)
    (tmp_path / "pipeline.toml").write_text(smallest())
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "spool").write_text("a file, not a folder")
    assert run_command(["serve", "--labeler", str(labeler)]) == 2
    error = capsys.readouterr().err
    assert "[serving] spool_dir" in error and error.count("\n") == 1
