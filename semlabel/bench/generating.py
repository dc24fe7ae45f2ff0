"""Packed generation as a method: the best of whole prompts or a shared query, and of decoding that skips forced tokens.

Answers are as short as they can be read (a number, a word, one a line) and end with the list. Decoding token by token
stands in for free decoding of a well-formed list: it takes the same forwards, and a model that was never trained on
lists could not be timed otherwise. Deliberately does not know clocks or tables.
"""

from collections.abc import Sequence
from functools import partial

from transformers import PreTrainedModel, PreTrainedTokenizerFast

from semlabel.bench.methods import Account, Scored, Setting, doubling, in_lanes
from semlabel.bench.tasks import Task
from semlabel.generation.generator import Generator, Request
from semlabel.generation.prompt import PACK_SIZE, PackPrompt
from semlabel.prompt import PromptSpec

_MOST_PACKS = 32


class Generation:
    """Answer lists about packs of 20; searched: shared query or whole prompts, skipping or not, packs per forward."""

    name = "generation"
    has_lanes = True
    sets_up = False

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, spec: PromptSpec) -> None:
        self.model, self.prompt = model, PackPrompt(spec, tokenizer, PACK_SIZE)

    def ladders(self, tasks: Sequence[Task]) -> list[list[Setting]]:
        most = max(-(-len(task.items) // PACK_SIZE) for task in tasks)
        together = sum(-(-len(task.items) // PACK_SIZE) for task in tasks)
        return [
            [
                {"shared_query": shared, "skip_forced": skip, "packs_per_forward": size}
                for size in doubling(1, min(most if shared else together, _MOST_PACKS))
            ]
            for shared in (True, False)
            for skip in (True, False)
        ]

    def run(self, tasks: Sequence[Task], setting: Setting) -> Scored:
        setting = dict(setting)
        lanes = setting.pop("lanes", 1)
        return in_lanes(partial(self._tasks, setting=setting), tasks, lanes)

    def _tasks(self, tasks: Sequence[Task], setting: Setting) -> Scored:
        generator = Generator(self.model, self.prompt, constrained=True, **setting)
        # An item without its last token, where a single prompt reads the answer, is the candidate itself.
        answered = generator.answer([Request(task.query, [item[:-1] for item in task.items]) for task in tasks])
        work = generator.work
        account = Account(
            prefill_tokens=work.prefill_tokens,
            decoded_tokens=work.decoded_tokens,
            forwards=work.prefill_forwards + work.decode_forwards,
            prefill_seconds=work.prefill_seconds,
            decode_seconds=work.decode_seconds,
        )
        margins = [one.margins for one in answered if one.margins is not None]
        return Scored(margins, [one.labels for one in answered], account)
