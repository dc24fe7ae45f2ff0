"""What int8 would give: speed over bf16, and what it does to labels, for every variant of `int8_layers`.

One process: the parts of a layer are timed at the model's shapes with one thread, all variants are timed in turn at
170 query tokens and 200 items of 8, and each scores the project's test split, held against fp32 at the labeler's
threshold. Run `PYTHONPATH=. .venv/bin/python benchmarks/int8.py --labeler demo/run/labelers/current --config
demo/pipeline.toml --out benchmarks/results/int8.json` after `make demo`; `--quick` is a smoke run, not evidence.
"""

import argparse
import json
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.functional import silu

from benchmarks.int8_layers import Int8Weight, Variant, per_token, rewrite, with_step
from semlabel.attention import SPLIT
from semlabel.bench.environment import environment
from semlabel.bench.gemm import linear_shapes
from semlabel.bench.methods import Mis
from semlabel.bench.output import markdown_table
from semlabel.bench.subject import Subject, subject_of
from semlabel.bench.tasks import Shape, random_tasks, text_ids
from semlabel.bench.tuning import timed
from semlabel.errors import PromptError, SemlabelError
from semlabel.heap import keep_freed_memory
from semlabel.linear_layers import packed_product, packed_weight, serve_linear_layers
from semlabel.metrics import label_flips, quality_draws
from semlabel.models import DTYPES, load_model
from semlabel.pairs import cross_product_labels
from semlabel.prompt import Prompt, load_tokenizer
from semlabel.reading import reading
from semlabel.scorer import Scorer
from semlabel.settings import Settings, load_settings

ALL = ("qkv", "o", "gate_up", "down")
VARIANTS = (
    Variant("dynamic", ALL),
    Variant("token", ALL),
    Variant("token"),
    Variant("token", basis="smoothed"),
    Variant("token", basis="rotated"),
    Variant("static", basis="smoothed"),
    Variant("static", basis="rotated"),
    Variant("static", ALL, "rotated"),
    Variant("token", ALL, "rotated"),
    Variant("token", basis="rotated", ends=5),
    Variant("token", ("gate_up",), "rotated"),
    Variant("token", basis="rotated", every=10),
)
SHAPE, ITEMS, QUERIES = Shape(170, 8), 200, 2
WHOLE = ("fp32", "bf16")

Work = list[tuple[Sequence[int], Sequence[Sequence[int]]]]


@dataclass(frozen=True)
class Plan:
    """How much is measured. `entities` of the test split, 0 for all; `rows` of a product, as one lane has them."""

    repetitions: int = 5
    entities: int = 0
    calibrate_entities: int = 20
    calibrate_items: int = 20
    rows: tuple[int, ...] = (885, 1770)
    variants: tuple[Variant, ...] = VARIANTS

    @classmethod
    def quick(cls) -> "Plan":
        """Minutes: few entities, three variants, one number of rows."""
        return cls(2, 2, 2, 5, (64,), (VARIANTS[0], VARIANTS[1], VARIANTS[-1]))


@dataclass(frozen=True)
class Texts:
    """The test split: entity texts, the catalog, and of every judged pair its row, column and label."""

    entity_ids: list[str]
    entities: list[str]
    calibrate: list[str]
    candidates: list[str]
    rows: np.ndarray
    columns: np.ndarray
    labels: np.ndarray


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--labeler", required=True)
    parser.add_argument("--config", type=Path, default=Path("demo/pipeline.toml"))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--entities", type=int, default=0, help="of the test split; 0 is all")
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args(arguments)
    plan = Plan.quick() if given.quick else Plan(entities=given.entities)
    warnings.filterwarnings("ignore", message=".*quantize_per_channel.*")
    torch.set_num_threads(given.threads)
    keep_freed_memory()
    settings = load_settings(given.config)

    def save(document: dict[str, Any]) -> None:
        given.out.write_text(json.dumps(document, indent=1) + "\n")

    try:
        subject = subject_of(given.labeler, settings)
        document = measure(subject, texts_of(settings, plan), plan, save)
    except SemlabelError as error:
        sys.exit(str(error))
    print(table(document["cells"]))


