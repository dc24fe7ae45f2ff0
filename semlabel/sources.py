"""People's tables, read so that nothing is lost or changed: rows in = rows kept + rows refused + rows that add nothing.

Decides which ids, texts, labels and versions are good, and what duplicates mean. Knows nothing of file formats (that
is `source_readers`), of the warehouse, or of which references fit which entities (that is `references`).
"""

import hashlib
import re
import unicodedata
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from semlabel import source_readers
from semlabel.digests import text_id
from semlabel.errors import SourceError
from semlabel.settings import LOGICAL_COLUMNS, Settings, SourceName
from semlabel.source_readers import ABSENT, Cell, NotText, RawTable, Wanted, Written
from semlabel.text_versions import order_of

if TYPE_CHECKING:
    import pandas as pd

EXAMPLES = 5
ERASED = "erased"
"""The reason of a row whose entity was erased; its id is not kept again, only its digest."""
_SURROGATE = re.compile("[\ud800-\udfff]")
_INVISIBLE = {"Cc", "Cf", "Zs", "Zl", "Zp"}
_NO_REFERENCES = '; while nobody has judged anything, say so: [sources] references = "" and unlisted = "unknown"'
_YES = {"1", "true", "yes"}
_NO = {"0", "false", "no"}
_READERS: dict[str, Callable[[bytes, Wanted, str], RawTable]] = {
    ".csv": source_readers.read_delimited,
    ".tsv": source_readers.read_delimited,
    ".txt": source_readers.read_delimited,
    ".jsonl": source_readers.read_json_lines,
    ".ndjson": source_readers.read_json_lines,
    ".parquet": source_readers.read_parquet,
    ".pq": source_readers.read_parquet,
}


@dataclass(frozen=True)
class RefusedRow:
    """A row that was not taken: its source, its id (or place where the id is unusable) and one reason."""

    source: str
    row_id: str
    reason: str


@dataclass(frozen=True)
class SourceTable:
    """What one source holds. `frame` has text columns only, `label` excepted (bool); absent optional columns are "".

    `redundant` counts rows that say nothing new and are no fault: superseded versions, references listed again.
    `digest` is the sha256 of the file's bytes, or of the query's rows in any order. `unreadable` are the pairs (entity,
    candidate) of references that were refused for nothing but their label: somebody meant something by them.
    """

    frame: "pd.DataFrame"
    refused: list[RefusedRow]
    warnings: list[str]
    rows_in: int
    digest: str
    path: str
    redundant: int = 0
    unreadable: frozenset[tuple[str, str]] = frozenset()

    def __post_init__(self) -> None:
        kept, refused = len(self.frame), len(self.refused)
        if self.rows_in != kept + refused + self.redundant:
            raise AssertionError(
                f"{self.path}: {self.rows_in} rows in, but {kept} kept, {refused} refused, {self.redundant} redundant"
            )


@dataclass(slots=True)
class _Row:
    """A row on its way: `values` by logical name once its cells are good."""

    place: str
    values: dict[str, Any]


@dataclass
class _Reading:
    """One source while it is read."""

    source: SourceName
    rows: list[_Row] = field(default_factory=list)
    refused: list[RefusedRow] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    redundant: int = 0
    unreadable: set[tuple[str, str]] = field(default_factory=set)

    def refuse(self, row: _Row, reason: str) -> None:
        ids = [row.values[name] for name in LOGICAL_COLUMNS[self.source] if name.endswith("_id") and name in row.values]
        self.refused.append(RefusedRow(self.source, " / ".join(ids) or row.place, f"{row.place}: {reason}"))


class _BadCell(Exception):
    """Why a cell cannot be used. Never leaves this module."""


def read_entities(settings: Settings, erased: Collection[str] = ()) -> SourceTable:
    """The entities: frame (entity_id, text, text_version). The highest version of an id counts.

    Rows of erased ids (given by their digests) are refused. Raises SourceError when the source is missing, unreadable
    or lacks a column.
    """
    return _read_texts(settings, "entities", "entity_id", "text_version", erased)


def read_catalog(settings: Settings) -> SourceTable:
    """The candidates: frame (candidate_id, text, group), in the order of the source. Raises SourceError."""
    return _read_texts(settings, "catalog", "candidate_id", "group")


