"""One step of a run with everything it works with: settings, `ops.sqlite`, the warehouse, the model, its progress.

Knows runs and their tags. Knows nothing of any stage of the recipe.
"""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from logging import Logger
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dagster as dg
from pydantic import PrivateAttr

from resources.operations import OperationsResource
from resources.scorer import ScorerResource
from resources.settings import SettingsResource
from resources.warehouse import WarehouseResource

if TYPE_CHECKING:
    from semlabel.operations import Operations
    from semlabel.progress import Progress
    from semlabel.repeated import Repeated
    from semlabel.scorer import Scorer
    from semlabel.settings import Settings
    from semlabel.warehouse import Warehouse

LIMIT_TAG = "semlabel/entities_limit"
PAIRS_TAG = "semlabel/max_pairs"


def asset_key(labeler: str, name: str) -> dg.AssetKey:
    """The key of an asset: its name, below that of the labeler where several share one deployment."""
    return dg.AssetKey([labeler, name] if labeler else [name])


@dataclass(frozen=True)
class Step:
    """A step of run `run_id`; `assets` are the names of the assets that this run makes."""

    run_id: str
    assets: frozenset[str]
    tags: Mapping[str, str]
    log: Logger
    instance: dg.DagsterInstance
    settings: "Settings"
    operations: "Operations"
    _warehouse: WarehouseResource
    _scorers: ScorerResource
    _looked_at: "list[Warehouse]" = field(default_factory=list)

    def writer(self) -> "AbstractContextManager[Warehouse]":
        """The warehouse for writing, under the lease."""
        return self._warehouse.writer(self.run_id)

    @contextmanager
    def reader(self) -> "Iterator[Warehouse]":
        """The warehouse for reading, under the lease; inside `one_look` the one that is open already."""
        if self._looked_at:
            yield self._looked_at[-1]
            return
        with self._warehouse.reader(self.run_id) as warehouse:
            yield warehouse

    @contextmanager
    def one_look(self) -> Iterator[None]:
        """Every `reader` inside is one and the same: what they read is of one moment, and the file is opened once.

        Nothing can be written meanwhile, by nobody: for what asks no model and no other machine.
        """
        with self._warehouse.reader(self.run_id) as warehouse:
            self._looked_at.append(warehouse)
            try:
                yield
            finally:
                self._looked_at.pop()

    def predictions_digest(self) -> str:
        """The content digest of the predictions: the subject of every gate that judges them."""
        with self.reader() as warehouse:
            return warehouse.predictions_digest()

    def alone_in(self, what: str) -> "AbstractContextManager[object]":
        """A lease of this run, so that no other run, of whatever Dagster instance, does the same thing meanwhile."""
        wait = self.settings.environment.lease_wait_seconds
        return self.operations.lease(what, self.run_id, wait, on_wait=self.log.info)

    def keep_up(self) -> None:
        """The upkeep of the warehouse, with one line of what it did."""
        self.log.info(self._warehouse.keep_up(self.run_id).sentence())

    def write_report(self) -> None:
        """The HTML report of this run as far as it is."""
        from semlabel.html_report import write_report

        with self.reader() as warehouse:
            self.log.info(f"report: {write_report(self.settings, self.operations, self.run_id, warehouse)}")

    def scorer(self, directory: Path) -> "Scorer":
        """The loaded model of a checkpoint or labeler directory."""
        return self._scorers.get(directory, self.run_id)

    def progress(self, progress: "Progress") -> None:
        """A progress sink whose listeners read `ops.sqlite`."""
        self.operations.set_progress(self.run_id, progress.stage, progress.done, progress.total, progress.unit)

    def digest(self, table: str) -> str:
        """The content digest of a table of the warehouse. Raises GateBlocked before it was first filled."""
        with self.reader() as warehouse:
            return _filled(table, warehouse.content_digest(table))

    def labels_digest(self) -> str:
        """The digest of what is known of pairs, undecided ones included. Raises GateBlocked before there is any."""
        with self.reader() as warehouse:
            return _filled("reference_labels", warehouse.labels_digest())

    def materialized(self, asset: str) -> dict[str, Any]:
        """What the latest materialization of an asset said of itself. Raises GateBlocked before the first one."""
        from semlabel.errors import GateBlocked

        key = asset_key(self.settings.environment.labeler, asset)
        event = self.instance.get_latest_materialization_event(key)
        materialization = event.asset_materialization if event else None
        if materialization is None:
            raise GateBlocked(f"{asset} was never materialized here; run it first")
        return {name: value.value for name, value in materialization.metadata.items()}

    @property
    def trains(self) -> bool:
        """Whether this run makes a labeler, so that its checks are about that one and not about the promoted one."""
        return bool(self.assets & {"training_pairs", "checkpoint", "threshold"})

    @property
    def entities_limit(self) -> int | None:
        """How many entities are to be labeled: None as the settings say, 0 all of them. Raises SettingsError."""
        return self._counted(LIMIT_TAG, "0 for all entities")

    @property
    def max_pairs(self) -> int:
        """The most pairs this run may score, 0 for no cap: the smaller one of the settings' and the run's."""
        caps = (self.settings.scoring.max_pairs, self._counted(PAIRS_TAG, "0 for no cap"))
        return min((cap for cap in caps if cap), default=0)

    def _counted(self, tag: str, zero: str) -> int | None:
        """The whole number of a run tag, or None without it. Raises SettingsError."""
        from semlabel.errors import SettingsError

        given = self.tags.get(tag)
        if given is None:
            return None
        if not given.isascii() or not given.isdigit():
            raise SettingsError(f"run tag {tag} is {given!r}; expected a whole number, {zero}")
        return int(given)


class ProjectResource(dg.ConfigurableResource):
    """What every asset and check asks for."""

    settings: SettingsResource
    operations: OperationsResource
    warehouse: WarehouseResource
    scorers: ScorerResource
    _heart: "Repeated | None" = PrivateAttr(default=None)

    def teardown_after_execution(self, context: dg.InitResourceContext) -> None:
        """The run is over, so it gives no signs of life any more."""
        if self._heart is not None:
            self._heart.stop()
            self._heart = None

    def step(self, context: Any) -> Step:
        """The running step of an asset or a check; from then on its run is at work in `ops.sqlite`."""
        from semlabel.privacy import keep_fonts

        operations = self.operations.get()
        keep_fonts(self.settings.get().paths.temporary)
        run = context.run
        operations.start_run(run.run_id, run.job_name)
        if self._heart is None:
            self._heart = operations.at_work(run.run_id)
        made = context.job_def.asset_layer.executable_asset_keys
        return Step(
            run_id=run.run_id,
            assets=frozenset(key.path[-1] for key in made),
            tags=dict(run.tags),
            log=context.log,
            instance=context.instance,
            settings=self.settings.get(),
            operations=operations,
            _warehouse=self.warehouse,
            _scorers=self.scorers,
        )


def _filled(table: str, digest: str | None) -> str:
    from semlabel.errors import GateBlocked

    if digest is None:
        raise GateBlocked(f"{table} has no content yet; run it first")
    return digest
