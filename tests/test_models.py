"""Loading models: every weight there, the right precision, and what cannot be served exactly refused by name."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from semlabel.attention import MASKED, SPLIT
from semlabel.errors import LabelerError, ModelRefused, SettingsError
from semlabel.models import (
    _native_bf16,
    attention_layers,
    enable_training_safety,
    load_model,
    module_refusal,
    refusal,
    resolve_device,
    resolve_precision,
    smallest_window,
    using_attention,
)
from tests.tiny import save_tiny, tiny_config, tiny_model

DYNAMIC = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0] * 4,
    "long_factor": [4.0] * 4,
    "original_max_position_embeddings": 32,
}


@pytest.mark.parametrize(
    ("kind", "overrides", "reason", "served_by"),
    [
        ("gemma2", {}, "attention softcap", "prefix_cache"),
        ("bloom", {}, "computes attention by itself", "prefix_cache"),
        ("falcon", {"alibi": True}, "computes attention by itself", "prefix_cache"),
        ("mamba", {}, "linear_attention layers", "independent"),
        ("rwkv", {}, "recurrent layers", "independent"),
        ("recurrent_gemma", {}, "recurrent", "independent"),
        ("lfm2", {"layer_types": ["conv", "full_attention"]}, "conv layers", "independent"),
        ("qwen3_next", {"layer_types": ["linear_attention", "full_attention"]}, "linear_attention", "independent"),
        ("llama", {"rope_parameters": DYNAMIC}, "length-dependent RoPE (dynamic)", "independent"),
        ("phi3", {"rope_parameters": LONGROPE}, "length-dependent RoPE (longrope)", "independent"),
    ],
)
def test_what_a_packed_sequence_would_get_wrong_is_refused_by_name(kind, overrides, reason, served_by):
    config = tiny_config(kind, **overrides)
    problem = refusal(config)
    assert problem is not None
    assert reason in problem
    assert f'method = "{served_by}"' in problem
    assert refusal(config, served_by) is None
    assert (refusal(config, "prefix_cache") is None) == (served_by == "prefix_cache")


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3", "gemma", "gemma3_text", "phi", "phi3", "mistral", "gpt2"])
def test_plain_decoders_are_not_refused(kind):
    assert refusal(tiny_config(kind)) is None


def test_what_is_no_causal_decoder_is_refused_by_every_method():
    assert "no causal language model" in refusal(tiny_config("t5"), "independent")
    assert "not causal" in refusal(tiny_config("gemma3_text", use_bidirectional_attention=True), "independent")


def test_sinks_and_convolutions_are_found_in_the_modules():
    sinks = tiny_model("gpt_oss", num_local_experts=2, head_dim=8)
    assert "attention sinks" in module_refusal(sinks)
    assert module_refusal(sinks, "prefix_cache") is None
    hidden_conv = tiny_model("lfm2", layer_types=["conv", "full_attention"])
    hidden_conv.config.layer_types = ["full_attention", "full_attention"]
    assert "convolution" in module_refusal(hidden_conv)


def test_windows_are_read_from_the_layers_that_have_one():
    assert smallest_window(tiny_config("gemma3_text", sliding_window=20)) == 20
    assert smallest_window(tiny_config("mistral", sliding_window=7)) == 7
    assert smallest_window(tiny_config("qwen2", sliding_window=7, use_sliding_window=False)) is None
    assert smallest_window(tiny_config("llama")) is None
    assert attention_layers(tiny_config("llama", num_hidden_layers=3)) == 3


@pytest.mark.parametrize(("kind", "tied"), [("llama", True), ("llama", False), ("phi", False)])
def test_tied_and_untied_heads_load_as_they_were_saved(tmp_path, kind, tied):
    save_tiny(tmp_path, kind, seed=3, tie_word_embeddings=tied)
    model = load_model(tmp_path, "fp32", "cpu", SPLIT)
    saved = tiny_model(kind, seed=3, tie_word_embeddings=tied)
    assert torch.equal(model.get_output_embeddings().weight, saved.get_output_embeddings().weight)
    assert (model.dtype, model.training, model.config._attn_implementation) == (torch.float32, False, SPLIT)


def test_a_head_that_was_never_saved_is_not_made_up(tmp_path):
    save_tiny(tmp_path, tie_word_embeddings=False)
    weights = load_file(tmp_path / "model.safetensors")
    del weights["lm_head.weight"]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(LabelerError, match=r"1 weights are missing or misshapen, lm_head\.weight first"):
        load_model(tmp_path, "fp32", "cpu", SPLIT)


def test_what_is_no_model_directory_is_one_line(tmp_path):
    with pytest.raises(LabelerError, match="no model configuration"):
        load_model(tmp_path, "fp32", "cpu")
    (tmp_path / "config.json").write_text(json.dumps(tiny_config().to_dict()))
    with pytest.raises(LabelerError, match="cannot be loaded") as raised:
        load_model(tmp_path, "fp32", "cpu")
    assert "\n" not in str(raised.value)


def test_a_cut_weights_file_is_one_line(tmp_path):
    save_tiny(tmp_path)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:5000])
    with pytest.raises(LabelerError, match="cannot be loaded") as raised:
        load_model(tmp_path, "fp32", "cpu")
    assert "\n" not in str(raised.value)


def test_a_refused_model_is_not_loaded_for_packing_but_is_for_other_methods(tmp_path):
    save_tiny(tmp_path, "gemma2")
    for attention in (SPLIT, MASKED):
        with pytest.raises(ModelRefused, match="softcap"):
            load_model(tmp_path, "fp32", "cpu", attention)
    assert load_model(tmp_path, "bf16", "cpu").dtype == torch.bfloat16


def test_bf16_is_chosen_only_where_it_is_native():
    assert resolve_precision("auto", "cpu") == ("bf16" if _native_bf16("cpu") else "fp32")
    assert not _native_bf16("meta")
    assert resolve_precision("bf16", "cpu") == "bf16"
    with pytest.raises(SettingsError, match="precision = 'fp8'"):
        resolve_precision("fp8", "cpu")


def test_a_device_that_is_not_there_is_said():
    assert resolve_device("auto") in ("cpu", "cuda")
    assert resolve_device("cpu") == "cpu"
    with pytest.raises(SettingsError, match="is no device"):
        resolve_device("gpu")
    if not torch.cuda.is_available():
        with pytest.raises(SettingsError, match="no GPU"):
            resolve_device("cuda")


def test_another_attention_is_put_back():
    model = tiny_model()
    before = model.config._attn_implementation
    with pytest.raises(RuntimeError), using_attention(model, SPLIT):
        assert model.config._attn_implementation == SPLIT
        raise RuntimeError
    assert model.config._attn_implementation == before


@pytest.mark.parametrize(
    ("kind", "dropouts"),
    [
        ("llama", {"attention_dropout": 0.3}),
        ("phi", {"attention_dropout": 0.3, "resid_pdrop": 0.3, "embd_pdrop": 0.3}),
        ("gpt2", {"attn_pdrop": 0.3, "resid_pdrop": 0.3, "embd_pdrop": 0.3}),
        ("opt", {"dropout": 0.3, "attention_dropout": 0.3, "layerdrop": 0.3}),
    ],
)
def test_every_dropout_is_off_in_training(kind, dropouts):
    model = tiny_model(kind, **dropouts)
    ids = torch.arange(20)[None]
    with torch.no_grad():
        calm = model(input_ids=ids).logits
        model.train()
        assert not torch.equal(model(input_ids=ids).logits, calm)
        enable_training_safety(model)
        assert torch.allclose(model(input_ids=ids).logits, calm, atol=1e-6)


def test_the_dropout_of_lora_is_off_too():
    from peft import LoraConfig, get_peft_model

    model = get_peft_model(tiny_model(), LoraConfig(target_modules=["q_proj"], lora_dropout=0.5))
    enable_training_safety(model)
    assert {module.p for module in model.modules() if isinstance(module, torch.nn.Dropout)} == {0.0}


def test_a_model_that_stays_random_is_refused():
    model = tiny_model()
    model.model.norm.register_forward_hook(
        lambda module, _, output: torch.nn.functional.dropout(output, 0.5, module.training)
    )
    with pytest.raises(ModelRefused, match="random in training mode"):
        enable_training_safety(model)
