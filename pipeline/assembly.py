"""From a settings file and the assets to Dagster's definitions: assembly only.

Knows which settings touch the definitions themselves (names, owners, freshness, schedule) and nothing else of them.
Loading is light: no torch, transformers or great_expectations, because every code server, run and step pays for it.
"""

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import dagster as dg

from assets import (
    catalog,
    checkpoint,
    drift,
    entities,
    pairs,
    predictions,
    publication,
    references,
    shortlist,
    teacher,
    threshold,
)
from pipeline.jobs import TEACHER, nightly_labeling, train_labeler
from pipeline.schedules import nightly_labeling_schedule
from pipeline.sensors import gate_alerts, run_endings, run_failures
from pipeline.source_changes import source_changes
from resources.notifier import NotifierResource
from resources.operations import OperationsResource
from resources.project import ProjectResource, asset_key
from resources.scorer import ScorerResource
from resources.settings import SettingsResource, settings_file
from resources.warehouse import WarehouseResource
from semlabel.settings import Settings

_STAGES = (entities, catalog, references, pairs, checkpoint, threshold, predictions, drift, publication)
_OPTIONAL = (shortlist,)
_PUBLISHED = "published_predictions"


def build_defs(settings_path: Path | str | None = None, **overrides: Any) -> dg.Definitions:
    """Definitions for one settings file (None: `SEMLABEL_CONFIG`, else the demo's).

    `overrides` replace parts of the project by name (`settings`, `operations`, `warehouse`, `scorers`), for tests.
    Raises SettingsError with one line that says what to mend, TypeError for an unknown part.
    """
    path = Path(settings_path).absolute() if settings_path is not None else settings_file()
    project = _project(path, overrides)
    settings = project.settings.get()
    labeler = settings.environment.labeler
    taught = settings.teacher.model is not None
    nightly = nightly_labeling(labeler, taught)
    return dg.Definitions(
        assets=_assets(settings),
        asset_checks=_prefixed(_checks(settings), labeler),
        jobs=[nightly, train_labeler(labeler, taught)],
        schedules=[nightly_labeling_schedule(settings.schedule, nightly)],
        sensors=[gate_alerts, run_endings, run_failures, source_changes(settings.schedule, nightly)],
        resources={
            "project": project,
            "notifier": NotifierResource(settings=project.settings, operations=project.operations),
        },
        executor=dg.in_process_executor,
    )


def _project(path: Path, overrides: dict[str, Any]) -> ProjectResource:
    known = ("settings", "operations", "warehouse", "scorers")
    unknown = sorted(set(overrides) - set(known))
    if unknown:
        raise TypeError(f"{', '.join(unknown)} is no part of a project; known are {', '.join(known)}")
    settings = overrides.get("settings") or SettingsResource(config_path=str(path))
    operations = overrides.get("operations") or OperationsResource(settings=settings)
    warehouse = overrides.get("warehouse") or WarehouseResource(settings=settings, operations=operations)
    scorers = overrides.get("scorers") or ScorerResource(settings=settings, operations=operations)
    return ProjectResource(settings=settings, operations=operations, warehouse=warehouse, scorers=scorers)


def _assets(settings: Settings) -> Sequence[Any]:
    """Every stage's asset with its owner; the published one with the time after which it counts as stale.

    With a teacher its asset too, between the tables and the reference labels.
    """
    freshness = dg.FreshnessPolicy.time_window(fail_window=timedelta(hours=settings.schedule.freshness_hours))

    def dressed(spec: dg.AssetSpec) -> dg.AssetSpec:
        name = spec.key.path[-1]
        stale = {"freshness_policy": freshness} if name == _PUBLISHED else {}
        return spec.replace_attributes(owners=[settings.alerts.owner_of(name)], **stale)

    found = [asset for stage in _STAGES for asset in _of_type(stage, dg.AssetsDefinition)]
    if settings.teacher.model is not None:
        # Not by a changed spec: that would show the arrow and not wait for it.
        found.remove(references.reference_labels)
        after = references.reference_labels_after("entities", "catalog", TEACHER)
        found += [*_of_type(teacher, dg.AssetsDefinition), after]
    return dg.map_asset_specs(dressed, _prefixed(found, settings.environment.labeler))


def _checks(settings: Settings) -> list[Any]:
    """Every stage's checks, and those of what these settings ask for beyond."""
    stages = (*_STAGES, *(_OPTIONAL if settings.shortlist.size else ()))
    return [check for stage in stages for check in _of_type(stage, dg.AssetChecksDefinition)]


def _prefixed(found: Sequence[Any], labeler: str) -> list[Any]:
    """The definitions with LABELER/NAME for every asset NAME, where several labelers share one deployment."""
    if not labeler:
        return list(found)
    assets = [asset for stage in (*_STAGES, teacher) for asset in _of_type(stage, dg.AssetsDefinition)]
    keys = {key: asset_key(labeler, key.path[-1]) for asset in assets for key in asset.keys}
    return [definition.with_attributes(asset_key_replacements=keys) for definition in found]


def _of_type(module: Any, kind: type) -> list[Any]:
    """The module's own definitions of exactly this kind (a checks definition is an assets definition too)."""
    return [value for value in vars(module).values() if type(value) is kind]
