"""The judgements file of a project: what people decided about exported pairs, and how those had been picked.

A CSV that only grows, named by `[sources] judgements`; whoever writes it puts a whole new file in its place. Knows its
columns; deliberately knows nothing of exports, or of which judgements can be used.
"""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

from semlabel.digests import file_digest
from semlabel.durable import replace_file
from semlabel.errors import SettingsError, SourceError
from semlabel.source_readers import Wanted, read_delimited
from semlabel.sources import label_of
from semlabel.splits import TRAIN

if TYPE_CHECKING:
    from semlabel.settings import Settings

LEASE = "judgements"
"""The lease that whoever writes the file holds."""
RANDOM = "random"
NEAR_THRESHOLD, THIN_CANDIDATE, DISAGREEMENT = (
    f"active:{name}" for name in ("near_threshold", "thin_candidate", "disagreement")
)
STRATIFIED = "stratified"
"""Drawn by chance from strata of similar texts, before any labeler has labeled."""
TEACHER = "teacher"
"""Said by a large model, however the pair was picked."""
DRAWN = (RANDOM, STRATIFIED)
"""Designs whose pairs have an inclusion probability."""
DESIGNS = (RANDOM, STRATIFIED, NEAR_THRESHOLD, THIN_CANDIDATE, DISAGREEMENT, TEACHER)


@dataclass(frozen=True)
class Judgement:
    """What one pair was judged, by which texts, and how it was picked: `inclusion_probability` where chance drew it,
    `split` of its entity then ("" in files that were written before splits were kept).
    """

    entity_id: str
    candidate_id: str
    label: bool
    design: str
    inclusion_probability: float | None
    entity_text_id: str
    candidate_text_id: str
    labeler_digest: str
    imported_at: str
    split: str = ""

    @property
    def pair(self) -> tuple[str, str]:
        """Its ids."""
        return self.entity_id, self.candidate_id


class OfTexts(Protocol):
    """What was said of a pair, and of which two texts."""

    @property
    def entity_id(self) -> str: ...
    @property
    def candidate_id(self) -> str: ...
    @property
    def entity_text_id(self) -> str: ...
    @property
    def candidate_text_id(self) -> str: ...


Said = TypeVar("Said", bound=OfTexts)


def still_current(
    rows: Iterable[Said], entity_text_ids: Mapping[str, str], candidate_text_ids: Mapping[str, str]
) -> list[Said]:
    """The rows whose texts are what they were. Nothing is known of a pair by what was said of other texts."""
    return [
        row
        for row in rows
        if (entity_text_ids.get(row.entity_id), candidate_text_ids.get(row.candidate_id))
        == (row.entity_text_id, row.candidate_text_id)
    ]


_COLUMNS = tuple(field.name for field in fields(Judgement))
_ADDED = ("split",)


def judgements_path(settings: "Settings") -> Path:
    """The file of this project. Raises SettingsError where the settings name none."""
    named = settings.sources.judgements
    if named is None:
        raise SettingsError(
            f'{settings.path}: judgements have no place yet; set [sources] judgements = "judgements.csv"'
        )
    return Path(named)


def read_judgements(settings: "Settings") -> list[Judgement]:
    """Every judgement, in the order of import; none before a first import. Raises SourceError for a damaged file."""
    if settings.sources.judgements is None or not Path(settings.sources.judgements).exists():
        return []
    path = Path(settings.sources.judgements)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise SourceError(f"{path}: cannot be read: {error.strerror}") from None
    needed = tuple(name for name in _COLUMNS if name not in _ADDED)
    raw = read_delimited(content, Wanted(needed, _ADDED), str(path))
    for place, reason in raw.refused:
        raise SourceError(f"{path}: {place}: {reason}; mend that line or take it out")
    return [
        _judgement(path, place, {name: str(cell) for name, cell in zip(raw.names, cells, strict=True)})
        for place, cells in raw.rows
    ]


def pinned_splits(judgements: Iterable[Judgement]) -> dict[str, str]:
    """The split that every judged entity was in when it was exported.

    Weeks may lie between an export and the first run. An entity that moved meanwhile would make its judgements
    useless; one that a picked pair is of trains, whatever else was said of it.
    """
    pinned: dict[str, str] = {}
    for row in judgements:
        if row.design != RANDOM:
            pinned[row.entity_id] = TRAIN
        elif row.split:
            pinned.setdefault(row.entity_id, row.split)
    return pinned


def judgements_digest(settings: "Settings") -> str | None:
    """The sha256 of the file's bytes; None where there is none."""
    named = settings.sources.judgements
    return file_digest(Path(named)) if named is not None and Path(named).exists() else None


def add_judgements(path: Path, known: Sequence[Judgement], fresh: Iterable[Judgement]) -> None:
    """Put the `fresh` judgements behind the `known` ones, in one durable step."""
    _write(path, [*known, *fresh])


def forget_entity(settings: "Settings", entity_id: str) -> None:
    """Take every judgement of an entity out of the file."""
    known = read_judgements(settings)
    kept = [row for row in known if row.entity_id != entity_id]
    if len(kept) != len(known):
        _write(judgements_path(settings), kept)


def _write(path: Path, rows: Iterable[Judgement]) -> None:
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for row in rows:
        probability = "" if row.inclusion_probability is None else repr(row.inclusion_probability)
        label = "yes" if row.label else "no"
        values = dict(zip(_COLUMNS, astuple(row), strict=True)) | {"label": label, "inclusion_probability": probability}
        writer.writerow(values.values())
    try:
        replace_file(path, text.getvalue().encode("utf-8"))
    except OSError as error:
        raise SourceError(f"{path}: cannot be written: {error.strerror or error}") from None


def _judgement(path: Path, place: str, values: dict[str, str]) -> Judgement:
    label = label_of(values["label"])
    probability = probability_of(values["inclusion_probability"])
    if label is None or values["design"] not in DESIGNS or (values["design"] == RANDOM and probability is None):
        raise SourceError(f"{path}: {place}: was not written by an import; mend that line or take it out")
    return Judgement(**(values | {"label": label, "inclusion_probability": probability}))  # type: ignore[arg-type]


def probability_of(written: str) -> float | None:
    """An inclusion probability above 0 and at most 1; None for anything else."""
    try:
        found = float(written)
    except ValueError:
        return None
    return found if 0 < found <= 1 else None
