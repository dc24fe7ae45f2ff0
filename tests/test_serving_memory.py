"""What a front and the engine keep of a request is counted, is no more than it must be, and is given back."""

import asyncio
import json
import threading
import tracemalloc
import weakref
from types import SimpleNamespace

import grpc
import numpy as np
import pytest
from fastapi import Request

from semlabel.serving import http_room, weights
from semlabel.serving.access import Access
from semlabel.serving.faults import Fault, Kind
from semlabel.serving.http_room import Answer, InRoom, held_by
from semlabel.serving.limits import Limits
from semlabel.serving.metrics import Metrics
from semlabel.serving.pointer import Pointer
from semlabel.serving.proto import labeler_pb2, labeler_pb2_grpc
from semlabel.serving.room import SMALL_BYTES, Room
from semlabel.serving.rpc_api import LabelerService
from semlabel.serving.score_request import score_request
from semlabel.serving.wire import LabelIds, Work, packed, packed_probabilities, unpacked
from tests.serving_fixtures import QUERY, make_labelers, running, until, until_ready
from tests.test_serving import SlowLabeler

MOST = 2**20


@pytest.fixture(scope="module")
def labeler(tmp_path_factory):
    return make_labelers(tmp_path_factory.mktemp("labelers"))[0]


def test_one_list_of_labels_for_all_items_travels_once_and_is_kept_once():
    work = Work("d", [1], [[]] * 20_000, LabelIds.of([list(range(100, 200))]))
    message = packed(work)
    assert (len(message.labels), len(message.label_lengths)) == (400, 4)
    assert message.ByteSize() < 81_000
    found = unpacked(message)
    assert found.labels.flat.nbytes == 400
    assert found.labels.of_items(range(7, 9)) == (tuple(range(100, 200)),) * 2
    assert found.labels.readings(20_000) == 2_000_000
    assert found.numbers == 1 + 2_000_000


def test_lists_of_labels_of_every_item_travel_and_are_kept_as_arrays():
    lists = [[1, 2], [3], [4, 5, 6]]
    found = unpacked(packed(Work("d", [1], [[7], [8, 9], []], LabelIds.of(lists))))
    assert found.items == [[7], [8, 9], []]
    assert (found.labels.flat.tolist(), found.labels.lengths.tolist()) == ([1, 2, 3, 4, 5, 6], [2, 1, 3])
    assert found.labels.of_items(range(3)) == ((1, 2), (3,), (4, 5, 6))
    assert found.labels.of_items(range(1, 3)) == ((3,), (4, 5, 6))
    assert (found.labels.readings(3), found.numbers) == (6, 1 + 3 + 6)
    shares = [np.array(row, dtype=np.float64) / 8 for row in lists]
    assert found.labels.rows(packed_probabilities(shares)) == [row.tolist() for row in shares]


@pytest.mark.parametrize("lengths", [[2, 2], [4], [-1, 3, 3], [2, 3]])
def test_lists_of_labels_that_do_not_fit_are_refused(lengths):
    message = packed(Work("d", [1], [[7], [8], [9]], LabelIds.of([[1, 2], [3], [4, 5]])))
    message.label_lengths = np.array(lengths, dtype="<i4").tobytes()
    with pytest.raises(ValueError, match=r"lists of"):
        unpacked(message)


@pytest.mark.parametrize("width", [1, 3])
def test_shared_and_repeated_lists_of_labels_give_the_same_scores(labeler, tmp_path, width):
    labels = [5, 9, 33][:width]
    with running(Pointer(labeler=labeler), tmp_path, options={"items_per_round": 2}) as server:
        until_ready(server)
        for items in (["sell"], ["sell", "weld", "", "keep records", "sell"]):
            once = server.scores(QUERY, items, label_token_ids=labels)
            assert once == server.scores(QUERY, items, label_token_ids=[labels] * len(items))
            assert [len(row) for row in once] == [width] * len(items)


