"""From the bytes of a CSV, TSV, JSONL or Parquet file, or a DuckDB query, to rows of untouched cells.

Every row is either returned with its place or refused with a reason; nothing is guessed, shifted or converted: ids
such as 007, 1e5 or nan stay text. Knows nothing of which cells are good ids, texts or labels: that is `sources`.
"""

import csv
import io
import json
import re
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from semlabel.digests import digest_of
from semlabel.errors import SourceError

if TYPE_CHECKING:
    import pyarrow

DELIMITERS = (",", ";", "\t", "|")
LOCK_WAIT_SECONDS = 10.0
_ENCODED_SURROGATE = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]")
_LONGEST_CELL = sys.maxsize  # of the csv module, process-wide; its default refuses a whole file for one long profile
_SURROGATE = re.compile("[\ud800-\udfff]")
_UNDECODED = re.compile("[\udc80-\udcff]")


@dataclass(frozen=True)
class Written:
    """A number or a date as it was written. An id may be a whole number; a text may be neither."""

    text: str
    kind: Literal["whole number", "number", "date"]


@dataclass(frozen=True)
class NotText:
    """A cell that is neither text, number, date, true/false nor null; `kind` says what it is."""

    kind: str


Cell = str | Written | bool | NotText | None
ABSENT = NotText("absent")
"""The cell of a required column that a row does not have, though its other cells may still say what it was about."""


@dataclass(frozen=True)
class Wanted:
    """Column names to read. A file without one of `required` is refused, one of `optional` may be missing."""

    required: tuple[str, ...]
    optional: tuple[str, ...] = ()

    def present(self, found: list[str], path: str) -> list[str]:
        """The wanted names among `found`; SourceError naming the file, what was found and what was expected."""
        missing = [name for name in self.required if name not in found]
        if missing:
            shown = ", ".join(map(_quoted_if_odd, found[:20])) + (", ..." if len(found) > 20 else "")
            raise SourceError(
                f"{path}: found columns {shown or '(none)'}; expected {', '.join(self.required)}; "
                "other names are mapped in [sources.columns]"
            )
        names = [*self.required, *(name for name in self.optional if name in found)]
        twice = [name for name in names if found.count(name) > 1]
        if twice:
            raise SourceError(
                f'{path}: column "{twice[0]}" stands {found.count(twice[0])} times in the header; keep one'
            )
        return names


