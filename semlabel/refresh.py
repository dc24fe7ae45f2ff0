"""The refresh: which pairs are missing, planned exactly, persisted, executed in batches and resumed after a kill.

Knows texts, blocks and rounds; deliberately knows nothing of models (one function scores rounds), thresholds or
labels. A margin belongs to (entity text, candidate text, scorer), so the plan is a diff over texts and blocks and not
over pairs: an edited entity is one row, a new candidate one column, a reverted or repeated text nothing.
"""

import hashlib
import time
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple
from uuid import uuid4

import numpy as np

from semlabel.digests import digest_of
from semlabel.errors import PromptError, WarehouseError
from semlabel.progress import Progress, ProgressSink, silent
from semlabel.round_cuts import Rounds
from semlabel.round_stream import Partly, Round, ScoreRound, ScoreRounds, WantedRound, once_each, one_by_one
from semlabel.warehouse import Warehouse
from semlabel.warehouse_scores import ScoredRound, checked_margins, ensure_blocks, scorer_key

if TYPE_CHECKING:
    from semlabel.operations import Operations

STAGE = "scoring"
PAIRS = "scoring pairs"
"""The source of refused rows of single pairs: an entity, and in the reason the candidate."""
# A kill loses at most one uncommitted batch: so no batch is more than this share of the plan.
_BATCH_SHARE = 0.02
_MOST_BLOCKS = 10_000  # that are held at a time: with shortlists there are as many as texts
_MOST_GROUPS = 5_000  # of texts whose blocks are read at a time
_FEW_PAIRS = 32  # rounds of fewer pairs are short: 32 of one pair count as one of 32


@dataclass(frozen=True)
class MissingPairs:
    """What a plan would hold, counted by distinct texts, without making it."""

    pairs: int
    pairs_stored: int
    entities: int


@dataclass(frozen=True)
class RefreshPlan:
    """The rounds whose `pairs` are missing; `pairs_stored` are there already. Pairs are counted by distinct texts.

    `subject_digest` names what was planned for (the warehouse, the texts, the block size): an interrupted plan for the
    same subject is continued.
    """

    plan_id: str
    scorer_digest: str
    subject_digest: str
    rounds: list[Round]
    pairs: int
    pairs_stored: int
    entities: int


@dataclass(frozen=True)
class RefreshOutcome:
    """Pairs scored now, reused from the store and refused by the prompt; wall seconds; labels per second of them.

    `dashboard` is where the scoring could be watched, None where nowhere.
    """

    pairs_scored: int
    pairs_reused: int
    pairs_refused: int
    seconds: float
    labels_per_s: float
    dashboard: str | None = None


class _Diff(NamedTuple):
    """The counts, and what was compared."""

    counts: MissingPairs
    subject: list[object]


def missing_pairs(warehouse: Warehouse, scorer_digest: str, entity_ids: Iterable[str] | None) -> MissingPairs:
    """Count what `plan` would plan; writes nothing, so a read-only warehouse will do."""
    return _diff(warehouse, scorer_digest, entity_ids, _catalog(warehouse)).counts


def plan(
    warehouse: Warehouse, scorer_digest: str, entity_ids: Iterable[str] | None, items_per_round: int
) -> RefreshPlan:
    """Plan exactly the pairs of these entities (None: all) and the catalog that this scorer has no margin for.

    Makes the blocks it needs, at most `items_per_round` candidates each, and reuses identical ones. Raises
    WarehouseError for unknown entity ids.
    """
    catalog = _catalog(warehouse)
    rounds = Rounds(warehouse, catalog, items_per_round)
    diff = _diff(warehouse, scorer_digest, entity_ids, catalog, rounds.take)
    return RefreshPlan(
        plan_id=uuid4().hex,
        scorer_digest=scorer_digest,
        subject_digest=digest_of([*diff.subject, items_per_round]),
        rounds=rounds.made(),
        pairs=diff.counts.pairs,
        pairs_stored=diff.counts.pairs_stored,
        entities=diff.counts.entities,
    )


def execute(
    plan: RefreshPlan,
    warehouse: Warehouse,
    operations: "Operations",
    score_round: ScoreRound,
    run_id: str,
    batch_rounds: int = 8,
    progress: ProgressSink = silent,
) -> RefreshOutcome:
    """`execute_rounds` with one call of `score_round(entity_text, candidate_texts)` per round, in the plan's order."""
    return execute_rounds(plan, warehouse, operations, one_by_one(score_round), run_id, batch_rounds, progress)


