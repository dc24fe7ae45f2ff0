"""The one factory of gate checks: from a gate of `semlabel.gates` to a blocking asset check.

Knows how a verdict is replayed, recorded and shown. Knows nothing of what any gate looks at. A check never leaves
without a verdict: evidence that cannot be gathered is a failure with its reason. Only what is wrong with the machine
(lease, disk, memory) is raised.
"""

import sqlite3
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import dagster as dg

from assets.labelers import promoted_labeler
from assets.metadata import plain, table
from resources.project import ProjectResource, Step
from semlabel.digests import digest_of
from semlabel.errors import LeaseHeld, WarehouseError
from semlabel.gates.registry import GATES, cannot_compute

if TYPE_CHECKING:
    from semlabel.gates import GateResult
    from semlabel.warehouse import Warehouse

NO_SUBJECT = "unknown"
REPLACES = "replaces"
"""Where the evidence of a verdict names the version that it compared with."""
_INFRASTRUCTURE = (LeaseHeld, WarehouseError, OSError, MemoryError, sqlite3.Error)


@dataclass(frozen=True)
class GateCheck:
    """How a gate is checked here.

    `subject(step)` is the digest of the content that is judged. `evidence(step)` gathers and judges. `limits` are the
    settings (`section.key`) the verdict depends on, `also(step)` whatever else it depends on (None: nothing that
    matters now), `replaces(step, warehouse)` the version that the content is compared with, because publishing it would
    replace that one. When subject, limits and these are unchanged, the stored verdict is shown again and no evidence is
    gathered. `pool` limits how many run at once. With `one_look` subject, terms and evidence are of one moment of
    the warehouse; not for evidence that writes, loads a model or asks another machine.
    """

    gate: str
    subject: Callable[[Step], str]
    evidence: Callable[[Step], "GateResult"]
    limits: tuple[str, ...] = ()
    also: Callable[[Step], Any] | None = None
    replaces: "Callable[[Step, Warehouse], str | None] | None" = None
    pool: str | None = None
    one_look: bool = False

    def limits_in(self, step: Step) -> dict[str, Any]:
        """The limits as the settings have them now."""
        return {name: _setting(step, name) for name in self.limits}

    def run(self, step: Step) -> "GateResult":
        """The verdict, replayed or fresh, and recorded for this run."""
        subject, labeler = NO_SUBJECT, None
        try:
            labeler = self._labeler(step)
            with step.one_look() if self.one_look else nullcontext():
                subject = self.subject(step)
                terms = self._terms(step)
                result = self._stored(step, subject, terms) or self._fresh(step, terms)
        except _INFRASTRUCTURE:
            raise
        except Exception as error:
            step.log.exception(f"{self.gate} could not be computed")
            result = cannot_compute(self.gate, f"{type(error).__name__}: {error}")
        step.operations.record_gate(step.run_id, result, labeler, subject, GATES[self.gate].code_version)
        return result

    def _labeler(self, step: Step) -> str | None:
        """The labeler the verdict is about, as far as there is one: a run that trains only has one at its end."""
        labels = GATES[self.gate].asset in ("predictions", "published_predictions")
        if step.trains and not labels:
            return None
        promoted = promoted_labeler(step)
        return promoted[1].digest if promoted else None

    def _terms(self, step: Step) -> dict[str, Any]:
        """What a verdict holds for besides its subject, as it stands in its evidence."""
        also = self.also(step) if self.also else None
        terms: dict[str, Any] = {"limits": self.limits_in(step), "basis": None if also is None else digest_of(also)}
        if self.replaces is None:
            return terms
        with step.reader() as warehouse:
            return terms | {REPLACES: self.replaces(step, warehouse)}

    def _fresh(self, step: Step, terms: dict[str, Any]) -> "GateResult":
        result = self.evidence(step)
        return replace(result, evidence=result.evidence | terms)

    def _stored(self, step: Step, subject: str, terms: dict[str, Any]) -> "GateResult | None":
        from semlabel.gates import GateResult

        row = step.operations.latest_gate(self.gate, subject, gate_code_version=GATES[self.gate].code_version)
        if row is None or not row["computed"]:
            return None
        if any(row["evidence"].get(name) != terms[name] for name in terms if name != "basis"):
            return None
        if terms["basis"] is not None and row["evidence"].get("basis") != terms["basis"]:
            return None
        shown = {name: row[name] for name in ("gate", "asset", "severity", "verdict", "value", "limit", "sentence")}
        first_run = row["evidence"].get("replayed_from", row["run_id"])
        return GateResult(**shown, evidence=row["evidence"] | {"replayed_from": first_run})


CHECKS: dict[str, GateCheck] = {}
"""Every gate check of the recipe by gate name; filled as the stages are imported."""


def gate_check(check: GateCheck) -> dg.AssetChecksDefinition:
    """The blocking asset check of a gate, as Dagster runs it."""
    gate = GATES[check.gate]
    CHECKS[gate.name] = check

    @dg.asset_check(asset=gate.asset, name=gate.name, description=gate.description, blocking=True, pool=check.pool)
    def run(context: dg.AssetCheckExecutionContext, project: ProjectResource) -> dg.AssetCheckResult:
        return shown(check.run(project.step(context)))

    return run


def shown(result: "GateResult") -> dg.AssetCheckResult:
    """A verdict as Dagster shows it: value against limit first, offending rows as tables."""
    facts = {"verdict": result.verdict, "value": result.value, "limit": result.limit}
    metadata: dict[str, Any] = plain(facts)
    for name, value in result.evidence.items():
        metadata[name] = _evidence(value)
    return dg.AssetCheckResult(
        passed=result.passed,
        severity=dg.AssetCheckSeverity[result.severity],
        description=result.sentence,
        metadata={name: value for name, value in metadata.items() if value is not None},
    )


def _evidence(value: Any) -> Any:
    if isinstance(value, list) and value and all(isinstance(row, dict) for row in value):
        return table(value)
    if isinstance(value, list | dict):
        return dg.MetadataValue.json(value)
    return value


def _setting(step: Step, name: str) -> Any:
    found: Any = step.settings
    for part in name.split("."):
        found = getattr(found, part)
    return found
