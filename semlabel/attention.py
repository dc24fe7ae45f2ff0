"""The attention of packed sequences, registered with transformers under two names.

`semlabel_mis` splits the work (query over itself, items over the query, each item over itself) and merges by
log-sum-exp: no N x N mask, but no gradient either, so it refuses to run while gradients are recorded.
`semlabel_masked` applies the layout's explicit mask through SDPA: slower, differentiable, the path of training and
the oracle of the split path. Both read the layout from the keyword argument `mis_layout` of the model's forward.

Deliberately does not know models or text, and implements no variant of attention in silence: an argument that is
not implemented here raises.
"""

import math
from typing import Any

import torch
from torch.nn.functional import pad, scaled_dot_product_attention
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface

from semlabel.errors import ModelRefused
from semlabel.packing import Layout

SPLIT = "semlabel_mis"
MASKED = "semlabel_masked"

# Arguments that models hand down which change nothing here: positions are applied before attention is called, and a
# cache that holds anything shows in the shape of the keys.
_NO_EFFECT = frozenset({"position_ids", "use_cache", "num_items_in_batch"})
_KERNEL_ROWS = 32  # the CPU kernel takes 32, 64 or 256 query rows at a time
_NAMED = {
    "softcap": "attention softcap",
    "s_aux": "attention sinks",
    "position_bias": "a position bias",
    "output_attentions": "output of attention weights",
    "attention_mask": "an attention mask of its own",
}


def _layout_for(
    query: torch.Tensor, key: torch.Tensor, attention_mask: torch.Tensor | None, dropout: float, other: dict[str, Any]
) -> Layout:
    """The layout of this call, counted; raises on whatever the two functions below do not implement."""
    layout = other.pop("mis_layout", None)
    if not isinstance(layout, Layout):
        raise TypeError("packed attention was called without mis_layout: a plain forward needs another attention")
    if not other.pop("is_causal", True):
        raise ModelRefused("the model asks for attention that is not causal, which packed scoring does not implement")
    for name, value in {"attention_mask": attention_mask, **other}.items():
        if name not in _NO_EFFECT and value is not None and value is not False:
            raise ModelRefused(f"the model asks for {_NAMED.get(name, name)}, which packed scoring does not implement")
    if dropout:
        raise ModelRefused(f"the model asks for attention dropout {dropout}, which packed scoring does not implement")
    expected = (1, layout.total)
    for states in (query, key):
        if (states.shape[0], states.shape[2]) != expected:
            raise RuntimeError(f"packed attention got {tuple(states.shape)} for a layout of {layout.total} tokens")
    layout.attention_calls += 1
    return layout


def _masked(
    layout: Layout,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scaling: float | None,
    window: int | None,
) -> torch.Tensor:
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    prefix = layout.query_length
    if window is not None or prefix == 0:
        bias = layout.bias(window, query.dtype, query.device)
        return scaled_dot_product_attention(query, key, value, attn_mask=bias, scale=scaling).transpose(1, 2)
    # The query sees only itself: its rows need no mask, and leaving them out of it saves over half of the work.
    parts = [
        scaled_dot_product_attention(
            query[:, :, :prefix], key[:, :, :prefix], value[:, :, :prefix], is_causal=True, scale=scaling
        )
    ]
    if layout.blocks:
        bias = layout.bias(None, query.dtype, query.device)[prefix:]
        parts.append(scaled_dot_product_attention(query[:, :, prefix:], key, value, attn_mask=bias, scale=scaling))
    return torch.cat(parts, dim=2).transpose(1, 2)


