"""An update that was confirmed is in the spool with the very margins of its answer; what may not be kept is refused."""

import concurrent.futures
import sqlite3
import stat
from functools import partial
from pathlib import Path

import grpc
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from semlabel import spool, spool_versions
from semlabel.digests import text_id
from semlabel.labeler import Labeler
from semlabel.labeler_files import switch_current
from semlabel.serving.access import Access
from semlabel.serving.pointer import Pointer
from semlabel.serving.proto import labeler_pb2, labeler_pb2_grpc
from tests.serving_fixtures import QUERY, make_labelers, running, until_ready
from tests.test_serving import CATALOG, publish_catalog

VERSION = "000001-20260101T000000Z"
ANSWER, PERSIST = "a" * 20, "p" * 20
BEARER = {"Authorization": f"Bearer {PERSIST}"}


def publish_entities(directory: Path, labeler_digest: str, ids: list[str]) -> None:
    """A version with a catalog and these entities."""
    publish_catalog(directory, VERSION, labeler_digest)
    table = pa.table({"entity_id": sorted(ids), "text_id": [text_id(each) for each in sorted(ids)]})
    pq.write_table(table, directory / "versions" / VERSION / "entities.parquet")


@pytest.fixture(scope="module")
def labelers(tmp_path_factory):
    made = make_labelers(tmp_path_factory.mktemp("labelers"))
    switch_current(made[0].parent, made[0].name)
    return made


@pytest.fixture(scope="module")
def server(labelers, tmp_path_factory):
    folder = tmp_path_factory.mktemp("project")
    publish_entities(folder / "published", labelers[0].name, [f"e{n}" for n in range(50)] + ["é\n漢"])
    pointer = Pointer(labelers=labelers[0].parent, published=folder / "published")
    access = Access(ANSWER.encode(), PERSIST.encode())
    with running(pointer, folder, access, options={"spool": folder / "spool"}) as found:
        until_ready(found)
        found.spool = folder / "spool"
        yield found


def persist(server, entity_id, text, version, headers=BEARER):
    document = {"entity_id": entity_id, "text": text, "persist": True, "text_version": version}
    return server.post("/v1/label", document, headers)


def kept(server):
    spool.seal_all(server.spool)
    updates = [each for path in spool.sealed(server.spool) for each in spool.read(path).updates]
    for path in spool.sealed(server.spool):
        spool.remove(path, False)
    return updates


def test_a_confirmed_update_is_in_the_spool_with_the_margins_of_its_answer(server, labelers):
    status, answer, _ = persist(server, "é\n漢", QUERY, 7)
    assert (status, answer["persisted"]) == (200, True)
    (found,) = kept(server)
    assert (found.entity_id, found.text, found.text_version) == ("é\n漢", QUERY, 7)
    assert found.margins.astype(float).tolist() == [row["margin"] for row in answer["labels"]]
    assert list(found.candidate_text_ids) == [text_id(text) for text in CATALOG]
    manifest = Labeler.load(labelers[0], device="cpu", self_check=False).manifest
    assert (found.labeler_digest, found.scorer_digest) == (manifest.digest, manifest.scorer_digest)
    assert found.publication_version == VERSION and found.margins.dtype == np.float32
    assert stat.S_IMODE(server.spool.stat().st_mode) == 0o700


def test_without_persist_nothing_is_kept(server):
    status, answer, _ = server.post("/v1/label", {"entity_id": "e1", "text": QUERY}, BEARER)
    assert (status, answer["persisted"]) == (200, False) and kept(server) == []


@pytest.mark.parametrize(
    ("change", "headers", "status", "field"),
    [
        ({}, {"Authorization": f"Bearer {ANSWER}"}, 403, "persist"),
        ({}, {}, 401, None),
        ({"entity_id": "nobody"}, BEARER, 404, "entity_id"),
        ({"entity_id": "E1"}, BEARER, 404, "entity_id"),
        ({"entity_id": None}, BEARER, 400, "entity_id"),
        ({"text_version": None}, BEARER, 400, "text_version"),
        ({"text_version": 1.0}, BEARER, 400, "text_version"),
        ({"text_version": -1}, BEARER, 400, "text_version"),
        ({"text_version": 2**63}, BEARER, 400, "text_version"),
        ({"candidates": ["a"]}, BEARER, 400, "candidates"),
        ({"text": "a \ud800 b"}, BEARER, 400, "text"),
        ({"text": "\u200b\u200b"}, BEARER, 400, "text"),
        ({"entity_id": "\ud800"}, BEARER, 400, "entity_id"),
    ],
)
def test_what_may_not_be_kept_is_refused_and_leaves_nothing(server, change, headers, status, field):
    document = {"entity_id": "e1", "text": QUERY, "persist": True, "text_version": 1} | change
    found, answer, _ = server.post("/v1/label", document, headers)
    assert (found, answer["error"]["field"]) == (status, field)
    assert kept(server) == []


