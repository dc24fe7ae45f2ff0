"""Whether drift is told apart from chance: false alarms in stable years, and drifts that must be seen, truth known.

A population of entities with correlated candidates: the margin of a pair is an effect of the entity, one of the entity
in the candidate's group, and noise. Every night 2 % of the entities change: half are replaced by others, half are
edited and keep most of what they were. What is judged is exactly what the gates judge, through the same code.

    PYTHONPATH=. .venv/bin/python benchmarks/drift_simulation.py [--large] [--out benchmarks/results]

writes drift_simulation.json: `environment` and `cells`, one flat record per question.
"""

import argparse
import copy
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from semlabel.bench.environment import environment
from semlabel.drift.labels import EVERY_CANDIDATE, Finding, Limits, findings, spans_of
from semlabel.drift.quality import AGREEMENT, LENGTH, QualityLimits, Shift, shifts
from semlabel.drift.spans import Span
from semlabel.drift.state import History
from semlabel.drift.sums import Sums
from semlabel.settings import Gates

NIGHTS = 365
CHURN = 0.02
KEPT = 0.8
"""Correlation of an edited entity's margins with those before the edit."""
GATES = Gates()
ALPHA = GATES.drift_false_alarms / NIGHTS / 2
LIMITS = Limits(ALPHA, GATES.drift_points, GATES.drift_labels)
QUALITY = QualityLimits(ALPHA, GATES.quality_points, GATES.quality_length)


@dataclass(frozen=True)
class Kind:
    """A population: how much of a margin's variance the entity and the entity in a group of candidates explain."""

    entities: int = 5_000
    candidates: int = 200
    groups: int = 10
    entity: float = 0.2
    group: float = 0.3
    rates: tuple[float, ...] = (0.005, 0.01, 0.02, 0.05, 0.1, 0.3)
    churn: float = CHURN


