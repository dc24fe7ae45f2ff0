"""The files of a new project: which there are, where they ship, and what an upgrade would change of them.

The code location (three folders and workspace.yaml) is semlabel's and can be upgraded; settings, tables and README are
the team's from the first day and are never touched again. Knows nothing of Dagster or of what any file says.
"""

import difflib
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from semlabel import __version__
from semlabel.durable import replace_file
from semlabel.errors import SettingsError

STAMP = "code_location.json"
"""Which version laid the code location out, and the sha256 of every file as it was then."""
KEPT = ".kept"
"""What the name of a file ends with that a team had changed and an upgrade replaced."""
_FOLDERS = ("resources", "assets", "pipeline")
_WORKSPACE = "workspace.yaml"
_PACKAGE = Path(__file__).resolve().parent
_RENAMED = {"gitignore": ".gitignore"}  # a .gitignore inside the package would be obeyed by git


@dataclass(frozen=True)
class Change:
    """One file that an upgrade writes (`after`) or removes (`after` is None); `edited`: not as it was laid out."""

    name: str
    before: bytes | None
    after: bytes | None
    edited: bool

    def diff(self) -> str:
        """The unified diff, from what is there to what would be."""
        here, shipped = (
            (content or b"").decode("utf-8", "replace").splitlines(keepends=True)
            for content in (self.before, self.after)
        )
        fromfile = "/dev/null" if self.before is None else f"here/{self.name}"
        tofile = "/dev/null" if self.after is None else f"shipped/{self.name}"
        lines = difflib.unified_diff(here, shipped, fromfile, tofile)
        return "".join(line if line.endswith("\n") else line + "\n" for line in lines)


def shipped_code() -> dict[str, bytes]:
    """The code location of this version, by name below the project's folder: from the wheel, else the repository."""
    for root in (_PACKAGE / "code_location", _PACKAGE.parent):
        if (root / _WORKSPACE).is_file() and (root / "pipeline" / "definitions.py").is_file():
            files = [root / _WORKSPACE, *(path for folder in _FOLDERS for path in sorted((root / folder).rglob("*")))]
            return {
                path.relative_to(root).as_posix(): path.read_bytes()
                for path in files
                if path.is_file() and "__pycache__" not in path.parts
            }
    raise SettingsError(f"{_PACKAGE}: this installation has no code location to lay out; install the wheel again")


def team_files() -> dict[str, bytes]:
    """What a project starts with and owns: settings, sample tables, README, .gitignore."""
    root = _PACKAGE / "templates"
    files = (path for path in sorted(root.rglob("*")) if path.is_file() and path.suffix not in (".py", ".pyc"))
    return {_RENAMED.get(path.name, path.relative_to(root).as_posix()): path.read_bytes() for path in files}


def lay_out(folder: Path) -> list[str]:
    """Write a new project; returns the names. Raises SettingsError where something is already there."""
    if folder.exists() and not folder.is_dir():
        raise SettingsError(f"{folder} is a file; name a folder that is new or empty")
    if folder.is_dir() and any(entry.name != ".git" for entry in folder.iterdir()):
        hint = "`semlabel init --upgrade` brings its code up to date" if (folder / STAMP).exists() else "name a new one"
        raise SettingsError(f"{folder} is not empty and nothing was written; {hint}")
    code = shipped_code()
    files = code | team_files()
    try:
        for name, content in files.items():
            _write(folder / name, content)
        _write_stamp(folder, code)
    except OSError as error:
        raise SettingsError(f"{folder}: cannot be written: {error.strerror or error}") from None
    return [*files, STAMP]


def plan_upgrade(folder: Path) -> list[Change]:
    """What an upgrade would change, nothing when all is as shipped. Raises SettingsError for a folder without stamp."""
    laid_out, code = _read_stamp(folder), shipped_code()
    changes = []
    for name in sorted({*laid_out, *code}):
        path = folder / name
        try:
            before = path.read_bytes() if path.is_file() else None
        except OSError as error:
            raise SettingsError(f"{path}: cannot be read: {error.strerror or error}") from None
        after = code.get(name)
        if before != after:
            edited = before is not None and hashlib.sha256(before).hexdigest() != laid_out.get(name)
            changes.append(Change(name, before, after, edited))
    return changes


def apply_upgrade(folder: Path, changes: list[Change]) -> list[str]:
    """Write the changes; an edited file is kept beside the new one, and the names of those are returned."""
    kept = []
    try:
        for change in changes:
            path = folder / change.name
            if change.edited and change.before is not None:
                kept.append(_free_name(path, change.before).relative_to(folder).as_posix())
                _write(folder / kept[-1], change.before)
            if change.after is None:
                path.unlink(missing_ok=True)
            else:
                _write(path, change.after)
        _write_stamp(folder, shipped_code())
    except OSError as error:
        raise SettingsError(f"{folder}: the upgrade stopped: {error}; run it again when that is mended") from None
    return kept


def stamped_version(folder: Path) -> str:
    """The version that laid this project's code location out. Raises SettingsError."""
    return str(_stamp(folder)["semlabel"])


def _free_name(path: Path, content: bytes) -> Path:
    """Where an edited file is kept: never over another one that was kept before."""
    for number in range(1, 1000):
        kept = path.with_name(f"{path.name}{KEPT}" + (f".{number}" if number > 1 else ""))
        if not kept.exists() or kept.read_bytes() == content:
            return kept
    raise SettingsError(f"{path}: a thousand {KEPT} files lie beside it; remove some")


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, content)


def _write_stamp(folder: Path, code: dict[str, bytes]) -> None:
    files = {name: hashlib.sha256(content).hexdigest() for name, content in sorted(code.items())}
    document = json.dumps({"semlabel": __version__, "files": files}, indent=1) + "\n"
    _write(folder / STAMP, document.encode())


def _read_stamp(folder: Path) -> dict[str, str]:
    files = _stamp(folder)["files"]
    # The names decide what is removed, and the file is anybody's to edit.
    for name in files:
        parts = PurePosixPath(name).parts
        if name != _WORKSPACE and (len(parts) < 2 or parts[0] not in _FOLDERS or ".." in parts):
            raise SettingsError(f"{folder / STAMP}: {name!r} is no file of a code location; lay out a new project")
    return {str(name): str(digest) for name, digest in files.items()}


def _stamp(folder: Path) -> dict[str, dict[str, str]]:
    path = folder / STAMP
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SettingsError(f"{path}: no such file; this folder was not laid out by `semlabel init`") from None
    except (OSError, ValueError) as error:
        raise SettingsError(f"{path}: cannot be read: {error}; restore it from version control") from None
    whole = isinstance(document, dict) and isinstance(document.get("files"), dict) and "semlabel" in document
    if not whole:
        raise SettingsError(f"{path}: expected semlabel and files; restore it from version control")
    return document
