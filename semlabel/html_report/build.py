"""Writing the report of a run: what `ops.sqlite` and the publication say, around what was read from the warehouse.

Knows the order of the sections and when the warehouse may be opened. A report can be written again at any time: who
holds the warehouse hands it in, who must not open it keeps the part that was read before.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from semlabel.errors import LeaseHeld, SemlabelError, WarehouseError
from semlabel.html_report.changed import changes_section
from semlabel.html_report.drift import drift_section
from semlabel.html_report.files import kept_part, marked, report_path, save
from semlabel.html_report.markup import Html, outside, paragraph, section
from semlabel.html_report.page import page
from semlabel.html_report.quality import test_section
from semlabel.html_report.recipe import gates_section, run_section
from semlabel.html_report.subject import labeler_of
from semlabel.html_report.tables import tables_part
from semlabel.privacy import keep_fonts
from semlabel.warehouse import LEASE, Opening

if TYPE_CHECKING:
    from semlabel.operations import Operations
    from semlabel.settings import Settings
    from semlabel.warehouse import Warehouse

_GOING_ON = "The run has not ended yet; its report is written again when it has."


def write_report(
    settings: "Settings", operations: "Operations", run_id: str, warehouse: "Warehouse | None" = None, why_not: str = ""
) -> Path:
    """Write the report of a run, and `latest.html` unless a later run has one; returns its path.

    Without `warehouse` the part of an earlier report of this run stays, or a sentence says how to add it, and with
    `why_not` why it is not there. Callers hold the lease of the warehouse: an erasure, which needs it too, must not be
    followed by what was read before it. Raises SemlabelError for a run that nobody noted.
    """
    keep_fonts(settings.paths.temporary)  # a command that only writes a report has drawn nothing yet
    run = operations.run(run_id)
    if run is None:
        raise SemlabelError(f"no run {run_id} is known in {settings.paths.ops}; see `semlabel status`")
    gates = operations.gates_of_run(run_id)
    labeler, trouble = labeler_of(settings, gates)
    if warehouse is not None:
        part = marked(tables_part(settings, operations, run_id, labeler, warehouse))
    else:
        part = kept_part(report_path(settings, run_id)) or _not_read(settings, run_id, why_not)
    written = page(
        f"semlabel {settings.environment.title}: {run['job']}, {run['status']}".replace(" :", ":"),
        run_id,
        run_section(run, labeler, trouble),
        gates_section(gates, settings),
        changes_section(settings, operations, run_id),
        drift_section(gates),
        test_section(operations.metrics(labeler.digest) if labeler else None),
        part,
    )
    return save(settings, operations, run_id, written)


def complete_report(
    settings: "Settings", operations: "Operations", run_id: str, wait_seconds: float = 0, read: bool = True
) -> Path:
    """Write the report of a run, reading the warehouse where no earlier report of it did (`read` False: never).

    While somebody else holds the warehouse a report that is there stays as it is, and a new one is made without it.
    """
    path = report_path(settings, run_id)
    try:
        with operations.lease(LEASE, run_id, wait_seconds):
            if _at_work(operations, run_id):
                # What is read now would be kept at its end, when there is more to see.
                return write_report(settings, operations, run_id, why_not=_GOING_ON)
            if not read or kept_part(path) is not None or not settings.paths.warehouse.exists():
                return write_report(settings, operations, run_id)
            return _read_and_write(settings, operations, run_id)
    except LeaseHeld as error:
        return path if path.exists() else write_report(settings, operations, run_id, why_not=str(error))


def _at_work(operations: "Operations", run_id: str) -> bool:
    run = operations.run(run_id)
    dead = {row["run_id"] for row in operations.dead_runs(watched=False)}
    return run is not None and run["finished_at"] is None and run_id not in dead


def _read_and_write(settings: "Settings", operations: "Operations", run_id: str) -> Path:
    try:
        with Opening.of(settings).open(settings.paths.warehouse, read_only=True) as warehouse:
            return write_report(settings, operations, run_id, warehouse)
    except WarehouseError as error:
        # Often the very reason why the run is red, and then a report is wanted most.
        return write_report(settings, operations, run_id, why_not=str(error))


def _not_read(settings: "Settings", run_id: str, why_not: str) -> Html:
    if not settings.paths.warehouse.exists():
        return section("Pairs", paragraph("There is no warehouse yet, so there are no pairs to show."))
    told = f"Nothing was read from the warehouse for this report. Read it with: semlabel report --run {run_id}"
    return section("Pairs", paragraph(told), *([paragraph(outside(why_not, 1_000))] if why_not else []))
