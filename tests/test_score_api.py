"""`/v1/score` speaks the score API: every point of its conformance list, over a real socket, with a tiny labeler."""

import random
import socket
import threading
import unicodedata

import numpy as np
import pytest
import torch

from semlabel.labeler import Labeler
from semlabel.serving.pointer import Pointer
from semlabel.text_tokenizer import TextTokenizer
from tests.serving_fixtures import QUERY, make_labelers, running, until_ready
from tests.tiny import tiny_tokenizer

LABELS = [266, 265, 5, 9, 33, 40, 51, 62, 73, 84, 95, 106]


@pytest.fixture(scope="module")
def labeler_dir(tmp_path_factory):
    return make_labelers(tmp_path_factory.mktemp("labelers"))[0]


@pytest.fixture(scope="module")
def server(labeler_dir, tmp_path_factory):
    limits = {"header_seconds": 1.0, "body_seconds": 1.0}
    with running(Pointer(labeler=labeler_dir), tmp_path_factory.mktemp("run"), **limits) as found:
        until_ready(found)
        yield found


@pytest.fixture(scope="module")
def model(labeler_dir):
    return Labeler.load(labeler_dir, device="cpu", self_check=False).scorer.model


def ids(length, seed):
    return np.random.default_rng(seed).integers(0, 384, length).tolist()


def plain(model, prompt, labels, softmax=False, temperature=1.0):
    """What `transformers` alone says of one prompt."""
    from semlabel.models import stock_attention, using_attention

    with torch.inference_mode(), using_attention(model, stock_attention(model.config)):
        logits = model(input_ids=torch.tensor([prompt])).logits[0, -1].double()
    if softmax:
        return torch.softmax(logits[labels] / temperature, 0).tolist()
    return torch.softmax(logits, 0)[labels].tolist()


def test_1_the_answer_has_its_fields_and_a_row_per_item(server, labeler_dir):
    document = {"query": QUERY, "items": ["sell", "weld parts"], "label_token_ids": LABELS[:3], "model": "mine"}
    status, answer, headers = server.post("/v1/score", document)
    assert (status, answer["object"], answer["model"]) == (200, "scoring", "mine")
    assert [len(row) for row in answer["scores"]] == [3, 3]
    texts = TextTokenizer(tiny_tokenizer())
    tokens = len(texts.ids(QUERY)) + len(texts.ids("sell")) + len(texts.ids("weld parts"))
    assert answer["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens, "completion_tokens": 0}
    assert headers["x-labeler-digest"] == labeler_dir.name


def test_2_softmax_rows_are_shares_and_plain_rows_are_true_probabilities(server, model):
    query, items = ids(9, 1), [ids(4, 2), ids(6, 3)]
    for temperature in (0.5, 1.0, 3.0):
        fields = {"label_token_ids": LABELS[:4], "apply_softmax": True, "temperature": temperature}
        rows = server.scores(query, items, **fields)
        assert np.allclose(np.sum(rows, axis=1), 1.0, atol=1e-6) and np.min(rows) >= 0
        expected = [plain(model, query + item, LABELS[:4], True, temperature) for item in items]
        assert np.abs(np.subtract(rows, expected)).max() < 1e-4
    rows = server.scores(query, items, label_token_ids=LABELS[:4])
    assert np.sum(rows, axis=1).max() < 1.0
    everything = server.scores(query, items, label_token_ids=list(range(384)))
    assert np.allclose(np.sum(everything, axis=1), 1.0, atol=1e-6)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"label_token_ids": "Yes"}, "label_token_ids"),
        ({"items": 7}, "items"),
        ({"items": None}, "items"),
        ({"label_token_ids": []}, "label_token_ids"),
        ({"label_token_ids": [1.5]}, "label_token_ids"),
        ({"label_token_ids": [True]}, "label_token_ids"),
        ({"label_token_ids": [-1]}, "label_token_ids"),
        ({"label_token_ids": [5, 5]}, "label_token_ids"),
        ({"label_token_ids": [384]}, "label_token_ids"),
        ({"label_token_ids": [[5], [6]]}, "label_token_ids"),
        ({"label_token_ids": [[]]}, "label_token_ids[0]"),
        ({"label_token_ids": [[384]]}, "label_token_ids[0]"),
        ({"temperature": 0}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": 10**400}, "temperature"),
        ({"item_first": True}, "item_first"),
        ({"items": [[1, 2]]}, "items"),
        ({"items": ["a", [1]]}, "items"),
        ({"items": ["a", 1]}, "items"),
        ({"query": [1, 2]}, "items"),
        ({"query": {"text": "a"}}, "query"),
        ({"query": "word " * 9000}, "query"),
        ({"items": ["a", "word " * 9000]}, "items[1]"),
        ({"query": [1], "items": [[384]]}, "items[0]"),
        ({"query": "", "items": ["a", ""]}, "items[1]"),
        ({"aply_softmax": True}, "aply_softmax"),
        ({"model": 3}, "model"),
    ],
)
def test_3_what_is_wrong_is_a_400_that_names_the_field(server, change, field):
    status, answer, _ = server.post("/v1/score", {"query": QUERY, "items": ["sell"]} | change)
    assert (status, answer["error"]["field"]) == (400, field)
    assert answer["error"]["message"].startswith(field)


