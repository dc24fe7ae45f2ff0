"""`semlabel report`: where the HTML report of a run is, made anew from what is known now.

Knows runs by the beginning of their ids and how a browser is asked; what stands in a report, `semlabel.html_report`
decides.
"""

import webbrowser
from typing import TYPE_CHECKING, Annotated

import typer

from semlabel.cli.common import (
    DEFAULT_CONFIG,
    ConfigOption,
    JsonOption,
    needed_operations,
    project,
    say,
    show,
    show_json,
)
from semlabel.errors import SettingsError

if TYPE_CHECKING:
    from semlabel.operations import Operations

_RUNS_SEARCHED = 100_000
_PATIENCE = 5.0


def report(
    config: ConfigOption = DEFAULT_CONFIG,
    run: Annotated[
        str, typer.Option("--run", help="A run, or the beginning of its id.", metavar="ID", show_default="the last one")
    ] = "",
    open_it: Annotated[bool, typer.Option("--open", help="Show it in the browser.")] = False,
    json: JsonOption = False,
) -> None:
    """Print the path of a run's HTML report, writing it when it is missing and bringing it up to date when it is not.

    Everything is in the one file: copy it, mail it, read it on a phone. It holds ids and no texts, unless [report]
    texts = true. `reports/latest.html` is that of the newest run.

    \b
    Examples:
      semlabel report --open
      semlabel report --run 4f1c2a9e
    """
    from semlabel.html_report import complete_report

    settings = project(config)
    operations = needed_operations(settings)
    run_id = _run_id(operations, run)
    path = complete_report(settings, operations, run_id, _PATIENCE)
    if json:
        show_json({"run_id": run_id, "path": str(path)})
    else:
        show(str(path))
    if open_it and not webbrowser.open(path.as_uri()):
        say("no browser could be started here: open the file where there is one")


def _run_id(operations: "Operations", beginning: str) -> str:
    """The run whose id begins so, the last one for nothing. Raises SettingsError for none and for several."""
    if not beginning:
        last = operations.last_run()
        if last is None:
            raise SettingsError("nothing has run here yet; start with `semlabel run`")
        return str(last["run_id"])
    ids = [str(row["run_id"]) for row in operations.runs(_RUNS_SEARCHED) if row["run_id"].startswith(beginning)]
    if beginning in ids:
        return beginning
    if len(ids) != 1:
        told = f"{len(ids)} runs begin so; give more of the id" if ids else "see `semlabel status`"
        raise SettingsError(f'no single run is called "{beginning}": {told}')
    return ids[0]
