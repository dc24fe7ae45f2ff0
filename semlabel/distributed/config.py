"""What a distributed scoring job is told: the labeler or model, the rounds, the two actor pools, the error policy.

Knows nothing of Ray: a config is made, checked and pickled without it. Reading a labeler's manifest is all it does
with files.
"""

from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from semlabel.manifest import Manifest, read_manifest
from semlabel.prompt import PromptSpec

Positive = Annotated[int, Field(ge=1)]
Count = Annotated[int, Field(ge=0)]
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Pool(BaseModel):
    """Actors of one stage: between `min` and `max`, each reserving `cpus`, `gpus` and Ray's custom `resources`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    min: Positive = 1
    max: Positive = 1
    cpus: Amount = 1.0
    gpus: Amount = 0.0
    resources: dict[str, Amount] = {}

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.min > self.max:
            raise ValueError(f"a pool of min {self.min} and max {self.max} actors; min must not exceed max")
        return self


class MisConfig(BaseModel):
    """A distributed scoring job.

    Either `labeler` (a labeler directory, which brings prompt, precision and threshold) or `model` with `prompt`; the
    path must be the same on every node. `catalog` ({candidate_id: text}, in order) is shared by all entities that
    bring no candidates of their own. `threads` per scorer: 0 leaves it to Ray, which gives an actor as many as it
    reserves CPUs. `output` "pairs" gives a row a pair, "entities" a row an entity with lists. `on_error` "column" puts
    the reason of a bad row into `error`, "raise" ends the job. `exactly_once` runs the job when the processor is
    called and compares what came out with what went in; without it the result stays lazy. Calls are repeated without
    end (`max_task_retries` -1), because those to a lost node fail many times before it counts as lost; what kills every
    actor that takes it ends the job all the same, after `max_restarts`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    labeler: Path | None = None
    model: str | None = None
    prompt: PromptSpec | None = None
    catalog: dict[str, str] | None = Field(default=None, repr=False)
    method: Literal["auto", "mis", "prefix_cache", "independent"] = "auto"
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    device: str = "auto"
    items_per_round: Positive = 200
    max_round_tokens: Positive = 8192
    threads: Count = 0
    tokenizers: Pool = Pool(cpus=0.5)
    scorers: Pool = Pool()
    entities_per_block: Positive = 32
    rounds_per_batch: Positive | None = 8
    max_restarts: Annotated[int, Field(ge=-1)] = 4
    max_task_retries: Annotated[int, Field(ge=-1)] = -1
    output: Literal["pairs", "entities"] = "pairs"
    on_error: Literal["column", "raise"] = "column"
    exactly_once: bool = True

    @model_validator(mode="after")
    def _one_model(self) -> Self:
        if (self.labeler is None) == (self.model is None):
            raise ValueError("give either labeler (a labeler directory) or model and prompt")
        if (self.model is None) != (self.prompt is None):
            raise ValueError("prompt goes with model; a labeler brings its own")
        if self.labeler is not None and self.precision != "auto":
            raise ValueError("precision goes with model; a labeler scores in the precision it was certified in")
        if self.catalog is not None and not self.catalog:
            raise ValueError("catalog is empty; leave it out where every entity brings its own candidates")
        return self

    @cached_property
    def manifest(self) -> Manifest | None:
        """The labeler's manifest, its small files verified. Raises LabelerError; None for a model without one."""
        return None if self.labeler is None else read_manifest(self.labeler)

    @property
    def path(self) -> str:
        """The directory (or hub name) that tokenizer and weights come from."""
        return str(self.model if self.labeler is None else self.labeler.absolute())

    @property
    def spec(self) -> PromptSpec:
        """The prompt every pair is put into."""
        if self.manifest is not None:
            return self.manifest.prompt.spec()
        assert self.prompt is not None
        return self.prompt
