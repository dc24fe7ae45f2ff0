"""From last hidden states to what is asked of them: logits of a few tokens, margins, probabilities of label tokens.

Only the rows of the head that are asked for are read, through the model's own post-processing: bias, logit scale,
final softcap. The whole vocabulary is met only for its normaliser, a chunk of rows at a time, so that no
(items, vocabulary) matrix is ever made. Knows nothing of items, rounds or attention.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import PreTrainedModel

_VOCABULARY_ROWS = 8192


@dataclass(frozen=True)
class Labels:
    """The label tokens of each item (`ids`, one list an item) and what their probabilities are shares of.

    `over_vocabulary`: true probabilities; else a softmax over the item's label tokens alone, at `temperature`.
    """

    ids: tuple[tuple[int, ...], ...]
    over_vocabulary: bool = True
    temperature: float = 1.0


def vocabulary_of(model: PreTrainedModel) -> int:
    """How many token ids the model's head has a row for, added tokens included."""
    head: Any = model.get_output_embeddings()
    return int(head.weight.shape[0])


def logits_of(hidden_last: torch.Tensor, model: PreTrainedModel, rows: torch.Tensor | slice) -> torch.Tensor:
    """Logits (n, rows) float32 of some vocabulary rows from last hidden states (n, width); differentiable."""
    head: Any = model.get_output_embeddings()
    config = model.config.get_text_config()
    states = hidden_last.float()
    if alone := len(states) == 1:
        # A matrix of one row takes another kernel: the margin of an item must not depend on how many are read with it.
        states = states.expand(2, -1)
    logits = states @ head.weight[rows].float().T
    logits = logits[:1] if alone else logits
    if getattr(head, "bias", None) is not None:
        logits = logits + head.bias[rows].float()
    if (scale := getattr(config, "logit_scale", None)) is not None:
        logits = logits * scale
    if (divisor := getattr(config, "logits_scaling", None)) is not None:
        logits = logits / divisor
    if (cap := getattr(config, "final_logit_softcapping", None)) is not None:
        logits = torch.tanh(logits / cap) * cap
    return logits


def readout(hidden_last: torch.Tensor, model: PreTrainedModel, yes_id: int, no_id: int) -> torch.Tensor:
    """Margins (n,) float32, logit(yes) - logit(no), from last hidden states (n, width); differentiable."""
    logits = logits_of(hidden_last, model, torch.tensor([yes_id, no_id], device=hidden_last.device))
    return logits[:, 0] - logits[:, 1]


def label_logits(
    hidden_last: torch.Tensor, model: PreTrainedModel, ids: Sequence[Sequence[int]]
) -> tuple[torch.Tensor, list[list[int]]]:
    """Logits (n, k) of every label token of any item, and each item's columns in them, in the order of its `ids`."""
    used = sorted(set(chain.from_iterable(ids)))
    columns = {token: column for column, token in enumerate(used)}
    logits = logits_of(hidden_last, model, torch.tensor(used, device=hidden_last.device))
    return logits, [[columns[token] for token in labels] for labels in ids]


def log_normaliser(hidden_last: torch.Tensor, model: PreTrainedModel) -> torch.Tensor:
    """log(sum(exp(logits))) over the whole vocabulary, (n,) float32."""
    parts = [
        torch.logsumexp(logits_of(hidden_last, model, slice(start, start + _VOCABULARY_ROWS)), dim=-1)
        for start in range(0, vocabulary_of(model), _VOCABULARY_ROWS)
    ]
    return torch.logsumexp(torch.stack(parts), dim=0)


def probabilities_of(
    hidden_last: torch.Tensor, model: PreTrainedModel, labels: Labels
) -> list[npt.NDArray[np.float64]]:
    """Probabilities of each item's label tokens, one float64 array an item, from last hidden states (n, width)."""
    found, columns = label_logits(hidden_last, model, labels.ids)
    logits = found.double().cpu().numpy()
    if labels.over_vocabulary:
        total = log_normaliser(hidden_last, model).double().cpu().numpy()
        return [np.exp(row[at] - norm) for row, at, norm in zip(logits, columns, total, strict=True)]
    return [_softmax(row[at], labels.temperature) for row, at in zip(logits, columns, strict=True)]


def _softmax(logits: npt.NDArray[np.float64], temperature: float) -> npt.NDArray[np.float64]:
    # The largest is taken off first: then no temperature above 0 makes anything but a share of it.
    with np.errstate(over="ignore"):
        shares = np.exp((logits - logits.max()) / temperature)
    return np.asarray(shares / shares.sum())
