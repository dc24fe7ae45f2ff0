"""The attention of packed sequences, registered with transformers under two names.

`semlabel_mis` splits the work: the query over itself, then the items, all of one length together, over the query and
over themselves. No N x N mask, no kernel that a device might lack, a true gradient: the path of scoring and training.
Sequences that stand side by side in a bundle take the same way, like pieces of several in one product.
`semlabel_masked` applies the layout's explicit mask through SDPA: the definition that the split path is held to.
Both read the layout from the keyword argument `mis_layout` of the model's forward.

Deliberately does not know models or text, and implements no variant of attention in silence: an argument that is
not implemented here raises.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface

from semlabel.bundles import Bundle
from semlabel.errors import ModelRefused
from semlabel.packing import Block, Layout

SPLIT = "semlabel_mis"
MASKED = "semlabel_masked"

# Arguments that models hand down which change nothing here: positions are applied before attention is called, and a
# cache that holds anything shows in the shape of the keys.
_NO_EFFECT = frozenset({"position_ids", "use_cache", "num_items_in_batch"})
_QUERY_ROWS = 128
_SCORES_AT_ONCE = 2**20  # few enough that the scores of a product stay in the cache until they are read
_NAMED = {
    "softcap": "attention softcap",
    "s_aux": "attention sinks",
    "position_bias": "a position bias",
    "output_attentions": "output of attention weights",
    "attention_mask": "an attention mask of its own",
}


def _layout_for(
    query: torch.Tensor, key: torch.Tensor, attention_mask: torch.Tensor | None, dropout: float, other: dict[str, Any]
) -> Layout | Bundle:
    """The layout of this call, counted; raises on whatever the two functions below do not implement."""
    layout = other.pop("mis_layout", None)
    if not isinstance(layout, Layout | Bundle):
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
    layout: Layout | Bundle,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scaling: float | None,
    window: int | None,
) -> torch.Tensor:
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    prefix = 0 if isinstance(layout, Bundle) else layout.query_length
    if window is not None or prefix == 0:
        bias = layout.bias(window, query.dtype, query.device)
        return scaled_dot_product_attention(query, key, value, attn_mask=bias, scale=scaling).transpose(1, 2)
    # The query sees only itself: its rows need no mask, and leaving them out of it saves over half of the work.
    parts = [
        scaled_dot_product_attention(
            query[:, :, :prefix], key[:, :, :prefix], value[:, :, :prefix], is_causal=True, scale=scaling
        )
    ]
    if layout.total > prefix:
        bias = layout.bias(None, query.dtype, query.device)[prefix:]
        parts.append(scaled_dot_product_attention(query[:, :, prefix:], key, value, attn_mask=bias, scale=scaling))
    return torch.cat(parts, dim=2).transpose(1, 2)


def _split(
    layout: Layout, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float | None
) -> torch.Tensor:
    prefix, heads, shared = layout.query_length, query.shape[1], key.shape[1]
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    query, key, value = _in_one_precision(query * scale, key, value)
    pieces = [*_query_pieces(prefix), *_item_pieces(layout, heads)]
    rows = [piece.count * piece.length for piece in pieces]
    # (shared, tokens, groups, width): the heads that share a key head stand as rows of one product.
    queries = query[0].transpose(0, 1).unflatten(1, (shared, heads // shared)).transpose(0, 1).split(rows, dim=1)
    keys, values = (states[0].split([prefix, layout.total - prefix], dim=1) for states in (key, value))
    own_keys, own_values = (states[0].split(rows, dim=1) for states in (key, value))
    parts = []
    for piece, own_query, own_key, own_value in zip(pieces, queries, own_keys, own_values, strict=True):
        before, causal = min(piece.start, prefix), layout.causal(piece.length, query.dtype, query.device)
        seen = keys[0][:, :before], values[0][:, :before]
        parts.append(_piece(1, piece.count, causal, own_query, own_key, own_value, *seen))
    return torch.cat(parts, dim=1).transpose(0, 1).flatten(1, 2)[None]


def _in_one_precision(*states: torch.Tensor) -> list[torch.Tensor]:
    """Under autocast products are computed in its precision: cast the states once, not slice by slice."""
    kind = states[0].device.type
    if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind):
        return [part.to(torch.get_autocast_dtype(kind)) for part in states]
    return list(states)


def _query_pieces(prefix: int) -> Iterator[Block]:
    """The query as pieces that each see what stands before them and themselves, as an item does."""
    for start in range(0, prefix, _QUERY_ROWS):
        yield Block(start, 1, min(_QUERY_ROWS, prefix - start))


def _item_pieces(layout: Layout, heads: int) -> Iterator[Block]:
    """The items, as many of one length at a time as keep their scores small."""
    for block in layout.blocks:
        each = heads * block.length * (layout.query_length + block.length)
        yield from block.cut(max(1, _SCORES_AT_ONCE // each))


def _piece(
    sequences: int,
    count: int,
    causal: torch.Tensor,
    query: torch.Tensor,
    own_key: torch.Tensor,
    own_value: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    unseen: torch.Tensor | None = None,
) -> torch.Tensor:
    """`count` items in each of some sequences: over what all of a sequence see, and causally over themselves.

    `query` (shared, rows, groups, width), `own_key` and `own_value` (shared, rows, width), rows sequence by sequence
    and item by item; `key` and `value` (shared, sequences x seen, width) are what an item sees beside itself; `causal`
    (length, length) and `unseen` (sequences, 1, seen) are biases. Returns the shape of `query`. One softmax a row.
    Scores are rounded to the states' precision, as the states themselves are; the softmax sums in float32.
    """
    shared, _, groups, width = query.shape
    length, before = len(causal), key.shape[1] // sequences
    items, rows = shared * sequences * count, count * length * groups
    folded = query.reshape(shared * sequences, rows, width)
    own_key, own_value = (states.reshape(items, length, width) for states in (own_key, own_value))
    scores = torch.bmm(folded.reshape(items, length * groups, width), own_key.transpose(1, 2))
    scores = (scores.view(items, length, groups, length) + causal[:, None]).view(-1, rows, length)
    # Kernels divide by the number of their blocks: an empty tensor would take the whole process down.
    if before:
        key, value = (states.reshape(-1, before, width) for states in (key, value))
        over = torch.bmm(folded, key.transpose(1, 2))
        if unseen is not None:
            over = (over.view(shared, sequences, rows, before) + unseen).view(-1, rows, before)
        scores = torch.cat([over, scores], dim=-1)
    over, own = scores.softmax(-1).split([before, length], dim=-1)
    output = torch.bmm(own.reshape(items, length * groups, length), own_value).view(-1, rows, width)
    if before:
        output = torch.bmm(over, value) + output
    return output.view(query.shape)


def _side_by_side(
    bundle: Bundle, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float | None
) -> torch.Tensor:
    """As `_split`, with the queries of one padded width, and like items behind them, in one product."""
    heads, shared = query.shape[1], key.shape[1]
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    query, key, value = (
        states[0].transpose(0, 1) for states in _in_one_precision(query * scale, key, value)
    )  # (tokens, heads, width)
    parts = []
    for piece in bundle.pieces(query.dtype, query.device):
        rows = piece.rows.flatten()
        queries = query.index_select(0, rows).unflatten(1, (shared, heads // shared)).transpose(0, 1)
        own_key, own_value = (states.index_select(0, rows).transpose(0, 1) for states in (key, value))
        over = rows[:0] if piece.over is None else piece.over.flatten()
        before_key, before_value = (states.index_select(0, over).transpose(0, 1) for states in (key, value))
        causal = bundle.causal(piece.length, query.dtype, query.device)
        found = _piece(
            len(piece.rows), piece.count, causal, queries, own_key, own_value, before_key, before_value, piece.unseen
        )
        parts.append(found.transpose(0, 1).flatten(1, 2))
    return torch.cat(parts).index_select(0, bundle.order(query.dtype, query.device))[None]


def _biting(layout: Layout | Bundle, window: int | None) -> int | None:
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
    """Packed attention without a mask, differentiable; shapes and errors as `masked_attention`.

    Layers whose window is shorter than a prompt of the pack, or whose values are not as wide as their keys, take the
    explicit mask.
    """
    layout = _layout_for(query, key, attention_mask, dropout, other)
    window = _biting(layout, sliding_window)
    if window is not None or query.shape[-1] != value.shape[-1]:
        return _masked(layout, query, key, value, scaling, window).contiguous(), None
    if isinstance(layout, Bundle):
        return _side_by_side(layout, query, key, value, scaling), None
    return _split(layout, query, key, value, scaling), None


def _no_mask(*_: Any, **__: Any) -> None:
    """The mask function of both: what a token sees is in the layout."""


for _name, _function in ((SPLIT, split_attention), (MASKED, masked_attention)):
    AttentionInterface.register(_name, _function)
    AttentionMaskInterface.register(_name, _no_mask)
