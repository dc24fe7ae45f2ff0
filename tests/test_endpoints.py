"""`one_labeler_everywhere` asks servers: one left on an old labeler is red, a dead one only a warning."""

import socket

import pytest

from semlabel import gates
from semlabel.endpoints import ask_endpoints, left_behind
from semlabel.labeler_files import switch_current
from semlabel.manifest import read_manifest
from semlabel.serving.access import Access
from semlabel.serving.pointer import Pointer
from tests.serving_fixtures import make_labelers, running, until_ready
from tests.test_serving import _wait, publish_catalog


@pytest.fixture(scope="module")
def labelers(tmp_path_factory):
    return make_labelers(tmp_path_factory.mktemp("labelers"), (0.25, 1.0))


def verdict(url, manifest):
    endpoints = [{"name": "warehouse", "digest": manifest.digest, "reachable": True}, *ask_endpoints([url], manifest)]
    result = gates.one_labeler_everywhere(manifest.digest, endpoints)
    return result.verdict, result.severity


def test_a_server_left_on_an_old_labeler_is_an_error_and_a_dead_one_a_warning(labelers, tmp_path):
    old, new = map(read_manifest, labelers)
    with running(Pointer(labeler=labelers[0]), tmp_path) as server:
        until_ready(server)
        url = f"http://127.0.0.1:{server.http}/"
        assert verdict(url, old) == ("pass", "ERROR")
        assert verdict(url, new) == ("fail", "ERROR")
        edited = old.model_copy(update={"known_pairs": (old.known_pairs[0].model_copy(update={"margin": 99.0}),)})
        (told,) = ask_endpoints([url], edited)
        assert told["digest"] is None and "known pair" in told["why"]
        (told,) = ask_endpoints([url], old.model_copy(update={"threshold": 0.5}))
        assert told["digest"] is None and "threshold" in told["why"]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        assert verdict(f"http://127.0.0.1:{free.getsockname()[1]}", old) == ("fail", "WARN")


def test_a_server_that_only_holds_the_published_labeler_ready_is_wrong(labelers, tmp_path):
    publish_catalog(tmp_path / "published", "000001-20260101T000000Z", labelers[0].name)
    switch_current(labelers[0].parent, labelers[1].name)
    new = read_manifest(labelers[1])
    with running(Pointer(labelers=labelers[0].parent, published=tmp_path / "published"), tmp_path) as server:
        until_ready(server)
        url = f"http://127.0.0.1:{server.http}"
        _wait(lambda: new.digest in server.ask("GET", "/v1/labeler")[1]["loaded"])
        # Before the publication that is what is wanted. After it, it is a server that has not seen the new one.
        assert [told["digest"] for told in ask_endpoints([url], new)] == [new.digest]
        assert [told["digest"] for told in ask_endpoints([url], new, published=True)] == [labelers[0].name]
        assert left_behind([url], new.digest, 0.0) == [url]
        publish_catalog(tmp_path / "published", "000002-20260102T000000Z", new.digest)
        assert left_behind([url], new.digest, 60.0) == []
        assert [told["digest"] for told in ask_endpoints([url], new, published=True)] == [new.digest]
    assert left_behind([url], "another", 0.0) == []


def test_the_token_is_sent_and_a_server_that_refuses_is_not_called_wrong(labelers, tmp_path, monkeypatch):
    manifest = read_manifest(labelers[0])
    with running(Pointer(labeler=labelers[0]), tmp_path, Access(b"t" * 20, None)) as server:
        until_ready(server)
        url = f"http://127.0.0.1:{server.http}"
        assert verdict(url, manifest) == ("fail", "WARN")
        monkeypatch.setenv("SEMLABEL_SERVE_TOKEN", "t" * 20)
        assert verdict(url, manifest) == ("pass", "ERROR")
