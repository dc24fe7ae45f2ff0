"""Label-only training on packed rounds: one reference label an item, loss on the label position only.

Knows nothing of tables, gates or thresholds: rounds of token ids in, a model directory out. All items of an entity go
through one packed forward, so the gradient is exactly the sum of the single prompts' gradients; the loss of a step of
the optimiser is the sum over its items divided by their number, however unevenly they are spread.
"""

import math
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import PreTrainedModel, TrainerCallback, TrainingArguments, set_seed
from transformers.utils import logging

from semlabel.attention import SPLIT
from semlabel.digests import digest_of
from semlabel.errors import LabelerError, ModelRefused, SourceError
from semlabel.heap import keep_freed_memory
from semlabel.label_trainer import LabelTrainer, StepTrainer, collate
from semlabel.manifest import base_identity
from semlabel.models import TRAINING, enable_training_safety, load_model, resolve_device, resolve_precision
from semlabel.progress import Progress, ProgressSink, silent
from semlabel.prompt import Prompt, load_tokenizer
from semlabel.training_data import TrainingRound, rounds_digest, rounds_from_pairs, training_spec
from semlabel.training_state import Resumable, TrainingState

if TYPE_CHECKING:
    from peft import PeftModel

    from semlabel.settings import Training

__all__ = [
    "LabelTrainer",
    "Objective",
    "TrainingResult",
    "TrainingRound",
    "collate",
    "rounds_from_pairs",
    "train",
    "trainable_model",
    "training_digest",
    "training_spec",
]

TRAINING_CODE_VERSION = 2
_MAX_GRADIENT_NORM = 1.0
# What the rounds do not already say about how weights move.
_STEERING = {
    "method",
    "learning_rate",
    "warmup_fraction",
    "epochs",
    "rounds_per_step",
    "seed",
    "lora_rank",
    "lora_alpha",
    "weight_decay",
}


@dataclass(frozen=True)
class Objective:
    """What a training minimises, apart from how: the labeler's own is the label-only loss on packed rounds.

    `trainer` makes the Trainer from what transformers' takes, `collate` one batch from one example; `digest` is the
    identity of all examples, `pairs` the number of an example's pairs; `attention` is as in `load_model`.
    """

    name: str
    trainer: Callable[..., StepTrainer]
    collate: Callable[[Sequence[Any]], dict[str, Any]]
    digest: Callable[[Sequence[Any]], str]
    pairs: Callable[[Any], int]
    attention: str


def label_objective(prompt: Prompt) -> Objective:
    """The label-only loss of `prompt`'s two answers on `TrainingRound`s."""
    trainer = partial(LabelTrainer, answer_ids=(prompt.yes_id, prompt.no_id))
    return Objective("labels", trainer, collate, rounds_digest, lambda one: len(one.items), SPLIT)


@dataclass(frozen=True)
class TrainingResult:
    """What a training did: mean loss of every optimiser step, steps, items seen, seconds, and where the model lies.

    `resumed_from` is the step this call went on from (None: from the start), `seconds` the training time of all calls.
    """

    loss_curve: list[float]
    steps: int
    pairs: int
    seconds: float
    resumed_from: int | None
    model_dir: Path
    training_digest: str


def train(
    base_path: str | Path,
    prompt: Prompt,
    rounds: Sequence[Any],
    settings: "Training",
    out_dir: Path,
    progress: ProgressSink = silent,
    device: str = "auto",
    objective: Objective | None = None,
) -> TrainingResult:
    """Fine-tune `base_path` on `rounds`; leaves `out_dir/model` (safetensors, fp32, tokenizer; LoRA merged).

    `rounds` are `TrainingRound`s, or the examples of another `objective` than the label-only loss.

    `out_dir` belongs to this training: called again with the same input after a kill it goes on from the last whole
    checkpoint and ends with the same weights; called again after the end it returns at once; what another training
    left in it is removed. Raises ModelRefused for dropout or a model that cannot be packed, SourceError without
    rounds, LabelerError when the loss stops being a number. Seeds torch's global generators.
    """
    if not rounds:
        raise SourceError("no training rounds: the train split has no pairs; look at the references and the splits")
    device = resolve_device(device)
    precision = resolve_precision(settings.precision, device)
    objective = objective or label_objective(prompt)
    digest = training_digest(base_path, prompt, rounds, settings, precision, objective)
    state = TrainingState(out_dir, digest)
    done = state.finished()
    if done is not None:
        return TrainingResult(**done, resumed_from=None, model_dir=state.model_dir, training_digest=digest)
    with _no_progress_bars():
        return _train(base_path, rounds, settings, state, progress, device, precision, objective)


