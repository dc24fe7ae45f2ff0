"""The estimate counts what a run will really do, and says so when it cannot."""

import json

import pytest

from semlabel.errors import ModelRefused
from semlabel.estimate import (
    TRAINING_SHARE,
    Estimate,
    Lengths,
    Sizes,
    Speed,
    duration,
    estimate,
    lengths_of,
    linear_parameters,
    measure_speed,
    scoring_work,
    sizes_of,
)
from semlabel.settings import Settings

LENGTHS = Lengths(query=100.0, item=10.0, counted=True)
SIZES = Sizes(entities=1000, candidates=200, train=700, held_out=150)
SPEED = Speed(operations_per_second=1e11, precision="fp32", device="cpu")


def settings(**sections):
    base = {
        "sources": {"entities": "e.csv", "catalog": "c.csv", "references": "r.csv"},
        "model": {"base": "/nowhere"},
        "prompt": {"template": "{entity} {candidate}"},
        "calibration": {"min_precision": 0.5},
        "scoring": {"entities": "held_out"},
    }
    return Settings.model_validate({**base, **{k: base.get(k, {}) | v for k, v in sections.items()}})


def work_of(result: Estimate):
    return {work.stage: work for work in result.work}


def test_every_round_reads_its_query_once():
    work = scoring_work("s", 400, 200, settings(), LENGTHS)
    assert (work.pairs, work.tokens) == (400, 2 * 100 + 400 * 10)


def test_a_round_never_exceeds_the_token_limit():
    work = scoring_work("s", 400, 200, settings(scoring={"max_round_tokens": 600}), LENGTHS)
    assert work.tokens == 8 * 100 + 400 * 10


def test_training_is_capped_by_max_pairs_and_counts_epochs():
    result = estimate(settings(training={"max_pairs": 4000, "epochs": 2.0}), SIZES, LENGTHS, 1_000_000, SPEED)
    train = work_of(result)["train"]
    assert (train.pairs, train.tokens) == (8000, 2 * (100 * 100 + 4000 * 10))
    assert result.seconds_of(train) == pytest.approx(2 * 1e6 * train.tokens * 3 / (1e11 * TRAINING_SHARE))


def test_held_out_entities_are_scored_once_not_again_as_predictions():
    work = work_of(estimate(settings(), SIZES, LENGTHS, None, None))
    assert work["score held-out entities"].pairs == 150 * 200
    assert work["score predictions"].pairs == 0


def test_entities_limit_zero_means_all_of_them():
    night = estimate(settings(), SIZES, LENGTHS, None, None, training=False, entities_limit=0)
    assert night.pairs_to_score == 1000 * 200
    limited = estimate(settings(), SIZES, LENGTHS, None, None, training=False, entities_limit=3)
    assert limited.pairs_to_score == 600
    more = estimate(settings(), SIZES, LENGTHS, None, None, training=False, entities_limit=400)
    assert more.pairs_to_score == 150 * 200


def test_with_shortlists_only_what_gates_judge_is_scored_in_full():
    listed = settings(shortlist={"size": 20}, scoring={"entities": "all"})
    first = work_of(estimate(listed, SIZES, LENGTHS, None, None))
    assert first["score held-out entities"].pairs == 150 * 200
    assert (first["score predictions"].pairs, first["score predictions"].tokens) == (17_000, 850 * 100 + 17_000 * 10)
    night = estimate(listed, SIZES, LENGTHS, None, None, training=False)
    assert night.pairs_to_score == 150 * 200 + 850 * 20
    longer = settings(shortlist={"size": 500}, scoring={"entities": "all"})
    assert estimate(longer, SIZES, LENGTHS, None, None, training=False).pairs_to_score == 1000 * 200


def test_a_new_candidate_costs_every_entity_its_whole_query():
    # 149 of 150 entities lack one candidate of 200, one lacks all.
    night = estimate(settings(), SIZES, LENGTHS, None, None, training=False, stored={199: 149})
    (work,) = night.work
    assert (work.pairs, work.tokens) == (149 + 200, 150 * 100 + (149 + 200) * 10)
    capped = settings(scoring={"max_pairs": 50})
    (work,) = estimate(capped, SIZES, LENGTHS, None, None, training=False, stored={199: 150}).work
    assert (work.pairs, work.tokens) == (50, 50 * 100 + 50 * 10)


