"""Where the pipeline's code is: from `workspace.yaml` to Dagster definitions, and the Dagster home they run against.

The one place of `semlabel` that meets Dagster's files, and only when a command asks: the package itself never imports
dagster. Knows nothing of which assets there are.
"""

import importlib
import importlib.util
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from semlabel.errors import SettingsError

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec

    from dagster import DagsterInstance, Definitions

    from semlabel.settings import Settings

WORKSPACE_FILE = "workspace.yaml"
SEVERAL = "pipeline.labelers"
"""The module whose attributes are the labelers of one deployment."""
_DAGSTER_FILE = "dagster.yaml"


@dataclass(frozen=True)
class CodeLocation:
    """One entry of `workspace.yaml`: a module with its definitions and the folder it is imported from."""

    workspace: Path
    module: str
    working_directory: Path
    attribute: str | None = None
    name: str = ""

    @property
    def repository_tag(self) -> str:
        """What Dagster's UI files runs of this location under."""
        return f"__repository__@{self.name or self.module}"


def find_workspace(settings: "Settings", named: Path | None) -> Path:
    """The workspace file that was named, else the nearest one above the settings file, else above this folder."""
    if named is not None:
        if not named.is_file():
            raise SettingsError(f"{named}: no such workspace file; name one with --workspace")
        return named.absolute()
    for start in (settings.root, Path.cwd()):
        for folder in (start, *start.parents):
            if (folder / WORKSPACE_FILE).is_file():
                return folder / WORKSPACE_FILE
    raise SettingsError(f"no {WORKSPACE_FILE} in {settings.root} or a folder above it; name one with --workspace")


def read_workspace(workspace: Path, settings_file: Path) -> CodeLocation:
    """The Python module of a workspace file that serves a settings file: with several labelers the one whose attribute
    is called as that file is, else the first one. Raises SettingsError for a file of another shape.
    """
    import yaml

    try:
        document = yaml.safe_load(workspace.read_text(encoding="utf-8"))
        entry = _entry_for(document["load_from"], settings_file, workspace)
    except (OSError, UnicodeDecodeError, yaml.YAMLError, TypeError, KeyError, IndexError) as error:
        what = " ".join(str(error).split()) or type(error).__name__
        raise SettingsError(
            f"{workspace}: expected load_from with a python_module first; found otherwise: {what}"
        ) from None
    folder = workspace.parent / entry.get("working_directory", ".")
    return CodeLocation(
        workspace=workspace,
        module=entry["module_name"],
        working_directory=folder.resolve(),
        attribute=entry.get("attribute"),
        name=entry.get("location_name", ""),
    )


def labelers_of(workspace: Path) -> list[Path]:
    """The settings files of the labelers that a workspace file names; none where it has one labeler."""
    import yaml

    modules = _modules(yaml.safe_load(workspace.read_text(encoding="utf-8"))["load_from"])
    several = [module for module in modules if module["module_name"] == SEVERAL and "attribute" in module]
    return [workspace.parent / f"{module['attribute']}.toml" for module in several]


def _modules(entries: Any) -> list[dict[str, Any]]:
    modules = [entry["python_module"] for entry in entries if "python_module" in entry]
    return [{"module_name": module} if isinstance(module, str) else module for module in modules]


def _entry_for(entries: Any, settings_file: Path, workspace: Path) -> dict[str, Any]:
    modules = _modules(entries)
    if modules[0]["module_name"] != SEVERAL:
        return modules[0]
    beside = settings_file.parent.resolve() == workspace.parent.resolve()
    for module in modules:
        if module.get("attribute") == settings_file.stem and beside:
            return module
    raise SettingsError(
        f"{workspace}: no location is for {settings_file}; put the file beside it and add an entry of {SEVERAL} with "
        f"attribute: {settings_file.stem}"
    )


def prepare_environment(settings: "Settings", location: CodeLocation) -> Path:
    """Set `SEMLABEL_CONFIG` and `DAGSTER_HOME`, make that folder with the shipped `dagster.yaml`, and return it."""
    home = settings.paths.dagster_home
    settings.paths.create()
    os.environ["SEMLABEL_CONFIG"] = str(settings.path)
    os.environ["DAGSTER_HOME"] = str(home)
    if str(location.working_directory) not in sys.path:
        sys.path.insert(0, str(location.working_directory))
    if not (home / _DAGSTER_FILE).exists():
        found = _found(location)
        shipped = Path(found.origin).with_name(_DAGSTER_FILE) if found and found.origin else None
        if shipped is not None and shipped.is_file():
            shutil.copyfile(shipped, home / _DAGSTER_FILE)
    return home


def _found(location: CodeLocation) -> "ModuleSpec | None":
    try:
        return importlib.util.find_spec(location.module)
    except ModuleNotFoundError as error:
        raise SettingsError(
            f"{location.workspace}: no module {error.name} in {location.working_directory}; mend module_name"
        ) from None


def load_definitions(location: CodeLocation) -> "Definitions":
    """Import the module and return its definitions (the named attribute, or the only ones there are)."""
    from dagster import Definitions

    module = importlib.import_module(location.module)
    if location.attribute is not None:
        found: Any = getattr(module, location.attribute)
        return found() if callable(found) and not isinstance(found, Definitions) else found
    all_of_them = [value for value in vars(module).values() if isinstance(value, Definitions)]
    if len(all_of_them) != 1:
        raise SettingsError(
            f"{location.workspace}: module {location.module} has {len(all_of_them)} Definitions; expected one"
        )
    return all_of_them[0]


def open_instance() -> "DagsterInstance":
    """The Dagster instance of `DAGSTER_HOME`."""
    from dagster import DagsterInstance

    return DagsterInstance.get()
