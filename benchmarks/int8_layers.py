"""Linear layers in int8 on the CPU, in every way that `benchmarks/int8.py` compares.

Weights have a scale for each output. Activations are unsigned around 128 (oneDNN has no fast kernel for signed ones
behind a linear layer) with a scale for each token, one for all that was found on calibration texts, or one that
torch's own dynamic op finds at every product. Before that a model may be smoothed (the norms take over a part of the
activations' spread) or rotated (the residual stream in another basis, where no channel stands out). Knows modules by
the names that Llama-like models give them; deliberately does not know speed or labels.
"""

import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.functional import silu

from semlabel.errors import ModelRefused

ZERO = 128
_MOST = 127
_LEAST = 1e-8
_ROWS = 1024  # a layout for 20 rows and one for 2,000 are as fast as each other at both
_SMOOTHNESS = 0.5
QKV, GATE_UP = ("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj")
_SILU = ("SiLU", "SiLUActivation")

Spreads = dict[str, torch.Tensor]
"""The largest absolute value of every channel behind each norm, by the norm's name."""


@dataclass(frozen=True)
class Variant:
    """What is int8 and how. `scales` of activations: token, static or dynamic (torch's own, one a tensor).

    `parts` are of qkv, o, gate_up and down; `basis` is plain, smoothed or rotated; `every` n-th layer is int8, but for
    the first and the last `ends`.
    """

    scales: str
    parts: tuple[str, ...] = ("qkv", "gate_up")
    basis: str = "plain"
    every: int = 1
    ends: int = 0

    @property
    def name(self) -> str:
        """`token qkv+gate_up rotated`."""
        which = [f"every {self.every}th layer"] if self.every > 1 else []
        ends = [f"but {self.ends} layers at each end"] if self.ends else []
        return ", ".join([f"{self.scales} {'+'.join(self.parts)} {self.basis}", *which, *ends])


class Quantised(NamedTuple):
    """States (rows, width) as uint8 around 128, and what one step of a row is: (rows, 1), or one number for all."""

    values: torch.Tensor
    step: Any


def per_token(states: torch.Tensor) -> Quantised:
    """Every row with its own step."""
    rows = states.reshape(-1, states.shape[-1])
    step = rows.abs().amax(-1, keepdim=True).float().clamp_(min=_LEAST).div_(_MOST)
    return Quantised(_unsigned((rows / step).round_()), step)


def with_step(states: torch.Tensor, step: float) -> Quantised:
    """All rows with one step; what lies beyond it is cut off."""
    rows = states.reshape(-1, states.shape[-1])
    return Quantised(_unsigned((rows * (1 / step)).round_().clamp_(-_MOST, _MOST)), step)


def _unsigned(rounded: torch.Tensor) -> torch.Tensor:
    # Casting to uint8 is slower than to int8; flipping the top bit adds 128.
    return rounded.to(torch.int8).view(torch.uint8) ^ ZERO


class Once:
    """Quantises states once for all layers that read the same tensor, in every thread by itself."""

    def __init__(self, quantise: Callable[[torch.Tensor], Quantised]) -> None:
        self._quantise, self._last = quantise, threading.local()

    def __call__(self, states: torch.Tensor) -> Quantised:
        """As the function it was made of."""
        last = getattr(self._last, "pair", None)
        if last is None or last[0]() is not states:
            last = self._last.pair = weakref.ref(states), self._quantise(states)
        return last[1]


