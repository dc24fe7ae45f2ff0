"""Tiny tokenizers and tiny random models for tests: built in memory, in milliseconds, the same on every machine.

Knows nothing of semlabel. The models are untrained, but their weights are large enough for margins to differ by
whole units, so that a leak between items cannot hide in rounding.
"""

from base64 import b64decode
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

DOT = b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNgAAAAAgABSK+kcQAAAABJRU5ErkJggg==")
"""A PNG of one pixel, where a plot would take longer than what is tested."""

CONTROL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool>")
CHAT_TEMPLATE = (
    "{% if add_system %}{{ '<|im_start|>system\nYou label things.<|im_end|>\n' }}{% endif %}"
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
CORPUS = (
    "Yes No Yes No Yes No\nYes\nNo\nYes\nNo",
    "Profile: plans the work of others and keeps the records of a small office.",
    "Does this person do the following activity? Answer Yes or No. Answer:",
    "system user assistant user assistant",
    "Activity: keep records. Activity: repair machines. Activity: teach people. Activity: sell goods.",
    "The nurse gives the patient medicine and writes the results in the record.",
    "The welder joins metal parts and checks the work against the plan.",
)
_TOKENS = 384  # "Yes" and "No" have become one token by then, "YES" has not


@lru_cache
def _trained_json() -> str:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=_TOKENS,
        special_tokens=list(CONTROL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer.to_str()


def tiny_tokenizer(add_bos: bool = False) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer of 384 tokens with a chat template; any Unicode text survives encode and decode.

    `<|im_end|>` is the end-of-sequence token; with `add_bos` every encoded text starts with `<|im_start|>`, as
    Llama's and Gemma's tokenizers do with theirs.
    """
    tokenizer = Tokenizer.from_str(_trained_json())
    if add_bos:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<|im_start|> $A",
            pair="<|im_start|> $A $B",
            special_tokens=[("<|im_start|>", tokenizer.token_to_id("<|im_start|>"))],
        )
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        unk_token="<|endoftext|>",
        clean_up_tokenization_spaces=False,
    )
    wrapped.chat_template = CHAT_TEMPLATE
    return wrapped


def tiny_config(kind: str = "llama", **overrides: Any) -> Any:
    """The config of a decoder of 2 layers, 4 heads on 2 key/value heads, width 32; `kind` is its `model_type`."""
    settings: dict[str, Any] = {
        "vocab_size": _TOKENS,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 4096,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    if kind in ("gemma", "gemma2", "gemma3_text", "qwen3", "gpt_oss"):
        settings["head_dim"] = 8
    if kind in ("phi", "phi3", "gpt_neox", "opt", "gpt2", "bloom"):
        settings["tie_word_embeddings"] = False
    if kind == "gemma3_text":
        settings["layer_types"] = ["sliding_attention", "full_attention"]
    return AutoConfig.for_model(kind, **(settings | overrides))


def tiny_model(kind: str = "llama", seed: int = 0, **overrides: Any) -> PreTrainedModel:
    """A random fp32 model in eval mode; every weight, norm and bias (the head's too) is drawn from `seed`."""
    config = tiny_config(kind, **overrides)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() >= 2:
                    parameter.normal_(0.0, parameter.shape[-1] ** -0.5)
                else:
                    parameter.add_(torch.randn_like(parameter) * 0.2)
    return model.eval()


def save_tiny(path: Path, kind: str = "llama", seed: int = 0, **overrides: Any) -> Path:
    """Write model and tokenizer as a directory that `from_pretrained` loads; returns `path`."""
    tiny_model(kind, seed, **overrides).save_pretrained(path)
    tiny_tokenizer().save_pretrained(path)
    return path
