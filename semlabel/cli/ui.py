"""`semlabel ui`: Dagster's user interface on this project's history."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from semlabel.cli.common import DEFAULT_CONFIG, ConfigOption, project, say


def ui(
    config: ConfigOption = DEFAULT_CONFIG,
    port: Annotated[int, typer.Option("--port", min=1, max=65535, help="The port to listen on.")] = 3000,
    host: Annotated[
        str, typer.Option("--host", help="The address to listen on; 0.0.0.0 is every network.")
    ] = "127.0.0.1",
    workspace: Annotated[
        Path | None, typer.Option("--workspace", help="The workspace.yaml with the pipeline's code.", metavar="FILE")
    ] = None,
) -> None:
    """Open Dagster's UI: runs, gates, plots, the asset graph; schedules and sensors work while it is open.

    Stop it with Ctrl-C. What ran in the meantime is kept.

    \b
    Example:
      semlabel ui --config pipeline.toml --port 3000
    """
    from semlabel.cli.code_location import find_workspace, prepare_environment, read_workspace

    settings = project(config)
    file = find_workspace(settings, workspace)
    prepare_environment(settings, read_workspace(file, settings.path))
    say(f"http://{host}:{port}  (history in {settings.paths.dagster_home}; stop with Ctrl-C)")
    arguments = ["-W", "ignore", "-m", "dagster", "dev", "-w", str(file), "-p", str(port), "-h", host]
    os.execv(sys.executable, [sys.executable, *arguments])  # takes this process's place, so Ctrl-C reaches Dagster
