"""`semlabel bench NAME`: run one benchmark of `benchmarks/` and write what it found as JSON, table and picture.

Knows where benchmarks lie, what each must offer (`study`, `table`, `figure`) and the shape of the files; deliberately
knows nothing of what is measured. Benchmarks are part of a source checkout, not of the installed package.
"""

import importlib.util
import json
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import typer

from semlabel.cli.common import JsonOption, say, show, show_json
from semlabel.errors import SettingsError

PACKAGES = ("semlabel", "duckdb", "numpy", "pyarrow", "torch", "transformers")
_FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"


def bench(
    name: Annotated[str, typer.Argument(help="Which one; see the folder `benchmarks`.")],
    quick: Annotated[bool, typer.Option("--quick", help="Small sizes: a smoke run, not evidence.")] = False,
    large: Annotated[bool, typer.Option("--large", help="The largest size too.")] = False,
    out: Annotated[
        Path | None, typer.Option("--out", help="Where NAME.json, NAME.md and NAME.png go.", metavar="DIR")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Run a benchmark and write NAME.json, NAME.md and NAME.png.

    \b
    Examples:
      semlabel bench refresh --quick --out /tmp/bench
      semlabel bench refresh --large
    """
    module = load(name)
    target = out or _FOLDER / "results"
    target.mkdir(parents=True, exist_ok=True)
    cells = []
    for cell in module.study(quick=quick, large=large):
        cells.append(cell)
        say(" ".join(f"{key}={value}" for key, value in cell.items()))
    document = {"environment": environment() | {"quick": quick}, "cells": cells}
    write(target, module.__name__, document, module.table(cells), module.figure(cells))
    if json:
        show_json(document)
    else:
        show(str(target / f"{module.__name__}.md"))


def load(name: str) -> ModuleType:
    """The benchmark `name`. Raises SettingsError for an unknown one and outside a source checkout."""
    known = sorted(file.stem for file in _FOLDER.glob("*.py") if "def study(" in file.read_text(encoding="utf-8"))
    wanted = name.replace("-", "_")
    if wanted not in known:
        there = ", ".join(known) or "none, because this is no source checkout"
        raise SettingsError(f'no benchmark is called "{name}"; there are: {there}')
    spec = importlib.util.spec_from_file_location(wanted, _FOLDER / f"{wanted}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not all(hasattr(module, part) for part in ("study", "table", "figure")):
        raise SettingsError(f"{_FOLDER / wanted}.py is run by itself: python benchmarks/{wanted}.py --help")
    return module


def environment() -> dict[str, Any]:
    """Where and with what this ran."""
    found = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=_FOLDER, capture_output=True, text=True, check=False
    ).stdout.strip()
    return {
        "machine": platform.machine(),
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        "versions": {package: _version(package) for package in PACKAGES},
        "commit": found or None,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def write(target: Path, name: str, document: Mapping[str, Any], table: str, figure: bytes) -> Sequence[Path]:
    """Write the three files of a benchmark."""
    files = [target / f"{name}.{kind}" for kind in ("json", "md", "png")]
    files[0].write_text(json.dumps(document, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    files[1].write_text(table, encoding="utf-8")
    files[2].write_bytes(figure)
    return files


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _processor() -> str | None:
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), None)
