"""Killed without a word at random points, server and ingester lose and double nothing that was confirmed.

Fronts and the engine of a real server, and a process that takes over the spool again and again, are killed with signal
9 while clients send updates; at the end every confirmed update is in the warehouse, once, with the margins of its
answer. Beside it, labelers change hands under load: every answer has the margins of the labeler that it names.
"""

import http.client
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import grpc
import pytest

from semlabel.durable import point_link
from semlabel.labeler import Labeler
from semlabel.labeler_files import switch_current
from semlabel.online_texts import ingest
from semlabel.serving.access import PERSIST_VARIABLE
from semlabel.serving.pointer import Pointer
from semlabel.serving.proto import labeler_pb2, labeler_pb2_grpc
from semlabel.settings import load_settings
from tests.cli_settings import smallest
from tests.serving_fixtures import QUERY, make_labelers, running, until_ready
from tests.storage import Project
from tests.test_serve_command import Served
from tests.test_serving import CATALOG
from tests.test_serving_updates import BEARER, PERSIST, publish_entities

ROOT = Path(__file__).parents[1]
ENTITIES = {f"e{number}": f"text {number}" for number in range(12)}

INGESTER = """
import sys, time
from pathlib import Path
from semlabel.online_texts import ingest
from semlabel.warehouse import Warehouse
folder, spool, scorer = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
with Warehouse.open(folder / "warehouse.duckdb", memory_limit="500MB", threads=1) as warehouse:
    print("begins", flush=True)
    while True:
        ingest(warehouse, spool, scorer, "night", 200)
        time.sleep(0.02)
"""


@pytest.fixture(scope="module")
def labelers(tmp_path_factory):
    made = make_labelers(tmp_path_factory.mktemp("labelers"))
    switch_current(made[0].parent, made[0].name)
    return made


class Chaos:
    """A server, clients that send updates to it, and an ingester; `kill` ends one of their processes."""

    def __init__(self, labeler: Path, folder: Path, chance: random.Random) -> None:
        self.chance, self.labeler = chance, labeler
        (folder / "pipeline.toml").write_text(smallest())
        self.paths = load_settings(folder / "pipeline.toml").paths
        publish_entities(self.paths.published, labeler.name, list(ENTITIES))
        self.warehouse = folder / "warehouse"
        project = Project(self.warehouse)
        project.put(ENTITIES, dict(zip((f"c{n}" for n in range(len(CATALOG))), CATALOG, strict=True)))
        project.close()
        self.scorer = Labeler.load(labeler, device="cpu", self_check=False).manifest.scorer_digest
        self.confirmed: dict[str, tuple[int, str, list[float]]] = {}
        self.over, self.killed = threading.Event(), Counter[str]()
        self.served = Served(labeler, folder, "--config", "pipeline.toml", "--workers", "2")
        self.ingester = self._ingester()
        self.clients = [threading.Thread(target=self._send, args=(entity_id,)) for entity_id in ENTITIES]

    def _ingester(self) -> subprocess.Popen:
        arguments = [str(self.warehouse), str(self.paths.spool), self.scorer]
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        return subprocess.Popen([sys.executable, "-c", INGESTER, *arguments], env=environment, stdout=subprocess.PIPE)

    def _send(self, entity_id: str) -> None:
        version = 0
        while not self.over.is_set():
            text = f"{entity_id} in version {version}"
            document = {"entity_id": entity_id, "text": text, "persist": True, "text_version": version}
            try:
                status, body = self.served.ask("POST", "/v1/label", document, BEARER)
            except (OSError, http.client.HTTPException):
                continue  # cut off in the middle: not confirmed, and sent again
            if status != 200:
                self.over.wait(0.02)
                continue
            margins = [row["margin"] for row in json.loads(body)["labels"]]
            self.confirmed[entity_id] = version, text, margins
            version += 1

    def kill(self, what: str) -> None:
        """Kill a front, the engine or the ingester; the supervisor, or this test, starts it again."""
        if what == "ingester":
            self.ingester.stdout.readline()  # it is at work
            self.over.wait(self.chance.uniform(0.0, 0.3))
            self.ingester.kill()
            assert self.ingester.wait() == -signal.SIGKILL
            self.ingester = self._ingester()
        else:
            self.served.until(lambda: self.served.processes(what))
            self.chance.choice(self.served.processes(what)).kill()
        self.killed[what] += 1

    def end(self, gently: bool) -> None:
        """Stop clients, server and ingester; what is left of the spool is taken over."""
        self.over.set()
        for client in self.clients:
            if client.ident is not None:
                client.join()
        self.served.process.terminate() if gently else self.served.process.kill()
        self.served.process.wait(90)
        self.ingester.kill()
        self.ingester.wait()

    def assert_everything_is_there_once(self) -> None:
        project = Project(self.warehouse)
        done = ingest(project.warehouse, self.paths.spool, self.scorer, "next", 200)
        assert done.refused == 0 and done.warnings == []
        online = "SELECT entity_id, text_version, text FROM online_texts"
        rows = {row[0]: row[1:] for row in project.warehouse.rows(online)}
        offline = Labeler.load(self.labeler, device="cpu", self_check=False)
        assert self.confirmed.keys() == ENTITIES.keys()
        for entity_id, (version, text, margins) in self.confirmed.items():
            # What was being sent when the test ended may have been kept without an answer.
            assert rows[entity_id] in ((version, text), (version + 1, f"{entity_id} in version {version + 1}"))
            assert margins == offline.score(text, CATALOG).astype(float).tolist()
        doubled = "SELECT count(*), count(DISTINCT (text_key, block_id, scorer_key)), min(len(margins)) FROM scores"
        ((stored, different, shortest),) = project.warehouse.rows(doubled)
        assert stored == different >= len(ENTITIES) and shortest > 0
        assert min(version for version, _, _ in self.confirmed.values()) > 0
        project.close()