def read_references(settings: Settings, erased: Collection[str] = ()) -> SourceTable:
    """The reference labels: frame (entity_id, candidate_id, label: bool), a pair listed again counted as redundant.

    Without a label column every row is a YES, provided that `unlisted` is "negative". Rows of erased entities (given
    by their ids' digests) are refused. No rows where the settings name no references. Raises SourceError.
    """
    if settings.sources.references is None:
        return _table(_Reading("references"), RawTable([]), hashlib.sha256(b"").hexdigest(), "(none named)")
    unlisted = settings.sources.unlisted
    raw, digest, path = _read_raw(settings, "references", required_label=unlisted == "unknown")
    reading = _Reading("references", warnings=list(raw.warnings))
    converters = {"entity_id": _id, "candidate_id": _id, "label": _label}
    _convert(raw, settings, reading, converters)
    _refuse_erased(reading, erased)
    if settings.sources.columns_for("references")["label"] not in raw.names:
        reading.warnings.append("no label column: every row counts as YES")
    seen: set[tuple[str, str, bool]] = set()
    kept: list[_Row] = []
    for row in reading.rows:
        row.values.setdefault("label", True)
        triple = (row.values["entity_id"], row.values["candidate_id"], row.values["label"])
        if triple in seen:
            reading.redundant += 1
        else:
            seen.add(triple)
            kept.append(row)
    reading.rows = kept
    if reading.redundant:
        reading.warnings.append(f"{reading.redundant} references are listed more than once")
    return _table(reading, raw, digest, path)


def text_ids(frame: "pd.DataFrame", key: str) -> dict[str, str]:
    """The text id of every id of a frame of entities or candidates (columns `key` and text)."""
    return {str(name): text_id(str(text)) for name, text in zip(frame[key], frame["text"], strict=True)}


def _read_texts(
    settings: Settings, source: SourceName, id_name: str, extra: str, erased: Collection[str] = ()
) -> SourceTable:
    raw, digest, path = _read_raw(settings, source)
    reading = _Reading(source, warnings=list(raw.warnings))
    mended: list[str] = []

    def text(cell: Cell) -> str:
        clean, count = _SURROGATE.subn("\ufffd", _text(cell))
        mended.extend([clean] * bool(count))
        return clean

    extra_cell = _version if extra == "text_version" else _optional_text
    _convert(raw, settings, reading, {id_name: _id, "text": text, extra: extra_cell})
    _refuse_erased(reading, erased)
    if mended:
        reading.warnings.append(f"{len(mended)} texts hold lone surrogates; they became U+FFFD")
    for row in reading.rows:
        row.values.setdefault(extra, "")
    if extra == "text_version":
        _keep_latest(reading)
    _refuse_duplicates(reading, id_name, ("text", extra))
    _warn_same_texts(reading, id_name)
    _warn_alike_ids(reading, id_name)
    return _table(reading, raw, digest, path)


def _read_raw(settings: Settings, source: SourceName, required_label: bool = False) -> tuple[RawTable, str, str]:
    """Rows of untouched cells, the digest of the source, and how to call it."""
    location: str = getattr(settings.sources, source)
    columns = settings.sources.columns_for(source)
    optional = [name for name in ("text_version", "group", "label") if name in columns]
    if required_label or _is_mapped(settings, source, optional):
        optional = []
    wanted = Wanted(
        required=tuple(actual for name, actual in columns.items() if name not in optional),
        optional=tuple(columns[name] for name in optional),
    )
    if location.startswith("duckdb:"):
        memory_limit, temporary = settings.scoring.memory_limit, settings.paths.temporary
        raw, digest = source_readers.read_duckdb(location.removeprefix("duckdb:"), wanted, memory_limit, temporary)
        return raw, digest, location
    path = Path(location)
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        raise SourceError(f"{path}: expected {', '.join(sorted(_READERS))} or duckdb:PATH#SQL, found {path.suffix!r}")
    hint = _NO_REFERENCES if source == "references" else ""
    content = _read_bytes(path, hint)
    if hint and not content.strip():
        raise SourceError(f"{path}: is empty; expected a header with {', '.join(wanted.required)}{hint}")
    return reader(content, wanted, str(path)), hashlib.sha256(content).hexdigest(), str(path)


