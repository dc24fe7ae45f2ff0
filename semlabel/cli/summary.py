"""A status document as text for people: gates, quality, what was scored, where the table is and how to read it.

Knows nothing of where the document came from.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from semlabel.cli.alerts import alerts_line
from semlabel.cli.common import command_for
from semlabel.cli.text import age, age_seconds, interval, minute, number, table
from semlabel.gates.result import VERDICT_WORDS
from semlabel.run_life import STARTED

if TYPE_CHECKING:
    from semlabel.settings import Settings


def status_text(document: Mapping[str, Any], settings: "Settings") -> str:
    """Everything, in the order in which people ask."""
    run = document["run"]
    parts = [_run_line(run, document["progress"]), gates_text(document["gates"]), alerts_line(document["alerts"])]
    if document["labeler"]["digest"]:
        parts += [
            _labeler_line(document["labeler"]),
            quality_text(document["metrics"], settings.calibration.confidence),
            _promise_line(document["labeler"], document["metrics"]),
        ]
    parts += [
        calibrate_text(document["on_calibrate"]),
        candidate_text(document["candidate"], settings),
        publication_text(document, settings),
    ]
    return "\n\n".join(part for part in parts if part)


def run_summary(document: Mapping[str, Any], settings: "Settings", seconds: float) -> str:
    """What a finished run ends with."""
    run = document["run"]
    scored = [f"{number(run['pairs_scored'])} pairs scored", f"{number(run['pairs_reused'])} reused"]
    if run["labels_per_s"]:
        scored.append(f"{number(run['labels_per_s'])} labels/s")
    loads = run["model_loads"]
    scored.append("no model load" if not loads else f"{loads} model load{'s' if loads != 1 else ''}")
    from semlabel.estimate import duration

    parts = [
        gates_text(document["gates"]),
        alerts_line(document["alerts"]),
        _labeler_line(document["labeler"]) if document["labeler"]["digest"] else "",
        quality_text(document["metrics"], settings.calibration.confidence),
        _promise_line(document["labeler"], document["metrics"]),
        calibrate_text(document["on_calibrate"]),
        candidate_text(document["candidate"], settings),
        f"Work: {', '.join(scored)}; {duration(seconds)} in all.",
        publication_text(document, settings),
        f"Gates, plots and history in Dagster's UI:  {command_for(settings, 'ui')}",
    ]
    return "\n\n".join(part for part in parts if part)


def gates_text(gates: list[Mapping[str, Any]]) -> str:
    """The gates with verdict, value and limit, and below them what to do about those that did not pass."""
    if not gates:
        return ""
    rows = [
        [g["asset"], _gate_name(g), VERDICT_WORDS[g["verdict"]], number(g["value"]), number(g["limit"])] for g in gates
    ]
    text = table(["asset", "gate", "verdict", "value", "limit"], rows, right=(3, 4))
    open_gates = [f"  {g['gate']}: {g['sentence']}" for g in gates if g["verdict"] != "pass"]
    return text + ("\n\n" + "\n".join(open_gates) if open_gates else "")


def _gate_name(gate: Mapping[str, Any]) -> str:
    return str(gate["gate"]) + ("" if gate["severity"] == "ERROR" else " (warns)")


def _promise_line(labeler: Mapping[str, Any], metrics: Mapping[str, Any]) -> str:
    """Why a promise and the interval of test may differ; empty where one of them is missing."""
    shown = labeler["threshold"] is not None and labeler["certified"] == "certified"
    if not shown or metrics["test"]["precision"] is None:
        return ""
    return "The promise was shown on certify; test is another sample, so its interval may reach below it."


def quality_text(metrics: Mapping[str, Any], confidence: float) -> str:
    """Held-out quality with its intervals, beside the baselines."""
    test, intervals = metrics["test"], metrics["intervals"]
    if test["auc"] is None:
        return ""
    low_high = {name: intervals[name] or [None, None] for name in test}
    rows = [["this labeler", *[interval(test[name], *low_high[name]) for name in test]]]
    rows += [
        [
            baseline.replace("_", " "),
            *[interval(found[name], None, None) for name in ("auc", "average_precision")],
            "",
            "",
        ]
        for baseline, found in metrics["baselines"].items()
    ]
    headers = [
        f"on test, {confidence:.0%} intervals",
        "AUC",
        "average precision",
        "precision at tau",
        "recall at tau",
    ]
    text = table(headers, rows)
    if metrics["ratio"] is not None:
        ratio = interval(metrics["ratio"], *(metrics["ratio_interval"] or [None, None]))
        against = str(metrics["better_baseline"] or "the better baseline").replace("_", " ")
        text += f"\nAverage precision is {ratio} times that of {against}."
    return text


def calibrate_text(rows: Sequence[Mapping[str, Any]] | None) -> str:
    """What could be promised, as long as certify was not looked at: estimates on calibrate by pairs flagged."""
    if not rows:
        return ""
    shown = [
        [number(row["flagged"]), interval(row["precision"], row["low"], row["high"]), f"{row['recall']:.3f}"]
        for row in rows
    ]
    return (
        table(["on calibrate, pairs flagged", "precision", "recall"], shown, right=(0,))
        + "\nEstimates to choose [calibration] by, no promise: certify shows that, and each policy is a look at it."
    )


def candidate_text(candidate: Mapping[str, Any] | None, settings: "Settings") -> str:
    """A labeler that was made and is not in use: what it is, how good it is, how to put it into use."""
    if candidate is None:
        return ""
    promote = command_for(settings, f"promote {candidate['digest'][:12]}")
    lines = [
        "Not in use yet: " + _labeler_line(candidate),
        quality_text(candidate["metrics"], settings.calibration.confidence),
    ]
    if candidate["threshold"] is not None:
        lines.append(f"Put it into use once its gates passed:  {promote}")
    return "\n".join(line for line in lines if line)


def publication_text(document: Mapping[str, Any], settings: "Settings") -> str:
    """Where the table is, and three lines that read it."""
    publication, preview = document["publication"], document["preview"]
    lines = []
    if document["publishing_paused"] is not None:
        why = document["publishing_paused"] or "no reason given"
        lines.append(f"Publishing is paused ({why}). Resume: {command_for(settings, 'rollback --resume')}")
    if publication["version"]:
        when = age(publication["published_at"])
        stale = ", STALE" if publication["stale"] else ""
        lines.append(f"Published: {number(publication['rows'])} rows, version {publication['version']}, {when}{stale}")
        if "shortlist" in publication:
            left_out, size = publication["shortlist"]["not_shortlisted"], publication["shortlist"]["size"]
            lines.append(f"{number(left_out)} more pairs are outside the shortlists of {number(size)} and count as NO.")
        lines += [*_left_behind(publication, document["run"]), *_snippet(settings.paths.published / "current")]
    else:
        lines.append("Published: nothing yet.")
    if preview["version"] and (preview["published_at"] or "") > (publication["published_at"] or ""):
        lines.append(f"Preview (not what others read): {number(preview['rows'])} rows")
        lines += _snippet(settings.paths.preview / "current")
    return "\n".join(lines).rstrip()


def _left_behind(publication: Mapping[str, Any], run: Mapping[str, Any]) -> list[str]:
    """What readers still get when the newest run ended without a publication, or none has run for too long."""
    checked, started = age_seconds(publication["checked_at"]), age_seconds(run["started_at"])
    failed = run["status"] not in (None, STARTED, "SUCCESS")
    later = started is not None and checked is not None and started < checked
    if not (publication["stale"] or (failed and later)):
        return []
    why = f"the last run ended with {run['status']}" if failed and later else "no run has checked it since"
    return [f"Serving data of {minute(publication['as_of'] or publication['published_at'])}: {why}."]


def _snippet(current: Path) -> list[str]:
    return [
        "",
        "  import duckdb",
        f'  con = duckdb.connect("{current / "predictions.duckdb"}", read_only=True)',
        '  print(con.sql("SELECT * FROM predictions WHERE label ORDER BY probability DESC LIMIT 20"))',
        "",
    ]


def _run_line(run: Mapping[str, Any], progress: Mapping[str, Any] | None) -> str:
    if run["id"] is None:
        return "Nothing has run yet."
    line = f"Last run: {run['job']}, {run['status']}, started {age(run['started_at'])}"
    if run["pairs_scored"] is not None:
        line += f"; {number(run['pairs_scored'])} pairs scored, {number(run['pairs_reused'])} reused"
    line += f" ({run['note']})" if run["note"] else ""
    if progress is not None and progress["killed"]:
        return f"{line}\nIts process was killed; the next run goes on with its work."
    if progress is not None and progress["stage"] is not None:
        of = f" of {number(progress['total'])}" if progress["total"] else ""
        line += f"\nAt work: {progress['stage']}, {number(progress['done'])}{of} {progress['unit']}"
    return line


def _labeler_line(labeler: Mapping[str, Any]) -> str:
    facts = f"Labeler {labeler['digest'][:12]}: {labeler['base_model']}, {labeler['precision']}"
    if labeler["threshold"] is None:
        return f"{facts}, no threshold: {policy_text(labeler['policy'])} could not be shown"
    return f"{facts}, tau = {labeler['threshold']:.4g}, {labeler['certified']} for {policy_text(labeler['policy'])}"


def policy_text(policy: Mapping[str, Any] | None) -> str:
    """`min_precision 0.5` and whatever else was promised."""
    promised = [f"{name} {value:g}" for name, value in (policy or {}).items() if isinstance(value, int | float)]
    return " and ".join(promised) or "no policy"
