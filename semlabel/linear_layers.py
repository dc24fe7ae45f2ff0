"""The linear layers of a model that only scores, in the precision that is served and laid out for the processor.

In bf16 only their weights and what they are multiplied with are bf16: the states between layers stay float32, as they
were in training under autocast, which rounds less than a model that is bf16 throughout. On the CPU
oneDNN gets each weight in its own layout once, instead of reordering it at every product, and applies an MLP's gate
while the product is still in registers. Every rewritten module is compared with what it replaces, and left as it was
where it differs. Knows shapes and names of modules, not models: whatever it does not recognise stays. A rewritten
model has no gradient and cannot be saved.
"""

from typing import Any

import torch
from torch import nn
from torch.nn.functional import linear

# What oneDNN calls the activations it can apply: (attribute, algorithm).
_ACTIVATIONS = {"SiLUActivation": ("swish", ""), "SiLU": ("swish", ""), "GELUTanh": ("gelu", "tanh")}
_PROBE_ROWS = 16
# Rows that a weight is laid out for; a layout for 20 rows and one for 2,000 are as fast as each other at both.
_ROWS = 1024
# Of the largest output; far above rounding (fp32 1e-6, bf16 0.01), far below what a wrong product gives.
_TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 0.05}


def packed_weight(weight: torch.Tensor, rows: int = _ROWS) -> torch.Tensor | None:
    """oneDNN's own layout of a weight (out, in), None where this build or processor has none for its precision."""
    if weight.device.type != "cpu" or weight.dtype not in _TOLERANCE or not torch.backends.mkldnn.is_available():
        return None
    if weight.dtype == torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return None
    packed: torch.Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), rows)
    return packed


def packed_product(
    states: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    activation: tuple[str, str] = ("none", ""),
) -> torch.Tensor:
    """`activation(states @ weight.T + bias)` with a weight from `packed_weight`."""
    product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(states, weight, bias, activation[0], [], activation[1])
    return product


class ServedLinear(nn.Module):
    """A linear layer in `dtype`: takes states of any precision, gives them in its own."""

    def __init__(self, layer: nn.Linear, dtype: torch.dtype) -> None:
        super().__init__()
        plain = layer.weight.detach().to(dtype)
        packed = packed_weight(plain)
        self.packed, self.weight = packed is not None, plain if packed is None else packed
        self.bias = None if layer.bias is None else layer.bias.detach().to(dtype)
        self.dtype, self.in_features, self.out_features = dtype, layer.in_features, layer.out_features

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """(..., in) to (..., out)."""
        states = states.to(self.dtype)
        return packed_product(states, self.weight, self.bias) if self.packed else linear(states, self.weight, self.bias)


class ServedMlp(nn.Module):
    """down(activation(gate(x)) * up(x)) of packed layers, activation and product inside the matrix products."""

    def __init__(self, gate: ServedLinear, up: ServedLinear, down: ServedLinear, activation: tuple[str, str]) -> None:
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = gate, up, down
        self.dtype, self.in_features = gate.dtype, gate.in_features
        self._activation = activation

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """(..., width) to (..., width)."""
        states = states.to(self.dtype)
        gate = packed_product(states, self.gate_proj.weight, self.gate_proj.bias, self._activation)
        gated = torch.ops.mkldnn._linear_pointwise.binary(states, gate, self.up_proj.weight, self.up_proj.bias, "mul")
        product: torch.Tensor = self.down_proj(gated)
        return product


def serve_linear_layers(model: nn.Module, dtype: torch.dtype) -> int:
    """Replace the linear layers of an fp32 model by served ones, in place; the number of layers replaced.

    Layers whose weight is shared with another module, and layers of other classes (quantised, adapters), stay; so do
    all in fp32 where there is no layout to gain from.
    """
    shared, served = _shared_weights(model), 0
    with torch.inference_mode():
        for parent in list(model.modules()):
            for name, child in list(parent.named_children()):
                if type(child) is not nn.Linear or child.weight.data_ptr() in shared:
                    continue
                replacement = ServedLinear(child, dtype)
                if (replacement.packed or child.weight.dtype != dtype) and _agree(replacement, child):
                    setattr(parent, name, replacement)
                    served += 1
        for parent in list(model.modules()):
            for name, child in list(parent.named_children()):
                if (mlp := _mlp(child)) is not None and _agree(mlp, child):
                    setattr(parent, name, mlp)
    return served


def _shared_weights(model: nn.Module) -> set[int]:
    owners: dict[int, int] = {}
    for module in model.modules():
        for parameter in module._parameters.values():
            if parameter is not None:
                owners[parameter.data_ptr()] = owners.get(parameter.data_ptr(), 0) + 1
    return {address for address, count in owners.items() if count > 1}


def _mlp(module: nn.Module) -> ServedMlp | None:
    """The module as a served MLP, None where it is none: what its forward really computes is for `_agree` to tell."""
    children: dict[str, Any] = dict(module.named_children())
    if children.keys() != {"gate_proj", "up_proj", "down_proj", "act_fn"}:
        return None
    gate, up, down = children["gate_proj"], children["up_proj"], children["down_proj"]
    if not all(type(layer) is ServedLinear and layer.packed for layer in (gate, up, down)):
        return None
    activation = _ACTIVATIONS.get(type(children["act_fn"]).__name__)
    return None if activation is None else ServedMlp(gate, up, down, activation)


def _agree(new: ServedLinear | ServedMlp, old: nn.Module) -> bool:
    """Whether both give the same for random states, up to rounding."""
    device = next((part.device for part in (*old.parameters(), *old.buffers())), torch.device("cpu"))
    states = torch.randn(1, _PROBE_ROWS, new.in_features, generator=torch.Generator().manual_seed(0)).to(device)
    expected, found = old(states).float(), new(states).float()
    return bool((expected - found).abs().max() <= _TOLERANCE[new.dtype] * expected.abs().max())
