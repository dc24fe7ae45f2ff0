"""The server: labels equal the offline ones, gRPC equals HTTP, labelers change hands between requests, limits hold."""

import gc
import http.client
import json
import ssl
import subprocess
import sys
import threading
import time
from pathlib import Path

import grpc
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from semlabel.durable import point_link
from semlabel.errors import LabelerError, SettingsError
from semlabel.labeler import Labeler, decide
from semlabel.labeler_files import switch_current
from semlabel.published import switch, write_manifest
from semlabel.serving.access import Access
from semlabel.serving.plan import Tls
from semlabel.serving.pointer import Pointer
from semlabel.serving.proto import engine_pb2, engine_pb2_grpc, labeler_pb2, labeler_pb2_grpc
from tests.serving_fixtures import QUERY, make_labelers, running, until_ready

CATALOG = [f"keep records number {index}" for index in range(30)] + ["sell goods", "repair machines"]
ROOT = Path(__file__).resolve().parent.parent


def publish_catalog(directory: Path, version: str, labeler_digest: str, texts: list[str] = CATALOG) -> None:
    """A version that holds what a server reads: the catalog and the labeler's digest."""
    path = directory / "versions" / version
    path.mkdir(parents=True)
    ids = [f"c{index}" for index in range(len(texts))]
    columns = {"candidate_id": ids, "text": texts, "certified": [True] * len(texts), "position": range(len(texts))}
    pq.write_table(pa.table(columns), path / "catalog.parquet")
    write_manifest(path, {"version": version, "labeler_digest": labeler_digest, "published_at": "2026-01-01T00:00:00"})
    switch(directory, version)


@pytest.fixture(scope="module")
def labelers(tmp_path_factory):
    return make_labelers(tmp_path_factory.mktemp("labelers"), (0.25, 1.0))


@pytest.fixture(scope="module")
def project(labelers, tmp_path_factory):
    """A project whose publication is of the first labeler."""
    published = tmp_path_factory.mktemp("published")
    publish_catalog(published, "000001-20260101T000000Z", labelers[0].name)
    return Pointer(labelers=labelers[0].parent, published=published)


@pytest.fixture(scope="module")
def server(project, labelers, tmp_path_factory):
    switch_current(labelers[0].parent, labelers[0].name)
    with running(project, tmp_path_factory.mktemp("run")) as found:
        until_ready(found)
        yield found


@pytest.fixture(scope="module")
def offline(labelers):
    return Labeler.load(labelers[0], device="cpu", self_check=False)


@pytest.fixture(scope="module")
def channel(server):
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc}") as found:
        yield found


def test_over_a_thousand_online_labels_are_the_offline_ones_bit_for_bit(server, offline):
    texts = [
        QUERY,
        "joins metal parts",
        "keeps records " * 40,
        *(f"works in office {n}" * (n % 3 + 1) for n in range(29)),
    ]
    assert len(texts) * len(CATALOG) == 1024
    for text in texts:
        status, answer, headers = server.post("/v1/label", {"entity_id": "e1", "text": text})
        assert status == 200
        margins = offline.score(text, CATALOG)
        assert [row["margin"] for row in answer["labels"]] == margins.astype(float).tolist()
        assert [row["label"] for row in answer["labels"]] == decide(margins, 0.25).tolist()
        assert [row["probability"] for row in answer["labels"]] == offline.probabilities(margins).tolist()
        assert [row["candidate_id"] for row in answer["labels"]] == [f"c{index}" for index in range(len(CATALOG))]
        assert (answer["threshold"], answer["labeler_digest"]) == (0.25, offline.digest)
        assert answer["truncated"] is offline.prompt.query(text).truncated
        assert headers["x-labeler-digest"] == offline.digest


def test_candidates_of_the_request_may_be_texts_or_ids(server, offline):
    candidates = ["weld", {"candidate_id": "c30"}, {"candidate_id": "mine", "text": "teach people"}]
    status, answer, _ = server.post("/v1/label", {"text": QUERY, "candidates": candidates})
    assert status == 200
    expected = offline.score(QUERY, ["weld", "sell goods", "teach people"])
    assert [row["margin"] for row in answer["labels"]] == expected.astype(float).tolist()
    assert [row["candidate_id"] for row in answer["labels"]] == [None, "c30", "mine"]
    assert [row["certified"] for row in answer["labels"]] == [None, True, None]


