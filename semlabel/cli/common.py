"""What every command shares: the options `--config` and `--json`, opening a project, and where output goes.

Machine output is the only thing on stdout under `--json`; logs, progress and errors go to stderr. Knows nothing of any
command.
"""

import getpass
import io
import json
import os
import shlex
import shutil
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from semlabel.errors import SemlabelError, SettingsError

if TYPE_CHECKING:
    from semlabel.operations import Operations
    from semlabel.settings import Settings

ConfigOption = Annotated[
    Path,
    typer.Option("--config", "-c", envvar="SEMLABEL_CONFIG", help="The settings file.", metavar="FILE"),
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Machine-readable output on stdout; everything else goes to stderr.")
]
WhoOption = Annotated[str, typer.Option("--who", help="Who decided; kept with the decision.", show_default="you")]

DEFAULT_CONFIG = Path("pipeline.toml")


def project(config: Path) -> "Settings":
    """The settings of `--config`. Raises SettingsError."""
    from semlabel.settings import load_settings

    return load_settings(config, os.environ)


def operations_of(settings: "Settings") -> "Operations | None":
    """`ops.sqlite`, or None before a first run: commands that only look must not create anything."""
    if not settings.paths.ops.exists():
        return None
    from semlabel.operations import Operations

    return Operations(settings.paths.ops)


def needed_operations(settings: "Settings") -> "Operations":
    """`ops.sqlite` of a project that has run. Raises SemlabelError before a first run."""
    operations = operations_of(settings)
    if operations is None:
        raise SemlabelError(f"{settings.paths.state}: nothing has run here yet; start with `semlabel run`")
    return operations


def started_operations(settings: "Settings") -> "Operations":
    """`ops.sqlite`, made where nothing has run yet: for what people may do before a first run."""
    from semlabel.operations import Operations

    settings.paths.create()
    return Operations(settings.paths.ops)


def say(text: str = "") -> None:
    """A line for people who watch, on stderr."""
    print(text, file=sys.stderr, flush=True)


def show(text: str = "") -> None:
    """A line of the answer itself, on stdout."""
    print(text, flush=True)


def show_json(value: Any) -> None:
    """`value` as one JSON document on stdout; NaN and infinities are errors, not tokens that no parser reads."""
    show(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False))


def refuse_missing_base(settings: "Settings") -> None:
    """Raise SettingsError where the base model is written as a folder and there is none."""
    base = Path(settings.model.base)
    if base.is_absolute() and not base.is_dir():
        raise SettingsError(f"[model] base = {base}: no such folder; mend the path, or name a model of the hub")


def plain_streams() -> None:
    """Let stdout show what its encoding has no character for (a lone surrogate of a broken argument) as an escape."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def me() -> str:
    """Who is at the keyboard, as far as the system knows."""
    return f"{getpass.getuser()}@{socket.gethostname()}"


def command_for(settings: "Settings", command: str, options: Mapping[str, object] | None = None) -> str:
    """A command line that works from the current folder for this project; options that are None are left out."""
    file = settings.path
    try:
        shown = file.relative_to(Path.cwd())
    except ValueError:
        shown = file
    config = "" if shown == DEFAULT_CONFIG else f" --config {shown}"
    given = [f" --{name} {shlex.quote(str(value))}" for name, value in (options or {}).items() if value is not None]
    return f"{_program()} {command}{config}{''.join(given)}"


def _program() -> str:
    """How this program was called, so that a command it names can be pasted where it is not on the path."""
    called = Path(sys.argv[0])
    on_path = shutil.which("semlabel")
    if called.name != "semlabel" or (on_path is not None and Path(on_path).resolve() == called.resolve()):
        return "semlabel"
    try:
        return str(called.absolute().relative_to(Path.cwd()))
    except ValueError:
        return str(called)
