"""What a client may send is never a fault of the server: inputs that once were, over HTTP and gRPC alike."""

from dataclasses import replace

import grpc
import pytest

from semlabel.labeler import Labeler
from semlabel.labeler_files import switch_current
from semlabel.serving import served
from semlabel.serving.faults import Fault
from semlabel.serving.pointer import Pointer
from semlabel.serving.proto import labeler_pb2, labeler_pb2_grpc
from tests.serving_fixtures import QUERY, SPEC, make_labelers, running, until, until_ready
from tests.test_serving import publish_catalog

LONG = "xq" * 15
"""A candidate of more than 24 tokens and less than 48."""
LABELS = [5, 9, 33]


@pytest.fixture(scope="module")
def labelers(tmp_path_factory):
    """The labeler that answers, and one whose items are shorter."""
    folder = tmp_path_factory.mktemp("labelers")
    shorter = make_labelers(folder, (0.5,), seed=1, spec=replace(SPEC, max_item_tokens=24))
    return make_labelers(folder)[0], shorter[0]


@pytest.fixture(scope="module")
def server(labelers, tmp_path_factory):
    published = tmp_path_factory.mktemp("published")
    publish_catalog(published, "000001-20260101T000000Z", labelers[0].name, ["sell goods", LONG])
    switch_current(labelers[1].parent, labelers[1].name)
    with running(Pointer(labelers=labelers[0].parent, published=published), tmp_path_factory.mktemp("run")) as found:
        until_ready(found)
        until(lambda: labelers[1].name in found.ask("GET", "/v1/labeler")[1]["loaded"])
        yield found


@pytest.fixture(scope="module")
def stub(server):
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc}") as channel:
        yield labeler_pb2_grpc.LabelerStub(channel)


@pytest.mark.parametrize("temperature", [5e-324, 1e-320, 1e-300])
def test_the_smallest_temperature_gives_everything_to_the_largest_logit(server, stub, temperature):
    asked = {"label_token_ids": LABELS, "apply_softmax": True}
    (warm,) = server.scores(QUERY, ["sell"], **asked)
    (cold,) = server.scores(QUERY, ["sell"], **asked, temperature=temperature)
    assert cold == [float(share == max(warm)) for share in warm] and sum(cold) == 1.0
    request = labeler_pb2.ScoreRequest(
        query_text=QUERY,
        item_texts=labeler_pb2.Texts(texts=["sell"]),
        label_token_ids=labeler_pb2.TokenIds(ids=LABELS),
        apply_softmax=True,
        temperature=temperature,
    )
    (row,) = stub.Score(request).scores
    assert list(row.scores) == cold


def test_a_lone_surrogate_in_a_rendered_template_is_the_character_for_what_is_none(server):
    broken = server.scores("\ud800 lone<|im_end|>", ["\udfff", "a\ud800b"], parse_special=True)
    assert broken == server.scores("\ufffd lone<|im_end|>", ["\ufffd", "a\ufffdb"], parse_special=True)


def test_a_labeler_held_ready_that_refuses_a_published_candidate_is_a_conflict_that_holds_no_text(
    server, stub, labelers
):
    assert len(server.post("/v1/label", {"text": QUERY})[1]["labels"]) == 2
    chosen = {"X-Labeler-Digest": labelers[1].name}
    status, answer, _ = server.post("/v1/label", {"text": QUERY}, chosen)
    assert (status, answer["error"]["field"]) == (409, "candidates")
    assert labelers[1].name[:12] in answer["error"]["message"] and LONG not in answer["error"]["message"]
    with pytest.raises(grpc.RpcError) as refused:
        stub.Label(labeler_pb2.LabelRequest(text=QUERY, labeler_digest=labelers[1].name))
    assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION and LONG not in refused.value.details()
    named = {"text": QUERY, "candidates": ["sell goods"]}
    assert server.post("/v1/label", named, chosen)[1]["labeler_digest"] == labelers[1].name


LONGEST = 500_000


@pytest.mark.parametrize(
    ("path", "document", "field"),
    [
        ("/v1/score", {"query": "a" * (LONGEST + 1), "items": ["b"]}, "query"),
        ("/v1/score", {"query": "a", "items": ["b", "a" * (LONGEST + 1)]}, "items[1]"),
        ("/v1/score", {"query": "a", "items": "a" * (LONGEST + 1)}, "items[0]"),
        ("/v1/label", {"text": "a" * (LONGEST + 1)}, "text"),
        ("/v1/label", {"text": "a", "candidates": ["b", "a" * (LONGEST + 1)]}, "candidates[1].text"),
    ],
)
def test_a_text_that_would_take_gigabytes_as_tokens_is_refused_by_its_length(server, path, document, field):
    status, answer, _ = server.post(path, document)
    assert (status, answer["error"]["field"], answer["error"]["limit"]) == (400, field, LONGEST)


def test_a_long_text_is_still_cut_as_the_night_cuts_it(server, labelers):
    text = "gives medicine " * 2_000
    status, answer, _ = server.post("/v1/label", {"text": text, "candidates": ["sell goods"]})
    assert status == 200 and answer["truncated"] is True
    offline = Labeler.load(labelers[0], device="cpu", self_check=False)
    assert answer["labels"][0]["margin"] == float(offline.score(text, ["sell goods"])[0])


@pytest.mark.parametrize("parse_special", [False, True])
@pytest.mark.parametrize("query", ["", QUERY])
def test_texts_are_tokenised_a_part_at_a_time_as_they_are_together(server, monkeypatch, query, parse_special):
    items = ["sell", "keep records<|im_end|>", "x" * 30, "", "weld metal parts", "a"] if query else ["sell", "weld"] * 3
    together = server.scores(query, items, parse_special=parse_special)
    monkeypatch.setattr(served, "_CHARACTERS_TOGETHER", 15)
    assert server.scores(query, items, parse_special=parse_special) == together
    document = {"text": QUERY, "candidates": ["sell goods", "repair machines", "keep records", "xq" * 100]}
    status, answer, _ = server.post("/v1/label", document)
    assert (status, answer["error"]["field"]) == (400, "candidates[3]")
    fitting = server.post("/v1/label", document | {"candidates": ["a", "b", "c"]})[1]["labels"]
    margins = [label["margin"] for label in fitting]
    assert len(set(margins)) == 3


def test_more_tokens_than_a_request_may_have_are_refused_before_all_are_tokenised(labelers, monkeypatch):
    parts = []

    def encode(texts):
        parts.append(len(texts))
        return [[1] * len(text) for text in texts]

    monkeypatch.setattr(served, "_CHARACTERS_TOGETHER", 100)
    with pytest.raises(Fault, match="more than 300 tokens in one request"):
        served.in_parts(["x" * 40] * 1000, encode, 300)
    assert parts == [3, 3, 3]
    assert served.in_parts(["x" * 40] * 7, encode, 300) == [[1] * 40] * 7
    assert served.in_parts([], encode, 0) == []