def _is_mapped(settings: Settings, source: SourceName, optional: Sequence[str]) -> bool:
    """Whether an optional column was given a name in the settings: then its absence is a mistake."""
    columns = settings.sources.columns
    given = columns.model_fields_set | set(getattr(columns, source))
    return any(name in given or (name == "group" and "candidate_group" in given) for name in optional)


def _read_bytes(path: Path, hint: str) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise SourceError(f"{path}: no such file; mend its path in [sources] or on the command line{hint}") from None
    except OSError as error:
        raise SourceError(f"{path}: cannot be read: {error.strerror}") from None


def _convert(
    raw: RawTable, settings: Settings, reading: _Reading, converters: Mapping[str, Callable[[Cell], Any]]
) -> None:
    """Fill `reading.rows` with the good rows of `raw`, `reading.refused` with the others."""
    for place, reason in raw.refused:
        reading.refused.append(RefusedRow(reading.source, place, f"{place}: {reason}"))
    columns = settings.sources.columns_for(reading.source)
    plan = [
        (name, columns[name], raw.names.index(columns[name]), convert)
        for name, convert in converters.items()
        if columns[name] in raw.names
    ]
    for place, cells in raw.rows:
        row = _Row(place, {})
        problem = None
        for name, column, position, convert in plan:
            if cells[position] is ABSENT:
                problem = problem or f"has no {column}"
                continue
            try:
                row.values[name] = convert(cells[position])
            except _BadCell as error:
                problem = problem or f"{column} {error}"
        if problem is None:
            reading.rows.append(row)
        else:
            reading.refuse(row, problem)
            if reading.source == "references" and {"entity_id", "candidate_id"} <= row.values.keys():
                reading.unreadable.add((row.values["entity_id"], row.values["candidate_id"]))


def _table(reading: _Reading, raw: RawTable, digest: str, path: str) -> SourceTable:
    import pandas as pd

    columns: dict[str, pd.Series[Any]] = {}
    for name in LOGICAL_COLUMNS[reading.source]:
        values = [row.values[name] for row in reading.rows]
        columns[name] = pd.Series(values, dtype="bool" if name == "label" else "str")
    return SourceTable(
        frame=pd.DataFrame(columns),
        refused=reading.refused,
        warnings=[f"{path}: {warning}" for warning in reading.warnings],
        rows_in=len(raw.rows) + len(raw.refused),
        digest=digest,
        path=path,
        redundant=reading.redundant,
        unreadable=frozenset(reading.unreadable),
    )


# --- cells


def _id(cell: Cell) -> str:
    """An id, byte for byte: blanks around it are part of it."""
    if isinstance(cell, Written) and cell.kind == "whole number":
        return cell.text
    text = _some_text(cell)
    if _SURROGATE.search(text):
        raise _BadCell("holds a lone surrogate, which no id can")
    return text


def _text(cell: Cell) -> str:
    return _some_text(cell)


def _some_text(cell: Cell) -> str:
    if cell is None:
        raise _BadCell("is null")
    if not isinstance(cell, str):
        raise _BadCell(f"is {_kind(cell)}, not text")
    if not cell:
        raise _BadCell("is empty")
    if is_blank(cell):
        raise _BadCell("is blank")
    return cell


def is_blank(text: str) -> bool:
    """Whether nothing of a text can be seen."""
    return all(unicodedata.category(character) in _INVISIBLE for character in text)


def _optional_text(cell: Cell) -> str:
    if cell is None or (isinstance(cell, str) and not cell.strip()):
        return ""
    return _id(cell)


def _version(cell: Cell) -> str:
    if isinstance(cell, Written):
        return cell.text
    return _optional_text(cell)


def label_of(word: str) -> bool | None:
    """What a written label says: 1/0, true/false or yes/no in any case; None for anything else."""
    known = word.strip().casefold()
    return None if known not in _YES | _NO else known in _YES


def _label(cell: Cell) -> bool:
    if isinstance(cell, bool):
        return cell
    if cell is None or cell == "":
        raise _BadCell("is empty; expected 1/0, true/false or yes/no")
    written = cell.text if isinstance(cell, Written) else cell
    label = label_of(written) if isinstance(written, str) else None
    if label is None:
        shown = repr(written[:40]) if isinstance(written, str) else _kind(cell)
        raise _BadCell(f"is {shown}; expected 1/0, true/false or yes/no")
    return label


