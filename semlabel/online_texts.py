"""Texts that came online: taken from the spool into the warehouse, and held against a source that lags.

Knows segments, versions and texts; deliberately knows nothing of servers, models or labels. A segment is taken in one
transaction that also notes its name, so a kill at any point neither loses nor doubles an update.

The rule for a night's source, which may have no versions: an online text holds as long as the source says what is
older (what the entity had when the update was accepted, or an online text of a lower version). Any other text of the
source is newer and takes over. Where the source's `text_version` is a number, the higher version counts instead.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from semlabel import spool
from semlabel.digests import text_id
from semlabel.sources import ERASED
from semlabel.spool import Update
from semlabel.text_versions import number_of
from semlabel.warehouse import Warehouse
from semlabel.warehouse_file import first
from semlabel.warehouse_scores import ScoredRound, ensure_blocks, store_rounds

if TYPE_CHECKING:
    import duckdb
    import pandas as pd

SOURCE = "updates"
HELD, CAUGHT_UP, OVERTAKEN = "held", "caught_up", "overtaken"
_COLUMNS = "text_version, text, text_id, state, older"


@dataclass
class Ingested:
    """What was taken from the spool: segments, updates by outcome, margins stored, and lines nobody can read.

    `rescored`: updates whose text was taken and whose margins are another scorer's. `torn`: unfinished last lines.
    """

    segments: int = 0
    updates: int = 0
    superseded: int = 0
    repeated: int = 0
    rescored: int = 0
    refused: int = 0
    pairs: int = 0
    torn: int = 0
    warnings: list[str] = field(default_factory=list)


class Resolved(NamedTuple):
    """The entities with the texts that count, and how many online texts hold, were caught up with, were overtaken."""

    frame: "pd.DataFrame"
    held: int
    caught_up: int
    overtaken: int
    warnings: list[str]


class _Row(NamedTuple):
    """An entity's newest online text; `older` are ids of texts that are older than it."""

    version: int
    text: str | None
    text_id: str
    state: str
    older: list[str]


def ingest(
    warehouse: Warehouse,
    folder: Path,
    scorer_digest: str | None,
    run_id: str,
    items_per_round: int,
    erased: Collection[str] = (),
    at: Callable[[str], None] = lambda step: None,
) -> Ingested:
    """Take over every update that was written until now; margins only where `scorer_digest` made them.

    Updates of `erased` entities (digests of ids) are refused. `at` is told where each segment stands: `commit`,
    `remove`. What cannot be taken is kept in `refused_rows` with the reason.
    """
    done = Ingested()
    if not folder.exists():
        return done
    spool.seal_all(folder)
    known = {name for (name,) in warehouse.rows("SELECT name FROM ingested_segments")}
    for path in spool.sealed(folder):
        content = spool.read(path)
        if path.name not in known:
            with warehouse.transaction() as connection:
                taking = _Taking(connection, scorer_digest, run_id, items_per_round, frozenset(erased), done)
                taking.take(path.name, content)
                at("commit")
            done.segments += 1
            done.torn += content.torn
            if content.damaged:
                lines = len(content.damaged)
                done.warnings.append(f"{path}: {lines} damaged lines were left; the segment stays as {spool.DAMAGED}")
        at("remove")
        spool.remove(path, bool(content.damaged))
    return done


