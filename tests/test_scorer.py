"""Scoring: all methods give the plain model's margins, neighbours never matter, what cannot be proven is refused."""

import gc
import threading
import weakref
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from transformers import AttentionInterface

from semlabel.attention import SPLIT, split_attention
from semlabel.errors import LabelerError, ModelRefused, PromptError
from semlabel.prompt import Prompt, PromptSpec
from semlabel.readout import Labels
from semlabel.scorer import METHODS, Scorer, readout
from tests.tiny import save_tiny, tiny_model, tiny_tokenizer

SPEC = PromptSpec("Profile:\n{entity}\n\nActivity: {candidate}\nAnswer:", max_query_tokens=48)
EDGES = (1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129)
KINDS = ["llama", "qwen2", "qwen3", "gemma", "gemma3_text", "phi", "phi3"]
HEADS = {1: (2, 2), 3: (3, 1), 4: (4, 1), 7: (7, 1)}


def scorer_for(model, method="mis", spec=SPEC, **options):
    tokenizer = tiny_tokenizer()
    return Scorer(model, tokenizer, Prompt(spec, tokenizer), method, **options)


def ids(length, seed):
    return np.random.default_rng(seed).integers(0, 384, length).tolist()


def margins_alone(scorer, query, items):
    return np.array([scorer.plain_margin([*query, *item]) for item in items])


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("ratio", HEADS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_method_gives_the_margin_of_the_single_prompt(kind, ratio, tied):
    heads, key_heads = HEADS[ratio]
    sizes = {"hidden_size": 8 * heads, "num_attention_heads": heads, "num_key_value_heads": key_heads}
    model = tiny_model(kind, seed=ratio, tie_word_embeddings=tied, **sizes)
    query, items = ids(33, 1), [ids(length, length) for length in (5, 1, 17, 5, 2)]
    for method in METHODS:
        scorer = scorer_for(model, method)
        alone = margins_alone(scorer, query, items)
        assert np.ptp(alone) > 0.05
        assert np.abs(scorer.margins(query, items) - alone).max() < 1e-4, method


@pytest.mark.parametrize(
    ("kind", "setting"),
    [
        ("gemma3_text", {"final_logit_softcapping": 0.5}),
        ("cohere", {"logit_scale": 4.0}),
        ("granite", {"logits_scaling": 0.3}),
    ],
)
def test_the_heads_own_post_processing_is_applied(kind, setting):
    model = tiny_model(kind, **setting)
    query, items = ids(9, 1), [ids(4, 2), ids(3, 3)]
    scorer = scorer_for(model)
    assert np.abs(scorer.margins(query, items) - margins_alone(scorer, query, items)).max() < 1e-4
    hidden = torch.randn(2, 32)
    with_setting = readout(hidden, model, 266, 265)
    name = next(iter(setting))
    setattr(model.config, name, 1.0 if name == "logits_scaling" else None)
    assert not torch.allclose(with_setting, readout(hidden, model, 266, 265), atol=1e-3)


def test_the_readout_has_a_gradient_in_both_rows_of_the_head():
    model = tiny_model("phi")
    readout(torch.randn(3, 32), model, 5, 9).sum().backward()
    assert model.lm_head.weight.grad.abs().sum(1).nonzero().flatten().tolist() == [5, 9]
    assert model.lm_head.bias.grad[[5, 9]].tolist() == [3.0, -3.0]


@pytest.mark.parametrize(("kind", "window"), [("gemma3_text", 20), ("mistral", 20), ("phi3", 20), ("gemma3_text", 37)])
def test_a_window_shorter_than_the_prompt_bites_as_in_single_prompts(kind, window):
    model = tiny_model(kind, sliding_window=window)
    query, items = ids(35, 1), [ids(length, length) for length in (4, 1, 9, 24)]
    for method in METHODS:
        scorer = scorer_for(model, method)
        assert np.abs(scorer.margins(query, items) - margins_alone(scorer, query, items)).max() < 1e-4, method


def test_a_window_longer_than_the_check_can_afford_limits_the_prompt():
    scorer = scorer_for(tiny_model("mistral", sliding_window=1500))
    assert len(scorer.margins(ids(1400, 1), [ids(100, 2)])) == 1
    with pytest.raises(PromptError, match="at most 1500"):
        scorer.margins(ids(1400, 1), [ids(101, 2)])


@pytest.fixture(scope="module", params=[("llama", 4, 2), ("llama", 7, 1), ("phi", 2, 2)], ids=str)
def exact(request):
    kind, heads, key_heads = request.param
    sizes = {"hidden_size": 16 * heads, "num_attention_heads": heads, "num_key_value_heads": key_heads}
    return scorer_for(tiny_model(kind, **sizes))


LENGTHS = st.lists(st.sampled_from(EDGES), min_size=2, max_size=6)


@settings(max_examples=12)
@given(st.sampled_from((0, *EDGES)), LENGTHS, st.integers(0, 5), st.integers(0, 2**16))
@example(64, [32, 1], 0, 3)
@example(1, [65, 64, 1, 128], 1, 3)
def test_replacing_an_item_by_one_of_its_length_moves_no_bit_of_the_others(exact, query_length, lengths, which, seed):
    which %= len(lengths)
    query, items = ids(query_length, seed), [ids(length, seed + n) for n, length in enumerate(lengths)]
    before = exact.margins(query, items)
    items[which] = ids(lengths[which], seed + 1000)
    after = exact.margins(query, items)
    others = np.arange(len(items)) != which
    assert before[others].tobytes() == after[others].tobytes()


@settings(max_examples=12)
@given(st.sampled_from((0, *EDGES)), LENGTHS, st.randoms(use_true_random=False), st.integers(0, 2**16))
def test_shuffling_items_moves_no_bit(exact, query_length, lengths, random, seed):
    query, items = ids(query_length, seed), [ids(length, seed + n) for n, length in enumerate(lengths)]
    order = random.sample(range(len(items)), len(items))
    before = exact.margins(query, items)
    assert exact.margins(query, [items[n] for n in order]).tobytes() == before[order].tobytes()


@settings(max_examples=10)
@given(st.sampled_from(EDGES), st.lists(st.sampled_from((0, *EDGES)), min_size=1, max_size=5), st.integers(0, 99))
def test_lengths_around_the_kernels_blocks_agree_with_single_prompts(exact, query_length, lengths, seed):
    query, items = ids(query_length, seed), [ids(length, seed + n) for n, length in enumerate(lengths)]
    assert np.abs(exact.margins(query, items) - margins_alone(exact, query, items)).max() < 1e-4


@pytest.mark.parametrize("method", METHODS)
def test_margins_come_back_in_the_callers_order_with_duplicates(method):
    scorer = scorer_for(tiny_model(), method)
    query, a, b, c = ids(12, 0), ids(4, 1), ids(3, 2), ids(7, 3)
    first = scorer.margins(query, [a, a, b, c])
    assert first[0] == first[1] != first[2]
    assert scorer.margins(query, [c, b, a]) == pytest.approx([first[3], first[2], first[0]], abs=1e-5)
    assert (first.dtype, first.shape) == (np.float32, (4,))


@pytest.mark.parametrize("method", METHODS)
def test_a_margin_does_not_depend_on_how_many_are_scored_with_it(method):
    scorer = scorer_for(tiny_model(), method, items_per_round=64)
    query, items = ids(20, 0), [ids(1 + n % 9, n) for n in range(150)]
    all_at_once = scorer.margins(query, items)
    for size in (1, 2, 8, 64):
        assert np.abs(scorer.margins(query, items[:size]) - all_at_once[:size]).max() < 1e-4


@settings(max_examples=12)
@given(
    st.lists(
        st.tuples(st.sampled_from((0, *EDGES)), st.lists(st.sampled_from(EDGES), max_size=4)), min_size=1, max_size=6
    ),
    st.integers(0, 99),
)
def test_rounds_that_share_a_forward_have_the_margins_they_have_alone(exact, rounds, seed):
    made = [
        (ids(query, seed + number), [ids(length, seed + number + 7 * item) for item, length in enumerate(lengths)])
        for number, (query, lengths) in enumerate(rounds)
    ]
    found = dict(exact.margins_of(made))
    assert found.keys() == set(range(len(made)))
    for number, (query, items) in enumerate(made):
        assert np.abs(found[number] - exact.margins(query, items)).max(initial=0) < 1e-5
        if items:
            assert np.abs(found[number] - margins_alone(exact, query, items)).max() < 1e-4


def test_short_rounds_share_a_forward_and_long_ones_do_not():
    scorer = scorer_for(tiny_model(max_position_embeddings=4096))
    rounds = [(ids(100, number), [ids(5, number)]) for number in range(25)] + [
        (ids(600, 3), [ids(5, 3)]),
        (ids(9, 1), []),
    ]
    found = dict(scorer.margins_of(rounds))
    assert scorer.forwards == 3  # 19 and 6 of 105 tokens within 2,048; one that is longer than 512
    assert len(found) == 27 and len(found[26]) == 0


@pytest.mark.parametrize("method", ["prefix_cache", "independent"])
def test_methods_that_do_not_pack_score_many_rounds_one_by_one(method):
    scorer = scorer_for(tiny_model(), method)
    rounds = [(ids(5, number), [ids(3, number), ids(2, number)]) for number in range(3)]
    for number, margins in scorer.margins_of(rounds):
        assert np.array_equal(margins, scorer.margins(*rounds[number]))


@pytest.mark.parametrize("method", METHODS)
def test_rounds_scored_side_by_side_have_the_margins_they_have_one_after_the_other(method):
    lengths = [(60, 90), (5, 3), (40, 120), (0, 2), (80, 70), (7, 1)]
    rounds = [(ids(query, query), [ids(9, item) for item in range(items)]) for query, items in lengths]
    rounds[2] = ([10**9], [[5]])
    one_lane, lanes = (scorer_for(tiny_model(), method, lanes=number) for number in (1, 3))
    expected, found = list(one_lane.margins_of(rounds)), list(lanes.margins_of(rounds))
    assert [number for number, _ in found] == [number for number, _ in expected]
    for (number, margins), (_, others) in zip(found, expected, strict=True):
        if number == 2:
            assert isinstance(margins, PromptError) and str(margins) == str(others)
        else:
            assert np.array_equal(margins, others)
    assert lanes.forwards == one_lane.forwards >= 3


def test_a_model_that_keeps_frequencies_between_forwards_scores_one_at_a_time(monkeypatch):
    rope = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0}
    model = tiny_model(rope_parameters=rope, max_position_embeddings=64)
    at, forward = set(), model.base_model.forward

    def noted(*arguments, **named):
        at.add(threading.get_ident())
        return forward(*arguments, **named)

    monkeypatch.setattr(model.base_model, "forward", noted)
    scorer = scorer_for(model, "independent", lanes=4)
    assert len(list(scorer.margins_of([(ids(5, number), [ids(3, number)]) for number in range(4)]))) == 4
    assert at == {threading.get_ident()}


