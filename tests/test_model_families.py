"""What docs/models.md promises of model families, on tiny random models of the same classes.

The templates are short ones of our own with the traits that matter: a system message, a date, a thinking block, a
beginning-of-sequence token of their own.
"""

import re
from pathlib import Path

import numpy as np
import pytest

from semlabel.errors import LabelerError, PromptError
from semlabel.models import refusal, smallest_window
from semlabel.prompt import Prompt, PromptSpec, answer_tokens
from semlabel.scorer import METHODS, Scorer
from tests.tiny import tiny_config, tiny_model, tiny_tokenizer

PAGE = Path(__file__).resolve().parent.parent / "docs" / "models.md"
SPEC = PromptSpec("Profile:\n{entity}\n\nActivity: {candidate}\nAnswer:", max_query_tokens=96)
CHAT = PromptSpec(SPEC.template, format="chat", max_query_tokens=160)
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
FAMILIES = {
    "SmolLM2": ("llama", {"tie_word_embeddings": True}),
    "SmolLM3": ("smollm3", {"no_rope_layers": [1, 0], "tie_word_embeddings": True}),
    "Qwen3": ("qwen3", {"use_sliding_window": False, "sliding_window": 32, "tie_word_embeddings": True}),
    "Llama 3.2": ("llama", {"rope_parameters": LLAMA3, "tie_word_embeddings": True}),
    "Gemma 3": ("gemma3_text", {"sliding_window": 24, "tie_word_embeddings": True}),
}
WINDOWS = {"Gemma 3": 24}

_TURNS = "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
_THINKING = (
    _TURNS + "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
_ALWAYS_THINKS = _TURNS + "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
_DATED = "<|im_start|>system\nToday Date: {{ strftime_now('%d %b %Y') }}<|im_end|>\n" + _THINKING
_OWN_BOS = "{{ bos_token }}" + _TURNS.replace("<|im_start|>", "<tool>")


def tokenizer_with(template, add_bos=False):
    tokenizer = tiny_tokenizer(add_bos)
    tokenizer.chat_template = template
    return tokenizer


def chat_end(template):
    """What follows the message in a chat prompt: what the answer is read after."""
    tokenizer = tokenizer_with(template)
    whole = tokenizer.decode(Prompt(CHAT, tokenizer).whole("work", "teach"), clean_up_tokenization_spaces=False)
    return whole.rpartition("Answer:")[2]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("method", METHODS)
def test_every_family_on_the_page_is_scored_exactly(family, method):
    kind, overrides = FAMILIES[family]
    tokenizer = tiny_tokenizer()
    model = tiny_model(kind, **overrides)
    assert refusal(model.config, method) is None
    scorer = Scorer(model, tokenizer, Prompt(SPEC, tokenizer), method)
    assert scorer.self_check() < 1e-4
    query, items = scorer.prompt.query("plans the work " * 20).ids, scorer.prompt.items(["teach", "sell goods"])
    alone = np.array([scorer.plain_margin([*query, *item]) for item in items])
    assert np.abs(scorer.margins(query, items) - alone).max() < 1e-4


@pytest.mark.parametrize("family", FAMILIES)
def test_only_the_windows_on_the_page_bite(family):
    kind, overrides = FAMILIES[family]
    assert smallest_window(tiny_config(kind, **overrides)) == WINDOWS.get(family)


def test_a_window_that_is_switched_on_is_not_overlooked():
    config = tiny_config("qwen3", use_sliding_window=True, sliding_window=32, max_window_layers=1)
    assert smallest_window(config) == 32


def test_the_older_gemma_is_served_by_the_method_on_the_page():
    config = tiny_config("gemma2")
    assert 'use method = "prefix_cache"' in refusal(config)
    assert refusal(config, "prefix_cache") is None


def test_a_thinking_template_is_read_before_any_thought():
    assert chat_end(_THINKING) == "<|im_end|>\n<|im_start|>assistant\n"


def test_a_template_that_opens_a_thought_puts_it_into_every_prompt():
    """Served as it is: training and serving see the same; the page says why `readout` is the better format."""
    assert chat_end(_ALWAYS_THINKS) == "<|im_end|>\n<|im_start|>assistant\n<think>\n"


def test_readout_prompts_hold_nothing_of_any_template():
    plain = Prompt(SPEC, tokenizer_with(_ALWAYS_THINKS)).whole("work", "teach")
    assert plain == Prompt(SPEC, tokenizer_with(None)).whole("work", "teach")


def test_a_dated_template_scores_the_same_every_day():
    tokenizer = tokenizer_with(_DATED)
    query = tokenizer.decode(Prompt(CHAT, tokenizer).query("work").ids)
    assert "Today Date: 26 Jul 2024" in query


def test_one_beginning_of_sequence_where_tokenizer_and_template_both_have_one():
    tokenizer = tokenizer_with(_OWN_BOS, add_bos=True)
    for spec in (SPEC, CHAT):
        assert Prompt(spec, tokenizer).whole("work", "teach").count(tokenizer.bos_token_id) == 1
    doubled = tokenizer_with("{{ bos_token }}" + _OWN_BOS)
    with pytest.raises(LabelerError, match="more than one beginning-of-sequence"):
        Scorer(tiny_model(), doubled, Prompt(CHAT, doubled)).self_check()


def test_answers_the_tokenizer_splits_are_refused_with_another_spelling():
    problem = answer_tokens(PromptSpec(SPEC.template, yes="YES", no="NO"), tiny_tokenizer()).problem
    assert "must be single tokens" in problem
    assert "'Yes' and 'No'" in problem


def test_a_base_model_without_a_chat_template_is_told_to_use_readout():
    with pytest.raises(PromptError, match="use \\[prompt\\] format = 'readout'"):
        Prompt(CHAT, tokenizer_with(None))


def test_the_page_has_every_family_and_the_window_that_is_tested():
    page = PAGE.read_text()
    for family in FAMILIES:
        assert re.search(rf"^\| {re.escape(family)}", page, re.M), family
    assert "| Qwen3-Reranker" in page
