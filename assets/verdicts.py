"""The verdicts that stand in the way: read from `ops.sqlite` for this labeler, this content and what it would replace.

Knows which settings a stored verdict was judged by and which version it compared with: a limit that was changed since,
or another version that readers see by now, makes it no verdict at all. Knows nothing of how a verdict came about, nor
of who asks.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from assets.changes import confirms
from assets.checks import CHECKS, REPLACES
from resources.project import Step
from semlabel.errors import GateBlocked
from semlabel.gates.registry import GATES

if TYPE_CHECKING:
    from semlabel.manifest import Manifest
    from semlabel.warehouse import Warehouse


@dataclass(frozen=True)
class Standing:
    """Where a labeler and its rows stand: the gates that block (`gate`, `verdict`, `sentence`), every verdict read."""

    blocked: list[dict[str, str]]
    verdicts: list[dict[str, Any]]

    def refuse(self) -> None:
        """Raise GateBlocked with one sentence per gate that stands in the way."""
        if self.blocked:
            raise GateBlocked(" ".join(row["sentence"] for row in self.blocked))


def before_promotion(step: Step, warehouse: "Warehouse", manifest: "Manifest") -> Standing:
    """Whether every gate up to the threshold has passed for this labeler and the present tables."""
    # There are no predictions yet: their gates are not asked for, but every gate needs a subject.
    required = _required(warehouse, manifest, predictions="none yet")
    required = {gate: subject for gate, subject in required.items() if GATES[gate].asset != "predictions"}
    return _standing(step, warehouse, required)


def before_publication(step: Step, warehouse: "Warehouse", manifest: "Manifest") -> Standing:
    """Whether every gate has passed for this labeler, exactly these rows and exactly the version they would replace."""
    return _standing(step, warehouse, _required(warehouse, manifest, predictions=warehouse.predictions_digest()))


def _required(warehouse: "Warehouse", manifest: "Manifest", predictions: str) -> dict[str, str]:
    from semlabel.gates import required_subjects

    tables = {name: warehouse.content_digest(name) for name in ("catalog", "entities")}
    return required_subjects(manifest.model_dump(mode="json"), tables | {"predictions": predictions})


def _standing(step: Step, warehouse: "Warehouse", required: dict[str, str]) -> Standing:
    from semlabel.gates import blocking_verdicts

    found: dict[str, dict[str, Any]] = {}

    def latest(gate: str, subject: str) -> dict[str, Any] | None:
        row = step.operations.latest_gate(gate, subject, gate_code_version=GATES[gate].code_version)
        if row is None or (row["verdict"] == "pass" and not _still_counts(step, warehouse, row)):
            return None
        found[gate] = row
        return row

    return Standing(blocking_verdicts(required, latest), list(found.values()))


def _still_counts(step: Step, warehouse: "Warehouse", row: dict[str, Any]) -> bool:
    """Whether a pass was judged by the present limits, and by comparing with exactly what publishing would replace."""
    check, evidence = CHECKS[row["gate"]], row["evidence"]
    if evidence.get("limits") != check.limits_in(step):
        return False
    if check.replaces is None:
        return True
    # A version that is published already is confirmed and replaces nothing: its verdict is about the one before it.
    same = REPLACES in evidence and evidence[REPLACES] == check.replaces(step, warehouse)
    return same or confirms(step, warehouse)