class Int8Weight(nn.Module):
    """A weight (out, in) as int8 with a step for each output, in oneDNN's layout."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        if layer.bias is not None:
            raise ModelRefused("a linear layer with a bias: only models without are compared here")
        weight = layer.weight.detach().float()
        self.steps = weight.abs().amax(1).clamp_(min=_LEAST) / _MOST
        self.zeros = torch.zeros(len(weight), dtype=torch.int64)
        whole = (weight / self.steps[:, None]).round().to(torch.int8)
        self.packed = torch.ops.onednn.qlinear_prepack(whole, [_ROWS, weight.shape[1]])

    def product(
        self, values: torch.Tensor, step: float = 1.0, activation: str = "none", dtype: torch.dtype = torch.float32
    ) -> torch.Tensor:
        """`activation(step * (values - 128) @ weight.T)` in `dtype`."""
        found: torch.Tensor = torch.ops.onednn.qlinear_pointwise(
            values, step, ZERO, self.packed, self.steps, self.zeros, None, 1.0, 0, dtype, activation, [], ""
        )
        return found


class Int8Linear(nn.Module):
    """A linear layer of quantised states, bf16 out."""

    def __init__(self, layer: nn.Linear, quantise: Callable[[torch.Tensor], Quantised]) -> None:
        super().__init__()
        self.weight, self.out_features, self._quantise = Int8Weight(layer), layer.out_features, quantise

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """(..., in) to (..., out)."""
        values, step = self._quantise(states)
        if isinstance(step, float):
            found = self.weight.product(values, step, dtype=torch.bfloat16)
        else:
            found = self.weight.product(values).mul_(step).bfloat16()
        return found.view(*states.shape[:-1], self.out_features)


class DynamicLinear(nn.Module):
    """torch's own dynamic int8 layer: one step for all tokens of a product."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        weight = layer.weight.detach().float()
        steps = (weight.abs().amax(1).clamp_(min=_LEAST) / _MOST).double()
        whole = torch.quantize_per_channel(weight, steps, torch.zeros(len(weight), dtype=torch.int64), 0, torch.qint8)
        self._packed = torch.ops.quantized.linear_prepack(whole, layer.bias)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """(..., in) to (..., out)."""
        found: torch.Tensor = torch.ops.quantized.linear_dynamic(states.float(), self._packed, False)
        return found


class Int8Mlp(nn.Module):
    """down(silu(gate(x)) * up(x)) with gate and up in int8, down as given or in int8 as well."""

    def __init__(self, mlp: Any, quantise: Callable[[torch.Tensor], Quantised], down_too: bool) -> None:
        super().__init__()
        if type(mlp.act_fn).__name__ not in _SILU:
            raise ModelRefused(f"an MLP with {type(mlp.act_fn).__name__}: only SiLU is compared here")
        self.gate, self.up, self._quantise = Int8Weight(mlp.gate_proj), Int8Weight(mlp.up_proj), quantise
        self.down = Int8Weight(mlp.down_proj) if down_too else mlp.down_proj

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """(..., width) to (..., width)."""
        values, step = self._quantise(states)
        if isinstance(step, float):  # the same for all, so the activation fits into the product
            gated = self.gate.product(values, step, "swish", torch.bfloat16)
            gated.mul_(self.up.product(values, step, dtype=torch.bfloat16))
            step = None
        else:  # the step of `up` waits until the result, which is narrower
            gated = silu(self.gate.product(values).mul_(step)).mul_(self.up.product(values))
        if isinstance(self.down, Int8Weight):
            values, own = per_token(gated)
            found = self.down.product(values).mul_(own if step is None else own * step)
        else:
            found = self.down(gated) if step is None else self.down(gated) * step
        return found.view(states.shape)


def rewrite(model: Any, variant: Variant, calibrate: Callable[[], object]) -> None:
    """Put the int8 layers of a variant into an fp32 model, in place; what stays is for `serve_linear_layers`.

    `calibrate` runs the model, as it then is, over calibration texts; in one thread.
    """
    if variant.basis == "smoothed":
        _smooth(model, _spreads_of(model, calibrate))
    elif variant.basis == "rotated":
        _rotate(model)
    spreads = _spreads_of(model, calibrate) if variant.scales == "static" else {}
    layers = model.base_model.layers
    shared = Once(per_token)
    for number, layer in enumerate(layers):
        if number % variant.every or not variant.ends <= number < len(layers) - variant.ends:
            continue
        _rewrite_layer(layer, number, variant, spreads, shared)


