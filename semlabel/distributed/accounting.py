"""Nothing is lost and nothing comes twice: the count of every stage, and the comparison of what came out with what
went in.

Knows ids and nothing of margins. Both sides are compared by the number of their pairs and by a sum of hashes that no
order changes, computed where the rows are; only when these differ are pairs looked for by name.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from semlabel.distributed.config import MisConfig
from semlabel.distributed.prepare import candidates_problem, name
from semlabel.errors import DistributedError

if TYPE_CHECKING:
    from ray.data import Dataset

_NO_ID = "\x00none"
_SUMS = pa.schema([("pairs", pa.int64()), ("sum", pa.uint64())])
_TASK_CPUS = 0.25


def same_rounds(stage: str, before: pa.Table, after: pa.Table) -> pa.Table:
    """`after`, when it has exactly the rounds of `before` in their order. Raises DistributedError naming the first."""
    rounds = [
        list(zip(found["entity_id"].to_pylist(), found["round"].to_pylist(), strict=True)) for found in (before, after)
    ]
    if rounds[0] != rounds[1]:
        wrong = (Counter(rounds[0]) - Counter(rounds[1])) or (Counter(rounds[1]) - Counter(rounds[0]))
        which = next(iter(wrong), "their order")
        raise DistributedError(f"{stage}: {len(rounds[0])} rounds became {len(rounds[1])}; first that differs: {which}")
    return after


def check_exactly_once(entities: "Dataset", found: "Dataset", config: MisConfig) -> int:
    """How many pairs there are. `found` may be read back from wherever it was written.

    Raises DistributedError naming a pair of `entities` that is not in `found`, or is there more than once.
    """
    expected = _expected_pairs(list(config.catalog) if config.catalog is not None else None)
    wanted, seen = _sums(entities, expected), _sums(found, _found_pairs)
    if wanted == seen:
        return wanted[0]
    raise DistributedError(_first_difference(entities, found, expected))


_Pairs = Callable[[Mapping[str, Any]], tuple[str | None, list[str | None]]]


def _expected_pairs(catalog: list[str] | None) -> _Pairs:
    def pairs(row: Mapping[str, Any]) -> tuple[str | None, list[str | None]]:
        if candidates_problem(row, None if catalog is None else len(catalog)) is not None:
            return name(row["entity_id"]), [None]
        own = row.get("candidate_ids")
        return name(row["entity_id"]), [name(one) for one in own] if own is not None else list(catalog or [])

    return pairs


def _found_pairs(row: Mapping[str, Any]) -> tuple[str | None, list[str | None]]:
    if "candidate_ids" not in row:
        return row["entity_id"], [row["candidate_id"]]
    ids = list(row["candidate_ids"])
    return row["entity_id"], ids if ids or row["error"] is None else [None]


def _sums(dataset: "Dataset", pairs: _Pairs) -> tuple[int, int]:
    """How many pairs a dataset has, and the sum of their hashes."""

    def summed(batch: pa.Table) -> pa.Table:
        known = {"entity_id", "candidate_id", "candidate_ids", "candidate_texts", "error"}
        rows = [pairs(row) for row in batch.select([one for one in batch.column_names if one in known]).to_pylist()]
        count = sum(len(ids) for _, ids in rows)
        total = np.add.reduce(_hashes(rows), dtype=np.uint64) if count else np.uint64(0)
        return pa.table({"pairs": [count], "sum": pa.array([int(total)], pa.uint64())}, schema=_SUMS)

    parts = dataset.map_batches(summed, batch_format="pyarrow", batch_size=None, num_cpus=_TASK_CPUS).take_all()
    return sum(part["pairs"] for part in parts), sum(part["sum"] for part in parts) % 2**64


def _hashes(rows: list[tuple[str | None, list[str | None]]]) -> npt.NDArray[np.uint64]:
    entities = np.repeat(_hashed([entity_id for entity_id, _ in rows]), [len(ids) for _, ids in rows])
    candidates = _hashed([one for _, ids in rows for one in ids])
    return _mixed(entities ^ _mixed(candidates + np.uint64(0x9E3779B97F4A7C15)))


def _hashed(ids: list[str | None]) -> npt.NDArray[np.uint64]:
    values = np.array([_NO_ID if one is None else one for one in ids], dtype=object)
    return np.asarray(pd.util.hash_array(values), dtype=np.uint64)


def _mixed(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """splitmix64's finaliser: without it sums of sums would hide a pair that took another's place."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def _first_difference(entities: "Dataset", found: "Dataset", expected: _Pairs) -> str:
    """One pair in words; goes through both sides on the driver, an entity at a time."""
    counts: dict[str | None, int] = defaultdict(int)
    sums: dict[str | None, int] = defaultdict(int)
    for sign, dataset, pairs in ((1, entities, expected), (-1, found, _found_pairs)):
        for row in dataset.iter_rows():
            entity_id, ids = pairs(row)
            counts[entity_id] += sign * len(ids)
            sums[entity_id] += sign * sum(_hashes([(entity_id, ids)]).tolist())
    wrong = next(entity_id for entity_id in sums if counts[entity_id] or sums[entity_id])
    wanted, seen = _candidates_of(wrong, entities, expected), _candidates_of(wrong, found, _found_pairs)
    total = sum(counts.values())
    balance = f"{total} pairs are missing" if total > 0 else f"{-total} pairs are too many" if total else "none in sum"
    missing, more = wanted - seen, seen - wanted
    pair = next(iter(missing or more))
    what = "never came out" if missing else f"came out {seen[pair]} times"
    return f"the pair of entity {wrong!r} and candidate {pair!r} {what} ({balance}); do not use this result"


def _candidates_of(wanted: str | None, dataset: "Dataset", pairs: _Pairs) -> Counter[str | None]:
    """How often each candidate stands in the pairs of one entity."""
    found: Counter[str | None] = Counter()
    for row in dataset.iter_rows():
        entity_id, ids = pairs(row)
        if entity_id == wanted:
            found.update(ids)
    return found