def _train(
    base_path: str | Path,
    rounds: Sequence[Any],
    settings: "Training",
    state: TrainingState,
    progress: ProgressSink,
    device: str,
    precision: str,
    objective: Objective,
) -> TrainingResult:
    resumable = state.begin()
    keep_freed_memory()
    set_seed(settings.seed)  # LoRA's matrices are drawn here, before the Trainer seeds anything
    model = trainable_model(base_path, settings, device, objective.attention)
    trainer = objective.trainer(
        model=model,
        args=_arguments(settings, state.checkpoints, len(rounds), device),
        train_dataset=list(rounds),
        data_collator=objective.collate,
        precision=precision,
        lanes=_lanes(settings, device),
    )
    pairs_total = round(sum(map(objective.pairs, rounds)) * settings.epochs)
    keeper = _Keeper(trainer, state, progress, pairs_total, resumable)
    trainer.add_callback(keeper)
    trainer.train(resume_from_checkpoint=str(resumable.path) if resumable else None)
    curve = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    result: dict[str, Any] = {
        "loss_curve": curve,
        "steps": trainer.state.global_step,
        "pairs": keeper.pairs,
        "seconds": keeper.seconds,
    }
    state.finish(_save(trainer.model, base_path, state.directory / "model.new"), result)
    resumed_from = resumable.step if resumable else None
    return TrainingResult(**result, resumed_from=resumed_from, model_dir=state.model_dir, training_digest=state.digest)


@contextmanager
def _no_progress_bars() -> Iterator[None]:
    # transformers draws bars of its own for every file it loads or saves; progress is ours to tell.
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def training_digest(
    base_path: str | Path,
    prompt: Prompt,
    rounds: Sequence[Any],
    settings: "Training",
    precision: str,
    objective: Objective | None = None,
) -> str:
    """The identity of a training: base weights, answer tokens, rounds, everything that steers the optimiser."""
    steering = settings.model_dump(include=_STEERING)
    objective = objective or label_objective(prompt)
    # The labeler's own objective is not named: the digests of trainings from before there was another one stay.
    named = {} if objective.name == "labels" else {"objective": objective.name}
    return digest_of(
        named
        | {
            "training_code_version": TRAINING_CODE_VERSION,
            "base": base_identity(base_path),
            "answer_ids": [prompt.yes_id, prompt.no_id],
            "rounds": objective.digest(rounds),
            "settings": steering,
            "precision": precision,
        }
    )


def trainable_model(
    base_path: str | Path, settings: "Training", device: str, attention: str = SPLIT
) -> "PreTrainedModel | PeftModel":
    """The base model in fp32 under a differentiable attention, with LoRA's matrices (peft) when asked for.

    Raises ModelRefused when anything in it is random while training: one dropout mask over a packed round is not the
    masks its single prompts would get.
    """
    model: PreTrainedModel | PeftModel = load_model(base_path, "fp32", device, attention, TRAINING)
    _refuse_dropout(base_path, model)
    if settings.method == "lora":
        from peft import LoraConfig, get_peft_model

        config = LoraConfig(
            r=settings.lora_rank,
            lora_alpha=settings.lora_alpha,  # type: ignore[arg-type]  # a scale; any number will do
            lora_dropout=0.0,
            bias="none",
            target_modules="all-linear",
            task_type="CAUSAL_LM",
        )
        model = get_peft_model(model, config)
        _refuse_dropout(base_path, model)
    enable_training_safety(model)
    return model


