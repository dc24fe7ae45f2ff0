"""What a night costs in the store, without any model: planning, committing, publishing, and a month of churn.

    semlabel bench refresh [--quick] [--large] [--churn] [--out DIR]

A synthetic warehouse of entities x 200 candidates is written with float margins as a model gives them (an entity
effect, a candidate effect, noise; float32). Then, through the public interfaces: a night in which nothing changed
(plan, subject, the stored verdict of every gate), a night with 1 % edited entities (the plan must be exactly 1 % of the
pairs), its commit and the labels derived from it, a publication of everything, and 30 nights of 1 % churn with purge
and compaction. `live_bytes` is what `compaction.footprint` takes the file to need; `fresh_bytes` of the last night is
the size of a file just written with the same current and retained rows.
"""

import hashlib
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import psutil

from semlabel import refresh
from semlabel.compaction import compact, footprint
from semlabel.gates.registry import ALWAYS
from semlabel.operations import Operations
from semlabel.publish import publish
from semlabel.retention import purge
from semlabel.warehouse import Opening, ScoredRound, Warehouse

CANDIDATES, NIGHTS, RETENTION_DAYS, FACTOR = 200, 30, 7, 1.2
SIZES, LARGE, QUICK = (10_000, 100_000), 500_000, (500, 1_000)
CHURN = 0.01
_WRITE_ROUNDS = 5_000
_WORDS = 60
_TAU = 1.0
_MANIFEST = {"digest": "labeler", "scorer_digest": "scorer", "base_model": "none", "threshold": _TAU}
_START = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass
class Measured:
    """Seconds and peak memory of a block."""

    seconds: float = 0.0
    peak_mb: float = 0.0
    _stopped: threading.Event = field(default_factory=threading.Event)

    def watch(self) -> None:
        """Keep the highest resident memory of this process until stopped."""
        process = psutil.Process()
        while True:
            self.peak_mb = max(self.peak_mb, process.memory_info().rss / 2**20)
            if self._stopped.wait(0.02):
                return

    def stop(self) -> None:
        """End the watch."""
        self._stopped.set()


@contextmanager
def measured() -> Iterator[Measured]:
    """Measure a block."""
    found = Measured()
    thread = threading.Thread(target=found.watch, daemon=True)
    thread.start()
    started = time.perf_counter()
    try:
        yield found
    finally:
        found.seconds = time.perf_counter() - started
        found.stop()
        thread.join()


class World:
    """A synthetic project: entity texts that can be edited, a catalog, and margins that depend on both."""

    def __init__(self, folder: Path, entities: int, candidates: int, seed: int = 7) -> None:
        self.folder, self.chance = folder, np.random.default_rng(seed)
        self.candidate_effect = self.chance.normal(-4.0, 2.0, candidates).astype(np.float32)
        self.entity_ids = [f"entity-{number:08d}" for number in range(entities)]
        self.edits = np.zeros(entities, dtype=np.int64)
        self.candidates = candidates
        self.operations = Operations(folder / "ops.sqlite")
        self.operations.start_run("bench", "bench")
        self.opening = Opening("2GB", 0, folder / "spill")
        self.path = folder / "warehouse.duckdb"

    @property
    def pairs(self) -> int:
        """How many pairs there are now."""
        return len(self.entity_ids) * self.candidates

    def open(self) -> Warehouse:
        """The warehouse, for writing."""
        return self.opening.open(self.path)

    def entities(self) -> pd.DataFrame:
        """The entities as they are now, each text about 400 bytes."""
        texts = [_text(entity_id, int(edit)) for entity_id, edit in zip(self.entity_ids, self.edits, strict=True)]
        return pd.DataFrame({"entity_id": self.entity_ids, "text": texts}, dtype=str)

    def edit(self) -> int:
        """Edit 1 % of the entities; returns how many."""
        count = max(1, round(len(self.entity_ids) * CHURN))
        self.edits[self.chance.choice(len(self.entity_ids), count, replace=False)] += 1
        return count

    def margins(self, candidate_texts: Sequence[str]) -> np.ndarray:
        """Margins of one entity, as a model gives them."""
        effect = self.chance.normal(0.0, 1.0) + self.chance.normal(0.0, 1.0, len(candidate_texts))
        return self.candidate_effect[: len(candidate_texts)] + effect.astype(np.float32)

    def fill(self, warehouse: Warehouse) -> None:
        """Write sources and every margin."""
        catalog = pd.DataFrame(
            {
                "candidate_id": [f"candidate-{number:04d}" for number in range(self.candidates)],
                "text": [_text("candidate", number)[:60] for number in range(self.candidates)],
            },
            dtype=str,
        ).assign(certified=True)
        warehouse.replace_catalog(catalog, "bench")
        warehouse.replace_entities(self.entities(), "bench")
        warehouse.activate_labeler("labeler", "scorer", _TAU, 1.0, 0.0)
        plan = refresh.plan(warehouse, "scorer", None, self.candidates)
        keys = [
            key
            for (key,) in warehouse.rows(
                "SELECT candidate_text_key FROM blocks WHERE block_id = ? ORDER BY position", [plan.rounds[0].block_id]
            )
        ]
        for start in range(0, len(plan.rounds), _WRITE_ROUNDS):
            chunk = plan.rounds[start : start + _WRITE_ROUNDS]
            rounds = [ScoredRound(entry.text_key, entry.block_id, keys, self.margins(keys)) for entry in chunk]
            warehouse.commit_scores(rounds, "scorer", "bench")

    def refresh(self, warehouse: Warehouse, plan: refresh.RefreshPlan) -> None:
        """Score a plan with made-up margins."""
        refresh.execute(plan, warehouse, self.operations, lambda _, texts: self.margins(texts), "bench")


