"""A folder of published versions, as readers and rollbacks see it: which one is current, and whether it is whole.

Knows manifests, digests and the one symlink; deliberately knows nothing of the warehouse or of how a version is made.
The folder holds `versions/NAME/` (never changed once it has that name), `current`, a relative symlink to one of them,
and `history.json`, which says since and until when each was current and when the current one was last confirmed. Who
moves `current` or takes a version away holds the lease `publication` for that moment; readers never ask for it.
"""

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from semlabel.digests import digest_of, file_digest
from semlabel.durable import fsync_path, fsync_tree, point_link, replace_file
from semlabel.errors import WarehouseError
from semlabel.leases import Lease, OnWait
from semlabel.processes import ProcessIdentity

if TYPE_CHECKING:
    from semlabel.operations import Operations

VERSIONS, CURRENT, MANIFEST, HISTORY = "versions", "current", "manifest.json", "history.json"
STAGING, DELETING, REPLACING = ".staging-", ".deleting-", ".replacing-"
_VERSION = re.compile(r"^\d{6,}-\d{8}T\d{6}Z$")
# A reader that resolved `current` keeps reading that version: it must outlive any query started before the switch.
SUPERSEDED_FOR = timedelta(hours=24)
LEASE = "publication"
# A holder needs moments, or as long as it takes to read the version that is rolled back to.
LEASE_WAIT_SECONDS = 300.0


def current_publication(directory: Path) -> dict[str, Any] | None:
    """The manifest of the current version with its `path` and `checked_at`, or None before a first publication.

    Raises WarehouseError when `current` points at something that is no version.
    """
    version = current_version(directory)
    if version is None:
        return None
    path = directory / VERSIONS / version
    manifest = read_manifest(path)
    checked_at = _history(directory).get("checked_at") or manifest["published_at"]
    return manifest | {"path": str(path.absolute()), "checked_at": checked_at}


def current_version(directory: Path) -> str | None:
    """The name of the current version, or None."""
    link = directory / CURRENT
    if not link.is_symlink():
        return None
    return link.readlink().name


def version_names(directory: Path) -> list[str]:
    """Every version in the folder, oldest first."""
    folder = directory / VERSIONS
    return sorted(path.name for path in folder.iterdir() if _VERSION.match(path.name)) if folder.exists() else []


def next_version(directory: Path, now: datetime) -> str:
    """A name that sorts after every other one: a running number, then the time for people."""
    numbers = [int(name.partition("-")[0]) for name in version_names(directory)]
    return f"{max(numbers, default=0) + 1:06d}-{now:%Y%m%dT%H%M%SZ}"