def _rewrite_layer(layer: Any, number: int, variant: Variant, spreads: Spreads, shared: Once) -> None:
    def linear(of: nn.Linear, quantise: Callable[[torch.Tensor], Quantised]) -> nn.Module:
        return DynamicLinear(of) if variant.scales == "dynamic" else Int8Linear(of, quantise)

    def reader(norm: str) -> Callable[[torch.Tensor], Quantised]:
        if variant.scales != "static":
            return shared
        step = float(spreads[f"{number}.{norm}"].max()) / _MOST
        return Once(lambda states: with_step(states, step))

    attention, mlp = layer.self_attn, layer.mlp
    names = (*QKV * ("qkv" in variant.parts), *("o_proj",) * ("o" in variant.parts))
    quantise = reader("input_layernorm") if names else shared
    for name in names:
        setattr(attention, name, linear(getattr(attention, name), shared if name == "o_proj" else quantise))
    if "gate_up" in variant.parts and variant.scales != "dynamic":
        layer.mlp = Int8Mlp(mlp, reader("post_attention_layernorm"), "down" in variant.parts)
        return
    for name in (*GATE_UP * ("gate_up" in variant.parts), *("down_proj",) * ("down" in variant.parts)):
        setattr(mlp, name, linear(getattr(mlp, name), shared))


def _readers(layer: Any) -> list[tuple[str, list[nn.Linear]]]:
    """The norms of a layer, each with the linear layers that read it."""
    return [
        ("input_layernorm", [getattr(layer.self_attn, name) for name in QKV]),
        ("post_attention_layernorm", [getattr(layer.mlp, name) for name in GATE_UP]),
    ]


def _spreads_of(model: Any, run: Callable[[], object]) -> Spreads:
    """What stands behind every norm while `run` runs."""
    found: Spreads = {}

    def watch(name: str, norm: nn.Module) -> Any:
        def see(_: nn.Module, __: Any, states: torch.Tensor) -> None:
            largest = states.detach().float().flatten(0, -2).abs().amax(0)
            found[name] = torch.maximum(found.get(name, largest), largest)

        return norm.register_forward_hook(see)

    hooks = [
        watch(f"{number}.{norm}", getattr(layer, norm))
        for number, layer in enumerate(model.base_model.layers)
        for norm, _ in _readers(layer)
    ]
    run()
    for hook in hooks:
        hook.remove()
    return found


@torch.no_grad()
def _smooth(model: Any, spreads: Spreads) -> None:
    """SmoothQuant: channels that spread are divided in the norm and multiplied in the weights behind it."""
    for number, layer in enumerate(model.base_model.layers):
        for norm, readers in _readers(layer):
            spread = spreads[f"{number}.{norm}"].clamp(min=_LEAST)
            weights = torch.stack([reader.weight.abs().amax(0) for reader in readers]).amax(0).clamp(min=_LEAST)
            divisor = spread**_SMOOTHNESS / weights ** (1 - _SMOOTHNESS)
            getattr(layer, norm).weight.div_(divisor)
            for reader in readers:
                reader.weight.mul_(divisor)


@torch.no_grad()
def _rotate(model: Any, seed: int = 0) -> None:
    """The residual stream in a random orthogonal basis; norms move into the weights behind them, so nothing changes."""
    head, embeddings = model.get_output_embeddings(), model.get_input_embeddings()
    width = embeddings.weight.shape[1]
    random = torch.randn(width, width, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    basis = torch.linalg.qr(random).Q

    def read(weight: torch.Tensor, norm: Any) -> nn.Parameter:
        return nn.Parameter((weight.double() * norm.weight.double() @ basis).float(), requires_grad=False)

    def written(weight: torch.Tensor) -> nn.Parameter:
        return nn.Parameter((basis.T @ weight.double()).float(), requires_grad=False)

    head.weight = read(head.weight, model.base_model.norm)  # no longer the embeddings', where the two were tied
    model.base_model.norm.weight.fill_(1.0)
    embeddings.weight = nn.Parameter((embeddings.weight.double() @ basis).float(), requires_grad=False)
    for layer in model.base_model.layers:
        for norm, readers in _readers(layer):
            for reader in readers:
                reader.weight = read(reader.weight, getattr(layer, norm))
            getattr(layer, norm).weight.fill_(1.0)
        for writer in (layer.self_attn.o_proj, layer.mlp.down_proj):
            writer.weight = written(writer.weight)
