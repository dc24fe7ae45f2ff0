"""`semlabel score` and `semlabel label`: a labeler directory put to work on texts or files, without a project.

Both use the same loading, decision rule and probability map as the pipeline; neither touches a warehouse.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from semlabel.cli.common import DEFAULT_CONFIG, ConfigOption, JsonOption, say, show, show_json
from semlabel.errors import SourceError

if TYPE_CHECKING:
    import pyarrow as pa

    from semlabel.labeler import Labeler
    from semlabel.settings import Settings
    from semlabel.sources import SourceTable

LabelerOption = Annotated[
    Path, typer.Option("--labeler", help="A labeler directory, for example run/labelers/current.", metavar="DIR")
]
DeviceOption = Annotated[str, typer.Option("--device", help="auto, cpu or cuda.")]
MethodOption = Annotated[
    str, typer.Option("--method", help="auto, mis, prefix_cache or independent; the same margins, auto is the fastest.")
]


def score(
    labeler: LabelerOption,
    query: Annotated[str | None, typer.Option("--query", help="The entity's text.", metavar="TEXT")] = None,
    query_file: Annotated[
        Path | None, typer.Option("--query-file", help="A file with the entity's text; - reads stdin.", metavar="FILE")
    ] = None,
    item: Annotated[
        list[str] | None, typer.Option("--item", help="A candidate's text; may be repeated.", metavar="TEXT")
    ] = None,
    items_file: Annotated[
        Path | None, typer.Option("--items-file", help="A file with one candidate text per line.", metavar="FILE")
    ] = None,
    device: DeviceOption = "auto",
    method: MethodOption = "auto",
    json: JsonOption = False,
) -> None:
    """Score one entity's text against candidate texts; prints JSON.

    The output is a list with item, margin, probability and label for every candidate, in the order given. Probability
    and label are null for a labeler that has no calibration or no threshold; label also for one that decides with
    shortlists.

    \b
    Example:
      semlabel score --labeler run/labelers/current \\
        --query "Baker. Mixes dough and bakes bread." --item "Mix ingredients to create dough." --item "Fly aircraft."
    """
    if (query is None) == (query_file is None):
        raise SourceError("expected the entity's text once: with --query TEXT or with --query-file FILE")
    if item is None and items_file is None:
        raise SourceError("expected candidates: with --item TEXT (repeated) or with --items-file FILE")
    text = query if query is not None else _read_text(query_file)
    items = [*(item or []), *(_lines(items_file) if items_file else [])]
    show_json(_scored(_load(labeler, device, method), text, items))


def label(
    labeler: LabelerOption,
    entities: Annotated[str, typer.Option("--entities", help="A table with entity_id and text.", metavar="FILE")],
    catalog: Annotated[str, typer.Option("--catalog", help="A table with candidate_id and text.", metavar="FILE")],
    out: Annotated[Path, typer.Option("--out", help="The Parquet file to write.", metavar="FILE")],
    config: ConfigOption = DEFAULT_CONFIG,
    device: DeviceOption = "auto",
    method: MethodOption = "auto",
    json: JsonOption = False,
) -> None:
    """Label every entity of a file with every candidate of another; writes one Parquet file.

    For one-off work: nothing is stored, gated or published. Files are read as in a project (CSV, TSV, JSONL, Parquet
    or duckdb:PATH#SQL); --config gives their column names where they differ. The file appears when it is complete.

    \b
    Example:
      semlabel label --labeler run/labelers/current --entities new.csv --catalog catalog.csv --out labels.parquet
    """
    from semlabel.manifest import read_manifest
    from semlabel.source_watch import refuse_a_source
    from semlabel.sources import read_catalog, read_entities

    settings = _file_settings(entities, catalog, config)
    refuse_a_source(out, settings.sources)
    people, candidates = read_entities(settings), read_catalog(settings)
    refused = _report_refused(people, candidates)
    read_manifest(labeler).refuse_without_shortlist()
    loaded = _load(labeler, device, method)
    problems = loaded.prompt.item_problems(list(candidates.frame["text"]))
    fits = [problem is None for problem in problems]
    for candidate_id, problem in zip(candidates.frame["candidate_id"], problems, strict=True):
        if problem is not None:
            say(f"refused: catalog {candidate_id}: {problem}")
    rows = _write(loaded, people, candidates.frame[fits], out)
    refused += len(fits) - sum(fits)
    summary = {"rows": rows, "refused": refused, "out": str(out), "labeler_digest": loaded.digest}
    if json:
        show_json(summary)
    else:
        show(f"{rows:,} rows in {out}; {refused:,} source rows refused")
    limit = settings.sources.max_refused_fraction * (people.rows_in + candidates.rows_in)
    raise typer.Exit(1 if refused > limit else 0)


def _load(path: Path, device: str, method: str) -> "Labeler":
    from semlabel.labeler import Labeler
    from semlabel.manifest import read_manifest

    read_manifest(path)  # a wrong directory is said at once, before torch is imported
    from transformers.utils import logging

    logging.disable_progress_bar()  # it would stand between the lines of stderr
    return Labeler.load(path, device=device, method=method)


def _scored(labeler: "Labeler", text: str, items: list[str]) -> list[dict[str, Any]]:
    from semlabel.decision import decide

    margins = labeler.score(text, items)
    calibrated = labeler.manifest.calibration is not None
    probabilities = labeler.probabilities(margins).tolist() if calibrated else [None] * len(items)
    decides = labeler.threshold is not None and labeler.manifest.shortlist is None
    labels = decide(margins, labeler.threshold).tolist() if decides else [None] * len(items)
    return [
        {"item": item, "margin": float(margin), "probability": probability, "label": decided}
        for item, margin, probability, decided in zip(items, margins, probabilities, labels, strict=True)
    ]


def _read_text(path: Path | None) -> str:
    assert path is not None
    try:
        content = sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()
        text = content.decode("utf-8-sig")
    except OSError as error:
        raise SourceError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise SourceError(f"{path}: not UTF-8 at byte {error.start}; save it as UTF-8") from None
    return text.removesuffix("\n").removesuffix("\r")


def _lines(path: Path) -> list[str]:
    # Not splitlines: a form feed or U+2028 inside a text is no end of a line.
    text = _read_text(path)
    return [line.removesuffix("\r") for line in text.split("\n")] if text else []


def _file_settings(entities: str, catalog: str, config: Path) -> "Settings":
    """Settings that read these two files, with the column names of `config` where there is one."""
    from semlabel.cli.common import project
    from semlabel.settings import Settings
    from semlabel.settings_file import anchored

    sources: dict[str, Any] = {}
    if config.exists() or config != DEFAULT_CONFIG:
        found = project(config).sources
        sources = {
            "columns": found.columns.model_dump(exclude_unset=True),
            "max_refused_fraction": found.max_refused_fraction,
        }
    here = Path.cwd()
    sources |= {"entities": anchored(entities, here), "catalog": anchored(catalog, here), "references": "unused"}
    return Settings.model_validate(
        {
            "sources": sources,
            "model": {"base": "unused"},
            "prompt": {"template": "{entity}{candidate}"},
            "calibration": {"min_precision": 0.5},
        }
    )


def _report_refused(*tables: "SourceTable") -> int:
    for found in tables:
        for warning in found.warnings:
            say(f"note: {found.path}: {warning}")
        for row in found.refused[:20]:
            say(f"refused: {row.source} {row.row_id}: {row.reason}")
        if len(found.refused) > 20:
            say(f"refused: and {len(found.refused) - 20:,} more of {found.path}")
    return sum(len(found.refused) for found in tables)


def _write(labeler: "Labeler", people: "SourceTable", candidates: Any, out: Path) -> int:
    """Write the table entity by entity to a hidden file beside `out`, then put it in place. Returns its rows."""
    import pyarrow.parquet as pq

    hidden = out.with_name(f".{out.name}.part")
    rows = 0
    try:
        with pq.ParquetWriter(hidden, _schema(), compression="zstd") as writer:
            for batch in _batches(labeler, people, candidates):
                writer.write_table(batch)
                rows += batch.num_rows
        hidden.replace(out)
    except OSError as error:
        raise SourceError(f"{out}: cannot be written: {error.strerror or error}") from None
    finally:
        hidden.unlink(missing_ok=True)
    return rows


def _schema() -> "pa.Schema":
    import pyarrow as pa

    return pa.schema(
        [
            pa.field("entity_id", pa.string(), nullable=False),
            pa.field("candidate_id", pa.string(), nullable=False),
            pa.field("margin", pa.float32(), nullable=False),
            pa.field("probability", pa.float64()),
            pa.field("label", pa.bool_()),
            pa.field("threshold", pa.float64()),
            pa.field("labeler_digest", pa.string(), nullable=False),
            pa.field("truncated", pa.bool_(), nullable=False),
        ]
    )


def _batches(labeler: "Labeler", people: "SourceTable", candidates: Any) -> Iterator["pa.Table"]:
    import pyarrow as pa

    from semlabel.frames import scored

    ids, texts = list(candidates["candidate_id"]), list(candidates["text"])
    total, count = len(people.frame), len(ids)
    entities = scored(labeler, list(people.frame["entity_id"]), list(people.frame["text"]), texts)
    for done, one in enumerate(entities, start=1):
        columns: dict[str, Any] = {
            "entity_id": [one.entity_id] * count,
            "candidate_id": ids,
            "margin": one.margins,
            "probability": [None] * count if one.probabilities is None else one.probabilities,
            "label": [None] * count if one.labels is None else one.labels,
            "threshold": [labeler.threshold] * count,
            "labeler_digest": [labeler.digest] * count,
            "truncated": [one.truncated] * count,
        }
        yield pa.table(columns, schema=_schema())
        if done % 20 == 0 or done == total:
            say(f"{done:,} of {total:,} entities")