@dataclass
class RawTable:
    """Rows as (place, cells in the order of `names`); `refused` as (place, reason). Places are like `line 17`."""

    names: list[str]
    rows: list[tuple[str, tuple[Cell, ...]]] = field(default_factory=list)
    refused: list[tuple[str, str]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


# --- CSV and its relatives


def read_delimited(content: bytes, wanted: Wanted, path: str) -> RawTable:
    """CSV with `,` `;` tab or `|`, whichever makes the header hold the wanted columns; quotes doubled inside quotes.

    UTF-8 (a BOM is dropped), UTF-16 with BOM, or cp1252. A row with more or fewer cells than the header is refused, and
    so is one with a broken quote; where a broken quote leaves open where the next row starts, the file is.
    """
    try:
        text, warnings = decode(content)
    except UnicodeDecodeError as error:
        raise SourceError(f"{path}: marked as UTF-16 but not that at byte {error.start}") from None
    if re.match(r"sep=.\r?\n", text):  # Excel's own hint; the header says the same
        text = text.partition("\n")[2]
        first_line = 2
    else:
        first_line = 1
    delimiter, header = _header(text, wanted, path)
    names = wanted.present(header, path)
    positions = [header.index(name) for name in names]
    table = RawTable(names, warnings=warnings)
    records = _records(text, delimiter, first_line, path)
    next(record for record in records if record[1])  # the header itself
    for place, cells, problem in records:
        if problem is not None:
            table.refused.append((place, problem))
        elif len(cells) != len(header):
            table.refused.append((place, f"has {len(cells)} cells where the header has {len(header)}"))
        else:
            picked = tuple(cells[position] for position in positions)
            undecoded = next((match for match in map(_UNDECODED.search, picked) if match), None)
            if undecoded is None:
                table.rows.append((place, picked))
            else:
                table.refused.append((place, f"byte 0x{ord(undecoded.group()) - 0xDC00:02X} is not UTF-8"))
    return table


def decode(content: bytes) -> tuple[str, list[str]]:
    """Text of `content`, and what had to be assumed. Bytes that no reading explains become U+DC80..U+DCFF.

    cp1252 only where nothing in the file is multi-byte UTF-8: a file with both would come out garbled.
    """
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        text, surrogates = _SURROGATE.subn("\ufffd", content.decode("utf-16", errors="surrogatepass"))
        lone = [f"{surrogates} lone surrogates became U+FFFD"] if surrogates else []
        return text, ["read as UTF-16, as its byte order mark says", *lone]
    content = content.removeprefix(b"\xef\xbb\xbf")
    try:
        return content.decode("utf-8"), []
    except UnicodeDecodeError:
        pass
    mended, surrogates = _ENCODED_SURROGATE.subn("\ufffd".encode(), content)
    try:
        return mended.decode("utf-8"), [f"{surrogates} encoded lone surrogates became U+FFFD"]
    except UnicodeDecodeError:
        pass
    escaped = content.decode("utf-8", errors="surrogateescape")
    if not any(ord(character) > 127 and not _UNDECODED.match(character) for character in set(escaped)):
        try:
            return content.decode("cp1252"), ["not UTF-8: read as cp1252"]
        except UnicodeDecodeError:
            pass
    return escaped, ["neither UTF-8 nor cp1252 throughout: rows with bytes that are not UTF-8 are refused"]


def _header(text: str, wanted: Wanted, path: str) -> tuple[str, list[str]]:
    """The delimiter and the header cells under it."""
    if not text.strip():
        raise SourceError(f"{path}: is empty; expected a header with {', '.join(wanted.required)}")
    headers = {delimiter: _first_record(text, delimiter) for delimiter in DELIMITERS}
    fitting = [mark for mark, cells in headers.items() if set(wanted.required) <= set(cells)]
    best = fitting[0] if fitting else max(headers, key=lambda mark: len(headers[mark]))
    return best, headers[best]


def _first_record(text: str, delimiter: str) -> list[str]:
    csv.field_size_limit(_LONGEST_CELL)
    try:
        return next(
            (cells for cells in csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True) if cells),
            [],
        )
    except csv.Error:
        return []  # so it is not this delimiter


def _records(text: str, delimiter: str, first_line: int, path: str) -> Iterator[tuple[str, list[str], str | None]]:
    """(place, cells, problem) of every record that is not an empty line."""
    csv.field_size_limit(_LONGEST_CELL)
    taken: list[str] = []

    def lines() -> Iterator[str]:
        for line in io.StringIO(text, newline=""):
            taken.append(line)
            yield line

    reader = csv.reader(lines(), delimiter=delimiter, strict=True)
    while True:
        place = f"line {first_line + reader.line_num}"
        taken.clear()
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            # An even number of quotes means that the damage ends with the record; after an odd number nobody can
            # tell rows from cells any more.
            at_end = "unexpected end of data" in str(error)
            if at_end or "".join(taken).count('"') % 2:
                raise SourceError(
                    f"{path}: {place}: a quote is opened there and not closed properly ({error}); double the quotes "
                    "inside quoted cells"
                ) from None
            until = f" up to line {first_line + reader.line_num - 1}" if len(taken) > 1 else ""
            yield place, [], f"has broken quotes{until} ({error})"
            continue
        if cells:
            yield place, cells, None


# --- JSON lines


