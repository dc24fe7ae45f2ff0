"""`semlabel bench data-efficiency`, `ablations` and `formats`: the experiments that train models.

Only turns options into a plan; what is trained and how it is judged is in `semlabel.bench.experiments`.
"""

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from semlabel.cli.common import DEFAULT_CONFIG, ConfigOption, JsonOption, operations_of, project, say, show, show_json

if TYPE_CHECKING:
    from semlabel.bench.experiments.problem import Problem
    from semlabel.progress import Progress
    from semlabel.settings import Settings

OUT = Path("benchmarks/results")
ABLATIONS = Path("benchmarks/ablations.toml")
FORMATS = Path("benchmarks/formats.toml")
_LINE_SECONDS = 30.0

OutOption = Annotated[Path, typer.Option("--out", help="The folder to write to.", metavar="DIR")]
QuickOption = Annotated[bool, typer.Option("--quick", help="Minutes instead of hours: a smoke run, not evidence.")]
SeedsOption = Annotated[list[int] | None, typer.Option("--seed", min=0, help="A seed; may be repeated.")]
CalibrateOption = Annotated[int | None, typer.Option("--calibrate", min=1, help="Entities to choose cuts on.")]
TestOption = Annotated[int | None, typer.Option("--test", min=2, help="Entities to judge by.")]
QueryOption = Annotated[int | None, typer.Option("--query-tokens", min=16, help="Longer entities are cut.")]
CandidatesOption = Annotated[int | None, typer.Option("--candidates", min=2, help="Candidates to judge with.")]
ThreadsOption = Annotated[int, typer.Option("--threads", min=0, help="0: as set for scoring, else torch's choice.")]
OnlyOption = Annotated[list[str] | None, typer.Option("--only", help="A variant's name; may be repeated; else all.")]


def register(app: typer.Typer) -> None:
    """Add the commands to the group `bench`."""
    app.command("data-efficiency", short_help="Quality against training pairs, scoring and generation.")(
        data_efficiency
    )
    app.command("ablations", short_help="Variants of the recipe at equal pairs.")(ablations)
    app.command("formats", short_help="Chat against readout: tokens, labels/s, quality.")(formats)


def data_efficiency(
    config: ConfigOption = DEFAULT_CONFIG,
    out: OutOption = OUT,
    quick: QuickOption = False,
    sizes: Annotated[list[int] | None, typer.Option("--pairs", min=1, help="A size; may be repeated.")] = None,
    rates: Annotated[list[float] | None, typer.Option("--rate", help="A learning rate; may be repeated.")] = None,
    seeds: SeedsOption = None,
    calibrate: CalibrateOption = None,
    test: TestOption = None,
    query_tokens: QueryOption = None,
    candidates: CandidatesOption = None,
    keep: Annotated[
        Path | None,
        typer.Option("--keep-models", help="A folder for the models of the largest size.", metavar="DIR"),
    ] = None,
    threads: ThreadsOption = 0,
    json: JsonOption = False,
) -> None:
    """Train semantic scoring and packed generation on the same pairs, in several sizes, and compare their quality.

    Every training is kept when it is done: called again after an interruption it goes on where it stopped.

    \b
    Example:
      semlabel bench data-efficiency --config demo/pipeline.toml --quick --out /tmp/bench
    """
    settings = _settings(config, threads)
    from semlabel.bench.experiments.data_efficiency import NAME, Plan, run

    plan = Plan.quick() if quick else Plan()
    if sizes:
        plan = replace(plan, sizes=tuple(sorted(set(sizes))))
    if rates:
        plan = replace(plan, learning_rates=tuple(dict.fromkeys(rates)))
    plan = replace(plan, **_given(seeds, calibrate, test, query_tokens, candidates))
    problem = _problem(settings, plan.overrides(), plan.calibrate, plan.test)
    _told(run(problem, plan, out, _Listener(), keep), out, NAME, json)


