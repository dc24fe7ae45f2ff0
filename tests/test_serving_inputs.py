"""What a client may send is never a fault of the server: inputs that once were, over HTTP and gRPC alike."""

from dataclasses import replace

import grpc
import pytest

from semlabel.labeler_files import switch_current
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