def execute_rounds(
    plan: RefreshPlan,
    warehouse: Warehouse,
    operations: "Operations",
    score_rounds: ScoreRounds,
    run_id: str,
    batch_rounds: int = 8,
    progress: ProgressSink = silent,
) -> RefreshOutcome:
    """Score what is missing and commit by batches, in whatever order `score_rounds` gives the rounds back.

    An interrupted plan for the same subject is continued with its own rounds, so that the same candidates meet in the
    same call. What the prompt refuses, a round (PromptError) or some of its candidates (Partly), is kept in
    `refused_rows` with the reason and the rest goes on; any exception ends the refresh, and what was committed stays.
    Raises WarehouseError when a round comes back twice, uncalled or never.
    """
    started = time.perf_counter()
    work = _resumed(plan, warehouse, operations)
    operations.add_to_run(run_id, pairs_reused=plan.pairs_stored)
    batch = _rounds_per_batch(batch_rounds, work)
    candidates = _Candidates(warehouse)
    refused = _Refused(warehouse, candidates)
    books = _Books(operations, run_id, work, plan.pairs)
    scored = refused_pairs = 0
    progress(Progress(STAGE, 0, plan.pairs, "pairs"))
    wanted = _wanted(warehouse, work.rounds, candidates, batch)
    found = once_each(work.rounds, score_rounds(wanted), partial(_named, warehouse))
    fresh: list[ScoredRound] = []
    # Closed at once when the refresh fails: whatever scores elsewhere must not go on behind an error.
    with books, closing(found):
        clock = time.perf_counter()
        for number, (entry, answer) in enumerate(found, start=1):
            keys, _ = candidates.of(entry.block_id)
            if isinstance(answer, PromptError):
                refused.whole(entry, str(answer))
                refused_pairs += len(keys)
            else:
                part = _part(answer, len(keys))
                block_id, kept = candidates.without(entry.block_id, part.problems)
                if kept:
                    fresh.append(ScoredRound(entry.text_key, block_id, kept, part.margins))
                refused.pairs(entry, part.problems)
                scored, refused_pairs = scored + len(kept), refused_pairs + len(keys) - len(kept)
            progress(Progress(STAGE, scored + refused_pairs, plan.pairs, "pairs"))
            if number % batch and number < len(work.rounds):
                continue
            warehouse.commit_scores(fresh, plan.scorer_digest, run_id)
            rounds, pairs = (number - 1) % batch + 1, sum(len(entry.margins) for entry in fresh)
            books.enter(rounds, pairs, scored + refused_pairs, time.perf_counter() - clock)
            fresh, clock = [], time.perf_counter()
    refused.keep(run_id)
    seconds = time.perf_counter() - started
    return RefreshOutcome(scored, plan.pairs_stored, refused_pairs, seconds, scored / seconds if scored else 0.0)


def _part(answer: np.ndarray | Partly, count: int) -> Partly:
    """What was found of a round of `count` candidates, checked: a margin for each that has no problem."""
    part = answer if isinstance(answer, Partly) else Partly(answer, [None] * count)
    if len(part.problems) != count:
        raise WarehouseError(f"{count} candidates of a round came back as {len(part.problems)}; nothing was stored")
    return part._replace(margins=checked_margins(part.margins, part.problems.count(None)))


