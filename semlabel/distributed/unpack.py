"""Last stage: scored rounds become a row a pair, or a row an entity, with what the labeler makes of a margin.

Knows the decision rule and the probability map and nothing of how margins came about. A pair without a margin has the
reason in `error`, and no label.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from semlabel.calibration import Platt
from semlabel.decision import decide
from semlabel.distributed.schemas import ENTITIES, PAIRS, table
from semlabel.errors import DistributedError
from semlabel.manifest import Manifest


@dataclass(frozen=True)
class Decision:
    """What makes labels and probabilities of margins; a plain model has neither."""

    threshold: float | None = None
    platt: Platt | None = None

    @classmethod
    def of(cls, manifest: Manifest | None) -> "Decision":
        """That of a labeler."""
        if manifest is None:
            return cls()
        calibration = manifest.calibration
        return cls(manifest.threshold, Platt(calibration.platt_a, calibration.platt_b) if calibration else None)

    def columns(self, margins: list[float | None]) -> tuple[list[float | None], list[bool | None]]:
        """Probabilities and labels of margins, None where there is no margin or no rule."""
        places = [place for place, margin in enumerate(margins) if margin is not None]
        values = np.array([margins[place] for place in places], dtype=np.float32)
        probabilities: list[float | None] = [None] * len(margins)
        labels: list[bool | None] = [None] * len(margins)
        if self.platt is not None:
            for place, probability in zip(places, self.platt.probability(values).tolist(), strict=True):
                probabilities[place] = probability
        if self.threshold is not None:
            for place, label in zip(places, decide(values, self.threshold).tolist(), strict=True):
                labels[place] = label
        return probabilities, labels


def unpack_pairs(batch: pa.Table, decision: Decision, raise_errors: bool) -> pa.Table:
    """A row a pair; an entity whose row had no candidates to pair is one row without a candidate, with the reason."""
    rows = [entry for row in batch.to_pylist() for entry in _pairs(row, decision)]
    pairs = sum(max(len(row["candidate_ids"]), row["error"] is not None) for row in batch.to_pylist())
    if len(rows) != pairs:
        raise DistributedError(f"unpack: {pairs} pairs became {len(rows)} rows; nothing of this batch is kept")
    if raise_errors:
        _refuse_bad(rows)
    return table(rows, PAIRS)


def unpack_entities(batch: pa.Table, decision: Decision, raise_errors: bool) -> pa.Table:
    """A row an entity, its pairs in lists of one length."""
    rows = []
    for row in batch.to_pylist():
        probabilities, labels = decision.columns(row["margins"])
        lists = {"probabilities": probabilities, "labels": labels, "errors": _errors(row)}
        rows.append(row | lists)
        if raise_errors:
            _refuse_bad(list(_pairs(row, decision)))
    return table([{name: row[name] for name in ENTITIES.names} for row in rows], ENTITIES)


def _pairs(row: Mapping[str, Any], decision: Decision) -> Iterator[dict[str, Any]]:
    head = {"entity_id": row["entity_id"], "truncated": row["truncated"]}
    if not row["candidate_ids"] and row["error"] is not None:
        yield head | {"error": row["error"]}
    probabilities, labels = decision.columns(row["margins"])
    parts = zip(row["candidate_ids"], row["margins"], probabilities, labels, _errors(row), strict=True)
    for candidate_id, margin, probability, label, error in parts:
        pair = {"candidate_id": candidate_id, "margin": margin, "probability": probability, "label": label}
        yield head | pair | {"error": error}


def _errors(row: Mapping[str, Any]) -> list[str | None]:
    """The reason of each pair: its entity's, else its candidate's."""
    problems = row["problems"] if row["problems"] is not None else [None] * len(row["candidate_ids"])
    return [row["error"] or problem for problem in problems]


def _refuse_bad(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        if row["error"] is not None:
            pair = f"entity {row['entity_id']!r}, candidate {row.get('candidate_id')!r}"
            raise DistributedError(f"{pair}: {row['error']}")
