"""The order benchmark: every decision again with the candidates reordered, by MIS and by packed generation.

Each order of each method is one array on the disk, so that a killed run loses one order at most; what is reported is
counted from these arrays at the end. Deliberately does not know where entities come from.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from semlabel.bench.deciding import Deciding, Margins, cut_of, of_lists
from semlabel.bench.kept import Kept, Part
from semlabel.bench.order_data import Texts
from semlabel.bench.order_report import markdown, plot
from semlabel.bench.orders import MISSING, Decisions, changes, decisions_at, largest_difference, permutation
from semlabel.bench.output import whole, write
from semlabel.bench.subject import Subject
from semlabel.bench.throughput import left_out
from semlabel.digests import digest_of
from semlabel.errors import SemlabelError
from semlabel.generation.answers import Faults
from semlabel.models import resolve_device
from semlabel.progress import Progress, ProgressSink, silent

NAME = "order"
SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Plan:
    """How many decisions in how many orders (order 0 among them).

    Entities are added until `decisions` and, with a labeler's own threshold, `least_yes` YES labels are there. A model
    without a threshold gets the cut that makes `yes_share` of its decisions YES. Generation takes `generator` (default:
    the same model) and decides about fewer pairs.
    """

    precisions: tuple[str, ...] = ("fp32", "bf16", "int8")
    decisions: int = 30_000
    least_yes: int = 200
    yes_share: float = 0.02
    orders: int = 20
    generation_decisions: int = 2_000
    generation_orders: int = 10
    generation_precision: str = "auto"
    packs_per_forward: int = 8
    items_per_round: int = 200
    generator: str | None = None

    @classmethod
    def quick(cls, generator: str | None = None) -> "Plan":
        """A smoke run of minutes, not evidence."""
        return cls(
            decisions=1_000,
            least_yes=20,
            orders=3,
            generation_decisions=100,
            generation_orders=2,
            generator=generator,
        )


def run(
    subject: Subject,
    plan: Plan,
    out: Path,
    texts: Texts | None = None,
    device: str = "auto",
    progress: ProgressSink = silent,
) -> dict[str, Any]:
    """Decide about `texts` (None: random words) in every order; write `out`/order.json, .md and .png.

    Returns the document. Raises SemlabelError when there are not two orders.
    """
    if min(plan.orders, plan.generation_orders) < 2:
        raise SemlabelError("one order alone shows nothing; give at least --orders 2")
    device = resolve_device(device)
    bench = _Order(subject, plan, out, texts, device, progress)
    cells = list(bench.cells())
    missing = left_out(plan.precisions, device)
    document = whole(SCHEMA_VERSION, subject, plan, device, source=bench.cross.source, cells=cells, missing=missing)
    write(out, NAME, document, markdown(document), plot(cells))
    bench.forget()
    return document


class _Order:
    def __init__(
        self, subject: Subject, plan: Plan, out: Path, texts: Texts | None, device: str, progress: ProgressSink
    ) -> None:
        self._subject, self._plan, self._progress = subject, plan, progress
        self._deciding = Deciding(subject, plan, texts, device)
        self._precisions = self._deciding.precisions
        self.cross = self._deciding.cross
        key = digest_of([SCHEMA_VERSION, self._deciding.identity(plan), self.cross.digest(), device])
        self._parts = Kept(out / f".order-{key[:16]}")

    def forget(self) -> None:
        """Remove the arrays: what is worth keeping has been counted."""
        self._parts.forget()

    def cells(self) -> Iterator[dict[str, Any]]:
        """One flat record per method and precision."""
        for precision in self._precisions:
            yield self._packed_scoring(precision)
        self._deciding.forget_scorer()
        yield from self._generation()

    def _packed_scoring(self, precision: str) -> dict[str, Any]:
        given = self._subject.threshold
        margins: list[Margins] = []
        for order in range(self._plan.orders):
            self._progress(Progress(f"order mis {precision}", order, self._plan.orders, "orders"))
            entities = len(margins[0]) if margins else None
            make = partial(self._margins, precision, entities, order)
            margins.append(self._kept(f"mis-{precision}-{order}", make)["margins"])
        threshold = cut_of(margins[0], given, self._plan.yes_share)
        counts = changes([decisions_at(one, threshold) for one in margins])
        return {
            "method": "mis",
            "precision": precision,
            "entities": margins[0].shape[0],
            "candidates": margins[0].shape[1],
            "threshold": threshold,
            "threshold_from": "share of YES" if given is None else "labeler",
            **counts,
            "enough_yes": counts["yes"] >= self._plan.least_yes,
            "largest_margin_difference": largest_difference(margins),
            **dict.fromkeys(of_lists(Faults())),
        }

    def _margins(self, precision: str, entities: int | None, order: int) -> dict[str, Margins]:
        """The margins of this order; with `entities` None of as many as it takes for the decisions and the YES labels
        that are asked for.
        """
        if entities is not None:
            return {"margins": np.stack([self._entity(precision, entity, order) for entity in range(entities)])}
        threshold = self._subject.threshold
        rows: list[Margins] = []
        yes = 0
        for entity in range(len(self.cross.queries)):
            if len(rows) * len(self.cross.items) >= self._plan.decisions and (
                threshold is None or yes >= self._plan.least_yes
            ):
                break
            rows.append(self._entity(precision, entity, order))
            yes += 0 if threshold is None else int((rows[-1] >= threshold).sum())
        return {"margins": np.stack(rows)}

    def _entity(self, precision: str, entity: int, order: int) -> Margins:
        """One entity's margins scored in this order, given back in the candidates' own."""
        places = permutation(order, len(self.cross.items))
        margins = np.empty(len(places), dtype=np.float32)
        listed = [self.cross.items[place] for place in places]
        margins[places] = self._deciding.scorer(precision).margins(self.cross.queries[entity], listed)
        return margins

    def _generation(self) -> Iterator[dict[str, Any]]:
        plan = self._plan
        candidates = min(len(self.cross.pack_candidates), plan.generation_decisions)
        entities = min(len(self.cross.pack_queries), -(-plan.generation_decisions // candidates))
        for constrained in (False, True):
            name = "generation_constrained" if constrained else "generation"
            orders, faults = [], Faults()
            for order in range(plan.generation_orders):
                self._progress(Progress(f"order {name}", order, plan.generation_orders, "orders"))
                make = partial(self._answers, constrained, order, entities, candidates)
                kept = self._kept(f"{name}-{order}", make)
                orders.append(kept["decisions"])
                faults += Faults(*kept["faults"].tolist())
            yield {
                "method": name,
                "precision": self._deciding.generation_precision,
                "entities": entities,
                "candidates": candidates,
                "threshold": 0.0 if constrained else None,
                "threshold_from": "the model's own answer",
                **changes(orders),
                "enough_yes": None,
                "largest_margin_difference": None,
                **of_lists(faults),
            }

    def _answers(self, constrained: bool, order: int, entities: int, candidates: int) -> dict[str, npt.NDArray[Any]]:
        """The decisions (entities, candidates) of packs in this order, and the faults of their lists."""
        places = permutation(order, candidates)
        listed = [self.cross.pack_candidates[place] for place in places]
        decisions: Decisions = np.full((entities, candidates), MISSING, dtype=np.int8)
        faults = Faults()
        for entity in range(entities):
            decisions[entity, places], more = self._deciding.answers(constrained, entity, listed)
            faults += more
        return {"decisions": decisions, "faults": np.array(list(faults.to_json().values()))}

    def _kept(self, name: str, make: Callable[[], dict[str, npt.NDArray[Any]]]) -> dict[str, npt.NDArray[Any]]:
        """The arrays of this name, from an earlier run of the same plan, or made now and kept."""
        return self._parts.part(name, lambda: Part(make())).arrays
