"""`semlabel teacher`: an export of pairs, judged by a large model behind an OpenAI-compatible endpoint.

Knows options, the estimate and the cap; what is asked and how stands in `semlabel.teacher`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from semlabel.cli.common import DEFAULT_CONFIG, ConfigOption, JsonOption, command_for, project, say, show, show_json
from semlabel.errors import SettingsError

if TYPE_CHECKING:
    from semlabel.settings import Settings
    from semlabel.teacher import Teacher


def teacher(
    export: Annotated[Path, typer.Argument(help="A CSV that `semlabel sample` wrote.", metavar="FILE")],
    out: Annotated[Path, typer.Option("--out", help="The judged CSV to write.", metavar="FILE")],
    model: Annotated[str, typer.Option("--model", help="The model's name at the endpoint.")],
    max_cost: Annotated[
        float, typer.Option("--max-cost", min=0, help="Refuse to begin above this estimate, and stop there.")
    ],
    price_in: Annotated[float, typer.Option("--price-in", min=0, help="Price of a million tokens sent.")],
    price_out: Annotated[float, typer.Option("--price-out", min=0, help="Price of a million tokens received.")],
    concurrency: Annotated[int, typer.Option("--concurrency", min=1, max=64, help="Requests at once.")] = 8,
    retries: Annotated[int, typer.Option("--retries", min=0, max=20, help="Per request, with growing pauses.")] = 5,
    timeout: Annotated[float, typer.Option("--timeout", min=1, help="Seconds for one answer.")] = 60.0,
    estimate_only: Annotated[bool, typer.Option("--estimate", help="Say what it would cost and stop.")] = False,
    config: ConfigOption = DEFAULT_CONFIG,
    json: JsonOption = False,
) -> None:
    """Let a large model judge exported pairs. This sends their texts to the endpoint you name.

    OPENAI_BASE_URL and OPENAI_API_KEY in the environment say where; nothing is sent without both. The question is that
    of `[prompt] template`. What it answers goes into the column `judgement`; import it as people's. It can only teach:
    pairs that were drawn by chance are left blank for people, because they prove. Answers are cached by what was asked,
    so the same call again costs nothing. A file that holds other judgements than these answers is not replaced. The
    exit code is 1 when something was not answered.

    \b
    Example:
      semlabel teacher judge.csv --out judged.csv --model my-model --price-in 0.5 --price-out 1.5 --max-cost 2
    """
    from semlabel import teacher as asking

    settings = project(config)
    found = asking.read_export(export, settings.prompt.template, model)
    client = None if estimate_only else asking.connect(retries, timeout)
    asked = asking.Teacher(client, model, settings.paths.state / "teacher")
    price = asking.Price(price_in, price_out)
    new = [question for question in found.questions if asked.known(question) is None]
    cost = price.of(*asking.estimate(new))
    say(
        f"{len(found.questions):,} pairs to judge, {len(found.questions) - len(new):,} answered before; "
        f"about {sum(asking.estimate(new)):,.0f} tokens, {cost:.4g}; {found.judged:,} rows are judged already, "
        f"{found.for_people:,} were drawn by chance and are left for people"
    )
    if estimate_only:
        return
    _refuse_to_replace(out, export, settings, asked)
    if cost > max_cost:
        raise SettingsError(f"about {cost:.4g} is above --max-cost {max_cost:g}; export fewer pairs or raise it")
    taught = asked.ask(
        found.questions,
        concurrency,
        lambda so_far: price.of(so_far.tokens_in, so_far.tokens_out) < max_cost or cost == 0,
    )
    asking.write_judged(out, found, taught.answers)
    counted = ("unsure", "refused", "failed", "not_asked", "cached", "unreported")
    document: dict[str, Any] = {
        "out": str(out),
        "answered": len(taught.answers),
        **{name: getattr(taught, name) for name in counted},
        "left_for_people": found.for_people,
        "tokens_in": taught.tokens_in,
        "tokens_out": taught.tokens_out,
        "cost": price.of(taught.tokens_in, taught.tokens_out),
    }
    if json:
        show_json(document)
    else:
        show(
            f"{out}: {len(taught.answers):,} answered, {taught.unsure:,} unsure, {taught.refused:,} refused, "
            f"{taught.failed:,} failed, {taught.not_asked:,} not asked; cost {document['cost']:.4g}"
        )
        show(f"Next: {command_for(settings, f'judgements import {out}')}")
    if taught.unreported:
        say(f"{taught.unreported:,} answers came without what they used: their cost is estimated")
    if taught.first_failure:
        say(f"first failure: {taught.first_failure}")
    raise typer.Exit(1 if taught.failed or taught.not_asked else 0)


def _refuse_to_replace(out: Path, export: Path, settings: "Settings", asked: "Teacher") -> None:
    """Raise SourceError where `out` holds more than earlier answers and rows that are judged in the export too."""
    from semlabel.judging.files import read_judged
    from semlabel.judging.replacing import refuse_to_replace

    stays = {frozenset(row.cells.items()) for row in read_judged(export)}

    def comes_back(cells: Mapping[str, str]) -> bool:
        return frozenset(cells.items()) in stays or asked.repeats(cells, settings.prompt.template)

    refuse_to_replace(out, settings.sources, comes_back)
