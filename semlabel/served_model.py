"""A model as it is served: fp32 weights and states, matrix products in the precision that was asked for.

What scores and what generates answer lists load the same way, so that neither rounds more than the other. Knows
precisions and linear layers; deliberately does not know what is computed with the model.
"""

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from semlabel.linear_layers import serve_linear_layers
from semlabel.models import DTYPES, load_model


def load_served(path: str | Path, precision: str, device: str, attention: str = "stock") -> PreTrainedModel:
    """A model whose forwards are to run under `products` of the same precision; errors as in `load_model`."""
    model = load_model(path, "fp32", device, attention)
    serve_linear_layers(model.base_model, DTYPES[precision])
    return model


def products(model: PreTrainedModel, precision: str) -> AbstractContextManager[Any]:
    """Matrix products in the precision that is served, everything between them in that of the weights."""
    return nullcontext() if precision == "fp32" else torch.autocast(model.device.type, DTYPES[precision])
