"""Rounds on their way to a scorer: what the prompt refuses takes nothing else with it, and only that is excused."""

from types import SimpleNamespace

import pandas as pd
import pytest

from assets.checks import CHECKS
from assets.evaluation import rounds_scorer
from semlabel.errors import PromptError
from semlabel.round_stream import Partly, Round, WantedRound
from semlabel.scorer import Scorer
from semlabel.warehouse import Warehouse
from tests.pipeline_fixtures import CANDIDATES, ENTITIES, run
from tests.serving_fixtures import SPEC
from tests.tiny import save_tiny

TOO_LONG = "sell goods " * 99


def test_a_candidate_that_the_prompt_refuses_takes_no_other_out_of_its_round(tmp_path):
    scorer = Scorer.load(save_tiny(tmp_path), SPEC, precision="fp32", device="cpu", self_check=False)
    texts = ["keep records", TOO_LONG, "repair machines", " "]
    wanted = [
        WantedRound(Round(0, 0), "plans the work", [0, 1, 2, 3], texts),
        WantedRound(Round(1, 0), " ", [0, 1, 2, 3], texts),
        WantedRound(Round(2, 1), "sells goods", [1, 3], [texts[1], texts[3]]),
        WantedRound(Round(3, 2), "sells goods", [0, 2], [texts[0], texts[2]]),
    ]
    found = dict(rounds_scorer(scorer)(wanted))
    part = found[Round(0, 0)]
    assert [problem is None for problem in part.problems] == [True, False, True, False]
    assert "more than max_item_tokens" in part.problems[1] and "blank" in part.problems[3]
    items = scorer.prompt.items([texts[0], texts[2]])
    assert part.margins == pytest.approx(scorer.margins(scorer.prompt.query("plans the work").ids, items), abs=1e-5)
    assert isinstance(found[Round(1, 0)], PromptError)
    assert isinstance(found[Round(2, 1)], Partly) and len(found[Round(2, 1)].margins) == 0
    assert found[Round(3, 2)] == pytest.approx(scorer.margins(scorer.prompt.query("sells goods").ids, items), abs=1e-5)


@pytest.fixture
def project(first_run, tmp_path):
    """A project whose catalog holds one candidate more that can be scored and one that the prompt refuses."""
    project = first_run[0].copied(tmp_path / "labeled")
    more = pd.DataFrame({"candidate_id": ["c8", "c9"], "text": ["keep other goods", TOO_LONG]})
    with Warehouse.open(project.settings.paths.warehouse) as warehouse:
        known = warehouse.catalog()[["candidate_id", "text"]]
        warehouse.replace_catalog(pd.concat([known, more], ignore_index=True).assign(certified=True), "run")
    return project


def coverage(project, result):
    (row,) = [row for row in project.operations.gates_of_run(result.run_id) if row["gate"] == "coverage_is_complete"]
    return row["verdict"], {name: row["evidence"][name] for name in ("expected", "stored", "refused", "missing")}


def test_only_the_pairs_of_a_refused_candidate_are_excused(project, instance):
    result = run(project, instance, select=["predictions"])
    counts = {"expected": ENTITIES * (CANDIDATES + 2), "stored": ENTITIES * (CANDIDATES + 1), "refused": ENTITIES}
    assert coverage(project, result) == ("pass", counts | {"missing": 0})
    assert project.operations.run(result.run_id)["pairs_scored"] == ENTITIES
    # A margin that is lost later is not excused by the candidate that was refused beside it.
    with Warehouse.open(project.settings.paths.warehouse) as warehouse:
        reasons = warehouse.rows("SELECT DISTINCT source, reason FROM refused_rows WHERE run_id = ?", [result.run_id])
        warehouse.rows("DELETE FROM scores WHERE text_key = (SELECT min(text_key) FROM entities) AND len(margins) = 1")
    assert len(reasons) == 1 and reasons[0][0] == "scoring pairs"
    assert reasons[0][1].startswith("candidate 'c9': the candidate takes ")
    step = SimpleNamespace(reader=project.warehouse, materialized=lambda asset: {"run_id": result.run_id})
    again = CHECKS["coverage_is_complete"].evidence(step)
    assert (again.verdict, again.evidence["refused"], again.evidence["missing"]) == ("fail", ENTITIES, 1)
