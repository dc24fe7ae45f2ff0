"""The serving benchmark: the knee is found in few tries, load is what it says, and an interrupted run goes on."""

import json
from concurrent import futures
from itertools import pairwise, repeat

import grpc
import pytest

from semlabel.bench import load, serving, serving_files
from semlabel.bench.knee import find_knee
from semlabel.bench.load import Point
from semlabel.bench.other_engine import Kind
from semlabel.bench.served import Served
from semlabel.bench.serving import Plan, Records
from semlabel.bench.serving_report import summary
from semlabel.bench.subject import subject_of
from semlabel.cli import run_command
from semlabel.manifest import read_manifest
from semlabel.serving.proto import labeler_pb2, labeler_pb2_grpc
from tests.serving_fixtures import make_labelers
from tests.tiny import save_tiny

SMALL = Plan(
    items=(1, 3),
    seconds=0.3,
    warm_up_seconds=0.1,
    alone_requests=2,
    bisections=0,
    least_requests=1,
    tuning_repetitions=0,
    overhead_items=4,
    overhead_requests=2,
)


@pytest.fixture(scope="module")
def labeler(tmp_path_factory):
    return make_labelers(tmp_path_factory.mktemp("labelers"))[0]


@pytest.mark.parametrize("capacity", [0.02, 0.9, 1.0, 3.7, 250.0])
@pytest.mark.parametrize("first", [0.1, 1.0, 20.0])
def test_the_knee_is_close_below_what_the_server_can_do_and_takes_few_tries(capacity, first):
    tried = []

    def keeps_up(rate):
        tried.append(rate)
        return rate <= capacity

    found = find_knee(first, keeps_up, bisections=3)
    assert len(tried) == len(set(tried)) <= 15
    if 1 / 17 < first / capacity < 12:
        assert capacity / 1.1 <= found <= capacity


def test_a_server_that_never_keeps_up_has_no_knee():
    tried = []
    assert find_knee(1.0, lambda rate: bool(tried.append(rate)), bisections=3) is None
    assert len(tried) == 6 and tried[-1] > 1 / 16


def test_arrivals_are_a_poisson_process_and_the_same_for_the_same_seed():
    due = load._arrivals(50.0, 200.0, [7])
    assert due == load._arrivals(50.0, 200.0, [7]) != load._arrivals(50.0, 200.0, [8])
    # Twice the rate brings the same arrivals twice as close together.
    assert load._arrivals(100.0, 100.0, [7]) == pytest.approx([moment / 2 for moment in due])
    gaps = [later - earlier for earlier, later in pairwise(due)]
    mean = sum(gaps) / len(gaps)
    spread = (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5
    # The standard errors are 1 %: of a gap its mean is its spread, and 63 % are shorter than it.
    assert mean == pytest.approx(0.02, rel=0.04) and spread == pytest.approx(0.02, rel=0.06)
    assert sum(gap < mean for gap in gaps) / len(gaps) == pytest.approx(0.632, abs=0.02)


class Answering(labeler_pb2_grpc.LabelerServicer):
    """Answers every request but those of one number."""

    def __init__(self, refuse_every: int) -> None:
        self.refuse_every, self.texts = refuse_every, []

    def Label(self, request, context):
        self.texts.append(request.text)
        if self.refuse_every and len(self.texts) % self.refuse_every == 0:
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "full")
        return labeler_pb2.LabelResponse()


