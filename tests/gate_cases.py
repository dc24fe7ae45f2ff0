"""Every gate with results that pass, that fail, that have too little to tell, and that were given nothing.

Keyed by the name of the gate: a gate of the registry that is missing here fails every test that walks over it.
"""

import numpy as np

from semlabel import gates
from semlabel.gates import GATES, GateResult
from semlabel.gates.registry import decide

HELD = {"value": 0.96, "low": 0.95, "high": 0.97}
RATIO = {"value": 1.6, "low": 1.3, "high": 1.9}
SPLITS = {"train": 100, "calibrate": 40, "certify": 60, "test": 40}
SHOWN = {
    "verdict": "pass",
    "threshold": 1.5,
    "policy": {"min_precision": 0.5, "max_fpr": None, "max_fnr": None},
    "bounds": {"precision": 0.55},
    "word": "certified",
    "sentence": "Precision is at least 0.55.",
    "steps": [],
}


def catalog(**change):
    args = {"violations": [], "rows": 98, "refused": 2, "rows_in": 100, "max_refused_fraction": 0.05}
    return gates.catalog_contract(**(args | {"min_candidates": 1} | change))


def entities(**change):
    args = {"violations": [], "rows": 98, "refused": 2, "rows_in": 100, "max_refused_fraction": 0.05}
    args |= {"min_entities": 1, "truncated": 10, "max_truncated_fraction": 0.2}
    return gates.entities_contract(**(args | change))


def pairs(**change):
    args = {"violations": [], "rows": 400, "positives": 100, "reference_problems": 1, "reference_rows": 100}
    return gates.pairs_contract(**(args | {"max_reference_problem_fraction": 0.05} | change))


def splits(**change):
    return gates.splits_do_not_leak(**({"shared_entities": [], "near_duplicates": [], "splits_sizes": SPLITS} | change))


def answers(yes_ids=(7,), no_ids=(9,)):
    return gates.answers_are_single_tokens("Yes", "No", list(yes_ids), list(no_ids))


def split_tokens(mismatches=(), checked=250):
    return gates.split_tokens_match(list(mismatches), checked)


def quality(**change):
    args = {"auc": HELD, "average_precision": HELD, "baselines": {"tfidf_cosine": 0.28}, "ratio": RATIO}
    return gates.held_out_quality(**(args | {"min_auc": 0.9, "min_average_precision_ratio": 1.0} | change))


def parity(gate, **change):
    args = {"differences": np.full(200, 1e-5, np.float32), "flips": 0, "yes_either": 12, "tolerance": 1e-3}
    return getattr(gates, gate)(**(args | {"pairs": 200, "min_pairs": 200, "max_label_flips": 0.01} | change))


def volume(**change):
    args = {"removed_fraction": 0.01, "previous_rows": 1000, "candidate_flips": [], "max_removed_fraction": 0.05}
    return gates.volume_change(**(args | {"max_candidate_flip_fraction": 0.5, "approved": False, "rows": 990} | change))


MOVED = {"name": "c1", "span": "tonight", "before": 0.1, "now": 0.15, "arrived": None, "up": 250, "down": 0}
MOVED |= {"moved": 0.05, "p": 1e-60}
SHIFTED = {"name": "text length", "against": "the version before", "before": 900.0, "now": 700.0, "p": 1e-9}


def label_drift(findings=(), **change):
    return gates.label_rate_drift(findings, **({"rows": 1000, "nights": 3, "limit": 0.005} | change))


def data_drift(shifts=(), measures=({"name": "text length", "share": 6.8, "entities": 200.0},), nights=3):
    return gates.data_drift(shifts, measures, nights, 0.02)


CLAIM = {"of": "reference YES", "kept": 294, "total": 300, "entities": 60, "recall": 0.98, "bound": 0.96}
CLAIM |= {"shown": True, "more_entities": 1}


def shortlist(*claims, **change):
    found = claims or (CLAIM, CLAIM | {"of": "YES of the labeler"})
    return gates.shortlist_recall(found, **({"size": 200, "min_recall": 0.95, "confidence": 0.95} | change))


def endpoint(name="offline", digest="abc", reachable=True):
    return {"name": name, "digest": digest, "reachable": reachable}


