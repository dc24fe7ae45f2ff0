"""Limits that some text would one day break are refused when they are set, so that no pair is refused in a night."""

import numpy as np
import pytest

from semlabel.errors import SettingsError
from semlabel.prompt import PromptSpec
from semlabel.prompt_length import longest_prompt, refuse_too_long
from semlabel.scorer import Scorer
from tests.tiny import save_tiny, tiny_config

TEMPLATE = "Profile: {entity}\nActivity: {candidate}\nAnswer:"
SPEC = PromptSpec(TEMPLATE, max_query_tokens=64, max_item_tokens=48)


def load(path, spec=SPEC, **options):
    return Scorer.load(path, spec, precision="fp32", device="cpu", **options)


def test_limits_that_the_models_positions_do_not_hold_are_refused_with_what_to_set(tmp_path):
    save_tiny(tmp_path, max_position_embeddings=111)
    said = (
        r"^\[prompt\] max_query_tokens = 64 and max_item_tokens = 48 allow prompts of 112 tokens, "
        r"this llama is served with at most 111; lower them to 111 together$"
    )
    for method in ("auto", "mis", "prefix_cache", "independent"):
        with pytest.raises(SettingsError, match=said):
            load(tmp_path, method=method)


def test_limits_that_a_round_does_not_hold_are_refused_with_what_to_set(tmp_path):
    save_tiny(tmp_path)
    with pytest.raises(SettingsError, match=r"\[scoring\] max_round_tokens = 111 is less; raise it to 112$"):
        load(tmp_path, max_round_tokens=111)


def test_the_longest_texts_of_limits_that_just_fit_are_scored_beside_others(tmp_path):
    save_tiny(tmp_path, max_position_embeddings=112)
    scorer = load(tmp_path, max_round_tokens=112)
    # The tiny tokenizer makes one token of each further x.
    query = scorer.prompt.query("x" * 500)
    items = scorer.prompt.items(["x" * (49 - len(scorer.prompt.item("x"))), "sell"])
    assert len(items[0]) == 48
    assert (len(query.ids), query.truncated) == (64, True)
    ((_, found),) = scorer.margins_of([(query.ids, items)])
    alone = [scorer.plain_margin([*query.ids, *item]) for item in items]
    assert np.abs(found - alone).max() < 1e-4


@pytest.mark.parametrize("window", [112, 120])
def test_a_window_as_long_as_the_model_does_not_ask_the_self_check_for_more_than_the_model_holds(tmp_path, window):
    save_tiny(tmp_path, "mistral", sliding_window=window, max_position_embeddings=120)
    assert load(tmp_path).longest_prompt == 120


def test_a_window_longer_than_a_round_does_not_ask_the_self_check_for_more_than_a_round(tmp_path):
    save_tiny(tmp_path, "mistral", sliding_window=200)
    assert load(tmp_path, max_round_tokens=150).longest_prompt == 150


def test_a_window_that_is_not_proven_bounds_the_limits_of_packed_scoring_alone():
    config = tiny_config("mistral", sliding_window=1500)
    spec = PromptSpec(TEMPLATE, max_query_tokens=1490, max_item_tokens=48)
    with pytest.raises(SettingsError, match="this mistral is served with at most 1500"):
        refuse_too_long(config, spec, "auto", 8192)
    refuse_too_long(config, spec, "prefix_cache", 8192)
    assert longest_prompt(config, "mis", 1501) == longest_prompt(config, "independent", 1490) == 4096


def test_a_model_that_is_made_to_go_past_its_positions_is_not_bounded_by_them():
    rope = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0}
    refuse_too_long(tiny_config(rope_parameters=rope, max_position_embeddings=64), SPEC, "independent", 8192)
