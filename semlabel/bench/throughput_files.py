"""Runs the throughput benchmark into files, group by group, so that an interrupted run goes on where it stopped.

Knows nothing of how a group is measured.
"""

from pathlib import Path
from typing import Any

from semlabel.bench import output, throughput
from semlabel.bench.subject import Subject
from semlabel.bench.throughput import Plan
from semlabel.bench.throughput_report import markdown, plot
from semlabel.models import resolve_device
from semlabel.progress import ProgressSink, silent

NAME = "throughput"
SCHEMA_VERSION = 1


def run(
    subject: Subject, plan: Plan, out: Path, device: str = "auto", progress: ProgressSink = silent
) -> dict[str, Any]:
    """Measure what the plan asks for and write `out`/throughput.json, .md and .png; returns the document.

    The files are written after every group, with `complete` false until the last. Called again with the same plan,
    model and conditions after an interruption, it keeps the groups that are there.
    """
    device = resolve_device(device)
    missing = throughput.left_out(plan.precisions, device)
    document = output.resumed(
        out, NAME, SCHEMA_VERSION, subject, plan, device, groups=[], cells=[], tuning=[], gemm=[], missing=missing
    )
    done = [(group["precision"], group["shape"]) for group in document["groups"]]
    for group in throughput.measure(subject, plan, device, done, progress, document["missing"]):
        here = {"precision": group.precision, "shape": group.shape}
        document["groups"].append(here)
        document["cells"] += group.cells
        document["tuning"] += group.tuning
        document["gemm"] += [here | record for record in group.gemm]
        _write(out, document)
    document["complete"] = True
    _write(out, document)
    return document


def _write(out: Path, document: dict[str, Any]) -> None:
    output.write(out, NAME, document, markdown(document), plot(document["cells"]))
