"""`semlabel check`: would a run work, what would it do, and what would it cost? Nothing is executed or written."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from semlabel.cli.common import DEFAULT_CONFIG, ConfigOption, JsonOption, project, refuse_missing_base, show, show_json
from semlabel.cli.text import number, size, table
from semlabel.errors import GateBlocked, ModelRefused

if TYPE_CHECKING:
    from semlabel.cli.cost import Inventory
    from semlabel.estimate import Estimate
    from semlabel.past_error import PastError
    from semlabel.settings import Settings
    from semlabel.sources import SourceTable


def check(
    config: ConfigOption = DEFAULT_CONFIG,
    entities_limit: Annotated[
        int | None, typer.Option("--entities-limit", min=0, help="As for `semlabel run`.", metavar="K")
    ] = None,
    workspace: Annotated[
        Path | None, typer.Option("--workspace", help="The workspace.yaml with the pipeline's code.", metavar="FILE")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Check settings, sources, model and disk, and estimate what a run would cost. Executes nothing.

    The exit code is 2 when something cannot work, 1 when more rows would be refused than the settings allow.

    \b
    Example:
      semlabel check --config pipeline.toml
    """
    settings = project(config)
    if settings.scoring.backend == "ray":
        from semlabel.distributed.runtime import require_ray

        require_ray()
    from semlabel.cli.code_location import find_workspace
    from semlabel.cli.cost import Inventory, past_error_of, smaller_profile, speed_of
    from semlabel.labeler_files import promoted_path
    from semlabel.project_files import STAMP
    from semlabel.sample_settings import left_from_sample

    code = find_workspace(settings, workspace)
    inventory = Inventory.read(settings)
    training = promoted_path(settings.paths.labelers) is None
    if settings.shortlist.size and Path(settings.shortlist.encoder).is_absolute():
        from semlabel.shortlist_encoders import rule_of

        rule_of(settings)
    if training:
        refuse_missing_base(settings)
        _refuse_unfit(settings)
    counted = inventory.cost(None, training=training, entities_limit=entities_limit)
    needs_time = counted.parameters is not None and counted.seconds != 0
    result = (
        inventory.cost(speed_of(settings), training=training, entities_limit=entities_limit) if needs_time else counted
    )
    past = None if training else past_error_of(settings, result)
    document = _document(settings, code, inventory, training, result, past)
    # Who wrote the settings without the template chose the numbers.
    if (code.parent / STAMP).exists():
        document["left_from_sample"] = left_from_sample(settings, inventory.entities.digest)
    shortlists = inventory.shortlists(entities_limit)
    if shortlists is not None:
        document["shortlists"] = shortlists
    if json:
        show_json(document)
    else:
        show(_text(document, inventory, result))
        if past:
            show(past.sentence())
        advice = smaller_profile(settings, result) if training else None
        if advice:
            show(advice)
    over = [name for name, found in document["sources"].items() if found["over_limit"]]
    if over:
        limit = settings.sources.max_refused_fraction
        raise GateBlocked(f"{', '.join(over)}: more than {limit:.1%} of the rows would be refused; mend the source")


def _refuse_unfit(settings: "Settings") -> None:
    """Raise ModelRefused, PromptError or SettingsError for what training would refuse, as far as the base model is on
    this disk.
    """
    from semlabel.prompt import Prompt, PromptSpec, load_tokenizer

    base, spec = Path(settings.model.base), PromptSpec.from_settings(settings.prompt)
    if (base / "config.json").is_file():
        from semlabel.models import TRAINING, read_config, refusal
        from semlabel.prompt_length import refuse_too_long

        config = read_config(base)
        problem = refusal(config, TRAINING)
        if problem is not None:
            raise ModelRefused(f"{base}: {problem}")
        refuse_too_long(config, spec, settings.scoring.method, settings.scoring.max_round_tokens)
    if (base / "tokenizer.json").is_file():
        Prompt(spec, load_tokenizer(base))


