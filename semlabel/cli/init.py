"""`semlabel init`: a new project that runs as it is, and its code location brought up to date later.

Knows options and words; which files there are stands in `semlabel.project_files`.
"""

from pathlib import Path
from typing import Annotated

import typer

from semlabel.cli.common import say, show
from semlabel.errors import SettingsError


def init(
    folder: Annotated[Path, typer.Argument(help="The project's folder: new or empty.", metavar="FOLDER")],
    upgrade: Annotated[
        bool, typer.Option("--upgrade", help="Show what this version would change in an existing project's code.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="With --upgrade: write it.")] = False,
) -> None:
    """Lay out a new project: settings with comments, sample tables, a README and the Dagster code location.

    The sample is 60 invented support tickets and 12 topics; put your own tables in its place. `--upgrade` touches only
    resources/, assets/, pipeline/ and workspace.yaml. It prints a unified diff and writes nothing without `--yes`; a
    file that was changed here is kept beside the new one as NAME.kept.

    \b
    Examples:
      semlabel init my-labels
      semlabel init --upgrade my-labels
    """
    if yes and not upgrade:
        raise SettingsError("--yes belongs to --upgrade; without it nothing that exists is ever written over")
    if upgrade:
        _upgrade(folder, yes)
    else:
        _new(folder)


def _new(folder: Path) -> None:
    from semlabel.project_files import lay_out

    names = lay_out(folder)
    show(f"{folder}: {len(names)} files. Next:")
    show(f"  cd {folder}")
    show("  semlabel check      what was found, what is too thin, what a run would cost")
    show("  semlabel run        everything; the sample takes minutes and publishes a preview at most")
    show("Then put your own tables into data/ and name them in pipeline.toml.")


def _upgrade(folder: Path, yes: bool) -> None:
    from semlabel import __version__
    from semlabel.project_files import apply_upgrade, plan_upgrade, stamped_version

    before = stamped_version(folder)
    changes = plan_upgrade(folder)
    for change in changes:
        show(change.diff().rstrip("\n"))
        if change.edited:
            say(f"{change.name}: changed in this project since it was laid out")
    if yes:
        for name in apply_upgrade(folder, changes):
            say(f"kept as {name}: carry over what you still need")
        say(f"{folder}: {len(changes)} files changed; code location {before} -> {__version__}")
    elif changes:
        say(f"{len(changes)} files would change ({before} -> {__version__}); nothing was written: add --yes")
    else:
        say(f"{folder}: nothing to change; its code location is that of {__version__}")
