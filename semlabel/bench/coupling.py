"""The coupling benchmark: in every list of 20 candidates one is replaced by noise; which answers of the others change?

Packed scoring has all lists of an entity in its rounds, with one of every 20 items replaced; packed generation writes
the lists. Every repetition of each method is one part on the disk, so that a killed run loses one at most. Knows
nothing of where entities come from.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from semlabel.bench.coupling_report import markdown, plot
from semlabel.bench.deciding import Deciding, Margins, cut_of, of_lists
from semlabel.bench.kept import Kept, Part
from semlabel.bench.order_data import Texts
from semlabel.bench.orders import MISSING, Decisions, decisions_at
from semlabel.bench.output import whole, write
from semlabel.bench.subject import Subject
from semlabel.bench.tasks import text_ids
from semlabel.bench.throughput import left_out
from semlabel.digests import digest_of
from semlabel.generation.answers import Faults
from semlabel.generation.prompt import PACK_SIZE
from semlabel.models import resolve_device
from semlabel.progress import Progress, ProgressSink, silent

NAME = "coupling"
SCHEMA_VERSION = 1
_NOISE_TOKENS = (3, 17)  # from, up to but not including: other lengths than what is replaced
_SEED = 11
_BEFORE = 0  # the repetition without noise


@dataclass(frozen=True)
class Plan:
    """How many decisions, and how often each list gets another noise in another place. As in `order.Plan` else."""

    precisions: tuple[str, ...] = ("fp32", "bf16", "int8")
    decisions: int = 10_000
    repetitions: int = 5
    yes_share: float = 0.02
    generation_decisions: int = 2_000
    generation_precision: str = "auto"
    packs_per_forward: int = 8
    items_per_round: int = 200
    generator: str | None = None

    @classmethod
    def quick(cls, generator: str | None = None) -> "Plan":
        """A smoke run of minutes, not evidence."""
        return cls(decisions=600, repetitions=2, generation_decisions=100, generator=generator)


def run(
    subject: Subject,
    plan: Plan,
    out: Path,
    texts: Texts | None = None,
    device: str = "auto",
    progress: ProgressSink = silent,
) -> dict[str, Any]:
    """Decide about `texts` (None: random words) with and without noise; write `out`/coupling.json, .md and .png."""
    device = resolve_device(device)
    bench = _Coupling(subject, plan, out, texts, device, progress)
    cells = list(bench.cells())
    missing = left_out(plan.precisions, device)
    document = whole(SCHEMA_VERSION, subject, plan, device, source=bench.cross.source, cells=cells, missing=missing)
    write(out, NAME, document, markdown(document), plot(cells))
    bench.forget()
    return document


class _Coupling:
    def __init__(
        self, subject: Subject, plan: Plan, out: Path, texts: Texts | None, device: str, progress: ProgressSink
    ) -> None:
        self._subject, self._plan, self._progress = subject, plan, progress
        self._deciding = Deciding(subject, plan, texts, device)
        self._precisions = self._deciding.precisions
        self.cross = self._deciding.cross
        tokenizer = self._deciding.tokenizer
        # No line breaks: a candidate of a list has none either.
        words = text_ids(tokenizer, self._deciding.embeddings)
        self._words = [word for word in words if not {"\n", "\r"} & set(tokenizer.decode([word]))]
        key = digest_of([SCHEMA_VERSION, self._deciding.identity(plan), self.cross.digest(), device])
        self._parts = Kept(out / f".order-coupling-{key[:16]}")

    def forget(self) -> None:
        """Remove the parts: what is worth keeping has been counted."""
        self._parts.forget()

    def cells(self) -> Iterator[dict[str, Any]]:
        """One flat record per method and precision."""
        entities = min(len(self.cross.queries), -(-self._plan.decisions // len(self.cross.items)))
        for precision in self._precisions:
            margins = [
                part["margins"]
                for part in self._repetitions(f"mis-{precision}", partial(self._margins, precision, entities))
            ]
            cut = cut_of(margins[_BEFORE], self._subject.threshold, self._plan.yes_share)
            others = self._others(entities, len(self.cross.items))
            moved = max(
                float(np.abs(after - margins[_BEFORE])[kept].max(initial=0.0))
                for after, kept in zip(margins[1:], others, strict=True)
            )
            counts = coupling([decisions_at(one, cut) for one in margins], others)
            lists = dict.fromkeys(of_lists(Faults()))
            yield (
                {"method": "mis", "precision": precision, "threshold": cut, **counts}
                | lists
                | {"largest_margin_difference": moved}
            )
        self._deciding.forget_scorer()
        yield from self._generation()

    def _generation(self) -> Iterator[dict[str, Any]]:
        candidates = min(len(self.cross.pack_candidates), self._plan.generation_decisions)
        entities = min(len(self.cross.pack_queries), -(-self._plan.generation_decisions // candidates))
        for constrained in (False, True):
            name = "generation_constrained" if constrained else "generation"
            make = partial(self._answers, constrained, entities, candidates)
            parts = list(self._repetitions(name, make))
            faults = sum((Faults(*part["faults"].tolist()) for part in parts), Faults())
            counts = coupling([part["decisions"] for part in parts], self._others(entities, candidates))
            yield {
                "method": name,
                "precision": self._deciding.generation_precision,
                "threshold": 0.0 if constrained else None,
                **counts,
                **of_lists(faults),
                "largest_margin_difference": None,
            }

    def _repetitions(
        self, name: str, make: Callable[[int], dict[str, npt.NDArray[Any]]]
    ) -> Iterator[dict[str, npt.NDArray[Any]]]:
        for repetition in range(self._plan.repetitions + 1):
            self._progress(Progress(f"coupling {name}", repetition, self._plan.repetitions + 1, "repetitions"))
            yield self._parts.part(f"{name}-{repetition}", partial(_as_part, make, repetition)).arrays

    def _others(self, entities: int, candidates: int) -> list[npt.NDArray[np.bool_]]:
        """For each repetition with noise (entities, candidates): which candidates are still themselves."""
        kept = []
        for repetition in range(1, self._plan.repetitions + 1):
            table = np.ones((entities, candidates), dtype=bool)
            for entity in range(entities):
                table[entity, replaced(repetition, entity, candidates)] = False
            kept.append(table)
        return kept

    def _noisy(self, repetition: int, entity: int, listed: list[list[int]], end: list[int]) -> list[list[int]]:
        """The list with one of every 20 candidates replaced by random words (`end` closes each of them)."""
        if repetition == _BEFORE:
            return listed
        rng = np.random.default_rng([_SEED, repetition, entity, 1])
        noisy = list(listed)
        for place in replaced(repetition, entity, len(listed)):
            noisy[place] = [*rng.choice(self._words, rng.integers(*_NOISE_TOKENS)).tolist(), *end]
        return noisy

    def _margins(self, precision: str, entities: int, repetition: int) -> dict[str, Margins]:
        items, scorer = self.cross.items, self._deciding.scorer(precision)
        last = items[0][-1:]
        rows = [
            scorer.margins(self.cross.queries[entity], self._noisy(repetition, entity, items, last))
            for entity in range(entities)
        ]
        return {"margins": np.stack(rows)}

    def _answers(
        self, constrained: bool, entities: int, candidates: int, repetition: int
    ) -> dict[str, npt.NDArray[Any]]:
        listed = self.cross.pack_candidates[:candidates]
        rows: list[Decisions] = []
        faults = Faults()
        for entity in range(entities):
            decisions, more = self._deciding.answers(constrained, entity, self._noisy(repetition, entity, listed, []))
            rows.append(decisions)
            faults += more
        return {"decisions": np.stack(rows), "faults": np.array(list(faults.to_json().values()))}


def _as_part(make: Callable[[int], dict[str, npt.NDArray[Any]]], repetition: int) -> Part:
    return Part(make(repetition))


def replaced(repetition: int, entity: int, candidates: int) -> list[int]:
    """The places whose candidates noise takes: one of every 20, drawn for each repetition and entity."""
    rng = np.random.default_rng([_SEED, repetition, entity])
    starts = range(0, candidates, PACK_SIZE)
    return [start + int(rng.integers(min(PACK_SIZE, candidates - start))) for start in starts]


def coupling(repetitions: list[Decisions], others: list[npt.NDArray[np.bool_]]) -> dict[str, Any]:
    """Changed answers of the candidates that were not replaced, against the repetition without noise, as flat fields.

    A missing answer counts as changed. Shares of YES are over answers that are YES with or without the noise.
    """
    before = repetitions[_BEFORE]
    changed = compared = of_yes = yes = lists = changed_lists = 0
    for after, kept in zip(repetitions[1:], others, strict=True):
        differs = ((after != before) | (after == MISSING) | (before == MISSING)) & kept
        either = ((after == 1) | (before == 1)) & kept
        changed, compared = changed + int(differs.sum()), compared + int(kept.sum())
        of_yes, yes = of_yes + int((differs & either).sum()), yes + int(either.sum())
        for start in range(0, before.shape[1], PACK_SIZE):
            lists += before.shape[0]
            changed_lists += int(differs[:, start : start + PACK_SIZE].any(axis=1).sum())
    return {
        "entities": before.shape[0],
        "candidates": before.shape[1],
        "repetitions": len(repetitions) - 1,
        "answers_of_others": compared,
        "yes": yes,
        "changed": changed,
        "changed_share": changed / compared if compared else None,
        "changed_share_of_yes": of_yes / yes if yes else None,
        "lists_with_a_change_share": changed_lists / lists if lists else None,
    }
