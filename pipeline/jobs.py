"""The two jobs: the nightly one that labels and publishes, and the one that makes a new labeler.

Knows assets by name only. Both run their steps in one process, so that a run loads one model once.
"""

from typing import TYPE_CHECKING

import dagster as dg

from resources.project import asset_key

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition

TRAINING = ("training_pairs", "checkpoint", "threshold")
TEACHER = "teacher_labels"
_SOURCES = ("entities", "catalog", "reference_labels")


def nightly_labeling(labeler: str = "", taught: bool = False) -> "UnresolvedAssetJobDefinition":
    """Everything but training and a teacher: who trains nothing has no use for what it would cost.

    The training gates stay in: their stored verdicts are replayed, and red ones block.
    """
    everything = dg.AssetSelection.all() | dg.AssetSelection.all_asset_checks()
    return dg.define_asset_job(
        "nightly_labeling",
        selection=everything - _assets(labeler, _with_teacher(TRAINING, taught)).without_checks(),
        description="Read the sources, label what changed with the promoted labeler, publish when every gate passed.",
        executor_def=dg.in_process_executor,
    )


def train_labeler(labeler: str = "", taught: bool = False) -> "UnresolvedAssetJobDefinition":
    """A new labeler up to its threshold; it labels nothing until it is promoted."""
    return dg.define_asset_job(
        "train_labeler",
        selection=_assets(labeler, _with_teacher((*_SOURCES, *TRAINING), taught)),
        description="Train, calibrate and certify a labeler. `semlabel promote` puts it into use.",
        executor_def=dg.in_process_executor,
    )


def _with_teacher(names: tuple[str, ...], taught: bool) -> tuple[str, ...]:
    return (*names, TEACHER) if taught else names


def _assets(labeler: str, names: "Sequence[str]") -> dg.AssetSelection:
    return dg.AssetSelection.assets(*(asset_key(labeler, name) for name in names))
