"""Packed attention: both paths against the definition, nothing unimplemented in silence, a true gradient."""

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from semlabel.attention import MASKED, SPLIT, masked_attention, split_attention
from semlabel.bundles import Bundle
from semlabel.errors import ModelRefused
from semlabel.models import using_attention
from semlabel.packing import Layout, pack
from tests.tiny import tiny_model

EDGES = (0, 1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129)


def states(layout, heads=4, key_heads=2, width=8, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shapes = [(1, layout.total, count, width) for count in (heads, key_heads, key_heads)]
    return [torch.randn(shape, generator=generator).to(dtype).transpose(1, 2) for shape in shapes]


def by_definition(layout, query, key, value, window=None):
    """Softmax attention over the explicit mask, in float64, head by head."""
    groups = query.shape[1] // key.shape[1]
    query, key, value = (part.double() for part in (query, key, value))
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    scores = (query @ key.transpose(2, 3)) * query.shape[-1] ** -0.5
    scores = scores.masked_fill(~layout.mask(window), float("-inf"))
    return (scores.softmax(-1) @ value).transpose(1, 2)


def run(function, layout, parts, **arguments):
    with torch.inference_mode():
        return function(None, *parts, None, scaling=parts[0].shape[-1] ** -0.5, mis_layout=layout, **arguments)[0]


@settings(max_examples=40)
@given(st.sampled_from(EDGES), st.lists(st.sampled_from(EDGES), min_size=1, max_size=4), st.sampled_from((1, 3, 4, 7)))
@example(129, [129, 1, 0, 64], 3)
@example(0, [1, 65, 1], 7)
@example(64, [0, 0], 1)
def test_both_paths_follow_the_definition_at_every_block_size(query_length, lengths, ratio):
    if query_length == 0 and 0 in lengths:
        return
    layout = Layout(query_length, tuple(lengths))
    parts = states(layout, heads=2 * ratio, key_heads=2)
    expected = by_definition(layout, *parts)
    for function in (split_attention, masked_attention):
        assert (run(function, layout, parts) - expected).abs().max() < 2e-6
    assert layout.attention_calls == 2


@settings(max_examples=40)
@given(
    st.lists(
        st.tuples(st.sampled_from(EDGES), st.lists(st.sampled_from(EDGES), max_size=3)), min_size=1, max_size=4
    ).filter(lambda rounds: all(query or (lengths and all(lengths)) for query, lengths in rounds)),
    st.sampled_from((1, 3, 7)),
)
@example([(17, [5, 5, 1]), (18, [5, 5]), (17, [5, 5])], 3)
@example([(0, [3]), (1, []), (16, [1, 1]), (0, [3, 3])], 1)
def test_sequences_side_by_side_follow_the_definition(rounds, ratio):
    together = Bundle(tuple(Layout(query, tuple(lengths)) for query, lengths in rounds))
    parts = states(together, heads=2 * ratio, key_heads=2)
    expected = by_definition(together, *parts)
    for function in (split_attention, masked_attention):
        assert (run(function, together, parts) - expected).abs().max() < 2e-6


def test_a_sequence_side_by_side_with_others_reads_none_of_them():
    together = Bundle((Layout(20, (4, 4)), Layout(20, (4, 4)), Layout(3, (2,))))
    parts = states(together)
    before = run(split_attention, together, parts)
    for part in parts:
        part[:, :, : together.starts[1]] = 1e4
    assert torch.equal(run(split_attention, together, parts)[:, together.starts[1] :], before[:, together.starts[1] :])


@pytest.mark.parametrize("window", [1, 3, 16, 20, 40])
def test_a_sliding_window_is_applied_on_logical_positions(window):
    layout = Layout(16, (5, 1, 9))
    parts = states(layout)
    expected = by_definition(layout, *parts, window=window)
    for function in (split_attention, masked_attention):
        assert (run(function, layout, parts, sliding_window=window) - expected).abs().max() < 2e-6


def test_bf16_stays_within_its_rounding():
    layout = Layout(65, (17, 1, 33, 17))
    parts = states(layout, dtype=torch.bfloat16)
    difference = (run(split_attention, layout, parts) - by_definition(layout, *parts)).abs()
    # Outputs of up to 4 are rounded by up to 0.008 themselves; scores and shares are rounded once on the way.
    assert difference.max() < 0.03 and difference.mean() < 0.003


def test_scores_are_never_larger_than_the_cache_however_many_items():
    layout = Layout(64, (8,) * 4000)
    largest = []
    whole = torch.Tensor.softmax
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(torch.Tensor, "softmax", lambda self, *a: largest.append(self.numel()) or whole(self, *a))
        output = run(split_attention, layout, states(layout))
    assert max(largest) <= 2**20 < 4 * 8 * 4000 * (64 + 8)
    assert output.shape == (1, layout.total, 4, 8)


def test_a_device_without_kernels_of_its_own_takes_the_split_path_too():
    layout = Layout(130, (8, 8, 3))
    parts = [part.to("meta") for part in states(layout)]
    output = run(split_attention, layout, parts)
    assert (output.device.type, output.shape) == ("meta", (1, layout.total, 4, 8))


def test_heads_of_unlike_widths_take_the_mask():
    layout = Layout(5, (3, 2))
    query, key, _ = states(layout, width=8)
    value = states(layout, width=4, seed=1)[2]
    assert (
        run(split_attention, layout, [query, key, value]) - by_definition(layout, query, key, value)
    ).abs().max() < 2e-6


@pytest.mark.parametrize("function", [split_attention, masked_attention])
@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("softcap", 50.0),
        ("s_aux", torch.zeros(4)),
        ("position_bias", torch.zeros(1)),
        ("output_attentions", True),
        ("dropout", 0.1),
        ("is_causal", False),
        ("cu_seq_lens_q", torch.zeros(2)),
        ("an_argument_of_next_year", 1),
    ],
)
def test_an_argument_that_is_not_implemented_raises(function, argument, value):
    layout = Layout(3, (2,))
    with pytest.raises(ModelRefused, match="does not implement"):
        run(function, layout, states(layout), **{argument: value})


