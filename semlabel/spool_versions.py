"""Which text version of an entity was accepted last, so that every writer of one spool refuses the same ones.

A SQLite file beside the segments, with digests of ids and texts. A version is claimed before its segment is written:
so two writers never confirm two texts of one version, and a claim whose writer was killed is met by the same text
again. Knows nothing of requests.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from semlabel.digests import text_id

FILE = "versions.sqlite"
_BUSY_SECONDS = 10.0
_CREATE = (
    "CREATE TABLE IF NOT EXISTS versions "
    "(entity TEXT PRIMARY KEY, version INTEGER NOT NULL, text TEXT NOT NULL) WITHOUT ROWID"
)


class Versions:
    """The versions of one spool's folder."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE

    def problem(self, entity_id: str, version: int, text: str) -> str | None:
        """Why this text would be refused now, or None."""
        with self._transaction() as connection:
            return _problem(connection, text_id(entity_id), version, text_id(text))

    def claim(self, entity_id: str, version: int, text: str) -> str | None:
        """Make this the entity's newest version, or say why not. The same version may come again with the same text."""
        entity, digest = text_id(entity_id), text_id(text)
        with self._transaction() as connection:
            problem = _problem(connection, entity, version, digest)
            if problem is None:
                connection.execute("INSERT OR REPLACE INTO versions VALUES (?, ?, ?)", (entity, version, digest))
        return problem

    def forget(self, entity_id: str) -> None:
        """Remove the entity, also from the bytes of the file."""
        if not self._path.exists():
            return
        with self._transaction() as connection:
            connection.execute("DELETE FROM versions WHERE entity = ?", (text_id(entity_id),))

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        connection = sqlite3.connect(self._path, timeout=_BUSY_SECONDS, isolation_level=None)
        try:
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA secure_delete = ON")
            connection.execute("BEGIN IMMEDIATE")
            connection.execute(_CREATE)
            yield connection
            connection.execute("COMMIT")
        finally:
            connection.close()


def _problem(connection: sqlite3.Connection, entity: str, version: int, digest: str) -> str | None:
    known = connection.execute("SELECT version, text FROM versions WHERE entity = ?", (entity,)).fetchone()
    if known is None or version > known[0]:
        return None
    if version < known[0]:
        return f"{version} is older than {known[0]}, which was accepted already"
    return None if digest == known[1] else f"{version} was accepted with another text; send a higher version"
