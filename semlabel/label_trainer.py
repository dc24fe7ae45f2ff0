"""The Trainer of packed rounds: one forward a round, the label-only loss, every item of a step weighing the same.

Knows nothing of files, settings or texts: rounds of token ids become tensors, tensors become a loss. What does not
depend on the loss stands in `StepTrainer`, for trainings that minimise another one.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch.nn.functional import binary_cross_entropy_with_logits
from transformers import PreTrainedModel, Trainer
from transformers.trainer_callback import PrinterCallback

from semlabel.errors import ModelRefused
from semlabel.models import attention_layers
from semlabel.packing import Layout, pack
from semlabel.scorer import readout
from semlabel.training_data import TrainingRound
from semlabel.training_lanes import Lanes


def collate(rounds: Sequence[TrainingRound]) -> dict[str, Any]:
    """One round as the tensors of one forward: `input_ids` (1, T), `labels` (items,) float32, `layout` of tensors."""
    (one,) = rounds
    packed = pack(one.query, one.items)
    labels = torch.tensor(one.labels, dtype=torch.float32)
    return {"input_ids": packed.input_ids, "labels": labels, "layout": packed.layout.tensors()}


class StepTrainer(Trainer):
    """transformers' Trainer with an optimiser step in which every term of the loss weighs the same.

    A subclass says how many `terms` a batch has and what their `summed_loss` is; the sum over the batches of a step is
    divided by the terms of the whole step, however unevenly they are spread. `precision` bf16 computes the forward
    under autocast, weights stay fp32. `lanes` of a step's batches are computed side by side, each with its share of the
    threads and gradients of its own. A batch holds `labels`, one for every pair it is made of.
    """

    # `compute_loss` divides by the terms of the whole step itself.
    loss_is_scaled_for_ga = True

    def __init__(self, *, precision: str, lanes: int = 1, **trainer: Any) -> None:
        super().__init__(**trainer)
        self.precision = precision
        self._most_lanes = lanes
        self._lanes: Lanes | None = None
        self._batches: list[Any] = []
        self._losses: list[torch.Tensor] = []
        self.items_of_step = 0
        self.terms_of_step = 0
        self.remove_callback(PrinterCallback)

    def terms(self, batch: dict[str, Any]) -> int:
        """How many terms the loss of a batch is the sum of."""
        return len(batch["labels"])

    def summed_loss(self, model: PreTrainedModel, inputs: dict[str, Any]) -> tuple[torch.Tensor, dict[str, Any]]:
        """The sum of the batch's loss terms, and what else was computed."""
        raise NotImplementedError

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device
    ) -> tuple[list[Any], int]:
        """The batches of one optimiser step and the number of their terms.

        The Trainer's own count is of tokens that a causal loss would predict: one too few for every round.
        """
        batches, _ = super().get_batch_samples(epoch_iterator, num_batches, device)
        self._batches, self._losses = batches, []
        self.items_of_step = sum(len(batch["labels"]) for batch in batches)
        self.terms_of_step = sum(self.terms(batch) for batch in batches)
        return batches, self.terms_of_step

    def training_step(self, model: Any, inputs: dict[str, Any], num_items_in_batch: Any = None) -> torch.Tensor:
        """Forward and backward of one batch; with lanes the first one of a step computes all of the step."""
        if self._most_lanes < 2 or len(self._batches) < 2:
            return super().training_step(model, inputs, num_items_in_batch)
        if not self._losses:
            model.train()
            self._lanes = self._lanes or Lanes(model, self._most_lanes)
            prepared = [self._prepare_inputs(batch) for batch in self._batches]
            self._losses = self._lanes.backward(prepared, partial(self._loss, terms=num_items_in_batch))
        return self._losses[next(place for place, batch in enumerate(self._batches) if batch is inputs)]

    def _loss(self, model: Any, inputs: dict[str, Any], terms: Any) -> torch.Tensor:
        loss: torch.Tensor = self.compute_loss(model, inputs, num_items_in_batch=terms)
        return loss

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """The batch's `summed_loss` divided by the terms of its step."""
        model = model.get_base_model() if hasattr(model, "get_base_model") else model
        loss, outputs = self.summed_loss(model, inputs)
        loss = loss / (self.terms_of_step if num_items_in_batch is None else num_items_in_batch)
        return (loss, outputs) if return_outputs else loss

    def autocast(self, device_type: str) -> AbstractContextManager[Any]:
        """What the forward runs under."""
        return torch.autocast(device_type, torch.bfloat16) if self.precision == "bf16" else nullcontext()

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """Linear warm-up, then linear decay. Unlike the stock one its first step is not a step of length zero."""
        warmup = self.args.get_warmup_steps(num_training_steps)
        decay = max(num_training_steps - warmup, 1)

        def factor(step: int) -> float:
            return (step + 1) / warmup if step < warmup else max(num_training_steps - step, 0) / decay

        if self.lr_scheduler is None:
            steered: Any = self.optimizer if optimizer is None else optimizer
            self.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(steered, factor)
            self._created_lr_scheduler = True
        return self.lr_scheduler

    def floating_point_ops(self, inputs: dict[str, Any]) -> int:
        """Not counted: walking all parameters for it at every step costs more than the number is worth."""
        return 0


class LabelTrainer(StepTrainer):
    """The label-only loss; a term is an item. Its dataset holds `TrainingRound`s, one round a batch.

    `answer_ids` are the token ids (yes, no).
    """

    def __init__(self, *, answer_ids: tuple[int, int], **trainer: Any) -> None:
        super().__init__(**trainer)
        self.answer_ids = answer_ids

    def summed_loss(self, model: PreTrainedModel, inputs: dict[str, Any]) -> tuple[torch.Tensor, dict[str, Any]]:
        """Cross entropy over the two answers, summed over the round's items.

        With two answers it is the binary cross entropy of the margin: softplus(-margin) for YES, softplus(margin)
        for NO. Only the items' last hidden states meet the head, and only its two rows.
        """
        layout = Layout.from_tensors(inputs["layout"])
        with self.autocast(inputs["input_ids"].device.type):
            hidden = packed_hidden(model, inputs["input_ids"], layout)
        margins = readout(hidden[layout.last.to(hidden.device)], model, *self.answer_ids)
        return binary_cross_entropy_with_logits(margins, inputs["labels"], reduction="sum"), {"margins": margins}


def packed_hidden(model: PreTrainedModel, input_ids: torch.Tensor, layout: Layout) -> torch.Tensor:
    """(tokens, width): the hidden states of a packed sequence. Raises ModelRefused where the layout was not read."""
    outputs = model.base_model(
        input_ids=input_ids, position_ids=layout.positions.to(input_ids.device), use_cache=False, mis_layout=layout
    )
    if layout.attention_calls != attention_layers(model.config):
        raise ModelRefused(
            f"{model.config.model_type} ran the packed attention {layout.attention_calls} times in "
            f"{attention_layers(model.config)} layers; it cannot be trained on packed rounds"
        )
    hidden: torch.Tensor = outputs.last_hidden_state[0]
    return hidden
