"""`semlabel erase`: one entity out of everything that is kept, with a receipt.

The erasure itself, its places and their order live in `semlabel.erasure`; this command asks it and says what it cannot
do: change the people's own tables, or the weights of a model.
"""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from semlabel.cli.common import (
    DEFAULT_CONFIG,
    ConfigOption,
    JsonOption,
    needed_operations,
    project,
    say,
    show,
    show_json,
)
from semlabel.cli.text import number, table

if TYPE_CHECKING:
    from semlabel.erasure import Receipt
    from semlabel.settings import Settings


def erase(
    entity_id: Annotated[str, typer.Argument(help="The entity's id, byte for byte as in the source.")],
    config: ConfigOption = DEFAULT_CONFIG,
    json: JsonOption = False,
) -> None:
    """Remove an entity's texts, margins, evidence and training rows everywhere; keep a receipt of digests and counts.

    Published versions are written anew without it and say so in their manifests. Refused while a run is at work. An
    erasure that was interrupted goes on when it is asked for again. A later run refuses the entity's row: "erased".

    \b
    Example:
      semlabel erase 4711
    """
    from semlabel.erasure import erase as erase_entity

    settings = project(config)
    receipt = erase_entity(entity_id, settings, needed_operations(settings), lambda place: say(f"erasing: {place}"))
    if json:
        show_json(_document(receipt))
        return
    show(f"erased sha256:{receipt.id_digest}, {receipt.started_at} to {receipt.finished_at}")
    show(table(["place", "found"], [[place, number(count)] for place, count in receipt.counts.items()], right=(1,)))
    for line in _warnings(receipt, settings):
        show(line)


def _document(receipt: "Receipt") -> dict[str, Any]:
    return {
        "erased": receipt.id_digest,
        "started_at": receipt.started_at,
        "finished_at": receipt.finished_at,
        "counts": receipt.counts,
        "source_lists_it": receipt.source_lists_it,
        "trained_labelers": receipt.trained_labelers,
    }


def _warnings(receipt: "Receipt", settings: "Settings") -> list[str]:
    source, lines = settings.sources.entities, []
    if receipt.source_lists_it:
        lines.append(
            f"{source} still lists it. A later run would bring it back, so every later run of this project refuses "
            "that row with the reason 'erased'; remove it from the source too."
        )
    if receipt.source_lists_it is None:
        lines.append(f"{source} could not be read: look whether it still lists it. A later run refuses the row.")
    if receipt.trained_labelers:
        names = ", ".join(digest[:12] for digest in receipt.trained_labelers)
        lines.append(f"Weights cannot be taken apart: train anew to be rid of its influence on labelers {names}.")
    return lines
