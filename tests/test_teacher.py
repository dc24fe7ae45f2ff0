"""The teacher: a question is paid once, the cap holds, nothing goes anywhere unnamed, every row is accounted for."""

import csv
import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from semlabel.cli import run_command
from semlabel.judging.files import write_export
from semlabel.judging.sample import SampledPair
from tests.cli_settings import smallest

pytest.importorskip("openai")
PRICES = ("--price-in", "1", "--price-out", "2")


class Endpoint:
    """A server of the protocol: what it was asked, and what it answers to the next requests."""

    def __init__(self):
        self.requests, self.headers, self.script = [], [], []
        self.lock = threading.Lock()

    def answer(self, body):
        with self.lock:
            self.requests.append(body)
            return self.script.pop(0) if self.script else said("yes")


def said(answer, tokens=100, **message):
    content = None if answer is None else json.dumps({"answer": answer})
    return 200, {
        "id": "1",
        "object": "chat.completion",
        "created": 0,
        "model": "big",
        "choices": [
            {
                "index": 0,
                "finish_reason": "stop",
                "message": {"role": "assistant", "content": content} | message,
            }
        ],
        "usage": {"prompt_tokens": tokens, "completion_tokens": 10, "total_tokens": tokens + 10},
    }


@contextmanager
def serving(endpoint):
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with endpoint.lock:
                endpoint.headers.append((self.path, self.headers["Authorization"]))
            status, document = endpoint.answer(body)
            content = document if isinstance(document, bytes) else json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            if status == 429:
                self.send_header("Retry-After", "0")
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def pair(number, design="active:near_threshold", text="a text"):
    return SampledPair(
        *(f"e{number}", "c", f"{text} {number}", "=a candidate", "train"),
        *(0.5, 0.6, True, "digest", design, None, f"t{number}", "u"),
    )


@pytest.fixture
def endpoint(tmp_path, monkeypatch):
    (tmp_path / "pipeline.toml").write_text(smallest("Ticket: {entity}\\nTopic? {candidate}"))
    monkeypatch.chdir(tmp_path)
    write_export(tmp_path / "judge.csv", [pair(n) for n in range(3)])
    found = Endpoint()
    with serving(found) as address:
        monkeypatch.setenv("OPENAI_BASE_URL", address)
        monkeypatch.setenv("OPENAI_API_KEY", "secret-key")
        yield found


def teach(capfd, *options, cap="1"):
    capfd.readouterr()
    arguments = ("teacher", "judge.csv", "--out", "judged.csv", "--model", "big", *PRICES, "--max-cost", cap, *options)
    code = run_command([*arguments, "--concurrency", "1", "--json"])
    out, err = capfd.readouterr()
    return code, json.loads(out) if out else None, err


def judgements():
    return [row["judgement"] for row in rows_of("judged.csv")]


def rows_of(name):
    with Path(name).open(newline="") as file:
        return list(csv.DictReader(file))


def test_what_is_asked_and_what_comes_back(endpoint, capfd):
    endpoint.script = [said("yes"), said("no"), said("unsure")]
    code, result, err = teach(capfd)
    assert (code, judgements()) == (0, ["yes", "no", ""])
    assert (result["answered"], result["unsure"], result["tokens_in"], result["tokens_out"]) == (2, 1, 300, 30)
    assert result["cost"] == pytest.approx(360e-6)
    asked = endpoint.requests[0]
    assert asked["messages"][1]["content"] == "Ticket: a text 0\nTopic? =a candidate"
    assert asked["response_format"]["json_schema"]["strict"] is True
    assert endpoint.headers[0] == ("/v1/chat/completions", "Bearer secret-key")
    assert "secret-key" not in err


def test_the_rest_of_the_export_comes_back_as_it_went(endpoint, capfd):
    teach(capfd)
    told = {"judgement": "yes", "design": "teacher"}
    assert [row | told for row in rows_of("judge.csv")] == rows_of("judged.csv")


def test_the_same_question_is_paid_once(endpoint, capfd):
    teach(capfd)
    code, result, err = teach(capfd)
    assert (code, result["cached"], result["cost"], len(endpoint.requests)) == (0, 3, 0, 3)
    assert "3 answered before" in err
    write_export(Path("judge.csv"), [pair(n, text="another text" if n == 1 else "a text") for n in range(3)])
    teach(capfd)
    assert len(endpoint.requests) == 4


