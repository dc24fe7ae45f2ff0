"""What a run of this project would do and cost: the sources counted, the warehouse asked what it has, time estimated.

Knows nothing of how a run is made; `estimate` does the arithmetic.
"""

import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from semlabel.cli.common import command_for, operations_of, say
from semlabel.digests import text_id
from semlabel.errors import LeaseHeld
from semlabel.estimate import (
    LONG_SECONDS,
    Estimate,
    Sizes,
    Speed,
    duration,
    estimate,
    everybody,
    lengths_of,
    linear_parameters,
    measure_speed,
    scope_of,
    sizes_of,
)
from semlabel.splits import HELD_OUT, TRAIN
from semlabel.warehouse_schema import CHOSEN_FIRST

if TYPE_CHECKING:
    import pandas as pd

    from semlabel.findings import Findings
    from semlabel.foreseen_splits import Foreseen
    from semlabel.judging.store import Judgement
    from semlabel.past_error import PastError
    from semlabel.settings import Settings
    from semlabel.sources import SourceTable
    from semlabel.teacher import Expected

_SCORING_ASSETS = {"checkpoint", "threshold", "predictions"}
_TRAINING_ASSETS = {"checkpoint"}
_TEACHER_ASSETS = {"teacher_labels"}

# Pairs of the given texts that one scorer has margins for. No two rounds of a scorer cover the same pair.
_STORED = """
WITH mine AS (SELECT text_key, block_id FROM scores
              WHERE scorer_key IN (SELECT scorer_key FROM scorers WHERE scorer_digest = ?)),
     sizes AS (SELECT block_id, count(*) AS pairs FROM blocks JOIN texts ON texts.text_key = blocks.candidate_text_key
               WHERE texts.text_id IN (SELECT text_id FROM wanted_candidates) GROUP BY block_id)
SELECT wanted_entities.id, sum(sizes.pairs) AS pairs FROM wanted_entities JOIN texts USING (text_id)
JOIN mine USING (text_key) JOIN sizes USING (block_id) GROUP BY wanted_entities.id"""

# The same where only what stands in shortlists is wanted, and every pair of the entities that gates judge.
_STORED_LISTED = f"""
WITH judged AS (SELECT text_key FROM entities SEMI JOIN reference_labels USING (entity_id)
                WHERE split IN {HELD_OUT}),
     pairs AS (SELECT s.text_key, unnest(b.keys) AS candidate_text_key
               FROM (SELECT text_key, block_id FROM scores
                     WHERE scorer_key IN (SELECT scorer_key FROM scorers WHERE scorer_digest = ?)) s
               JOIN (SELECT block_id, list(candidate_text_key) AS keys FROM blocks GROUP BY block_id) b
               USING (block_id)),
     lists AS (SELECT text_key, unnest(candidate_text_keys) AS candidate_text_key FROM shortlists),
     wanted AS (SELECT * FROM pairs SEMI JOIN judged USING (text_key) UNION
                SELECT * FROM pairs SEMI JOIN lists USING (text_key, candidate_text_key)),
     present AS (SELECT text_key AS candidate_text_key, text_id FROM texts SEMI JOIN wanted_candidates USING (text_id))
SELECT wanted_entities.id, count(*) AS pairs FROM wanted_entities JOIN texts USING (text_id)
JOIN wanted USING (text_key) SEMI JOIN present USING (candidate_text_key) GROUP BY wanted_entities.id"""