def test_a_warm_night_is_estimated_as_nothing():
    night = estimate(settings(), SIZES, LENGTHS, 10, SPEED, training=False, stored={200: 150})
    assert (night.pairs_to_score, night.seconds) == (0, 0.0)
    assert night.sentence() == "Nothing to train and nothing to score."


def test_a_cap_on_pairs_bounds_the_estimate():
    capped = settings(scoring={"max_pairs": 50})
    assert estimate(capped, SIZES, LENGTHS, None, None, training=False).pairs_to_score == 50


def test_an_unknown_model_gives_no_time_instead_of_a_wrong_one():
    result = estimate(settings(), SIZES, LENGTHS, None, SPEED)
    assert result.seconds is None
    assert result.sentence() == "No time can be estimated: the base model is not on this disk."
    json.dumps(result.to_json(), allow_nan=False)


def test_splits_in_entities_and_in_shares_of_those_that_are_split_are_both_understood():
    shares = settings(splits={"calibrate": 0.1, "certify": 20, "test": 0.05})
    assert sizes_of(shares, 1000, 50, 900) == Sizes(1000, 50, 745, 90 + 20 + 45)
    assert sizes_of(settings(), 10_000, 50, 1_000) == Sizes(10_000, 50, 650, 350)
    assert sizes_of(settings(), 10, 50, 4) == Sizes(10, 50, 1, 3)


def test_catalog_top_limits_the_candidates():
    assert sizes_of(settings(sources={"catalog_top": 200}), 10, 2085, 10).candidates == 200
    assert sizes_of(settings(sources={"catalog_top": 200}), 10, 60, 10).candidates == 60


def test_queries_are_counted_as_cut():
    lengths = lengths_of(settings(prompt={"max_query_tokens": 30}), ["x" * 4000], ["y" * 40])
    assert (lengths.query, lengths.item, lengths.counted) == (30, 11.0, False)


def test_a_lone_surrogate_does_not_stop_the_count():
    assert lengths_of(settings(), ["a\ud800b"], ["c"]).item > 0


def write_safetensors(path, tensors):
    header = json.dumps({name: {"dtype": "F32", "shape": shape} for name, shape in tensors.items()}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header)


def test_embeddings_norms_and_head_are_no_linear_work(tmp_path):
    write_safetensors(
        tmp_path / "model-1.safetensors", {"model.embed_tokens.weight": [100, 8], "a.q_proj.weight": [8, 8]}
    )
    write_safetensors(
        tmp_path / "model-2.safetensors", {"lm_head.weight": [100, 8], "norm.weight": [8], "b.up.weight": [16, 8]}
    )
    assert linear_parameters(tmp_path) == 64 + 128


def test_a_model_that_is_not_there_has_no_parameters(tmp_path):
    assert linear_parameters(tmp_path / "missing") is None
    assert linear_parameters(tmp_path) is None


def test_a_broken_model_file_is_named(tmp_path):
    (tmp_path / "model.safetensors").write_bytes((10**12).to_bytes(8, "little"))
    with pytest.raises(ModelRefused, match=r"model\.safetensors: not a safetensors file"):
        linear_parameters(tmp_path)
    (tmp_path / "model.safetensors").write_bytes((50).to_bytes(8, "little") + b'{"a"')
    with pytest.raises(ModelRefused, match="cut short"):
        linear_parameters(tmp_path)


def test_the_measured_speed_is_a_rate():
    speed = measure_speed("fp32", "cpu", seconds=0.05)
    assert speed.operations_per_second > 1e8
    assert (speed.precision, speed.device) == ("fp32", "cpu")


def test_a_speed_that_was_measured_beside_other_work_says_so():
    busy = Speed(operations_per_second=1e11, precision="fp32", device="cpu", taken=0.42)
    assert "Other work took 42% of its cores meanwhile." in estimate(settings(), SIZES, LENGTHS, 10, busy).sentence()
    assert "Other work" not in estimate(settings(), SIZES, LENGTHS, 10, SPEED).sentence()


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (59.4, "59 s"), (60, "1 min"), (200, "3 min 20 s"), (1500, "25 min"), (7500, "2 h 5 min")],
)
def test_durations_read_like_speech(seconds, text):
    assert duration(seconds) == text