def texts_of(settings: Settings, plan: Plan) -> Texts:
    """The test split of a project's warehouse. Raises SemlabelError where no run has filled it."""
    if not settings.paths.warehouse.exists():
        raise SemlabelError(f"{settings.paths.warehouse}: not there yet; run `make demo` first")
    with reading(settings, "bench") as warehouse:
        entities, catalog = warehouse.entities(), warehouse.catalog()
        references, undecided = warehouse.reference_labels(), warehouse.undecided_pairs()
    pairs = cross_product_labels(entities, catalog, references, "test", settings.sources.unlisted, undecided)
    ids = list(dict.fromkeys(pairs["entity_id"]))[: plan.entities or None]
    pairs = pairs[pairs["entity_id"].isin(ids)]
    row, column = ({name: place for place, name in enumerate(names)} for names in (ids, catalog["candidate_id"]))
    text = dict(zip(entities["entity_id"], entities["text"], strict=True))
    return Texts(
        entity_ids=ids,
        entities=[text[entity_id] for entity_id in ids],
        calibrate=list(entities["text"][entities["split"] == "calibrate"])[: plan.calibrate_entities],
        candidates=list(catalog["text"]),
        rows=pairs["entity_id"].map(row).to_numpy(dtype=np.intp),
        columns=pairs["candidate_id"].map(column).to_numpy(dtype=np.intp),
        labels=pairs["label"].to_numpy(dtype=bool),
    )


def measure(
    subject: Subject, texts: Texts, plan: Plan, save: Callable[[dict[str, Any]], None] = lambda _: None
) -> dict[str, Any]:
    """The whole document; `save` is given what there is of it after every step. Raises SemlabelError."""
    if subject.threshold is None:
        raise SemlabelError(f"{subject.path}: no threshold, so no labels to compare; give a certified labeler")
    document: dict[str, Any] = {
        "environment": environment(),
        "labeler": subject.digest,
        "threshold": subject.threshold,
        "entities": len(texts.entity_ids),
        "pairs": len(texts.labels),
        "positives": int(texts.labels.sum()),
        "repetitions": plan.repetitions,
        "shape": SHAPE.name,
        "items": ITEMS,
        "parts": part_times(subject, plan),
        "cells": [],
        "complete": False,
    }
    save(document)
    variants: dict[str, Variant | None] = dict.fromkeys(WHOLE) | {variant.name: variant for variant in plan.variants}
    scorers = {name: scorer_of(subject, texts, plan, name, variant) for name, variant in variants.items()}
    seconds = speeds({name: scorer for name, scorer in scorers.items() if name != "fp32"}, plan)
    exact: np.ndarray | None = None
    for name, scorer in scorers.items():
        say(f"labels of {name}")
        margins = margins_of(scorer, texts)
        exact = margins if exact is None else exact
        document["cells"].append(
            {"variant": name, **speed(name, seconds), **quality(texts, margins, exact, subject.threshold)}
        )
        save(document)
    document["complete"] = True
    save(document)
    return document


def say(line: str) -> None:
    """Progress, on the standard error."""
    print(f"{time.strftime('%H:%M:%S')} {line}", file=sys.stderr, flush=True)


def scorer_of(subject: Subject, texts: Texts, plan: Plan, name: str, variant: Variant | None) -> Scorer:
    """The scorer that `Scorer.load` would give, with int8 layers in the place of some others."""
    say(f"loading {name}")
    tokenizer = load_tokenizer(subject.path)
    prompt = Prompt(subject.spec, tokenizer)
    precision = name if variant is None else "bf16"
    model = load_model(subject.path, "fp32", "cpu", SPLIT)
    if variant is not None:
        before = Scorer(model, tokenizer, prompt, precision=precision, lanes=1)
        items = prompt.items(texts.candidates[: plan.calibrate_items])
        work: Work = [(query.ids, items) for query in prompt.queries(texts.calibrate)]
        rewrite(model, variant, lambda: list(before.margins_of(work)))
    serve_linear_layers(model.base_model, DTYPES[precision])
    return Scorer(model, tokenizer, prompt, precision=precision)


def part_times(subject: Subject, plan: Plan) -> list[dict[str, Any]]:
    """Milliseconds of each step of a linear layer, at the model's own shapes, with the one thread of a lane."""
    shapes = linear_shapes(load_model(subject.path, "fp32", "cpu"))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    cells = []
    with torch.inference_mode():
        for rows in plan.rows:
            for inner, outer in shapes:
                say(f"parts of {rows} x {inner} x {outer}")
                times = interleaved(_steps(rows, inner, outer), plan.repetitions)
                milliseconds = {name: 1000 * statistics.median(found) for name, found in times.items()}
                cells.append({"rows": rows, "in": inner, "out": outer, "milliseconds": milliseconds})
    torch.set_num_threads(threads)
    return cells