class _Taking:
    """One segment inside one transaction."""

    def __init__(
        self,
        connection: "duckdb.DuckDBPyConnection",
        scorer_digest: str | None,
        run_id: str,
        items_per_round: int,
        erased: frozenset[str],
        done: Ingested,
    ) -> None:
        self.connection, self.scorer_digest, self.run_id = connection, scorer_digest, run_id
        self.items_per_round, self.erased, self.done = items_per_round, erased, done
        self.now = datetime.now(UTC).replace(tzinfo=None)

    def take(self, name: str, content: spool.Content) -> None:
        for line, problem in content.damaged:
            self._refuse(f"{name} line {line}", problem)
        newest: dict[str, Update] = {}
        for update in sorted(content.updates, key=lambda each: each.text_version):
            if self._enter(update):
                newest[update.entity_id] = update
        own = [update for update in newest.values() if update.scorer_digest == self.scorer_digest]
        self.done.rescored += len(newest) - len(own)
        self._store_margins(own)
        self.connection.execute(
            "INSERT INTO ingested_segments VALUES (?, ?, ?, ?)", [name, len(content.updates), self.run_id, self.now]
        )

    def _enter(self, update: Update) -> bool:
        """Make the update the entity's online text if it is the newest one."""
        digest = text_id(update.text)
        if text_id(update.entity_id) in self.erased:
            self._refuse(f"sha256:{text_id(update.entity_id)}", ERASED)
            return False
        row = _row(self.connection, update.entity_id)
        if row is not None and update.text_version <= row.version:
            self._enter_older(update, row, digest)
            return False
        older = self._texts_at(update)
        accepted = _moment(update)
        if row is not None:
            # What the source has moved past, or caught up with, says nothing of what it will say next.
            older += [*row.older, row.text_id] if row.state == HELD else []
            self._remember(update.entity_id, row, accepted)
        self.connection.execute("DELETE FROM online_texts WHERE entity_id = ?", [update.entity_id])
        self.connection.execute(
            "INSERT INTO online_texts VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            [
                *(update.entity_id, update.text_version, update.text, digest, HELD),
                *(list(dict.fromkeys(older)), accepted, self.run_id),
            ],
        )
        self.done.updates += 1
        return True

    def _enter_older(self, update: Update, row: _Row, digest: str) -> None:
        if update.text_version < row.version:
            self.done.superseded += 1
            if digest not in row.older:
                self.connection.execute(
                    "UPDATE online_texts SET older = list_append(older, ?) WHERE entity_id = ?",
                    [digest, update.entity_id],
                )
        elif digest == row.text_id:
            self.done.repeated += 1
        else:
            self._refuse(update.entity_id, f"text_version {update.text_version} came before with another text")

    def _texts_at(self, update: Update) -> list[str]:
        """The id of the text that the entity had when the update was accepted."""
        found = first(
            self.connection,
            "SELECT text_id FROM former_texts JOIN texts USING (text_key) WHERE entity_id = ? AND since > ? "
            "ORDER BY since LIMIT 1",
            [update.entity_id, _moment(update)],
        ) or first(self.connection, "SELECT text_id FROM entities WHERE entity_id = ?", [update.entity_id])
        return [found[0]] if found else []

    def _remember(self, entity_id: str, row: _Row, since: datetime) -> None:
        """Keep in `former_texts` what an erasure must find although the entity itself may never have had it."""
        self.connection.execute(
            "INSERT INTO former_texts SELECT ?, text_key, ? FROM texts WHERE text_id IN (SELECT unnest(?::VARCHAR[])) "
            "AND text_key NOT IN (SELECT text_key FROM former_texts WHERE entity_id = ?)",
            [entity_id, since, [*row.older, row.text_id], entity_id],
        )

    def _store_margins(self, updates: Sequence[Update]) -> None:
        parts: dict[tuple[int, tuple[int, ...]], np.ndarray] = {}
        keys = _text_keys(self.connection, {each for update in updates for each in update.candidate_text_ids})
        for update in updates:
            # A text under two ids is one pair; a candidate that the warehouse does not know has no use for a margin.
            margins: dict[int, np.float32] = {}
            for candidate, margin in zip(update.candidate_text_ids, update.margins, strict=True):
                if candidate in keys:
                    margins.setdefault(keys[candidate], margin)
            text_key, wanted = _ensure_text(self.connection, text_id(update.text)), tuple(margins)
            for start in range(0, len(wanted), self.items_per_round):
                chunk = wanted[start : start + self.items_per_round]
                parts.setdefault((text_key, chunk), np.array([margins[key] for key in chunk], dtype=np.float32))
        chunks = list(dict.fromkeys(chunk for _, chunk in parts))
        blocks = dict(zip(chunks, ensure_blocks(self.connection, chunks), strict=True))
        rounds = [ScoredRound(text_key, blocks[chunk], chunk, part) for (text_key, chunk), part in parts.items()]
        self.done.pairs += store_rounds(self.connection, rounds, self.scorer_digest or "", self.run_id)

    def _refuse(self, row_id: str, reason: str) -> None:
        self.done.refused += 1
        self.connection.execute(
            "INSERT INTO refused_rows VALUES (?, ?, ?, ?, ?)", [self.run_id, SOURCE, row_id, reason, self.now]
        )