@pytest.mark.parametrize("text", [b"{", b"[]", b"7", b'"a"', b"[" * 100_000, b'{"items": NaN}', b"", b"\xff\xfe"])
def test_3_a_body_that_is_no_request_is_a_400(server, text):
    assert server.post("/v1/score", text)[0] == 400


def test_3_labels_default_to_yes_and_no(server, labeler_dir):
    answer_ids = [266, 265]
    manifest = Labeler.load(labeler_dir, self_check=False).manifest.answer_tokens
    assert [manifest.yes.id, manifest.no.id] == answer_ids or (answer_ids := [manifest.yes.id, manifest.no.id])
    assert server.scores(QUERY, ["sell"]) == server.scores(QUERY, ["sell"], label_token_ids=answer_ids)


@pytest.mark.parametrize("count", [1, 2, 4, 6, 8, 15, 1000])
def test_4_any_number_of_items_and_labels_is_shaped_right(server, count):
    items = [ids(1 + index % 5, index) for index in range(count)]
    for width in (1, 2, 12) if count == 1000 else range(1, 13):
        rows = server.scores(ids(7, 0), items, label_token_ids=LABELS[:width])
        assert len(rows) == count and {len(row) for row in rows} == {width}


def test_4_each_item_may_have_labels_of_its_own(server):
    items = [ids(3, index) for index in range(4)]
    lists = [LABELS[:2], LABELS[2:3], LABELS[1:5], LABELS[:1]]
    rows = server.scores(ids(7, 0), items, label_token_ids=lists)
    every = server.scores(ids(7, 0), items, label_token_ids=LABELS)
    for row, labels, full in zip(rows, lists, every, strict=True):
        assert row == pytest.approx([full[LABELS.index(label)] for label in labels], rel=1e-6)


def test_4_no_items_are_an_empty_answer(server):
    status, answer, _ = server.post("/v1/score", {"query": QUERY, "items": []})
    assert (status, answer["scores"], answer["usage"]["total_tokens"]) == (200, [], 0)


def test_5_the_same_request_gives_the_same_bits_alone_and_among_others(server):
    requests = [(ids(5 + n, n), [ids(1 + (n * index) % 9, index) for index in range(1 + n)]) for n in range(8)]
    alone = [server.scores(query, items) for query, items in requests]
    assert alone == [server.scores(query, items) for query, items in requests]
    together: dict[int, object] = {}

    def ask(number: int) -> None:
        together[number] = server.scores(*requests[number % 8])

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [together[number] for number in range(24)] == [alone[number % 8] for number in range(24)]


def test_6_scores_are_those_of_a_plain_forward_of_the_single_prompt(server, model):
    query, items = ids(33, 1), [ids(length, length) for length in (5, 1, 17, 5, 2)]
    expected = [plain(model, query + item, LABELS) for item in items]
    assert np.abs(np.subtract(server.scores(query, items, label_token_ids=LABELS), expected)).max() < 1e-4


def test_7_packed_is_single_duplicates_are_equal_and_unlike_items_differ(server):
    query, items = ids(21, 4), [ids(length, length) for length in (0, 1, 5, 17, 64, 129)]
    rows = server.scores(query, items)
    alone = [server.scores(query, [item])[0] for item in items]
    assert np.abs(np.subtract(rows, alone)).max() < 1e-5
    twice = server.scores(query, [items[2], items[3], items[2], items[2]])
    assert twice[0] == twice[2] == twice[3]
    assert len({tuple(row) for row in server.scores(query, items[2:5])}) == 3


def test_8_a_replaced_item_leaves_the_others_as_they_were(server):
    query, items = ids(21, 4), [ids(4 + index % 3, index) for index in range(12)]
    before = server.scores(query, items)
    same_length = server.scores(query, [*items[:5], ids(len(items[5]), 99), *items[6:]])
    assert same_length[:5] + same_length[6:] == before[:5] + before[6:]
    assert same_length[5] != before[5]
    longer = server.scores(query, [*items[:5], ids(23, 99), *items[6:]])
    assert np.abs(np.subtract(longer[:5] + longer[6:], before[:5] + before[6:])).max() < 1e-5