@pytest.mark.parametrize(
    ("change", "status", "field"),
    [
        ({"text": " "}, 400, "text"),
        ({"text": None}, 400, "text"),
        ({"candidates": ["sell", " "]}, 400, "candidates[1].text"),
        ({"candidates": ["word " * 90]}, 400, "candidates[0]"),
        ({"candidates": [{"candidate_id": "nobody"}]}, 400, "candidates[0].candidate_id"),
        ({"candidates": 3}, 400, "candidates"),
        ({"entity_id": 3}, 400, "entity_id"),
        ({"persist": True}, 400, "entity_id"),
        ({"persist": True, "entity_id": "e1", "text_version": 1}, 403, "persist"),
        ({"txt": "a"}, 400, "txt"),
    ],
)
def test_a_label_request_that_is_wrong_names_its_field(server, change, status, field):
    found, answer, _ = server.post("/v1/label", {"text": QUERY} | change)
    assert (found, answer["error"]["field"]) == (status, field)


def test_grpc_gives_the_same_answers_as_http(server, channel, offline):
    stub = labeler_pb2_grpc.LabelerStub(channel)
    request = labeler_pb2.ScoreRequest(
        query_text=QUERY,
        item_texts=labeler_pb2.Texts(texts=["sell", "weld"]),
        label_token_ids=labeler_pb2.TokenIds(ids=[5, 9, 33]),
        apply_softmax=True,
        temperature=2.0,
    )
    found = stub.Score(request)
    fields = {"label_token_ids": [5, 9, 33], "apply_softmax": True, "temperature": 2.0}
    assert [list(row.scores) for row in found.scores] == server.scores(QUERY, ["sell", "weld"], **fields)
    assert found.labeler_digest == offline.digest
    labels = stub.Label(labeler_pb2.LabelRequest(text=QUERY, entity_id="e1"))
    _, answer, _ = server.post("/v1/label", {"text": QUERY})
    assert [row.margin for row in labels.labels] == [row["margin"] for row in answer["labels"]]
    assert [row.label for row in labels.labels] == [row["label"] for row in answer["labels"]]
    with pytest.raises(grpc.RpcError) as refused:
        stub.Score(labeler_pb2.ScoreRequest(query_text=QUERY))
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT and "items" in refused.value.details()


def test_grpc_has_health_and_reflection(channel):
    health = health_pb2_grpc.HealthStub(channel)
    deadline = time.monotonic() + 10
    for service in ("", "semlabel.v1.Labeler"):
        request = health_pb2.HealthCheckRequest(service=service)
        while (found := health.Check(request).status) != health_pb2.HealthCheckResponse.SERVING:
            assert time.monotonic() < deadline, found
            time.sleep(0.05)
    services = ProtoReflectionDescriptorDatabase(channel).get_services()
    assert {"semlabel.v1.Labeler", "grpc.health.v1.Health"} <= set(services)


def test_random_bytes_over_grpc_are_the_clients_fault(server, channel):
    call = channel.unary_unary("/semlabel.v1.Labeler/Score")
    generator = np.random.default_rng(1)
    for length in [1, 2, 3, 10, 100, 1000] * 5:
        with pytest.raises(grpc.RpcError) as refused:
            call(generator.bytes(length), timeout=10)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert server.scores(QUERY, ["sell"])


def test_health_metrics_and_the_labeler_are_told(server, offline):
    assert server.ask("GET", "/healthz")[0] == 200
    server.scores(QUERY, ["a", "b", "c"])
    text = server.ask("GET", "/metrics")[1].decode()
    assert 'semlabel_items_total{call="score"}' in text and "semlabel_ready 1.0" in text
    about = server.ask("GET", "/v1/labeler")[1]
    answers = offline.manifest.answer_tokens
    assert about["labeler_digest"] == offline.digest and about["threshold"] == 0.25
    assert about["answer_token_ids"] == {"yes": answers.yes.id, "no": answers.no.id}
    document = server.ask("GET", "/openapi.json")[1]
    assert {"/v1/score", "/v1/label", "/healthz", "/readyz", "/metrics"} <= set(document["paths"])
    assert server.ask("GET", "/nowhere")[0] == 404