@dataclass(frozen=True)
class Inventory:
    """The sources, and what people judged, as they are now, read once."""

    settings: "Settings"
    entities: "SourceTable"
    catalog: "SourceTable"
    references: "SourceTable"
    judgements: "Sequence[Judgement]" = ()

    @classmethod
    def read(cls, settings: "Settings") -> "Inventory":
        """Read the three sources and the judgements, without who was erased. Raises SourceError."""
        from semlabel.judging.store import read_judgements
        from semlabel.judging.taught import taught_judgements
        from semlabel.sources import read_catalog, read_entities, read_references

        operations = operations_of(settings)
        erased = operations.erased_ids() if operations else frozenset()
        tables = read_entities(settings, erased), read_catalog(settings), read_references(settings, erased)
        return cls(settings, *tables, [*read_judgements(settings), *taught_judgements(settings)])

    @cached_property
    def foreseen(self) -> "Foreseen":
        """The splits as the next run will have them."""
        from semlabel.foreseen_splits import foresee

        return foresee(self.settings, self.entities.frame, self.references.frame, self.judgements)

    @cached_property
    def findings(self) -> "Findings":
        """What the tables hold, in plain words."""
        from semlabel.findings import find

        tables = self.entities.frame, self.catalog.frame, self.references.frame
        return find(self.settings, *tables, self.judgements, self.foreseen)

    @cached_property
    def sizes(self) -> Sizes:
        """How many entities and candidates there are for training and for scoring."""
        found, asked = self.foreseen, self._asked_about()
        counted = self._counted(found.entities)
        if found.split_of is None:
            return replace(counted, train=min(counted.train, len(asked)))
        train = sum(split == TRAIN and entity_id in asked for entity_id, split in found.split_of.items())
        return replace(counted, train=train, held_out=len(self._held_out()))

    @property
    def splits_exact(self) -> bool:
        """Whether `sizes` are those that the next run will have, and no guess by the settings alone."""
        return self.foreseen.split_of is not None and self.foreseen.exact

    def _asked_about(self) -> set[str]:
        """The entities that somebody decided something of: only such ones train."""
        return set(self.references.frame["entity_id"]) | {row.entity_id for row in self.judgements}

    def _counted(self, split: int) -> Sizes:
        return sizes_of(self.settings, len(self.entities.frame), len(self.catalog.frame), split)

    def _held_out(self) -> list[str]:
        return [entity_id for entity_id, split in (self.foreseen.split_of or {}).items() if split in HELD_OUT]

    def cost(self, speed: Speed | None, *, training: bool, entities_limit: int | None = None) -> Estimate:
        """The estimate for training and everything after it, or for a night with the promoted labeler."""
        lengths = lengths_of(self.settings, list(self.entities.frame["text"]), list(self.catalog.frame["text"]))
        parameters = linear_parameters(Path(self.settings.model.base))
        stored = {} if training else self.stored(entities_limit)
        # A night that labels everybody asks nothing of splits, which take a while to tell.
        needed = training or self.settings.shortlist.size > 0 or self.settings.scoring.entities == "held_out"
        return estimate(
            self.settings,
            self.sizes if needed else self._counted(0),
            lengths,
            parameters,
            speed,
            training=training,
            stored=stored,
            entities_limit=entities_limit,
        )

    @cached_property
    def teacher(self) -> "Expected | None":
        """What the teacher will be asked and cost at most; None without one."""
        from semlabel.judging.store import still_current
        from semlabel.judging.taught import read_asked
        from semlabel.sources import text_ids
        from semlabel.teacher import expect

        if self.settings.teacher.model is None:
            return None
        entities, candidates, asked = self.entities.frame, self.catalog.frame, read_asked(self.settings)
        if asked:
            asked = still_current(asked, text_ids(entities, "entity_id"), text_ids(candidates, "candidate_id"))
        return expect(self.settings, list(entities["text"]), list(candidates["text"]), len(asked))

    def stored(self, entities_limit: int | None = None) -> dict[int, int]:
        """How many entities in scope have margins of the promoted labeler for how many candidates: pairs -> entities.

        Empty while a run holds the warehouse.
        """
        from semlabel.labeler_files import promoted_path
        from semlabel.manifest import read_manifest
        from semlabel.reading import leased

        promoted, path = promoted_path(self.settings.paths.labelers), self.settings.paths.warehouse
        if promoted is None or not path.exists():
            return {}
        entities, listed = self.entities.frame, self.settings.shortlist.size > 0
        if not everybody(self.settings, entities_limit):
            entities = entities[entities["entity_id"].isin(self._held_out())]
        scorer = read_manifest(promoted).scorer_digest
        try:
            # Short, but without the lease a run that begins at this moment would fail at the lock of the file.
            with leased(self.settings, "estimate", wait_seconds=0):
                return _stored(path, scorer, entities, entities_limit or 0, listed)
        except LeaseHeld:  # a run is writing: whatever it stores is not known yet
            return {}

    def shortlists(self, entities_limit: int | None = None) -> dict[str, Any] | None:
        """How many pairs of the scope shortlists leave out, and how many of them are scored for the gates all the same.

        None where every pair is predicted.
        """
        size, candidates = min(self.settings.shortlist.size, self.sizes.candidates), self.sizes.candidates
        if not size:
            return None
        scope = scope_of(self.settings, self.sizes, entities_limit)
        judged = min(self.sizes.held_out, scope)
        return {
            "size": size,
            "encoder": self.settings.shortlist.encoder,
            "pairs": scope * candidates,
            "predicted": scope * size,
            "not_shortlisted": scope * (candidates - size),
            "scored_to_judge": judged * (candidates - size),
        }