@pytest.mark.parametrize("function", [split_attention, masked_attention])
def test_no_forward_runs_plain_attention_under_the_packed_name(function):
    layout = Layout(3, (2,))
    parts = states(layout)
    with pytest.raises(TypeError, match="mis_layout"):
        run(function, None, parts)
    with pytest.raises(RuntimeError, match="layout of 6 tokens"):
        run(function, Layout(4, (2,)), parts)
    with torch.inference_mode(), pytest.raises(ModelRefused, match="an attention mask of its own"):
        function(None, *parts, torch.zeros(1, 1, 5, 5), mis_layout=layout)


def test_only_reset_positions_with_the_mask_leak_nothing():
    model = tiny_model()
    query, items = [5, 9, 11, 30], [[40, 41, 42], [50, 51, 52], [60, 61, 62]]
    changed = [[70, 71, 72], *items[1:]]
    alone = model(input_ids=torch.tensor([query + items[2]])).logits[0, -1]

    def last_item(neighbours, reset, masked):
        packed = pack(query, neighbours)
        layout = packed.layout
        positions = layout.positions if reset else torch.arange(layout.total)[None]
        mask = layout.mask() if masked else torch.ones(layout.total, layout.total, dtype=torch.bool).tril()
        bias = torch.zeros(mask.shape).masked_fill(~mask, float("-inf"))[None, None]
        logits = model(input_ids=packed.input_ids, position_ids=positions, attention_mask=bias).logits
        return logits[0, layout.last[2]]

    exact = {}
    for reset in (True, False):
        for masked in (True, False):
            leak = (last_item(items, reset, masked) - last_item(changed, reset, masked)).abs().max()
            error = (last_item(items, reset, masked) - alone).abs().max()
            exact[reset, masked] = bool(leak == 0 and error < 1e-5)
    assert exact == {(True, True): True, (True, False): False, (False, True): False, (False, False): False}


@pytest.mark.parametrize("attention", [SPLIT, MASKED])
@pytest.mark.parametrize("kind", ["llama", "gemma3_text", "phi"])
def test_both_paths_have_the_gradient_of_the_single_prompts(kind, attention):
    model = tiny_model(kind, **({"sliding_window": 4} if kind == "gemma3_text" else {}))
    query, items = [5, 9, 11, 30, 7], [[40, 41, 42], [50], [60, 61, 62, 63]]
    model(input_ids=torch.tensor([query])).logits.sum()  # warm up lazily built buffers
    for item in items:
        model.base_model(input_ids=torch.tensor([query + item])).last_hidden_state[0, -1].pow(2).sum().backward()
    single = {
        name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None
    }
    model.zero_grad()
    packed = pack(query, items)
    with using_attention(model, attention):
        hidden = model.base_model(
            input_ids=packed.input_ids, position_ids=packed.layout.positions, mis_layout=packed.layout
        ).last_hidden_state
        hidden[0, packed.layout.last].pow(2).sum().backward()
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            assert (parameter.grad - single[name]).norm() <= 1e-5 * single[name].norm(), name