PASSING = {
    "catalog_contract": lambda: catalog(),
    "answers_are_single_tokens": lambda: answers(),
    "split_tokens_match": lambda: split_tokens(),
    "entities_contract": lambda: entities(),
    "pairs_contract": lambda: pairs(),
    "splits_do_not_leak": lambda: splits(),
    "held_out_quality": lambda: quality(),
    "mis_matches_single_item": lambda: parity("mis_matches_single_item"),
    "order_invariance": lambda: parity("order_invariance"),
    "held_out_errors": lambda: gates.held_out_errors(SHOWN),
    "predictions_contract": lambda: gates.predictions_contract([], 1000),
    "coverage_is_complete": lambda: gates.coverage_is_complete(1000, 990, [], 10),
    "shortlist_recall": lambda: shortlist(),
    "volume_change": lambda: volume(),
    "one_labeler_everywhere": lambda: gates.one_labeler_everywhere("abc", [endpoint()]),
    "label_rate_drift": lambda: label_drift(),
    "data_drift": lambda: data_drift(),
    "snapshot_matches_warehouse": lambda: gates.snapshot_matches_warehouse("h", "h", 10, 10),
}

RULE = [{"rule": "entity_id is unique", "rows": 2}]
FAILING = {
    "catalog_contract": [
        lambda: catalog(violations=RULE),
        lambda: catalog(rows=90, refused=10),
        lambda: catalog(rows=97),
    ],
    "answers_are_single_tokens": [lambda: answers((7, 8)), lambda: answers((7,), ()), lambda: answers((7,), (7,))],
    "split_tokens_match": [lambda: split_tokens(["pair e1, c1: [1, 2] instead of [3]"])],
    "entities_contract": [
        lambda: entities(violations=RULE),
        lambda: entities(rows=90, refused=10),
        lambda: entities(truncated=30),
    ],
    "pairs_contract": [lambda: pairs(violations=RULE), lambda: pairs(reference_problems=6)],
    "splits_do_not_leak": [
        lambda: splits(shared_entities=["e1"]),
        lambda: splits(near_duplicates=[("e1", "e2", 0.93)]),
    ],
    "held_out_quality": [
        lambda: quality(auc={"value": 0.89, "low": 0.85, "high": 0.92}),
        lambda: quality(ratio={"value": 0.9, "low": 0.8, "high": 1.1}),
    ],
    "mis_matches_single_item": [
        lambda: parity("mis_matches_single_item", differences=np.r_[np.zeros(199), 0.002]),
        lambda: parity("mis_matches_single_item", flips=1),
        lambda: parity("mis_matches_single_item", differences=np.r_[np.zeros(199), np.nan]),
        lambda: parity("mis_matches_single_item", differences=np.zeros(150)),
    ],
    "order_invariance": [
        lambda: parity("order_invariance", differences=np.full(200, -0.5)),
        lambda: parity("order_invariance", flips=2),
    ],
    "held_out_errors": [
        lambda: gates.held_out_errors(
            SHOWN | {"verdict": "fail", "threshold": None, "sentence": "Precision is low: train a better labeler."}
        ),
        lambda: gates.held_out_errors(SHOWN | {"threshold": None}),
        lambda: gates.held_out_errors(SHOWN | {"bounds": {"precision": 0.45}}),
        lambda: gates.held_out_errors(SHOWN | {"bounds": {}}),
    ],
    "predictions_contract": [lambda: gates.predictions_contract(RULE, 1000)],
    "coverage_is_complete": [
        lambda: gates.coverage_is_complete(1000, 999, [("e1", "c1")], 0),
        lambda: gates.coverage_is_complete(1000, 1001),
    ],
    "shortlist_recall": [
        lambda: shortlist(CLAIM | {"kept": 150, "recall": 0.5, "bound": 0.41, "more_entities": 4000}, CLAIM),
        lambda: shortlist(CLAIM, CLAIM | {"recall": float("nan"), "bound": float("nan")}),
    ],
    "volume_change": [
        lambda: volume(removed_fraction=0.06),
        lambda: volume(candidate_flips=[{"candidate_id": "c1", "yes_either": 30, "flipped": 16}]),
        lambda: volume(rows=0, approved=True),
        lambda: volume(rows=0, withheld=990, approved=True),
        lambda: volume(removed_fraction=float("nan")),
    ],
    "one_labeler_everywhere": [
        lambda: gates.one_labeler_everywhere("abc", [endpoint(), endpoint("online", "old")]),
        lambda: gates.one_labeler_everywhere("abc", [endpoint(), endpoint("online", None)]),
        lambda: gates.one_labeler_everywhere("abc", [endpoint(), endpoint("online", None, reachable=False)]),
    ],
    "label_rate_drift": [lambda: label_drift([MOVED])],
    "data_drift": [lambda: data_drift([SHIFTED])],
    "snapshot_matches_warehouse": [
        lambda: gates.snapshot_matches_warehouse("h", "other", 10, 10),
        lambda: gates.snapshot_matches_warehouse("h", "h", 10, 9),
    ],
}

