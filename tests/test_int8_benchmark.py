"""The comparison of int8 variants, on a tiny random model: its layers, and the fields of its table."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from benchmarks.int8 import ALL, VARIANTS, Plan, Texts, measure, table
from benchmarks.int8_layers import Once, Variant, per_token, rewrite, with_step
from semlabel.bench.subject import subject_of
from semlabel.errors import SemlabelError
from semlabel.models import load_model
from tests.tiny import save_tiny, tiny_model

TEXTS = Texts(
    entity_ids=["nurse", "welder"],
    entities=["gives the patient medicine", "joins metal parts"],
    calibrate=["keeps the records of a small office"],
    candidates=["keep records", "repair machines", "teach people"],
    rows=np.array([0, 0, 0, 1, 1, 1]),
    columns=np.array([0, 1, 2, 0, 1, 2]),
    labels=np.array([True, False, True, False, True, False]),
)
needs_int8 = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="int8 products are oneDNN's")


def test_a_row_is_quantised_by_its_own_step_to_within_half_of_it():
    states = torch.randn(5, 32) * torch.tensor([[0.01], [1.0], [100.0], [3.0], [0.0]])
    values, step = per_token(states)
    assert values.dtype == torch.uint8 and values[0].float().sub(128).abs().max() == 127
    assert torch.all((values.float() - 128) * step - states <= step / 2 * 1.001)
    assert torch.all(values[4] == 128)


def test_states_beyond_the_step_are_cut_off_and_do_not_wrap_around():
    values, step = with_step(torch.tensor([[1000.0, -1000.0, 0.5, 0.0]]), 0.5)
    assert values.tolist() == [[255, 1, 129, 128]] and step == 0.5


def test_states_are_quantised_once_for_the_layers_that_read_the_same_tensor():
    calls = []
    once = Once(lambda states: calls.append(1) or per_token(states))
    first, second = torch.randn(2, 8), torch.randn(2, 8)
    assert once(first) is once(first) and len(calls) == 1
    assert torch.equal(once(second).values, per_token(second).values) and len(calls) == 2


@needs_int8
@pytest.mark.parametrize("basis", ["plain", "smoothed", "rotated"])
def test_every_variant_computes_what_the_model_computes(tmp_path, basis):
    path, ids = save_tiny(tmp_path), torch.arange(3, 60)[None]
    for scales, parts, limit in [
        ("none", (), 1e-4),
        ("token", ALL, 0.1),
        ("static", ("qkv", "o", "gate_up"), 0.1),
        ("static", ALL, 0.1),
        ("dynamic", ALL, 0.15),
    ]:
        model = load_model(path, "fp32", "cpu")
        with torch.inference_mode():
            exact = model(input_ids=ids).logits
            rewrite(model, Variant(scales, parts, basis), lambda model=model: model(input_ids=ids))
            with torch.autocast("cpu", torch.bfloat16, enabled=bool(parts)):
                found = model(input_ids=ids).logits.float()
        apart = float((found - exact).abs().max() / exact.abs().max())
        assert apart <= limit, (scales, parts)
        assert apart > 1e-3 or not parts  # something was quantised


@needs_int8
def test_layers_that_a_variant_leaves_out_stay_as_they_were():
    model = tiny_model(num_hidden_layers=5)
    rewrite(model, Variant("token", every=2, ends=1), lambda: None)
    kinds = [type(layer.mlp).__name__ for layer in model.base_model.layers]
    assert kinds == ["LlamaMLP", "LlamaMLP", "Int8Mlp", "LlamaMLP", "LlamaMLP"]
    assert type(model.base_model.layers[2].self_attn.o_proj) is torch.nn.Linear


@needs_int8
def test_the_table_has_every_variant_with_its_speed_and_its_labels(tmp_path):
    subject, saved = replace(subject_of(str(save_tiny(tmp_path)), None), threshold=0.0), []
    plan = replace(Plan.quick(), rows=(16,), variants=(VARIANTS[0], VARIANTS[2]))
    found = measure(subject, TEXTS, plan, lambda document: saved.append(len(document["cells"])))
    assert found["complete"] and saved == [0, 1, 2, 3, 4, 4]
    exact, half, *others = found["cells"]
    assert (exact["variant"], exact["max_margin_diff"], exact["labels_per_s"]) == ("fp32", 0.0, None)
    assert half["over_bf16"] == 1.0 and 0 < half["mean_margin_diff"] < 0.1
    assert [cell["variant"] for cell in others] == ["dynamic qkv+o+gate_up+down plain", "token qkv+gate_up plain"]
    assert all(cell["labels_per_s"] > 0 and cell["mean_margin_diff"] > half["mean_margin_diff"] for cell in others)
    assert {cell["rows"] for cell in found["parts"]} == {16} and len(found["parts"][0]["milliseconds"]) == 11
    assert len(table(found["cells"]).splitlines()) == 6


def test_a_labeler_without_a_threshold_is_refused_before_anything_is_measured(tmp_path):
    with pytest.raises(SemlabelError, match="no threshold"):
        measure(subject_of(str(save_tiny(tmp_path)), None), TEXTS, Plan.quick())