def _document(
    settings: "Settings",
    code: Path,
    inventory: "Inventory",
    training: bool,
    result: "Estimate",
    past: "PastError | None",
) -> dict[str, Any]:
    import shutil

    folder = next(f for f in (settings.paths.state, *settings.paths.state.parents) if f.exists())
    limit = settings.sources.max_refused_fraction
    sources = {"entities": inventory.entities, "catalog": inventory.catalog, "references": inventory.references}
    return {
        "settings": str(settings.path),
        "workspace": str(code),
        "state": str(settings.paths.state),
        "sources": {name: _source(found, limit) for name, found in sources.items()},
        "model": {"base": settings.model.base, "present": result.parameters is not None},
        "disk_free_bytes": shutil.disk_usage(folder).free,
        "job": "everything" if training else "nightly_labeling",
        "catalog_used": inventory.sizes.candidates,
        "train_entities": inventory.sizes.train,
        "held_out_entities": inventory.sizes.held_out,
        "splits_exact": inventory.splits_exact,
        "found": inventory.findings.to_json(),
        "teacher": asdict(inventory.teacher) if training and inventory.teacher else None,
        "estimate": result.to_json() | {"past_error": past.to_json() if past else None},
    }


def _source(found: "SourceTable", limit: float) -> dict[str, Any]:
    from semlabel.sources import ERASED

    # As in a run: who was erased is refused by decision, and no sign of a broken export.
    refused_rows = [row for row in found.refused if row.reason != ERASED]
    refused = len(refused_rows)
    return {
        "path": found.path,
        "rows": found.rows_in,
        "kept": len(found.frame),
        "refused": refused,
        "erased": len(found.refused) - refused,
        "over_limit": refused > limit * found.rows_in,
        "warnings": list(found.warnings),
        "first_refused": [{"row_id": row.row_id, "reason": row.reason} for row in refused_rows[:10]],
    }


def _text(document: dict[str, Any], inventory: "Inventory", result: "Estimate") -> str:
    sources = document["sources"]
    rows = [
        [name, number(s["rows"]), number(s["kept"]), number(s["refused"]), s["path"]] for name, s in sources.items()
    ]
    lines = [table(["source", "rows", "kept", "refused", "file"], rows, right=(1, 2, 3))]
    for name, found in sources.items():
        lines += [f"  {name}: {warning}" for warning in found["warnings"]]
        lines += [f"  {name}: refused {row['row_id']}: {row['reason']}" for row in found["first_refused"]]
    lines += ["", *inventory.findings.sentences()]
    model = document["model"]
    there = (
        "on this disk"
        if model["present"]
        else "not on this disk; it is fetched from the Hugging Face hub if it is there"
    )
    sizes, about = inventory.sizes, "" if inventory.splits_exact else "about "
    lines += [
        "",
        f"Model:   {model['base']} ({there})",
        f"Disk:    {size(document['disk_free_bytes'])} free; state in {document['state']}",
        f"Splits:  {about}{sizes.train:,} entities train, {about}{sizes.held_out:,} are held out; "
        f"{sizes.candidates:,} candidates",
        *([_shortlists(document["shortlists"])] if "shortlists" in document else []),
        f"Would run: {document['job']}",
    ]
    if document["teacher"] and inventory.teacher:
        lines.append(inventory.teacher.sentence())
    work = [
        [w.stage, number(w.pairs), number(w.tokens), _seconds(result.seconds_of(w))] for w in result.work if w.pairs
    ]
    if work:
        lines += ["", table(["work", "pairs", "tokens", "time"], work, right=(1, 2, 3))]
    advice = list(inventory.findings.advice)
    if document.get("left_from_sample"):
        from semlabel.sample_settings import sentence

        advice.append(sentence(document["left_from_sample"]))
    if advice:
        lines += ["", "Look at:", *[f"  - {line}" for line in advice]]
    return "\n".join([*lines, "", result.sentence()])


def _shortlists(found: dict[str, Any]) -> str:
    return (
        f"Shortlists: {found['size']:,} candidates an entity ({found['encoder']}): of {found['pairs']:,} pairs "
        f"{found['predicted']:,} are predicted, {found['not_shortlisted']:,} count as NO; "
        f"{found['scored_to_judge']:,} of these are scored to judge by"
    )


def _seconds(seconds: float | None) -> str:
    from semlabel.estimate import duration

    return "-" if seconds is None else duration(seconds)
