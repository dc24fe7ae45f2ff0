"""Several labelers on one server: what is said of one is never said of another."""

import pytest

from semlabel.labeler_files import switch_current
from semlabel.serving.pointer import Pointer
from tests.serving_fixtures import QUERY, make_labelers, running, until, until_ready
from tests.test_serving import publish_catalog

FIRST, SECOND = "000001-20260101T000000Z", "000002-20260102T000000Z"
TEXTS = ["sell goods", "repair machines"]


@pytest.fixture(scope="module")
def labelers(tmp_path_factory):
    """One of 384 tokens and prompts up to 4,096, and one of 512 tokens and prompts up to 256."""
    folder = tmp_path_factory.mktemp("labelers")
    narrow = make_labelers(folder, (0.5,), seed=1, vocab_size=512, max_position_embeddings=256)
    return make_labelers(folder)[0], narrow[0]


@pytest.fixture
def server(labelers, tmp_path):
    """The publication is of the first; the second is promoted and held ready."""
    publish_catalog(tmp_path / "published", FIRST, labelers[0].name, TEXTS)
    switch_current(labelers[1].parent, labelers[1].name)
    with running(Pointer(labelers=labelers[0].parent, published=tmp_path / "published"), tmp_path) as found:
        until_ready(found)
        until(lambda: labelers[1].name in found.ask("GET", "/v1/labeler")[1]["loaded"])
        found.published = tmp_path / "published"
        yield found


def chosen(labeler):
    return {"X-Labeler-Digest": labeler.name}


def certified(server, labeler, candidates=None):
    document = {"text": QUERY} | ({"candidates": candidates} if candidates else {})
    status, answer, _ = server.post("/v1/label", document, chosen(labeler))
    assert status == 200
    return [label["certified"] for label in answer["labels"]]


def test_certified_is_said_of_the_catalogs_own_text_and_labeler_only(server, labelers):
    candidates = [
        {"candidate_id": "c0"},
        {"candidate_id": "c0", "text": TEXTS[0]},
        {"candidate_id": "c0", "text": "fly aircraft"},
        {"candidate_id": "c1", "text": TEXTS[0]},
        {"candidate_id": "mine", "text": TEXTS[0]},
        TEXTS[0],
    ]
    assert certified(server, labelers[0]) == [True, True]
    assert certified(server, labelers[0], candidates) == [True, True, None, None, None, None]
    assert certified(server, labelers[1]) == [None, None]
    assert certified(server, labelers[1], candidates[:2]) == [None, None]


def bounds(server, labeler):
    """The vocabulary and the longest prompt of a labeler, as refusals name them."""
    found = []
    for document in ({"query": [1], "items": [[9999]]}, {"query": [1] * 5000, "items": [[2]]}):
        status, answer, _ = server.post("/v1/score", document, chosen(labeler))
        assert status == 400
        found.append(answer["error"]["limit"])
    return found


def test_every_labeler_has_its_own_vocabulary_and_length_held_ready_and_answering(server, labelers):
    wide, narrow = labelers
    in_narrow = {"query": [1] * 200, "items": [[500]], "label_token_ids": [400, 511]}
    in_wide = {"query": [1] * 2000, "items": [[300]], "label_token_ids": [380, 383]}

    def holds():
        assert (bounds(server, wide), bounds(server, narrow)) == ([384, 4096], [512, 256])
        assert server.post("/v1/score", in_narrow, chosen(narrow))[0] == 200
        assert server.post("/v1/score", in_wide, chosen(wide))[0] == 200

    holds()
    publish_catalog(server.published, SECOND, narrow.name, TEXTS)
    until(lambda: server.ask("GET", "/readyz")[1]["labeler_digest"] == narrow.name)
    holds()
    assert server.post("/v1/score", in_narrow)[0] == 200
