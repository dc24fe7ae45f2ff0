"""Other engines behind the same fronts, queue and transport: packed generation, and one that computes nothing.

Run as `-m semlabel.bench.other_engine`: with `supervise` it starts a server of the product whose engine process is
this module, which then takes the engine's place. What to be comes in the environment, as `Kind` in JSON.
"""

import asyncio
import logging
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import BaseModel, ConfigDict

from semlabel.manifest import read_manifest
from semlabel.serving.plan import Plan
from semlabel.serving.processes import configure_logging, end_with_parent

if TYPE_CHECKING:
    from semlabel.generation.generator import Generator

MODULE, VARIABLE = "semlabel.bench.other_engine", "SEMLABEL_BENCH_ENGINE"


class Kind(BaseModel):
    """`generation` with its setting (see `Generator`), or `nothing`: zeros at once."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    setting: dict[str, bool | int] = {}


@dataclass(frozen=True)
class _Labeler:
    """What an engine needs of a labeler."""

    path: Path
    digest: str
    scorer: Any


class _Whole:
    """A scorer whose request is one round, whatever its size."""

    most_lanes = 1

    def __init__(self, vocabulary: int, longest_prompt: int) -> None:
        self.vocabulary, self.longest_prompt = vocabulary, longest_prompt

    def rounds(self, query: list[int], items: list[list[int]]) -> list[range]:
        """All of it."""
        return [range(len(items))]


class _Nothing(_Whole):
    def margins(self, query: list[int], items: list[list[int]]) -> np.ndarray:
        """A zero for every item."""
        return np.zeros(len(items), dtype=np.float32)


class _Generating(_Whole):
    """Answers in packs of 20. `closing`: how many ids of an item come after its candidate."""

    def __init__(self, generator: "Generator", closing: int, vocabulary: int, longest_prompt: int) -> None:
        import torch

        super().__init__(vocabulary, longest_prompt)
        self._generator, self._closing = generator, closing
        self.most_lanes = torch.get_num_threads()

    def margins(self, query: list[int], items: list[list[int]]) -> np.ndarray:
        """The margins of the answers in the list."""
        from semlabel.generation.generator import Request

        candidates = [item[: len(item) - self._closing] for item in items]
        (answered,) = self._generator.answer([Request(query, candidates)])
        assert answered.margins is not None
        return answered.margins


def loader(plan: Plan, kind: Kind) -> Callable[[Path], Any]:
    """Makes what answers of a labeler directory."""

    def load(path: Path) -> Any:
        from semlabel.generation.generator import Generator
        from semlabel.generation.prompt import PackPrompt
        from semlabel.models import load_model
        from semlabel.prompt import Prompt, load_tokenizer

        manifest, tokenizer = read_manifest(path), load_tokenizer(path)
        spec = manifest.prompt.spec()
        model = load_model(path, manifest.precision, plan.device)
        config: Any = model.config
        embeddings: Any = model.get_input_embeddings()
        sizes = int(embeddings.num_embeddings), int(config.max_position_embeddings)
        scorer: _Whole
        if kind.name == "nothing":
            scorer = _Nothing(*sizes)
        else:
            setting: dict[str, Any] = dict(kind.setting)
            generator = Generator(model, PackPrompt(spec, tokenizer), constrained=True, **setting)
            scorer = _Generating(generator, len(Prompt(spec, tokenizer).closing), *sizes)
        return _Labeler(path, manifest.digest, scorer)

    return load


def main() -> None:
    """Supervise a server, or be its engine."""
    if sys.argv[1] == "supervise":
        from semlabel.cli.common import say
        from semlabel.serving import supervisor

        configure_logging("serve")
        supervisor.run(Plan.model_validate_json(sys.argv[2]).model_copy(update={"engine": MODULE}), say)
        return
    from semlabel.serving.engine import Engine, serve

    plan = Plan.model_validate_json(sys.argv[1])
    configure_logging("engine")
    end_with_parent()
    logging.getLogger("transformers").setLevel(logging.ERROR)
    if plan.threads:
        import torch

        torch.set_num_threads(plan.threads)
    load = loader(plan, Kind.model_validate_json(os.environ[VARIABLE]))

    async def run() -> None:
        await serve(Engine(plan, load), plan)

    asyncio.run(run())


if __name__ == "__main__":
    main()