def read_json_lines(content: bytes, wanted: Wanted, path: str) -> RawTable:
    """One JSON object per line, UTF-8. A line that is none is refused; a required key that one lacks is `ABSENT`.

    Raises SourceError when no line has the required keys.
    """
    objects: list[tuple[str, dict[str, Cell]]] = []
    refused: list[tuple[str, str]] = []
    found: dict[str, None] = {}
    for number, line in enumerate(content.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        if not line.strip():
            continue
        place = f"line {number}"
        try:
            cells = _json_object(line)
        except ValueError as error:
            refused.append((place, str(error)))
            continue
        if len(objects) < 20:
            found |= dict.fromkeys(cells)
        objects.append((place, cells))
    complete = [cells for _, cells in objects if set(wanted.required) <= set(cells)]
    if not complete:
        if refused and not objects:
            raise SourceError(f"{path}: {refused[0][0]}: {refused[0][1]}; expected one JSON object per line")
        wanted.present(list(found), path)
        raise SourceError(f"{path}: no line has all of {', '.join(wanted.required)}")
    optional = [name for name in wanted.optional if any(name in cells for cells in complete)]
    table = RawTable([*wanted.required, *optional], refused=refused)
    for place, cells in objects:
        given: dict[str, Cell] = {**dict.fromkeys(wanted.required, ABSENT), **cells}
        table.rows.append((place, tuple(given.get(name) for name in table.names)))
    return table


def _json_object(line: bytes) -> dict[str, Cell]:
    """The cells of one JSON object; ValueError saying why it is none."""
    try:
        value = json.loads(
            line.decode("utf-8"),
            parse_int=lambda text: Written(text, "whole number"),
            parse_float=lambda text: Written(text, "number"),
            parse_constant=lambda name: NotText(name),
            object_pairs_hook=_unique_keys,
        )
    except UnicodeDecodeError as error:
        raise ValueError(f"byte 0x{line[error.start]:02X} is not UTF-8") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"is no JSON: {error.msg} at character {error.pos + 1}") from None
    except RecursionError:
        raise ValueError("is nested too deeply") from None
    if not isinstance(value, dict):
        raise ValueError("is no JSON object")  # noqa: TRY004 - the line is bad, not the call
    return {key: _flat(cell) for key, cell in value.items()}


def _flat(cell: Any) -> Cell:
    match cell:
        case list():
            return NotText("a list")
        case dict():
            return NotText("an object")
        case _:
            return cell


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    keys = [key for key, _ in pairs]
    if len(set(keys)) != len(keys):
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"says {_quoted_if_odd(twice)} twice")
    return dict(pairs)


# --- Parquet and DuckDB


def read_parquet(content: bytes, wanted: Wanted, path: str) -> RawTable:
    """A Parquet file. Columns of text, whole numbers and true/false keep their values; other types are NotText."""
    import pyarrow
    import pyarrow.parquet

    try:
        file = pyarrow.parquet.ParquetFile(pyarrow.BufferReader(content))
        names = wanted.present(file.schema_arrow.names, path)
        table = file.read(columns=names)
    except (pyarrow.ArrowException, OSError) as error:
        raise SourceError(f"{path}: not a readable Parquet file: {_one_line(error)}") from None
    return read_arrow(table.select(names), wanted, path)


def read_arrow(table: "pyarrow.Table", wanted: Wanted, path: str) -> RawTable:
    """The rows of an Arrow table; places count from `row 1`."""
    names = wanted.present(table.column_names, path)
    columns = [_arrow_cells(table.column(name)) for name in names]
    raw = RawTable(names)
    for number, cells in enumerate(zip(*columns, strict=True), start=1):
        undecoded = next((cell for cell in cells if isinstance(cell, bytes)), None)
        if undecoded is None:
            raw.rows.append((f"row {number}", cells))
        else:
            raw.refused.append((f"row {number}", "is not UTF-8"))
    return raw


