"""A tiny project on disk: a few dozen entities, eight candidates, a random model, and limits such a model can keep.

What is to be learned is trivial on purpose (a candidate that begins with "keep" holds for everybody), so that a few
steps of a model of two layers pass real gates, and every test can break exactly one thing.
"""

import csv
import random
import shutil
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from semlabel.operations import Operations
from semlabel.published import current_publication
from semlabel.settings import Settings, load_settings
from semlabel.warehouse import Warehouse
from tests.tiny import DOT, save_tiny

ENTITIES, CANDIDATES = 60, 8
TRUE_CANDIDATES = ("keep the records", "keep a small office", "keep the plan", "keep good results")
FALSE_CANDIDATES = ("sell goods", "repair metal machines", "teach many people", "weld parts of the office")
WORDS = (
    *("plan", "work", "record", "office", "nurse", "patient", "metal"),
    *("goods", "people", "results", "machine", "check", "write", "answer", "teach"),
)

SETTINGS = """
[sources]
entities = "entities.csv"
catalog = "catalog.csv"
references = "references.csv"

[splits]
calibrate = 14
certify = 20
test = 6

[model]
base = "./base"
precision = "fp32"
device = "cpu"

[prompt]
template = "Profile: {entity}\\nActivity: {candidate}"
max_query_tokens = 96

[training]
items_per_round = 8
positive_fraction = 0.5
learning_rate = 0.01
epochs = 3.0
save_every_steps = 1000
precision = "fp32"

[calibration]
min_precision = 0.5
confidence = 0.93
min_expected_flagged = 5
cuts = 4

[gates]
min_auc = 0.5
min_average_precision_ratio = 0.0
parity_pairs = 24
order_pairs = 40
max_truncated_fraction = 1.0

[scoring]
items_per_round = 8

# So small a file is never full: by the default it would be written anew every night.
[warehouse]
compact_factor = 4.0

[environment]
lease_wait_seconds = 5.0
"""


@dataclass(frozen=True)
class TinyProject:
    """A project folder: its settings file, and its sources as they can be edited between runs."""

    root: Path

    @property
    def config(self) -> Path:
        return self.root / "pipeline.toml"

    @property
    def settings(self) -> Settings:
        return load_settings(self.config)

    @property
    def operations(self) -> Operations:
        return Operations(self.settings.paths.ops)

    def warehouse(self) -> Warehouse:
        return Warehouse.open(self.settings.paths.warehouse, read_only=True)

    def change(self, **sections: Mapping[str, Any]) -> None:
        """Set settings: `change(gates={"min_auc": 0.99})`."""
        tables = tomllib.loads(self.config.read_text())
        for section, values in sections.items():
            tables.setdefault(section, {}).update(values)
        self.config.write_text("\n".join(_toml(name, values) for name, values in tables.items()))

    def entities(self) -> list[dict[str, str]]:
        return self._read("entities.csv")

    def write_entities(self, rows: Iterable[Mapping[str, str]]) -> None:
        self._write("entities.csv", ("entity_id", "text"), rows)

    def catalog(self) -> list[dict[str, str]]:
        return self._read("catalog.csv")

    def write_catalog(self, rows: Iterable[Mapping[str, str]]) -> None:
        self._write("catalog.csv", ("candidate_id", "text", "group"), rows)

    def references(self) -> list[dict[str, str]]:
        return self._read("references.csv")

    def write_references(self, rows: Iterable[Mapping[str, str]]) -> None:
        self._write("references.csv", ("entity_id", "candidate_id", "label"), rows)

    def copied(self, root: Path) -> "TinyProject":
        """A copy of this project in another folder, with everything that its runs left."""
        shutil.copytree(self.root, root, symlinks=True)
        return TinyProject(root)

    def _read(self, name: str) -> list[dict[str, str]]:
        with (self.root / name).open(newline="") as file:
            return list(csv.DictReader(file))

    def _write(self, name: str, columns: Sequence[str], rows: Iterable[Mapping[str, str]]) -> None:
        with (self.root / name).open("w", newline="") as file:
            writer = csv.DictWriter(file, columns)
            writer.writeheader()
            writer.writerows(rows)


def make_project(root: Path, entities: int = ENTITIES) -> TinyProject:
    """A fresh project in `root`; nothing has run yet."""
    root.mkdir(parents=True, exist_ok=True)
    save_tiny(root / "base")
    project = TinyProject(root)
    project.config.write_text(SETTINGS)
    chance = random.Random(7)
    rows = [{"entity_id": f"{n:03d}", "text": " ".join(chance.choices(WORDS, k=9))} for n in range(entities)]
    project.write_entities(rows)
    texts = (*TRUE_CANDIDATES, *FALSE_CANDIDATES)
    project.write_catalog({"candidate_id": f"c{n}", "text": text, "group": f"g{n % 2}"} for n, text in enumerate(texts))
    # One label in sixteen is wrong: margins that separate all labels perfectly have no calibrated probability.
    project.write_references(
        {"entity_id": row["entity_id"], "candidate_id": f"c{n}", "label": "yes"}
        for row in rows
        for n in range(len(texts))
        if (n < len(TRUE_CANDIDATES)) != (chance.random() < 1 / 16)
    )
    return project


@contextmanager
def quick_instance() -> Iterator[dg.DagsterInstance]:
    """A Dagster in memory whose runs draw dots: a third of a night is drawing, and `first_run` has drawn every plot."""
    with pytest.MonkeyPatch.context() as patch, dg.DagsterInstance.ephemeral() as fresh:
        patch.setattr("semlabel.report._png", lambda *figure, **options: DOT)
        yield fresh


def run(
    project: TinyProject,
    instance: dg.DagsterInstance,
    job: str | None = None,
    select: Sequence[str] | None = None,
    tags: Mapping[str, str] | None = None,
    checks: Mapping[str, str] | None = None,
    **overrides: Any,
) -> dg.ExecuteInProcessResult:
    """Run a job, a selection of assets with their checks, or everything, in this process; never raises.

    `checks` runs these gates alone, each named with its asset.
    """
    from pipeline.definitions import build_defs
    from resources.scorer import forget_models

    forget_models()
    defs = build_defs(project.config, **overrides)
    definition = defs.resolve_job_def(job) if job else defs.resolve_implicit_global_asset_job_def()
    if checks:
        asked = {dg.AssetCheckKey(dg.AssetKey(asset), gate) for gate, asset in checks.items()}
        definition = definition.get_subset(asset_check_selection=asked)
    keys = [dg.AssetKey(name) for name in select] if select else None
    return definition.execute_in_process(
        instance=instance, raise_on_error=False, asset_selection=keys, tags=dict(tags or {})
    )


def verdicts(result: dg.ExecuteInProcessResult) -> dict[str, bool]:
    """Which checks of a run passed."""
    return {evaluation.check_name: evaluation.passed for evaluation in result.get_asset_check_evaluations()}


def failed(result: dg.ExecuteInProcessResult) -> set[str]:
    return {name for name, passed in verdicts(result).items() if not passed}


def published(project: TinyProject) -> dict[str, Any]:
    found = current_publication(project.settings.paths.published)
    assert found is not None
    return found


def _toml(name: str, values: Mapping[str, Any]) -> str:
    lines = [f"[{name}]"]
    for key, value in values.items():
        if isinstance(value, bool):
            lines.append(f"{key} = {str(value).lower()}")
        elif isinstance(value, str):
            escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
            lines.append(f'{key} = "{escaped}"')
        else:
            lines.append(f"{key} = {value}")
    return "\n".join(lines) + "\n"
