"""Builds the wheel: as pyproject.toml says, with the Dagster code location and the runbook inside the package as data.

`semlabel init` lays the code location out from there; it stays at the top of the repository, where imports point one
way. `semlabel alerts explain` shows the pages of the runbook, which stay in docs/.
"""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
FOLDERS = ("resources", "assets", "pipeline")


class BuildWithCodeLocation(build_py):
    """`build_py`, and then the three folders and workspace.yaml below `semlabel/code_location`, and the runbook."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        package = Path(self.build_lib) / "semlabel"
        target, runbook = package / "code_location", package / "runbook_pages"
        for folder in (target, runbook):
            shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(
            ROOT / "docs" / "runbook", runbook, ignore=lambda _, names: [n for n in names if n[-3:] != ".md"]
        )
        for folder in FOLDERS:
            shutil.copytree(ROOT / folder, target / folder, ignore=shutil.ignore_patterns("__pycache__", "*.py[cod]"))
        shutil.copyfile(ROOT / "workspace.yaml", target / "workspace.yaml")


setup(cmdclass={"build_py": BuildWithCodeLocation})
