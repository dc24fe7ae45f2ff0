"""The project's settings as a resource.

Knows which file to read, not what any setting means. Every process reads the file when it first asks, so that a change
counts from the next run on, without a restart of the code server.
"""

import os
from pathlib import Path
from typing import TYPE_CHECKING

import dagster as dg
from pydantic import PrivateAttr

if TYPE_CHECKING:
    from semlabel.settings import Settings

CONFIG_VARIABLE = "SEMLABEL_CONFIG"
_ROOT = Path(__file__).resolve().parent.parent
_DEMO = _ROOT / "demo" / "pipeline.toml"


def settings_file() -> Path:
    """The settings file in force: `SEMLABEL_CONFIG`, else `pipeline.toml` here or beside this code, else the demo's."""
    named = os.environ.get(CONFIG_VARIABLE)
    if named:
        return Path(named).expanduser().absolute()
    places = (Path.cwd() / "pipeline.toml", _ROOT / "pipeline.toml")
    return next((place for place in places if place.is_file()), _DEMO)


class SettingsResource(dg.ConfigurableResource):
    """`config_path`: the settings file, absolute."""

    config_path: str
    _loaded: "Settings | None" = PrivateAttr(default=None)

    def get(self) -> "Settings":
        """The settings. Raises SettingsError with one line that says what to mend."""
        if self._loaded is None:
            from semlabel.settings import load_settings

            self._loaded = load_settings(Path(self.config_path), os.environ)
        return self._loaded