def _rounds_per_batch(batch_rounds: int, work: "_Work") -> int:
    """As many as the setting says; of short rounds more, so that they can share forwards and commits."""
    wanted = batch_rounds * max(1, _FEW_PAIRS * work.rounds_total // max(1, work.pairs_total))
    return max(1, min(wanted, int(work.rounds_total * _BATCH_SHARE)))


def _wanted(
    warehouse: Warehouse, rounds: Sequence[Round], candidates: "_Candidates", batch: int
) -> Iterator[WantedRound]:
    """The rounds with their texts, which are read as they are needed."""
    for number, start in enumerate(range(0, len(rounds), batch)):
        chunk = rounds[start : start + batch]
        texts = _entity_texts(warehouse, chunk)
        for entry in chunk:
            yield WantedRound(entry, texts[entry.text_key], *candidates.of(entry.block_id), batch=number)


def _named(warehouse: Warehouse, entry: Round) -> str:
    """The first pair of a round in words."""
    rows = warehouse.rows(
        "SELECT candidate_id FROM blocks JOIN catalog ON text_key = candidate_text_key WHERE block_id = ? "
        "ORDER BY blocks.position, candidate_id LIMIT 1",
        [entry.block_id],
    )
    entity_id = next(iter(_entities_of(warehouse, entry.text_key)), None)
    return f"the pair of entity {entity_id!r} and candidate {rows[0][0] if rows else None!r}"


def _diff(
    warehouse: Warehouse,
    scorer_digest: str,
    entity_ids: Iterable[str] | None,
    catalog: list[int],
    take: Callable[[np.ndarray, list[int]], None] = lambda missing, texts: None,
) -> _Diff:
    """Compare texts with the catalog; `take` is told what a group of texts misses, a mask over the catalog."""
    entities = _take_signatures(warehouse, scorer_digest, entity_ids)
    pairs = stored = 0
    for missing, texts in _groups(warehouse, len(catalog)):
        count = int(np.count_nonzero(missing))
        pairs += len(texts) * count
        stored += len(texts) * (len(catalog) - count)
        if count:
            take(missing, texts)
    keys = warehouse.connection.execute("SELECT text_key FROM signatures ORDER BY text_key").fetchnumpy()["text_key"]
    texts_digest = hashlib.sha256(np.asarray(keys, dtype="<i4").tobytes()).hexdigest()
    subject: list[object] = [warehouse.warehouse_id(), texts_digest, catalog]
    warehouse.rows("DROP TABLE signatures")
    return _Diff(MissingPairs(pairs, stored, entities), subject)


def _catalog(warehouse: Warehouse) -> list[int]:
    """The text keys of the catalog, each once, in its order."""
    return [key for (key,) in warehouse.rows("SELECT text_key FROM catalog GROUP BY text_key ORDER BY min(position)")]


def _groups(warehouse: Warehouse, candidates: int) -> Iterator[tuple[np.ndarray, list[int]]]:
    """What texts miss of the catalog, as a mask, and these texts: those with the same blocks are one group.

    Without shortlists there are few groups, so pairs are never enumerated; with them nearly every text is one, so what
    blocks hold is read for some groups at a time.
    """
    groups = warehouse.rows(
        "SELECT block_ids, list(text_key ORDER BY text_key) FROM signatures GROUP BY block_ids ORDER BY min(text_key)"
    )
    for start in range(0, len(groups), _MOST_GROUPS):
        part = groups[start : start + _MOST_GROUPS]
        places = _places(warehouse, {block_id for block_ids, _ in part for block_id in block_ids})
        for block_ids, texts in part:
            missing = np.ones(candidates, dtype=bool)
            for block_id in block_ids:
                missing[places.get(block_id, [])] = False
            yield missing, texts


def _places(warehouse: Warehouse, block_ids: Iterable[int]) -> dict[int, list[int]]:
    """Where in the catalog the candidates of blocks stand; those that have left it stand nowhere."""
    rows = warehouse.rows(
        """SELECT block_id, list(place) FROM blocks
        JOIN (SELECT text_key AS candidate_text_key, row_number() OVER (ORDER BY min(position)) - 1 AS place
              FROM catalog GROUP BY text_key) USING (candidate_text_key)
        WHERE block_id IN (SELECT unnest(?::INTEGER[])) GROUP BY block_id""",
        [sorted(block_ids)],
    )
    return dict(rows)


def _take_signatures(warehouse: Warehouse, scorer_digest: str, entity_ids: Iterable[str] | None) -> int:
    """Fill the temporary table `signatures` with the stored blocks of every text; returns the number of entities."""
    key = scorer_key(warehouse.connection, scorer_digest)
    ids = None if entity_ids is None else sorted(set(entity_ids))
    with warehouse.ids("wanted_entities", ids or []):
        unknown = warehouse.rows("SELECT id FROM wanted_entities ANTI JOIN entities ON entity_id = id LIMIT 1")
        if unknown:
            raise WarehouseError(f"{unknown[0][0]!r} is no entity of the warehouse: read the entities first")
        chosen = "entities" if ids is None else "entities SEMI JOIN wanted_entities ON id = entity_id"
        ((entities,),) = warehouse.rows(f"SELECT count(*) FROM {chosen}")
        warehouse.rows(
            f"""CREATE OR REPLACE TEMP TABLE signatures AS
            SELECT e.text_key, coalesce(list(s.block_id ORDER BY s.block_id) FILTER (s.block_id IS NOT NULL), [])
                   AS block_ids
            FROM (SELECT DISTINCT text_key FROM {chosen}) e
            LEFT JOIN (SELECT text_key, block_id FROM scores WHERE scorer_key = ?) s ON s.text_key = e.text_key
            GROUP BY e.text_key""",
            [-1 if key is None else key],
        )
    return int(entities)


class _Work(NamedTuple):
    """What is left of a plan, and the size of the whole."""

    plan_id: str
    rounds: list[Round]
    rounds_total: int
    pairs_total: int


def _resumed(plan: RefreshPlan, warehouse: Warehouse, operations: "Operations") -> _Work:
    """The open plan for the same subject where it covers exactly what is missing, else this plan, saved."""
    row = operations.open_plan(plan.scorer_digest, plan.subject_digest)
    if row is not None:
        rounds = _decoded(row["payload"])
        remaining = _not_stored(warehouse, plan.scorer_digest, rounds)
        # Scores only grow, so what is missing now was missing then; equal numbers of pairs are equal sets of pairs.
        if _pairs_of(warehouse, remaining) == plan.pairs:
            if not remaining:
                operations.update_plan(row["plan_id"], len(rounds), "done")
            return _Work(row["plan_id"], remaining, len(rounds), row["pairs"])
    if plan.rounds:
        operations.save_plan(
            plan.plan_id,
            plan.scorer_digest,
            plan.subject_digest,
            len(plan.rounds),
            _encoded(plan.rounds),
            pairs=plan.pairs,
        )
    return _Work(plan.plan_id, plan.rounds, len(plan.rounds), plan.pairs)


def _not_stored(warehouse: Warehouse, scorer_digest: str, rounds: Sequence[Round]) -> list[Round]:
    key = scorer_key(warehouse.connection, scorer_digest)
    rows = warehouse.rows("SELECT text_key, block_id FROM scores WHERE scorer_key = ?", [-1 if key is None else key])
    stored = set(rows)
    return [entry for entry in rounds if entry not in stored]


def _pairs_of(warehouse: Warehouse, rounds: Sequence[Round]) -> int:
    sizes = dict(warehouse.rows("SELECT block_id, count(*) FROM blocks GROUP BY block_id"))
    return sum(sizes[entry.block_id] for entry in rounds)


def _encoded(rounds: Sequence[Round]) -> bytes:
    return zlib.compress(np.asarray(rounds, dtype="<i4").tobytes())


def _decoded(payload: bytes) -> list[Round]:
    return [Round(*pair) for pair in np.frombuffer(zlib.decompress(payload), dtype="<i4").reshape(-1, 2).tolist()]


def _entity_texts(warehouse: Warehouse, rounds: Sequence[Round]) -> dict[int, str]:
    keys = sorted({entry.text_key for entry in rounds})
    return dict(
        warehouse.rows(
            "SELECT text_key, any_value(text) FROM entities WHERE text_key IN (SELECT unnest(?::INTEGER[])) "
            "GROUP BY text_key",
            [keys],
        )
    )


def _entities_of(warehouse: Warehouse, text_key: int) -> list[str]:
    return [
        row[0] for row in warehouse.rows("SELECT entity_id FROM entities WHERE text_key = ? ORDER BY 1", [text_key])
    ]


class _Books:
    """Enters batches into `ops.sqlite`: each one, unless they are so quick that entering would slow them down."""

    _SECONDS = 0.2

    def __init__(self, operations: "Operations", run_id: str, work: _Work, pairs_total: int) -> None:
        self._operations, self._run_id, self._work, self._pairs_total = operations, run_id, work, pairs_total
        self._rounds_done = work.rounds_total - len(work.rounds)
        self._pairs, self._pairs_done, self._seconds, self._last = 0, 0, 0.0, 0.0

    def enter(self, rounds: int, pairs: int, pairs_done: int, seconds: float) -> None:
        """Note a committed batch."""
        self._rounds_done += rounds
        self._pairs += pairs
        self._pairs_done = pairs_done
        self._seconds += seconds
        if time.monotonic() - self._last >= self._SECONDS:
            self._write("open")

    def __enter__(self) -> "_Books":
        """Nothing to prepare."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        """Note what is not noted yet; the plan stays open when the refresh was interrupted."""
        if self._work.rounds:
            self._write("open" if error else "done")

    def _write(self, state: str) -> None:
        self._operations.record_batch(
            self._run_id,
            self._work.plan_id,
            rounds_done=self._rounds_done,
            state=state,
            pairs_scored=self._pairs,
            seconds=self._seconds,
            progress=Progress(STAGE, self._pairs_done, self._pairs_total, "pairs"),
        )
        self._pairs, self._seconds, self._last = 0, 0.0, time.monotonic()


class _Candidates:
    """The text keys and texts of blocks, looked up once each; `ids` are the candidates of a text key."""

    def __init__(self, warehouse: Warehouse) -> None:
        self._warehouse = warehouse
        self._texts = dict(warehouse.rows("SELECT text_key, any_value(text) FROM catalog GROUP BY text_key"))
        self._known: dict[int, tuple[list[int], list[str]]] = {}
        self._parts: dict[tuple[int, ...], int] = {}
        self.ids: dict[int, list[str]] = defaultdict(list)
        for key, candidate_id in warehouse.rows("SELECT text_key, candidate_id FROM catalog ORDER BY position"):
            self.ids[key].append(candidate_id)

    def of(self, block_id: int) -> tuple[list[int], list[str]]:
        """Keys and texts of a block's candidates, in its order."""
        if block_id not in self._known:
            if len(self._known) >= _MOST_BLOCKS:
                self._known.clear()
            rows = self._warehouse.rows(
                "SELECT candidate_text_key FROM blocks WHERE block_id = ? ORDER BY position", [block_id]
            )
            keys = [key for (key,) in rows]
            self._known[block_id] = keys, [self._texts[key] for key in keys]
        return self._known[block_id]

    def without(self, block_id: int, problems: Sequence[str | None]) -> tuple[int, list[int]]:
        """The block of those candidates of a block that have no problem, made where it is missing, and their keys."""
        keys, _ = self.of(block_id)
        if problems.count(None) in (0, len(keys)):
            return block_id, keys if None in problems else []
        kept = tuple(key for key, problem in zip(keys, problems, strict=True) if problem is None)
        if kept not in self._parts:
            if len(self._parts) >= _MOST_BLOCKS:
                self._parts.clear()
            with self._warehouse.transaction() as connection:
                (self._parts[kept],) = ensure_blocks(connection, [kept])
        return self._parts[kept], list(kept)


class _Refused:
    """What the prompt refused, for `refused_rows`: whole rounds by their entities, else pairs, by source PAIRS."""

    def __init__(self, warehouse: Warehouse, candidates: _Candidates) -> None:
        self._warehouse, self._candidates = warehouse, candidates
        self._rows: dict[str, list[tuple[str, str]]] = {STAGE: [], PAIRS: []}

    def whole(self, entry: Round, reason: str) -> None:
        """Note a round whose entity is refused."""
        self._note(STAGE, entry, [reason])

    def pairs(self, entry: Round, problems: Sequence[str | None]) -> None:
        """Note the candidates of a round that have a problem; each pair is a row of its own."""
        if any(problems):
            keys, _ = self._candidates.of(entry.block_id)
            found = [(key, problem) for key, problem in zip(keys, problems, strict=True) if problem is not None]
            ids = self._candidates.ids
            self._note(PAIRS, entry, [f"candidate {name!r}: {problem}" for key, problem in found for name in ids[key]])

    def keep(self, run_id: str) -> None:
        """Store what was noted."""
        for source, rows in self._rows.items():
            if rows:
                self._warehouse.add_refused(run_id, source, rows, more=True)

    def _note(self, source: str, entry: Round, reasons: list[str]) -> None:
        ids = _entities_of(self._warehouse, entry.text_key)
        self._rows[source] += [(entity_id, reason) for reason in reasons for entity_id in ids]
