"""Bad requests: never a 5xx, no growing memory, and good requests still answered between them."""

import json

import numpy as np
import psutil
import pytest

from semlabel.serving.pointer import Pointer
from tests.serving_fixtures import QUERY, make_labelers, running, until_ready


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    labeler = make_labelers(tmp_path_factory.mktemp("labelers"))[0]
    with running(Pointer(labeler=labeler), tmp_path_factory.mktemp("run")) as found:
        until_ready(found)
        yield found


VALUES = [None, True, -1, 1e308, 10**30, "", "text", "\ud800", [], [[]], [[1], "a"], [None], {}, {"a": 1}, [10**12]]
FIELDS = {
    "/v1/score": ("query", "items", "label_token_ids", "apply_softmax", "temperature", "model", "parse_special"),
    "/v1/label": ("entity_id", "text", "candidates", "persist", "text_version"),
}


@pytest.mark.parametrize("path", FIELDS)
def test_no_document_is_a_fault_of_the_server(server, path):
    generator = np.random.default_rng(1)
    good = {"query": QUERY, "items": ["sell"]}
    statuses = set()
    for _ in range(150):
        names = generator.choice(FIELDS[path], size=generator.integers(1, 4), replace=False)
        document = {name: VALUES[generator.integers(len(VALUES))] for name in names}
        if generator.random() < 0.5:
            document = (good if path == "/v1/score" else {"text": QUERY, "candidates": ["sell"]}) | document
        status, answer, _ = server.post(path, document)
        assert status < 500, (document, answer)
        statuses.add(status)
        assert status == 200 or answer["error"]["message"]
    assert {200, 400} <= statuses


def test_bad_requests_leave_no_memory_behind_and_good_ones_are_answered(server):
    body = json.dumps({"query": "a" * 50_000, "items": ["b", 3]}).encode()
    good = server.scores(QUERY, ["sell"])
    for _ in range(100):
        assert server.post("/v1/score", body)[0] == 400
    before = psutil.Process().memory_info().rss
    for _ in range(400):
        assert server.post("/v1/score", body)[0] == 400
    assert psutil.Process().memory_info().rss - before < 20 * 2**20
    assert server.scores(QUERY, ["sell"]) == good