class World:
    """One population at one moment, with the history that a publication of it would carry."""

    def __init__(self, kind: Kind, seed: int) -> None:
        self.kind, self.rng = kind, np.random.default_rng(seed)
        self.candidates = [f"c{number}" for number in range(kind.candidates)]
        self.rates = np.resize(np.array(kind.rates), kind.candidates)
        self.cut = stats.norm.isf(self.rates)
        # What entities that are drawn or edited from now on must reach: moved when only fresh texts drift.
        self.fresh_cut = self.cut.copy()
        self.latent = self._drawn(kind.entities)
        self.labels = self.latent > self.cut
        self.labeled, self.yes = self.labels.sum(axis=1), self.labels.sum(axis=0)
        self.moved_columns: list[int] = []
        self.length = self._lengths(kind.entities)
        self.agreement = 0.8
        margins = self.latent - self.cut
        self.cuts = np.quantile(margins, np.linspace(0.1, 0.9, 9))
        self.bins, self.near = self._binned(margins)
        first = self._measures() | {f"{AGREEMENT} YES": self._agreement(200)}
        self.history = History("labeler", "first", tuple(self.candidates), tuple(self.cuts), first, first)

    def branch(self, seed: int) -> "World":
        """A copy that goes on with other chances."""
        other = copy.copy(self)
        for name in ("latent", "labels", "labeled", "length", "bins", "near", "cut", "fresh_cut"):
            setattr(other, name, getattr(self, name).copy())
        other.rng = np.random.default_rng(seed)
        return other

    def night(self, replaced: float | None = None) -> tuple[list[Finding], list[Shift]]:
        """Let a night pass, judge it, publish. `replaced`: the share of entities that others take the place of."""
        kind, rng = self.kind, self.rng
        share = kind.churn / 2 if replaced is None else replaced
        chosen = rng.permutation(kind.entities)
        gone = chosen[: round(share * kind.entities)]
        edited = chosen[len(gone) : len(gone) + round(kind.churn / 2 * kind.entities)]
        rows = np.arange(kind.entities) if self.moved_columns else np.concatenate([gone, edited])
        before, labeled = self.labels[rows], self.labeled.copy()
        for column in self.moved_columns:
            self.labels[:, column] = self.latent[:, column] > self.cut[column]
        self.moved_columns = []
        mixed = KEPT * self.latent[edited] + np.sqrt(1 - KEPT**2) * self._drawn(len(edited))
        for fresh, latent in ((gone, self._drawn(len(gone))), (edited, mixed)):
            self.latent[fresh], self.labels[fresh] = latent, latent > self.fresh_cut
            self.length[fresh] = self._lengths(len(fresh))
            self.bins[fresh], self.near[fresh] = self._binned(latent - self.fresh_cut)
        self.labeled[rows] = self.labels[rows].sum(axis=1)
        return self._judged(self._span(rows, before, labeled, gone))

    def move(self, columns: Sequence[int], points: Sequence[float] | float, everywhere: bool) -> None:
        """From now on these candidates hold for so much more of the entities: of all, or only of fresh ones."""
        cut = stats.norm.isf(np.clip(self.rates[list(columns)] + points, 1e-9, 1 - 1e-9))
        self.fresh_cut[list(columns)] = cut
        if everywhere:
            self.cut[list(columns)] = cut
            self.moved_columns = list(columns)

    def _span(self, rows: np.ndarray, before: np.ndarray, labeled: np.ndarray, gone: np.ndarray) -> Span:
        """The span of a night in which only `rows` may have changed, from what they were `before`."""
        stayed, now, was = ~np.isin(rows, gone), self.labels[rows], self.yes
        up, down = (now & ~before)[stayed].sum(axis=0), (before & ~now)[stayed].sum(axis=0)
        steps = (self.labeled - labeled)[rows[stayed]]
        self.yes = was + now.sum(axis=0) - before.sum(axis=0)
        old = Sums.of(labeled, self.kind.candidates)
        new = Sums.of(self.labeled[gone], self.kind.candidates)
        everyone = np.full(self.kind.candidates, self.kind.entities)
        return Span(
            *(everyone, was, up, down, np.full(self.kind.candidates, len(gone))),
            new_yes=self.labels[gone].sum(axis=0),
            flip_sum=float(steps.sum()),
            flip_squares=float((steps**2).sum()),
            before=old,
            surplus=new.less(old.share),
        )

    def _judged(self, span: Span) -> tuple[list[Finding], list[Shift]]:
        history = self.history
        found = findings(self.candidates, spans_of(history.nights, history.since, span), LIMITS)
        measures = self._measures()
        name = f"{AGREEMENT} YES"
        arrived = {name: history.arrived.get(name, Sums()) + self._agreement(5)}
        shifted = shifts(measures | arrived, history.last, history.first, QUALITY)
        self.history = history.after(span, measures, arrived)
        return found, shifted

    def _drawn(self, entities: int) -> np.ndarray:
        kind = self.kind
        own = self.rng.standard_normal((entities, 1))
        grouped = self.rng.standard_normal((entities, kind.groups))[:, np.arange(kind.candidates) % kind.groups]
        noise = self.rng.standard_normal((entities, kind.candidates))
        rest = 1 - kind.entity - kind.group
        return (np.sqrt(kind.entity) * own + np.sqrt(kind.group) * grouped + np.sqrt(rest) * noise).astype(np.float32)

    def _lengths(self, entities: int) -> np.ndarray:
        return 7 + 0.8 * self.rng.standard_normal(entities)

    def _binned(self, margins: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        place = np.searchsorted(self.cuts, margins)
        bins = np.stack([(place == number).sum(axis=1) for number in range(10)], axis=1)
        return bins, (np.abs(margins) < 0.05).sum(axis=1)

    def _agreement(self, entities: int) -> Sums:
        """References of some entities: how often the label is the person's, with an effect of the entity."""
        pairs = self.rng.integers(1, 20, entities)
        strength = 5.0
        share = self.rng.beta(self.agreement * strength, (1 - self.agreement) * strength, entities)
        return Sums.of(self.rng.binomial(pairs, share), pairs)

    def _measures(self) -> dict[str, Sums]:
        pairs = self.kind.candidates
        found = {f"margin part {number + 1}": Sums.of(self.bins[:, number], pairs) for number in range(10)}
        return found | {
            LENGTH: Sums.of(self.length),
            "truncated": Sums.of(self.length > 8.5),
            "near tau": Sums.of(self.near, pairs),
        }


def incidents(alarms: Sequence[bool]) -> int:
    """How often somebody is told: an alarm after a night without one."""
    return sum(now and not before for before, now in zip([False, *alarms], alarms, strict=False))


def stable_year(kind: Kind, seed: int) -> dict[str, int]:
    """The alarms of one year in which nothing drifts."""
    world = World(kind, seed)
    nights = [world.night() for _ in range(NIGHTS)]
    told: dict[str, int] = {}
    for number, gate in enumerate(("labels", "quality")):
        alarms = [bool(night[number]) for night in nights]
        told |= {f"{gate}_nights": sum(alarms), f"{gate}_alerts": incidents(alarms)}
    return told


def after(kind: Kind, nights: int, seed: int) -> World:
    """A world in which so many stable nights have passed."""
    world = World(kind, seed)
    for _ in range(nights):
        world.night()
    return world


def seen_after(world: World, names: set[str], nights: int, moved: Callable[[World, int], Any]) -> int | None:
    """In which night one of `names` was first told; `moved` lets the truth drift before each night."""
    for night in range(1, nights + 1):
        replaced = moved(world, night)
        if names & {finding.name for finding in world.night(replaced)[0]}:
            return night
    return None


def with_rate(world: World, rate: float) -> list[int]:
    """The candidates that hold for this share of the entities."""
    return [int(number) for number in np.flatnonzero(np.isclose(world.rates, rate))]


def jump(world: World, trial: int, way: str) -> int | None:
    """One frequent candidate from 10 % to 15 %, on the same entities or with a population that is all new."""
    columns = with_rate(world, 0.1)
    column = columns[trial % len(columns)]

    def moved(one: World, night: int) -> float | None:
        one.move([column], 0.05, everywhere=way == "the same entities")
        return None if way == "the same entities" else 1.0

    return seen_after(world.branch(trial), {f"c{column}"}, 1, moved)


def creep(world: World, trial: int, rate: float, way: str) -> int | None:
    """One candidate that moves 0.1 point a night, by all entities or by those that are new or edited alone."""
    columns = with_rate(world, rate)
    column = columns[trial % len(columns)]

    def moved(one: World, night: int) -> None:
        everywhere = way == "all entities"
        # Fresh entities are 2 % a night: they must hold it five points more often to move the whole by 0.1 point.
        one.move([column], 0.001 * night if everywhere else 0.001 / one.kind.churn, everywhere)

    return seen_after(world.branch(trial), {f"c{column}"}, 60, moved)


def together(world: World, trial: int, way: str) -> int | None:
    """100 candidates that move one point: all up in one night, half of them down, or by fresh entities within 30."""
    columns = sorted(np.random.default_rng(trial).permutation(with_at_least(world, 0.02))[:100].tolist())
    # 30 nights change so much of the population that fresh entities must differ by more for the whole to move a point.
    points = 0.01 / (1 - (1 - CHURN) ** 30) if way == "fresh entities" else 0.01
    signs = np.where(np.arange(len(columns)) % 2 == 0, 1.0, -1.0) if way == "up and down" else np.ones(len(columns))

    def moved(one: World, night: int) -> None:
        if night == 1:
            one.move(columns, points * signs, everywhere=way != "fresh entities")

    return seen_after(world.branch(trial), {EVERY_CANDIDATE, *(f"c{column}" for column in columns)}, 30, moved)


def with_at_least(world: World, rate: float) -> list[int]:
    """The candidates that hold for at least this share of the entities."""
    return [int(number) for number in np.flatnonzero(world.rates >= rate)]


STABLE = {
    "usual": Kind(),
    "strong entity effect": Kind(entity=0.5, group=0.2),
    "few entities": Kind(entities=300),
    "many candidates": Kind(entities=2_000, candidates=1_000),
    "half of the entities a night": Kind(entities=1_000, churn=0.5),
}


def cells(large: bool) -> Iterator[dict[str, Any]]:
    """Every question with its answer."""
    years, worlds, trials = (20, 4, 20) if large else (6, 2, 4)
    for name, kind in STABLE.items():
        repeats = years if name == "usual" else max(1, years // 5)
        found = [stable_year(kind, 1_000 + seed) for seed in range(repeats)]
        for gate in ("labels", "quality"):
            alerts = [year[f"{gate}_alerts"] for year in found]
            nights = [year[f"{gate}_nights"] for year in found]
            yield {
                **{"question": "false alarms in a stable year", "world": name, "gate": gate, "years": repeats},
                **{"alerts_mean": float(np.mean(alerts)), "alerts_most": max(alerts)},
                **{"alarm_nights_mean": float(np.mean(nights)), "years_over_two": sum(count > 2 for count in alerts)},
            }
    questions: list[tuple[str, str, float | None, Callable[[World, int], int | None]]] = [
        ("10 % to 15 %", way, 0.1, lambda w, t, way=way: jump(w, t, way))  # type: ignore[misc]
        for way in ("the same entities", "all entities are new")
    ]
    questions += [
        ("0.1 point a night", way, rate, lambda w, t, way=way, rate=rate: creep(w, t, rate, way))  # type: ignore[misc]
        for way in ("all entities", "fresh entities")
        for rate in (0.02, 0.1, 0.3)
    ]
    questions += [
        ("100 candidates by one point", way, None, lambda w, t, way=way: together(w, t, way))  # type: ignore[misc]
        for way in ("all up", "up and down", "fresh entities")
    ]
    for earlier in (0, 10, 120):
        before = [after(Kind(), earlier, 5_000 + seed) for seed in range(worlds)]
        for question, way, rate, asked in questions:
            nights = [asked(world, trial) for world in before for trial in range(trials // worlds)]
            seen = [night for night in nights if night is not None]
            yield {
                **{"question": question, "by": way, "rate": rate, "stable_nights_before": earlier},
                **{"trials": len(nights), "seen_in_30_nights": sum(night <= 30 for night in seen)},
                **{"night_median": float(np.median(seen)) if seen else None, "night_last": max(seen, default=None)},
            }


def main() -> None:
    """Ask everything and write the answers."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--large", action="store_true", help="more years and trials")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    options = parser.parse_args()
    started, found = time.perf_counter(), []
    told: dict[str, Any] = {"environment": environment(), "large": options.large, "alpha_a_night_and_gate": ALPHA}
    for cell in cells(options.large):
        found.append(cell)
        print(f"{time.perf_counter() - started:6.0f} s  {cell}", flush=True)
        told["cells"] = found
        (options.out / "drift_simulation.json").write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
