"""Putting a labeler into use: who decided it is recorded, and `labelers/current` is pointed to it.

Both under the lease of who moves `published/current`: of two promotions, or a promotion and a rollback, the second one
waits, so that the record and the link never name two labelers. Deliberately does not know which gates must have passed.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from semlabel.labeler_files import promoted_path, switch_current
from semlabel.published import alone

if TYPE_CHECKING:
    from semlabel.leases import OnWait
    from semlabel.operations import Operations


def promote(
    labelers: Path, operations: "Operations", digest: str, who: str, reason: str, on_wait: "OnWait | None" = None
) -> Path | None:
    """Make a labeler the one that every later run uses, and return the directory of the one before.

    Raises LeaseHeld, naming the holder, when somebody does not let it happen; then nothing is changed.
    """
    with alone(operations, f"promotion-{digest[:12]}", on_wait):
        before = promoted_path(labelers)
        put_into_use(labelers, operations, digest, who, reason)
    return before


def promote_first(
    labelers: Path, operations: "Operations", digest: str, run_id: str, reason: str, on_wait: "OnWait | None" = None
) -> Path:
    """Make a labeler the first one, and return the directory of the one in use: what somebody promoted meanwhile stays.

    Raises as `promote`.
    """
    with alone(operations, run_id, on_wait):
        return promoted_path(labelers) or put_into_use(labelers, operations, digest, f"run {run_id}", reason)


def put_into_use(labelers: Path, operations: "Operations", digest: str, who: str, reason: str) -> Path:
    """What a promotion and a rollback do while they hold the lease. Returns the labeler's directory."""
    # Recorded first: a kill in between leaves the old labeler at work and `one_labeler_everywhere` red.
    operations.promote(digest, who, reason)
    return switch_current(labelers, digest)
