"""The training of packed generation: an entity's packs in one forward, loss on their answer lists alone.

The same Trainer as the labeler's, with another loss: what a list is made of (numbers, answers, line ends, its end)
are the terms, all weighing the same. Knows nothing of files, settings or which candidates are true.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel

from semlabel.digests import digest_of
from semlabel.generation.examples import NO_LOSS, Example, examples, packs_from_pairs
from semlabel.generation.prompt import PackPrompt
from semlabel.label_trainer import StepTrainer
from semlabel.readout import logits_of
from semlabel.training import Objective

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class PackRound:
    """The packs of one entity that are learned from together, and the labels (1 YES, 0 NO) of their candidates."""

    examples: list[Example]
    labels: list[int]


def pack_rounds(
    prompt: PackPrompt,
    pairs: "pd.DataFrame",
    entities: "pd.DataFrame",
    catalog: "pd.DataFrame",
    seed: int,
    items_per_round: int = 200,
) -> list[PackRound]:
    """Every pair in exactly one pack, the packs of an entity (up to `items_per_round` candidates) in one round.

    Tables are as in `packs_from_pairs`. Raises SourceError for an id without a text, PromptError for a candidate that
    does not fit the prompt.
    """
    packs = packs_from_pairs(pairs, entities, catalog, prompt.pack_size, seed)
    together = max(1, items_per_round // prompt.pack_size)
    rounds = []
    for _, members in groupby(packs, key=lambda pack: pack.entity_text):
        mine = list(members)
        for start in range(0, len(mine), together):
            part = mine[start : start + together]
            rounds.append(PackRound(examples(prompt, part), [int(label) for pack in part for label in pack.labels]))
    return rounds


def collate_packs(rounds: Sequence[PackRound]) -> dict[str, Any]:
    """One round as the tensors of one forward: `input_ids` and `targets` (packs, T), `labels` (candidates,).

    Packs are padded on the right, where causal attention never looks from a real token, so that no mask is needed.
    """
    (one,) = rounds
    width = max(len(example.ids) for example in one.examples)
    ids = [[*example.ids, *[0] * (width - len(example.ids))] for example in one.examples]
    targets = [[*example.targets, *[NO_LOSS] * (width - len(example.ids))] for example in one.examples]
    labels = torch.tensor(one.labels, dtype=torch.float32)
    return {"input_ids": torch.tensor(ids), "targets": torch.tensor(targets), "labels": labels}


class ListTrainer(StepTrainer):
    """Cross entropy over the whole vocabulary on the tokens of the answer lists; a term is such a token."""

    def terms(self, batch: dict[str, Any]) -> int:
        """The tokens of the batch's answer lists."""
        return int((batch["targets"] != NO_LOSS).sum())

    def summed_loss(self, model: PreTrainedModel, inputs: dict[str, Any]) -> tuple[torch.Tensor, dict[str, Any]]:
        """Only the hidden states that predict a token of a list meet the head."""
        with self.autocast(inputs["input_ids"].device.type):
            hidden = model.base_model(input_ids=inputs["input_ids"], use_cache=False).last_hidden_state
        targets = inputs["targets"][:, 1:]
        predicts = targets != NO_LOSS
        logits = logits_of(hidden[:, :-1][predicts], model, slice(None))
        return cross_entropy(logits, targets[predicts], reduction="sum"), {"logits": logits}


def list_objective() -> Objective:
    """The loss on answer lists, of `PackRound`s."""
    return Objective("answer lists", ListTrainer, collate_packs, _digest, lambda one: len(one.labels), "stock")


def _digest(rounds: Sequence[PackRound]) -> str:
    return digest_of([[[example.ids, example.answer_start] for example in one.examples] for one in rounds])
