"""What the assets show of themselves: column schemas, small tables, small plots, plain numbers.

Knows nothing of any asset's logic. The event log keeps every piece of metadata of every run for ever, so everything
here is small: at most 50 rows of a table, 120 characters of a text, one image below 60 kB a plot.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import dagster as dg

if TYPE_CHECKING:
    from resources.project import Step
    from semlabel.sources import RefusedRow

MAX_ROWS = 50
_MAX_TEXT = 120


def _schema(**columns: str) -> dg.TableSchema:
    """`name="type: description"` for every column."""
    parts = {name: told.partition(": ") for name, told in columns.items()}
    return dg.TableSchema(
        columns=[dg.TableColumn(name, type=kind, description=text) for name, (kind, _, text) in parts.items()]
    )


ENTITIES = _schema(
    entity_id="text: as in the source, byte for byte",
    text="text: as in the source, or as it came online since",
    text_id="text: sha256 of the text's UTF-8 bytes",
    text_version="text: the version of the text, from where the text is",
    split="text: train, calibrate, certify, test, or empty when left out",
    group_id="integer: near-duplicates share one",
    query_tokens="integer: tokens of the query that is scored",
    truncated="boolean: the text was cut to fit the query",
)
CATALOG = _schema(
    candidate_id="text: as in the source, byte for byte",
    text="text: as in the source",
    text_id="text: sha256 of the text's UTF-8 bytes",
    group="text: candidates of one group are hard negatives of each other",
    item_tokens="integer: tokens of the item that is scored",
    certified="boolean: the promoted labeler was certified with this candidate",
)
REFERENCE_LABELS = _schema(
    entity_id="text: an id of `entities`",
    candidate_id="text: an id of the catalog's source",
    label="boolean: what a person or a teacher decided",
    design="text: reference, or how a judged pair was picked: random, stratified, active:..., teacher",
    inclusion_probability="double: how likely a pair drawn by chance was to be drawn",
)
TRAINING_PAIRS = _schema(
    entity_id="text: an entity of the train split",
    candidate_id="text: an id of `catalog`",
    label="boolean: the reference label",
    split="text: always train",
    kind="text: positive, hard, random or listed",
)
PREDICTIONS = _schema(
    entity_id="text: an id of `entities`",
    candidate_id="text: an id of `catalog`",
    margin="float32: logit(yes) - logit(no)",
    probability="float64: calibrated from the margin",
    label="boolean: margin >= threshold",
    threshold="float64: tau of the labeler, in margin units",
    labeler_digest="text: the labeler that decided",
    scored_at="timestamp: when the margin was computed, UTC",
    run_id="text: the run that computed it",
    certified="boolean: the labeler was certified with this candidate",
    truncated="boolean: the entity's text was cut",
)
PUBLISHED = dg.TableSchema(
    columns=[
        *PREDICTIONS.columns,
        *_schema(split="text: train where the labeler may have learnt from the entity; no evidence there").columns,
    ]
)


def materialized(digest: str, rows: int | None = None, **metadata: Any) -> dg.MaterializeResult:
    """What an asset hands to Dagster: its content digest as data version, a table's row count, and the rest."""
    count = {} if rows is None else {"dagster/row_count": int(rows)}
    return dg.MaterializeResult(
        metadata={**count, "content_digest": digest, **plain(metadata)},
        data_version=dg.DataVersion(digest),
    )


def number(value: Any) -> Any:
    """A numpy scalar as the plain Python number it holds; anything else unchanged."""
    return value.item() if hasattr(value, "item") else value


def plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Metadata values without numpy scalars and without entries that are None."""
    return {name: number(value) for name, value in values.items() if value is not None}


def table(rows: Iterable[Mapping[str, Any]]) -> dg.TableMetadataValue:
    """At most 50 rows as a table, texts cut; columns of the first row."""
    records = [{str(key): _cell(value) for key, value in row.items()} for row in islice(rows, MAX_ROWS)]
    columns = list(records[0]) if records else ["nothing"]
    schema = dg.TableSchema(columns=[dg.TableColumn(name, type="text") for name in columns])
    return dg.MetadataValue.table(
        [dg.TableRecord({name: row.get(name) for name in columns}) for row in records], schema
    )


def listed(texts: Sequence[str]) -> dg.MarkdownMetadataValue | None:
    """At most 50 sentences as a Markdown list that shows them as they are; None when there are none."""
    return dg.MetadataValue.md("\n".join(f"- `{_cell(text)}`" for text in texts[:MAX_ROWS])) if texts else None


def refusals(rows: "Sequence[RefusedRow]") -> dg.TableMetadataValue | None:
    """The first refused rows of a source with their reasons; None when there are none."""
    return table([{"row_id": row.row_id, "reason": row.reason} for row in rows[:MAX_ROWS]]) if rows else None


def image(png: bytes, alternative: str) -> dg.MarkdownMetadataValue:
    """A small PNG that travels inside the metadata itself."""
    from semlabel.report import inline_image

    return dg.MetadataValue.md(inline_image(png, alternative))


def report(step: "Step") -> dg.MetadataValue[Any]:
    """Where the HTML report of this run is, or will be when the run is over: an address where one is set."""
    from semlabel.alert_text import report_link
    from semlabel.html_report import report_path

    if step.settings.alerts.reports_url:
        return dg.MetadataValue.url(report_link(step.run_id, step.settings))
    return dg.MetadataValue.path(report_path(step.settings, step.run_id))


def _cell(value: Any) -> Any:
    value = number(value)
    if value is None or isinstance(value, bool | int | float):
        return value
    text = str(value)
    return text if len(text) <= _MAX_TEXT else text[: _MAX_TEXT - 1] + "…"
