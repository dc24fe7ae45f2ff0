"""What Dagster loads where there are several labelers: an attribute of this module for each of their settings files.

An entry of `workspace.yaml` with `attribute: topics` gets the definitions of the `topics.toml` beside it, so that one
copy of the code serves every labeler. Knows nothing of what their settings say.
"""

from functools import cache
from pathlib import Path

import dagster as dg

from pipeline.assembly import build_defs

FOLDER = Path(__file__).resolve().parent.parent


def __getattr__(name: str) -> dg.Definitions:
    """The definitions of the settings file of that name. Raises AttributeError where there is none."""
    path = FOLDER / f"{name}.toml"
    if name.startswith("_") or not path.is_file():
        raise AttributeError(f"{path}: no such settings file; workspace.yaml asks for it with attribute: {name}")
    return _definitions(path)


@cache
def _definitions(path: Path) -> dg.Definitions:
    return build_defs(path)