def _kind(cell: Cell) -> str:
    match cell:
        case Written(_, kind):
            return f"a {kind}"
        case NotText(kind):
            return kind
        case _:
            return "true/false"


# --- erased ids


def _refuse_erased(reading: _Reading, erased: Collection[str]) -> None:
    """Refuse the rows of erased entities, before anything names them."""
    if not erased:
        return
    kept: list[_Row] = []
    for row in reading.rows:
        digest = text_id(row.values["entity_id"])
        if digest in erased:
            reading.refused.append(RefusedRow(reading.source, f"sha256:{digest}", ERASED))
        else:
            kept.append(row)
    reading.rows = kept


# --- duplicates


def _keep_latest(reading: _Reading) -> None:
    """Of each id only the rows with its highest version, in the order that `text_versions` finds in the column."""
    versions = {row.values["text_version"] for row in reading.rows} - {""}
    if not versions:
        return
    order = order_of(versions)
    ranks = {version: order.rank(version) for version in versions}

    def rank(row: _Row) -> tuple[bool, Any]:
        version = row.values["text_version"]
        return bool(version), ranks.get(version)

    latest: dict[str, tuple[bool, Any]] = {}
    for row in reading.rows:
        key = row.values["entity_id"]
        latest[key] = max(latest.get(key, rank(row)), rank(row))
    kept = [row for row in reading.rows if rank(row) == latest[row.values["entity_id"]]]
    older = len(reading.rows) - len(kept)
    if older and order.warning:
        reading.warnings.append(order.warning)
    reading.redundant += older
    reading.rows = kept


def _refuse_duplicates(reading: _Reading, id_name: str, compared: tuple[str, ...]) -> None:
    """Rows with one id: when they agree the first is kept, otherwise none is; every refusal names the other rows."""
    groups: dict[str, list[_Row]] = {}
    for row in reading.rows:
        groups.setdefault(row.values[id_name], []).append(row)
    said = {key: {tuple(row.values[name] for name in compared) for row in group} for key, group in groups.items()}
    kept: list[_Row] = []
    for row in reading.rows:
        key = row.values[id_name]
        group, agree = groups[key], len(said[key]) == 1
        if agree and row is group[0]:
            kept.append(row)
            continue
        # A wrong column taken for the id makes one group of everything: name a few rows, never look at all of them.
        named = [other.place for other in group[: EXAMPLES + 1] if other is not row][:EXAMPLES]
        more = f" and {len(group) - 1 - len(named)} more" if len(group) - 1 > len(named) else ""
        verb = "says the same again as" if agree else "says something else than"
        reading.refuse(row, f"duplicate {id_name}: {verb} {', '.join(named)}{more}")
    reading.rows = kept


def _warn_same_texts(reading: _Reading, id_name: str) -> None:
    groups = _by(reading.rows, lambda row: row.values["text"])
    if groups:
        shown = _some([_pair(group, id_name) for group in groups])
        reading.warnings.append(f"{len(groups)} texts stand under several ids: {shown}")


def _warn_alike_ids(reading: _Reading, id_name: str) -> None:
    def folded(row: _Row) -> str:
        return "".join(unicodedata.normalize("NFKC", row.values[id_name]).casefold().split())

    groups = _by(reading.rows, folded)
    if groups:
        shown = _some([_pair(group, id_name) for group in groups])
        reading.warnings.append(f"{len(groups)} sets of ids differ only by case, blanks or Unicode form: {shown}")


def _by(rows: Iterable[_Row], key: Callable[[_Row], str]) -> list[list[_Row]]:
    """Groups of two or more rows with the same key."""
    groups: dict[str, list[_Row]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return [group for group in groups.values() if len(group) > 1]


def _pair(group: Sequence[_Row], id_name: str) -> str:
    return " and ".join(f"{row.values[id_name]!r} ({row.place})" for row in group[:2])


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:EXAMPLES]) + (f" and {len(names) - EXAMPLES} more" if len(names) > EXAMPLES else "")