EMPTY = {
    "catalog_contract": lambda: catalog(rows=0, refused=0, rows_in=0),
    "answers_are_single_tokens": lambda: gates.answers_are_single_tokens("", "", [], []),
    "split_tokens_match": lambda: split_tokens(checked=0),
    "entities_contract": lambda: entities(rows=0, refused=0, rows_in=0, truncated=0),
    "pairs_contract": lambda: pairs(rows=0, positives=0, reference_problems=0, reference_rows=0),
    "splits_do_not_leak": lambda: splits(splits_sizes={}),
    "held_out_quality": lambda: quality(auc=None, ratio=None, average_precision=None),
    "mis_matches_single_item": lambda: parity("mis_matches_single_item", differences=[], pairs=0, yes_either=0),
    "order_invariance": lambda: parity("order_invariance", differences=[], pairs=0, min_pairs=0, yes_either=0),
    "held_out_errors": lambda: gates.held_out_errors({}),
    "predictions_contract": lambda: gates.predictions_contract([], 0),
    "coverage_is_complete": lambda: gates.coverage_is_complete(0, 0),
    "shortlist_recall": lambda: gates.shortlist_recall([], 200, 0.95, 0.95),
    "volume_change": lambda: volume(previous_rows=0, rows=0, removed_fraction=0.0),
    "one_labeler_everywhere": lambda: gates.one_labeler_everywhere("abc", []),
    "label_rate_drift": lambda: label_drift(rows=0, nights=0),
    "data_drift": lambda: data_drift(measures=()),
    "snapshot_matches_warehouse": lambda: gates.snapshot_matches_warehouse("h", "h", 0, 0),
}

TOO_LITTLE = SHOWN | {"verdict": "not_enough_data", "threshold": None, "sentence": "Too little data: judge more."}
NOT_ENOUGH = {
    "catalog_contract": lambda: catalog(min_candidates=200),
    "split_tokens_match": lambda: split_tokens(checked=0),
    "entities_contract": lambda: entities(min_entities=200),
    "pairs_contract": lambda: pairs(positives=0),
    "splits_do_not_leak": lambda: splits(splits_sizes=SPLITS | {"certify": 0}),
    "held_out_quality": lambda: quality(baselines={}),
    "mis_matches_single_item": lambda: parity("mis_matches_single_item", differences=np.zeros(20), pairs=20),
    "order_invariance": lambda: parity("order_invariance", yes_either=0),
    "held_out_errors": lambda: gates.held_out_errors(TOO_LITTLE),
    "predictions_contract": lambda: gates.predictions_contract([], 0),
    "coverage_is_complete": lambda: gates.coverage_is_complete(0, 0),
    "one_labeler_everywhere": lambda: gates.one_labeler_everywhere("abc", []),
    "label_rate_drift": lambda: label_drift(rows=0),
    "data_drift": lambda: data_drift(measures=()),
    "snapshot_matches_warehouse": lambda: gates.snapshot_matches_warehouse("h", "h", 0, 0),
    # These two can always tell; whatever said so all the same must block.
    "answers_are_single_tokens": lambda: _undecided("answers_are_single_tokens"),
    "shortlist_recall": lambda: shortlist(CLAIM, CLAIM | {"bound": 0.93, "more_entities": 40}),
    "volume_change": lambda: _undecided("volume_change"),
}


def _undecided(gate: str) -> GateResult:
    return decide(gate, "not_enough_data", "Too little to tell: give more of it.", 0, 1)


OUTCOMES = ("pass", "fail", "cannot_compute", "not_enough_data", "empty")


def result_of(gate: str, outcome: str) -> GateResult:
    """What a gate says in one of the five cases. Raises KeyError for a gate that nobody has written cases for."""
    if outcome == "cannot_compute":
        return gates.cannot_compute(GATES[gate].name, "ZeroDivisionError: no rows to divide by")
    if outcome == "fail":
        return FAILING[gate][0]()
    return {"pass": PASSING, "not_enough_data": NOT_ENOUGH, "empty": EMPTY}[outcome][gate]()
