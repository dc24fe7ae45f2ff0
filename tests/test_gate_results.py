"""What every gate says can be acted on: a value beside its limit, few rows of evidence, one sentence with the cure."""

import json
import re

import pytest

from semlabel import gates
from semlabel.gates import GATES, MAX_EVIDENCE_ROWS
from tests.gate_cases import (
    EMPTY,
    FAILING,
    MOVED,
    NOT_ENOUGH,
    OUTCOMES,
    PASSING,
    RULE,
    SHIFTED,
    SHOWN,
    catalog,
    data_drift,
    endpoint,
    entities,
    label_drift,
    pairs,
    result_of,
    split_tokens,
    splits,
    volume,
)

MANY = 500
# A gate with this many offenders, by gate; gates without lists of offenders cannot have too many.
OFFENDERS = {
    "catalog_contract": lambda: catalog(violations=RULE * MANY),
    "split_tokens_match": lambda: split_tokens([{"candidate": "c" * 1000, "mismatch": "m"}] * MANY, checked=MANY),
    "entities_contract": lambda: entities(violations=RULE * MANY),
    "pairs_contract": lambda: pairs(violations=RULE * MANY),
    "splits_do_not_leak": lambda: splits(shared_entities=["e"] * MANY, near_duplicates=[("a", "b", "c", "d")] * MANY),
    "held_out_errors": lambda: gates.held_out_errors(SHOWN | {"steps": [{"cut": 0.5, "ok": False}] * MANY}),
    "predictions_contract": lambda: gates.predictions_contract(RULE * MANY, 1000),
    "coverage_is_complete": lambda: gates.coverage_is_complete(1000, 500, [("e", "c")] * MANY),
    "volume_change": lambda: volume(candidate_flips=[{"candidate_id": "c", "yes_either": 30, "flipped": 30}] * MANY),
    "one_labeler_everywhere": lambda: gates.one_labeler_everywhere("abc", [endpoint(f"p{n}") for n in range(MANY)]),
    "label_rate_drift": lambda: label_drift([MOVED] * MANY),
    "data_drift": lambda: data_drift([SHIFTED] * MANY),
}
WITHOUT_LISTS = {
    *("answers_are_single_tokens", "held_out_quality", "mis_matches_single_item", "order_invariance"),
    "snapshot_matches_warehouse",
    "shortlist_recall",
}


def lists_in(value):
    """Every list anywhere in a JSON value."""
    if isinstance(value, list):
        yield value
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from lists_in(part)


def every_result(gate):
    yield from (result_of(gate, outcome) for outcome in OUTCOMES)
    yield from (make() for make in FAILING[gate])


@pytest.mark.parametrize("gate", GATES)
def test_every_result_shows_what_was_compared_and_says_what_to_do(gate):
    for result in every_result(gate):
        shown = f"{result.verdict}: {result.sentence}"
        assert (result.gate, result.asset) == (gate, GATES[gate].asset)
        assert re.fullmatch(r"[A-Z0-9'`a-z].{14,}\.", result.sentence) and "\n" not in result.sentence, shown
        if result.computed:
            assert result.limit is not None, shown
        if result.verdict == "pass":
            assert result.value is not None, shown
        else:
            assert re.search(r"[:;] [a-z].{6,}\.$", result.sentence), f"no cure in {shown}"
        json.dumps(result.to_json(), allow_nan=False)


@pytest.mark.parametrize("gate", GATES)
def test_many_offenders_are_counted_and_few_are_shown(gate):
    assert (gate in OFFENDERS) != (gate in WITHOUT_LISTS)
    result = OFFENDERS.get(gate, FAILING[gate][0])()
    assert all(len(rows) <= MAX_EVIDENCE_ROWS for rows in lists_in(result.evidence))
    assert len(json.dumps(result.to_json(), allow_nan=False)) < 60_000
    if gate in OFFENDERS:
        totals = [value for name, value in result.evidence.items() if name.endswith("_total")]
        assert totals and set(totals) == {MANY}


@pytest.mark.parametrize("cases", [PASSING, FAILING, EMPTY, NOT_ENOUGH], ids=["pass", "fail", "empty", "not enough"])
def test_a_new_gate_cannot_be_forgotten(cases):
    assert list(cases) == list(GATES) or set(cases) == set(GATES)


def test_only_a_path_that_does_not_answer_turns_a_blocking_gate_into_a_warning():
    warned = {
        (gate, result.gate)
        for gate in GATES
        for result in every_result(gate)
        if result.severity == "WARN" and GATES[gate].severity == "ERROR"
    }
    assert warned == {("one_labeler_everywhere", "one_labeler_everywhere")}


def test_a_candidate_that_turned_over_is_compared_with_the_limit_for_candidates():
    result = volume(candidate_flips=[{"candidate_id": "c1", "yes_either": 30, "flipped": 18}])
    assert (result.verdict, result.value, result.limit) == ("fail", 0.6, 0.5)
    both = volume(removed_fraction=0.2, candidate_flips=[{"candidate_id": "c1", "yes_either": 30, "flipped": 18}])
    assert (both.value, both.limit) == (0.2, 0.05)
