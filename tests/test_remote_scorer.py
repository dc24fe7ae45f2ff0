"""`[scoring] backend = "http"`: the same margins through a server, and no answer that could be taken for them."""

import http.server
import json
import threading
from contextlib import contextmanager

import numpy as np
import pytest

from semlabel.errors import LabelerError
from semlabel.labeler import Labeler
from semlabel.manifest import read_manifest
from semlabel.remote_scorer import RemoteScorer, ask_scorer
from semlabel.serving.pointer import Pointer
from tests.serving_fixtures import QUERY, make_labelers, running, until_ready


@pytest.fixture(scope="module")
def labeler_dir(tmp_path_factory):
    return make_labelers(tmp_path_factory.mktemp("labelers"))[0]


def test_margins_through_a_server_are_the_local_ones(labeler_dir, tmp_path):
    labeler = Labeler.load(labeler_dir, device="cpu", self_check=False)
    items = labeler.prompt.items([f"keep records {number}" for number in range(50)])
    query = labeler.prompt.query(QUERY).ids
    with running(Pointer(labeler=labeler_dir), tmp_path) as server:
        until_ready(server)
        for concurrency in (1, 4):
            remote = RemoteScorer.load(labeler_dir, f"http://127.0.0.1:{server.http}", concurrency)
            found = remote.margins(query, items)
            assert found.dtype == np.float32
            assert np.abs(found - labeler.scorer.margins(query, items)).max() < 1e-5
        edited = read_manifest(labeler_dir).model_copy(update={"digest": "f" * 64})
        with pytest.raises(LabelerError, match="409"):
            RemoteScorer(remote.url.removesuffix("/v1/score"), edited, remote.prompt).margins(query, items)


def test_a_server_that_scores_is_asked_what_it_scores_with(labeler_dir, tmp_path):
    manifest = read_manifest(labeler_dir)
    with running(Pointer(labeler=labeler_dir), tmp_path) as server:
        until_ready(server)
        told = ask_scorer(labeler_dir, f"http://127.0.0.1:{server.http}")
    assert (told["reachable"], told["digest"], told["why"]) == (True, manifest.digest, "")
    assert told["name"].endswith("/v1/score")
    with saying((200, {"scores": [[0.5, 0.5]]})) as (url, _):
        told = ask_scorer(labeler_dir, url)
    assert (told["reachable"], told["digest"]) == (True, None) and "known pair" in told["why"]
    with saying((409, {"error": "another labeler"})) as (url, asked):
        told = ask_scorer(labeler_dir, url)
    assert (told["reachable"], told["digest"], len(asked)) == (False, None, 1) and "HTTP 409" in told["why"]


@contextmanager
def saying(*answers):
    """A server that gives these (status, document) in turn, and the last one for ever."""
    asked: list[object] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            status, document = answers[min(len(asked), len(answers)) - 1]
            body = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", asked
        server.shutdown()


def remote(labeler_dir, url):
    labeler = Labeler.load(labeler_dir, device="cpu", self_check=False)
    return RemoteScorer(url, labeler.manifest, labeler.prompt, pause=0.001)


def test_margins_are_recovered_in_float64_and_a_saturated_one_is_refused(labeler_dir):
    large, tiny = 1.0, 1.2345678e-38
    with saying((200, {"scores": [[large, tiny], [tiny, large]]})) as (url, asked):
        found = remote(labeler_dir, url).margins([1], [[2], [3]])
        assert found == pytest.approx([-np.log(tiny), np.log(tiny)], rel=1e-6)
        assert (asked[0]["apply_softmax"], len(asked[0]["label_token_ids"])) == (True, 2)
    with saying((200, {"scores": [[1.0, 0.0]]})) as (url, _), pytest.raises(LabelerError, match="hold no margin"):
        remote(labeler_dir, url).margins([1], [[2]])


def test_a_busy_server_is_asked_again_and_a_refusal_is_final(labeler_dir):
    good = (200, {"scores": [[0.5, 0.5]]})
    with saying((503, {}), (429, {}), good) as (url, asked):
        assert remote(labeler_dir, url).margins([1], [[2]]).tolist() == [0.0]
        assert len(asked) == 3
    with saying((400, {"error": "no"}), good) as (url, asked), pytest.raises(LabelerError, match="HTTP 400"):
        remote(labeler_dir, url).margins([1], [[2]])
    assert len(asked) == 1


@pytest.mark.parametrize("scores", [[], [[0.5, 0.5]], [[0.5], [0.5]], None, [[0.5, 0.5]] * 3])
def test_rows_that_do_not_fit_the_items_are_never_stored(labeler_dir, scores):
    with saying((200, {"scores": scores})) as (url, _), pytest.raises(LabelerError, match="rows for 2 items"):
        remote(labeler_dir, url).margins([1], [[2], [3]])
