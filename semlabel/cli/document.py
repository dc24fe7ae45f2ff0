"""The state of a project as one document: what `status --json` prints and what every summary is made from.

Its shape is an interface that others script against: fields are added, never renamed, and are null before a first run.
Reads `ops.sqlite`, the promoted labeler's manifest and the publication's; never opens the warehouse, which a run may
hold. Knows nothing of how it is shown.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from semlabel.cli.alerts import alerts_document
from semlabel.cli.text import age_seconds
from semlabel.gates.registry import GATES
from semlabel.labeler_files import promoted_path
from semlabel.manifest import read_manifest
from semlabel.run_life import STARTED

if TYPE_CHECKING:
    from semlabel.operations import Operations
    from semlabel.settings import Settings

RUN_FIELDS = ("id", "job", "status", "started_at", "finished_at")
RUN_COUNTS = ("pairs_scored", "pairs_reused", "model_loads", "labels_per_s")
METRICS = ("auc", "average_precision", "precision", "recall")
LABELER_FIELDS = ("digest", "threshold", "base_model", "precision", "certified", "policy", "path")
PUBLICATION_FIELDS = ("version", "path", "rows", "labeler_digest", "published_at", "as_of")


def status_document(settings: "Settings", operations: "Operations | None", run_id: str | None = None) -> dict[str, Any]:
    """The whole document; `run_id` names a run, None the newest. Raises SemlabelError for a damaged project."""
    run = None
    if operations is not None:
        run = operations.run(run_id) if run_id else operations.last_run()
    gates = sorted(operations.latest_gates(), key=_place) if operations else []
    labeler = _labeler(promoted_path(settings.paths.labelers))
    return {
        "run": _run(run),
        "progress": _progress(operations, run),
        "gates": [_gate(row) for row in gates],
        "labeler": labeler,
        "metrics": _metrics_of(operations, labeler["digest"]),
        "on_calibrate": _on_calibrate(gates),
        "candidate": _candidate(settings, operations, gates, labeler["digest"]),
        "publication": _publication(settings),
        "preview": _preview(settings),
        "alerts": alerts_document(settings, operations),
        "publishing_paused": operations.publishing_paused() if operations else None,
    }


def _run(row: Mapping[str, Any] | None) -> dict[str, Any]:
    row = row or {}
    found = {"id": row.get("run_id")} | {name: row.get(name) for name in (*RUN_FIELDS[1:], *RUN_COUNTS)}
    return found | {"note": row.get("note")}


def _progress(operations: "Operations | None", run: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """How far the run is while it is at work: the stage that moved last, and whether its process is still there."""
    if operations is None or run is None or run["status"] != STARTED:
        return None
    rows = operations.progress_of(run["run_id"])
    last = {name: rows[-1][name] if rows else None for name in ("stage", "done", "total", "unit", "updated_at")}
    return last | {"killed": any(dead["run_id"] == run["run_id"] for dead in operations.dead_runs(watched=False))}


def _gate(row: Mapping[str, Any]) -> dict[str, Any]:
    names = ("gate", "asset", "verdict", "value", "limit", "severity", "sentence", "evaluated_at", "subject_digest")
    return {name: row[name] for name in names} | {"run_id": row["run_id"]}


def _place(row: Mapping[str, Any]) -> tuple[int, str]:
    """Gates in the order of the recipe; one that this version does not know comes last."""
    known = list(GATES)
    return (known.index(row["gate"]) if row["gate"] in known else len(known), row["gate"])


def _on_calibrate(gates: list[dict[str, Any]]) -> list[dict[str, Any]] | None:
    """Precision by how many pairs are flagged, of a checkpoint whose threshold is still to be shown; else None."""
    newest = {row["gate"]: row for row in gates}
    quality, errors = newest.get("held_out_quality"), newest.get("held_out_errors")
    if quality is None or (errors is not None and errors["evaluated_at"] >= quality["evaluated_at"]):
        return None
    return quality["evidence"].get("by_flagged") or None


def _labeler(path: Path | None) -> dict[str, Any]:
    if path is None:
        return dict.fromkeys(LABELER_FIELDS)
    manifest = read_manifest(path)
    return {name: getattr(manifest, name) for name in LABELER_FIELDS if name != "path"} | {"path": str(path)}


def _candidate(
    settings: "Settings", operations: "Operations | None", gates: list[dict[str, Any]], promoted: str | None
) -> dict[str, Any] | None:
    """The labeler that was judged last, with its metrics, while it is not the promoted one; else None."""
    judged = next((row["subject_digest"] for row in gates if row["gate"] == "held_out_errors"), None)
    path = settings.paths.labelers / str(judged)
    if judged is None or judged == promoted or not path.is_dir():
        return None
    return _labeler(path) | {"metrics": _metrics_of(operations, judged)}


def _metrics_of(operations: "Operations | None", digest: str | None) -> dict[str, Any]:
    return _metrics(operations.metrics(digest) if operations is not None and digest else None)


def _metrics(saved: Mapping[str, Any] | None) -> dict[str, Any]:
    test = (saved or {}).get("test") or {}
    baselines = (saved or {}).get("baselines") or {}
    return {
        "test": {name: _value(test.get(name)) for name in METRICS},
        "intervals": {name: _bounds(test.get(name)) for name in METRICS},
        "baselines": {
            name: {metric: _value(found.get(metric)) for metric in METRICS[:2]} for name, found in baselines.items()
        },
        "ratio": _value((saved or {}).get("ratio")),
        "ratio_interval": _bounds((saved or {}).get("ratio")),
        "better_baseline": ((saved or {}).get("ratio") or {}).get("against"),
    }


def _value(estimate: Any) -> float | None:
    """The number of a plain number or of an estimate with its interval; None for what could not be computed."""
    found = estimate.get("value") if isinstance(estimate, Mapping) else estimate
    # What was no number is kept as text ("nan"), because JSON knows no other way.
    return float(found) if isinstance(found, int | float) else None


def _bounds(estimate: Any) -> list[float] | None:
    found = [estimate.get(name) for name in ("low", "high")] if isinstance(estimate, Mapping) else []
    numbers = [float(bound) for bound in found if isinstance(bound, int | float)]
    return numbers if len(numbers) == 2 else None


def _publication(settings: "Settings") -> dict[str, Any]:
    from semlabel.published import current_publication

    found = current_publication(settings.paths.published)
    document = {name: (found or {}).get(name) for name in PUBLICATION_FIELDS}
    if found is not None and "shortlist" in found:
        document["shortlist"] = found["shortlist"]
    if found is None:
        return document | {"checked_at": None, "stale": None}
    document["path"] = str(document["path"])
    checked = found.get("checked_at") or document["published_at"]
    seconds = age_seconds(checked)
    stale = seconds is not None and seconds > settings.schedule.freshness_hours * 3600
    return document | {"checked_at": checked, "stale": stale}


def _preview(settings: "Settings") -> dict[str, Any]:
    from semlabel.published import current_publication

    found = current_publication(settings.paths.preview) or {}
    document = {name: found.get(name) for name in PUBLICATION_FIELDS}
    return document | {"path": str(document["path"]) if document["path"] else None}