def study(quick: bool = False, large: bool = False) -> Iterator[dict[str, Any]]:
    """All cells. The warehouses are written below `TMPDIR`; the largest one with its publication takes about 4 GB."""
    for entities in QUICK if quick else (*SIZES, *([LARGE] if large else [])):
        with tempfile.TemporaryDirectory(prefix="semlabel-refresh-") as folder:
            # A month at the largest size would measure the same ratio once more, for hours.
            nights = 5 if quick else NIGHTS if entities < LARGE else 0
            yield from measure(World(Path(folder), entities, CANDIDATES), nights)


def month(quick: bool = False) -> Iterator[dict[str, Any]]:
    """The nights of churn alone, at the largest size that has them: the file depends on no clock and no machine."""
    with tempfile.TemporaryDirectory(prefix="semlabel-refresh-") as folder:
        world = World(Path(folder), (QUICK if quick else SIZES)[-1], CANDIDATES)
        with world.open() as warehouse:
            world.fill(warehouse)
        yield from _churn(world, 5 if quick else NIGHTS)


def measure(world: World, nights: int) -> Iterator[dict[str, Any]]:
    """The cells of one size."""
    with world.open() as warehouse:
        with measured() as found:
            world.fill(warehouse)
        warehouse.rows("CHECKPOINT")
        size = footprint(warehouse)
        yield _cell(world, "write", found, file_bytes=size.bytes, bytes_per_pair=round(size.bytes / world.pairs, 3))
        yield _nothing_changed(world, warehouse)
        yield from _one_percent(world, warehouse)
        yield _publication(world, warehouse)
    yield from _churn(world, nights)


def _nothing_changed(world: World, warehouse: Warehouse) -> dict[str, Any]:
    with measured() as found:
        plan = refresh.plan(warehouse, "scorer", None, world.candidates)
        subject = warehouse.predictions_digest()
        verdicts = [world.operations.latest_gate(gate, subject) for gate in ALWAYS]
        covered = not warehouse.coverage().missing
    return _cell(world, "no-op plan", found, planned_pairs=plan.pairs, gates=len(verdicts), covered=covered)


def _one_percent(world: World, warehouse: Warehouse) -> Iterator[dict[str, Any]]:
    edited = world.edit()
    frame = world.entities()
    with measured() as found:
        warehouse.replace_entities(frame, "bench")
    yield _cell(world, "read 1 % edited", found, edited=edited)
    with measured() as found:
        plan = refresh.plan(warehouse, "scorer", None, world.candidates)
    exact = plan.pairs == edited * world.candidates
    yield _cell(world, "plan 1 % edited", found, planned_pairs=plan.pairs, exactly_one_percent=exact)
    with measured() as found:
        world.refresh(warehouse, plan)
        ((rows, labels),) = warehouse.rows("SELECT count(*), count(*) FILTER (WHERE label) FROM predictions")
    yield _cell(world, "commit and derive", found, committed_pairs=plan.pairs, rows=rows, labels=labels)


def _publication(world: World, warehouse: Warehouse) -> dict[str, Any]:
    policy = SimpleNamespace(keep=1, uncertified_candidates="publish")
    with measured() as found:
        done = publish(
            warehouse,
            world.operations,
            policy,
            world.folder / "published",
            _MANIFEST,
            [],
            "bench",
            recheck=lambda: None,
        )
    size = sum(file.stat().st_size for file in done.path.rglob("*") if file.is_file())
    return _cell(world, "publication", found, rows=done.rows, labels=done.labels, version_bytes=size)