def test_rounds_are_cut_by_both_limits_and_joined_in_order():
    query, items = ids(20, 0), [ids(1 + n % 9, n) for n in range(50)]
    one = scorer_for(tiny_model())
    many = scorer_for(tiny_model(), items_per_round=7, max_round_tokens=50)
    assert np.abs(one.margins(query, items) - many.margins(query, items)).max() < 1e-4
    assert (one.forwards, many.forwards) == (1, 9)


@pytest.mark.parametrize("method", METHODS)
def test_nothing_empty_reaches_a_kernel(method):
    scorer = scorer_for(tiny_model(), method)
    query, item = ids(6, 0), ids(3, 1)
    assert scorer.margins(query, []).shape == (0,)
    assert scorer.forwards == 0
    at_query = scorer.plain_margin(query)
    assert scorer.margins(query, [[], item, []])[[0, 2]] == pytest.approx([at_query] * 2, abs=1e-5)
    assert scorer.margins(query, [[]]) == pytest.approx([at_query], abs=1e-5)
    assert scorer.margins([], [item]) == pytest.approx([scorer.plain_margin(item)], abs=1e-5)
    with pytest.raises(PromptError, match="no token to read"):
        scorer.margins([], [item, []])


def test_a_prompt_longer_than_the_model_knows_is_refused():
    scorer = scorer_for(tiny_model(max_position_embeddings=32))
    with pytest.raises(PromptError, match="a prompt of 33 tokens; this model is served with at most 32"):
        scorer.margins(ids(20, 0), [ids(13, 1)])