def resolve(warehouse: Warehouse, frame: "pd.DataFrame") -> Resolved:
    """The source's entities (entity_id, text, text_version) with the online texts that hold against them."""
    known = _known(warehouse)
    warnings: list[str] = []
    if not known:
        return Resolved(frame, 0, 0, 0, warnings)
    ids, texts, versions = (frame[name].to_list() for name in ("entity_id", "text", "text_version"))
    states = _states(known, frame)
    for place, entity_id in enumerate(ids):
        if states.get(entity_id) == HELD:
            row = known[entity_id]
            if number_of(versions[place]) == row.version and text_id(texts[place]) != row.text_id:
                warnings.append(f"{entity_id!r}: text_version {row.version} has another text online, which holds")
            texts[place], versions[place] = row.text, str(row.version)
    changed = [[state, entity_id] for entity_id, state in states.items() if state != known[entity_id].state]
    if changed:
        with warehouse.transaction() as connection:
            connection.executemany("UPDATE online_texts SET state = ?, text = NULL WHERE entity_id = ?", changed)
    held, caught_up, overtaken = (list(states.values()).count(state) for state in (HELD, CAUGHT_UP, OVERTAKEN))
    resolved = frame.assign(text=texts, text_version=versions)
    return Resolved(resolved, held, caught_up, overtaken, warnings)


def held_text_ids(warehouse: Warehouse, frame: "pd.DataFrame") -> dict[str, str]:
    """By entity the id of the online text that holds against what this source (as for `resolve`) says now; nothing is
    written. The next run gives these entities those texts.
    """
    known = _known(warehouse)
    return {entity_id: known[entity_id].text_id for entity_id, state in _states(known, frame).items() if state == HELD}


def _known(warehouse: Warehouse) -> dict[str, _Row]:
    rows = warehouse.rows(f"SELECT entity_id, {_COLUMNS} FROM online_texts")
    return {entity_id: _Row(*row) for entity_id, *row in rows}


def _states(known: Mapping[str, _Row], frame: "pd.DataFrame") -> dict[str, str]:
    """What the online text of every entity of the source is that has one."""
    rows = zip(frame["entity_id"], frame["text"], frame["text_version"], strict=True)
    return {
        entity_id: _state(known[entity_id], text_id(text), version)
        for entity_id, text, version in rows
        if entity_id in known
    }


def _state(row: _Row, source_text_id: str, source_version: str) -> str:
    """What an online text is beside what the source says now."""
    same = source_text_id == row.text_id
    if row.state != HELD:
        return CAUGHT_UP if same and row.state == CAUGHT_UP else OVERTAKEN
    number = number_of(source_version)
    if number is not None:
        if number == row.version:
            return CAUGHT_UP if same else HELD
        return OVERTAKEN if number > row.version else HELD
    # A text that was left and came back may be the source's lag or its news: the update is what is certain.
    if source_text_id in row.older:
        return HELD
    return CAUGHT_UP if same else OVERTAKEN


def _row(connection: "duckdb.DuckDBPyConnection", entity_id: str) -> _Row | None:
    found = first(connection, f"SELECT {_COLUMNS} FROM online_texts WHERE entity_id = ?", [entity_id])
    return _Row(*found) if found else None


def _text_keys(connection: "duckdb.DuckDBPyConnection", ids: Iterable[str]) -> dict[str, int]:
    rows: list[tuple[Any, ...]] = connection.execute(
        "SELECT text_id, text_key FROM texts SEMI JOIN (SELECT unnest(?::VARCHAR[]) AS text_id) USING (text_id)",
        [list(ids)],
    ).fetchall()
    return {str(identity): int(key) for identity, key in rows}


def _ensure_text(connection: "duckdb.DuckDBPyConnection", digest: str) -> int:
    known = _text_keys(connection, [digest])
    if digest not in known:
        connection.execute(
            "INSERT INTO texts (text_key, text_id) SELECT CAST(nextval('text_keys') AS INTEGER), ?", [digest]
        )
        known = _text_keys(connection, [digest])
    return known[digest]


def _moment(update: Update) -> datetime:
    return datetime.fromisoformat(update.accepted_at).astimezone(UTC).replace(tzinfo=None)
