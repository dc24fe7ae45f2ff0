"""The refresh benchmark measures what it says, on a size small enough to know every number."""

import json

import pytest

from semlabel.bench import refresh
from semlabel.bench.environment import environment
from semlabel.bench.output import write
from semlabel.cli import run_command

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(scope="module")
def cells(tmp_path_factory):
    return list(refresh.measure(refresh.World(tmp_path_factory.mktemp("bench"), 200, 10), nights=2))


def test_every_step_of_a_night_is_measured_and_the_counts_are_exact(cells):
    by_step = {cell["step"]: cell for cell in cells}
    assert list(by_step) == [
        *("write", "no-op plan", "read 1 % edited", "plan 1 % edited", "commit and derive", "publication", "night")
    ]
    assert all(cell["pairs"] == 2000 and cell["seconds"] > 0 and cell["peak_mb"] > 10 for cell in cells)
    assert by_step["no-op plan"]["planned_pairs"] == 0 and by_step["no-op plan"]["covered"]
    assert by_step["plan 1 % edited"]["planned_pairs"] == 20 and by_step["plan 1 % edited"]["exactly_one_percent"]
    assert by_step["commit and derive"]["rows"] == by_step["publication"]["rows"] == 2000
    assert 0 < by_step["commit and derive"]["labels"] < 400
    nights = [cell for cell in cells if cell["step"] == "night"]
    assert [cell["night"] for cell in nights] == [1, 2] and "fresh_bytes" in nights[-1]


def test_the_three_files_hold_environment_and_flat_cells(cells, tmp_path):
    document = {"environment": environment(), "cells": cells}
    write(tmp_path, "refresh", document, refresh.table(cells), refresh.figure(cells))
    read = json.loads((tmp_path / "refresh.json").read_text())
    assert {"machine", "cores", "versions", "commit", "date"} <= set(read["environment"])
    assert all(not isinstance(value, dict | list) for cell in read["cells"] for value in cell.values())
    assert (tmp_path / "refresh.png").read_bytes().startswith(PNG)
    text = (tmp_path / "refresh.md").read_text()
    assert text.count("\n| 2,000 |") == len(cells) and "night 2" in text


def test_the_command_writes_what_the_study_yields(cells, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(refresh, "study", lambda quick, large: iter(cells if quick else []))
    assert run_command(["bench", "refresh", "--quick", "--out", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["cells"] == cells
    assert {file.name for file in tmp_path.iterdir()} == {"refresh.json", "refresh.md", "refresh.png"}


def test_the_nights_alone_are_files_of_their_own(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(refresh, "QUICK", (150,))
    monkeypatch.setattr(refresh, "CANDIDATES", 10)
    assert run_command(["bench", "refresh", "--quick", "--churn", "--out", str(tmp_path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["cells"]
    assert [(cell["step"], cell["night"], cell["pairs"]) for cell in found] == [("night", n, 1500) for n in range(1, 6)]
    assert found[-1]["file_to_fresh"] == round(found[-1]["file_bytes"] / found[-1]["fresh_bytes"], 3)
    assert {file.name for file in tmp_path.iterdir()} == {f"refresh_churn.{kind}" for kind in ("json", "md", "png")}
    assert (
        "`semlabel bench refresh --churn` ([raw data](refresh_churn.json))"
        in (tmp_path / "refresh_churn.md").read_text()
    )


def test_an_unknown_benchmark_is_one_line_with_the_known_ones(capsys):
    assert run_command(["bench", "refesh"]) == 2
    assert "refresh" in capsys.readouterr().err