def test_a_small_body_with_a_long_answer_counts_for_what_it_becomes(labeler, tmp_path):
    held = SlowLabeler(labeler)
    limits = {"waiting_tokens": 5_000, "batch_tokens": 1, "batch_window_seconds": 0.0}
    with running(Pointer(labeler=labeler), tmp_path, load=lambda _: held, **limits) as server:
        until_ready(server)
        answers = []
        document = {"query": "a", "items": ["b"]}
        first = threading.Thread(target=lambda: answers.append(server.post("/v1/score", document)[0]))
        first.start()
        until(lambda: server.engine.queue.requests == 1)
        many = {"query": "a", "items": [""] * 100, "label_token_ids": list(range(50))}
        assert server.post("/v1/score", many)[0] == 429
        held.go.set()
        first.join()
        assert answers == [200] and server.post("/v1/score", many)[0] == 200


def test_bodies_are_weighed_by_what_they_become_and_one_that_never_fits_is_refused_for_good():
    room = Room(MOST)
    with room.taken() as first, room.taken() as second:
        first.body(1000)
        assert room.left == MOST and not first.large
        first.take(MOST - 1000)
        assert room.left == 0 and not first.large
        with pytest.raises(Fault) as busy:
            second.body(SMALL_BYTES + 1)
        with pytest.raises(Fault) as never:
            first.take(1)
    assert (busy.value.kind, never.value.kind) == (Kind.BUSY, Kind.TOO_LARGE)
    assert room.left == MOST


def test_large_bodies_are_worked_on_one_at_a_time_whoever_has_left():
    begun, go = [], threading.Event()

    def work(name):
        begun.append(name)
        go.wait(30)
        return name

    async def main():
        room = Room(MOST)
        with room.taken() as leaving, room.taken() as staying, room.taken() as small:
            leaving.body(SMALL_BYTES + 1)
            staying.body(SMALL_BYTES + 1)
            first = asyncio.ensure_future(leaving.run(lambda: work("first")))
            while not begun:
                await asyncio.sleep(0.01)
            first.cancel()
            second = asyncio.ensure_future(staying.run(lambda: work("second")))
            # A small one goes on, here or in a thread of its own.
            assert [await small.run(lambda: 1), await small.run(lambda: 2, here=True)] == [1, 2]
            assert begun == ["first"]
            go.set()
            assert await second == "second" and begun == ["first", "second"]

    asyncio.run(main())


class Document:
    """Something that can be watched."""


def test_a_large_document_that_is_refused_is_gone_before_the_next_one_is_begun():
    seen = []

    def refusing(document):
        seen.append(weakref.ref(document))
        try:
            raise ValueError(document)
        except ValueError:
            raise Fault(Kind.INVALID, "no") from None

    async def main():
        with Room(MOST).taken() as held:
            held.body(SMALL_BYTES + 1)
            with pytest.raises(Fault) as refused:
                await held.run(lambda: refusing(Document()))
            assert refused.value.message == "no" and seen[0]() is None

    asyncio.run(main())


async def answering(scope, receive, send):
    held_by(Request(scope)).take(500_000)
    await Answer(b"x" * 200_000)(scope, receive, send)


def test_what_a_request_holds_is_held_until_its_answer_has_left():
    room, sent, left = Room(MOST), [], []

    async def send(message):
        sent.append(len(message.get("body", b"")))
        left.append(room.left)

    asyncio.run(InRoom(answering, room)({"type": "http"}, None, send))
    assert sent == [0, 65_536, 65_536, 65_536, 3_392, 0]
    assert set(left) == {MOST - 500_000} and room.left == MOST


def test_an_answer_that_is_not_taken_is_given_up(monkeypatch, caplog):
    monkeypatch.setattr(http_room, "_SECONDS", 0.05)
    room = Room(MOST)

    async def send(message):
        if len(message.get("body", b"")):
            await asyncio.Event().wait()

    asyncio.run(InRoom(answering, room)({"type": "http"}, None, send))
    assert room.left == MOST and "did not take its answer of 200000 bytes" in caplog.text


