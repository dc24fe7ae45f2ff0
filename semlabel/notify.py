"""One pass over what people are to be told: alerts to their channels, and the ping after a good night.

The same pass for the sensor, for `semlabel run` and for whoever calls it: what it does next stands in `ops.sqlite`
alone, so it may be started, killed and started again, here and elsewhere at once. Deliberately knows nothing of how
rows come about, nor of Dagster.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from semlabel import channels, deliveries, outbox
from semlabel.alert_text import alert_text
from semlabel.operations_schema import now_utc
from semlabel.run_news import NIGHTS

if TYPE_CHECKING:
    from semlabel.operations import Operations
    from semlabel.settings import Settings

_PINGED = "night_pinged"
_POLL_SECONDS = 0.1


@dataclass
class Told:
    """What a pass did: how many alerts each channel took, and in a few words why one did not."""

    sent: dict[str, int] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        parts = [f"{count} to {target}" for target, count in self.sent.items()]
        parts += [f"{target} failed ({error})" for target, error in self.errors.items()]
        return ", ".join(parts) or "nothing to tell"


def deliver(
    operations: "Operations", settings: "Settings", env: Mapping[str, str], *, seconds: float, patience: float = 0.0
) -> Told:
    """Send every alert that is due, and ping for a good night; what fails is kept and due again later.

    No new message is begun after `seconds`. A channel that another sender is at work on is waited for at most
    `patience` seconds: that one sends what is due.
    """
    told, started = Told(), time.monotonic()
    outbox.reconcile(operations.file)
    targets = settings.alerts.channels
    if targets:
        deliveries.route(operations.file, lambda row: _recipients(settings, row), settings.alerts.addresses)
    for target in targets:
        while time.monotonic() - started < seconds:
            claim = deliveries.claim(operations.file, target)
            if claim is None:
                if time.monotonic() - started < patience and deliveries.busy(operations.file, target):
                    time.sleep(_POLL_SECONDS)
                    continue
                break
            title, body = alert_text(claim.row, settings, interrupted=claim.interrupted)
            error = channels.send(env, target, title, body)
            deliveries.record(operations.file, claim.outbox_id, target, error, claim.token)
            if error is not None:
                told.errors[target] = error
                break
            told.sent[target] = told.sent.get(target, 0) + 1
    _ping(operations, settings, env, told)
    return told


def try_channels(
    operations: "Operations | None", settings: "Settings", env: Mapping[str, str]
) -> dict[str, str | None]:
    """Send a test message to every channel: {target: None, or why it failed}.

    Of the dead-man address only the form is looked at: a ping would mean that a night went well.
    """
    name = f" {settings.environment.title}" if settings.environment.title else ""
    found = {}
    for target in settings.alerts.channels:
        body = "A test of this channel: alerts of gates arrive like this one. There is nothing to do."
        found[target] = channels.send(env, target, f"semlabel{name}: test of the alerts", body)
        if operations is not None:
            deliveries.note_channel(operations.file, target, found[target])
    # A channel of the same name was sent a message, which tells more.
    if settings.alerts.dead_man and settings.alerts.dead_man not in found:
        found[settings.alerts.dead_man] = channels.ping_problem(env, settings.alerts.dead_man)
    return found


def _recipients(settings: "Settings", row: Mapping[str, Any]) -> list[str]:
    return settings.alerts.recipients(row["asset"], row["gate"], row["severity"])


def _ping(operations: "Operations", settings: "Settings", env: Mapping[str, str], told: Told) -> None:
    """Tell the dead-man service of the newest good night, once. It is the missing ping that raises the alarm."""
    target = settings.alerts.dead_man
    night = _good_night(operations, settings.schedule.freshness_hours * 3600) if target else None
    if target is None or night is None or deliveries.resting(operations.file, target):
        return
    error = channels.ping(env, target)
    deliveries.note_channel(operations.file, target, error)
    if error is not None:
        told.errors[target] = error
        return
    operations.remember(_PINGED, night)
    told.sent[target] = 1


def _good_night(operations: "Operations", seconds: float) -> str | None:
    """The newest night, if it went well to its end, was not told yet, and is not so old that telling it would lie."""
    night = next((run for run in operations.runs() if run["job"] in NIGHTS and run["finished_at"]), None)
    if night is None or night["status"] != "SUCCESS" or operations.remembered(_PINGED) == night["run_id"]:
        return None
    gates = operations.gates_of_run(night["run_id"])
    red = any(gate["verdict"] != "pass" and gate["severity"] == "ERROR" for gate in gates)
    age = datetime.fromisoformat(now_utc()) - datetime.fromisoformat(night["finished_at"])
    return None if red or age.total_seconds() > seconds else str(night["run_id"])
