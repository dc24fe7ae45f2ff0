"""What the teacher said so far: a CSV of the project's state that only the asset `teacher_labels` writes.

Every pair that was asked stands in it once, answered or not, so that none is asked for again while its texts stay.
Knows its columns and how an answer becomes a judgement; deliberately knows nothing of endpoints or of what it cost.
"""

import csv
import io
from collections.abc import Iterable
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

from semlabel.digests import file_digest
from semlabel.durable import replace_file
from semlabel.errors import SourceError
from semlabel.judging.store import TEACHER, Judgement
from semlabel.source_readers import Wanted, read_delimited
from semlabel.splits import TRAIN

if TYPE_CHECKING:
    from semlabel.settings import Settings

LEASE = "teacher"
"""The lease that whoever writes the file holds."""
SAID = ("yes", "no", "unsure", "refused")


@dataclass(frozen=True)
class Asked:
    """One pair and what the model said of these two texts: one of `SAID`."""

    entity_id: str
    candidate_id: str
    said: str
    model: str
    entity_text_id: str
    candidate_text_id: str
    asked_at: str

    @property
    def pair(self) -> tuple[str, str]:
        """Its ids."""
        return self.entity_id, self.candidate_id


_COLUMNS = tuple(field.name for field in fields(Asked))


def folder(settings: "Settings") -> Path:
    """Where answers are kept: this file, and the cache by content."""
    return settings.paths.state / "teacher"


def read_asked(settings: "Settings") -> list[Asked]:
    """Every pair that was asked; none before the first time. Raises SourceError for a damaged file."""
    path = _file(settings)
    if not path.exists():
        return []
    raw = read_delimited(path.read_bytes(), Wanted(_COLUMNS), str(path))
    for place, reason in raw.refused:
        raise SourceError(f"{path}: {place}: {reason}; take that line out, it is asked for again")
    rows = [Asked(*map(str, cells)) for _, cells in raw.rows]
    for (place, _), row in zip(raw.rows, rows, strict=True):
        if row.said not in SAID:
            raise SourceError(f"{path}: {place}: was not written by a run; take that line out, it is asked for again")
    return rows


def write_asked(settings: "Settings", rows: Iterable[Asked]) -> None:
    """Put `rows` in the place of all; of a pair that stands there twice the last one counts."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_COLUMNS)
    writer.writerows(astuple(row) for row in {row.pair: row for row in rows}.values())
    folder(settings).mkdir(mode=0o700, parents=True, exist_ok=True)
    replace_file(_file(settings), text.getvalue().encode("utf-8"))


def taught_judgements(settings: "Settings") -> list[Judgement]:
    """The answers as judgements that only train. None where the settings name no teacher. Raises SourceError."""
    if settings.teacher.model is None:
        return []
    return [
        Judgement(
            *(*row.pair, row.said == "yes", TEACHER, None, row.entity_text_id, row.candidate_text_id),
            labeler_digest="",
            imported_at=row.asked_at,
            split=TRAIN,
        )
        for row in read_asked(settings)
        if row.said in ("yes", "no")
    ]


def taught_digest(settings: "Settings") -> str | None:
    """The sha256 of the file's bytes; None where there is none, or no teacher."""
    path = _file(settings)
    return file_digest(path) if settings.teacher.model is not None and path.exists() else None


def forget_entity(settings: "Settings", entity_id: str) -> None:
    """Take everything that was said of an entity out of the file."""
    rows = read_asked(settings)
    kept = [row for row in rows if row.entity_id != entity_id]
    if len(kept) != len(rows):
        write_asked(settings, kept)


def _file(settings: "Settings") -> Path:
    return folder(settings) / "labels.csv"
