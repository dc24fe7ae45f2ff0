"""Fuzzed from its own description: nothing that a client sends is a fault of the server, every answer is as described.

`schemathesis` makes the requests of `/openapi.json`, good and broken ones, and checks every answer against it; for gRPC
there are random bytes and broken messages.
"""

import os
import subprocess
import sys
from pathlib import Path

import grpc
import numpy as np
import pytest

from semlabel.serving.access import Access
from semlabel.serving.pointer import Pointer
from semlabel.serving.proto import labeler_pb2
from tests.serving_fixtures import QUERY, make_labelers, running, until_ready

TOKEN = "t" * 20
BEARER = {"Authorization": f"Bearer {TOKEN}"}
CLIENTS_FAULTS = {"INVALID_ARGUMENT", "OUT_OF_RANGE", "NOT_FOUND", "PERMISSION_DENIED", "FAILED_PRECONDITION"}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    labeler = make_labelers(tmp_path_factory.mktemp("labelers"))[0]
    with running(Pointer(labeler=labeler), tmp_path_factory.mktemp("run"), Access(TOKEN.encode(), None)) as found:
        until_ready(found)
        yield found


def schemathesis(server, folder: Path, *options: str) -> str:
    """The command on every call of the server; its report, once it has ended well."""
    command = [str(Path(sys.executable).parent / "schemathesis"), "run"]
    url = f"http://127.0.0.1:{server.http}/openapi.json"
    fixed = ["--header", f"Authorization:Bearer {TOKEN}", "--generation-deterministic", "--no-shrink", "--no-color"]
    # What fits also depends on other fields and on the model's vocabulary and length, which no JSON schema says; so a
    # request that fits the schema may be refused. Every other check holds: a broken one must be.
    fixed += ["--exclude-checks", "positive_data_acceptance", "--warnings", "off"]
    done = subprocess.run(
        [*command, url, *fixed, *options],
        cwd=folder,
        env=os.environ | {"HYPOTHESIS_STORAGE_DIRECTORY": str(folder / "hypothesis")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    return done.stdout


def test_a_few_requests_of_every_described_call_find_no_fault(server, tmp_path):
    report = schemathesis(server, tmp_path, "--phases", "fuzzing", "--max-examples", "8")
    assert "No issues found" in report
    assert server.post("/v1/score", {"query": QUERY, "items": ["sell"]}, BEARER)[0] == 200


@pytest.mark.slow
def test_thousands_of_requests_of_every_described_call_find_no_fault(server, tmp_path):
    phases = "examples,coverage,fuzzing,stateful"
    report = schemathesis(server, tmp_path, "--phases", phases, "--max-examples", "1000")
    assert "No issues found" in report
    assert server.post("/v1/score", {"query": QUERY, "items": ["sell"]}, BEARER)[0] == 200


def broken_messages(seed: int, number: int):
    """Random bytes, messages cut off, with a byte changed, with fields of the other kind, and ones that say nothing."""
    chance = np.random.default_rng(seed)
    whole = labeler_pb2.ScoreRequest(
        query_text=QUERY,
        item_texts=labeler_pb2.Texts(texts=["sell", "weld"]),
        label_token_ids=labeler_pb2.TokenIds(ids=[5, 9]),
        temperature=2.0,
    ).SerializeToString()
    for _ in range(number):
        match chance.integers(4):
            case 0:
                yield chance.bytes(int(chance.integers(1, 400)))
            case 1:
                yield whole[: chance.integers(len(whole))]
            case 2:
                place = int(chance.integers(len(whole)))
                yield whole[:place] + chance.bytes(1) + whole[place + 1 :]
            case _:
                ids = chance.integers(-(2**63), 2**63 - 1, int(chance.integers(0, 5))).tolist()
                lists = [labeler_pb2.TokenIds(ids=ids)] * int(chance.integers(0, 3))
                yield labeler_pb2.ScoreRequest(
                    query_ids=labeler_pb2.TokenIds(ids=ids),
                    item_ids=labeler_pb2.TokenIdLists(lists=lists),
                    label_token_ids_by_item=labeler_pb2.TokenIdLists(lists=lists),
                    temperature=float(chance.choice([0.0, -1.0, np.nan, np.inf, 1.0])),
                ).SerializeToString()


def answers_of(server, seed: int, number: int) -> set[str]:
    """The codes of that many broken messages to both calls."""
    codes = set()
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc}") as channel:
        for call in ("Score", "Label"):
            ask = channel.unary_unary(f"/semlabel.v1.Labeler/{call}")
            for content in broken_messages(seed, number):
                try:
                    ask(content, timeout=60, metadata=[("authorization", f"Bearer {TOKEN}")])
                except grpc.RpcError as refused:
                    codes.add(refused.code().name)
                else:
                    codes.add("OK")
    return codes


def test_broken_grpc_messages_are_the_clients_fault(server):
    codes = answers_of(server, 1, 150)
    # One byte that was changed may leave a good request.
    assert "INVALID_ARGUMENT" in codes and codes - {"OK"} <= CLIENTS_FAULTS, codes
    assert server.post("/v1/score", {"query": QUERY, "items": ["sell"]}, BEARER)[0] == 200


MILLION = labeler_pb2.ScoreRequest(query_text="a", item_texts=labeler_pb2.Texts(texts=["b"] * 1_000_000))
NO_UTF8 = labeler_pb2.ScoreRequest(query_text="????").SerializeToString().replace(b"????", b"\xff\xfe\xff\xfe")


@pytest.mark.parametrize(
    ("content", "code", "told"),
    [
        (b" " * 200_000_000, "RESOURCE_EXHAUSTED", "larger than max"),
        (MILLION.SerializeToString(), "INVALID_ARGUMENT", "items: 1000000 items; at most 20000"),
        (NO_UTF8, "INVALID_ARGUMENT", "body"),
    ],
    ids=["200 MB", "a million items", "no UTF-8"],
)
def test_a_grpc_message_that_is_too_large_or_no_text_is_refused_and_the_server_goes_on(server, content, code, told):
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc}") as channel, pytest.raises(grpc.RpcError) as refused:
        ask = channel.unary_unary("/semlabel.v1.Labeler/Score")
        ask(content, timeout=60, metadata=[("authorization", f"Bearer {TOKEN}")])
    assert refused.value.code().name == code and told in refused.value.details()
    assert server.post("/v1/score", {"query": QUERY, "items": ["sell"]}, BEARER)[0] == 200


def test_without_a_token_a_message_is_not_even_parsed(server):
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc}") as channel, pytest.raises(grpc.RpcError) as refused:
        channel.unary_unary("/semlabel.v1.Labeler/Score")(b"\xff\xff", timeout=60)
    assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 6))
def test_thousands_of_broken_grpc_messages_are_the_clients_fault(server, seed):
    codes = answers_of(server, seed, 2000)
    assert codes - {"OK"} <= CLIENTS_FAULTS, codes
