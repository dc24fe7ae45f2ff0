"""Builds the wheel: as pyproject.toml says, with the Dagster code location inside the package as data.

`semlabel init` lays it out from there. It stays at the top of the repository, where imports point one way.
"""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
FOLDERS = ("resources", "assets", "pipeline")


class BuildWithCodeLocation(build_py):
    """`build_py`, and then the three folders and workspace.yaml below `semlabel/code_location`."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        target = Path(self.build_lib) / "semlabel" / "code_location"
        shutil.rmtree(target, ignore_errors=True)
        for folder in FOLDERS:
            shutil.copytree(ROOT / folder, target / folder, ignore=shutil.ignore_patterns("__pycache__", "*.py[cod]"))
        shutil.copyfile(ROOT / "workspace.yaml", target / "workspace.yaml")


setup(cmdclass={"build_py": BuildWithCodeLocation})
