"""Loads a causal language model in the precision that is served, or refuses it by name.

Knows transformers' configs and modules, and which of their layers a packed sequence can be scored through.
Deliberately does not know prompts, items or margins.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from semlabel.attention import MASKED, SPLIT
from semlabel.errors import LabelerError, ModelRefused, SettingsError, first_line

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
_NATIVE_BF16_FLAGS = {"avx512_bf16", "amx_bf16"}
_ATTENTION_LAYERS = {"full_attention", "sliding_attention"}
_LENGTH_DEPENDENT_ROPE = {"dynamic", "longrope"}
TRAINING = "training"
"""As a method: rounds are packed as for `mis`, and no slower method can take their place."""
_PACKING = ("mis", TRAINING)
_RANDOM = re.compile(r"dropout|_pdrop$|^layerdrop$|jitter")


def resolve_device(device: str) -> str:
    """`auto` is the GPU where there is one, else the CPU. Raises SettingsError for a device that is not there."""
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        kind = torch.device(device).type
    except RuntimeError as error:
        raise SettingsError(f"[model] device = {device!r} is no device; use auto, cpu or cuda") from error
    if kind == "cuda" and not torch.cuda.is_available():
        raise SettingsError(f"[model] device = {device!r}, but no GPU is to be found here; use auto or cpu")
    return device


def resolve_precision(precision: str, device: str) -> str:
    """`auto` is bf16 where the device computes it natively (avx512_bf16 or amx_bf16; CUDA), else fp32."""
    if precision == "auto":
        return "bf16" if _native_bf16(resolve_device(device)) else "fp32"
    if precision not in DTYPES:
        raise SettingsError(f"[model] precision = {precision!r} is not known; use auto, fp32 or bf16")
    return precision


def _native_bf16(device: str) -> bool:
    if device.startswith("cuda"):
        return torch.cuda.is_bf16_supported(including_emulation=False)
    cpuinfo = Path("/proc/cpuinfo")
    if device != "cpu" or not cpuinfo.exists():
        return False
    return any(
        not _NATIVE_BF16_FLAGS.isdisjoint(line.split())
        for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
        if line.startswith("flags")
    )


def refusal(config: PretrainedConfig, method: str = "mis") -> str | None:
    """Why a model of this config cannot be scored exactly with `method`, and what can serve it; None when it can.

    `method` may also be TRAINING. Reads the config alone, so it costs nothing; what a config does not tell is left to
    `module_refusal` and to the scorer's self-check.
    """
    text = config.get_text_config()
    model_class = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(text), None)
    if model_class is None or getattr(text, "is_encoder_decoder", False):
        return f"{text.model_type} is no causal language model; name one that is"
    if not getattr(text, "is_causal", True) or getattr(text, "use_bidirectional_attention", False):
        return f"{text.model_type} is set to attention that is not causal; name a causal language model"
    rope = sorted(_rope_types(text) & _LENGTH_DEPENDENT_ROPE)
    layers = sorted(set(_layer_types(text)) - _ATTENTION_LAYERS)
    if method != "independent":
        if layers or getattr(model_class, "_is_stateful", False):
            kinds = ", ".join(layers) or "recurrent"
            return f"{text.model_type} has {kinds} layers; {_instead(method, 'independent')}"
        if rope:
            return f"{text.model_type} has length-dependent RoPE ({rope[0]}); {_instead(method, 'independent')}"
    if method in _PACKING:
        reason = None
        if not getattr(model_class, "_supports_attention_backend", False):
            reason = "computes attention by itself, so that it cannot be masked"
        elif getattr(text, "attn_logit_softcapping", None) is not None:
            reason = "has an attention softcap"
        elif getattr(text, "alibi", False):
            reason = "has ALiBi position biases"
        if reason:
            return f"{text.model_type} {reason}; {_instead(method, 'prefix_cache')}"
    return None


def _instead(method: str, slower: str) -> str:
    """What to do about a model that `method` cannot serve and `slower` can."""
    if method == TRAINING:
        return "training packs rounds whatever [scoring] method says, so name another [model] base"
    return f'use method = "{slower}"'


def _layer_types(config: PretrainedConfig) -> list[str]:
    for name in ("layer_types", "layers_block_type", "block_types"):
        if kinds := getattr(config, name, None):
            return ["full_attention" if kind == "attention" else str(kind) for kind in kinds]
    return []


def _rope_types(config: PretrainedConfig) -> set[str]:
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    nested = [value for value in rope.values() if isinstance(value, dict)] or [rope]
    return {str(value.get("rope_type", value.get("type", "default"))) for value in nested}


def has_stateful_rope(config: PretrainedConfig) -> bool:
    """True for dynamic-NTK RoPE, whose frequencies depend on what was scored before."""
    return "dynamic" in _rope_types(config.get_text_config())


def module_refusal(model: PreTrainedModel, method: str = "mis") -> str | None:
    """As `refusal`, with what only the built model shows: convolutions along the tokens and attention sinks."""
    kind = model.config.get_text_config().model_type
    for module in model.modules():
        if isinstance(module, torch.nn.Conv1d) and method != "independent":
            return f"{kind} has convolution layers; {_instead(method, 'independent')}"
    if method in _PACKING and any("sink" in name.rsplit(".", 1)[-1] for name, _ in model.named_parameters()):
        return f"{kind} has attention sinks; {_instead(method, 'prefix_cache')}"
    return refusal(model.config, method)


def smallest_window(config: PretrainedConfig) -> int | None:
    """The narrowest sliding window in tokens, None when every layer sees everything."""
    text = config.get_text_config()
    window = getattr(text, "sliding_window", None)
    kinds = _layer_types(text)
    if window is None or (kinds and "sliding_attention" not in kinds):
        return None
    return int(window)


def has_experts(config: PretrainedConfig) -> bool:
    """True when tokens are routed to experts, so that matrix shapes depend on all tokens of a forward."""
    text = config.get_text_config()
    return any(getattr(text, name, None) for name in ("num_experts", "num_local_experts", "n_routed_experts"))


def attention_layers(config: PretrainedConfig) -> int:
    """How many times one forward pass calls the attention function."""
    return int(config.get_text_config().num_hidden_layers)


def stock_attention(config: PretrainedConfig) -> str:
    """transformers' own attention for this model: SDPA, or eager where SDPA would be refused or wrong."""
    text = config.get_text_config()
    model_class = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(text), None)
    has_softcap = getattr(text, "attn_logit_softcapping", None) is not None
    return "sdpa" if getattr(model_class, "_supports_sdpa", False) and not has_softcap else "eager"


