"""Judgements that came back, into the project's file: rows in = imported + refused with a reason.

Knows what makes a judgement good at the moment of its import; deliberately knows nothing of what it may be used for,
which is decided anew whenever the references are read. The same file again adds nothing.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from semlabel.digests import text_id
from semlabel.errors import LeaseHeld, WarehouseError
from semlabel.judging.files import JUDGEMENT, JudgedRow, read_judged
from semlabel.judging.store import (
    DESIGNS,
    DRAWN,
    LEASE,
    RANDOM,
    Judgement,
    add_judgements,
    judgements_path,
    probability_of,
    read_judgements,
)
from semlabel.online_texts import held_text_ids
from semlabel.reading import reading
from semlabel.sources import ERASED, RefusedRow, label_of, read_catalog, read_entities, text_ids
from semlabel.splits import HELD_OUT, TRAIN

if TYPE_CHECKING:
    import pandas as pd

    from semlabel.operations import Operations
    from semlabel.settings import Settings

NOT_JUDGED, ALREADY = "not judged yet", "already imported"
CHANGED = "a text was changed since the export"
UNCERTAIN = "its text is not the source's, and whether it came online cannot be read now: import again after the run"
HARMLESS = (NOT_JUDGED, ALREADY, ERASED)
"""Reasons that are no fault of the file."""
_Key = tuple[str, str, bool, str, str, str]
"""A pair, what it was judged, how it was picked, and the two texts: the same of another text is another judgement."""


@dataclass(frozen=True)
class Import:
    """What became of the rows of one file."""

    rows_in: int
    imported: list[Judgement]
    refused: list[RefusedRow]
    reasons: Mapping[str, int]

    @property
    def faulty(self) -> int:
        """Refused rows that somebody should look at."""
        return sum(count for reason, count in self.reasons.items() if reason not in HARMLESS)


@dataclass
class _Checks:
    """What rows are held against: text ids of the sources by id, and of the texts that came `online` and hold against
    theirs (None: nobody can say now).
    """

    entities: Mapping[str, str]
    candidates: Mapping[str, str]
    online: Mapping[str, str] | None
    erased: frozenset[str]
    known: set[_Key]
    now: str
    seen: set[_Key] = field(default_factory=set)

    def judgement(self, cells: Mapping[str, str]) -> Judgement | str:
        """The judgement of a row, or why there is none."""
        entity_id, candidate_id = cells["entity_id"], cells["candidate_id"]
        if text_id(entity_id) in self.erased:
            return ERASED
        if entity_id not in self.entities:
            return "unknown entity"
        if candidate_id not in self.candidates:
            return "unknown candidate"
        written = cells.get(JUDGEMENT, "")
        if not written.strip():
            return NOT_JUDGED
        label = label_of(written)
        if label is None:
            return "the judgement is neither yes nor no"
        design, probability = cells["design"], probability_of(cells.get("inclusion_probability", ""))
        if design not in DESIGNS:
            return f"the design is none of {', '.join(DESIGNS)}"
        if design == RANDOM and probability is None:
            return "a random pair without its inclusion probability"
        split = cells.get("split", "")
        if split not in ("", TRAIN, *HELD_OUT):
            return f"the split is none of {', '.join((TRAIN, *HELD_OUT))}"
        texts = (cells["entity_text_id"], cells["candidate_text_id"])
        changed = self._changed(entity_id, candidate_id, texts)
        if changed is not None:
            return changed
        said = (entity_id, candidate_id, label, design, *texts)
        if said in self.known:
            return ALREADY
        if said in self.seen:
            return "duplicate: stands in the file before"
        self.seen.add(said)
        return Judgement(
            *(entity_id, candidate_id, label, design),
            inclusion_probability=probability if design in DRAWN else None,
            entity_text_id=texts[0],
            candidate_text_id=texts[1],
            labeler_digest=cells.get("labeler_digest", ""),
            imported_at=self.now,
            split=split,
        )

    def _changed(self, entity_id: str, candidate_id: str, texts: tuple[str, str]) -> str | None:
        """Why a judgement of these texts is not one of what the pair says now, if so."""
        if texts[1] != self.candidates[candidate_id]:
            return CHANGED
        if texts[0] == self.entities[entity_id]:
            return None
        if self.online is None:
            return UNCERTAIN
        return None if texts[0] == self.online.get(entity_id) else CHANGED


def import_judgements(path: Path, settings: "Settings", operations: "Operations") -> Import:
    """Add the judgements of a CSV or a Label Studio export to the project's file.

    Raises SettingsError where the settings name no file, SourceError where one cannot be read or written.
    """
    target = judgements_path(settings)
    rows = read_judged(path)
    entities, candidates = read_entities(settings).frame, read_catalog(settings).frame
    online = _online(rows, entities, settings)
    with operations.lease(LEASE, f"import-{path.name}", settings.environment.lease_wait_seconds):
        known = read_judgements(settings)
        checks = _Checks(
            entities=text_ids(entities, "entity_id"),
            candidates=text_ids(candidates, "candidate_id"),
            online=online,
            erased=operations.erased_ids(),
            known={(*row.pair, row.label, row.design, row.entity_text_id, row.candidate_text_id) for row in known},
            now=datetime.now(UTC).isoformat(timespec="seconds"),
        )
        imported, refused, reasons = _sorted(rows, checks.judgement)
        if imported:
            add_judgements(target, known, imported)
    if len(imported) + len(refused) != len(rows):
        raise AssertionError(f"{path}: {len(rows)} rows in, {len(imported)} imported, {len(refused)} refused")
    return Import(len(rows), imported, refused, reasons)


def _online(rows: list[JudgedRow], entities: "pd.DataFrame", settings: "Settings") -> Mapping[str, str] | None:
    """The text ids of online texts that hold against the source; None where a run has the warehouse.

    It is looked into only when a row was judged by another text than the source's: an import need not wait for a night.
    """
    now = text_ids(entities, "entity_id")
    judged = [row.cells for row in rows if row.problem is None and row.cells.get(JUDGEMENT, "").strip()]
    differs = any(now.get(cells["entity_id"]) not in (None, cells["entity_text_id"]) for cells in judged)
    if not differs or not settings.paths.warehouse.exists():
        return {}
    try:
        with reading(settings, "import") as warehouse:
            return held_text_ids(warehouse, entities)
    except (LeaseHeld, WarehouseError):
        return None


def _sorted(
    rows: list[JudgedRow], judgement: Callable[[Mapping[str, str]], Judgement | str]
) -> tuple[list[Judgement], list[RefusedRow], Mapping[str, int]]:
    imported: list[Judgement] = []
    refused: list[RefusedRow] = []
    reasons: Counter[str] = Counter()
    for row in rows:
        found = row.problem or judgement(row.cells)
        if isinstance(found, Judgement):
            imported.append(found)
            continue
        reasons[found] += 1
        ids = [row.cells[name] for name in ("entity_id", "candidate_id") if name in row.cells]
        # An erased id is not shown again.
        shown = f"sha256:{text_id(ids[0])}" if found == ERASED else " / ".join(ids) or row.place
        refused.append(RefusedRow("judgements", shown, f"{row.place}: {found}"))
    return imported, refused, dict(reasons)