def test_versions_of_an_entity_only_rise_and_one_version_has_one_text(server):
    steps = [("A", 1, 200), ("B", 2, 200), ("A", 3, 200), ("B", 2, 409), ("A", 3, 200), ("B", 3, 409), ("C", 4, 200)]
    for text, version, expected in steps:
        status, answer, _ = persist(server, "e2", text, version)
        assert status == expected
        if status == 409:
            assert answer["error"]["field"] == "text_version"
    assert [(each.text, each.text_version) for each in kept(server)] == [
        ("A", 1),
        ("B", 2),
        ("A", 3),
        ("A", 3),
        ("C", 4),
    ]


def test_of_many_texts_sent_at_once_as_one_version_one_is_confirmed(server):
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda number: persist(server, "e3", f"text {number}", 1)[0], range(8)))
    assert sorted(answers) == [200] + [409] * 7
    (found,) = kept(server)
    assert answers[int(found.text.removeprefix("text "))] == 200


def test_grpc_keeps_updates_by_the_same_rules(server):
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc}") as channel:
        stub = labeler_pb2_grpc.LabelerStub(channel)

        def label(version, text, token=PERSIST, entity_id="e4"):
            request = labeler_pb2.LabelRequest(entity_id=entity_id, text=text, persist=True, text_version=version)
            return stub.Label(request, metadata=(("authorization", f"Bearer {token}"),))

        assert label(2, "A").persisted
        for arguments, code in (
            ((2, "B"), grpc.StatusCode.FAILED_PRECONDITION),
            ((1, "A"), grpc.StatusCode.FAILED_PRECONDITION),
            ((3, "A", ANSWER), grpc.StatusCode.PERMISSION_DENIED),
            ((3, "A", PERSIST, "nobody"), grpc.StatusCode.NOT_FOUND),
        ):
            with pytest.raises(grpc.RpcError) as refused:
                label(*arguments)
            assert refused.value.code() is code
    assert [(each.text, each.text_version) for each in kept(server)] == [("A", 2)]


def test_an_update_that_cannot_be_written_is_not_confirmed_and_may_be_sent_again(server, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(spool._Segment, "append", _full)
        status, _, headers = persist(server, "e5", "A", 1)
        assert status == 503 and int(headers["retry-after"]) >= 1
    assert kept(server) == []
    assert persist(server, "e5", "A", 1)[0] == 200 and len(kept(server)) == 1


def _full(segment, content):
    raise OSError(28, "No space left on device")


class _Full(sqlite3.Connection):
    """A database on a disk without room for another page."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.execute("PRAGMA max_page_count = 1")


class _ReadOnly(sqlite3.Connection):
    """A database whose disk has gone read-only once its table was made."""

    def execute(self, statement, *values):
        if statement.startswith("INSERT"):
            super().execute("PRAGMA query_only = ON")
        return super().execute(statement, *values)


def _broken(*arguments, **options):
    raise OSError(5, "Input/output error")


@pytest.mark.parametrize(
    "connect",
    [partial(sqlite3.connect, factory=_Full), partial(sqlite3.connect, factory=_ReadOnly), _broken],
    ids=["full", "read-only", "broken"],
)
def test_versions_that_cannot_be_written_are_a_503_and_the_update_may_be_sent_again(server, monkeypatch, connect):
    for file in server.spool.glob("versions.sqlite*"):
        file.unlink()
    with monkeypatch.context() as patch:
        patch.setattr(spool_versions.sqlite3, "connect", connect)
        status, answer, headers = persist(server, "e6", "A", 1)
        assert status == 503 and int(headers["retry-after"]) >= 1 and "send it again" in answer["error"]["message"]
    assert kept(server) == []
    assert persist(server, "e6", "A", 1)[0] == 200 and len(kept(server)) == 1


def test_versions_that_another_process_holds_locked_are_a_503_over_grpc_too(server, monkeypatch):
    monkeypatch.setattr(spool_versions, "_BUSY_SECONDS", 0.05)
    assert persist(server, "e7", "A", 1)[0] == 200
    holder = sqlite3.connect(server.spool / spool_versions.FILE, isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    try:
        assert persist(server, "e7", "B", 2)[0] == 503
        with grpc.insecure_channel(f"127.0.0.1:{server.grpc}") as channel, pytest.raises(grpc.RpcError) as refused:
            request = labeler_pb2.LabelRequest(entity_id="e7", text="B", persist=True, text_version=2)
            labeler_pb2_grpc.LabelerStub(channel).Label(request, metadata=(("authorization", f"Bearer {PERSIST}"),))
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        assert dict(refused.value.trailing_metadata())["retry-after"] == "5.0"
    finally:
        holder.close()
    assert persist(server, "e7", "B", 2)[0] == 200
    assert [each.text for each in kept(server)] == ["A", "B"]


def test_a_server_seals_its_segment_when_it_ends(labelers, tmp_path):
    publish_entities(tmp_path / "published", labelers[0].name, ["e1"])
    pointer = Pointer(labelers=labelers[0].parent, published=tmp_path / "published")
    with running(pointer, tmp_path, Access(None, PERSIST.encode()), options={"spool": tmp_path / "spool"}) as server:
        until_ready(server)
        assert persist(server, "e1", "A", 1)[0] == 200
        assert len(list((tmp_path / "spool").glob(f"*{spool.OPEN}"))) == 1
    (path,) = spool.sealed(tmp_path / "spool")
    assert len(spool.read(path).updates) == 1
