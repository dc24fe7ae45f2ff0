"""What a distributed scoring job is told: the labeler or model, the rounds, the two actor pools, the error policy.

Knows nothing of Ray: a config is made, checked and pickled without it. Reading a labeler's manifest is all it does
with files.
"""

from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from semlabel.errors import LabelerError
from semlabel.manifest import Digest, Manifest, read_manifest
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
    path must be the same on every node. A link, such as `labelers/current`, is followed once, when the config is made:
    what is promoted later is for the next job. `digest` is the labeler it must be, by default the one that is read
    where the job is built; a node that has another one under this path ends the job. A plain model has no digest.
    `catalog` ({candidate_id: text}, in order) is shared by all entities that bring no candidates of their own.
    `threads` per scorer: 0 leaves it to Ray, which gives an actor as many as it reserves CPUs. `output` "pairs" gives a
    row a pair, "entities" a row an entity with lists. `on_error` "column" puts the reason of a bad row into `error`,
    "raise" ends the job. `exactly_once` runs the job when the processor is called and compares what came out with what
    went in; without it the result stays lazy. Calls are repeated without end (`max_task_retries` -1), because those to
    a lost node fail many times before it counts as lost; what kills every actor that takes it ends the job all the
    same, after `max_restarts`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    labeler: Path | None = None
    digest: Digest | None = None
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

    @field_validator("labeler")
    @classmethod
    def _where_it_points_now(cls, labeler: Path | None) -> Path | None:
        return None if labeler is None else _followed(labeler)

    @field_validator("model")
    @classmethod
    def _where_the_folder_is_now(cls, model: str | None) -> str | None:
        return str(_followed(Path(model))) if model is not None and Path(model).is_dir() else model

    @model_validator(mode="after")
    def _one_model(self) -> Self:
        if (self.labeler is None) == (self.model is None):
            raise ValueError("give either labeler (a labeler directory) or model and prompt")
        if (self.model is None) != (self.prompt is None):
            raise ValueError("prompt goes with model; a labeler brings its own")
        if self.labeler is not None and self.precision != "auto":
            raise ValueError("precision goes with model; a labeler scores in the precision it was certified in")
        if self.labeler is None and self.digest is not None:
            raise ValueError("digest goes with labeler; a plain model has none")
        if self.catalog is not None and not self.catalog:
            raise ValueError("catalog is empty; leave it out where every entity brings its own candidates")
        return self

    @cached_property
    def manifest(self) -> Manifest | None:
        """The labeler's manifest, its small files verified; None for a model without one.

        Raises LabelerError, also where it is not the labeler of `digest`.
        """
        if self.labeler is None:
            return None
        manifest = read_manifest(self.labeler)
        self.refuse_other(manifest)
        return manifest

    def for_actors(self) -> Self:
        """The config that actors are made with: the digest is fixed; the catalog comes from the object store."""
        digest = None if self.manifest is None else self.manifest.digest
        return self.model_copy(update={"catalog": None, "digest": digest})

    def refuse_other(self, found: Manifest) -> None:
        """Raise LabelerError where `found`, which was read under `labeler` here, is not the labeler of `digest`."""
        if self.digest is not None and found.digest != self.digest:
            raise LabelerError(
                f"{self.labeler}: holds labeler {found.digest[:12]} on this node, the job is one of "
                f"{self.digest[:12]}; give every node the same directory under this path and run it again"
            )

    @property
    def path(self) -> str:
        """The directory (or hub name) that tokenizer and weights come from."""
        return str(self.model if self.labeler is None else self.labeler)

    @property
    def spec(self) -> PromptSpec:
        """The prompt every pair is put into."""
        if self.manifest is not None:
            return self.manifest.prompt.spec()
        assert self.prompt is not None
        return self.prompt


def _followed(path: Path) -> Path:
    """The directory that a path, or the link at its end, leads to. Nodes may mount what lies above it differently."""
    path = path.absolute()
    while path.is_symlink() and path.exists():  # no dangling one, and none that leads back to itself
        path = path.parent / path.readlink()
    return path
