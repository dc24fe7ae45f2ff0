"""Where and with what a measurement was made: machine, cores, threads, versions, commit, date.

Knows nothing of what is measured.
"""

import datetime
import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from semlabel import __version__

_PACKAGES = ("torch", "transformers", "numpy", "llama-cpp-python", "openvino")
# What decides which matrix kernels there are.
_FLAGS = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8")


def environment(device: str = "cpu") -> dict[str, Any]:
    """The environment of this process, as JSON values; packages that are not there are left out."""
    versions = {"python": platform.python_version(), "semlabel": __version__}
    for package in _PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return {
        "machine": _machine(),
        "device": torch.cuda.get_device_name() if device.startswith("cuda") else "cpu",
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "versions": versions,
        "commit": _commit(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def _machine() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    found: dict[str, str] = {}
    if cpuinfo.exists():
        for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            found.setdefault(name.strip(), value.strip())
    flags = [flag for flag in _FLAGS if flag in found.get("flags", "").split()]
    return ", ".join([found.get("model name") or platform.machine(), *flags])


def _commit() -> str | None:
    """The commit of the source this code lies in, with `+` when the package was changed; None outside a repository."""
    source = Path(__file__).resolve().parent.parent

    def git(*arguments: str) -> str | None:
        try:
            done = subprocess.run(["git", *arguments], cwd=source, capture_output=True, text=True, check=False)
        except FileNotFoundError:
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    commit = git("rev-parse", "--short", "HEAD")
    return None if commit is None else commit + ("+" if git("status", "--porcelain", "--", ".") else "")
