"""`semlabel bench compare`: two scorings of the same pairs, held against each other.

Only turns a labeler into a cut and a rounding; what is counted stands in `semlabel.label_differences`.
"""

from pathlib import Path
from typing import Annotated

import typer

from semlabel.cli.common import JsonOption, show, show_json
from semlabel.cli.text import table
from semlabel.errors import GateBlocked, LabelerError


def compare(
    first: Annotated[Path, typer.Argument(help="A published version, a Parquet file or a folder of them.")],
    second: Annotated[Path, typer.Argument(help="The same pairs from another machine or backend.")],
    labeler: Annotated[
        Path, typer.Option("--labeler", help="The labeler of both: its cut, its rounding.", metavar="DIR")
    ],
    rounding: Annotated[
        float | None, typer.Option("--rounding", min=0, help="In margin units, instead of what the labeler's gate saw.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Compare two scorings of the same pairs, as of `backend = "local"` and `backend = "ray"`, or of two machines.

    A label may differ where the margin lies within rounding of the cut; those are counted. The exit code is 1 when a
    label differs elsewhere, or when one side has pairs that the other lacks.

    \b
    Example:
      semlabel bench compare here/published/current there/published/current --labeler here/labelers/current
    """
    from semlabel import label_differences as differences
    from semlabel.manifest import read_manifest
    from semlabel.settings import Gates

    manifest = read_manifest(labeler)
    if manifest.threshold is None:
        raise LabelerError(f"{labeler}: it has no threshold, so it decides nothing that could differ")
    if rounding is None:
        rounding = differences.rounding_of(manifest, Gates().parity_tolerance(manifest.precision))
    found = differences.compare(first, second, manifest.threshold, rounding)
    if json:
        show_json(found.to_json())
    else:
        show(found.sentence())
        if found.examples:
            rows = [[p.entity_id, p.candidate_id, f"{p.first:.4f}", f"{p.second:.4f}"] for p in found.examples]
            show(table(["entity", "candidate", "first", "second"], rows, right=(2, 3)))
    if not found.same:
        raise GateBlocked(f"{first} and {second} are not the same labels: {found.sentence()}")
