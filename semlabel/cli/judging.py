"""`semlabel sample` and `semlabel judgements import`: pairs out to people, and their judgements back.

Knows options and words; which pairs are picked and what a judgement is good for stands in `semlabel.judging`.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from semlabel.cli.common import (
    DEFAULT_CONFIG,
    ConfigOption,
    JsonOption,
    command_for,
    operations_of,
    project,
    say,
    show,
    show_json,
    started_operations,
)
from semlabel.cli.text import number, table
from semlabel.errors import SettingsError

if TYPE_CHECKING:
    from semlabel.judging.importing import Import
    from semlabel.judging.sample import SampledPair
    from semlabel.settings import Settings

SPLITS = ("train", "calibrate", "certify", "test")
_REFUSED_SHOWN = 20
_PROVE = "sample --random --split calibrate --split certify --split test --out prove.csv"

group = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False, no_args_is_help=True)


@group.callback()
def judgements() -> None:
    """What people decided about exported pairs, back into the project.

    \b
    Example:
      semlabel judgements import judge.csv
    """


def sample(
    out: Annotated[Path, typer.Option("--out", help="The file to write: .csv, or .json for Label Studio.")],
    count: Annotated[int, typer.Option("--count", min=1, help="How many pairs.")] = 200,
    random: Annotated[bool, typer.Option("--random", help="Pick by chance, to prove; not to teach.")] = False,
    split: Annotated[
        list[str] | None,
        typer.Option("--split", help="Of which entities; may be repeated.", metavar="|".join(SPLITS)),
    ] = None,
    config: ConfigOption = DEFAULT_CONFIG,
    json: JsonOption = False,
) -> None:
    """Export pairs for people to judge, with their texts and what the labeler says of them.

    Without --random the pairs that teach most: a third where the labeler disagrees with the reference labels, a third
    of candidates that few references know, the rest near the threshold. All of train entities, and good for training
    only: who picks by margin has picked the errors. Where no labeler has labeled yet, before a first run too, they are
    drawn by chance: a third each of the entities most similar to a candidate, of the next, and of the rest.

    With --random pairs by chance, of certify entities unless --split says otherwise; each carries its exact inclusion
    probability, and they may calibrate and certify. The next random export goes on where the imported judgements end;
    one that is not imported yet comes again.

    Fill in the column `judgement` with yes or no and give the file to `semlabel judgements import`. An export that
    nobody has judged in may be replaced by another one; no other file is. The warehouse is only read, and not while a
    run holds it. The file holds people's texts, and an erasure cannot reach it.

    \b
    Examples:
      semlabel sample --count 200 --out judge.csv
      semlabel sample --random --count 1000 --split certify --out label-studio.json
    """
    from semlabel.judging.files import format_of, write_export
    from semlabel.judging.replacing import refuse_to_replace
    from semlabel.judging.sample import sample_active, sample_random
    from semlabel.judging.store import STRATIFIED

    splits = _splits(split, random)
    format_of(out)
    settings = project(config)
    refuse_to_replace(out, settings.sources)
    operations = operations_of(settings)
    rows = sample_random(settings, operations, count, splits) if random else sample_active(settings, operations, count)
    write_export(out, rows)
    document = _sample_document(out, rows)
    if json:
        show_json(document)
        return
    show(f"{len(rows):,} pairs to judge in {out}")
    show(table(["design", "pairs"], [[name, number(pairs)] for name, pairs in document["designs"].items()], right=(1,)))
    if len(rows) < count:
        say(f"asked for {count:,}; there are no more")
    if STRATIFIED in document["designs"]:
        say(
            "no labeler has labeled here yet: the pairs are of train entities, more of them where texts are alike; "
            f"they teach. For pairs that prove: {command_for(settings, _PROVE)}"
        )
    if settings.sources.judgements is None:
        say('before you import: set [sources] judgements = "judgements.csv", where imports are kept')
    say(f"next: fill in `judgement` with yes or no, then {command_for(settings, f'judgements import {out}')}")


@group.command("import", short_help="Take over a judged file.")
def import_(
    file: Annotated[Path, typer.Argument(help="A judged CSV, or Label Studio's JSON or JSON-MIN export.")],
    config: ConfigOption = DEFAULT_CONFIG,
    json: JsonOption = False,
) -> None:
    """Add the judgements of an export to the file that `[sources] judgements` names; the next run uses them.

    A row is refused, with its reason, when its pair is unknown, a text has changed since the export, the judgement is
    neither yes nor no, or it was imported before: the same file again changes nothing. Rows that nobody has judged
    yet are skipped. The exit code is 1 when more rows are faulty than [sources] max_refused_fraction allows.

    \b
    Example:
      semlabel judgements import judge.csv
    """
    from semlabel.judging.importing import import_judgements
    from semlabel.judging.store import judgements_path

    settings = project(config)
    judgements_path(settings)  # before anything is made
    done = import_judgements(file, settings, started_operations(settings))
    if json:
        show_json(_import_document(done))
    else:
        _show_import(done, settings)
    raise typer.Exit(1 if done.faulty > settings.sources.max_refused_fraction * done.rows_in else 0)


def _splits(given: list[str] | None, random: bool) -> list[str]:
    for name in given or []:
        if name not in SPLITS:
            raise SettingsError(f"--split is {name!r}; expected one of {', '.join(SPLITS)}")
    splits = list(dict.fromkeys(given or (["certify"] if random else ["train"])))
    if not random and splits != ["train"]:
        raise SettingsError(
            f"--split {splits[0]}: pairs that the labeler picks may train but never calibrate, certify or test; "
            "add --random, or leave --split out"
        )
    return splits


def _sample_document(out: Path, rows: "list[SampledPair]") -> dict[str, Any]:
    designs = [row.design for row in rows]
    probabilities = {row.inclusion_probability for row in rows} - {None}
    return {
        "out": str(out),
        "pairs": len(rows),
        "designs": {name: designs.count(name) for name in sorted(set(designs))},
        # Of a random export, where it is one number for every pair.
        "inclusion_probability": next(iter(probabilities)) if len(probabilities) == 1 else None,
    }


def _import_document(done: "Import") -> dict[str, Any]:
    refused = [{"row_id": row.row_id, "reason": row.reason} for row in done.refused]
    return {
        "rows_in": done.rows_in,
        "imported": len(done.imported),
        "refused": len(refused),
        "reasons": done.reasons,
        "refused_rows": refused,
    }


def _show_import(done: "Import", settings: "Settings") -> None:
    show(
        f"{done.rows_in:,} rows: {len(done.imported):,} judgements imported into {settings.sources.judgements}, "
        f"{len(done.refused):,} refused"
    )
    if done.reasons:
        show(table(["reason", "rows"], [[name, number(count)] for name, count in done.reasons.items()], right=(1,)))
    for row in done.refused[:_REFUSED_SHOWN]:
        say(f"refused: {row.row_id}: {row.reason}")
    if len(done.refused) > _REFUSED_SHOWN:
        say(f"refused: and {len(done.refused) - _REFUSED_SHOWN:,} more (all with --json)")
    if done.imported:
        say(f"next: {command_for(settings, 'check')} says what is still too thin; then {command_for(settings, 'run')}")