@pytest.mark.parametrize("bad", [-1, 384])
def test_ids_outside_the_vocabulary_are_refused(bad):
    with pytest.raises(PromptError, match="outside the vocabulary of 384"):
        scorer_for(tiny_model()).margins([1, 2], [[3, bad]])


def test_broken_weights_give_no_margins():
    model = tiny_model()
    model.model.norm.weight.data[3] = float("nan")
    with pytest.raises(LabelerError, match="2 margins are not finite"):
        scorer_for(model).margins([1, 2], [[3], [4]])


def test_a_model_in_training_mode_is_not_scored_with():
    scorer = scorer_for(tiny_model())
    scorer.model.train()
    with pytest.raises(RuntimeError, match="training mode"):
        scorer.margins([1], [[2]])


def test_two_methods_share_one_model_without_touching_each_other():
    model = tiny_model()
    before = model.config._attn_implementation
    query, items = ids(9, 0), [ids(4, 1), ids(2, 2)]
    margins = {method: scorer_for(model, method).margins(query, items) for method in METHODS}
    packed = scorer_for(model)
    packed.plain_margin(query)
    assert np.array_equal(packed.margins(query, items), margins["mis"])
    assert np.abs(margins["prefix_cache"] - margins["independent"]).max() < 1e-4
    assert model.config._attn_implementation == before


