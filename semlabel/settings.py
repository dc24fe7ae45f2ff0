"""What `pipeline.toml` can say: every setting with its type, default and limits, and where a project keeps its state.

Knows nothing of how settings are used. A wrong setting is one line that names the file, what was found and what is
valid. Numbers that are counts are whole numbers; shares lie between 0 and 1; margins are in logits.
"""

import zoneinfo
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import (
    Field,
    PrivateAttr,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from semlabel.errors import SettingsError
from semlabel.paths import Paths
from semlabel.settings_alerts import Alerts
from semlabel.settings_cron import check_cron
from semlabel.settings_file import environment_overrides, merge, read_merged
from semlabel.settings_section import (
    Count,
    InnerShare,
    NonEmpty,
    NotNegative,
    Positive,
    Section,
    Share,
    WebAddress,
    written_as,
)
from semlabel.settings_words import explained, nearest, wants_text

_DAGSTER_HOME = "dagster"

SourceName = Literal["entities", "catalog", "references"]
LOGICAL_COLUMNS: dict[str, tuple[str, ...]] = {
    "entities": ("entity_id", "text", "text_version"),
    "catalog": ("candidate_id", "text", "group"),
    "references": ("entity_id", "candidate_id", "label"),
}


class Columns(Section):
    """Column names in the files, by what they hold here. A table per file wins over the names given for all files.

    `candidate_text` and `candidate_group` are the catalog's `text` and `group` where the files share these keys.
    """

    entity_id: NonEmpty = "entity_id"
    text: NonEmpty = "text"
    text_version: NonEmpty = "text_version"
    candidate_id: NonEmpty = "candidate_id"
    candidate_text: NonEmpty | None = None
    candidate_group: NonEmpty = "group"
    label: NonEmpty = "label"
    entities: dict[str, NonEmpty] = {}
    catalog: dict[str, NonEmpty] = {}
    references: dict[str, NonEmpty] = {}

    @model_validator(mode="after")
    def _known_names(self) -> Self:
        for source, known in LOGICAL_COLUMNS.items():
            for name in getattr(self, source):
                if name not in known:
                    raise ValueError(f'unknown column "{name}" of {source}; {nearest(name, known)}')
        return self


class Sources(Section):
    """Where the tables come from and what a pair means that no reference lists.

    `entities`, `catalog`, `references`: a CSV, TSV, JSONL or Parquet file, or `duckdb:PATH#SQL`. `references` may be
    left out, or "", while nobody has judged anything; `unlisted` is "unknown" then. `catalog_top` labels
    only the candidates used by most train entities (0: all); the others are still learned from. The fractions are
    shares of rows. `judgements`: the CSV file that `semlabel judgements import` adds to; it need not be there yet.
    """

    entities: NonEmpty
    catalog: NonEmpty
    references: NonEmpty | None = None
    judgements: NonEmpty | None = None
    columns: Columns = Columns()
    unlisted: Literal["negative", "unknown"] = "negative"
    catalog_top: Count = 0
    max_refused_fraction: Share = 0.01
    max_reference_problem_fraction: Share = 0.05

    @field_validator("judgements")
    @classmethod
    def _a_csv_of_its_own(cls, judgements: str | None, known: ValidationInfo) -> str | None:
        if judgements is not None and Path(judgements).suffix.lower() != ".csv":
            raise ValueError(f'is "{judgements}"; expected a CSV file, which imports write')
        if judgements is not None and judgements in known.data.values():
            raise ValueError("is a file that people write; name another one, which imports write")
        return judgements

    @model_validator(mode="after")
    def _silence_is_no_reference(self) -> Self:
        if self.references is None and self.unlisted == "negative":
            raise ValueError(
                'names no references, and unlisted = "negative" would make a NO of every pair: name them, or set '
                'unlisted = "unknown" and ask people (`semlabel sample`)'
            )
        return self

    def columns_for(self, source: SourceName) -> dict[str, str]:
        """{logical name: column in the file} of one source."""
        given = self.columns
        names = {name: getattr(given, name, name) for name in LOGICAL_COLUMNS[source]}
        if source == "catalog":
            names |= {"text": given.candidate_text or given.text, "group": given.candidate_group}
        return names | getattr(given, source)


class Splits(Section):
    """Sizes of the held-out splits: whole numbers are entities, numbers below 1 shares of the entities that are split
    (those that references or judgements name, or all where there are no references yet).

    Who has a split keeps it: sizes and `seed` decide about new entities only.
    """

    calibrate: int | float = 0.1
    certify: int | float = 0.15
    test: int | float = 0.1
    seed: int = 7

    @field_validator("calibrate", "certify", "test")
    @classmethod
    def _entities_or_share(cls, size: int | float) -> int | float:
        if size <= 0 or (isinstance(size, float) and size >= 1):
            raise ValueError(f"is {size}; expected a whole number of entities from 1, or a share between 0 and 1")
        return size

    @model_validator(mode="after")
    def _leave_something_to_train_on(self) -> Self:
        shares = sum(size for size in (self.calibrate, self.certify, self.test) if isinstance(size, float))
        if shares >= 1:
            raise ValueError(f"the shares of calibrate, certify and test add up to {shares:g}; leave some for training")
        return self


class Model(Section):
    """The base model: a folder (absolute once loaded) or a name on the Hugging Face hub."""

    base: NonEmpty
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    device: NonEmpty = "auto"

    @property
    def name(self) -> str:
        """The base model's name as people know it: the hub's name, or the last part of the folder."""
        return Path(self.base).name if Path(self.base).is_absolute() else self.base


class Prompt(Section):
    """The prompt. Limits are tokens of one query and of one item. `readout_token` unset: the end-of-text token."""

    template: NonEmpty
    format: Literal["readout", "chat"] = "readout"
    yes: NonEmpty = "Yes"
    no: NonEmpty = "No"
    readout_token: NonEmpty | None = None
    max_query_tokens: Positive = 256
    max_item_tokens: Positive = 64

    @field_validator("template")
    @classmethod
    def _has_both_slots(cls, template: str) -> str:
        for slot in ("{entity}", "{candidate}"):
            if template.count(slot) != 1:
                raise ValueError(f"has {slot} {template.count(slot)} times; it must stand in it exactly once")
        if template.index("{entity}") > template.index("{candidate}"):
            raise ValueError("has {candidate} before {entity}; what the items share must come first")
        return template

    @model_validator(mode="after")
    def _answers_differ(self) -> Self:
        if self.yes == self.no:
            raise ValueError(f'yes and no are both "{self.yes}"; they must differ')
        return self


class Training(Section):
    """Fine-tuning. `items_per_round` is train items per entity, `positive_fraction` the most of them that are YES,
    `hard_fraction` the share of hard ones among the negatives, `rounds_per_step` entities per optimiser step.
    `max_pairs` 0: all pairs; `max_query_tokens` 0: the prompt's. `lanes` are the entities of a step that are computed
    at once on a CPU, each with its share of the threads and gradients of its own (0: two, where there are two threads).
    """

    method: Literal["full", "lora"] = "full"
    learning_rate: Annotated[float, Field(gt=0)] = 2e-4
    warmup_fraction: Share = 0.1
    epochs: Annotated[float, Field(gt=0)] = 1.0
    items_per_round: Positive = 40
    positive_fraction: InnerShare = 0.25
    hard_fraction: Share = 0.5
    rounds_per_step: Positive = 1
    max_pairs: Count = 0
    seed: int = 7
    lora_rank: Positive = 16
    lora_alpha: Annotated[float, Field(gt=0)] = 32.0
    weight_decay: NotNegative = 0.0
    save_every_steps: Positive = 50
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    max_query_tokens: Count = 0
    lanes: Count = 0


class Calibration(Section):
    """The policy a threshold must be shown to keep, and how it is searched for."""

    confidence: Annotated[float, Field(gt=0.5, lt=1)] = 0.95
    min_precision: InnerShare | None = None
    max_fpr: InnerShare | None = None
    max_fnr: InnerShare | None = None
    cuts: Positive = 20
    min_expected_flagged: Positive = 25

    @model_validator(mode="after")
    def _promises_something(self) -> Self:
        if self.min_precision is None and self.max_fpr is None and self.max_fnr is None:
            raise ValueError("promises nothing: set at least one of min_precision, max_fpr, max_fnr")
        return self


class Gates(Section):
    """Limits of the gates. Tolerances are margins (logits); fractions and points are shares between 0 and 1.

    `drift_false_alarms` bounds the false alarms of the two drift gates together in a year of stable nights. A move that
    is no chance warns when it also matters: a candidate's share of YES by `drift_points`, the labels of all candidates
    by `drift_labels` of what they were, a share of `data_drift` by `quality_points`, text lengths by `quality_length`.
    """

    min_auc: Share = 0.9
    min_average_precision_ratio: NotNegative = 1.0
    parity_pairs: Positive = 200
    order_pairs: Positive = 1000
    parity_tolerance_fp32: NotNegative = 1e-3
    parity_tolerance_bf16: NotNegative = 0.25
    max_label_flips_fp32: Share = 0.01
    max_label_flips_bf16: Share = 0.05
    max_truncated_fraction: Share = 0.2
    max_removed_fraction: Share = 0.05
    max_candidate_flip_fraction: Share = 0.5
    drift_points: Share = 0.005
    drift_labels: Share = 0.01
    drift_false_alarms: Annotated[float, Field(gt=0, le=100)] = 1.0
    quality_points: Share = 0.02
    quality_length: NotNegative = 0.1
    min_entities: Positive = 1
    min_candidates: Positive = 1

    def parity_tolerance(self, precision: str) -> float:
        """How far a margin may be from what another shape of the same computation gives in this precision."""
        return self.parity_tolerance_fp32 if precision == "fp32" else self.parity_tolerance_bf16

    def max_label_flips(self, precision: str) -> float:
        """Labels that such moves may change at the threshold, as a share of what is YES either way."""
        return self.max_label_flips_fp32 if precision == "fp32" else self.max_label_flips_bf16


class Scoring(Section):
    """How margins are computed. `max_pairs` caps the pairs of one run (0: no cap), `threads` 0 leaves it to torch.
    `lanes` are the forwards at work at once on a CPU, each with its share of the threads (0: one for each of them).

    `backend` "http" scores the rounds of the predictions through `http_url`, `http_concurrency` requests at once, and
    leaves checkpoints and held-out splits to this machine; "ray" scores on up to `ray_scorers` actors of the Ray at
    `address` ("local": one started for the run, "auto": the running one, or HOST:PORT), each with `ray_cpus` and
    `ray_gpus`.
    """

    items_per_round: Positive = 200
    max_round_tokens: Positive = 8192
    method: Literal["auto", "mis", "prefix_cache", "independent"] = "auto"
    backend: Literal["local", "http", "ray"] = "local"
    http_url: WebAddress | None = None
    http_concurrency: Positive = 1
    address: NonEmpty = "local"
    ray_scorers: Positive = 1
    ray_cpus: Annotated[float, Field(gt=0)] = 1.0
    ray_gpus: NotNegative = 0.0
    ray_dashboard: bool = False
    entities: Literal["all", "held_out"] = "all"
    batch_rounds: Positive = 8
    max_pairs: Count = 0
    threads: Count = 0
    lanes: Count = 0
    memory_limit: Annotated[
        str, written_as(r"\d+(\.\d+)?\s*[KMGT]i?B", 'write a number and its unit, such as "2GB"')
    ] = "2GB"

    @model_validator(mode="after")
    def _has_a_server(self) -> Self:
        if self.backend == "http" and self.http_url is None:
            raise ValueError('has backend "http" and no http_url; set http_url = "http://HOST:PORT"')
        return self


class Shortlist(Section):
    """Long catalogs: how many candidates are scored for an entity. `size` 0: all of them, no shortlist.

    `encoder` ranks the candidates: "tfidf" (built in), or an embedding model for mean pooling, a folder (absolute once
    loaded) or a name on the Hugging Face hub. `min_recall`: the share of YES that must be shown to survive.
    """

    size: Count = 0
    encoder: NonEmpty = "tfidf"
    min_recall: InnerShare = 0.95


class WarehouseUpkeep(Section):
    """What becomes of margins that nothing uses any more: they are kept for `retention_days`, so that a reverted text
    costs nothing. The file is written anew when it is larger than `compact_factor` times what it holds.
    """

    retention_days: NotNegative = 30.0
    compact_factor: Annotated[float, Field(gt=1)] = 1.2


class Publish(Section):
    """Where versions go (unset: below the state folder), how many are kept, what becomes of uncertified candidates.

    `preview`: whatever this environment publishes goes below its own `preview/` and is never what others read.
    """

    dir: NonEmpty | None = None
    keep: Positive = 7
    preview: bool = False
    uncertified_candidates: Literal["publish", "withhold"] = "publish"


class Report(Section):
    """The HTML report of a run: how many are kept, and whether texts of entities stand in it beside the ids."""

    texts: bool = False
    keep: Positive = 100


class Serving(Section):
    """Where the servers of this project answer: `one_labeler_everywhere` asks each of them before a publication.

    Updates that came online wait in `spool_dir` for the next run; without it in the environment's own folder.
    """

    endpoints: list[WebAddress] = []
    spool_dir: NonEmpty | None = None


class Environment(Section):
    """`name` keeps dev, staging and prod apart below `dir`; `lease_wait_seconds` bounds the wait for another run.

    `labeler` keeps the labelers of one deployment apart, each with a settings file of its own: state and publications
    lie in a folder of that name, assets are called LABELER/entities and so on. They share one Dagster home.
    """

    name: Annotated[
        str,
        written_as(
            r"([A-Za-z0-9_][A-Za-z0-9_.-]*)?", "it names a folder: letters, digits and _, after the first also . and -"
        ),
    ] = ""
    labeler: Annotated[
        str,
        written_as(
            r"([A-Za-z0-9_][A-Za-z0-9_-]*)?", "it names a folder: letters, digits and _, after the first also -"
        ),
    ] = ""
    dir: NonEmpty = "run"
    lease_wait_seconds: NotNegative = 60.0

    @field_validator("labeler")
    @classmethod
    def _leaves_dagster_alone(cls, labeler: str) -> str:
        if labeler.casefold() == _DAGSTER_HOME:
            raise ValueError(f'is "{labeler}", the folder of Dagster\'s history; choose another name')
        return labeler

    @property
    def title(self) -> str:
        """What tells this project from others in an alert: the labeler and the environment, as far as they are set."""
        return " ".join(part for part in (self.labeler, self.name) if part)


class Schedule(Section):
    """When the nightly job runs (five-field cron in `timezone`) and after how many hours its table counts as stale.

    `on_source_changes`: also when a source file has changed, scoring at most `source_change_pairs` pairs (0: no cap).
    """

    cron: str = "0 4 * * *"
    timezone: str = "UTC"
    enabled: bool = True
    freshness_hours: Annotated[float, Field(ge=0.1, le=100_000)] = 26.0
    on_source_changes: bool = False
    source_change_pairs: Count = 1_000_000

    @field_validator("cron")
    @classmethod
    def _comes_due(cls, cron: str) -> str:
        check_cron(cron)
        return cron

    @field_validator("timezone")
    @classmethod
    def _known_timezone(cls, timezone: str) -> str:
        try:
            zoneinfo.ZoneInfo(timezone)
        except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
            known = sorted(zoneinfo.available_timezones())
            raise ValueError(f"is no known time zone; {nearest(timezone, known)}") from None
        return timezone


class Teacher(Section):
    """A large model that judges pairs to train on, at the address and with the key that OPENAI_BASE_URL and
    OPENAI_API_KEY name. Without `model` there is none, and what one said earlier is not used.

    `pairs` is how many it is asked about in all, `max_cost` the most that one run may spend, by the prices of a million
    tokens sent and received. Entities' texts are sent there.
    """

    model: NonEmpty | None = None
    pairs: Count = 200
    price_in: NotNegative | None = None
    price_out: NotNegative | None = None
    max_cost: NotNegative = 0.0
    concurrency: Annotated[int, Field(ge=1, le=64)] = 8
    retries: Count = 5
    timeout_seconds: Annotated[float, Field(gt=0)] = 60.0

    @model_validator(mode="after")
    def _knows_its_price(self) -> Self:
        if self.model is not None and (self.price_in is None or self.price_out is None):
            raise ValueError("names a model and not what it costs; set price_in and price_out (0 where it is free)")
        return self


class Settings(Section):
    """The whole of `pipeline.toml`. `path` is the file it came from, `root` the folder relative paths start from."""

    sources: Sources
    model: Model
    prompt: Prompt
    calibration: Calibration
    splits: Splits = Splits()
    teacher: Teacher = Teacher()
    training: Training = Training()
    gates: Gates = Gates()
    scoring: Scoring = Scoring()
    shortlist: Shortlist = Shortlist()
    warehouse: WarehouseUpkeep = WarehouseUpkeep()
    publish: Publish = Publish()
    report: Report = Report()
    serving: Serving = Serving()
    environment: Environment = Environment()
    schedule: Schedule = Schedule()
    alerts: Alerts = Alerts()
    _path: Path = PrivateAttr(default_factory=lambda: Path.cwd() / "pipeline.toml")

    @property
    def path(self) -> Path:
        """The settings file, absolute."""
        return self._path

    @property
    def root(self) -> Path:
        """The folder of the settings file, absolute."""
        return self._path.parent

    @property
    def paths(self) -> Paths:
        """Where the state lies: `root/environment.dir`, below it `environment.name` and `labeler` when they are given.

        Configured folders get both names too, so that dev never publishes over prod.
        """
        name = Path(self.environment.name) / self.environment.labeler
        shared = self.root / Path(self.environment.dir).expanduser() / self.environment.name
        state = shared / self.environment.labeler
        elsewhere = {"published": self.publish.dir, "spool": self.serving.spool_dir}
        published, spool = (
            state / kind if given is None else self.root / Path(given).expanduser() / name
            for kind, given in elsewhere.items()
        )
        return Paths(
            state=state,
            warehouse=state / "warehouse.duckdb",
            ops=state / "ops.sqlite",
            labelers=state / "labelers",
            checkpoints=state / "checkpoints",
            published=published,
            preview=state / "preview",
            reports=state / "reports",
            dagster_home=shared / _DAGSTER_HOME,
            lock=state / "warehouse.lock",
            temporary=state / "temporary",
            spool=spool,
        )


def load_settings(path: Path, env: Mapping[str, str] | None = None) -> Settings:
    """Read a settings file (TOML, UTF-8), what it `extends`, and the `SEMLABEL__SECTION__KEY` overrides in `env`.

    Raises SettingsError with one line that names the file, what was found and what is valid.
    """
    path = Path(path).expanduser().absolute()
    tables = read_merged(path)
    overrides = environment_overrides(env or {}, partial(wants_text, Settings), path.parent)
    tables = merge(tables, overrides)
    try:
        settings = Settings.model_validate(tables)
    except ValidationError as error:
        raise SettingsError(f"{path}: {explained(Settings, error.errors())}") from None
    settings._path = path
    return settings
