"""Coupling and the results page: noise moves nobody else's margin, runs go on, no number without its JSON."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

from semlabel.bench.coupling import Plan, coupling, replaced, run
from semlabel.bench.orders import MISSING
from semlabel.bench.subject import subject_of
from semlabel.bench.work_table import work_row, work_table
from semlabel.cli import run_command
from semlabel.scorer import Scorer
from tests.tiny import save_tiny

PLAN = Plan(
    precisions=("fp32", "int7"),
    decisions=400,
    repetitions=2,
    generation_decisions=45,
    generation_precision="fp32",
    items_per_round=150,
)


@pytest.fixture(scope="module")
def subject(tmp_path_factory):
    return subject_of(str(save_tiny(tmp_path_factory.mktemp("tiny") / "model")), None)


@pytest.fixture(scope="module")
def measured(subject, tmp_path_factory):
    out = tmp_path_factory.mktemp("coupling")
    return run(subject, PLAN, out), out


def test_noise_in_one_item_changes_no_other_in_fp32(measured):
    document, out = measured
    scoring, free, held = document["cells"]
    assert set(scoring) == set(free) == set(held)
    assert (scoring["entities"], scoring["candidates"]) == (2, 200)
    assert scoring["answers_of_others"] == 2 * 2 * (200 - 10)
    assert scoring["changed"] == 0 and scoring["yes"] > 0
    assert scoring["largest_margin_difference"] < 1e-4  # rounding at most: other lengths are other shapes
    assert held["answers_of_others"] == 2 * (45 - 3) and held["lists_missing"] == 0
    assert free["changed_share"] == 1.0  # an untrained model answers nothing, and that is no stability
    assert [entry["precision"] for entry in document["missing"]] == ["int7"]
    assert sorted(path.name for path in out.iterdir()) == ["coupling.json", "coupling.md", "coupling.png"]
    assert "| mis | fp32 | 760 |" in (out / "coupling.md").read_text()


def test_the_noise_is_really_in_the_list(subject, tmp_path, monkeypatch):
    seen = []
    margins = Scorer.margins
    monkeypatch.setattr(Scorer, "margins", lambda *given: seen.append([list(i) for i in given[2]]) or margins(*given))
    run(subject, Plan(**(vars(PLAN) | {"decisions": 200, "repetitions": 1, "generation_decisions": 20})), tmp_path)
    before, after = [items for items in seen if len(items) == 200]
    differs = [place for place in range(200) if before[place] != after[place]]
    assert differs == replaced(1, 0, 200) and len(differs) == 10
    assert [place // 20 for place in differs] == list(range(10))


def test_changed_answers_of_the_others_are_counted_and_a_missing_one_is_changed():
    before = np.array([[1, 0, 0, MISSING]], dtype=np.int8)
    after = np.array([[0, 1, 1, 0]], dtype=np.int8)
    others = np.array([[True, False, True, True]])
    counted = coupling([before, after], [others])
    assert (counted["answers_of_others"], counted["changed"], counted["yes"]) == (3, 3, 2)
    assert counted["changed_share_of_yes"] == 1.0
    same = coupling([before[:, :3], before[:, :3]], [others[:, :3]])
    assert (same["changed"], same["changed_share_of_yes"], same["lists_with_a_change_share"]) == (0, 0.0, 0.0)


def test_a_killed_run_loses_one_repetition_at_most(subject, tmp_path, measured, monkeypatch):
    def interrupt(progress):
        if progress.done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(subject, PLAN, tmp_path, progress=interrupt)
    assert len(list(next(tmp_path.iterdir()).iterdir())) == 2
    assert run(subject, PLAN, tmp_path)["cells"] == measured[0]["cells"]


def test_the_command_measures_random_words(subject, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    quick = Plan(**(vars(PLAN) | {"decisions": 20, "repetitions": 1, "generation_decisions": 20}))
    monkeypatch.setattr(Plan, "quick", classmethod(lambda cls, generator=None: quick))
    arguments = ["bench", "coupling", "--model", subject.path, "--quick", "--out", "results", "--threads", "1"]
    assert run_command(arguments) == 2
    assert "--synthetic" in capsys.readouterr().err
    assert run_command([*arguments, "--synthetic", "--precision", "fp32", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["cells"][0]["method"] == "mis"


def cell(method, setting, items=200, **changed):
    base = {
        "method": method, "setting": setting, "items": items, "precision": "bf16", "query_tokens": 170,
        "item_tokens": 8, "queries": 1, "items_measured": items, "prefill_tokens": 1770, "decoded_tokens": 0,
        "labels_per_s": 100.0,
    }  # fmt: skip
    return base | changed


def test_the_work_of_every_method_is_that_of_its_definition():
    rows = [
        work_row(one)
        for one in (
            cell("generation", "shared_query=True, skip_forced=True", decoded_tokens=990),
            cell("generation", "shared_query=False, skip_forced=True"),
            cell("independent", "prompts_per_forward=8", items_measured=100, prefill_tokens=17800),
            cell("prefix_cache", "items_per_forward=32"),
            cell("mis", "items_per_round=64"),
        )
    ]
    assert [(row[2], row[3]) for row in rows] == [
        ("10", "170"), ("10", "1,700"), ("200", "34,000"), ("200", "170"), ("4", "680"),
    ]  # fmt: skip
    assert (rows[0][5], rows[2][4]) == ("990", "35,600")
    assert work_table([cell("mis", "items_per_round=100", items=100)]).count("| mis |") == 1


def results_page():
    file = Path(__file__).parent.parent / "benchmarks" / "results_page.py"
    spec = importlib.util.spec_from_file_location("results_page", file)
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look their module up.
    importlib.sys.modules["results_page"] = module
    spec.loader.exec_module(module)
    return module


def test_what_has_not_been_run_says_so_and_holds_no_number(tmp_path):
    script = results_page()
    made = script.page(tmp_path, {})
    assert made.count("**Not run yet.**") == len(script.SECTIONS) == 7
    for line in made.splitlines():
        if line.startswith("| ") and not line.startswith(("| claim", "| ---")):
            assert line.endswith("| not run yet |")


def test_the_page_is_filled_from_the_json_and_keeps_what_people_wrote(measured, tmp_path):
    script = results_page()
    out = measured[1]
    made = script.page(out, {"coupling": "Nothing leaks.\n"})
    assert made.count("**Not run yet.**") == 6
    assert "| mis | fp32 | 760 |" in made and "coupling.png" in made
    assert script.notes_of(made)["coupling"] == "Nothing leaks.\n"
    assert script.page(out, script.notes_of(made)) == made


def test_the_published_page_is_what_its_json_gives():
    script = results_page()
    root = Path(__file__).parent.parent
    published = (root / "docs" / "results.md").read_text()
    assert script.page(root / "benchmarks" / "results", script.notes_of(published)) == published