@pytest.fixture
def answering():
    started = []

    def start(refuse_every):
        server, servicer = grpc.server(futures.ThreadPoolExecutor(4)), Answering(refuse_every)
        labeler_pb2_grpc.add_LabelerServicer_to_server(servicer, server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        started.append(server)
        return f"127.0.0.1:{port}", servicer

    yield start
    for server in started:
        server.stop(None)


def test_what_was_refused_is_not_achieved_and_has_no_time(answering):
    address, servicer = answering(2)
    requests = repeat(labeler_pb2.LabelRequest(text="a"))
    point = load.open_loop(address, requests, 100.0, 0.1, 0.4, 30.0, [1])
    assert point.requests == sum(moment >= 0.1 for moment in load._arrivals(100.0, 0.5, [1]))
    assert len(servicer.texts) == len(load._arrivals(100.0, 0.5, [1]))
    assert 0 < point.answered < point.requests and 0.3 < point.achieved < 0.7
    assert point.p50 is None or point.p50 > 0
    assert point.p99 is None


def test_no_query_is_sent_twice_and_all_have_about_the_wanted_length(labeler):
    texts = serving.Texts(labeler, read_manifest(labeler), serving.SHAPES[0].__class__(40, 12))
    bench = serving._Bench(labeler, read_manifest(labeler), SMALL, "cpu", 1, Records(), lambda progress: None)
    seen = []
    for method in serving.METHODS:
        for items in (1, 20):
            for rate in (0.0, 1.5, 3.0):
                requests = bench._requests(method, items, rate)
                seen += [next(requests).text for _ in range(10)]
    assert len(set(seen)) == len(seen) == 120
    lengths = texts.lengths(30)
    assert abs(lengths["query_tokens"] - 40) < 10 and abs(lengths["item_tokens"] - 12) < 4


def test_a_document_holds_what_was_asked_for_and_names_what_keeps_up(monkeypatch, labeler, tmp_path):
    document = run(monkeypatch, labeler, tmp_path)
    assert document["complete"] and {record["kind"] for record in document["records"]} == {
        *("lengths", "tuning", "alone", "point", "knee", "whole", "overhead")
    }
    cells = {(cell["method"], cell["items"]): cell for cell in document["cells"]}
    assert set(cells) == {(method, items) for method in serving.METHODS for items in (1, 3)}
    # The pretended server does 9 requests of MIS a second and 3 of generation.
    assert 6 < cells["mis", 3]["knee_per_s"] <= 9 and 2 < cells["generation", 3]["knee_per_s"] <= 3
    assert cells["mis", 3]["over_generation_knee_labels_per_s"] == pytest.approx(3, rel=0.35)
    assert cells["mis", 3]["knee_labels_per_s"] == 3 * cells["mis", 3]["knee_per_s"]
    lengths = document["records"][0]
    query, item = lengths["query_tokens"], lengths["item_tokens"]
    assert cells["mis", 3]["token_ratio"] == pytest.approx(3 * (query + item) / (query + 3 * item))
    for point in (record for record in document["records"] if record["kind"] == "point"):
        assert point["keeps_up"] is (point["p99"] is not None and point["achieved"] >= 0.99)
    (over_http,) = [record for record in document["records"] if record.get("transport") == "http"]
    # Around an engine that computes nothing a request takes 10 ms, in front of the real one 100.
    assert over_http["share"] == pytest.approx(0.1) and over_http["transport_p50"] == pytest.approx(0.008)
    text = (tmp_path / "serving.md").read_text()
    assert "| http | 4 | 1.00 | 1.00 | 8.00 | 10.00 | 100.0 | 10.0% |" in text
    assert "| mis | 3 |" in text and "Not complete" not in text
    assert (tmp_path / "serving.png").read_bytes().startswith(b"\x89PNG")


def test_an_interrupted_run_keeps_every_rate_and_goes_on_to_the_same_end(monkeypatch, labeler, tmp_path):
    # Drawn above, with every new cell; here it would be most of the time.
    monkeypatch.setattr(serving_files, "plot", lambda document: b"")
    whole = run(monkeypatch, labeler, tmp_path / "whole")
    for after in (1, 4, 5):
        with pytest.raises(KeyboardInterrupt):
            run(monkeypatch, labeler, tmp_path / "parts", stop_after=after)
        stored = json.loads((tmp_path / "parts" / "serving.json").read_text())
        assert stored["complete"] is False
        assert "Not complete" in (tmp_path / "parts" / "serving.md").read_text()
    assert run(monkeypatch, labeler, tmp_path / "parts")["records"] == whole["records"]


def test_a_link_is_measured_as_what_it_pointed_to_when_the_run_began(monkeypatch, labeler, tmp_path):
    (tmp_path / "current").symlink_to(labeler)
    document = run(monkeypatch, tmp_path / "current", tmp_path / "out")
    assert document["complete"] and document["model"] == str(tmp_path / "current")


def test_a_request_that_is_not_even_answered_alone_is_told_and_ends_no_measurement(monkeypatch, labeler):
    class TooLate(grpc.RpcError):
        def code(self):
            return grpc.StatusCode.DEADLINE_EXCEEDED

    def too_late(address, sent):
        raise TooLate

    monkeypatch.setattr(serving, "one_after_another", too_late)
    records = Records()
    bench = serving._Bench(labeler, read_manifest(labeler), SMALL, "cpu", 1, records, lambda progress: None)
    bench._size(Served("http", "grpc"), "generation", 3)
    (cell,) = summary(records.known)
    assert (cell["alone_p50"], cell["alone_labels_per_s"], cell["knee_per_s"]) == (None, None, None)


def test_a_request_that_takes_too_long_alone_has_no_knee_and_is_not_loaded():
    records = [
        {"kind": "lengths", "query_tokens": 10.0, "item_tokens": 2.0},
        {"kind": "alone", "method": "mis", "items": 5, "p50": 2.0, "labels_per_s": 2.5},
        {"kind": "knee", "method": "mis", "items": 5, "limit": 1.0, "per_s": None, "labels_per_s": None},
    ]
    (cell,) = summary(records)
    assert (cell["knee_per_s"], cell["knee_p99"], cell["tail_below_knee"]) == (None, None, None)
    assert cell["alone_labels_per_s"] == 2.5


def test_a_request_that_takes_longer_than_the_limit_alone_is_measured_with_room_of_its_own():
    assert Plan(limit_seconds=1.0, slack=3.0).limit(0.2) == 1.0
    assert Plan(limit_seconds=1.0, slack=3.0).limit(1.4) == pytest.approx(4.2)


def run(monkeypatch, labeler, out, stop_after=None):
    """The benchmark with a server that is only pretended: it keeps up with 9 requests of MIS a second, or 3."""

    class Pretended:
        def __init__(self, labeler, device, threads, workers, other=None):
            assert not labeler.is_symlink()  # a server would follow it to what is promoted meanwhile
            self.other = other

        def __enter__(self):
            assert self.other in (None, Kind(name="nothing"), Kind(name="generation", setting=serving._PLAIN))
            return Served("http", self.other.name if self.other else "mis")

        def __exit__(self, *error):
            return None

    measured = []

    def open_loop(address, requests, rate, warm_up_seconds, seconds, *rest):
        assert rate * seconds >= SMALL.least_requests * 0.999 and seconds >= SMALL.seconds
        if stop_after is not None and len(measured) == stop_after:
            raise KeyboardInterrupt
        measured.append(rate)
        fits = rate <= (9 if address == "mis" else 3)
        return Point(100, 100 if fits else 50, 0.1, 0.2, 0.3 if fits else None, 0.0)

    monkeypatch.setattr(serving, "served", Pretended)
    monkeypatch.setattr(serving, "open_loop", open_loop)
    monkeypatch.setattr(serving, "one_after_another", lambda address, sent: [0.1] * len(sent))
    monkeypatch.setattr(serving, "settle", lambda address, request: None)
    monkeypatch.setattr(serving, "_over_http", lambda address, sent: [0.01] * len(sent))
    monkeypatch.setattr(serving, "_median_seconds", lambda call, arguments: 0.001)
    return serving_files.run(subject_of(str(labeler), None), SMALL, out, "cpu")


@pytest.mark.slow  # two servers, started for real
def test_the_command_measures_servers_that_really_run(labeler, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Plan, "quick", classmethod(lambda cls: SMALL))
    arguments = ["bench", "serving", "--model", str(labeler), "--quick", "--items", "2", "--limit", "30"]
    assert run_command([*arguments, "--out", "results", "--threads", "1", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    cells = {cell["method"]: cell for cell in document["cells"]}
    assert set(cells) == set(serving.METHODS) and document["complete"]
    for cell in cells.values():
        assert cell["alone_p50"] > 0 and cell["alone_labels_per_s"] > 0
    overhead = [record for record in document["records"] if record["kind"] == "overhead"]
    assert {record["transport"] for record in overhead} == {"grpc", "http"}
    for record in overhead:
        parts = [record[f"{part}_p50"] for part in ("parse", "tokenise", "transport")]
        # The last part is what remains; on a busy machine even less than nothing.
        assert min(parts[:2]) > 0 and sum(parts) == pytest.approx(record["fronts_p50"])
    assert any(record["kind"] == "point" and record["requests"] for record in document["records"])


def test_a_model_that_is_no_labeler_is_refused_in_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    model = save_tiny(tmp_path / "model")
    assert run_command(["bench", "serving", "--model", str(model), "--quick", "--threads", "1"]) == 2
    error = capsys.readouterr().err
    assert "is no labeler directory" in error
