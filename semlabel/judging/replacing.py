"""Whether an export may take the place of a file that is there: never that of a source, never that of people's work.

An export that nobody has judged in is worth nothing once it is made again; whatever else stands under the name is not
ours to remove. Knows the formats people judge in; deliberately knows nothing of what the new file will hold.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

from semlabel.errors import SourceError
from semlabel.judging.files import JUDGEMENT, format_of, read_judged
from semlabel.settings import Sources
from semlabel.source_watch import refuse_a_source

_INSTEAD = "choose another --out, or move the file away"


def _nothing(cells: Mapping[str, str]) -> bool:
    return False


def refuse_to_replace(path: Path, sources: Sources, comes_back: Callable[[Mapping[str, str]], bool] = _nothing) -> None:
    """Raise SourceError where `path` is a file of [sources], or holds what a new export would destroy.

    `comes_back` says of a judged row, by its cells, that it will be in the new file too.
    """
    format_of(path)
    refuse_a_source(path, sources)
    if not path.exists():
        return
    try:
        rows = read_judged(path)
    except SourceError:
        raise SourceError(f"{path}: is there already and is no export of `semlabel sample`; {_INSTEAD}") from None
    odd = sum(row.problem is not None for row in rows)
    judged = sum(
        row.problem is None and bool(row.cells[JUDGEMENT].strip()) and not comes_back(row.cells) for row in rows
    )
    if odd or judged:
        found = [f"{judged:,} judgements"] * bool(judged) + [f"{odd:,} rows that cannot be read"] * bool(odd)
        raise SourceError(
            f"{path}: holds {' and '.join(found)} that would be lost; import it where that is not done, and {_INSTEAD}"
        )
