"""`semlabel alerts`: what is red, whether people were told, and whether they can be reached.

Reads `ops.sqlite` and the settings; knows nothing of how a gate decides or how a channel is reached.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from semlabel.cli.common import (
    DEFAULT_CONFIG,
    ConfigOption,
    JsonOption,
    WhoOption,
    me,
    needed_operations,
    operations_of,
    project,
    say,
    show,
    show_json,
)
from semlabel.cli.text import age, table
from semlabel.errors import SettingsError

if TYPE_CHECKING:
    from semlabel.operations import Operations
    from semlabel.settings import Settings

# How long the end of a run may be spent on telling people, and on another sender that is at it already.
RUN_SECONDS = 60.0
RUN_PATIENCE = 15.0

_INCIDENT = ("incident", "gate", "asset", "severity", "verdict", "message", "run_id", "since", "told")
_ACKNOWLEDGED = ("acknowledged_by", "acknowledged_at", "reason")
_UNDELIVERED = ("id", "incident", "target", "gate", "kind", "created_at", "attempts", "error", "given_up")

group = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False)


@group.callback(invoke_without_command=True)
def alerts(context: typer.Context, config: ConfigOption = DEFAULT_CONFIG, json: JsonOption = False) -> None:
    """List open incidents, alerts that did not arrive, and the channels.

    An incident is open from a gate's first red verdict to its next pass, or from a run that failed to one that goes
    well. It is told once, and again when it stays red for a day; `alerts ack` stops that.

    \b
    Examples:
      semlabel alerts
      semlabel alerts ack held_out_quality --reason "retraining on Monday"
      semlabel alerts test                  a message to every channel
      semlabel alerts explain held_out_quality
    """
    if context.invoked_subcommand is not None:
        return
    settings = project(config)
    document = alerts_document(settings, operations_of(settings))
    if json:
        show_json(document)
    else:
        show(_text(document))


@group.command("ack", short_help="No reminders of an incident until it recovers.")
def acknowledge(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="The number of an incident, or the gate.", metavar="INCIDENT")],
    who: WhoOption = "",
    reason: Annotated[str, typer.Option("--reason", help="Why; kept with the decision.")] = "",
    config: ConfigOption = DEFAULT_CONFIG,
    json: JsonOption = False,
) -> None:
    """Say that an incident is being looked after: it is not repeated until the gate recovers, which is told.

    \b
    Example:
      semlabel alerts ack 17 --reason "the source is being delivered again"
    """
    from semlabel import outbox

    config, json = _given(context, config, json)
    operations = needed_operations(project(config))
    found = outbox.acknowledge(operations.file, name, who or me(), reason)
    if json:
        show_json([_incident(row) for row in found])
    for row in [] if json else found:
        show(f"incident {row['incident']} ({row['gate']}): acknowledged by {row['acknowledged_by']}")


@group.command("test", short_help="Send a test message to every channel.")
def test(context: typer.Context, config: ConfigOption = DEFAULT_CONFIG, json: JsonOption = False) -> None:
    """Send a test message to every channel and say which one failed; the exit code is 1 when any did.

    The dead-man address is looked at and not pinged, because a ping means that a night went well: its variable must be
    set and hold an http address that can be read.

    \b
    Example:
      semlabel alerts test
    """
    from semlabel.notify import try_channels

    config, json = _given(context, config, json)
    settings = project(config)
    if not settings.alerts.addresses:
        raise SettingsError(f'{settings.path}: no channel to test; set [alerts] urls, for example ["env:ALERT_URL"]')
    found = try_channels(operations_of(settings), settings, os.environ)
    if json:
        show_json([{"target": target, "ok": error is None, "error": error} for target, error in found.items()])
    else:
        sent = dict.fromkeys(settings.alerts.channels, "sent")
        quiet = "can be pinged; not done now, because a ping means that a night went well"
        rows = [["FAILED" if e else "ok", t, e or sent.get(t, quiet)] for t, e in found.items()]
        show(table(["", "channel", "found"], rows))
    raise typer.Exit(1 if any(found.values()) else 0)


@group.command("explain", short_help="The runbook page of a gate.")
def explain(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="The gate that an alert names, or run.", metavar="GATE")],
    json: JsonOption = False,
) -> None:
    """Show the runbook page of a gate: what it means, how to look, how to fix, how to recover. Needs no project.

    \b
    Example:
      semlabel alerts explain held_out_quality
    """
    from semlabel import runbook

    text = runbook.page(name)
    if json or (context.parent is not None and context.parent.params["json"]):
        show_json({"gate": name, "page": text})
    else:
        show(text.rstrip())


def _given(context: typer.Context, config: Path, json: bool) -> tuple[Path, bool]:
    """The options of a subcommand, which may also stand before it (`semlabel alerts --config X test`)."""
    above = context.parent
    before, behind = (
        str(place.get_parameter_source("config")).endswith("COMMANDLINE") if place else False
        for place in (above, context)
    )
    if above is None:
        return config, json
    return (above.params["config"] if before and not behind else config), json or above.params["json"]


def alerts_document(settings: "Settings", operations: "Operations | None") -> dict[str, list[dict[str, Any]]]:
    """Open incidents, what did not arrive, and the channels; empty before a first run."""
    from semlabel import deliveries, outbox

    known = {row["target"]: row for row in deliveries.channels(operations.file)} if operations else {}
    return {
        "incidents": [_incident(row) for row in outbox.open_incidents(operations.file)] if operations else [],
        "undelivered": _undelivered(settings, operations),
        "channels": [_channel(name, known.get(name, {})) for name in settings.alerts.addresses],
    }


def alerts_line(document: Mapping[str, Any]) -> str:
    """One line for a summary: what is open, what did not arrive, who cannot be reached; empty when all is well."""
    parts = [_count(len(document["incidents"]), "open incident")] if document["incidents"] else []
    if document["undelivered"]:
        parts.append(f"{_count(len(document['undelivered']), 'alert')} not delivered")
    parts += [f"{row['target']} FAILS ({row['error']})" for row in document["channels"] if row["failures"]]
    return f"Alerts: {', '.join(parts)}; see `semlabel alerts`" if parts else ""


def tell(settings: "Settings", operations: "Operations") -> None:
    """Deliver at the end of a run, so that a machine without a daemon alerts too. Trouble here is said, not raised."""
    from semlabel.errors import SemlabelError
    from semlabel.notify import deliver

    if not settings.alerts.channels and not settings.alerts.dead_man:
        return
    try:
        told = deliver(operations, settings, os.environ, seconds=RUN_SECONDS, patience=RUN_PATIENCE)
    except SemlabelError as error:
        say(f"alerts were not sent: {error}")
        return
    if told.sent or told.errors:
        say(f"alerts: {told}")


def _undelivered(settings: "Settings", operations: "Operations | None") -> list[dict[str, Any]]:
    from semlabel import deliveries

    # Without a channel nothing is meant to arrive anywhere.
    rows = deliveries.waiting(operations.file) if operations and settings.alerts.channels else []
    return [{name: row[name] for name in _UNDELIVERED} for row in rows]


def _channel(target: str, row: Mapping[str, Any]) -> dict[str, Any]:
    return {"target": target} | {name: row.get(name) for name in ("failures", "error", "attempted_at", "succeeded_at")}


def _incident(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in (*_INCIDENT, *_ACKNOWLEDGED)}


def _text(document: Mapping[str, Any]) -> str:
    parts = [_incidents_text(document["incidents"])]
    if document["undelivered"]:
        rows = [
            [str(row["id"]), row["gate"], row["kind"], age(row["created_at"]), row["target"] or "none", _fate(row)]
            for row in document["undelivered"]
        ]
        parts.append("Not delivered:\n" + table(["alert", "gate", "kind", "since", "channel", "found"], rows))
    if document["channels"]:
        rows = [[row["target"], _health(row), age(row["succeeded_at"])] for row in document["channels"]]
        parts.append(table(["channel", "found", "last worked"], rows))
    else:
        parts.append('Nobody is told: set [alerts] urls, for example ["env:ALERT_URL"].')
    return "\n\n".join(parts)


def _incidents_text(incidents: list[Mapping[str, Any]]) -> str:
    if not incidents:
        return "No open incident."
    rows = [
        [str(row["incident"]), row["gate"], row["severity"], age(row["since"]), row["acknowledged_by"] or "nobody yet"]
        for row in incidents
    ]
    told = "\n".join(f"  {row['gate']}: {row['message']}" for row in incidents)
    return table(["incident", "gate", "severity", "open since", "acknowledged by"], rows) + f"\n\n{told}"


def _fate(row: Mapping[str, Any]) -> str:
    if row["given_up"]:
        return "over a week old, not tried any more"
    return f"{row['error']}, {_count(row['attempts'], 'attempt')}" if row["attempts"] else "not tried yet"


def _health(row: Mapping[str, Any]) -> str:
    if row["failures"]:
        return f"FAILS: {row['error']} ({_count(row['failures'], 'time')})"
    return "ok" if row["succeeded_at"] else "not used yet"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
