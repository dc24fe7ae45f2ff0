"""Benchmarks: every cell is whole, what is exact is shown to be, files are replaced whole and runs go on."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from semlabel.bench import memory, output, throughput_files, tuning
from semlabel.bench.exactness import difference
from semlabel.bench.gemm import Ceiling, linear_shapes, rungs_up_to
from semlabel.bench.generating import Generation
from semlabel.bench.methods import Independent, Mis, PrefixCache, Scored, alone, doubling
from semlabel.bench.order import Plan as OrderPlan
from semlabel.bench.order import run as run_order
from semlabel.bench.order_data import Texts
from semlabel.bench.orders import MISSING, changes, decisions_at, permutation
from semlabel.bench.subject import Subject, subject_of
from semlabel.bench.tasks import Shape, random_tasks
from semlabel.bench.throughput import METHODS, Plan
from semlabel.cli import run_command
from semlabel.errors import SemlabelError, SettingsError
from semlabel.prompt import Prompt, PromptSpec
from semlabel.scorer import Scorer
from semlabel.warehouse import Warehouse
from tests.cli_settings import smallest
from tests.storage import catalog, entities
from tests.tiny import save_tiny, tiny_model, tiny_tokenizer

SPEC = PromptSpec("Profile:\n{entity}\n\nActivity: {candidate}\nAnswer:", max_query_tokens=48)
PROMISED = {
    "method", "precision", "items", "query_tokens", "item_tokens", "labels_per_s", "peak_mb", "max_margin_diff",
    "label_flips", "gemm_share",
}  # fmt: skip
SMALL = Plan(
    items=(1, 3),
    shapes=(Shape(12, 4), Shape(20, 2)),
    precisions=("fp32", "int7"),
    repetitions=1,
    tuning_repetitions=1,
    tuned_at_most=2,
    compared_items=4,
    peers=True,
)
PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(scope="module")
def subject(tmp_path_factory):
    return subject_of(str(save_tiny(tmp_path_factory.mktemp("tiny") / "model")), None)


@pytest.fixture(scope="module")
def measured(subject, tmp_path_factory):
    out = tmp_path_factory.mktemp("measured")
    return throughput_files.run(subject, SMALL, out), out


def test_every_cell_has_every_field_and_every_method_every_size(measured):
    document, _ = measured
    cells = [cell for cell in document["cells"] if cell["method"] in METHODS]  # peers are there where installed
    assert set(cells[0]) >= PROMISED
    assert all(set(cell) == set(cells[0]) for cell in cells)
    found = Counter((cell["method"], cell["items"], cell["query_tokens"]) for cell in cells)
    assert found == Counter((method, items, query) for method in METHODS for items in (1, 3) for query in (12, 20))
    for cell in cells:
        assert cell["labels_per_s"] > 0
        assert cell["gemm_share"] > 0
        assert cell["repetitions"] == 1


def test_exact_methods_show_no_difference_and_no_flip_in_fp32(measured):
    for cell in measured[0]["cells"]:
        if cell["method"] != "generation":
            assert cell["max_margin_diff"] < 1e-4, cell["method"]
            assert cell["max_margin_diff_fp32"] < 1e-4, cell["method"]
            assert cell["label_flips"] == 0, cell["method"]


def test_the_work_of_every_method_is_counted_exactly(measured):
    cells = [c for c in measured[0]["cells"] if c["query_tokens"] == 12 and c["items"] == 3]
    work = {cell["method"]: cell for cell in cells}
    queries = work["mis"]["queries"]
    items = sum(4 + spread for spread in (0, -2, 2))
    assert queries == 32
    assert work["mis"]["prefill_tokens"] == work["prefix_cache"]["prefill_tokens"] == queries * (12 + items)
    assert work["independent"]["prefill_tokens"] == queries * (3 * 12 + items)
    assert work["mis"]["forwards"] < queries  # short rounds share a forward
    generation = work["generation"]
    assert generation["decoded_tokens"] > 0
    assert generation["prefill_seconds"] is not None and generation["decode_seconds"] is not None
    assert work["mis"]["decoded_tokens"] == 0


def test_the_token_ratio_is_that_of_the_definition():
    assert Shape(170, 8).token_ratio(200) == 200 * 178 / (170 + 1600)
    assert Shape(170, 8).token_ratio(1) == 1.0


def test_what_cannot_be_measured_is_said_with_the_reason(measured):
    missing = measured[0]["missing"]
    assert {"method": "all", "precision": "int7", "reason": "the scorer does not have it yet"} in missing
    absent = [entry["method"] for entry in missing if "bench-peers" in entry["reason"] or "--gguf" in entry["reason"]]
    assert set(absent) | {cell["method"] for cell in measured[0]["cells"]} >= {"llama_cpp", "openvino"}


def test_json_table_and_plot_are_written_and_nothing_else_is_left(measured):
    document, out = measured
    assert sorted(path.name for path in out.iterdir()) == ["throughput.json", "throughput.md", "throughput.png"]
    assert json.loads((out / "throughput.json").read_text()) == json.loads(json.dumps(document))
    assert document["complete"] is True
    assert {"machine", "cores", "threads", "versions", "commit", "date"} <= set(document["environment"])
    table = (out / "throughput.md").read_text()
    assert all(f"| {method} | 3 |" in table for method in METHODS)
    assert "int7" in table and "Not complete" not in table
    assert (out / "throughput.png").read_bytes().startswith(PNG)


def test_every_setting_that_was_tried_is_logged_and_the_fastest_taken(measured):
    document, _ = measured
    for cell in document["cells"]:
        shape = f"q{cell['query_tokens']}-i{cell['item_tokens']}"
        tried = [
            entry
            for entry in document["tuning"]
            if (entry["method"], entry["shape"], entry["items"]) == (cell["method"], shape, 1)
        ]
        assert tried
        if cell["items"] == 1:
            assert cell["setting"] == max(tried, key=lambda entry: entry["labels_per_s"])["setting"]


def test_hours_of_an_interrupted_run_are_not_overwritten_by_one_under_other_conditions(tmp_path):
    def put(plan_digest, complete):
        document = {"plan_digest": plan_digest, "complete": complete}
        (tmp_path / "x.json").write_text(json.dumps(document))
        return document

    kept = put("first", complete=False)
    assert output.unfinished(tmp_path, "x", "first") == kept
    for number, other in ((1, "second"), (2, "third")):
        assert output.unfinished(tmp_path, "x", other) is None
        assert not (tmp_path / "x.json").exists()
        assert json.loads((tmp_path / f"x.interrupted-{number}.json").read_text()) == kept
        kept = put(other, complete=False)
    put("first", complete=True)
    assert output.unfinished(tmp_path, "x", "second") is None
    assert (tmp_path / "x.json").exists()  # what is finished is replaced, as it always was


def test_an_interrupted_benchmark_keeps_its_groups_and_goes_on(subject, tmp_path):
    plan = Plan(
        items=(1,), shapes=SMALL.shapes, precisions=("fp32",), methods=("mis",), repetitions=1, tuning_repetitions=1
    )

    def interrupt(progress):
        if progress.unit == "groups" and progress.done == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        throughput_files.run(subject, plan, tmp_path, progress=interrupt)
    half = json.loads((tmp_path / "throughput.json").read_text())
    assert half["complete"] is False
    assert len(half["cells"]) == 1
    assert "Not complete" in (tmp_path / "throughput.md").read_text()
    whole = throughput_files.run(subject, plan, tmp_path)
    assert whole["cells"][:1] == half["cells"]
    assert [cell["query_tokens"] for cell in whole["cells"]] == [12, 20]
    again = throughput_files.run(subject, Plan(**(vars(plan) | {"shapes": plan.shapes[:1]})), tmp_path)
    assert len(again["cells"]) == 1  # another plan starts anew


def test_a_failing_write_leaves_the_earlier_file_whole(tmp_path):
    output.write(tmp_path, "x", {"cells": [1]}, "one", PNG)
    with pytest.raises(ValueError, match="JSON"):
        output.write(tmp_path, "x", {"cells": [float("nan")]}, "two", PNG)
    assert json.loads((tmp_path / "x.json").read_text()) == {"cells": [1]}
    assert (tmp_path / "x.md").read_text() == "one"
    (tmp_path / "x.json").write_text("{")
    with pytest.raises(SemlabelError, match="no JSON"):
        output.unfinished(tmp_path, "x", "digest")


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_batches_of_any_size_give_the_margins_of_single_prompts(size):
    model, tokenizer = tiny_model(seed=2), tiny_tokenizer()
    prompt = Prompt(SPEC, tokenizer)
    answers = (prompt.yes_id, prompt.no_id)
    tasks = random_tasks(Shape(17, 5), 7, 2, range(4, 384), 2)
    expected = [[alone(model, answers, task.query, item) for item in task.items] for task in tasks]
    for method, setting in (
        (Independent(model, answers), {"prompts_per_forward": size}),
        (PrefixCache(model, answers), {"items_per_forward": size}),
        (Mis(Scorer(model, tokenizer, prompt)), {"items_per_round": size}),
    ):
        scored = method.run(tasks, setting)
        assert np.abs(np.array(scored.margins) - np.array(expected)).max() < 1e-4, method.name


def test_a_small_task_is_the_start_of_a_large_one():
    small, large = (random_tasks(Shape(9, 8), items, 2, range(4, 384), 2) for items in (3, 8))
    assert [task.first(3) for task in large] == small
    assert [len(item) for item in large[0].items] == [8, 6, 10, 7, 9, 5, 11, 8]
    assert all(item[-1] == 2 for item in large[1].items)
    assert large[0].query != large[1].query


def test_only_the_linear_layers_of_the_body_are_counted():
    shapes = linear_shapes(tiny_model())
    # Two layers of width 32, key/value width 16, inner width 64; neither embeddings nor head.
    assert shapes == {(32, 32): 4, (32, 16): 4, (32, 64): 4, (64, 32): 2}
    assert Ceiling(shapes, torch.float32).operations_per_token == 2 * (4 * 1024 + 4 * 512 + 6 * 2048)


def test_the_ceiling_is_the_best_rate_of_all_calls_as_large_or_smaller():
    ceiling = Ceiling(Counter({(8, 4): 3}), torch.float32)
    ceiling._seconds = {(64, (8, 4)): (1.0, "a"), (128, (8, 4)): (4.0, "b"), (256, (8, 4)): (1.0, "a")}
    assert ceiling.rate(64) == 64 * 64
    assert ceiling.best(65) == ceiling.best(128) == 64 * 64
    assert ceiling.best(129) == ceiling.best(9999) == 256 * 64
    assert ceiling.share(64, 6.0) == 0.5
    measured = Ceiling(Counter({(8, 4): 3}), torch.float32)
    measured.measure([64])
    assert measured.rate(64) > 0
    assert rungs_up_to(100) == [64, 128]
    assert rungs_up_to(10**6)[-1] == 8192


class Clockwork:
    """A method whose settings take a known time each."""

    name = "clockwork"

    def __init__(self, seconds, has_lanes=False, sets_up=None):
        self.has_lanes, self.seconds, self.now, self.runs = has_lanes, seconds, 0.0, []
        self.sets_up, self.at_first = sets_up is not None, sets_up or {}

    def ladders(self, tasks):
        return [[{"size": size} for size in self.seconds]]

    def run(self, tasks, setting):
        self.runs.append(setting["size"])
        self.now += self.seconds[setting["size"]] / setting.get("lanes", 1)
        self.now += self.at_first.pop(setting["size"], 0.0)
        return Scored(None)


def test_a_ladder_is_left_after_two_slower_settings_and_all_tried_are_logged(monkeypatch):
    method = Clockwork({1: 4.0, 2: 2.0, 4: 3.0, 8: 5.0, 16: 1.0})
    monkeypatch.setattr(tuning, "_now", lambda device: method.now)
    tuned = tuning.tune(method, random_tasks(Shape(4, 4), 6, 1, range(4, 9), 2), repetitions=2)
    assert tuned.setting == {"size": 2}
    assert method.runs == [1, 1, 1, 2, 2, 4, 4, 8, 8]
    assert tuned.log == [
        {"setting": f"size={size}", "labels_per_s": 6 / seconds}
        for size, seconds in ((1, 4.0), (2, 2.0), (4, 3.0), (8, 5.0))
    ]


def test_what_a_setting_makes_in_its_first_call_does_not_decide_the_search(monkeypatch):
    method = Clockwork({1: 4.0, 2: 2.0}, sets_up={1: 1.0, 2: 9.0})
    monkeypatch.setattr(tuning, "_now", lambda device: method.now)
    tuned = tuning.tune(method, random_tasks(Shape(4, 4), 6, 1, range(4, 9), 2), repetitions=1)
    assert tuned.setting == {"size": 2}
    assert method.runs == [1, 1, 2, 2]


@pytest.mark.parametrize(("tasks", "has_lanes", "expected"), [(3, True, {"lanes": 2}), (1, True, {}), (3, False, {})])
def test_the_best_setting_is_tried_with_tasks_side_by_side_where_there_are_several(
    monkeypatch, tasks, has_lanes, expected
):
    method = Clockwork({1: 4.0, 2: 2.0}, has_lanes)
    monkeypatch.setattr(tuning, "_now", lambda device: method.now)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    tuned = tuning.tune(method, random_tasks(Shape(4, 4), 6, tasks, range(4, 9), 2), repetitions=1)
    assert tuned.setting == {"size": 2} | expected


@pytest.mark.parametrize("kind", ["mis", "prefix_cache", "independent", "generation"])
def test_tasks_side_by_side_give_what_they_give_one_after_the_other(kind):
    model, tokenizer = tiny_model(), tiny_tokenizer()
    prompt = Prompt(SPEC, tokenizer)
    method = {
        "mis": lambda: Mis(Scorer(model, tokenizer, prompt)),
        "prefix_cache": lambda: PrefixCache(model, (prompt.yes_id, prompt.no_id)),
        "independent": lambda: Independent(model, (prompt.yes_id, prompt.no_id)),
        "generation": lambda: Generation(model, tokenizer, SPEC),
    }[kind]()
    tasks = random_tasks(Shape(12, 4), 150, 5, range(4, 384), 2)
    setting = method.ladders(tasks)[0][0]
    alone, beside = method.run(tasks, setting), method.run(tasks, setting | {"lanes": 2})
    for expected, found in zip(alone.margins, beside.margins, strict=True):
        assert np.abs(expected - found).max() < 1e-4
    assert alone.labels == beside.labels
    assert alone.account.prefill_tokens == beside.account.prefill_tokens > 0
    assert alone.account.decoded_tokens == beside.account.decoded_tokens


def test_batch_sizes_double_up_to_the_limit():
    assert doubling(4, 20) == [4, 8, 16, 20]
    assert doubling(4, 3) == [3]


def test_differences_and_flips_are_counted_and_a_missing_answer_is_a_flip():
    references = [np.array([1.0, -1.0, 2.0], dtype=np.float32)]
    by_margin = difference(Scored([np.array([0.5, 0.5, 2.0, 9.0], dtype=np.float32)]), references, 0.0)
    assert (by_margin.compared, by_margin.max_margin_diff, by_margin.flips, by_margin.yes) == (3, 1.5, 1, 3)
    by_label = difference(Scored(None, [[True, None, None]]), references, 0.0)
    assert (by_label.max_margin_diff, by_label.flips, by_label.yes) == (None, 2, 2)
    assert by_label.to_json("_fp32")["label_flip_share_of_yes_fp32"] == 1.0


def test_the_peak_of_a_call_shows_what_it_held_and_gave_back():
    peak = memory.peak_mb(lambda: float(torch.ones(20_000_000).sum()))
    if peak is None:
        pytest.skip("this system does not reset its high-water mark")
    assert 78 < peak < 200


def test_changed_decisions_are_counted_against_order_0_and_a_missing_answer_is_one():
    first = np.array([[1, 0, 0, 1, MISSING]], dtype=np.int8)
    second = np.array([[1, 1, 0, 1, MISSING]], dtype=np.int8)
    third = np.array([[0, 0, 0, MISSING, 0]], dtype=np.int8)
    counted = changes([first, second, third])
    assert counted["decisions"] == 5
    assert counted["yes"] == 2
    assert counted["missing"] == 3
    assert counted["mean_changed"] == (2 + 3) / 2
    assert counted["mean_changed_share"] == pytest.approx(0.5)
    assert counted["mean_changed_share_of_yes"] == pytest.approx((1 / 3 + 2 / 2) / 2)
    assert counted["ever_changed"] == 4
    assert counted["ever_changed_share_of_yes"] == 1.0
    same = changes([first[:, :4], first[:, :4]])
    assert (same["mean_changed"], same["ever_changed_share_of_yes"]) == (0, 0.0)
    with pytest.raises(ValueError, match="two"):
        changes([first])


def test_order_0_is_the_candidates_own_and_the_others_are_real_orders():
    assert permutation(0, 5).tolist() == [0, 1, 2, 3, 4]
    assert sorted(permutation(1, 50).tolist()) == list(range(50))
    assert permutation(1, 50).tolist() != permutation(2, 50).tolist()
    assert decisions_at(np.array([1.0, 0.5], dtype=np.float32), 1.0).tolist() == [1, 0]


ORDERS = OrderPlan(
    precisions=("fp32",),
    decisions=400,
    least_yes=3,
    orders=3,
    generation_decisions=6,
    generation_orders=2,
    generation_precision="fp32",
    items_per_round=150,
)


def test_reordering_changes_no_decision_of_packed_scoring_in_fp32(subject, tmp_path):
    document = run_order(subject, ORDERS, tmp_path)
    scoring, free, held = document["cells"]
    assert set(scoring) == set(free) == set(held)
    assert (scoring["decisions"], scoring["entities"], scoring["orders"]) == (400, 2, 3)
    assert scoring["yes"] >= 3 and scoring["enough_yes"] is True
    assert (scoring["mean_changed"], scoring["ever_changed"]) == (0, 0)
    assert scoring["largest_margin_difference"] < 1e-4
    assert (held["decisions"], held["lists"], held["missing"]) == (6, 2, 0)
    assert free["mean_changed_share"] == 1.0  # an untrained model answers nothing, and that is no stability
    assert free["lists_missing"] == 12
    assert sorted(path.name for path in tmp_path.iterdir()) == ["order.json", "order.md", "order.png"]
    assert "| mis | fp32 | 3 | 400 |" in (tmp_path / "order.md").read_text()
    assert (tmp_path / "order.png").read_bytes().startswith(PNG)


def test_a_killed_order_benchmark_loses_one_order_at_most(subject, tmp_path, monkeypatch):
    scored = Counter()
    margins = Scorer.margins

    def counted(scorer, query, items):
        scored["calls"] += 1
        return margins(scorer, query, items)

    def interrupt(progress):
        if progress.done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_order(subject, ORDERS, tmp_path, progress=interrupt)
    assert not (tmp_path / "order.json").exists()
    monkeypatch.setattr(Scorer, "margins", counted)
    resumed = run_order(subject, ORDERS, tmp_path)
    check = scored["calls"] - 2  # the self-check of the one load scores too
    scored.clear()
    fresh = run_order(subject, ORDERS, tmp_path)
    assert scored["calls"] - 3 * 2 == check
    assert resumed["cells"] == fresh["cells"]


def test_entities_are_added_until_the_labelers_threshold_has_found_its_yes(subject, tmp_path):
    texts = Texts([f"person {n} of an office" for n in range(60)], ["keep records", "sell goods", "a " * 99], "made up")
    plan = OrderPlan(**(vars(ORDERS) | {"decisions": 4, "least_yes": 10**6, "orders": 2}))
    labeler = Subject(subject.path, SPEC, 0.0, subject.digest)
    scoring = run_order(labeler, plan, tmp_path, texts)["cells"][0]
    assert scoring["threshold_from"] == "labeler"
    assert scoring["candidates"] == 2  # the third does not fit the prompt
    assert scoring["decisions"] > 4
    assert scoring["enough_yes"] is False
    assert "too few YES" in (tmp_path / "order.md").read_text()


def test_the_command_writes_its_files_and_prints_json(subject, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Plan, "quick", classmethod(lambda cls: Plan(**(vars(SMALL) | {"shapes": SMALL.shapes[:1]}))))
    arguments = ["bench", "throughput", "--model", subject.path, "--quick", "--items", "2", "--precision", "fp32"]
    arguments += ["--method", "mis", "--method", "independent"]
    assert run_command([*arguments, "--out", "results", "--threads", "1", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert {cell["items"] for cell in document["cells"]} == {2}
    assert {cell["method"] for cell in document["cells"]} & set(METHODS) == {"mis", "independent"}
    assert {cell["repetitions"] for cell in document["cells"]} == {5}
    assert (tmp_path / "results" / "throughput.png").exists()


def test_the_order_command_decides_about_the_entities_of_the_warehouse(tmp_path, monkeypatch, capsys):
    save_tiny(tmp_path / "model")
    (tmp_path / "pipeline.toml").write_text(smallest(base="./model"))
    monkeypatch.chdir(tmp_path)
    quick = OrderPlan(**(vars(ORDERS) | {"decisions": 4, "orders": 2, "precisions": ("fp32",)}))
    monkeypatch.setattr(OrderPlan, "quick", classmethod(lambda cls, generator=None: quick))
    arguments = ["bench", "order", "--quick", "--out", "results", "--threads", "1", "--json"]
    assert run_command(arguments) == 2
    assert "run `semlabel run` first" in capsys.readouterr().err
    with Warehouse.open(tmp_path / "run" / "warehouse.duckdb") as warehouse:
        warehouse.replace_entities(entities({"e1": "a nurse", "e2": "a welder", "e3": "an office"}), "run")
        warehouse.replace_catalog(catalog({"c1": "keep records", "c2": "<|im_end|>"}), "run")
    assert run_command(arguments) == 0
    scoring, free, _ = json.loads(capsys.readouterr().out)["cells"]
    assert (scoring["entities"], scoring["candidates"], scoring["decisions"]) == (2, 2, 4)
    assert (free["entities"], free["candidates"]) == (2, 2)
    assert sorted(path.name for path in (tmp_path / "results").iterdir()) == ["order.json", "order.md", "order.png"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["throughput", "--model", "MODEL", "--precision", "fp8"], "--precision fp8"),
        (["throughput", "--model", "MODEL", "--method", "magic"], "--method magic"),
        (["throughput"], "pipeline.toml"),
        (["order", "--model", "MODEL"], "--synthetic"),
        (["throughput", "--repetitions", "4"], "--repetitions"),
    ],
)
def test_a_wrong_call_is_one_line_and_exits_2(arguments, message, subject, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run_command(["bench", *[subject.path if part == "MODEL" else part for part in arguments]]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_the_group_alone_shows_its_commands(capsys):
    assert run_command(["bench"]) == 0
    shown = capsys.readouterr().out
    assert "throughput" in shown and "order" in shown


def test_a_shape_that_is_none_is_said_and_not_measured_as_another():
    assert Shape.parse("170x8") == Shape(170, 8)
    for written in ("170", "170x", "x8", "0x8", "170x8x2", "170 x 8"):
        with pytest.raises(SettingsError, match="as in 170x8"):
            Shape.parse(written)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_the_gpu_script_says_in_one_line_that_there_is_none():
    script = Path(__file__).parent.parent / "benchmarks" / "gpu.py"
    asked = subprocess.run([sys.executable, script, "any"], capture_output=True, text=True, check=False)
    assert asked.returncode == 2 and asked.stderr.count("\n") == 1 and "no CUDA device" in asked.stderr
