"""What the libraries below semlabel would tell their makers, or keep in somebody's home, switched off.

They read the environment when they are imported, so this is done before any of them is, by importing semlabel itself.
Whoever sets one of these variables to something else is obeyed. Knows names of variables, nothing of the libraries.
"""

import os
from collections.abc import MutableMapping
from pathlib import Path

NO_TELEMETRY = {
    "DAGSTER_DISABLE_TELEMETRY": "1",
    "DO_NOT_TRACK": "1",
    "GX_ANALYTICS_ENABLED": "false",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}


def switch_off_telemetry(environment: MutableMapping[str, str]) -> None:
    """Nothing is reported to anybody; a variable that is set stays as it is."""
    for name, value in NO_TELEMETRY.items():
        environment.setdefault(name, value)


def keep_fonts(folder: Path) -> None:
    """Let matplotlib keep its list of fonts in a folder of this project, not in somebody's home."""
    os.environ.setdefault("MPLCONFIGDIR", str(folder / "fonts"))