def _stored(path: Path, scorer: str, entities: "pd.DataFrame", limit: int = 0, listed: bool = False) -> dict[int, int]:
    """Stored pairs of an entity -> entities that have so many, of these or of the `limit` that a run would choose."""
    import duckdb
    import pyarrow as pa

    try:
        connection = duckdb.connect(str(path), read_only=True)
    except duckdb.IOException:  # a run is writing: whatever it stores is not known yet
        return {}
    columns = {"entity_id": list(entities["entity_id"]), "text_id": [text_id(text) for text in entities["text"]]}
    with connection:
        connection.register("given", pa.table({name: pa.array(ids, pa.string()) for name, ids in columns.items()}))
        chosen = f"ORDER BY {CHOSEN_FIRST} LIMIT {limit:d}" if limit else ""
        connection.execute(f"CREATE TEMP TABLE wanted_entities AS SELECT entity_id AS id, text_id FROM given {chosen}")
        connection.execute("CREATE TEMP TABLE wanted_candidates AS SELECT DISTINCT text_id FROM catalog")
        # A warehouse of before there were shortlists gets their tables when a run opens it.
        known = connection.execute("SELECT 1 FROM duckdb_tables() WHERE table_name = 'shortlists'").fetchone()
        each = _STORED_LISTED if listed and known else _STORED
        connection.execute(f"SELECT pairs, count(*) FROM ({each}) GROUP BY pairs", [scorer])
        return {int(pairs): entities for pairs, entities in connection.fetchall()}


def speed_of(settings: "Settings") -> Speed:
    """The machine's speed in the precision and on the device that would serve; takes one second, imports torch."""
    from semlabel.models import resolve_device, resolve_precision

    device = resolve_device(settings.model.device)
    return measure_speed(resolve_precision(settings.model.precision, device), device)


def past_error_of(settings: "Settings", result: Estimate) -> "PastError | None":
    """What the estimate missed by when the promoted labeler scored before; None where nothing is to be scored."""
    from semlabel.labeler_files import promoted_path
    from semlabel.manifest import read_manifest
    from semlabel.past_error import past_error

    promoted, operations, scoring = promoted_path(settings.paths.labelers), operations_of(settings), result.work[-1]
    seconds = result.seconds_of(scoring)
    if promoted is None or operations is None or not seconds:
        return None
    scorer, lengths = read_manifest(promoted).scorer_digest, result.lengths
    return past_error(operations.finished_plans(), scorer, lengths.query, lengths.item, seconds / scoring.tokens)


def announce(settings: "Settings", asset_names: Iterable[str], entities_limit: int | None) -> None:
    """Before a run: say what it will cost, and offer a smaller profile where it is long. Says nothing of quick runs."""
    names = set(asset_names)
    inventory = Inventory.read(settings) if names & {*_SCORING_ASSETS, *_TEACHER_ASSETS} else None
    if inventory is not None and names & _TEACHER_ASSETS and inventory.teacher is not None:
        say(inventory.teacher.sentence())
    if inventory is None or not names & _SCORING_ASSETS:
        return
    training = bool(names & _TRAINING_ASSETS)
    without_time = inventory.cost(None, training=training, entities_limit=entities_limit)
    if without_time.seconds == 0:
        return
    known = without_time.parameters is not None
    result = (
        inventory.cost(speed_of(settings), training=training, entities_limit=entities_limit) if known else without_time
    )
    resumed = training and any(settings.paths.checkpoints.glob("*"))
    say(result.sentence() + (" Less where an earlier run left off." if resumed else ""))
    advice = smaller_profile(settings, result)
    if advice:
        say(advice)


def smaller_profile(settings: "Settings", result: Estimate) -> str | None:
    """Where a run is long, an offer: the largest quick profile (a settings file beside this one that extends it)."""
    if result.seconds is None or result.seconds <= LONG_SECONDS or result.speed is None:
        return None
    fitting: list[tuple[float, Settings]] = []
    for other in _profiles_of(settings):
        cost = Inventory.read(other).cost(result.speed, training=True)
        if cost.seconds is not None and cost.seconds < min(LONG_SECONDS, result.seconds):
            fitting.append((cost.seconds, other))
    if not fitting:
        return "That is long. Lower [training] max_pairs or [sources] catalog_top for a first look."
    seconds, best = max(fitting, key=lambda pair: pair[0])
    return f"That is long. A smaller profile takes about {duration(seconds)}: {command_for(best, 'run')}"


def _profiles_of(settings: "Settings") -> list["Settings"]:
    from semlabel.errors import SettingsError
    from semlabel.settings import load_settings

    found = []
    for file in sorted(settings.root.glob("*.toml")):
        try:
            extends = tomllib.loads(file.read_text(encoding="utf-8")).get("extends")
            if isinstance(extends, str) and (file.parent / extends).resolve() == settings.path.resolve():
                found.append(load_settings(file))
        except (OSError, ValueError, SettingsError):
            continue  # somebody else's file: this is an offer, not a check of it
    return found