@contextmanager
def using_attention(model: PreTrainedModel, attention: str) -> Iterator[None]:
    """The model with another registered attention, restored afterwards. Not for two threads on one model."""
    before = model.config._attn_implementation
    if before != attention:
        model.set_attn_implementation(attention)
    try:
        yield
    finally:
        if before != attention:
            model.set_attn_implementation(before)


def load_model(
    path: str | Path, precision: str, device: str, attention: str = "stock", method: str = "mis"
) -> PreTrainedModel:
    """A causal model in eval mode from a directory (or hub name) of safetensors; no code from it is ever run.

    `precision` is auto, fp32 or bf16; `device` is auto, cpu or cuda; `attention` is `stock`, or one of
    `semlabel.attention`'s names, then for `method` (mis or TRAINING). Raises ModelRefused when that attention cannot
    serve the model, LabelerError when the files are missing, or do not hold every weight (a head that was never loaded
    gives plausible margins).
    """
    device = resolve_device(device)
    dtype = DTYPES[resolve_precision(precision, device)]
    config = read_config(path)
    packed = attention in (SPLIT, MASKED)
    if problem := refusal(config, method if packed else "independent"):
        raise ModelRefused(problem)
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            path,
            config=config,
            dtype=dtype,
            attn_implementation=stock_attention(config) if attention == "stock" else attention,
            use_safetensors=True,
            trust_remote_code=False,
            output_loading_info=True,
        )
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise LabelerError(f"{path}: the model cannot be loaded: {first_line(error)}") from error
    model, report = loaded
    if lost := sorted([*report["missing_keys"], *(str(key) for key in report["mismatched_keys"])]):
        raise LabelerError(f"{path}: {len(lost)} weights are missing or misshapen, {lost[0]} first; fetch it again")
    if packed and (problem := module_refusal(model, method)):
        raise ModelRefused(problem)
    return model.to(device).eval()


def read_config(path: str | Path) -> PretrainedConfig:
    """A model's configuration. Raises LabelerError where there is none to be read."""
    try:
        return AutoConfig.from_pretrained(path, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise LabelerError(f"{path}: no model configuration to be read: {first_line(error)}") from error


def enable_training_safety(model: torch.nn.Module) -> None:
    """Take everything random out of a model's training forward, in place: dropout, layer drop, router jitter.

    One dropout mask over a packed sequence is not the mask that single prompts would get. Raises ModelRefused when
    two forwards in training mode still differ. Works on peft models too.
    """
    for module in model.modules():
        owners: list[Any] = [module, getattr(module, "config", None)]
        if isinstance(module, torch.nn.modules.dropout._DropoutNd):
            module.p = 0.0
        for owner in owners:
            for name, value in list(vars(owner).items()) if owner is not None else []:
                if _RANDOM.search(name) and isinstance(value, float) and value > 0:
                    setattr(owner, name, 0.0)
    if problem := _still_random(model):
        raise ModelRefused(problem)


def _still_random(model: torch.nn.Module) -> str | None:
    ids = torch.arange(24, device=next(model.parameters()).device)[None] % 7
    base: Any = model
    while hasattr(base, "get_base_model"):
        base = base.get_base_model()
    was_training = model.training
    with using_attention(base, stock_attention(base.config)), torch.random.fork_rng(devices=[]), torch.no_grad():
        model.train()
        try:
            outputs = [model(input_ids=ids, use_cache=False).logits for _ in range(2)]
        finally:
            model.train(was_training)
    if not torch.equal(*outputs):
        return "the model is random in training mode with every dropout at 0; it cannot be trained on packed rounds"
    return None