def test_9_rows_follow_their_items(server):
    query, items = ids(11, 4), [ids(1 + index % 7, index) for index in range(300)]
    order = random.Random(3).sample(range(300), 300)
    rows = server.scores(query, items)
    shuffled = server.scores(query, [items[index] for index in order])
    assert np.abs(np.subtract(shuffled, [rows[index] for index in order])).max() < 1e-5
    assert len({tuple(row) for row in rows}) > 250


STRANGE = [
    "护士给病人服药",
    unicodedata.normalize("NFC", "Müller prépare"),
    unicodedata.normalize("NFD", "Müller prépare"),
    "👩‍⚕️🏽",
    "zero\u200bwidth\ufeff",
    "שלום مرحبا\u202e",
    "<|im_end|><|im_start|>system",
    "\ud800 lone",
    "nul\x00",
]


def test_10_any_text_is_scored_as_the_text_it_is(server, model):
    texts = TextTokenizer(tiny_tokenizer())
    rows = server.scores(QUERY, STRANGE)
    expected = [plain(model, texts.ids(QUERY, True) + texts.ids(text), [266, 265]) for text in STRANGE]
    labeled = server.scores(QUERY, STRANGE, label_token_ids=[266, 265])
    assert len(rows) == len(STRANGE)
    assert np.abs(np.subtract(labeled, expected)).max() < 1e-4
    assert rows[1] != rows[2]


def test_10_control_tokens_come_only_to_who_asks_for_them(server):
    text = "<|im_end|>"
    literal = server.scores(QUERY, [text])
    parsed = server.scores(QUERY, [text], parse_special=True)
    assert literal != parsed
    as_ids = server.scores(tiny_tokenizer()(QUERY).input_ids, [tiny_tokenizer()(text).input_ids])
    assert len(tiny_tokenizer()(text).input_ids) == 1 and parsed == as_ids


def test_11_an_empty_query_and_an_empty_item_work(server, model):
    rows = server.scores("", ["sell goods", "weld"])
    texts = TextTokenizer(tiny_tokenizer())
    expected = [plain(model, texts.ids(text, True), [266, 265]) for text in ("sell goods", "weld")]
    assert (
        np.abs(np.subtract(server.scores("", ["sell goods", "weld"], label_token_ids=[266, 265]), expected)).max()
        < 1e-4
    )
    assert rows == server.scores(None, ["sell goods", "weld"])
    only_query = server.scores(QUERY, [""], label_token_ids=[266, 265])
    assert np.abs(np.subtract(only_query, [plain(model, texts.ids(QUERY, True), [266, 265])])).max() < 1e-4


@pytest.mark.parametrize("size", [1, 8, 64])
def test_11_scores_do_not_depend_on_the_split_into_rounds(server, labeler_dir, tmp_path, size):
    query, items = ids(11, 4), [ids(1 + index % 7, index) for index in range(150)]
    automatic = server.scores(query, items)
    with running(Pointer(labeler=labeler_dir), tmp_path, options={"items_per_round": size}) as other:
        until_ready(other)
        assert np.abs(np.subtract(other.scores(query, items), automatic)).max() < 1e-5


def test_12_a_body_of_200_megabytes_is_refused_unread_and_the_server_goes_on(server):
    with socket.create_connection(("127.0.0.1", server.http), timeout=20) as client:
        client.sendall(b"POST /v1/score HTTP/1.1\r\nHost: a\r\nContent-Length: 200000000\r\n\r\n")
        assert client.recv(4096).startswith(b"HTTP/1.1 413")
    with socket.create_connection(("127.0.0.1", server.http), timeout=20) as client:
        client.sendall(b"POST /v1/score HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")
        block = b"100000\r\n" + b" " * 0x100000 + b"\r\n"
        try:
            for _ in range(200):
                client.sendall(block)
        except OSError:
            pass  # refused in the middle, as it should be
        else:
            assert client.recv(4096).startswith(b"HTTP/1.1 413")
    assert server.scores(QUERY, ["sell"])


def test_12_a_million_items_are_refused_by_their_number(server):
    body = b'{"query": "a", "items": [' + b",".join([b'"b"'] * 1_000_000) + b"]}"
    status, answer, _ = server.post("/v1/score", body)
    assert (status, answer["error"]["field"], answer["error"]["limit"]) == (400, "items", 20_000)
    assert server.scores(QUERY, ["sell"])


def test_12_half_a_request_is_cut_and_the_server_goes_on(server):
    with socket.create_connection(("127.0.0.1", server.http), timeout=20) as headers:
        headers.sendall(b"POST /v1/score HTTP/1.1\r\nHost:")
        assert headers.recv(4096) == b""
    with socket.create_connection(("127.0.0.1", server.http), timeout=20) as body:
        body.sendall(b'POST /v1/score HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n{"items"')
        assert body.recv(4096).startswith(b"HTTP/1.1 408")
    assert server.scores(QUERY, ["sell"])
