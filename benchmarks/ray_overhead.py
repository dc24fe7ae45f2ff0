"""What the Ray path costs against the local one on the same rounds, and what more actors or more threads give.

The rounds go through the pipeline's own functions. Rates are taken after start-up: from the first round that comes
back to the last one; start-up stands beside them. Run `PYTHONPATH=. .venv/bin/python benchmarks/ray_overhead.py
--out benchmarks/results/ray_overhead.json` after `make demo`; `--pairs 2000 --tiny` is a smoke run, no evidence.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import psutil
import torch

from semlabel import refresh
from semlabel.bench.environment import environment
from semlabel.distributed.catalog import SharedCatalog
from semlabel.distributed.config import MisConfig, Pool
from semlabel.distributed.plan_rounds import plan_scorer
from semlabel.distributed.runtime import RaySettings, ray_session, require_ray
from semlabel.distributed.score import load_scorer
from semlabel.operations import Operations
from semlabel.prompt import Prompt, PromptSpec, load_tokenizer
from semlabel.round_stream import Round, ScoreRounds, WantedRound
from semlabel.settings import load_settings
from semlabel.sources import read_catalog, read_entities
from semlabel.warehouse import Warehouse

SHAPES = {"ray 1 actor x 1 thread": (1, 1), "ray 2 actors x 1 thread": (2, 1), "ray 1 actor x 2 threads": (1, 2)}
CATALOGS = (500, 10_000, 100_000)
BATCHES = (1, 8, 40)
BATCH_ROUNDS = 2  # with 100 rounds no batch is more than a fiftieth of the work, as the planner has it


def work(arguments: argparse.Namespace) -> tuple[str, PromptSpec, list[str], list[str]]:
    """The model, the prompt, entity texts and candidate texts."""
    if arguments.tiny:
        from tests.tiny import save_tiny

        spec = PromptSpec("Profile: {entity}\nActivity: {candidate}", max_query_tokens=96)
        model = str(save_tiny(Path(tempfile.mkdtemp()) / "model"))
        return model, spec, [f"plans work {n}" for n in range(500)], [f"keep records {n}" for n in range(200)]
    settings = load_settings(arguments.config)
    texts = [list(read(settings).frame["text"]) for read in (read_entities, read_catalog)]
    return arguments.model or settings.model.base, PromptSpec.from_settings(settings.prompt), *texts


def rounds(entities: list[str], candidates: list[str], pairs: int, items: int) -> list[WantedRound]:
    """Rounds of `items` candidates, `pairs` pairs in all, in batches of `BATCH_ROUNDS` as a plan makes them."""
    block = candidates[:items]
    keys = list(range(len(block)))
    count = max(1, pairs // len(block))
    return [
        WantedRound(Round(n, 0), entities[n % len(entities)], keys, block, batch=n // BATCH_ROUNDS)
        for n in range(count)
    ]


def timed(score_rounds: ScoreRounds, wanted: list[WantedRound]) -> tuple[dict[str, float], dict[int, np.ndarray]]:
    """Labels per second after the first round, start-up, and the margins by round."""
    started = time.perf_counter()
    found, marks, pairs = {}, [], []
    for entry, margins in score_rounds(wanted):
        assert isinstance(margins, np.ndarray)
        found[entry.text_key] = margins
        marks.append(time.perf_counter())
        pairs.append(len(margins))
    if len(found) != len(wanted):
        raise SystemExit(f"{len(found)} of {len(wanted)} rounds came back")
    # Rounds come back by blocks: what came with the first block was scored before the clock started.
    first = next((n for n, mark in enumerate(marks) if mark - marks[0] > 0.02), len(marks) - 1)
    seconds = marks[-1] - marks[first - 1] if first else marks[-1] - started
    rate = sum(pairs[first:]) / seconds
    return {"labels_per_s": rate, "startup_s": marks[0] - started, "wall_s": marks[-1] - started}, found


def local(config: MisConfig) -> ScoreRounds:
    """The local path of the same job; the model is loaded before the clock starts."""
    from assets.evaluation import rounds_scorer

    return rounds_scorer(load_scorer(config))


def catalog_memory(config: MisConfig) -> Iterator[dict[str, object]]:
    """Bytes of a shared catalog in the object store, and what it adds to two actors that read it."""
    ray = require_ray()

    @ray.remote(num_cpus=0.1)
    class Reader:
        def read(self, reference: list) -> dict[str, int]:
            process = psutil.Process()
            before = process.memory_full_info()
            self.catalog = ray.get(reference[0])
            sum(int(token) for token in self.catalog.tokens[::1000])
            after = process.memory_full_info()
            return {"uss": after.uss - before.uss, "rss": after.rss - before.rss}

    prompt = Prompt(config.spec, load_tokenizer(config.path))
    for count in CATALOGS:
        texts = [f"Maintain the records of department number {number}." for number in range(count)]
        catalog = SharedCatalog.tokenised([f"candidate-{number}" for number in range(count)], texts, prompt)
        reference = ray.put(catalog)
        readers = [Reader.remote() for _ in range(2)]
        grown = [ray.get(reader.read.remote([reference])) for reader in readers]
        yield {
            "cell": "catalog",
            "candidates": count,
            "tokens": len(catalog.tokens),
            "array_bytes": catalog.tokens.nbytes + catalog.ends.nbytes,
            "pickled_bytes": len(ray.cloudpickle.dumps(catalog)),
            "actor_uss_growth": [one["uss"] for one in grown],
            "actor_rss_growth": [one["rss"] for one in grown],
        }


def commit_rate(rounds: int = 2000, items: int = 200) -> Iterator[dict[str, object]]:
    """Labels per second that one writer commits when scoring costs nothing, by rounds per batch."""
    texts = pd.DataFrame(
        {"entity_id": [f"e{n}" for n in range(rounds)], "text": [f"entity {n}" for n in range(rounds)]}
    )
    candidates = pd.DataFrame(
        {"candidate_id": [f"c{n}" for n in range(items)], "text": [f"c {n}" for n in range(items)]}
    )
    for batch in BATCHES:
        with tempfile.TemporaryDirectory() as folder:
            operations = Operations(Path(folder) / "ops.sqlite")
            operations.start_run("bench", "bench")
            with Warehouse.open(Path(folder) / "warehouse.duckdb") as warehouse:
                warehouse.replace_entities(texts, "bench")
                warehouse.replace_catalog(candidates.assign(certified=True), "bench")
                plan = refresh.plan(warehouse, "scorer", None, items)
                margins = np.zeros(items, dtype=np.float32)
                outcome = refresh.execute(
                    plan, warehouse, operations, lambda *_, margins=margins: margins, "bench", batch_rounds=batch
                )
        # No batch is more than a fiftieth of the plan.
        used = min(batch, rounds // 50)
        yield {"cell": "commits", "batch_rounds": used, "labels_per_s": outcome.labels_per_s, "rounds": rounds}


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", type=Path, default=Path("demo/pipeline.toml"))
    parser.add_argument("--model", help="A model folder; unset: the settings'.")
    parser.add_argument("--pairs", type=int, default=20_000)
    parser.add_argument("--items", type=int, default=200)
    parser.add_argument("--passes", type=int, default=2)
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="bf16")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    model, spec, entities, candidates = work(given)
    precision = "fp32" if given.tiny else given.precision
    shared = {"model": model, "prompt": spec, "precision": precision, "device": "cpu", "rounds_per_batch": None}
    shared |= {"items_per_round": given.items, "tokenizers": Pool(cpus=0.5)}
    wanted = rounds(entities, candidates, given.pairs, given.items)
    cells: list[dict[str, object]] = []
    with ray_session(RaySettings(cpus=6, object_store_bytes=500_000_000)):
        for number in range(given.passes):
            reference: dict[int, np.ndarray] = {}
            for threads in (1, 2):
                torch.set_num_threads(threads)
                figures, margins = timed(local(MisConfig(**shared, threads=threads)), wanted)
                reference = reference or margins
                cells.append({"cell": f"local x {threads} threads", "pass": number, **figures})
            for name, (actors, threads) in SHAPES.items():
                config = MisConfig(**shared, threads=threads, scorers=Pool(min=actors, max=actors))
                figures, margins = timed(plan_scorer(config), wanted)
                same = sum(margins[n].tobytes() == reference[n].tobytes() for n in reference)
                cells.append({"cell": name, "pass": number, "rounds_bit_equal_to_1_thread": same, **figures})
        cells += catalog_memory(MisConfig(**shared))
    cells += commit_rate()
    document = {
        "environment": environment() | {"load": os.getloadavg()},
        "model": Path(model).name,
        "precision": precision,
        "pairs": len(wanted) * len(wanted[0].candidate_keys),
        "items_per_round": given.items,
        "cells": cells,
        "summary": summary(cells),
    }
    given.out.write_text(json.dumps(document, indent=1) + "\n")
    print(json.dumps(document["summary"], indent=1))


def summary(cells: list[dict[str, object]]) -> dict[str, float]:
    """Median rates, and the overhead of one actor with one thread against one local thread."""
    names = dict.fromkeys(str(cell["cell"]) for cell in cells if "startup_s" in cell)
    rates = {
        name: statistics.median(float(cell["labels_per_s"]) for cell in cells if cell["cell"] == name) for name in names
    }
    return rates | {"overhead": rates["local x 1 threads"] / rates["ray 1 actor x 1 thread"] - 1}


if __name__ == "__main__":
    main()
