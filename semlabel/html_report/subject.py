"""Which labeler a report is about, and which of its held-out pairs may be looked at.

Knows directories, the verdicts of a run and the ledger of certify uses. A report must not become a further look at
entities that prove: `calibrate` is there to be looked at, `certify` only as far as this very labeler was proven on
exactly these entities, and `test` never (what was found there once is kept in `ops.sqlite`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from semlabel.digests import digest_of
from semlabel.errors import LabelerError
from semlabel.labeler_files import promoted_path
from semlabel.manifest import MANIFEST_FILE, Manifest, read_manifest
from semlabel.pairs import cross_product_labels

if TYPE_CHECKING:
    import pandas as pd

    from semlabel.operations import Operations
    from semlabel.settings import Settings
    from semlabel.warehouse import Warehouse


@dataclass(frozen=True)
class HeldOut:
    """The judged pairs of a split with a margin (entity_id, candidate_id, label, margin), how many have none, and all
    entities of the split.
    """

    pairs: "pd.DataFrame"
    unscored: int
    entity_ids: tuple[str, ...]

    @property
    def labels(self) -> list[bool]:
        """The reference labels, pair by pair."""
        return [bool(label) for label in self.pairs["label"]]

    @property
    def margins(self) -> list[float]:
        """The margins, pair by pair."""
        return [float(margin) for margin in self.pairs["margin"]]


def labeler_of(settings: "Settings", gates: Sequence[Mapping[str, Any]]) -> tuple[Manifest | None, str | None]:
    """The labeler or checkpoint that a run judged, else the promoted one, else None; and why it cannot be read."""
    subjects = {str(row["gate"]): str(row["subject_digest"]) for row in gates}
    try:
        judged = settings.paths.labelers / subjects.get("held_out_errors", "none")
        if (judged / MANIFEST_FILE).exists():
            return read_manifest(judged), None
        if "held_out_quality" in subjects:
            for file in sorted(settings.paths.checkpoints.glob(f"*/{MANIFEST_FILE}")):
                checkpoint = read_manifest(file.parent)
                if checkpoint.scorer_digest == subjects["held_out_quality"]:
                    return checkpoint, None
        promoted = promoted_path(settings.paths.labelers)
        return (None if promoted is None else read_manifest(promoted)), None
    except LabelerError as error:
        return None, str(error)


def held_out(warehouse: "Warehouse", manifest: Manifest, split: str, unlisted: str) -> HeldOut:
    """The judged pairs of `calibrate` or `certify` with the margins that are stored; nothing is scored here."""
    if split not in ("calibrate", "certify"):
        raise ValueError(f"the pairs of {split} are not for reports")
    # Without the texts, which cross no report and may be gigabytes.
    entities = warehouse.frame("SELECT entity_id, split FROM entities WHERE split = ? ORDER BY entity_id", [split])
    references = warehouse.frame(
        "SELECT entity_id, candidate_id, label, design FROM reference_labels "
        "SEMI JOIN (SELECT entity_id FROM entities WHERE split = ?) USING (entity_id) ORDER BY ALL",
        [split],
    )
    undecided = warehouse.undecided_pairs()
    labels = cross_product_labels(entities, warehouse.catalog(), references, split, unlisted, undecided)
    margins = warehouse.margins(manifest.scorer_digest, list(labels["entity_id"].unique()))
    pairs = labels.merge(margins, on=["entity_id", "candidate_id"], how="left", validate="one_to_one")
    scored = pairs[pairs["margin"].notna()].reset_index(drop=True)
    return HeldOut(scored, len(pairs) - len(scored), tuple(entities["entity_id"]))


def proven_on(settings: "Settings", operations: "Operations", manifest: Manifest, certify: HeldOut) -> bool:
    """Whether the ledger has a use of exactly these certify entities for these margins."""
    if certify.unscored or certify.pairs.empty:
        return False
    uses = operations.certify_uses(digest_of(sorted(certify.entity_ids)))
    # A look that has not ended gave no labeler yet: nothing was proven by it.
    ended = [use["labeler_digest"] for use in uses if use["labeler_digest"]]
    return any(_same_margins(settings, labeler_digest, manifest) for labeler_digest in ended)


def _same_margins(settings: "Settings", labeler_digest: str, manifest: Manifest) -> bool:
    try:
        return read_manifest(settings.paths.labelers / labeler_digest).scorer_digest == manifest.scorer_digest
    except LabelerError:
        return False
