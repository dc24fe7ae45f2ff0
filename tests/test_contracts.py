"""The contracts of four tables: each rule catches the row that breaks it, wherever it stands."""

from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest

from assets import contracts
from assets.contracts import Contract, Rule, findings
from semlabel import gates
from semlabel.digests import text_id
from semlabel.warehouse import Warehouse
from semlabel.warehouse_scores import ScoredRound, ensure_blocks

ENTITIES = pd.DataFrame(
    {
        "entity_id": ["007", "1e5", "nan"],
        "text": ["plans work", "keeps records", "sells goods"],
        "split": ["train", "test", ""],
        "query_tokens": [5, 6, 7],
        "truncated": [False, True, False],
    }
)
CATALOG = pd.DataFrame(
    {"candidate_id": ["a", "b"], "text": ["keep records", "sell goods"], "certified": True, "item_tokens": [3, 4]}
)
PAIRS = pd.DataFrame(
    {
        "entity_id": ["007", "007"],
        "candidate_id": ["a", "b"],
        "label": [True, False],
        "split": ["train", "train"],
        "kind": ["positive", "random"],
    }
)


@pytest.fixture
def warehouse(tmp_path: Path) -> Iterator[Warehouse]:
    import numpy as np

    with Warehouse.open(tmp_path / "warehouse.duckdb") as opened:
        opened.replace_entities(ENTITIES, "run")
        opened.rows("INSERT INTO remembered_splits SELECT entity_id, split, '7', now() FROM entities")
        opened.replace_catalog(CATALOG, "run")
        opened.replace_training_pairs(PAIRS, "run")
        keys = [row[0] for row in opened.rows("SELECT text_key FROM catalog ORDER BY position")]
        texts = [row[0] for row in opened.rows("SELECT text_key FROM entities ORDER BY entity_id")]
        with opened.transaction() as connection:
            (block,) = ensure_blocks(connection, [keys])
        margins = [np.array([1.5, -2.0], dtype=np.float32)] * 3
        rounds = [ScoredRound(text, block, keys, row) for text, row in zip(texts, margins, strict=True)]
        opened.commit_scores(rounds, "s" * 64, "run")
        opened.activate_labeler("a" * 64, "s" * 64, 0.0, 1.0, 0.0)
        yield opened


@pytest.mark.parametrize(
    ("contract", "rows"),
    [
        (contracts.ENTITIES, 3),
        (contracts.CATALOG, 2),
        (contracts.TRAINING_PAIRS, 2),
        (contracts.PREDICTIONS, 6),
    ],
    ids=lambda value: getattr(value, "table", None),
)
def test_good_tables_break_no_rule(warehouse, contract, rows):
    found = findings(warehouse, contract)
    assert found.violations == []
    assert found.facts["rows"] == rows
    assert found.expectations > len(contract.rules)


def test_counts_come_with_the_findings(warehouse):
    assert findings(warehouse, contracts.ENTITIES).facts["truncated"] == 1
    assert findings(warehouse, contracts.TRAINING_PAIRS).facts["positives"] == 1


