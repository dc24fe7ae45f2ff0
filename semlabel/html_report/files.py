"""Where reports lie: one file a run and `latest.html`, each replaced in one step, the old ones removed.

Knows names, files and the two marks a report carries (its run, and the part that was read from the warehouse);
deliberately knows nothing of what stands in it. `latest.html` is a file of its own and no link: it is what people
bookmark and copy, and erasing it must not depend on another file.
"""

import re
from pathlib import Path
from typing import TYPE_CHECKING

from semlabel.durable import replace_file
from semlabel.html_report.markup import Html

if TYPE_CHECKING:
    from semlabel.operations import Operations
    from semlabel.settings import Settings

LATEST = "latest.html"
RUN_MARK = "semlabel-run"
# Escaped text holds no comment, so nothing from outside can begin or end this part.
_BEGIN, _END = "<!--read from the warehouse-->", "<!--end of what was read-->"
_RUN = re.compile(rf'<meta name="{RUN_MARK}" content="([^"]*)">')
_HEAD_CHARACTERS = 4_000


def report_path(settings: "Settings", run_id: str) -> Path:
    """Where the report of a run lies, whether it is there or not."""
    return settings.paths.reports / Path(f"{run_id}.html").name


def kept_part(path: Path) -> Html | None:
    """The part of a report that was read from the warehouse, or None where there is no such report or part."""
    if not path.exists():
        return None
    before, begin, rest = path.read_text(encoding="utf-8").partition(_BEGIN)
    part, end, _ = rest.partition(_END)
    return marked(Html(part)) if before and begin and end else None


def marked(part: Html) -> Html:
    """A part with the marks that a later writing finds it by."""
    return Html(f"{_BEGIN}{part}{_END}")


def save(settings: "Settings", operations: "Operations", run_id: str, page: Html) -> Path:
    """Write the report of a run, and `latest.html` unless that is of a later run; the oldest beyond `keep` go."""
    folder = settings.paths.reports
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = report_path(settings, run_id)
    replace_file(path, page.encode("utf-8"))
    if _is_latest(folder / LATEST, operations, run_id):
        replace_file(folder / LATEST, page.encode("utf-8"))
    reports = [file for file in folder.glob("*.html") if file.name != LATEST and file != path]
    for old in sorted(reports, key=lambda file: file.stat().st_mtime, reverse=True)[settings.report.keep - 1 :]:
        old.unlink(missing_ok=True)
    return path


def _is_latest(latest: Path, operations: "Operations", run_id: str) -> bool:
    if not latest.exists():
        return True
    with latest.open(encoding="utf-8") as stream:
        found = _RUN.search(stream.read(_HEAD_CHARACTERS))
    shown = operations.run(found.group(1)) if found else None
    own = operations.run(run_id)
    return shown is None or own is None or own["started_at"] >= shown["started_at"]
