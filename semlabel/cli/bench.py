"""`semlabel bench`: measurements that anybody can run again, each written as NAME.json, NAME.md and NAME.png.

Only turns options into a plan; what is measured and how is in `semlabel.bench`.
"""

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from semlabel.cli import experiments
from semlabel.cli.common import DEFAULT_CONFIG, ConfigOption, JsonOption, project, say, show, show_json
from semlabel.cli.compare import compare
from semlabel.errors import SettingsError

if TYPE_CHECKING:
    from semlabel.bench.order_data import Texts
    from semlabel.bench.subject import Subject
    from semlabel.progress import Progress
    from semlabel.settings import Settings

OutOption = Annotated[Path, typer.Option("--out", help="The folder to write to.", metavar="DIR")]
QuickOption = Annotated[bool, typer.Option("--quick", help="Minutes instead of hours: a smoke run, not evidence.")]
ModelOption = Annotated[
    str | None,
    typer.Option("--model", help="A labeler or model directory; else the promoted labeler, else the base model."),
]
DeviceOption = Annotated[str, typer.Option("--device", help="auto, cpu or cuda.")]
ThreadsOption = Annotated[int, typer.Option("--threads", min=0, help="0: as set for scoring, else torch's choice.")]
PrecisionOption = Annotated[
    list[str] | None, typer.Option("--precision", help="fp32, bf16 or int8; may be repeated; else all.")
]
SyntheticOption = Annotated[bool, typer.Option("--synthetic", help="Random words instead of the warehouse.")]
GeneratorOption = Annotated[
    str | None, typer.Option("--generator", help="A model trained to write answer lists; else the same model.")
]
OUT = Path("benchmarks/results")
PRECISIONS = ("fp32", "bf16", "int8")


def build() -> typer.Typer:
    """The group `bench` with its commands."""
    app = typer.Typer(
        help="Measure speed and exactness; each benchmark writes JSON, Markdown and a plot.",
        epilog="\b\nExample:\n  semlabel bench throughput --quick --out /tmp/bench",
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
    )
    app.callback(invoke_without_command=True)(_top)
    app.command("throughput", short_help="Labels per second of every method, with its exactness.")(throughput)
    app.command("order", short_help="Decisions that change when candidates are reordered.")(order)
    app.command("serving", short_help="The rate a server keeps up with: packed scoring and packed generation.")(serving)
    app.command("coupling", short_help="Answers that change when another candidate is replaced by noise.")(coupling)
    app.command("refresh", short_help="What a night costs in the store, without any model.")(refresh)
    app.command("compare", short_help="Two machines' or backends' labels of the same pairs.")(compare)
    experiments.register(app)
    return app


