"""Which numbers of a project are still those that the template has for its sample, although the tables are others.

Reads the shipped template, so that no number stands here twice. Deliberately does not know which number would be right:
nobody does before looking at the tables.
"""

import hashlib
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from semlabel.settings import Settings

_TEMPLATE = Path(__file__).resolve().parent / "templates"
_SECTIONS = ("splits", "prompt", "training", "calibration", "gates")


def left_from_sample(settings: Settings, entities_digest: str) -> dict[str, int | float]:
    """The numbers that are as in the template and not the defaults, by `section.key`; none while the entities, whose
    file has this sha256, are the sample's.
    """
    template = tomllib.loads((_TEMPLATE / "pipeline.toml").read_text(encoding="utf-8"))
    sample = (_TEMPLATE / template["sources"]["entities"]).read_bytes()
    if hashlib.sha256(sample).hexdigest() == entities_digest:
        return {}
    return {
        f"{section}.{key}": value
        for section in _SECTIONS
        for key, value in _sized(template, section)
        if getattr(getattr(settings, section), key) == value
    }


def sentence(left: dict[str, int | float]) -> str:
    """One line for people on `left_from_sample`."""
    by_section: dict[str, list[str]] = {}
    for name, value in left.items():
        section, _, key = name.partition(".")
        by_section.setdefault(section, []).append(f"{key} = {value:g}")
    told = "; ".join(f"[{section}] {', '.join(settings)}" for section, settings in by_section.items())
    return (
        f"Still as the template sized it for its sample: {told}. Set each for your tables, or take it out for the "
        "default (a promise in [calibration] has none)."
    )


def _sized(template: dict[str, Any], section: str) -> Iterator[tuple[str, int | float]]:
    """The numbers of one section of the template that are not the defaults."""
    defaults = Settings.model_fields[section].annotation.model_fields  # type: ignore[union-attr]
    for key, value in template[section].items():
        if isinstance(value, int | float) and not isinstance(value, bool) and defaults[key].default != value:
            yield key, value
