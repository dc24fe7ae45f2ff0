"""From TOML files and the environment to one plain dictionary of settings.

Does `extends`, `SEMLABEL__SECTION__KEY` and the paths that are relative to the file that names them. Knows nothing of
which settings exist or what they mean: that is `settings`.
"""

import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from semlabel.errors import SettingsError

ENVIRONMENT_PREFIX = "SEMLABEL__"
_INPUT_PATHS = (
    *(("sources", name) for name in ("entities", "catalog", "references", "judgements")),
    ("model", "base"),
    ("shortlist", "encoder"),
)
_MODELS = ("base", "encoder")
_BUILT_IN = "tfidf"
_DUCKDB_PREFIX = "duckdb:"


def read_merged(path: Path) -> dict[str, Any]:
    """The tables of a TOML file merged over those of the file it `extends`, and so on.

    Paths of inputs become absolute here, because only here is known which file named them. Raises SettingsError when
    a file is missing, is no UTF-8 or no TOML, or when the chain of `extends` closes on itself.
    """
    chain: list[Path] = []
    merged: dict[str, Any] = {}
    following: Path | None = path
    while following is not None:
        current = following.resolve()
        if current in chain:
            raise SettingsError(f'{path}: "extends" comes back to {current}; break the circle')
        chain.append(current)
        tables = _read_toml(current)
        base = tables.pop("extends", None)
        if base is not None and not isinstance(base, str):
            raise SettingsError(f'{current}: "extends" is {base!r}; expected the path of another settings file as text')
        _anchor_inputs(tables, current.parent)
        merged = merge(tables, merged)
        following = None if base is None else current.parent / base
    return merged


def merge(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`over` laid upon `under`, table by table; any other value of `over` replaces that of `under`."""
    merged = dict(under)
    for key, value in over.items():
        below = merged.get(key)
        both_tables = isinstance(value, Mapping) and isinstance(below, Mapping)
        merged[key] = merge(below, value) if both_tables else value  # type: ignore[arg-type]
    return merged


def environment_overrides(
    env: Mapping[str, str], wants_text: Callable[[tuple[str, ...]], bool], folder: Path
) -> dict[str, Any]:
    """The tables that `SEMLABEL__SECTION__KEY` variables spell out, keys in lower case.

    A value is read as a TOML value and as text where it is none. `wants_text(path)` says that a key holds text, so
    that a name such as `1e5` does not turn into a number. Relative inputs are relative to `folder`.
    """
    tables: dict[str, Any] = {}
    for name in sorted(env):
        if not name.upper().startswith(ENVIRONMENT_PREFIX):
            continue
        path = tuple(part.lower() for part in name[len(ENVIRONMENT_PREFIX) :].split("__"))
        if len(path) < 2 or not all(path):
            raise SettingsError(f"environment variable {name}: expected {ENVIRONMENT_PREFIX}SECTION__KEY")
        value: Any = env[name]
        parsed = _toml_value(value)
        if isinstance(parsed, str) or (parsed is not None and not wants_text(path)):
            value = parsed
        nested: Any = value
        for part in reversed(path):
            nested = {part: nested}
        tables = merge(tables, nested)
    _anchor_inputs(tables, folder)
    return tables


def anchored(value: str, folder: Path) -> str:
    """`value` as an absolute path below `folder`; `duckdb:PATH#SQL` keeps its form around an absolute PATH."""
    if value.startswith(_DUCKDB_PREFIX):
        database, separator, query = value[len(_DUCKDB_PREFIX) :].partition("#")
        return f"{_DUCKDB_PREFIX}{folder / Path(database).expanduser()}{separator}{query}" if database else value
    return str(folder / Path(value).expanduser())


def _anchor_inputs(tables: dict[str, Any], folder: Path) -> None:
    for section, key in _INPUT_PATHS:
        table = tables.get(section)
        value = table.get(key) if isinstance(table, dict) else None
        if (
            isinstance(table, dict)
            and isinstance(value, str)
            and value.strip()
            and (key not in _MODELS or _is_local_model(value, folder))
        ):
            table[key] = anchored(value, folder)


def _is_local_model(value: str, folder: Path) -> bool:
    """A model is a folder when it is written like one or is there; otherwise it is a name on the Hugging Face hub.

    The built-in encoder stays a name whatever lies beside the file.
    """
    if value == _BUILT_IN:
        return False
    return value.startswith((".", "/", "~")) or (folder / value).exists()


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        raise SettingsError(f"{path}: no such settings file; name one with --config") from None
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise SettingsError(f"{path}: not UTF-8 at byte {error.start}; save it as UTF-8") from error
    try:
        return tomllib.loads(text.replace("\r\n", "\n"))
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{path}: not valid TOML: {error}") from error


def _toml_value(text: str) -> Any:
    """`text` as a TOML value, or None where it is none (TOML itself has no null)."""
    try:
        document = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return None
    return document["value"] if set(document) == {"value"} else None
