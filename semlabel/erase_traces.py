"""Traces of one entity in things that were written about it: evidence, messages, logs, reports.

Knows how an id and a text look inside other text; deliberately knows nothing of why they must go. Structured evidence
is searched value by value. In running text an id counts where it stands in quotation marks, or alone as a word when it
is long enough not to be any number or word; a text counts wherever it stands, also escaped for JSON or HTML.
"""

import html
import json
import re
import shutil
import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from semlabel.digests import text_id
from semlabel.durable import replace_file

ERASED = "(erased)"
_SHORTEST_TEXT = 8
_BUSY_SECONDS = 30.0
_JSON_LINES = (".jsonl", ".ndjson")
# Where Dagster's events keep what a step told: nothing else of an event is touched, or it could not be read again.
_TOLD = ("metadata_entries", "metadata", "description", "message", "user_message")


class Traces:
    """Finds and removes what names one entity."""

    def __init__(self, entity_id: str, texts: Iterable[str]) -> None:
        """`texts` are those the entity is known to have, or to have had."""
        self.entity_id = entity_id
        self.texts = frozenset(texts)
        written = re.escape(entity_id)
        forms = [rf"(?<=[\"'`]){written}(?=\\?[\"'`])"]
        if len(entity_id) >= 8 or (len(entity_id) >= 4 and re.search(r"\D", entity_id) and re.search(r"\d", entity_id)):
            forms.append(rf"(?<![\w-]){written}(?![\w-])")
        escaped = {form for text in self.texts if len(text) >= _SHORTEST_TEXT for form in _written(text)}
        forms += [re.escape(form) for form in sorted(escaped, key=len, reverse=True)]
        self._pattern = re.compile("|".join(forms))

    def in_text(self, text: str) -> bool:
        """Whether running text names the entity or quotes its text."""
        return self._pattern.search(text) is not None

    def removed(self, text: str) -> str:
        """Running text without it."""
        return self._pattern.sub(ERASED, text)

    def cleaned(self, value: Any) -> Any:
        """JSON evidence without it: equal values go as a whole, running text is cleaned."""
        if isinstance(value, dict):
            return {self.cleaned(key): self.cleaned(entry) for key, entry in value.items()}
        if isinstance(value, list):
            return [self.cleaned(entry) for entry in value]
        if isinstance(value, str):
            parts = value.split(" / ")
            if self.entity_id in parts or value in self.texts:
                return ERASED
            return self.removed(value)
        return value


def erase_from_file(path: Path, traces: Traces, dry: bool) -> int:
    """Take the lines that name the entity out of a file (`dry`: only count them); whatever is no text goes as a whole.

    A line of a log is replaced, a line of a JSON lines file dropped. The file is replaced in one step.
    """
    content = path.read_bytes()
    try:
        lines = content.decode("utf-8").splitlines(keepends=True)
    except UnicodeDecodeError:
        found = traces.in_text(content.decode("utf-8", errors="ignore"))
        if found and not dry:
            path.unlink()
        return int(found)
    named = [traces.in_text(line) for line in lines]
    if any(named) and not dry:
        instead = "" if path.suffix in _JSON_LINES else f"{ERASED}\n"
        kept = [instead if gone else line for line, gone in zip(lines, named, strict=True)]
        replace_file(path, "".join(kept).encode("utf-8"))
    return sum(named)


def erase_report(path: Path, traces: Traces, dry: bool) -> int:
    """Remove a report that names the entity: it is derived and can be made again.

    A report names ids also by their digest, because the id alone may be any number or word.
    """
    content = path.read_text(encoding="utf-8", errors="ignore")
    found = text_id(traces.entity_id) in content or traces.in_text(content) or traces.in_text(html.unescape(content))
    if found and not dry:
        path.unlink()
    return int(found)


def empty_folder(folder: Path, dry: bool) -> int:
    """Remove everything in a folder of temporary files; returns how many there were."""
    there = list(folder.iterdir()) if folder.exists() else []
    for path in [] if dry else there:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    return len(there)


def erase_from_columns(
    connection: sqlite3.Connection, columns: Iterable[tuple[str, str]], traces: Traces, dry: bool
) -> int:
    """Clean (table, column) pairs of a SQLite file inside the caller's transaction; returns how many values named it.

    A value that is JSON is cleaned value by value, any other as running text.
    """
    found = 0
    for table, column in columns:
        rows = connection.execute(f'SELECT rowid, "{column}" FROM "{table}" WHERE "{column}" IS NOT NULL').fetchall()
        for rowid, value in rows:
            fresh = _cleaned_value(value, traces) if isinstance(value, str) else value
            if fresh != value:
                found += 1
                if not dry:
                    connection.execute(f'UPDATE "{table}" SET "{column}" = ? WHERE rowid = ?', (fresh, rowid))
    return found


def erase_from_history(file: Path, traces: Traces, dry: bool) -> int:
    """Clean what steps told in a file of Dagster's history; returns how many events named the entity."""
    connection = sqlite3.connect(file, timeout=_BUSY_SECONDS, isolation_level=None)
    try:
        connection.execute("PRAGMA secure_delete = ON")
        connection.execute("BEGIN IMMEDIATE")
        found = 0
        for table, column in _text_columns(connection):
            rows = connection.execute(f'SELECT rowid, "{column}" FROM "{table}" WHERE "{column}" LIKE ?', ("{%",))
            for rowid, value in rows.fetchall():
                event = _parsed(value)
                fresh = _told_cleaned(event, traces)
                if fresh != event:
                    found += 1
                    if not dry:
                        text = json.dumps(fresh)
                        connection.execute(f'UPDATE "{table}" SET "{column}" = ? WHERE rowid = ?', (text, rowid))
        connection.execute("COMMIT")
        if found and not dry:
            wipe(connection)
    finally:
        connection.close()
    return found


def wipe(connection: sqlite3.Connection) -> None:
    """Leave nothing of removed rows in the bytes of a SQLite file or its log."""
    connection.execute("VACUUM")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def _written(text: str) -> set[str]:
    return {text, json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1], html.escape(text)}


def _cleaned_value(value: str, traces: Traces) -> str:
    parsed = _parsed(value) if value[:1] in ("{", "[") else None
    if parsed is None:
        return traces.removed(value)
    fresh = traces.cleaned(parsed)
    return value if fresh == parsed else json.dumps(fresh, sort_keys=True, ensure_ascii=False)


def _parsed(value: str) -> Any:
    try:
        return json.loads(value)
    except ValueError:
        return None


def _told_cleaned(value: Any, traces: Traces) -> Any:
    if isinstance(value, dict):
        return {
            key: traces.cleaned(entry) if key in _TOLD else _told_cleaned(entry, traces) for key, entry in value.items()
        }
    return [_told_cleaned(entry, traces) for entry in value] if isinstance(value, list) else value


def _text_columns(connection: sqlite3.Connection) -> list[tuple[str, str]]:
    tables = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    return [
        (table, row[1])
        for table in tables
        for row in connection.execute(f'PRAGMA table_info("{table}")')
        if str(row[2]).upper() in ("TEXT", "VARCHAR") or "CHAR" in str(row[2]).upper()
    ]