def test_logs_hold_sizes_and_never_texts(server, caplog):
    with caplog.at_level("INFO"):
        server.post("/v1/label", {"text": "a very secret text", "candidates": ["another secret"]})
        server.post("/v1/score", {"query": "a very secret text", "items": ["another secret", 3]})
    assert "http label 200 items=1" in caplog.text
    assert "secret" not in caplog.text


def test_the_server_follows_the_publication_and_holds_the_promoted_labeler_ready(labelers, tmp_path):
    published = tmp_path / "published"
    publish_catalog(published, "000001-20260101T000000Z", labelers[0].name)
    switch_current(labelers[0].parent, labelers[1].name)
    with running(Pointer(labelers=labelers[0].parent, published=published), tmp_path) as server:
        until_ready(server)
        _wait(lambda: labelers[1].name in server.ask("GET", "/v1/labeler")[1]["loaded"])
        # Promoted, not yet published: the old one answers, the new one answers who asks for it by name.
        assert server.post("/v1/label", {"text": QUERY})[1]["labeler_digest"] == labelers[0].name
        chosen = {"X-Labeler-Digest": labelers[1].name}
        assert server.post("/v1/label", {"text": QUERY}, chosen)[1]["threshold"] == 1.0
        assert server.post("/v1/label", {"text": QUERY}, {"X-Labeler-Digest": "f" * 64})[0] == 409
        failures: list[object] = []
        over = threading.Event()

        def ask() -> None:
            while not over.is_set():
                status, answer, headers = server.post("/v1/label", {"text": QUERY})
                pair = {labelers[0].name: (0.25, 32), labelers[1].name: (1.0, 2)}.get(answer.get("labeler_digest"))
                found = (answer.get("threshold"), len(answer.get("labels", [])))
                if status != 200 or pair != found or headers["x-labeler-digest"] != answer["labeler_digest"]:
                    failures.append(answer)

        asking = threading.Thread(target=ask)
        asking.start()
        publish_catalog(published, "000002-20260102T000000Z", labelers[1].name, CATALOG[:2])
        _wait(lambda: server.post("/v1/label", {"text": QUERY})[1]["labeler_digest"] == labelers[1].name)
        over.set()
        asking.join()
        assert failures == []
        assert server.post("/v1/label", {"text": QUERY})[1]["publication_version"] == "000002-20260102T000000Z"


def test_fronts_that_die_while_they_follow_the_engine_leave_the_others_told(labelers, tmp_path, caplog):
    chance = np.random.default_rng(1)
    with (
        running(Pointer(labeler=labelers[0]), tmp_path) as server,
        grpc.insecure_channel(f"unix:{tmp_path / 'engine'}") as channel,
    ):
        until_ready(server)
        watch = engine_pb2_grpc.EngineStub(channel).Watch
        for _ in range(40):
            leaving = [watch(engine_pb2.Nothing()) for _ in range(5)]
            for states in leaving:
                next(states)
            time.sleep(chance.uniform(0.0, 0.1))
            for states in leaving:
                states.cancel()
        staying = watch(engine_pb2.Nothing(), timeout=30)
        assert [next(staying).current for _ in range(5)] == [labelers[0].name] * 5
        assert [record for record in caplog.records if record.levelname == "ERROR"] == []


def test_a_labeler_that_cannot_be_loaded_leaves_the_one_that_answers(labelers, tmp_path):
    link = tmp_path / "current"
    point_link(link, labelers[0])
    broken = tmp_path / "broken"
    broken.mkdir()
    with running(Pointer(labeler=link), tmp_path) as server:
        until_ready(server)
        point_link(link, broken)
        _wait(lambda: "labeler.json" in server.engine.shelf.problem)
        assert server.post("/v1/label", {"text": QUERY, "candidates": ["sell"]})[0] == 200
        point_link(link, labelers[1])
        _wait(lambda: server.ask("GET", "/readyz")[1]["labeler_digest"] == labelers[1].name)
        assert server.engine.shelf.problem == ""


def test_without_a_labeler_it_lives_and_is_not_ready(tmp_path):
    with running(Pointer(labeler=tmp_path / "nothing"), tmp_path) as server:
        assert server.ask("GET", "/healthz")[0] == 200
        assert server.ask("GET", "/readyz")[0] == 503
        status, _, headers = server.post("/v1/score", {"query": "a", "items": ["b"]})
        assert status == 503 and int(headers["retry-after"]) >= 1


TOKEN, PERSIST = "t" * 20, "p" * 20