BROKEN = [
    (contracts.ENTITIES, "UPDATE entities SET text = '  ' WHERE entity_id = '1e5'", "every text says something", "1e5"),
    (contracts.ENTITIES, "UPDATE entities SET text_id = 'x' WHERE entity_id = 'nan'", "sha256 of its text", "nan"),
    (contracts.ENTITIES, "UPDATE entities SET split = 'dev' WHERE entity_id = '007'", "every split is train", "007"),
    (contracts.ENTITIES, "UPDATE entities SET split = 'certify' WHERE entity_id = '1e5'", "given for good", "1e5"),
    (contracts.ENTITIES, "UPDATE entities SET query_tokens = 0 WHERE entity_id = '007'", "has tokens", "007"),
    (contracts.ENTITIES, "INSERT INTO entities SELECT * FROM entities LIMIT 1", "same entity_id", "007"),
    (contracts.ENTITIES, "UPDATE entities SET entity_id = '' WHERE entity_id = '007'", "has its entity_id", ""),
    (contracts.CATALOG, "UPDATE catalog SET item_tokens = 0 WHERE candidate_id = 'b'", "every item has tokens", "b"),
    (contracts.TRAINING_PAIRS, "DELETE FROM entities WHERE entity_id = '007'", "every pair names an entity", "007 / a"),
    (contracts.TRAINING_PAIRS, "DELETE FROM catalog WHERE candidate_id = 'b'", "names a candidate", "007 / b"),
    (contracts.TRAINING_PAIRS, "UPDATE training_pairs SET split = 'test'", "of the train split", "007 / a"),
    (contracts.PREDICTIONS, "UPDATE scores SET margins = ['nan'::FLOAT, 1.0]", "finite number", "007 / a"),
    (contracts.PREDICTIONS, "UPDATE labelers SET platt_a = NULL", "between 0 and 1", "007 / a"),
    (contracts.PREDICTIONS, "UPDATE labelers SET threshold = NULL", "label is margin >= threshold", "007 / a"),
    (contracts.PREDICTIONS, "UPDATE scores SET scored_at = scored_at + INTERVAL 3 DAY", "in the future", "007 / a"),
    (
        contracts.PREDICTIONS,
        "INSERT INTO scores SELECT * FROM scores LIMIT 1",
        "same entity_id and candidate_id",
        " / a",
    ),
]


@pytest.mark.parametrize(("contract", "breaking", "rule", "example"), BROKEN, ids=[case[1][:60] for case in BROKEN])
def test_every_rule_catches_the_row_that_breaks_it(warehouse, contract, breaking, rule, example):
    warehouse.rows(breaking)
    (broken,) = [violation for violation in findings(warehouse, contract).violations if rule in violation["rule"]]
    assert broken["rows"] >= 1
    assert example in broken["examples"]


def test_an_empty_table_never_passes_though_no_row_breaks_a_rule(warehouse):
    warehouse.rows("DELETE FROM catalog")
    found = findings(warehouse, contracts.CATALOG)
    assert (found.violations, found.facts["rows"]) == ([], 0)
    verdict = gates.catalog_contract(
        found.violations, found.facts["rows"], refused=0, rows_in=0, max_refused_fraction=1.0, min_candidates=1
    )
    assert not verdict.passed


def test_an_expectation_that_raises_is_a_broken_rule(warehouse):
    contract = Contract(
        "catalog",
        key=("candidate_id",),
        rules=(),
        counts={},
        sample=(("ExpectColumnValuesToBeBetween", {"column": "text", "min_value": 1}),),
    )
    (violation,) = findings(warehouse, contract).violations
    assert "could be evaluated" in violation["rule"]
    assert violation["examples"]


def test_a_broken_row_beyond_the_sample_is_still_found(warehouse, monkeypatch):
    monkeypatch.setattr(contracts, "SAMPLE_ROWS", 1)
    warehouse.rows("UPDATE entities SET split = 'dev' WHERE entity_id = '007'")
    warehouse.rows("UPDATE entities SET split = 'dev' WHERE entity_id = 'nan'")
    violations = findings(warehouse, contracts.ENTITIES).violations
    assert {"rows": 2, "examples": "007; nan"}.items() <= violations[0].items()


def test_a_contract_may_be_written_for_any_table(warehouse):
    long_ids = Contract(
        "entities",
        key=("entity_id",),
        rules=(Rule("long_ids", "every id is short", "length(entity_id) > 2"),),
        counts={},
        sample=(("ExpectColumnValuesToNotBeNull", {"column": "text"}),),
    )
    (violation,) = findings(warehouse, long_ids).violations
    assert violation == {"rule": "every id is short", "rows": 3, "examples": "007; 1e5; nan"}


def test_text_ids_of_the_warehouse_are_those_of_the_house(warehouse):
    assert warehouse.rows("SELECT text_id FROM catalog WHERE candidate_id = 'a'") == [(text_id("keep records"),)]