def _arrow_cells(column: "pyarrow.ChunkedArray") -> list[Any]:
    """Cells of one column; bytes stand for a string that is not UTF-8, which Arrow itself does not check."""
    import pyarrow.types

    kind = column.type
    if pyarrow.types.is_dictionary(kind):
        column = column.cast(kind.value_type)
        kind = column.type
    if pyarrow.types.is_string(kind) or pyarrow.types.is_large_string(kind) or pyarrow.types.is_string_view(kind):
        return [_utf8(value) for value in column.cast(pyarrow.large_binary()).to_pylist()]
    if pyarrow.types.is_integer(kind):
        return [None if value is None else Written(str(value), "whole number") for value in column.to_pylist()]
    if pyarrow.types.is_boolean(kind):
        return column.to_pylist()
    if pyarrow.types.is_date(kind) or pyarrow.types.is_timestamp(kind):
        return [None if value is None else Written(value.isoformat(), "date") for value in column.to_pylist()]
    if pyarrow.types.is_floating(kind) or pyarrow.types.is_decimal(kind):
        return [None if value is None else Written(str(value), "number") for value in column.to_pylist()]
    return [None if value is None else NotText(f"of type {kind}") for value in column.to_pylist()]


def _utf8(value: bytes | None) -> str | bytes | None:
    try:
        return None if value is None else value.decode("utf-8")
    except UnicodeDecodeError:
        return value


def read_duckdb(
    location: str, wanted: Wanted, memory_limit: str, temporary: Path, wait_seconds: float = LOCK_WAIT_SECONDS
) -> tuple[RawTable, str]:
    """The rows of one SELECT on a DuckDB file opened read-only (`PATH#SQL`), and the digest of them in any order.

    Waits at most `wait_seconds` for a writer to let go of the file, then raises SourceError with its words.
    """
    import duckdb

    path, _, query = location.partition("#")
    shown = f"duckdb:{location}"
    if not path or not query.strip():
        raise SourceError(f"{shown}: expected duckdb:PATH#SELECT ...")
    if not Path(path).is_file():
        raise SourceError(f"{path}: no such database file")
    options = {"memory_limit": memory_limit, "temp_directory": str(temporary)}
    with _open_read_only(path, options, wait_seconds) as connection:
        try:
            statements = connection.extract_statements(query)
            if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
                raise SourceError(f"{shown}: expected exactly one SELECT statement")
            table = connection.sql(statements[0]).to_arrow_table()
        except duckdb.Error as error:
            raise SourceError(f"{shown}: {_one_line(error)}") from None
    raw = read_arrow(table, wanted, shown)
    rows = sorted(json.dumps([_printable(cell) for cell in cells]) for _, cells in raw.rows)
    return raw, digest_of([raw.names, rows, len(raw.refused)])


def _open_read_only(path: str, options: dict[str, str], wait_seconds: float) -> Any:
    import duckdb

    deadline = time.monotonic() + wait_seconds
    while True:
        try:
            return duckdb.connect(path, read_only=True, config=dict(options))
        except duckdb.IOException as error:
            if "set lock" not in str(error).lower():
                raise SourceError(f"{path}: not a readable DuckDB file: {_one_line(error)}") from None
            if time.monotonic() >= deadline:
                raise SourceError(f"{path}: locked by a writer for {wait_seconds:g} s: {_one_line(error)}") from None
            time.sleep(min(0.2, wait_seconds))
        except duckdb.Error as error:
            raise SourceError(f"{path}: not a readable DuckDB file: {_one_line(error)}") from None


def _printable(cell: Cell) -> Any:
    match cell:
        case Written(text, kind):
            return {kind: text}
        case NotText(kind):
            return {"not_text": kind}
        case _:
            return cell


def _quoted_if_odd(name: str) -> str:
    """`name`, or its repr where blanks, control characters or its length would mislead a reader."""
    odd = name != name.strip() or not name.isprintable() or not 0 < len(name) <= 60
    return repr(name[:60]) if odd else name


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