def killed_at_random(labeler: Path, folder: Path, monkeypatch, seed: int, kills: list[str]) -> Counter[str]:
    """Everything under load, killed in this order with random pauses between."""
    monkeypatch.setenv(PERSIST_VARIABLE, PERSIST)
    chance = random.Random(seed)
    chaos = Chaos(labeler, folder, chance)
    try:
        chaos.served.ready()
        for client in chaos.clients:
            client.start()
        for what in kills:
            chaos.over.wait(chance.uniform(0.1, 1.5))
            chaos.kill(what)
        # Whatever died last is back, and every client has been confirmed something.
        chaos.served.until(lambda: [each[0] > 0 for each in list(chaos.confirmed.values())] == [True] * len(ENTITIES))
    finally:
        chaos.end(gently=seed % 2 == 0)
    chaos.assert_everything_is_there_once()
    return chaos.killed


def test_a_front_the_engine_and_the_ingester_killed_once_lose_and_double_nothing(labelers, tmp_path, monkeypatch):
    killed = killed_at_random(labelers[0], tmp_path, monkeypatch, 0, ["front", "ingester", "engine"])
    assert killed == {"front": 1, "ingester": 1, "engine": 1}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 4))
def test_killed_at_twelve_random_points_nothing_is_lost_or_doubled(labelers, tmp_path, monkeypatch, seed):
    kills = ["front"] * 5 + ["ingester"] * 5 + ["engine"] * 2
    random.Random(seed).shuffle(kills)
    assert killed_at_random(labelers[0], tmp_path, monkeypatch, seed, kills).total() == 12


def swapped_under_load(folder: Path, switches: int) -> Counter[str]:
    """Ask over HTTP and gRPC while a link goes from labeler to labeler; how many answers each labeler gave."""
    labelers = [make_labelers(folder / f"weights-{seed}", (0.25 * seed,), seed)[0] for seed in (1, 2, 3)]
    texts = [QUERY, "joins metal parts", "sells goods to people"]
    margins = {}
    for path in labelers:
        offline = Labeler.load(path, device="cpu", self_check=False)
        margins[path.name] = {text: offline.score(text, CATALOG[:6]).astype(float).tolist() for text in texts}
        margins[path.name]["threshold"] = offline.manifest.threshold
    link = folder / "current"
    point_link(link, labelers[0])
    answers, wrong, over = Counter[str](), [], threading.Event()

    def check(text, digest, threshold, found):
        expected = margins[digest]
        if (found, threshold) != (expected[text], expected["threshold"]):
            wrong.append((digest, text))
        answers[digest] += 1

    with running(Pointer(labeler=link), folder) as server:
        until_ready(server)

        def over_http(number):
            while not over.is_set():
                text = texts[number % len(texts)]
                status, answer, headers = server.post("/v1/label", {"text": text, "candidates": CATALOG[:6]})
                if status != 200 or headers["x-labeler-digest"] != answer["labeler_digest"]:
                    wrong.append((status, answer))
                    return
                found = [row["margin"] for row in answer["labels"]]
                check(text, answer["labeler_digest"], answer["threshold"], found)

        def over_grpc(number):
            candidates = [labeler_pb2.Candidate(text=text) for text in CATALOG[:6]]
            with grpc.insecure_channel(f"127.0.0.1:{server.grpc}") as channel:
                stub = labeler_pb2_grpc.LabelerStub(channel)
                while not over.is_set():
                    text = texts[number % len(texts)]
                    try:
                        answer = stub.Label(labeler_pb2.LabelRequest(text=text, candidates=candidates), timeout=60)
                    except grpc.RpcError as refused:
                        wrong.append((refused.code(), refused.details()))
                        return
                    found = [row.margin for row in answer.labels]
                    check(text, answer.labeler_digest, answer.threshold, found)

        asking = [threading.Thread(target=over_http, args=(number,)) for number in range(3)]
        asking += [threading.Thread(target=over_grpc, args=(number,)) for number in range(3)]
        for thread in asking:
            thread.start()
        for number in range(1, switches + 1):
            wanted = labelers[number % len(labelers)]
            point_link(link, wanted)
            before = answers[wanted.name]
            deadline = time.monotonic() + 60
            while answers[wanted.name] < before + 5:
                assert time.monotonic() < deadline and not wrong
                time.sleep(0.01)
        over.set()
        for thread in asking:
            thread.join()
    assert wrong == []
    return answers


def test_under_load_every_answer_has_the_margins_of_the_labeler_it_names(tmp_path):
    answers = swapped_under_load(tmp_path, 4)
    assert len(answers) == 3 and min(answers.values()) >= 5


@pytest.mark.slow
def test_under_load_thirty_switches_leave_every_answer_with_the_labeler_it_names(tmp_path):
    answers = swapped_under_load(tmp_path, 30)
    assert len(answers) == 3 and min(answers.values()) >= 50
