"""Named variants of one recipe, read from a TOML file: which settings differ, which loss, which method.

A file has an optional table `[recipe]`, settings that all variants share, and a `[[variant]]` for each. Knows nothing
of how a variant is trained.
"""

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from semlabel.bench.experiments.learners import LOSSES
from semlabel.errors import SettingsError

BASELINES = ("tfidf_cosine", "tfidf_logistic", "minilm_logistic")
METHODS = ("mis", "generation", *BASELINES)


@dataclass(frozen=True)
class Variant:
    """What is different. `settings` are tables of `pipeline.toml`; `train` False takes the base model as it is.

    `round_items` cuts the pairs of an entity into smaller rounds (0: one round an entity).
    """

    name: str
    method: str = "mis"
    loss: str = "label"
    round_items: int = 0
    train: bool = True
    settings: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise SettingsError(f'variant "{self.name}": method {self.method!r}; use {", ".join(METHODS)}')
        if self.loss not in LOSSES:
            raise SettingsError(f'variant "{self.name}": loss {self.loss!r}; use {", ".join(LOSSES)}')


@dataclass(frozen=True)
class Variants:
    """The variants of a file, in its order, and the settings they share."""

    recipe: dict[str, Any]
    variants: tuple[Variant, ...]


def read_variants(path: Path, only: Sequence[str] = ()) -> Variants:
    """The variants of a file, or only those with one of these names. Raises SettingsError for what is not one."""
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SettingsError(f"{path}: no such file of variants; name one with --variants") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path}: not valid TOML: {error}") from error
    entries = tables.pop("variant", [])
    recipe = tables.pop("recipe", {})
    if tables or not isinstance(entries, list) or not entries or not isinstance(recipe, dict):
        found = ", ".join(tables) or "no [[variant]]"
        raise SettingsError(f"{path}: found {found}; expected [recipe] and at least one [[variant]]")
    variants = tuple(_variant(path, entry) for entry in entries)
    names = [variant.name for variant in variants]
    if len(set(names)) < len(names):
        raise SettingsError(f"{path}: two variants have one name; give each its own")
    for name in only:
        if name not in names:
            raise SettingsError(f"{path}: no variant {name!r}; there are {', '.join(names)}")
    return Variants(recipe, tuple(variant for variant in variants if not only or variant.name in only))


def _variant(path: Path, entry: dict[str, Any]) -> Variant:
    known = {one.name: one.type for one in fields(Variant)}
    unknown = [key for key in entry if key not in known]
    if unknown or not isinstance(entry.get("name"), str) or not entry["name"]:
        what = f"key {unknown[0]!r}" if unknown else "no name"
        raise SettingsError(f"{path}: a [[variant]] has {what}; valid: {', '.join(known)}")
    for key, kind in (("method", str), ("loss", str), ("round_items", int), ("train", bool), ("settings", dict)):
        if key in entry and not isinstance(entry[key], kind):
            raise SettingsError(f'{path}: variant "{entry["name"]}": {key} = {entry[key]!r} is no {kind.__name__}')
    return Variant(**entry)