def test_the_prefix_is_run_once_for_all_batches():
    scorer = scorer_for(tiny_model(), "prefix_cache")
    scorer.margins(ids(9, 0), [ids(2, n) for n in range(70)])
    assert scorer.forwards == 1 + 3


@pytest.mark.parametrize("kind", ["gemma2", "bloom", "gpt_oss"])
def test_what_packing_gets_wrong_is_served_by_the_slower_method_it_names(kind):
    model = tiny_model(kind, **({"num_local_experts": 4} if kind == "gpt_oss" else {}))
    with pytest.raises(ModelRefused, match='method = "prefix_cache"'):
        scorer_for(model)
    assert scorer_for(model, "prefix_cache").self_check() < 1e-4


def test_convolutions_are_served_alone():
    model = tiny_model("lfm2", layer_types=["conv", "full_attention"])
    for method in ("mis", "prefix_cache"):
        with pytest.raises(ModelRefused, match='method = "independent"'):
            scorer_for(model, method)
    assert scorer_for(model, "independent").self_check() < 1e-4


def test_frequencies_that_grew_with_a_long_prompt_do_not_stay_for_the_next():
    rope = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0}
    make = lambda: tiny_model(rope_parameters=dict(rope), max_position_embeddings=64)  # noqa: E731
    scorer = scorer_for(make(), "independent")
    query, items = ids(70, 0), [ids(4, 1), ids(30, 2), ids(9, 3)]
    fresh = [scorer_for(make(), "independent").plain_margin([*query, *item]) for item in items]
    scorer.margins(query, items[1:2])
    assert np.abs(scorer.margins(query, items) - fresh).max() < 1e-4


@pytest.mark.parametrize("kind", KINDS)
def test_the_self_check_passes_what_is_exact(kind):
    window = {"sliding_window": 60} if kind in ("gemma3_text", "phi3") else {}
    for method in METHODS:
        assert scorer_for(tiny_model(kind, **window), method).self_check() < 1e-4


def test_the_self_check_in_bf16_has_its_own_tolerance():
    scorer = scorer_for(tiny_model().to(torch.bfloat16), precision="bf16")
    assert 1e-4 < scorer.self_check() < 0.5


@pytest.fixture
def sabotage():
    """Puts another function in the packed attention's place for one test."""

    def put(function):
        AttentionInterface.register(SPLIT, function)

    yield put
    AttentionInterface.register(SPLIT, split_attention)


def plain_causal(module, query, key, value, attention_mask=None, scaling=None, mis_layout=None, count=True, **_):
    mis_layout.attention_calls += count
    output = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, is_causal=True, scale=scaling, enable_gqa=True
    )
    return output.transpose(1, 2).contiguous(), None


def test_the_self_check_catches_a_path_that_took_the_layout_and_ignored_it(sabotage):
    sabotage(plain_causal)
    with pytest.raises(ModelRefused, match="differs by"):
        scorer_for(tiny_model()).self_check()


def test_the_self_check_catches_a_model_that_never_calls_the_attention(sabotage):
    sabotage(lambda *arguments, **named: plain_causal(*arguments, count=False, **named))
    with pytest.raises(ModelRefused, match="ran the packed attention 0 times in 2 layers"):
        scorer_for(tiny_model()).self_check()


def test_the_self_check_catches_a_leak_between_items_below_the_bf16_tolerance(sabotage):
    def leaking(*arguments, mis_layout=None, **named):
        output, _ = split_attention(*arguments, mis_layout=mis_layout, **named)
        return output + 0.002 * output.mean(1, keepdim=True), None

    sabotage(leaking)
    with pytest.raises(ModelRefused, match="replacing one item moved another's margin"):
        scorer_for(tiny_model().to(torch.bfloat16), precision="bf16").self_check()


def test_the_self_check_uses_a_query_longer_than_the_window(sabotage):
    def forgets_the_window(*arguments, sliding_window=None, **named):
        return split_attention(*arguments, **named)

    sabotage(forgets_the_window)
    with pytest.raises(ModelRefused, match="differs by"):
        scorer_for(tiny_model("gemma3_text", sliding_window=60)).self_check()


def test_the_self_check_catches_a_head_that_was_never_loaded():
    model = tiny_model(tie_word_embeddings=False)
    model.lm_head.weight.data.zero_()
    with pytest.raises(LabelerError, match="the same margin"):
        scorer_for(model).self_check()