def _churn(world: World, nights: int) -> Iterator[dict[str, Any]]:
    """Nights of 1 % churn on top of what there is; each ends with purge and compaction."""
    for night in range(1, nights + 1):
        world.edit()
        now = _START + timedelta(days=night)
        with measured() as found:
            with world.open() as warehouse:
                warehouse.replace_entities(world.entities(), "bench")
                world.refresh(warehouse, refresh.plan(warehouse, "scorer", None, world.candidates))
                purged = purge(warehouse, timedelta(days=RETENTION_DAYS), now)
            done = compact(world.path, FACTOR, world.opening)
        with world.open() as warehouse:
            size = footprint(warehouse)
        file_bytes = world.path.stat().st_size
        cell = _cell(
            world,
            "night",
            found,
            night=night,
            purged_pairs=purged.pairs,
            compacted=done.skipped is None,
            file_bytes=file_bytes,
            live_bytes=size.live_bytes,
        )
        if night == nights:
            cell["fresh_bytes"] = compact(world.path, 0.0, world.opening).bytes_after
            cell["file_to_fresh"] = round(file_bytes / cell["fresh_bytes"], 3)
        yield cell


def table(cells: Sequence[Mapping[str, Any]], name: str = "refresh", options: str = "") -> str:
    """The cells as the Markdown page of the files `name`."""
    lines = ["# Refresh", "", f"`semlabel bench refresh{options}` ([raw data]({name}.json)).", ""]
    lines += ["| pairs | step | seconds | peak MB | found |", "|--:|---|--:|--:|---|"]
    for cell in cells:
        rest = {
            name: value for name, value in cell.items() if name not in ("pairs", "step", "seconds", "peak_mb", "night")
        }
        told = ", ".join(
            f"{name} {value:,}" if isinstance(value, int) else f"{name} {value}" for name, value in rest.items()
        )
        step = f"night {cell['night']}" if "night" in cell else cell["step"]
        lines.append(f"| {cell['pairs']:,} | {step} | {cell['seconds']:.3g} | {cell['peak_mb']:,.0f} | {told} |")
    return "\n".join([*lines, "", f"![growth and churn]({name}.png)", ""])


def figure(cells: Sequence[Mapping[str, Any]]) -> bytes:
    """Seconds over pairs for every step, and the file over a month of churn."""
    import io

    from matplotlib.figure import Figure

    steps = dict.fromkeys(cell["step"] for cell in cells if "night" not in cell)
    canvas = Figure(figsize=(10 if steps else 5, 4), layout="constrained")
    *growth, month = canvas.subplots(1, 2 if steps else 1, squeeze=False)[0]
    for axis in growth:
        for step in steps:
            points = sorted((cell["pairs"], max(cell["seconds"], 1e-3)) for cell in cells if cell["step"] == step)
            axis.plot(*zip(*points, strict=True), marker="o", label=step)
        axis.set(xscale="log", yscale="log", xlabel="stored pairs", ylabel="seconds", title="cost of a night's steps")
    for pairs in dict.fromkeys(cell["pairs"] for cell in cells if "night" in cell):
        nights = [cell for cell in cells if "night" in cell and cell["pairs"] == pairs]
        ratio = [cell["file_bytes"] / cell["live_bytes"] for cell in nights]
        month.plot([cell["night"] for cell in nights], ratio, marker=".", label=f"{pairs:,} pairs")
    month.axhline(1.3, color="black", linewidth=0.8, linestyle="--")
    month.set(xlabel="night of 1 % churn", ylabel="file / current and retained bytes", title="purge and compaction")
    for axis in (*growth, month):
        if axis.get_legend_handles_labels()[0]:
            axis.legend(frameon=False, fontsize=8)
    out = io.BytesIO()
    canvas.savefig(out, format="png", dpi=110)
    return out.getvalue()


def _cell(world: World, step: str, found: Measured, **facts: Any) -> dict[str, Any]:
    told = {"pairs": world.pairs, "step": step, "seconds": round(found.seconds, 4), "peak_mb": round(found.peak_mb, 1)}
    return told | facts


def _text(name: str, edit: int) -> str:
    """A text of about 400 bytes that no two (name, edit) share."""
    digest = hashlib.sha512(f"{name}/{edit}".encode()).hexdigest()
    return " ".join(digest[place % 120 : place % 120 + 6] for place in range(0, 2 * _WORDS, 2))