def _top(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        show(context.get_help())


def throughput(
    config: ConfigOption = DEFAULT_CONFIG,
    model: ModelOption = None,
    out: OutOption = OUT,
    quick: QuickOption = False,
    precision: PrecisionOption = None,
    items: Annotated[list[int] | None, typer.Option("--items", min=1, help="An N; may be repeated.")] = None,
    shape: Annotated[
        list[str] | None, typer.Option("--shape", help="Query tokens x item tokens; may be repeated.", metavar="QxI")
    ] = None,
    method: Annotated[
        list[str] | None, typer.Option("--method", help="Only this method; may be repeated; peers are apart.")
    ] = None,
    repetitions: Annotated[int, typer.Option("--repetitions", min=5, help="Timed calls of every cell.")] = 5,
    peers: Annotated[bool, typer.Option("--peers", help="Also llama.cpp and OpenVINO (extra bench-peers).")] = False,
    gguf: Annotated[str | None, typer.Option("--gguf", help="The model for llama.cpp.", metavar="FILE")] = None,
    device: DeviceOption = "auto",
    threads: ThreadsOption = 0,
    json: JsonOption = False,
) -> None:
    """Time packed generation, single prompts, a prefix cache and packed scoring on the same random texts.

    Every method is tuned first; the machine's matrix-product rate is measured in the same run. Called again after an
    interruption it goes on where it stopped.

    \b
    Example:
      semlabel bench throughput --model run/labelers/current --quick --out /tmp/bench
    """
    subject, settings = _subject(model, config)
    _fix_threads(threads, settings)
    from semlabel.bench.tasks import Shape
    from semlabel.bench.throughput import METHODS, Plan
    from semlabel.bench.throughput_files import run

    plan = replace(Plan.quick() if quick else Plan(), repetitions=repetitions, peers=peers, gguf=gguf)
    if items:
        plan = replace(plan, items=tuple(sorted(set(items))))
    if shape:
        plan = replace(plan, shapes=tuple(Shape.parse(written) for written in dict.fromkeys(shape)))
    if precision:
        plan = replace(plan, precisions=_known("--precision", precision, PRECISIONS))
    if method:
        plan = replace(plan, methods=_known("--method", method, METHODS))
    _told(run(subject, plan, out, device, _progress), out, "throughput", json)


def order(
    config: ConfigOption = DEFAULT_CONFIG,
    model: ModelOption = None,
    out: OutOption = OUT,
    quick: QuickOption = False,
    synthetic: SyntheticOption = False,
    generator: GeneratorOption = None,
    precision: PrecisionOption = None,
    orders: Annotated[int | None, typer.Option("--orders", min=2, help="Orders of packed scoring.")] = None,
    device: DeviceOption = "auto",
    threads: ThreadsOption = 0,
    json: JsonOption = False,
) -> None:
    """Decide about the warehouse's entities with the candidates in other orders, and count what changes.

    Packed scoring in every precision; packed generation, free and held to a well-formed list, on fewer decisions.
    Called again after an interruption it goes on where it stopped.

    \b
    Example:
      semlabel bench order --config pipeline.toml --quick --out /tmp/bench
    """
    subject, texts = _about(model, config, synthetic, threads)
    from semlabel.bench.order import Plan, run

    plan = Plan.quick(generator) if quick else Plan(generator=generator)
    if orders is not None:
        plan = replace(plan, orders=orders)
    if precision:
        plan = replace(plan, precisions=_known("--precision", precision, PRECISIONS))
    _told(run(subject, plan, out, texts, device, _progress), out, "order", json)


def serving(
    config: ConfigOption = DEFAULT_CONFIG,
    model: Annotated[
        str | None, typer.Option("--model", help="A labeler directory; else the promoted labeler.", metavar="DIR")
    ] = None,
    out: OutOption = OUT,
    quick: QuickOption = False,
    items: Annotated[list[int] | None, typer.Option("--items", min=1, help="An N; may be repeated.")] = None,
    seconds: Annotated[float | None, typer.Option("--seconds", min=0.1, help="Measured seconds of a rate.")] = None,
    warm_up: Annotated[float | None, typer.Option("--warm-up", min=0.0, help="Seconds before that.")] = None,
    limit: Annotated[float, typer.Option("--limit", min=0.01, help="Seconds that the p99 may take.")] = 1.0,
    slack: Annotated[
        float,
        typer.Option("--slack", min=0.0, help="Or so many times what a request alone takes, where that is longer."),
    ] = 3.0,
    workers: Annotated[int, typer.Option("--workers", min=1, help="Front processes.")] = 1,
    device: DeviceOption = "auto",
    threads: ThreadsOption = 0,
    json: JsonOption = False,
) -> None:
    """Find the highest rate that `semlabel serve` keeps up with, for several N, and that of packed generation.

    Open-loop Poisson load over loopback; no query is sent twice. What fronts and transport take of a request is
    measured too. Called again after an interruption it goes on where it stopped.

    \b
    Example:
      semlabel bench serving --model run/labelers/current --quick --out /tmp/bench
    """
    from semlabel.cli.serve import needed_packages

    needed_packages()
    subject, settings = _subject(model, config)
    _fix_threads(threads, settings)
    from semlabel.bench.serving import Plan
    from semlabel.bench.serving_files import run

    plan = replace(Plan.quick() if quick else Plan(), limit_seconds=limit, slack=slack, workers=workers)
    plan = replace(
        plan,
        items=tuple(sorted(set(items))) if items else plan.items,
        seconds=plan.seconds if seconds is None else seconds,
        warm_up_seconds=plan.warm_up_seconds if warm_up is None else warm_up,
    )
    _told(run(subject, plan, out, device, _progress), out, "serving", json)


def coupling(
    config: ConfigOption = DEFAULT_CONFIG,
    model: ModelOption = None,
    out: OutOption = OUT,
    quick: QuickOption = False,
    synthetic: SyntheticOption = False,
    generator: GeneratorOption = None,
    precision: PrecisionOption = None,
    device: DeviceOption = "auto",
    threads: ThreadsOption = 0,
    json: JsonOption = False,
) -> None:
    """Replace one candidate of every 20 by noise and count the answers about the others that change.

    Packed scoring in every precision; packed generation, free and held to a well-formed list. Called again after an
    interruption it goes on where it stopped.

    \b
    Example:
      semlabel bench coupling --config pipeline.toml --quick --out /tmp/bench
    """
    subject, texts = _about(model, config, synthetic, threads)
    from semlabel.bench.coupling import Plan, run

    plan = Plan.quick(generator) if quick else Plan(generator=generator)
    if precision:
        plan = replace(plan, precisions=_known("--precision", precision, PRECISIONS))
    _told(run(subject, plan, out, texts, device, _progress), out, "coupling", json)


def refresh(
    out: OutOption = OUT,
    quick: QuickOption = False,
    large: Annotated[bool, typer.Option("--large", help="The largest size too: 100 million pairs.")] = False,
    churn: Annotated[bool, typer.Option("--churn", help="Only the nights of churn; writes refresh_churn.*")] = False,
    json: JsonOption = False,
) -> None:
    """Plan, commit, publish, purge and compact a synthetic warehouse of up to 20 million pairs, with made-up margins.

    \b
    Examples:
      semlabel bench refresh --quick --out /tmp/bench
      semlabel bench refresh --large
    """
    from semlabel.bench import refresh as benchmark
    from semlabel.bench.environment import environment
    from semlabel.bench.output import write

    name, options = ("refresh_churn", " --churn") if churn else ("refresh", "")
    # Before the hours: the commit is the one that is measured.
    surroundings, cells = environment(), []
    for cell in benchmark.month(quick) if churn else benchmark.study(quick=quick, large=large):
        cells.append(cell)
        say(" ".join(f"{key}={value}" for key, value in cell.items()))
    document = {"environment": surroundings, "quick": quick, "missing": [], "cells": cells}
    write(out, name, document, benchmark.table(cells, name, options), benchmark.figure(cells))
    _told(document, out, name, json)


def _about(model: str | None, config: Path, synthetic: bool, threads: int) -> "tuple[Subject, Texts | None]":
    """What decides, and about which texts of the warehouse (None: random words)."""
    subject, settings = _subject(model, config)
    if settings is None and not synthetic:
        raise SettingsError(f"{config}: not there, so there is no warehouse to read; give --config or --synthetic")
    _fix_threads(threads, settings)
    from semlabel.bench.order_data import warehouse_texts

    return subject, None if synthetic or settings is None else warehouse_texts(settings)


def _subject(model: str | None, config: Path) -> "tuple[Subject, Settings | None]":
    needed = model is None or config.exists() or config != DEFAULT_CONFIG
    settings = project(config) if needed else None
    from semlabel.bench.subject import subject_of

    return subject_of(model, settings), settings


def _known(option: str, given: list[str], known: tuple[str, ...]) -> tuple[str, ...]:
    for name in given:
        if name not in known:
            raise SettingsError(f"{option} {name} is not known; use {', '.join(known)}")
    return tuple(dict.fromkeys(given))


def _fix_threads(threads: int, settings: "Settings | None") -> None:
    """One thread count for everything in this process."""
    import torch
    from transformers.utils import logging

    logging.disable_progress_bar()  # it would stand between the lines of stderr
    wanted = threads or (settings.scoring.threads if settings is not None else 0) or torch.get_num_threads()
    torch.set_num_threads(wanted)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"


def _progress(progress: "Progress") -> None:
    say(progress.stage + (f": {progress.done} of {progress.total} {progress.unit}" if progress.total else ""))


def _told(document: dict[str, Any], out: Path, name: str, json: bool) -> None:
    for entry in document["missing"]:
        say(f"not measured: {entry['method']} {entry['precision']}: {entry['reason']}")
    if json:
        show_json(document)
    else:
        show((out / f"{name}.md").read_text(encoding="utf-8"))
        show(f"{out / name}.json, .md and .png")