def test_tokens_are_asked_for_and_have_scopes(project, tmp_path):
    access = Access.from_environment({"SEMLABEL_SERVE_TOKEN": TOKEN, "SEMLABEL_SERVE_PERSIST_TOKEN": PERSIST})
    with running(project, tmp_path, access) as server:
        until_ready(server)  # probes need no token
        document = {"query": "a", "items": ["b"]}
        for header in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Basic {TOKEN}"}):
            assert server.post("/v1/score", document, header)[0] == 401
        assert server.ask("GET", "/v1/labeler")[0] == 401
        for token in (TOKEN, PERSIST):
            assert server.post("/v1/score", document, {"Authorization": f"Bearer {token}"})[0] == 200
        persist = {"entity_id": "e1", "text": QUERY, "text_version": 1, "persist": True}
        status, answer, _ = server.post("/v1/label", persist, {"Authorization": f"Bearer {TOKEN}"})
        assert (status, answer["error"]["field"]) == (403, "persist")
        with grpc.insecure_channel(f"127.0.0.1:{server.grpc}") as channel:
            stub = labeler_pb2_grpc.LabelerStub(channel)
            request = labeler_pb2.LabelRequest(text=QUERY)
            with pytest.raises(grpc.RpcError) as refused:
                stub.Label(request)
            assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
            assert stub.Label(request, metadata=[("authorization", f"Bearer {TOKEN}")]).labels


def test_a_token_that_can_be_guessed_is_refused():
    with pytest.raises(SettingsError, match="at least 16"):
        Access.from_environment({"SEMLABEL_SERVE_TOKEN": "short"})
    nobody = Access.from_environment({})
    nobody.check(None)
    with pytest.raises(Exception, match="persist"):
        nobody.check(None, persist=True)


def test_what_lives_as_long_as_the_process_is_out_of_the_collectors_way(server):
    assert gc.get_freeze_count() > 10_000


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    """An authority, and one certificate of it for both sides."""
    folder = tmp_path_factory.mktemp("certificates")

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    new = ("-newkey", "rsa:2048", "-nodes", "-days", "2")
    openssl("req", "-x509", *new, "-subj", "/CN=authority", "-keyout", "ca.key", "-out", "ca.pem")
    openssl("req", *new[:3], "-subj", "/CN=localhost", "-keyout", "key.pem", "-out", "request.pem")
    (folder / "names").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1")
    signing = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", "names")
    openssl("x509", "-req", "-in", "request.pem", *signing, "-out", "cert.pem")
    return folder


def test_with_client_certificates_nobody_else_gets_in(labelers, certificates, tmp_path):
    ca, cert, key = (certificates / name for name in ("ca.pem", "cert.pem", "key.pem"))
    tls = Tls(certificate=cert, key=key, clients=ca)
    with running(Pointer(labeler=labelers[0]), tmp_path, options={"tls": tls}) as server:
        known = ssl.create_default_context(cafile=str(ca))
        known.load_cert_chain(cert, key)
        _wait(lambda: _status(server, known) == 200)
        with pytest.raises((ssl.SSLError, OSError)):
            _status(server, ssl.create_default_context(cafile=str(ca)))
        request = labeler_pb2.ScoreRequest(query_text="a", item_texts=labeler_pb2.Texts(texts=["b"]))
        mine = grpc.ssl_channel_credentials(ca.read_bytes(), key.read_bytes(), cert.read_bytes())
        for credentials, answered in ((mine, True), (grpc.ssl_channel_credentials(ca.read_bytes()), False)):
            with grpc.secure_channel(f"localhost:{server.grpc}", credentials) as channel:
                stub = labeler_pb2_grpc.LabelerStub(channel)
                if answered:
                    assert stub.Score(request, timeout=20).scores
                else:
                    with pytest.raises(grpc.RpcError) as refused:
                        stub.Score(request, timeout=20)
                    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE


def _status(server, context):
    connection = http.client.HTTPSConnection("127.0.0.1", server.http, timeout=20, context=context)
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status
    finally:
        connection.close()


