"""Runs the serving benchmark into files, rate by rate, so that an interrupted run goes on where it stopped.

Knows nothing of how a rate is measured.
"""

from pathlib import Path
from typing import Any

from semlabel.bench import output, serving
from semlabel.bench.serving import Plan, Records
from semlabel.bench.serving_report import markdown, plot, summary
from semlabel.bench.subject import Subject
from semlabel.models import resolve_device
from semlabel.progress import ProgressSink, silent

NAME = "serving"
SCHEMA_VERSION = 1


def run(
    subject: Subject, plan: Plan, out: Path, device: str = "auto", progress: ProgressSink = silent
) -> dict[str, Any]:
    """Measure what the plan asks for and write `out`/serving.json, .md and .png; returns the document.

    The files are written after every record, with `complete` false until the last. Called again with the same plan,
    labeler and conditions after an interruption, it keeps the records that are there.
    """
    device = resolve_device(device)
    document = output.resumed(out, NAME, SCHEMA_VERSION, subject, plan, device, missing=[], cells=[], records=[])
    drawn: list[tuple[list[dict[str, Any]], bytes]] = []

    def write() -> None:
        cells = document["cells"] = summary(document["records"])
        # Drawing takes a second: only where there is a new cell to be seen.
        if not drawn or drawn[-1][0] != cells:
            drawn[:] = [(cells, plot(document))]
        output.write(out, NAME, document, markdown(document), drawn[-1][1])

    records = Records(document["records"], write)
    # Not the link it may be: the server would follow it to what is promoted meanwhile.
    serving.measure(Path(subject.path).resolve(), plan, device, document["environment"]["threads"], records, progress)
    document["complete"] = True
    write()
    return document