def _flash(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float | None, causal: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output (batch, tokens, heads, width) and float32 log-sum-exp (batch, tokens, heads, 1) of never-empty input.

    The kernel takes any strides and shares a key head among its group of query heads, so nothing is copied for it.
    """
    output, log_sum = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, 0.0, causal, scale=scaling
    )
    return output.transpose(1, 2), log_sum.transpose(1, 2).unsqueeze(-1)


def _split(
    layout: Layout, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float | None
) -> torch.Tensor:
    _, heads, total, width = query.shape
    prefix = layout.query_length
    output = query.new_empty(1, total, heads, width)
    own_sum = torch.empty(1, total - prefix, heads, 1, dtype=torch.float32)
    # The kernel divides by the number of its blocks: an empty tensor would take the whole process down.
    if prefix:
        head = slice(0, prefix)
        output[:, head] = _flash(query[:, :, head], key[:, :, head], value[:, :, head], scaling, True)[0]
    for block in layout.blocks:
        rows = slice(block.start, block.start + block.count * block.length)
        own_query, own_key, own_value = (
            states[0, :, rows].unflatten(1, (block.count, block.length)).transpose(0, 1)
            for states in (query, key, value)
        )
        own, log_sum = _flash(own_query, own_key, own_value, scaling, True)
        output[0, rows] = own.flatten(0, 1)
        own_sum[0, rows.start - prefix : rows.stop - prefix] = log_sum.flatten(0, 1)
    if prefix and layout.blocks:
        over_query, over_query_sum = _items_over_query(layout, query, key, value, scaling)
        # Two softmaxes over parts of the keys weigh as the sums of their exponentials. Softmax works row by row;
        # a sigmoid of the difference rounds otherwise at the end of its buffer.
        share = torch.stack([over_query_sum, own_sum], dim=-1).softmax(dim=-1)[..., 1]
        items = output[:, prefix:]
        items.copy_(over_query.float().lerp_(items.float(), share))
    return output


def _items_over_query(
    layout: Layout, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Every item token over the whole query, as `_flash`; bit for bit the same wherever an item stands.

    The kernel hands a last block of few rows, or a single key, to other routines, which round otherwise. So the
    last block is filled up (with rows of the query, then dropped), and a lone key stands beside its double.
    """
    prefix = layout.query_length
    fill = -(layout.total - prefix) % _KERNEL_ROWS
    rows = query[:, :, prefix - fill :] if fill <= prefix else pad(query[:, :, prefix:], (0, 0, fill, 0))
    key, value = key[:, :, :prefix], value[:, :, :prefix]
    if prefix == 1:
        key, value = key.expand(-1, -1, 2, -1), value.expand(-1, -1, 2, -1)
    output, log_sum = _flash(rows, key, value, scaling, False)
    output, log_sum = output[:, fill:], log_sum[:, fill:]
    return output, log_sum - math.log(2) if prefix == 1 else log_sum


def _biting(layout: Layout, window: int | None) -> int | None:
    """The sliding window where a prompt of the pack is longer than it, else None: a wider one hides nothing."""
    return None if window is None or layout.longest <= window else window


def masked_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None = None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    **other: Any,
) -> tuple[torch.Tensor, None]:
    """Packed attention through an explicit mask; differentiable.

    `query` (1, heads, total, width), `key` and `value` (1, key heads, total, width); returns (1, total, heads,
    width). A sliding window is applied to logical positions. Raises ModelRefused on arguments not implemented,
    TypeError without a layout, RuntimeError with one of another length.
    """
    layout = _layout_for(query, key, attention_mask, dropout, other)
    window = _biting(layout, sliding_window)
    return _masked(layout, query, key, value, scaling, window).contiguous(), None


def split_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None = None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    **other: Any,
) -> tuple[torch.Tensor, None]:
    """Packed attention without a mask, for inference; shapes and errors as `masked_attention`.

    Raises RuntimeError while gradients are recorded: the kernel's log-sum-exp carries none, so the loss would be
    right and its gradient silently wrong. Layers whose window is shorter than a prompt of the pack, and devices or
    head widths without the kernel, take the explicit mask.
    """
    if torch.is_grad_enabled():
        raise RuntimeError(f"{SPLIT} has no gradient: use torch.inference_mode(), or {MASKED} for training")
    layout = _layout_for(query, key, attention_mask, dropout, other)
    window = _biting(layout, sliding_window)
    if window is not None or query.device.type != "cpu" or query.shape[-1] != value.shape[-1]:
        return _masked(layout, query, key, value, scaling, window).contiguous(), None
    return _split(layout, query, key, value, scaling), None


def _no_mask(*_: Any, **__: Any) -> None:
    """The mask function of both: what a token sees is in the layout."""


for _name, _function in ((SPLIT, split_attention), (MASKED, masked_attention)):
    AttentionInterface.register(_name, _function)
    AttentionMaskInterface.register(_name, _no_mask)
