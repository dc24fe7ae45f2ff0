"""What people see while a run works, and what they are told before it starts."""

import io
import json
from datetime import UTC, datetime, timedelta

import pytest

from semlabel.cli.cost import Inventory, smaller_profile
from semlabel.cli.execution import Event
from semlabel.cli.live import PlainDisplay, Rate, Watch, line, live, quiet
from semlabel.estimate import Speed
from semlabel.settings import load_settings
from tests.cli_settings import smallest

SETTINGS = smallest(base="./model")


def test_progress_says_how_far_how_fast_and_how_long():
    assert (
        line("scoring", 3200, 30000, "pairs", 112.0)
        == "scoring: 3,200 of 30,000 pairs, 112 pairs/s, about 3 min 59 s left"
    )
    assert line("training", 3, 0, "steps", None) == "training: 3 steps"
    assert line("training", 4, 4, "steps", 0.52) == "training: 4 of 4 steps, 0.52 steps/s"


def test_what_a_resumed_run_had_done_before_does_not_count_as_speed():
    rate = Rate()
    assert rate.of("scoring", 9000, 100.0) is None
    assert rate.of("scoring", 9200, 102.0) == 100.0
    assert rate.of("training", 10, 103.0) is None


def test_a_log_gets_a_line_now_and_then_and_not_one_per_poll():
    stream, now = io.StringIO(), [0.0]
    display = PlainDisplay(stream, clock=lambda: now[0])
    for second, done in ((0, 0), (1, 10), (10, 100), (31, 310), (32, 320), (50, 500), (51, 500)):
        now[0] = float(second)
        display.progress("scoring", done, 500, "pairs")
    assert stream.getvalue().splitlines() == [
        "  scoring: 0 of 500 pairs",
        "  scoring: 310 of 500 pairs, 10 pairs/s, about 19 s left",
        "  scoring: 500 of 500 pairs, 10 pairs/s",
    ]


def test_a_second_asset_that_scores_is_shown_like_the_first():
    stream, now = io.StringIO(), [0.0]
    display = PlainDisplay(stream, clock=lambda: now[0])
    for second, done, total in ((0, 0, 50), (5, 50, 50), (6, 50, 50), (7, 0, 90), (12, 50, 90), (40, 80, 90)):
        now[0] = float(second)
        display.progress("scoring", done, total, "pairs")
    assert [line.split(",")[0] for line in stream.getvalue().splitlines()] == [
        "  scoring: 0 of 50 pairs",
        "  scoring: 50 of 50 pairs",
        "  scoring: 0 of 90 pairs",
        "  scoring: 80 of 90 pairs",
    ]


def test_progress_of_an_earlier_stage_is_not_shown_again():
    rows = [{"stage": "training", "done": 4, "total": 4, "unit": "steps", "updated_at": "2020-01-01T00:00:00+00:00"}]
    stream = io.StringIO()
    watch = Watch(lambda: rows)
    watch.show_on(PlainDisplay(stream))
    watch.event(Event("start", "predictions"))
    watch.poll()
    assert stream.getvalue() == "predictions\n"
    later = datetime.now(UTC) + timedelta(seconds=1)
    rows.append({"stage": "scoring", "done": 1, "total": 9, "unit": "pairs", "updated_at": later.isoformat()})
    watch.poll()
    assert stream.getvalue() == "predictions\n  scoring: 1 of 9 pairs\n"


def test_events_read_like_a_report():
    stream = io.StringIO()
    with live(watch := Watch(list), stream, terminal=False):
        watch.event(Event("start", "catalog"))
        watch.event(Event("made", "catalog", rows=2085))
        watch.event(Event("gate", "catalog_contract", asset="catalog"))
        watch.event(Event("gate", "split_tokens_match", "catalog", passed=False, blocking=True, text="3 differ."))
        watch.event(Event("gate", "label_rate_drift", "predictions", passed=False, text="The rate moved."))
        thin = {"passed": False, "text": "calibrate is thin.", "stored": "not_enough_data"}
        watch.event(Event("gate", "held_out_quality", "catalog", blocking=True, **thin))
        watch.event(Event("gate", "label_rate_drift", "catalog", **thin))
    assert stream.getvalue().splitlines() == [
        "catalog",
        "  2,085 rows, 0 s",
        "  pass  catalog_contract",
        "  FAIL  split_tokens_match: 3 differ.",
        "  warn  label_rate_drift (predictions): The rate moved.",
        "  NOT ENOUGH DATA  held_out_quality: calibrate is thin.",
        "  warn  label_rate_drift: calibrate is thin.",
    ]


