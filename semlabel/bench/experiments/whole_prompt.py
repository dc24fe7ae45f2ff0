"""The loss that is not the recipe's: every token of the single prompts, answer included, as plain fine-tuning has it.

Exactly the sum over the single prompts, at the cost of a packed forward: a query's tokens count once for every item
that stands behind it. Knows nothing of files or settings.
"""

from functools import partial
from typing import Any

import torch
from transformers import PreTrainedModel

from semlabel.label_trainer import LabelTrainer, collate, packed_hidden
from semlabel.packing import Layout
from semlabel.prompt import Prompt
from semlabel.readout import logits_of
from semlabel.training import Objective, label_objective


class WholePromptTrainer(LabelTrainer):
    """Cross entropy over the whole vocabulary on every token after the first of every single prompt and its answer."""

    def terms(self, batch: dict[str, Any]) -> int:
        """Predicted tokens of all single prompts, the answers among them."""
        layout = Layout.from_tensors(batch["layout"])
        return len(layout.lengths) * layout.query_length + sum(layout.lengths)

    def summed_loss(self, model: PreTrainedModel, inputs: dict[str, Any]) -> tuple[torch.Tensor, dict[str, Any]]:
        """The query's tokens weighted by the number of items, the items' tokens, and the answers."""
        layout = Layout.from_tensors(inputs["layout"])
        with self.autocast(inputs["input_ids"].device.type):
            hidden = packed_hidden(model, inputs["input_ids"], layout)
        ids, device = inputs["input_ids"][0], hidden.device
        logs = torch.log_softmax(logits_of(hidden, model, slice(None)), dim=-1)
        query, last = layout.query_length, layout.last.to(device)
        inside = torch.ones(layout.total, dtype=torch.bool, device=device)
        inside[:query] = False
        inside[last] = False
        within = inside.nonzero()[:, 0]
        lengths = torch.tensor(layout.lengths, device=device)
        answers = torch.where(inputs["labels"] > 0, *self.answer_ids)
        told = [
            len(layout.lengths) * logs[torch.arange(query - 1, device=device), ids[1:query]].sum(),
            logs[query - 1, ids[last - lengths + 1]].sum(),  # an item's first token is read from the query's last
            logs[within, ids[within + 1]].sum(),
            logs[last, answers].sum(),
        ]
        return -torch.stack(told).sum(), {}


def whole_prompt_objective(prompt: Prompt) -> Objective:
    """The loss on whole prompts, of `TrainingRound`s."""
    own = label_objective(prompt)
    trainer = partial(WholePromptTrainer, answer_ids=(prompt.yes_id, prompt.no_id))
    return Objective("whole prompt", trainer, collate, own.digest, own.pairs, own.attention)
