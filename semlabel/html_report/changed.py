"""What a run changed for readers, and why: the publication's manifest and its change feed beside the version before.

Knows published versions; deliberately knows nothing of the warehouse. A run that published nothing says so, with the
version that stands.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from semlabel.errors import WarehouseError
from semlabel.html_report.markup import Html, entity, figure, outside, paragraph, section, table, tag
from semlabel.html_report.words import REASONS
from semlabel.published import VERSIONS, current_publication, read_manifest

if TYPE_CHECKING:
    from semlabel.operations import Operations
    from semlabel.settings import Settings

_TITLE = "What changed since the last publication"
_MOST_ROWS = 20
_LABELS = {None: "none", True: "YES", False: "NO"}


def changes_section(settings: "Settings", operations: "Operations", run_id: str) -> Html:
    """The changes of the version that this run published."""
    row = next((row for row in operations.publications(1_000) if row["run_id"] == run_id), None)
    if row is None:
        return section(_TITLE, *_nothing_published(settings))
    path = Path(row["path"]) / VERSIONS / row["version"]
    try:
        manifest = read_manifest(path)
        before = _previous(path, manifest)
        parts = [*_told(manifest, before), *_examples(path)] if manifest["previous_version"] else _first(manifest)
    except WarehouseError as error:
        return section(_TITLE, paragraph("The version of this run cannot be read: ", outside(error, 1_000)))
    return section(_TITLE, *parts)


def _nothing_published(settings: "Settings") -> list[Html]:
    parts = [paragraph("This run published no new version: nothing changed for readers.")]
    current = current_publication(settings.paths.published)
    if current is None:
        return [*parts, paragraph("Nothing was ever published.")]
    told = f"{figure(current['rows'])} rows, published {current['published_at'][:19]} UTC"
    return [*parts, paragraph("The version that stands is ", outside(current["version"]), f": {told}.")]


def _first(manifest: Mapping[str, Any]) -> list[Html]:
    counts = f"{figure(manifest['rows'])} rows, {figure(manifest['labels'])} of them YES"
    return [paragraph("This is the first version, ", outside(manifest["version"]), f": {counts}.")]


def _previous(path: Path, manifest: Mapping[str, Any]) -> dict[str, Any] | None:
    """The manifest of the version before, where it is still kept and whole."""
    try:
        return read_manifest(path.parent / str(manifest["previous_version"]))
    except WarehouseError:
        return None


def _told(manifest: Mapping[str, Any], before: Mapping[str, Any] | None) -> list[Html]:
    changes = manifest["changes"]
    kind = "preview" if manifest["preview"] else "version"
    parts = [
        paragraph(
            f"Against {kind} ",
            outside(manifest["previous_version"]),
            f": {figure(changes['rows'])} pairs differ, {figure(changes['labels'])} of them in their label.",
        )
    ]
    if before is None:
        parts.append(paragraph("The version before is not kept any more."))
    else:
        rows = [[name, _fact(before, key), _fact(manifest, key)] for name, key in _FACTS]
        parts.append(table(["", "before", "now"], rows))
    reasons = [[outside(REASONS.get(name, name)), figure(count)] for name, count in changes["by_reason"].items()]
    parts += [tag("h3", "Why"), table(["reason", "pairs"], reasons)]
    rows = [
        [outside(row["candidate_id"]), outside(REASONS.get(row["reason"], row["reason"]))]
        + [figure(row[name]) for name in ("labels", "rows")]
        for row in changes["by_candidate"][:_MOST_ROWS]
    ]
    return [*parts, tag("h3", "Which candidates"), table(["candidate", "reason", "labels", "pairs"], rows)]


_FACTS = (
    ("rows", "rows"),
    ("labeled YES", "labels"),
    ("entities", "entities"),
    ("candidates", "candidates"),
    ("threshold", "threshold"),
    ("labeler", "labeler_digest"),
    ("scorer", "scorer_digest"),
)


def _fact(manifest: Mapping[str, Any], key: str) -> Any:
    value = manifest.get(key)
    return outside(value[:12]) if isinstance(value, str) else figure(value)


def _examples(path: Path) -> list[Html]:
    """The pairs whose label changed and whose margin moved most."""
    import duckdb

    file = str(path / "changes.parquet").replace("'", "''")
    with duckdb.connect(":memory:") as connection:
        rows = connection.execute(
            f"""SELECT entity_id, candidate_id, old_label, new_label, old_margin, new_margin, causes
            FROM read_parquet('{file}') WHERE old_label IS DISTINCT FROM new_label
            ORDER BY abs(coalesce(new_margin, 0) - coalesce(old_margin, 0)) DESC, entity_id, candidate_id LIMIT ?""",
            [_MOST_ROWS],
        ).fetchall()
    cells = [
        [
            entity(entity_id),
            outside(candidate_id),
            f"{_LABELS[old]} to {_LABELS[new]}",
            f"{figure(old_margin)} to {figure(new_margin)}",
            outside("; ".join(REASONS.get(cause, cause) for cause in causes)),
        ]
        for entity_id, candidate_id, old, new, old_margin, new_margin, causes in rows
    ]
    return [tag("h3", "Labels that changed"), table(["entity", "candidate", "label", "margin", "reason"], cells)]
