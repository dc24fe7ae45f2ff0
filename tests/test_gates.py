"""Every gate shown passing once, failing once, and refusing empty input; the subjects a publication needs."""

import json
import subprocess
import sys

import numpy as np
import pytest

from semlabel import gates
from semlabel.digests import digest_of
from semlabel.errors import GateBlocked, LabelerError
from semlabel.gates import GATES, GateResult
from tests.gate_cases import (
    CLAIM,
    EMPTY,
    FAILING,
    MOVED,
    PASSING,
    SPLITS,
    catalog,
    data_drift,
    endpoint,
    label_drift,
    pairs,
    parity,
    quality,
    shortlist,
    splits,
    volume,
)


def is_one_plain_sentence(text):
    return text.endswith(".") and "\n" not in text and len(text) > 15


@pytest.mark.parametrize("name", GATES)
def test_a_gate_can_pass(name):
    result = PASSING[name]()
    assert (result.gate, result.verdict, result.passed) == (name, "pass", True), result.sentence
    assert (result.asset, result.severity) == (GATES[name].asset, GATES[name].severity)
    assert is_one_plain_sentence(result.sentence)


@pytest.mark.parametrize("name", GATES)
def test_a_gate_can_fail(name):
    for make in FAILING[name]:
        result = make()
        assert (result.gate, result.verdict, result.passed) == (name, "fail", False), result
        assert is_one_plain_sentence(result.sentence), result.sentence
        json.dumps(result.to_json(), allow_nan=False)


@pytest.mark.parametrize("name", GATES)
def test_empty_input_never_passes(name):
    assert not EMPTY[name]().passed


@pytest.mark.parametrize("name", GATES)
def test_a_gate_that_cannot_be_computed_never_passes(name):
    result = gates.cannot_compute(name, "CUDA error:\n out of memory")
    assert (result.verdict, result.computed, result.passed) == ("fail", False, False)
    assert "CUDA error: out of memory" in result.sentence
    with pytest.raises(ValueError, match="cannot pass"):
        GateResult(name, "x", "ERROR", "pass", 1, 1, "fine.", {}, computed=False)


def test_too_little_data_is_neither_a_pass_nor_a_fail():
    wide = {"value": 0.93, "low": 0.88, "high": 0.97}
    results = [
        quality(auc=wide),
        quality(ratio={"value": 1.1, "low": 0.9, "high": 1.4}),
        quality(baselines={}),
        quality(auc={"value": float("nan"), "low": float("nan"), "high": float("nan")}),
        parity("mis_matches_single_item", differences=np.zeros(20), pairs=20),
        pairs(positives=0),
        pairs(positives=400),
        splits(splits_sizes=SPLITS | {"certify": 0}),
        catalog(rows=98, min_candidates=200),
    ]
    assert [result.verdict for result in results] == ["not_enough_data"] * len(results)


def test_quality_that_is_not_shown_says_how_many_more_entities_would_show_it():
    told = quality(auc={"value": 0.927, "low": 0.894, "high": 0.95}, n_entities=60).sentence
    assert told.endswith(
        "calibrate has 60 entities, and about 39 more with reference labels would show it if quality stays as it is; "
        "bring them, or ask for less."
    )
    told = quality(ratio={"value": 1.1, "low": 0.9, "high": 1.4}, n_entities=60).sentence
    assert "about 204 more" in told


def test_quality_reports_the_worse_of_two_failures():
    both = quality(auc={"value": 0.93, "low": 0.88, "high": 0.97}, ratio={"value": 0.9, "low": 0.8, "high": 1.1})
    assert (both.verdict, both.limit) == ("fail", 1.0)


def test_an_all_no_labeler_does_not_look_stable():
    for gate in ("mis_matches_single_item", "order_invariance"):
        assert parity(gate, yes_either=0).verdict == "not_enough_data"


def test_an_approval_lets_one_volume_change_pass_and_says_so():
    approved = volume(removed_fraction=0.5, approved=True)
    assert approved.passed
    assert "approved" in approved.sentence
    assert approved.evidence["approved"] is True


def test_whoever_is_alerted_of_a_volume_change_can_approve_it_without_looking_for_its_digest():
    assert "`semlabel approve 3114cea4cad6`" in volume(removed_fraction=0.5, subject="3114cea4cad6eac7a19581").sentence


def test_rows_that_are_withheld_are_told_with_those_that_vanish():
    told = volume(removed_fraction=0.5, rows=500, withheld=490).sentence
    assert told.startswith("50.0% of the 1000 published rows would vanish (490 predictions are withheld): check")
    nothing = volume(removed_fraction=1.0, rows=0, withheld=990, approved=True)
    assert (nothing.verdict, nothing.value) == ("fail", 0)
    assert "All 990 predictions" in nothing.sentence and "train and promote a labeler" in nothing.sentence


def test_few_labels_of_a_rare_candidate_do_not_block_a_night():
    assert volume(candidate_flips=[{"candidate_id": "rare", "yes_either": 3, "flipped": 3}]).passed


def test_an_unreachable_path_warns_and_a_wrong_one_is_an_error():
    away = gates.one_labeler_everywhere("abc", [endpoint(), endpoint("online", None, reachable=False)])
    wrong = gates.one_labeler_everywhere("abc", [endpoint("offline", "old"), endpoint("online", None, reachable=False)])
    assert (away.severity, wrong.severity) == ("WARN", "ERROR")


def test_the_first_publication_is_not_blocked_for_want_of_an_earlier_one():
    assert volume(previous_rows=0, removed_fraction=0.0, rows=200).passed
    assert label_drift(nights=0).passed and data_drift(nights=0).passed


