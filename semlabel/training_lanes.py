"""Forward and backward of an optimiser step's batches side by side on the CPU, each lane on a replica of the model.

A replica shares the weights and has gradients of its own, so no lane waits for another one, and gradients are added in
an order that does not depend on which lane is done first. Deliberately does not know what the loss is.
"""

import copy
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from semlabel.lanes import dealt_out

Loss = Callable[[Any, Any], torch.Tensor]


class Lanes:
    """A model in training and the replicas that compute beside it: `lanes` in all, at least one."""

    def __init__(self, model: torch.nn.Module, lanes: int) -> None:
        self._models = [model, *(replica(model) for _ in range(lanes - 1))]

    def backward(self, batches: Sequence[Any], loss: Loss) -> list[torch.Tensor]:
        """The detached loss of each batch; the sum of their gradients is added to those of the model.

        `loss` gives the loss of one model for one batch. Batch n goes to lane n modulo the number of lanes.
        """
        losses = dealt_out(batches, [partial(_backward, model, loss) for model in self._models])
        for other in self._models[1:]:
            _move_gradients(other, self._models[0])
        return losses


def replica(model: torch.nn.Module) -> torch.nn.Module:
    """A copy whose parameters are the model's own memory; only their gradients are not."""
    known: dict[int, Any] = {id(buffer): buffer for buffer in model.buffers()}
    for parameter in model.parameters():
        known[id(parameter)] = torch.nn.Parameter(parameter.data, requires_grad=parameter.requires_grad)
    return copy.deepcopy(model, known)


def _backward(model: torch.nn.Module, loss: Loss, batches: Sequence[Any]) -> list[torch.Tensor]:
    found = []
    for batch in batches:
        value = loss(model, batch)
        value.backward()
        found.append(value.detach())
    return found


def _move_gradients(giver: torch.nn.Module, taker: torch.nn.Module) -> None:
    for given, taken in zip(giver.parameters(), taker.parameters(), strict=True):
        if given.grad is not None:
            taken.grad = given.grad if taken.grad is None else taken.grad.add_(given.grad)
            given.grad = None