def test_the_cache_holds_no_text_and_no_key(endpoint, capfd, tmp_path):
    teach(capfd)
    kept = b"".join(path.read_bytes() for path in (tmp_path / "run" / "teacher").iterdir())
    assert b"a text" not in kept
    assert b"secret-key" not in kept


def test_pairs_drawn_by_chance_are_left_for_people(endpoint, capfd, tmp_path):
    write_export(tmp_path / "judge.csv", [pair(0), pair(1, design="random")])
    code, result, _ = teach(capfd)
    assert (code, result["left_for_people"], judgements()) == (0, 1, ["yes", ""])
    assert len(endpoint.requests) == 1


def test_nothing_is_asked_above_the_cap_and_asking_stops_at_it(endpoint, capfd):
    code, result, err = teach(capfd, cap="0.0000001")
    assert (code, result, endpoint.requests) == (2, None, [])
    assert "is above --max-cost" in err
    # The estimate is 0.00048 or so; this endpoint counts more tokens, and the cap is met after the second answer.
    endpoint.script = [said("yes", tokens=300)] * 3
    code, result, _ = teach(capfd, cap="0.0006")
    assert (code, result["answered"], result["not_asked"], len(endpoint.requests)) == (1, 2, 1, 2)
    assert result["cost"] == pytest.approx(640e-6)
    assert judgements() == ["yes", "yes", ""]


def test_refusals_failures_and_odd_answers_are_counted_apart(endpoint, capfd):
    endpoint.script = [said(None, refusal="I cannot"), said("maybe"), (400, {"error": {"message": "too long"}})]
    code, result, err = teach(capfd, "--retries", "0")
    assert (code, result["refused"], result["failed"], result["answered"]) == (1, 1, 2, 0)
    assert judgements() == ["", "", ""]
    assert "first failure: an answer that is not the JSON" in err


def test_a_busy_endpoint_is_asked_again(endpoint, capfd):
    endpoint.script = [(429, {"error": {"message": "slow down"}})]
    code, result, _ = teach(capfd, "--retries", "2")
    assert (code, result["answered"], len(endpoint.requests)) == (0, 3, 4)


def test_a_wrong_key_ends_it_with_one_line(endpoint, capfd):
    endpoint.script = [(401, {"error": {"message": "bad key"}})] * 3
    code, _, err = teach(capfd)
    assert code == 2
    assert "error: the endpoint refuses to answer at all:" in err
    assert "secret-key" not in err


@pytest.mark.parametrize("name", ["OPENAI_BASE_URL", "OPENAI_API_KEY"])
def test_nothing_is_sent_where_no_endpoint_is_named(endpoint, capfd, monkeypatch, name):
    monkeypatch.delenv(name)
    code, _, err = teach(capfd)
    assert (code, endpoint.requests) == (2, [])
    assert name in err


def test_a_file_that_is_no_export_is_one_line(endpoint, capfd, tmp_path):
    (tmp_path / "judge.csv").write_text("a,b\n1,2\n")
    code, _, err = teach(capfd)
    assert code == 2
    assert "expected entity_id, candidate_id, entity_text" in err


def unmetered(answer, usage):
    status, document = said(answer)
    return status, {name: value for name, value in document.items() if name != "usage"} | usage


@pytest.mark.parametrize(
    "usage",
    [
        {},
        {"usage": None},
        {"usage": {}},
        {"usage": {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}},
        {"usage": {"prompt_tokens": None, "completion_tokens": None, "total_tokens": 300}},
    ],
)
def test_an_endpoint_that_does_not_say_what_was_used_is_charged_the_estimate_and_stopped_at_the_cap(
    endpoint, capfd, tmp_path, usage
):
    endpoint.script = [unmetered("yes", usage)] * 3
    code, result, err = teach(capfd)
    assert (code, result["answered"], result["unreported"]) == (0, 3, 3)
    used = result["tokens_in"]
    assert used > 180 and result["tokens_out"] == 36 and result["cost"] == pytest.approx((used + 2 * 36) / 1e6)
    assert "3 answers came without what they used: their cost is estimated" in err
    # Other texts as long: one answer that is counted leaves less than a question costs, and one that is not takes it.
    write_export(tmp_path / "judge.csv", [pair(n, text="b text") for n in range(3)])
    endpoint.script = [said("yes", tokens=int(0.9 * used)), *[unmetered("yes", usage)] * 2]
    code, result, _ = teach(capfd, cap=str(1.01 * (used + 72) / 1e6))
    assert (code, result["answered"], result["not_asked"], result["unreported"]) == (1, 2, 1, 1)