def test_evidence_is_plain_json_and_fits_a_page():
    rows = [{"rule": "x" * 1000, "rows": np.int64(i), "share": np.float32("nan")} for i in range(500)]
    result = gates.predictions_contract(rows, np.int64(1000))
    text = json.dumps(result.to_json(), allow_nan=False)
    assert len(text) < 50_000
    assert len(result.evidence["violations"]) == 50
    assert result.evidence["violations_total"] == 500
    numbers = parity("order_invariance", differences=np.full(200, 1e-6, np.float32))
    assert type(numbers.value) is float


def test_every_registered_gate_is_a_function_and_is_required_before_publication():
    assert all(callable(getattr(gates, name)) for name in GATES)
    not_required = set(GATES) - set(gates.ERROR_GATES_BEFORE_PUBLICATION)
    assert not_required == {"label_rate_drift", "data_drift", "snapshot_matches_warehouse", "shortlist_recall"}


def test_a_labeler_that_is_new_is_told_by_its_churn_and_not_as_drift():
    told = label_drift(nights=0, churn=0.125)
    assert told.passed and "12.5% of the published labels change with it" in told.sentence
    assert told.evidence["churn"] == 0.125


def test_a_drift_is_told_with_the_candidate_the_shares_and_the_span():
    told = label_drift([MOVED, MOVED | {"name": "c2", "moved": 0.01}])
    assert told.sentence.startswith("2 shares of YES moved, first c1 from 10.00% to 15.00% (tonight)")
    assert (told.value, told.limit, told.severity) == (0.05, 0.005, "WARN")


MANIFEST = {
    "digest": "labeler",
    "scorer_digest": "scorer",
    "tokenizer_digest": "tok",
    "prompt": {"digest": "prompt"},
    "training": {"pairs_digest": "pairs"},
}
DIGESTS = {"catalog": "cat", "entities": "ent", "predictions": "pred"}


def test_a_verdict_counts_only_for_the_content_it_judged():
    required = gates.required_subjects(MANIFEST, DIGESTS)
    assert set(required) == set(gates.ERROR_GATES_BEFORE_PUBLICATION)
    assert required["catalog_contract"] == digest_of(["cat", "prompt", "tok"])
    assert required["entities_contract"] == "ent"
    assert required["splits_do_not_leak"] == "pairs"
    assert required["held_out_quality"] == "scorer"
    assert required["held_out_errors"] == "labeler"
    assert required["volume_change"] == "pred"
    edited = gates.required_subjects(MANIFEST, DIGESTS | {"catalog": "other"})
    assert {name for name in required if required[name] != edited[name]} == {
        "catalog_contract",
        "answers_are_single_tokens",
        "split_tokens_match",
    }


def test_a_labeler_proven_with_shortlists_is_not_published_without_their_recall():
    required = gates.required_subjects(MANIFEST | {"shortlist": {"size": 200}}, DIGESTS)
    assert required == gates.required_subjects(MANIFEST, DIGESTS) | {"shortlist_recall": "pred"}


def test_one_claim_below_the_limit_is_enough_and_its_bound_is_what_is_compared():
    lost = shortlist(CLAIM, CLAIM | {"of": "YES of the labeler", "kept": 240, "recall": 0.8, "bound": 0.75})
    assert (lost.verdict, lost.value, lost.limit) == ("fail", 0.75, 0.95)
    assert lost.sentence == (
        "Only 98.0% (at least 96.0%) of 300 reference YES and 80.0% (at least 75.0%) of 300 YES of the labeler "
        "stand in the shortlists of 200 with 95% confidence (limit 95.0%): "
        "raise [shortlist] size, or name a better encoder."
    )
    nobody = shortlist(
        CLAIM, CLAIM | {"of": "YES of the labeler", "kept": 0, "total": 0, "recall": None, "bound": None}
    )
    assert nobody.verdict == "not_enough_data" and "no YES of the labeler on held-out entities" in nobody.sentence


def test_missing_identities_are_refused():
    with pytest.raises(LabelerError, match=r"training\.pairs_digest"):
        gates.required_subjects(MANIFEST | {"training": {}}, DIGESTS)
    with pytest.raises(GateBlocked, match="entities"):
        gates.required_subjects(MANIFEST, DIGESTS | {"entities": None})


@pytest.mark.parametrize("verdict", ["fail", "not_enough_data", None])
@pytest.mark.parametrize("gate", gates.ERROR_GATES_BEFORE_PUBLICATION)
def test_anything_but_a_pass_of_the_same_subject_blocks(gate, verdict):
    required = gates.required_subjects(MANIFEST, DIGESTS)
    rows = {(name, subject): {"verdict": "pass", "severity": "ERROR"} for name, subject in required.items()}
    assert gates.blocking_verdicts(required, lambda *key: rows.get(key)) == []
    if verdict is None:
        del rows[(gate, required[gate])]
    else:
        rows[(gate, required[gate])] = {"verdict": verdict, "severity": "ERROR", "sentence": "Mend it."}
    blocked = gates.blocking_verdicts(required, lambda *key: rows.get(key))
    assert [(row["gate"], row["verdict"]) for row in blocked] == [(gate, verdict or "missing")]


def test_an_unreachable_path_does_not_block_publication():
    row = {"verdict": "fail", "severity": "WARN", "sentence": "online does not answer."}
    assert gates.blocking_verdicts({"one_labeler_everywhere": "pred"}, lambda *_: row) == []


def test_gates_load_without_heavy_libraries():
    code = (
        "import sys, semlabel.gates, semlabel.thresholds, semlabel.calibration, semlabel.metrics, semlabel.baselines;"
        "heavy = {'torch', 'transformers', 'great_expectations', 'sklearn', 'scipy', 'dagster', 'pandas'};"
        "sys.exit(', '.join(sorted(heavy & set(sys.modules))) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
