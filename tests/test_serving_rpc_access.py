"""Over gRPC who has no token can neither watch nor reflect nor have a message received, and keeps nobody out."""

import socket
import threading

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from semlabel.serving.access import Access
from semlabel.serving.pointer import Pointer
from semlabel.serving.proto import labeler_pb2, labeler_pb2_grpc
from tests.serving_fixtures import QUERY, make_labelers, running, until, until_ready

TOKEN, PERSIST = "t" * 20, "p" * 20
REQUEST = labeler_pb2.ScoreRequest(query_text=QUERY, item_texts=labeler_pb2.Texts(texts=["sell"]))
ALL = health_pb2.HealthCheckRequest()
RPCS, STREAMS = 6, 2


def bearer(token):
    return (("authorization", f"Bearer {token}"),)


@pytest.fixture(scope="module")
def labeler(tmp_path_factory):
    return make_labelers(tmp_path_factory.mktemp("labelers"))[0]


@pytest.fixture(scope="module")
def server(labeler, tmp_path_factory):
    access = Access(TOKEN.encode(), PERSIST.encode())
    limits = {"rpcs": RPCS, "streams": STREAMS}
    with running(Pointer(labeler=labeler), tmp_path_factory.mktemp("run"), access, **limits) as found:
        until_ready(found)
        yield found


def connection(server):
    """A channel with a connection of its own."""
    return grpc.insecure_channel(f"127.0.0.1:{server.grpc}", [("grpc.use_local_subchannel_pool", 1)])


@pytest.fixture
def channel(server):
    with connection(server) as found:
        yield found


def code_of(call):
    with pytest.raises(grpc.RpcError) as refused:
        call()
    return refused.value.code()


def test_who_has_no_token_cannot_watch_and_keeps_nobody_out(server, channel):
    for metadata in (None, bearer("wrong" * 4)):
        watches = [health_pb2_grpc.HealthStub(channel).Watch(ALL, metadata=metadata) for _ in range(3 * RPCS)]
        for watch in watches:
            assert code_of(lambda watch=watch: next(watch)) is grpc.StatusCode.UNAUTHENTICATED
        assert labeler_pb2_grpc.LabelerStub(channel).Score(REQUEST, metadata=bearer(TOKEN), timeout=30).scores
    for token in (TOKEN, PERSIST):
        watch = health_pb2_grpc.HealthStub(channel).Watch(ALL, metadata=bearer(token))
        assert next(watch).status
        watch.cancel()


def test_who_has_no_token_cannot_reflect(channel):
    def services(metadata=None):
        asked = iter([reflection_pb2.ServerReflectionRequest(list_services="")])
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        (found,) = stub.ServerReflectionInfo(asked, metadata=metadata, timeout=30)
        return {service.name for service in found.list_services_response.service}

    assert code_of(services) is grpc.StatusCode.UNAUTHENTICATED
    assert "semlabel.v1.Labeler" in services(bearer(TOKEN))


def test_the_health_of_the_server_is_told_to_everybody_and_that_of_a_service_to_who_has_a_token(channel):
    stub = health_pb2_grpc.HealthStub(channel)
    until(lambda: stub.Check(ALL, timeout=30).status == health_pb2.HealthCheckResponse.SERVING)
    unknown = health_pb2.HealthCheckRequest(service="nobody")
    assert stub.Check(unknown, timeout=30).status == health_pb2.HealthCheckResponse.SERVING
    found = code_of(lambda: stub.Check(unknown, metadata=bearer(TOKEN), timeout=30))
    assert found is grpc.StatusCode.NOT_FOUND
    named = health_pb2.HealthCheckRequest(service="semlabel.v1.Labeler")
    until(lambda: stub.Check(named, metadata=bearer(TOKEN)).status == health_pb2.HealthCheckResponse.SERVING)


@pytest.mark.parametrize("method", ["semlabel.v1.Labeler/Score", "semlabel.v1.Labeler/Label", "nobody/Nothing"])
def test_without_a_token_a_call_is_refused_before_any_message_of_it_is_there(channel, method):
    over = threading.Event()

    def never():
        over.wait(60)
        yield b""

    call = channel.stream_unary(f"/{method}")
    assert code_of(lambda: call(never(), timeout=20)) is grpc.StatusCode.UNAUTHENTICATED
    over.set()


def test_a_probe_is_answered_before_any_message_of_it_is_there(channel):
    over = threading.Event()

    def never():
        over.wait(60)
        yield b""

    call = channel.stream_unary("/grpc.health.v1.Health/Check", None, health_pb2.HealthCheckResponse.FromString)
    until(lambda: call(never(), timeout=20).status == health_pb2.HealthCheckResponse.SERVING)
    over.set()


def test_refusals_of_calls_that_are_served_are_counted(server, channel):
    stub = labeler_pb2_grpc.LabelerStub(channel)
    assert code_of(lambda: stub.Score(REQUEST)) is grpc.StatusCode.UNAUTHENTICATED
    text = server.ask("GET", "/metrics")[1].decode()
    assert 'semlabel_requests_total{call="Score",status="UNAUTHENTICATED"}' in text and "nobody" not in text


def test_one_connection_has_so_many_calls_at_a_time_and_no_more(server):
    with connection(server) as first, connection(server) as second:
        watches = [health_pb2_grpc.HealthStub(first).Watch(ALL, metadata=bearer(TOKEN)) for _ in range(STREAMS)]
        for watch in watches:
            next(watch)
        score = labeler_pb2_grpc.LabelerStub(first).Score
        waiting = code_of(lambda: score(REQUEST, metadata=bearer(TOKEN), timeout=1))
        assert waiting is grpc.StatusCode.DEADLINE_EXCEEDED
        assert labeler_pb2_grpc.LabelerStub(second).Score(REQUEST, metadata=bearer(TOKEN), timeout=30).scores
        for watch in watches:
            watch.cancel()


def test_without_tokens_everybody_who_can_connect_may_watch_and_reflect(labeler, tmp_path):
    with running(Pointer(labeler=labeler), tmp_path) as server, connection(server) as channel:
        until_ready(server)
        watch = health_pb2_grpc.HealthStub(channel).Watch(ALL)
        assert next(watch).status
        watch.cancel()
        asked = iter([reflection_pb2.ServerReflectionRequest(list_services="")])
        assert list(reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(asked, timeout=30))


def test_of_many_calls_on_one_connection_none_is_lost(server, channel):
    score = labeler_pb2_grpc.LabelerStub(channel).Score
    calls = [score.future(REQUEST, metadata=bearer(TOKEN), timeout=60) for _ in range(50 * STREAMS)]
    assert all(call.result().scores for call in calls)


def test_there_are_so_many_connections_and_no_more(labeler, tmp_path):
    with running(Pointer(labeler=labeler), tmp_path, connections=5) as server:
        until_ready(server)
        clients = [socket.create_connection(("127.0.0.1", server.grpc), timeout=20) for _ in range(8)]
        # A server greets who may stay, and hangs up on who may not.
        greeted = [bool(client.recv(100)) for client in clients]
        for client in clients:
            client.close()
        assert greeted == [True] * 5 + [False] * 3
        with connection(server) as channel:
            stub = labeler_pb2_grpc.LabelerStub(channel)
            assert stub.Score(REQUEST, timeout=30, wait_for_ready=True).scores