def ablations(
    config: ConfigOption = DEFAULT_CONFIG,
    out: OutOption = OUT,
    quick: QuickOption = False,
    variants: Annotated[Path, typer.Option("--variants", help="The variants.", metavar="FILE")] = ABLATIONS,
    only: OnlyOption = None,
    pairs: Annotated[int | None, typer.Option("--pairs", min=1, help="Training pairs of each.")] = None,
    seeds: SeedsOption = None,
    calibrate: CalibrateOption = None,
    test: TestOption = None,
    query_tokens: QueryOption = None,
    candidates: CandidatesOption = None,
    name: Annotated[str, typer.Option("--name", help="What the files are called.")] = "ablations",
    threads: ThreadsOption = 0,
    json: JsonOption = False,
) -> None:
    """Train variants of the recipe (or none, or a baseline) on equally many pairs and judge them alike.

    Every variant is kept when it is done: called again after an interruption it goes on where it stopped.

    \b
    Example:
      semlabel bench ablations --config demo/pipeline.toml --only recipe --only LoRA --quick --out /tmp/bench
    """
    settings = _settings(config, threads)
    from semlabel.bench.experiments.ablations import Plan, run
    from semlabel.bench.experiments.variants import read_variants

    read = read_variants(variants, only or ())
    asked = _given(seeds, calibrate, test, query_tokens, candidates) | ({"pairs": pairs} if pairs else {})
    plan = replace(Plan.quick() if quick else Plan(), **asked)
    problem = _problem(settings, plan.overrides(), plan.calibrate, plan.test, read.recipe)
    _told(run(problem, read.variants, plan, out, name, _Listener()), out, name, json)


def formats(
    config: ConfigOption = DEFAULT_CONFIG,
    out: OutOption = OUT,
    quick: QuickOption = False,
    variants: Annotated[Path, typer.Option("--variants", help="The variants.", metavar="FILE")] = FORMATS,
    pairs: Annotated[int | None, typer.Option("--pairs", min=1, help="Training pairs of each.")] = None,
    seeds: SeedsOption = None,
    calibrate: CalibrateOption = None,
    test: TestOption = None,
    query_tokens: QueryOption = None,
    candidates: CandidatesOption = None,
    threads: ThreadsOption = 0,
    json: JsonOption = False,
) -> None:
    """Train the same recipe in both item formats and compare tokens, speed and quality.

    \b
    Example:
      semlabel bench formats --config demo/pipeline.toml --quick --out /tmp/bench
    """
    held_out = (calibrate, test, query_tokens, candidates)
    ablations(config, out, quick, variants, None, pairs, seeds, *held_out, "formats", threads, json)


def _given(
    seeds: list[int] | None, calibrate: int | None, test: int | None, query_tokens: int | None, candidates: int | None
) -> dict[str, Any]:
    """What was asked for of a plan's fields."""
    asked = {"calibrate": calibrate, "test": test, "query_tokens": query_tokens, "catalog_top": candidates}
    chosen: dict[str, Any] = {name: value for name, value in asked.items() if value is not None}
    return chosen | ({"seeds": tuple(dict.fromkeys(seeds))} if seeds else {})


def _settings(config: Path, threads: int) -> "Settings":
    """The project's settings; one thread count for everything in this process."""
    settings = project(config)
    import torch
    from transformers.utils import logging

    logging.disable_progress_bar()  # it would stand between the lines of stderr
    torch.set_num_threads(threads or settings.scoring.threads or torch.get_num_threads())
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    return settings


def _problem(
    settings: "Settings", overrides: dict[str, Any], calibrate: int, test: int, recipe: dict[str, Any] | None = None
) -> "Problem":
    from semlabel.bench.experiments.problem import load_problem, overridden

    operations = operations_of(settings)
    erased = operations.erased_ids() if operations is not None else frozenset()
    return load_problem(overridden(settings, recipe or {}, overrides), calibrate, test, erased)


class _Listener:
    """A line for every stage, and one now and then while it lasts."""

    def __init__(self) -> None:
        self._stage, self._said = "", 0.0

    def __call__(self, progress: "Progress") -> None:
        now = time.monotonic()
        if progress.stage == self._stage and now - self._said < _LINE_SECONDS and progress.done != progress.total:
            return
        self._stage, self._said = progress.stage, now
        say(progress.stage + (f": {progress.done} of {progress.total} {progress.unit}" if progress.total else ""))


def _told(document: dict[str, Any], out: Path, name: str, json: bool) -> None:
    for entry in document["missing"]:
        say("not measured: " + ", ".join(f"{key} {value}" for key, value in entry.items()))
    if json:
        show_json(document)
    else:
        show((out / f"{name}.md").read_text(encoding="utf-8"))
        show(f"{out / name}.json, .md and .png")
