"""What an alert says: bounded, plain, without anybody's texts, and with where to go from here.

Knows rows of the outbox and the settings that links start from; deliberately knows nothing of channels. Sentences of
gates may name ids and file names that came from outside: what could act in somebody's chat or mail (control
characters, markup, mentions) is taken out of every part.
"""

import unicodedata
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from semlabel.run_news import RUN
from semlabel.settings_alerts import GATE

if TYPE_CHECKING:
    from semlabel.settings import Settings

MOST_IN_SENTENCE = 500
_MOST_IN_NAME = 120
_MOST_IN_LINK = 300
# Look-alikes that neither open a tag or a mention nor make a link.
_HARMLESS = str.maketrans({"<": "‹", ">": "›", "@": "＠", "`": "'", "[": "(", "]": ")"})
_NO_SCHEME = "∶//"


def plain(text: str, most: int) -> str:
    """`text` on one line of at most `most` characters, with nothing in it that a program or a chat would act on."""
    # A message may be as long as a file; what is looked at is bounded too.
    spaced = "".join(" " if character.isspace() else character for character in text[: most * 10])
    visible = "".join(character for character in spaced if unicodedata.category(character)[0] != "C")
    line = " ".join(visible.split()).translate(_HARMLESS).replace("://", _NO_SCHEME)
    return line if len(line) <= most else line[: most - 1] + "…"


def alert_text(row: Mapping[str, Any], settings: "Settings", *, interrupted: bool = False) -> tuple[str, str]:
    """Title and body of one row of the outbox.

    `interrupted`: a sender died while it sent this row, so the channel may have it already.
    """
    gate, asset = plain(row["gate"], _MOST_IN_NAME), plain(row["asset"], _MOST_IN_NAME)
    environment = plain(settings.environment.title, _MOST_IN_NAME)
    title = f"semlabel {environment}: {gate} {_happened(row)}".replace(" :", ":")
    lines = [
        plain(row["message"], MOST_IN_SENTENCE),
        "",
        *_asked(row, gate, asset),
        f"Run: {_run_link(row['run_id'], settings)}",
        f"Report: {report_link(row['run_id'], settings)}",
        f"Runbook: {_runbook_link(gate, settings)}",
        f"Owner: {plain(settings.alerts.owner_of(row['asset']), _MOST_IN_NAME)}",
        f"Alert {row['id']} of incident {row['incident']}, {row['created_at'][:19]} UTC",
    ]
    if row["kind"] == "failed":
        lines.append(f"No reminders until it recovers: semlabel alerts ack {row['incident']}")
    if interrupted:
        lines.append(f"You may have alert {row['id']} already: its sender died while it was being sent.")
    return title, "\n".join(lines)


def _happened(row: Mapping[str, Any]) -> str:
    if row["kind"] == "recovered":
        # Closed by a verdict of another severity, which opened an incident of its own.
        return "recovered" if row["verdict"] == "pass" else f"is no longer told as {row['severity']}"
    again = "still " if row["id"] != row["incident"] else ""
    said = "has not enough data" if row["verdict"] == "not_enough_data" else "failed"
    return f"{again}{said} ({row['severity']})"


def _asked(row: Mapping[str, Any], gate: str, asset: str) -> list[str]:
    """What the alert is about: a gate with its value and limit, or the run of a job, which has neither."""
    if row["gate"] == RUN:
        return [f"Job: {asset}, severity {row['severity']}"]
    return [
        f"Gate: {gate} of {asset}, {plain(row['verdict'], _MOST_IN_NAME)}, severity {row['severity']}",
        f"Value: {_number(row['value'])}, limit: {_number(row['limit_value'])}",
    ]


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.6g}"


def _run_link(run_id: str, settings: "Settings") -> str:
    run = plain(run_id, _MOST_IN_NAME)
    return _joined(settings.alerts.ui_url, f"runs/{run}") or run


def report_link(run_id: str, settings: "Settings") -> str:
    """Where the HTML report of a run is, or will be, cut to fit a message: an address where one is set, else a path."""
    name = Path(plain(run_id, _MOST_IN_NAME) + ".html").name
    return _joined(settings.alerts.reports_url, name) or str(settings.paths.reports / name)[-_MOST_IN_LINK:]


def _runbook_link(gate: str, settings: "Settings") -> str:
    base = settings.alerts.runbook_url
    if base is not None and GATE in base:
        return base.replace(GATE, gate)[:_MOST_IN_LINK]
    return _joined(base, f"{gate}.md") or f"semlabel alerts explain {gate}"


def _joined(base: str | None, path: str) -> str | None:
    return f"{base.rstrip('/')}/{path}"[:_MOST_IN_LINK] if base else None