def test_a_terminal_keeps_the_lines_and_takes_the_bar_away():
    stream = io.StringIO()
    rows = [{"stage": "scoring", "done": 5, "total": 9, "unit": "pairs", "updated_at": "9999"}]
    with live(watch := Watch(lambda: rows), stream, terminal=True):
        watch.event(Event("gate", "held_out_quality", "", passed=False, blocking=True, text="[bold]not markup[/bold]"))
        watch.poll()
        print("noise of a step")
    assert "held_out_quality: [bold]not markup[/bold]" in stream.getvalue()
    assert "noise" not in stream.getvalue()


def test_output_of_children_and_of_c_code_goes_to_the_log(tmp_path, capfd):
    import subprocess

    with quiet(tmp_path / "logs" / "run.log") as (visible, terminal):
        subprocess.run(["echo", "from a child"], check=True)
        print("from python")
        print("for people", file=visible)
    assert not terminal
    out, err = capfd.readouterr()
    assert (out, err) == ("", "for people\n")
    assert sorted((tmp_path / "logs" / "run.log").read_text().splitlines()) == ["from a child", "from python"]
    print("back again")
    assert capfd.readouterr().out == "back again\n"


def test_the_log_has_its_folder_where_stderr_is_no_file(tmp_path, monkeypatch):
    import io
    import sys

    monkeypatch.setattr(sys, "stderr", io.StringIO())  # as in a notebook
    with quiet(tmp_path / "logs" / "run.log"):
        assert (tmp_path / "logs").is_dir()


@pytest.fixture
def project(tmp_path):
    (tmp_path / "entities.csv").write_text("entity_id,text\n" + "".join(f"e{i},text {i} of many\n" for i in range(40)))
    (tmp_path / "catalog.csv").write_text("candidate_id,text\n" + "".join(f"c{i},do thing {i}\n" for i in range(20)))
    (tmp_path / "references.csv").write_text(
        "entity_id,candidate_id,label\n" + "".join(f"e{i},c1,1\n" for i in range(40))
    )
    (tmp_path / "pipeline.toml").write_text(SETTINGS)
    header = json.dumps({"layer.weight": {"dtype": "F32", "shape": [10_000, 10_000]}}).encode()
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    return tmp_path


def test_a_long_run_is_offered_the_largest_profile_that_is_quick_enough(project):
    for name, pairs in (("tiny", 20), ("small", 200), ("large", 5000)):
        (project / f"{name}.toml").write_text(f'extends = "pipeline.toml"\n[training]\nmax_pairs = {pairs}\n')
    (project / "other.toml").write_text("this is = not toml")
    settings = load_settings(project / "pipeline.toml")
    inventory = Inventory.read(settings)
    slow = Speed(4e9, "fp32", "cpu")
    whole = inventory.cost(slow, training=True)
    assert whole.seconds > 20 * 60
    offer = smaller_profile(settings, whole)
    assert offer.startswith("That is long. A smaller profile takes about ")
    assert offer.endswith("small.toml")
    quick = inventory.cost(Speed(4e12, "fp32", "cpu"), training=True)
    assert smaller_profile(settings, quick) is None


def test_without_a_smaller_profile_the_settings_to_lower_are_named(project):
    settings = load_settings(project / "pipeline.toml")
    whole = Inventory.read(settings).cost(Speed(4e9, "fp32", "cpu"), training=True)
    assert "[training] max_pairs" in smaller_profile(settings, whole)