def _refuse_dropout(base_path: str | Path, model: Any) -> None:
    settings = model.config.get_text_config().to_dict()
    found = {
        name: value
        for name, value in settings.items()
        if "drop" in name and isinstance(value, int | float) and not isinstance(value, bool) and value > 0
    }
    found |= {
        name: module.p
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.modules.dropout._DropoutNd) and module.p > 0
    }
    if found:
        name, value = next(iter(found.items()))
        raise ModelRefused(
            f"{base_path}: {name} = {value:g}; training on packed rounds needs every dropout at 0: "
            "set it to 0 in the base model's config.json"
        )


class _Keeper(TrainerCallback):
    """Reports every step, marks whole checkpoints, and stops a training whose loss is no number."""

    def __init__(
        self,
        trainer: StepTrainer,
        state: TrainingState,
        progress: ProgressSink,
        pairs_total: int,
        resumable: Resumable | None,
    ) -> None:
        self._trainer = trainer
        self._state = state
        self._progress = progress
        self._pairs_total = pairs_total
        self._earlier = resumable.seconds if resumable else 0.0
        self._started = time.monotonic()
        self.pairs = resumable.pairs if resumable else 0

    @property
    def seconds(self) -> float:
        """Training time of this call and of the calls it goes on from."""
        return self._earlier + time.monotonic() - self._started

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.pairs += self._trainer.items_of_step
        self._progress(Progress("training", self.pairs, max(self._pairs_total, self.pairs), "pairs"))
        if state.global_step >= state.max_steps:
            control.should_save = (
                False  # the model itself is saved next; a last checkpoint would be gigabytes for nothing
            )

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._state.keep_only(state.global_step, self.pairs, self.seconds)

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **_: Any) -> None:
        loss = (logs or {}).get("loss", 0.0)
        if not math.isfinite(loss):
            raise LabelerError(
                f"training: the loss is {loss} at step {state.global_step}; lower [training] learning_rate "
                f"(now {args.learning_rate:g}) or raise warmup_fraction"
            )


def _lanes(settings: "Training", device: str) -> int:
    # Every lane holds gradients and a round's activations: more than two only for whoever asks for them.
    return (settings.lanes or min(2, torch.get_num_threads())) if device == "cpu" else 1


def _arguments(settings: "Training", directory: Path, rounds: int, device: str) -> TrainingArguments:
    steps = math.ceil(math.ceil(rounds / settings.rounds_per_step) * settings.epochs)
    arguments = TrainingArguments(
        output_dir=str(directory),
        per_device_train_batch_size=1,
        gradient_accumulation_steps=settings.rounds_per_step,
        num_train_epochs=settings.epochs,
        learning_rate=settings.learning_rate,
        weight_decay=settings.weight_decay,
        warmup_steps=math.ceil(settings.warmup_fraction * steps),
        max_grad_norm=_MAX_GRADIENT_NORM,
        optim="adamw_torch_fused",
        logging_steps=1,
        logging_nan_inf_filter=False,
        save_steps=settings.save_every_steps,
        report_to="none",
        disable_tqdm=True,
        remove_unused_columns=False,
        dataloader_pin_memory=device.startswith("cuda"),
        use_cpu=device == "cpu",
        seed=settings.seed,
        data_seed=settings.seed,
    )
    # A layout cannot be scattered over several GPUs; one is what there is to use.
    arguments._n_gpu = min(arguments.n_gpu, 1)
    return arguments


def _save(model: Any, base_path: str | Path, directory: Path) -> Path:
    if directory.exists():
        shutil.rmtree(directory)
    merged = model.merge_and_unload() if hasattr(model, "merge_and_unload") else model
    merged.save_pretrained(directory)
    load_tokenizer(base_path).save_pretrained(directory)
    return directory