def test_the_self_check_does_not_refuse_margins_that_only_the_plain_head_rounds_together():
    model = tiny_model("phi")
    model.lm_head.weight.data.mul_(1e-3)
    model.lm_head.bias.data.fill_(100)  # where bf16 has steps of 0.5
    scorer = scorer_for(model.to(torch.bfloat16), precision="bf16")
    query, items = ids(33, 1), [ids(length, length) for length in (5, 1, 17, 5, 2)]
    assert np.ptp(margins_alone(scorer, query, items)) == 0
    assert 0 < np.ptp(scorer.margins(query, items)) < 0.5
    scorer.self_check()


def test_the_self_check_needs_room_for_a_candidate():
    spec = PromptSpec(SPEC.template, max_query_tokens=48, max_item_tokens=4)
    with pytest.raises(PromptError, match="max_item_tokens = 4 leaves no room"):
        scorer_for(tiny_model(), spec=spec).self_check()


@pytest.mark.parametrize("add_bos", [False, True])
def test_one_beginning_of_sequence_in_the_whole_pack(add_bos):
    tokenizer = tiny_tokenizer(add_bos)
    prompt = Prompt(SPEC, tokenizer)
    packed = [*prompt.query("plans the work").ids, *prompt.item("teach"), *prompt.item("sell goods")]
    assert packed.count(tokenizer.bos_token_id) == int(add_bos)
    assert Scorer(tiny_model(), tokenizer, prompt).self_check() < 1e-4


def test_a_template_that_doubles_the_beginning_of_sequence_is_caught():
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = "<|im_start|><|im_start|>" + "{{ messages[0]['content'] }}" + "<|im_end|>"
    prompt = Prompt(PromptSpec(SPEC.template, format="chat", max_query_tokens=48), tokenizer)
    with pytest.raises(LabelerError, match="more than one beginning-of-sequence"):
        Scorer(tiny_model(), tokenizer, prompt).self_check()


def test_a_directory_becomes_a_checked_scorer(tmp_path):
    save_tiny(tmp_path, "qwen3")
    scorer = Scorer.load(tmp_path, SPEC, precision="fp32", device="cpu")
    assert (scorer.method, scorer.precision) == ("mis", "fp32")
    assert (scorer.items_per_round, scorer.max_round_tokens) == (200, 8192)
    assert scorer.forwards > 0
    again = Scorer.load(tmp_path, SPEC, precision="fp32", device="cpu", method="independent", self_check=False)
    assert again.forwards == 0
    query, items = scorer.prompt.query("keeps records").ids, scorer.prompt.items(["sell goods", "teach"])
    assert np.abs(scorer.margins(query, items) - again.margins(query, items)).max() < 1e-4


def test_an_unknown_method_and_a_wrong_precision_are_said():
    with pytest.raises(ModelRefused, match="method = 'fast' is not known"):
        scorer_for(tiny_model(), "fast")
    with pytest.raises(LabelerError, match="asked for fp32"):
        scorer_for(tiny_model().bfloat16(), precision="fp32")


def test_swapping_the_answers_turns_every_margin_round():
    model = tiny_model()
    query, items = ids(9, 0), [ids(4, 1), ids(2, 2)]
    swapped = PromptSpec(SPEC.template, yes="No", no="Yes", max_query_tokens=48)
    assert scorer_for(model, spec=swapped).margins(query, items) == pytest.approx(
        -scorer_for(model).margins(query, items)
    )


def test_probabilities_of_labels_are_shares_at_any_temperature():
    scorer = scorer_for(tiny_model())
    asked = Labels(((5, 9, 33),), over_vocabulary=False)
    (warm,) = scorer.probabilities(ids(9, 0), [ids(4, 1)], asked)
    for temperature in (5e-324, 1e-320, 1e-300):
        (cold,) = scorer.probabilities(ids(9, 0), [ids(4, 1)], replace(asked, temperature=temperature))
        assert cold.tolist() == [float(share == warm.max()) for share in warm]
    (hot,) = scorer.probabilities(ids(9, 0), [ids(4, 1)], replace(asked, temperature=1e308))
    assert hot.tolist() == pytest.approx([1 / 3] * 3, rel=1e-12)


@pytest.mark.parametrize("method", METHODS)
def test_a_scorer_is_freed_with_its_last_use(method):
    scorer = scorer_for(tiny_model(), method)
    scorer.margins(ids(9, 0), [ids(4, 1), ids(2, 2)])
    gone = weakref.ref(scorer)
    gc.disable()
    try:
        del scorer
        assert gone() is None
    finally:
        gc.enable()
