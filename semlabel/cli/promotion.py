"""`semlabel promote`, `rollback` and `approve`: what people decide, with who and why kept beside it.

The rules themselves (which gates must have passed, how a version is switched) live elsewhere; these commands ask them.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from semlabel.cli.common import (
    DEFAULT_CONFIG,
    ConfigOption,
    JsonOption,
    WhoOption,
    me,
    needed_operations,
    project,
    say,
    show,
    show_json,
)
from semlabel.errors import GateBlocked, SemlabelError

if TYPE_CHECKING:
    from semlabel.manifest import Manifest
    from semlabel.operations import Operations
    from semlabel.settings import Settings

_VOLUME = "volume_change"
_POLICY = "publish.uncertified_candidates"
ReasonOption = Annotated[str, typer.Option("--reason", help="Why; kept with the decision.")]


def promote(
    digest: Annotated[str, typer.Argument(help="The labeler's digest, or how it begins.")],
    config: ConfigOption = DEFAULT_CONFIG,
    who: WhoOption = "",
    reason: ReasonOption = "",
    json: JsonOption = False,
) -> None:
    """Make a labeler the one that every later run uses.

    Its own gates (training pairs, checkpoint, threshold) must have passed. Prints how many labels of the current
    publication would change. The published table itself changes with the next run, after that run's gates.

    \b
    Example:
      semlabel promote 3f9ac2 --reason "trained on the spring references"
    """
    from semlabel.cli.churn import churn
    from semlabel.labeler_files import find_labeler
    from semlabel.manifest import verify
    from semlabel.promotion import promote as make_current

    settings = project(config)
    operations = needed_operations(settings)
    target = find_labeler(settings.paths.labelers, digest)
    manifest = verify(target)
    _refuse_red_gates(manifest, operations)
    change = churn(settings, manifest, on_wait=say)
    before = make_current(settings.paths.labelers, operations, manifest.digest, who or me(), reason, on_wait=say)
    previous = before.name if before else None
    document = {
        "promoted": manifest.digest,
        "previous": previous,
        "who": who or me(),
        "churn": change.to_json() if change else None,
    }
    if json:
        show_json(document)
        return
    show(f"promoted {manifest.digest[:12]}" + (f" (was {previous[:12]})" if previous else ""))
    show(change.sentence() if change else "Nothing is published yet, so no label changes.")


def rollback(
    version: Annotated[str | None, typer.Argument(help="The version to go back to; see the published folder.")] = None,
    config: ConfigOption = DEFAULT_CONFIG,
    who: WhoOption = "",
    reason: ReasonOption = "",
    resume: Annotated[bool, typer.Option("--resume", help="Let publishing go on after a rollback.")] = False,
    json: JsonOption = False,
) -> None:
    """Go back to an earlier published version and its labeler, and pause publishing.

    Nothing is published until `semlabel rollback --resume`, so that the next night does not undo the decision. A run at
    work is not waited for: it goes on, and does not publish.

    \b
    Examples:
      semlabel rollback 000012-20260301T040512Z --reason "wrong catalog upstream"
      semlabel rollback --resume
    """
    settings = project(config)
    operations = needed_operations(settings)
    if resume == (version is not None):
        raise SemlabelError("expected either a VERSION to go back to, or --resume to let publishing go on")
    if version is None:
        operations.set_publishing_paused(False)
        document: dict[str, Any] = {"publishing_paused": False}
    else:
        document = _roll_back(settings, operations, version, who or me(), reason)
    if json:
        show_json(document)
    elif version is None:
        show("publishing goes on with the next run")
    else:
        show(f"published again: {document['version']}; publishing is paused until `semlabel rollback --resume`")


def approve(
    subject_digest: Annotated[str, typer.Argument(help="The subject digest that the gate's message names.")],
    config: ConfigOption = DEFAULT_CONFIG,
    who: WhoOption = "",
    reason: ReasonOption = "",
    json: JsonOption = False,
) -> None:
    """Say that one change is meant: exactly the one with this subject digest, and no later one.

    `volume_change` then lets it be published; the gates of drift begin their comparison anew from it.

    \b
    Example:
      semlabel approve 71be0c... --reason "the warehouse team removed closed listings"
    """
    settings = project(config)
    operations = needed_operations(settings)
    rows = [row for row in operations.latest_gates() if _waits_for_approval(row)]
    waiting = list(dict.fromkeys(row["subject_digest"] for row in rows))
    fitting = [subject for subject in waiting if subject_digest and subject.startswith(subject_digest)]
    if len(fitting) != 1:
        there = ", ".join(subject[:12] for subject in waiting) or "none"
        raise SemlabelError(f'no change waits for approval under "{subject_digest}"; waiting: {there}')
    operations.approve(fitting[0], who or me(), reason, _judged_under(settings, operations, fitting[0]))
    document = {"approved": fitting[0], "who": who or me()}
    if json:
        show_json(document)
    else:
        held_back = any(row["gate"] == _VOLUME for row in rows if row["subject_digest"] == fitting[0])
        then = "may publish it" if held_back else "begins the comparison anew"
        show(f"approved {fitting[0][:12]}; the next run {then}")


def _waits_for_approval(row: dict[str, Any]) -> bool:
    return row["gate"] in (_VOLUME, "label_rate_drift", "data_drift") and row["verdict"] != "pass"


def _judged_under(settings: "Settings", operations: "Operations", subject: str) -> str:
    """The setting of what is published under which a change was judged; the present one where no verdict tells."""
    row = operations.latest_gate(_VOLUME, subject)
    limits = row["evidence"].get("limits", {}) if row else {}
    return str(limits.get(_POLICY, settings.publish.uncertified_candidates))


def _refuse_red_gates(manifest: "Manifest", operations: "Operations") -> None:
    """Raise GateBlocked while a gate that judges the labeler itself has not passed for exactly this labeler."""
    from semlabel.gates import GATES, blocking_verdicts, required_subjects

    # The tables of the day are no part of a promotion: their gates are asked again before every publication.
    today = dict.fromkeys(("catalog", "entities", "predictions"), "of the day")
    required = {
        gate: subject
        for gate, subject in required_subjects(manifest.model_dump(mode="json"), today).items()
        if GATES[gate].asset in ("training_pairs", "checkpoint", "threshold")
    }
    blocked = blocking_verdicts(
        required,
        lambda gate, subject: operations.latest_gate(gate, subject, gate_code_version=GATES[gate].code_version),
    )
    if blocked:
        names = ", ".join(f"{row['gate']} ({row['verdict']})" for row in blocked)
        raise GateBlocked(f"{manifest.digest[:12]} is not promoted: {names}; {blocked[0]['sentence']}")


def _roll_back(settings: "Settings", operations: "Operations", version: str, who: str, reason: str) -> dict[str, Any]:
    from semlabel.labeler_files import refuse_unusable
    from semlabel.promotion import put_into_use
    from semlabel.published import VERSIONS, read_manifest, version_names
    from semlabel.published import rollback as restore

    def use_its_labeler(manifest: Mapping[str, Any]) -> None:
        digest = str(manifest["labeler_digest"])
        put_into_use(settings.paths.labelers, operations, digest, who, f"rollback to {version}")

    folder = settings.paths.published
    if version in version_names(folder):
        # Before anything is switched: a table without its labeler would be labeled anew by the next run, and one whose
        # labeler is refused half way would stand beside another promoted labeler.
        refuse_unusable(settings.paths.labelers, str(read_manifest(folder / VERSIONS / version)["labeler_digest"]))
    manifest = restore(folder, version, operations, who=who, reason=reason, also=use_its_labeler, on_wait=say)
    return {"version": version, "labeler_digest": str(manifest["labeler_digest"]), "publishing_paused": True}