class SlowLabeler:
    """A labeler whose scorer waits at every round until it is let go."""

    def __init__(self, path: Path) -> None:
        self.labeler = Labeler.load(path, device="cpu", self_check=False, items_per_round=1)
        self.path, self.digest = self.labeler.path, self.labeler.digest
        self.scorer = self
        self.go, self.rounds_scored = threading.Event(), 0
        for name in ("rounds", "vocabulary", "longest_prompt", "most_lanes"):
            setattr(self, name, getattr(self.labeler.scorer, name))

    def probabilities(self, *arguments):
        self.go.wait(30)
        self.rounds_scored += 1
        return self.labeler.scorer.probabilities(*arguments)


@pytest.fixture
def slow(labelers, tmp_path):
    held = SlowLabeler(labelers[0])
    limits = {"waiting_requests": 2, "batch_tokens": 1, "batch_window_seconds": 0.0}
    with running(Pointer(labeler=labelers[0]), tmp_path, load=lambda _: held, **limits) as server:
        until_ready(server)
        yield server, held
        held.go.set()


def _in_background(server, document, timeout=None):
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.append(server.post("/v1/score", document)))
    thread.start()
    return thread, found


def test_a_full_queue_says_when_to_come_back_and_keeps_what_it_took(slow):
    server, held = slow
    document = {"query": "a", "items": ["b"]}
    first, second = _in_background(server, document), _in_background(server, document)
    _wait(lambda: server.engine.queue.requests == 2)
    status, _, headers = server.post("/v1/score", document)
    assert status == 429 and int(headers["retry-after"]) >= 1
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc}") as channel, pytest.raises(grpc.RpcError) as refused:
        labeler_pb2_grpc.LabelerStub(channel).Score(
            labeler_pb2.ScoreRequest(query_text="a", item_texts=labeler_pb2.Texts(texts=["b"]))
        )
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    held.go.set()
    for thread, found in (first, second):
        thread.join()
        assert found[0][0] == 200


def test_a_client_that_leaves_takes_its_unscored_rounds_with_it(slow):
    server, held = slow
    connection = http.client.HTTPConnection("127.0.0.1", server.http)
    connection.request("POST", "/v1/score", json.dumps({"query": "a", "items": ["b"] * 50}).encode())
    _wait(lambda: server.engine.queue.requests == 1)
    connection.close()
    _wait(lambda: all(request.answer.cancelled() for request in server.engine.queue._waiting))
    held.go.set()
    _wait(lambda: server.engine.queue.requests == 0)
    assert held.rounds_scored <= 2


def test_a_deadline_is_kept(slow):
    server, held = slow
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc}") as channel, pytest.raises(grpc.RpcError) as refused:
        request = labeler_pb2.ScoreRequest(query_text="a", item_texts=labeler_pb2.Texts(texts=["b"] * 9))
        labeler_pb2_grpc.LabelerStub(channel).Score(request, timeout=0.3)
    assert refused.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    held.go.set()
    _wait(lambda: server.engine.queue.requests == 0)
    assert held.rounds_scored <= 2


def test_a_short_request_passes_a_long_one_between_two_rounds(slow):
    server, held = slow
    long = _in_background(server, {"query": "a", "items": ["b"] * 40})
    _wait(lambda: server.engine.queue.requests == 1)
    short = _in_background(server, {"query": "a", "items": ["b"]})
    _wait(lambda: server.engine.queue.requests == 2)
    held.go.set()
    short[0].join()
    assert held.rounds_scored < 41 or not long[1]
    long[0].join()
    assert (len(long[1][0][1]["scores"]), len(short[1][0][1]["scores"])) == (40, 1)


def test_the_generated_code_is_what_the_proto_files_give(tmp_path):
    folder = Path("semlabel/serving/proto")
    outputs = [f"--{kind}={tmp_path}" for kind in ("python_out", "pyi_out", "grpc_python_out")]
    protos = [str(folder / f"{name}.proto") for name in ("labeler", "engine")]
    subprocess.run([sys.executable, "-m", "grpc_tools.protoc", "-I.", *outputs, *protos], cwd=ROOT, check=True)
    made = sorted((tmp_path / folder).iterdir())
    assert len(made) == 6
    for file in made:
        assert file.read_text() == (ROOT / folder / file.name).read_text(), file.name


def test_a_pointer_says_what_is_missing(tmp_path):
    with pytest.raises(LabelerError, match="no labeler is promoted"):
        Pointer(labelers=tmp_path, published=tmp_path / "published").wanted()
    with pytest.raises(LabelerError, match="no labeler directory"):
        Pointer(labeler=tmp_path / "nothing").wanted()


def _wait(condition, seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.02)
