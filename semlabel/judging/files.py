"""The files people judge in: CSV for a spreadsheet, JSON for Label Studio, written and read back as plain cells.

Knows the two formats; deliberately knows nothing of what a cell must be: that is for the import. Texts are data: a cell
of the CSV that a spreadsheet would take for a formula gets a leading apostrophe, which reading takes off again.
"""

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from semlabel.durable import replace_file
from semlabel.errors import SourceError
from semlabel.judging.sample import SampledPair
from semlabel.source_readers import Wanted, read_delimited

FORMATS = (".csv", ".json")
JUDGEMENT = "judgement"
"""The column, and the name of the choice in Label Studio, that people fill in."""
_SHOWN = "candidate_text"
_NEEDED = ("entity_id", "candidate_id", "design", "entity_text_id", "candidate_text_id")
_OPTIONAL = ("inclusion_probability", "labeler_digest", "split", "entity_text", "candidate_text")
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "'")


@dataclass(frozen=True)
class JudgedRow:
    """A row as it came back: `cells` by column, all text ("" where absent), or why it cannot be read."""

    place: str
    cells: Mapping[str, str]
    problem: str | None = None


def write_export(path: Path, rows: Sequence[SampledPair]) -> None:
    """Write an export in the format of its name. Raises SourceError for another name, or where it cannot be written."""
    format_of(path)
    text = _csv(rows) if path.suffix.lower() == ".csv" else json.dumps(_tasks(rows), indent=1, ensure_ascii=False)
    try:
        replace_file(path, text.encode("utf-8"))
    except OSError as error:
        raise SourceError(f"{path}: cannot be written: {error.strerror or error}") from None


def read_judged(path: Path) -> list[JudgedRow]:
    """The rows of a judged CSV, or of a JSON or JSON-MIN export of Label Studio. Raises SourceError."""
    format_of(path)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise SourceError(f"{path}: cannot be read: {error.strerror}") from None
    return _read_csv(path, content) if path.suffix.lower() == ".csv" else _read_tasks(path, content)


def format_of(path: Path) -> str:
    """The format by the file's name. Raises SourceError for a name that is neither."""
    if path.suffix.lower() not in FORMATS:
        raise SourceError(f"{path}: expected a name that ends in .csv or .json (Label Studio), found {path.suffix!r}")
    return path.suffix.lower()


# --- CSV


def _csv(rows: Iterable[SampledPair]) -> str:
    text = io.StringIO(newline="")
    names = [field.name for field in fields(SampledPair)]
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*names, JUDGEMENT])
    for row in rows:
        writer.writerow([_written(value) for value in asdict(row).values()] + [""])
    return text.getvalue()


def _written(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return f"'{value}" if value.startswith(_FORMULA) else value
    return repr(value)


def unescaped(cell: str) -> str:
    """A cell of the CSV without the apostrophe that keeps a spreadsheet from taking it for a formula."""
    return cell[1:] if cell.startswith("'") and cell[1:].startswith(_FORMULA) else cell


def _read_csv(path: Path, content: bytes) -> list[JudgedRow]:
    raw = read_delimited(content, Wanted((*_NEEDED, JUDGEMENT), _OPTIONAL), str(path))
    rows = [
        JudgedRow(place, {name: unescaped(str(cell)) for name, cell in zip(raw.names, cells, strict=True)})
        for place, cells in raw.rows
    ]
    return rows + [JudgedRow(place, {}, reason) for place, reason in raw.refused]


# --- Label Studio


def _tasks(rows: Iterable[SampledPair]) -> list[dict[str, Any]]:
    return [{"data": asdict(row), "predictions": _predictions(row)} for row in rows]


def _predictions(row: SampledPair) -> list[dict[str, Any]]:
    if row.label is None:
        return []
    choice = {
        "from_name": JUDGEMENT,
        "to_name": _SHOWN,
        "type": "choices",
        "value": {"choices": ["yes" if row.label else "no"]},
    }
    # A score says how sure the model is of the choice beside it, not how likely YES is.
    sure = row.probability if row.label or row.probability is None else 1 - row.probability
    return [{"model_version": row.labeler_digest, "score": sure, "result": [choice]}]


def _read_tasks(path: Path, content: bytes) -> list[JudgedRow]:
    try:
        tasks = json.loads(content.removeprefix(b"\xef\xbb\xbf"))
    except ValueError as error:
        raise SourceError(f"{path}: is no JSON ({error}); export the project as JSON") from None
    if not isinstance(tasks, list) or not all(isinstance(task, dict) for task in tasks):
        raise SourceError(f"{path}: expected a list of tasks; export the project as JSON or JSON-MIN")
    return [_task(f"task {number}", task) for number, task in enumerate(tasks, start=1)]


def _task(place: str, task: Mapping[str, Any]) -> JudgedRow:
    data = task.get("data", task)
    if not isinstance(data, Mapping):
        return JudgedRow(place, {}, "has no data")
    cells = {name: _cell(data.get(name)) for name in (*_NEEDED, *_OPTIONAL)}
    missing = [name for name in _NEEDED if not cells[name]]
    if missing:
        return JudgedRow(place, {}, f"lacks {', '.join(missing)} of the export")
    answers = _answers(task.get("annotations")) if "data" in task else {_cell(task.get(JUDGEMENT))}
    if len(answers) > 1:
        return JudgedRow(place, cells, f"annotators disagree: {' and '.join(sorted(answers))}")
    return JudgedRow(place, cells | {JUDGEMENT: next(iter(answers), "")})


def _answers(annotations: Any) -> set[str]:
    """What the annotations of a task chose; cancelled ones do not count."""
    found: set[str] = set()
    for annotation in annotations if isinstance(annotations, list) else []:
        if not isinstance(annotation, Mapping) or annotation.get("was_cancelled"):
            continue
        for part in annotation.get("result") or []:
            value = part.get("value") if isinstance(part, Mapping) and part.get("from_name") == JUDGEMENT else None
            choices = value.get("choices") if isinstance(value, Mapping) else None
            if choices:
                found.add(" and ".join(map(_cell, choices)) if isinstance(choices, list) else _cell(choices))
    return found


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return repr(value)
    return "" if value is None else str(value)