def _steps(rows: int, inner: int, outer: int) -> dict[str, Callable[[], object]]:
    layer, states = torch.nn.Linear(inner, outer, bias=False), torch.randn(rows, inner)
    weight, half = Int8Weight(layer), states.bfloat16()
    packed = packed_weight(layer.weight.detach().bfloat16())
    values, step = per_token(states)
    signed = (values ^ 128).view(torch.int8)
    turned = (layer.weight.detach() / weight.steps[:, None]).round().to(torch.int8).T.contiguous()
    found, sums = weight.product(values), torch._int_mm(signed, turned)
    return {
        "bf16: cast": states.bfloat16,
        "bf16: product": lambda: (
            half @ layer.weight.detach().bfloat16().T if packed is None else packed_product(half, packed)
        ),
        "quantise, a step a token": lambda: per_token(states),
        "quantise, one step": lambda: with_step(states, 0.03),
        "int8 product, fp32 out": lambda: weight.product(values),
        "int8 product, bf16 out": lambda: weight.product(values, 0.03, dtype=torch.bfloat16),
        "int8 product with silu, bf16 out": lambda: weight.product(values, 0.03, "swish", torch.bfloat16),
        "scale": lambda: (found * step).bfloat16(),
        "silu and product": lambda: silu(found).mul_(found),
        "_int_mm": lambda: torch._int_mm(signed, turned),
        "_int_mm: scale": lambda: (sums * weight.steps).mul_(step).bfloat16(),
    }


def interleaved(calls: dict[str, Callable[[], object]], repetitions: int) -> dict[str, list[float]]:
    """Seconds of every call, all of them once before any of them again; the first time does not count."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    names = list(calls)
    for repetition in range(-1, repetitions):
        turn = repetition % len(names)  # nobody is always the one after the heaviest
        for name in [*names[turn:], *names[:turn]]:
            started = time.perf_counter()
            calls[name]()
            if repetition >= 0:
                times[name].append(time.perf_counter() - started)
    return times


def speeds(scorers: dict[str, Scorer], plan: Plan) -> dict[str, list[float]]:
    """Seconds of two queries with 200 items each, one a lane."""
    model, prompt = scorers["bf16"].model, scorers["bf16"].prompt
    embeddings: Any = model.get_input_embeddings()
    words = text_ids(scorers["bf16"].tokenizer, int(embeddings.num_embeddings))
    tasks = random_tasks(SHAPE, ITEMS, QUERIES, words, prompt.item("a")[-1])
    setting = {"items_per_round": ITEMS, "lanes": QUERIES}
    say(f"timing {len(scorers)} variants, {plan.repetitions} times")

    def call(method: Mis) -> Callable[[], object]:
        return lambda: timed(method, tasks, setting)

    return interleaved({name: call(Mis(scorer)) for name, scorer in scorers.items()}, plan.repetitions)


def speed(name: str, seconds: dict[str, list[float]]) -> dict[str, Any]:
    """Labels/s, and the median of each repetition's ratio to bf16."""
    if name not in seconds:
        return {"labels_per_s": None, "over_bf16": None, "seconds": None}
    ratios = [base / own for base, own in zip(seconds["bf16"], seconds[name], strict=True)]
    rate = QUERIES * ITEMS / statistics.median(seconds[name])
    return {"labels_per_s": rate, "over_bf16": statistics.median(ratios), "seconds": seconds[name]}


def margins_of(scorer: Scorer, texts: Texts) -> np.ndarray:
    """Margins of the judged pairs."""
    items = scorer.prompt.items(texts.candidates)
    table = np.empty((len(texts.entities), len(items)), dtype=np.float32)
    for number, found in scorer.margins_of([(query.ids, items) for query in scorer.prompt.queries(texts.entities)]):
        if isinstance(found, PromptError):
            raise found
        table[number] = found
    return table[texts.rows, texts.columns]


def quality(texts: Texts, margins: np.ndarray, exact: np.ndarray, threshold: float) -> dict[str, float | None]:
    """The distance from fp32's margins and labels, and average precision."""
    flips, apart = label_flips(exact, margins, threshold), np.abs(margins - exact)
    ids = np.array(texts.entity_ids)[texts.rows]
    return {
        "max_margin_diff": float(apart.max()),
        "mean_margin_diff": float(apart.mean()),
        "label_flips": flips.flips,
        "label_flip_share": flips.flips / flips.pairs,
        "yes_either": flips.yes_either,
        "label_flip_share_of_yes": flips.share_of_yes if flips.yes_either else None,
        "average_precision": float(quality_draws(ids, texts.labels, margins, resamples=0)["average_precision"][0]),
    }


def table(cells: Sequence[dict[str, Any]]) -> str:
    """One line a variant, in Markdown."""
    headers = ["variant", "labels/s", "over bf16", "margins differ, mean", "most", "flips of YES", "average precision"]

    def shown(value: float | None, form: str) -> str:
        return "" if value is None else format(value, form)

    rows = [
        [
            cell["variant"],
            shown(cell["labels_per_s"], ".0f"),
            shown(cell["over_bf16"], ".2f"),
            shown(cell["mean_margin_diff"], ".3f"),
            shown(cell["max_margin_diff"], ".2f"),
            shown(cell["label_flip_share_of_yes"], ".1%"),
            shown(cell["average_precision"], ".3f"),
        ]
        for cell in cells
    ]
    return markdown_table(headers, rows)


if __name__ == "__main__":
    main()
