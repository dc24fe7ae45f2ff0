"""`semlabel doctor`: is this machine fit, and is what lies on its disk still whole?

Looks and never mends. Every finding is one line; knows nothing of what a run would do (that is `check`).
"""

import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from semlabel import __version__
from semlabel.cli.common import DEFAULT_CONFIG, ConfigOption, JsonOption, project, say, show, show_json
from semlabel.cli.text import size, table
from semlabel.errors import SemlabelError

if TYPE_CHECKING:
    from semlabel.settings import Settings

PACKAGES = (
    "torch",
    "transformers",
    "tokenizers",
    "safetensors",
    "dagster",
    "duckdb",
    "great_expectations",
    "pandas",
    "peft",
)
LOW_DISK = 2e9


@dataclass(frozen=True)
class Finding:
    """One thing looked at; `ok` is False where something is wrong."""

    what: str
    ok: bool
    found: str


def doctor(
    config: ConfigOption = DEFAULT_CONFIG,
    self_check: Annotated[
        bool, typer.Option("--self-check/--no-self-check", help="Load the promoted labeler and prove its margins.")
    ] = True,
    json: JsonOption = False,
) -> None:
    """Report versions, device and precision, and verify everything on disk against its digests.

    Reads every promoted weight, every published file and every row of the warehouse once, and loads the promoted
    labeler to see that it still gives the margins it gave. It waits for a run at work as another run would, and lets
    one in that begins meanwhile. The exit code is 1 when something is wrong.

    \b
    Example:
      semlabel doctor --config pipeline.toml
    """
    findings = list(_machine())
    if config.exists() or config != DEFAULT_CONFIG:
        findings += _project(project(config), self_check)
    else:
        findings.append(Finding("settings", True, f"no {config} here: only the machine was looked at"))
    if json:
        show_json([asdict(finding) for finding in findings])
    else:
        show(table(["", "what", "found"], [["ok" if f.ok else "WRONG", f.what, f.found] for f in findings]))
    raise typer.Exit(0 if all(finding.ok for finding in findings) else 1)


def _machine() -> Iterator[Finding]:
    yield Finding("semlabel", True, f"{__version__}, Python {platform.python_version()} in {sys.prefix}")
    for package in PACKAGES:
        try:
            yield Finding(package, True, version(package))
        except PackageNotFoundError:
            yield Finding(package, False, "not installed; install again from constraints.txt")
    yield _looked_at("device", _device)

    yield _looked_at("precision", _precision)
    yield Finding("telemetry", True, _telemetry())


def _device() -> str:
    import torch

    from semlabel.models import resolve_device

    device = resolve_device("auto")
    name = torch.cuda.get_device_name() if device.startswith("cuda") else f"{torch.get_num_threads()} threads"
    return f"{device} ({name})"


def _precision() -> str:
    from semlabel.models import resolve_device, resolve_precision

    chosen = resolve_precision("auto", resolve_device("auto"))
    native = (
        "fp32 and bf16 in hardware" if chosen == "bf16" else "fp32; bf16 works, slowly: there is no hardware for it"
    )
    return f"{native}; auto is {chosen}"


def _telemetry() -> str:
    from semlabel.privacy import NO_TELEMETRY

    on = [name for name, value in NO_TELEMETRY.items() if os.environ.get(name) != value]
    return f"somebody set {', '.join(on)}" if on else "off"


def _project(settings: "Settings", self_check: bool) -> list[Finding]:
    paths = settings.paths
    findings = [Finding("settings", True, str(settings.path)), _disk(settings)]
    looks: list[tuple[str, Path, Callable[[Settings], str]]] = [
        ("operations", paths.ops, _operations),
        ("warehouse", paths.warehouse, _warehouse),
        ("labeler", paths.labelers / "current", _labeler),
        *([("self-check", paths.labelers / "current", _self_check)] if self_check else []),
        ("publication", paths.published / "current", _publication),
        ("preview", paths.preview / "current", _preview),
    ]
    for what, path, look in looks:
        if path.exists() or path.is_symlink():
            findings.append(_looked_at(what, lambda look=look: look(settings)))  # type: ignore[misc]
        else:
            findings.append(Finding(what, True, "not there yet"))
    findings += [_address(target, settings.alerts.dead_man == target) for target in settings.alerts.addresses]
    return findings


def _address(target: str, pinged: bool) -> Finding:
    """Whether the variable of a channel is set here, and for the one that is pinged also whether it can be."""
    from semlabel.channels import ping_problem

    name = target.removeprefix("env:")
    problem = ping_problem(os.environ, target) if pinged else None
    is_set = bool(os.environ.get(name, "").strip())
    return Finding("alerts", is_set and not problem, problem or f"variable {name} is {'set' if is_set else 'not set'}")


def _looked_at(what: str, look: Callable[[], str]) -> Finding:
    try:
        return Finding(what, True, look())
    except SemlabelError as error:
        return Finding(what, False, str(error))


def _disk(settings: "Settings") -> Finding:
    folder = next(f for f in (settings.paths.state, *settings.paths.state.parents) if f.exists())
    free = shutil.disk_usage(folder).free
    return Finding("disk", free >= LOW_DISK, f"{size(free)} free at {folder}")


def _operations(settings: "Settings") -> str:
    from semlabel.operations import Operations

    operations = Operations(settings.paths.ops)
    damage = operations.file.first("PRAGMA quick_check")
    if damage is None or "ok" not in damage.values():
        raise SemlabelError(f"{settings.paths.ops}: damaged ({damage}); move it away, gates will be evaluated again")
    dead = len(operations.dead_runs(watched=False))
    note = f"; {dead} killed run(s) will be closed by the next `semlabel run`" if dead else ""
    return f"{len(operations.runs(limit=1_000_000)):,} runs{note}"


def _warehouse(settings: "Settings") -> str:
    from semlabel.reading import in_turns
    from semlabel.warehouse_check import check_in_turns

    turn = in_turns(settings, "doctor", on_wait=say)
    looked_at = check_in_turns(turn)
    with turn() as warehouse:
        stored = size(settings.paths.warehouse.stat().st_size)
        return f"{looked_at}; {warehouse.predictions_count():,} predictions, {stored}"


def _labeler(settings: "Settings") -> str:
    from semlabel.labeler_files import promoted_path
    from semlabel.manifest import verify

    path = promoted_path(settings.paths.labelers)
    assert path is not None  # the link was seen
    manifest = verify(path)
    return f"{manifest.digest[:12]}, every file as written"


def _self_check(settings: "Settings") -> str:
    from transformers.utils import logging

    from semlabel.labeler import Labeler

    logging.disable_progress_bar()
    scoring = settings.scoring
    labeler = Labeler.load(
        settings.paths.labelers / "current",
        device=settings.model.device,
        method=scoring.method,
        items_per_round=scoring.items_per_round,
        max_round_tokens=scoring.max_round_tokens,
    )
    known = len(labeler.manifest.known_pairs)
    return f"{known} known pairs have their margins, rounds give what single prompts give ({labeler.scorer})"


def _publication(settings: "Settings") -> str:
    return _verified(settings.paths.published)


def _preview(settings: "Settings") -> str:
    return _verified(settings.paths.preview)


def _verified(folder: Path) -> str:
    from semlabel.published import verify_version

    current = (folder / "current").resolve()
    verify_version(current)
    return f"{current.name}, every file as written"
