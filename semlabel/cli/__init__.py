"""The command line. `semlabel --help` lists the commands; each one teaches itself with an example.

Exit codes: 0 done, 1 a gate failed or rows were refused beyond the limit, 2 bad input or settings. An error that a user
can mend is one line on stderr; anything else is a fault of the program and keeps its traceback.
"""

import gc
import os
import sys
from collections.abc import Callable, Sequence

import typer

from semlabel import __version__
from semlabel.cli import (
    alerts,
    bench,
    check,
    doctor,
    erase,
    init,
    judging,
    promotion,
    report,
    run,
    scoring,
    serve,
    status,
    teacher,
    ui,
)
from semlabel.cli.common import plain_streams
from semlabel.errors import GateBlocked, SemlabelError

_EPILOG = """\b
A first run, from your own tables to a published one:
  semlabel init my-labels                  a project with sample tables to put yours in the place of
  semlabel check --config pipeline.toml    what would run, and what it would cost
  semlabel run --config pipeline.toml      everything, with live progress
  semlabel status --config pipeline.toml   gates, quality, where the table is
"""

# The vendored click of newer typer versions is not importable by a public name; its errors are, by their base class.
_CommandLineError: type[Exception] = typer.BadParameter.__mro__[2]

# Name, short description (the help text of each says more), function.
_COMMANDS: tuple[tuple[str, str, Callable[..., None]], ...] = (
    ("init", "A new project, with sample tables.", init.init),
    ("check", "What would run and what it would cost.", check.check),
    ("run", "Run the recipe, or what changed of it.", run.run),
    ("status", "Last run, gates, quality, publication.", status.status),
    ("score", "Margins of one text with candidate texts.", scoring.score),
    ("label", "Label the entities of a file.", scoring.label),
    ("serve", "Answer over HTTP and gRPC.", serve.serve),
    ("promote", "Make a labeler the current one.", promotion.promote),
    ("rollback", "Back to an earlier published version.", promotion.rollback),
    ("approve", "Let one large change be published.", promotion.approve),
    ("report", "The HTML report of a run.", report.report),
    ("sample", "Pairs for people to judge.", judging.sample),
    ("teacher", "A large model judges exported pairs.", teacher.teacher),
    ("erase", "One entity out of everything kept.", erase.erase),
    ("ui", "Dagster's UI on this project's history.", ui.ui),
    ("doctor", "Is the machine fit, is everything whole?", doctor.doctor),
)


def build_app() -> typer.Typer:
    """The application with all its commands."""
    app = typer.Typer(
        name="semlabel",
        help="Exact, gated labeling of entities against a catalog with a small language model.",
        epilog=_EPILOG,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
    )
    app.callback(invoke_without_command=True)(_top)
    for name, short_help, command in _COMMANDS:
        app.command(name, short_help=short_help)(command)
    app.add_typer(alerts.group, name="alerts", short_help="What is red, and who was told.")
    app.add_typer(judging.group, name="judgements", short_help="What people decided, back into the project.")
    app.add_typer(bench.build(), name="bench", short_help="Measure speed and exactness.")
    return app


def _top(
    context: typer.Context,
    version: bool = typer.Option(False, "--version", help="Print the version and stop."),
) -> None:
    if version:
        print(f"semlabel {__version__}")
        raise typer.Exit(0)
    if context.invoked_subcommand is None:
        print(context.get_help())


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and exit with its code."""
    # Importing Dagster and torch leaves next to no garbage, and by Python's own numbers it is looked for all the while:
    # a seventh of the time that a command needs to start.
    gc.set_threshold(10_000, 10, 10)
    sys.exit(run_command(arguments))


def run_command(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; errors a user can mend are printed as one line."""
    plain_streams()
    try:
        code = build_app()(
            args=list(arguments) if arguments is not None else None, prog_name="semlabel", standalone_mode=False
        )
    except GateBlocked as error:
        return _one_line(str(error), 1)
    except SemlabelError as error:
        return _one_line(str(error), 2)
    except _CommandLineError as error:
        return _one_line(f"{_told(error)} (see `semlabel --help`)", 2)
    except KeyboardInterrupt:
        return _one_line("interrupted", 130)
    except BrokenPipeError:
        # The reader of a pipe (`| head`) has left; nobody is there to be told.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return code if isinstance(code, int) else 0


def _told(error: Exception) -> str:
    # `format_message` also names the option or argument that is wrong.
    format_message: Callable[[], str] = getattr(error, "format_message", error.__str__)
    return format_message()


def _one_line(message: str, code: int) -> int:
    print("error: " + " ".join(message.split()), file=sys.stderr, flush=True)
    return code