def test_over_grpc_too_an_answer_is_held_until_it_has_left():
    room, callbacks = Room(MOST), []

    async def score(asked, digest, seconds, held):
        held.take(500_000)
        return SimpleNamespace(scores=[[0.5]], prompt_tokens=1, labeler_digest="d", items=1)

    context = SimpleNamespace(add_done_callback=callbacks.append, time_remaining=lambda: None)
    answers = SimpleNamespace(room=room, limits=Limits(), score=score)
    content = labeler_pb2.ScoreRequest(item_texts=labeler_pb2.Texts(texts=["a"])).SerializeToString()
    found = asyncio.run(LabelerService(answers, Access(None, None), Metrics()).Score(content, context))
    assert found.scores[0].scores == [0.5] and room.left == MOST - 500_000 - len(content)
    for callback in callbacks:
        callback(context)
    assert room.left == MOST


def test_over_grpc_and_http_the_room_of_one_request_is_there_for_the_next(labeler, tmp_path):
    candidates = [f"keep records {number}" for number in range(200)]
    request = labeler_pb2.LabelRequest(text=QUERY, candidates=[{"text": text} for text in candidates])
    with running(Pointer(labeler=labeler), tmp_path, held_bytes=400_000) as server:
        until_ready(server)
        with grpc.insecure_channel(f"127.0.0.1:{server.grpc}") as channel:
            stub = labeler_pb2_grpc.LabelerStub(channel)

            def answered():
                try:
                    return len(stub.Label(request, timeout=30).labels)
                except grpc.RpcError as refused:
                    # Given back a moment after the answer is there.
                    assert refused.code() is grpc.StatusCode.RESOURCE_EXHAUSTED

            for _ in range(5):
                until(lambda: answered() == 200)
                until(lambda: server.post("/v1/label", {"text": QUERY, "candidates": candidates})[0] == 200)
        assert server.post("/v1/label", {"text": QUERY, "candidates": candidates * 4})[0] == 413


TOO_MANY = {
    "items": ("Score", labeler_pb2.ScoreRequest(item_ids={"lists": [{}] * 30_000}), "30000 items"),
    "label_token_ids": (
        "Score",
        labeler_pb2.ScoreRequest(item_ids={"lists": [{}]}, label_token_ids_by_item={"lists": [{}] * 30_000}),
        "30000 lists of labels",
    ),
    "candidates": (
        "Label",
        labeler_pb2.LabelRequest(text="a", candidates=[{"text": "b"}] * 30_000),
        "30000 candidates",
    ),
}


@pytest.mark.parametrize("field", TOO_MANY)
def test_a_grpc_message_of_too_much_is_refused_before_it_becomes_objects(labeler, tmp_path, field):
    call, request, what = TOO_MANY[field]
    with running(Pointer(labeler=labeler), tmp_path) as server:
        until_ready(server)
        with grpc.insecure_channel(f"127.0.0.1:{server.grpc}") as channel, pytest.raises(grpc.RpcError) as refused:
            channel.unary_unary(f"/semlabel.v1.Labeler/{call}")(request.SerializeToString(), timeout=60)
    assert refused.value.details() == f"{field}: {what}; at most 20000 in one request"


@pytest.mark.parametrize(("items", "ids"), [(20_000, 0), (20_000, 1), (2_000, 50), (1, 100_000)])
def test_a_request_and_its_work_weigh_no_less_than_they_take(items, ids):
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        document = {"items": [[1000 + n for n in range(ids)] for _ in range(items)]}
        # As token ids the lists of the work are those of the request.
        work = Work("d", [], document["items"], LabelIds.of([[5, 9]]))
        message = packed(work).SerializeToString()
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert len(message) < taken <= weights.of_work(work) < 3 * taken + 64 * items + 2**16
    if items * ids:
        asked = score_request(document, Limits())
        assert weights.of_score(asked) > 28 * items * ids


BOMBS = [b"[],", b"{},", b"[0],", b'{"":0},', b'{"":{}},', b'{"":{"":0}},', b"[[]],", '"ā",'.encode(), b"257,", b"1e5,"]


@pytest.mark.parametrize("part", BOMBS)
def test_as_a_document_no_body_takes_more_than_forty_times_its_bytes(part):
    body = b"[" + part * (300_000 // len(part)) + b"0]"
    tracemalloc.start()
    try:
        document = json.loads(body.decode("utf-8"))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(document) > 1000 and len(body) < peak + len(body) < 40 * len(body)
