"""Served linear layers: the same margins, nothing replaced that computes something else, little rounding in bf16."""

import ctypes

import pytest
import torch
from torch import nn

from semlabel import heap, linear_layers
from semlabel.linear_layers import ServedLinear, ServedMlp, serve_linear_layers
from semlabel.prompt import PromptSpec
from semlabel.scorer import Scorer
from tests.tiny import save_tiny, tiny_model

needs_onednn = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN")


class Mlp(nn.Module):
    """A gated MLP of the usual names; `between` is what stands between the product and the last layer."""

    def __init__(self, between=lambda states: states, activation=None):
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = nn.Linear(8, 16), nn.Linear(8, 16), nn.Linear(16, 8)
        self.act_fn = activation or nn.SiLU()
        self.between = between

    def forward(self, states):
        return self.down_proj(self.between(self.act_fn(self.gate_proj(states)) * self.up_proj(states)))


def packed(module):
    """The module below a parent, packed, and what it gave for some states before."""
    parent = nn.Sequential(module)
    states = torch.randn(1, 5, 8, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        before = parent(states)
        count = serve_linear_layers(parent, torch.float32)
        assert (parent(states) - before).abs().max() < 1e-5
    return parent[0], count


@needs_onednn
@pytest.mark.parametrize("kind", ["llama", "qwen3", "gemma3_text", "phi", "phi3"])
def test_a_packed_model_keeps_its_hidden_states(kind):
    model = tiny_model(kind)
    ids = torch.tensor([[5, 9, 11, 30, 7, 40, 41, 42]])
    with torch.inference_mode():
        before = model.base_model(input_ids=ids).last_hidden_state
        layers = sum(type(module) is nn.Linear for module in model.base_model.modules())
        assert serve_linear_layers(model.base_model, torch.float32) == layers
        assert not any(type(module) is nn.Linear for module in model.base_model.modules())
        assert (model.base_model(input_ids=ids).last_hidden_state - before).abs().max() < 1e-4


@needs_onednn
def test_a_gated_mlp_becomes_one_module_with_its_activation_inside():
    for activation in (None, nn.SiLU()):
        module, count = packed(Mlp(activation=activation))
        assert (type(module), count) == (ServedMlp, 3)


@needs_onednn
def test_an_mlp_that_computes_something_between_its_layers_keeps_its_own_forward():
    module, count = packed(Mlp(between=lambda states: states * 1.5))
    assert (type(module), count) == (Mlp, 3)
    module, count = packed(Mlp(activation=nn.Tanh()))
    assert (type(module), count) == (Mlp, 3)


@needs_onednn
def test_layers_that_share_a_weight_or_are_of_another_class_stay():
    class Adapted(nn.Linear):
        pass

    first, second = nn.Linear(8, 8), nn.Linear(8, 8)
    second.weight = first.weight
    model = nn.Sequential(first, second, Adapted(8, 8), nn.Linear(8, 8))
    assert serve_linear_layers(model, torch.float32) == 1
    assert [type(layer) for layer in model] == [nn.Linear, nn.Linear, Adapted, ServedLinear]


def test_in_bf16_the_states_between_layers_stay_float32(tmp_path):
    save_tiny(tmp_path)
    spec = PromptSpec("{entity}\n{candidate}", yes="Yes", no="No")
    exact, served = (Scorer.load(tmp_path, spec, precision, "cpu") for precision in ("fp32", "bf16"))
    query = exact.prompt.query("The nurse gives the patient medicine.").ids
    items = exact.prompt.items(["keep records", "teach people", "sell goods", "repair machines"])
    margins = exact.margins(query, items)
    rounding = abs(served.margins(query, items) - margins).max()
    assert served.model.get_input_embeddings().weight.dtype == torch.float32
    assert {layer.dtype for layer in served.model.modules() if isinstance(layer, ServedLinear)} == {torch.bfloat16}
    assert 0 < rounding < 0.05


def test_a_loaded_scorer_has_served_layers_and_passes_its_self_check(tmp_path):
    scorer = Scorer.load(save_tiny(tmp_path), PromptSpec("{entity}\n{candidate}", yes="Yes", no="No"), "fp32", "cpu")
    left = [module for module in scorer.model.base_model.modules() if type(module) is nn.Linear]
    assert len(left) == (0 if torch.backends.mkldnn.is_available() else 14)
    assert scorer.self_check() < 1e-4


def test_without_a_layout_of_its_own_a_device_still_serves_bf16_products(monkeypatch):
    monkeypatch.setattr(linear_layers, "packed_weight", lambda weight, rows=0: None)
    model, ids = tiny_model(), torch.tensor([[5, 9, 11, 30, 7]])
    with torch.inference_mode():
        before = model.base_model(input_ids=ids).last_hidden_state
        assert serve_linear_layers(model.base_model, torch.float32) == 0
        assert serve_linear_layers(model.base_model, torch.bfloat16) == 14
        with torch.autocast("cpu", torch.bfloat16):
            after = model.base_model(input_ids=ids).last_hidden_state
    assert after.dtype == torch.float32
    assert 0 < (after - before).abs().max() < 0.1


def test_freed_memory_is_kept_but_not_all_of_it(monkeypatch):
    calls = []

    class Library:
        @staticmethod
        def mallopt(option, value):
            calls.append((option, value))

    monkeypatch.setattr(ctypes, "CDLL", lambda name: Library)
    monkeypatch.setattr(heap.sys, "platform", "linux")
    heap.keep_freed_memory()
    assert calls == [(-3, 2**25), (-1, 2**28), (-2, 2**26)]
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    heap.keep_freed_memory()  # another libc: nothing to set, nothing raised