def read_manifest(path: Path) -> dict[str, Any]:
    """The manifest of a version. Raises WarehouseError when it is missing, unreadable or edited."""
    try:
        manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        told = manifest["manifest_digest"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise WarehouseError(
            f"{path}: no readable {MANIFEST} ({type(error).__name__}): roll back to a whole version"
        ) from error
    if told != manifest_digest(manifest):
        raise WarehouseError(f"{path / MANIFEST}: edited since it was written: roll back to a whole version")
    return manifest


def write_manifest(path: Path, manifest: dict[str, Any]) -> None:
    """Write the manifest with its own digest; it is the last file of a version."""
    text = json.dumps(
        manifest | {"manifest_digest": manifest_digest(manifest)}, indent=1, sort_keys=True, allow_nan=False
    )
    (path / MANIFEST).write_text(text + "\n", encoding="utf-8")


def manifest_digest(manifest: dict[str, Any]) -> str:
    """The digest of everything a manifest says but its own digest."""
    return digest_of({name: value for name, value in manifest.items() if name != "manifest_digest"})


def verify_version(path: Path) -> dict[str, Any]:
    """The manifest of a version all of whose files are there, with the size and sha256 it tells.

    Raises WarehouseError naming the first file that is missing, changed or was never part of it.
    """
    manifest = read_manifest(path)
    files = manifest["files"]
    found = {str(file.relative_to(path)) for file in path.rglob("*") if file.is_file()} - {MANIFEST}
    for name in sorted(found ^ set(files)):
        what = "is missing" if name in files else "does not belong to it"
        raise WarehouseError(f"{path}: {name} {what}: roll back to a whole version")
    for name, told in sorted(files.items()):
        file = path / name
        if file.stat().st_size != told["bytes"] or file_digest(file) != told["sha256"]:
            raise WarehouseError(f"{path}: {name} has changed since it was published: roll back to a whole version")
    return manifest


def alone(operations: "Operations", run_id: str, on_wait: OnWait | None = None) -> AbstractContextManager[Lease]:
    """The lease under which `current` is moved and versions are taken away. Raises LeaseHeld, naming the holder.

    Never held for what takes long, so that a rollback need not wait for a night.
    """
    return operations.lease(LEASE, run_id, LEASE_WAIT_SECONDS, on_wait)


def rollback(
    directory: Path,
    version: str,
    operations: "Operations | None" = None,
    who: str = "",
    reason: str = "",
    *,
    also: Callable[[Mapping[str, Any]], None] | None = None,
    on_wait: OnWait | None = None,
) -> dict[str, Any]:
    """Make an earlier version current again and return its manifest.

    With `operations` publishing is paused before anything else, so that a publication at work stops before its switch;
    the rest, `also(manifest)` included, is done `alone`. `on_wait` is told whom we wait for, and of a `history.json`
    that cannot be written. Raises WarehouseError when there is no such version or it is not whole, LeaseHeld when
    somebody does not let it happen; then nothing is changed.
    """
    _refuse_unknown(directory, version)
    if operations is None:
        manifest = verify_version(directory / VERSIONS / version)
        switch(directory, version)
        confirm(directory)
        return manifest
    with _paused_meanwhile(operations, version), alone(operations, f"rollback-{version}", on_wait):
        # Again: a purge or an erasure may have been at work until now.
        _refuse_unknown(directory, version)
        manifest = verify_version(directory / VERSIONS / version)
        operations.set_publishing_paused(True, reason or f"rolled back to {version}")
        switch(directory, version)
        operations.record_publication(
            version,
            str(directory),
            "rollback",
            labeler_digest=manifest["labeler_digest"],
            who=who,
            reason=reason,
        )
        if also is not None:
            also(manifest)
        try:
            confirm(directory)
        except OSError as error:
            if on_wait is not None:
                on_wait(f"rolled back, but that could not be noted in {HISTORY} ({error}); the next publication does")
    return manifest


def _refuse_unknown(directory: Path, version: str) -> None:
    if version not in version_names(directory):
        known = ", ".join(version_names(directory)) or "none"
        raise WarehouseError(f"{directory}: there is no version {version!r}; kept are: {known}")


@contextmanager
def _paused_meanwhile(operations: "Operations", version: str) -> Iterator[None]:
    """No publication from here on; a block that fails before it has given its own reason ends that again."""
    begun = f"a rollback to {version} has begun ({ProcessIdentity.current()})"
    ours = operations.begin_pause(begun)
    try:
        yield
    except BaseException:
        if ours:
            operations.end_pause(begun)
        raise


def switch(directory: Path, version: str) -> None:
    """Point `current` at a version, in one step that readers cannot see the middle of."""
    point_link(directory / CURRENT, Path(VERSIONS) / version)


def confirm(directory: Path) -> None:
    """Note in `history.json` that the current version holds at this moment, and that the ones before it do not."""
    history, now, current = _history(directory), _iso(_now()), current_version(directory)
    entries = history.get("versions", [])
    for entry in entries:
        if entry["until"] is None and entry["version"] != current:
            entry["until"] = now
    if current is not None and not any(e["version"] == current and e["until"] is None for e in entries):
        entries.append({"version": current, "since": now, "until": None})
    kept, known = version_names(directory), {entry["version"] for entry in entries}
    # A version that is in no history (it was never switched to, or the history was lost) may have readers until now.
    entries += [{"version": name, "since": None, "until": now} for name in kept if name not in known]
    entries = [entry for entry in entries if entry["version"] in kept]
    _write_history(directory, {"checked_at": now, "versions": entries})


def current_since(directory: Path) -> str:
    """When `current` came to stand where it does (ISO, UTC): a version that was rolled back to is older than that.

    Empty when the history does not say.
    """
    current = current_version(directory)
    entries = [entry for entry in _history(directory).get("versions", []) if entry["version"] == current]
    return str(entries[-1]["since"] or "") if entries and entries[-1]["until"] is None else ""


def replace_version(directory: Path, version: str, staged: Path) -> None:
    """Put a complete staged folder in the place of a version, while `current` stands on a whole one at every moment.

    A kill in between is made good by the next `clean`.
    """
    staged.rename(directory / VERSIONS / f"{REPLACING}{version}")
    fsync_path(directory / VERSIONS)
    _finish_replacing(directory, version)


def _finish_replacing(directory: Path, version: str) -> None:
    folder, fresh = directory / VERSIONS, directory / VERSIONS / f"{REPLACING}{version}"
    is_current = current_version(directory) in (version, fresh.name)
    if is_current:
        point_link(directory / CURRENT, Path(VERSIONS) / fresh.name)
    if (folder / version).exists():
        remove(folder / version)
    # Hard links: the fresh folder stays whole under both names until nobody is pointed to the first one.
    linked = folder / f"{STAGING}{uuid4().hex}"
    shutil.copytree(fresh, linked, copy_function=os.link)
    fsync_tree(linked)
    linked.rename(folder / version)
    fsync_path(folder)
    if is_current:
        point_link(directory / CURRENT, Path(VERSIONS) / version)
    remove(fresh)


def _drop_half_replacing(directory: Path, version: str) -> None:
    """Take away a fresh folder that is not whole (any more); what has the version's name never is half of one."""
    fresh = directory / VERSIONS / f"{REPLACING}{version}"
    if current_version(directory) == fresh.name:
        point_link(directory / CURRENT, Path(VERSIONS) / version)
    remove(fresh)


def remove(path: Path) -> None:
    """Delete a folder of versions. Its name, which somebody might trust, goes first: a kill leaves no half of it."""
    doomed = path.with_name(f"{DELETING}{uuid4().hex}")
    path.rename(doomed)
    fsync_path(doomed.parent)
    shutil.rmtree(doomed)


def clean(directory: Path) -> None:
    """Finish replacements that were interrupted, and remove what a killed process left half made or half deleted."""
    folder = directory / VERSIONS
    for path in sorted(folder.glob(f"{REPLACING}*")):
        version = path.name.removeprefix(REPLACING)
        if _is_whole(path) or not (folder / version).exists():
            _finish_replacing(directory, version)
        else:
            _drop_half_replacing(directory, version)
    for prefix in (STAGING, DELETING):
        for path in folder.glob(f"{prefix}*"):
            shutil.rmtree(path)
    for name in (CURRENT, HISTORY):
        for path in directory.glob(f".{name}-*"):
            path.unlink()


def _is_whole(path: Path) -> bool:
    try:
        verify_version(path)
    except WarehouseError:
        return False
    return True


def purge(directory: Path, keep: int) -> list[str]:
    """Delete versions beyond the newest `keep` that have not been current for 24 hours; returns their names."""
    current, now = current_version(directory), _now()
    names = version_names(directory)
    beyond = [name for name in names[: max(0, len(names) - max(1, keep))] if name != current]
    gone = [name for name in beyond if now - _superseded_at(directory, name) >= SUPERSEDED_FOR]
    for name in gone:
        remove(directory / VERSIONS / name)
    return gone


def _superseded_at(directory: Path, version: str) -> datetime:
    """When a version stopped being current; now, when the history does not say."""
    ends = [entry["until"] for entry in _history(directory).get("versions", []) if entry["version"] == version]
    return datetime.fromisoformat(ends[-1]) if ends and ends[-1] else _now()


def _history(directory: Path) -> dict[str, Any]:
    path = directory / HISTORY
    try:
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    except ValueError:
        # It only delays deletions and dates the last check, so a damaged one is begun anew and blocks nobody.
        return {}


def _write_history(directory: Path, history: dict[str, Any]) -> None:
    replace_file(directory / HISTORY, json.dumps(history, indent=1).encode("utf-8"))


def _now() -> datetime:
    return datetime.now(UTC)


def _iso(moment: datetime) -> str:
    return moment.isoformat(timespec="microseconds")
