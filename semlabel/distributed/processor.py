"""The stages put together: a function from a dataset of entities to a dataset of pairs, shaped as `ray.data.llm`'s.

Knows the order of the stages and what each reserves; nothing of what happens inside them.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from semlabel.distributed.accounting import check_exactly_once
from semlabel.distributed.catalog import SharedCatalog
from semlabel.distributed.config import MisConfig, Pool
from semlabel.distributed.prepare import prepare_rounds
from semlabel.distributed.runtime import require_ray
from semlabel.distributed.score import Score
from semlabel.distributed.tokenise import Tokenise
from semlabel.distributed.unpack import Decision, unpack_entities, unpack_pairs
from semlabel.prompt import Prompt, load_tokenizer

if TYPE_CHECKING:
    from ray.data import Dataset

Row = Callable[[dict[str, Any]], dict[str, Any]]
# What cuts and unpacks must find room beside actors that reserve every other CPU, or nothing would ever move.
TASK_CPUS = 0.25


def build_mis_processor(
    config: MisConfig, preprocess: Row | None = None, postprocess: Row | None = None
) -> "Callable[[Dataset], Dataset]":
    """A processor of datasets with one row per entity: `entity_id`, `text`, and candidates unless a catalog is shared.

    `preprocess` makes such rows of one's own, `postprocess` one's own of the results. Raises DistributedError without
    Ray, LabelerError for a labeler directory that is none or that decides with shortlists; what fails in an actor ends
    the job.
    """
    require_ray()
    if config.manifest is not None:
        config.manifest.refuse_without_shortlist()
    decision = Decision.of(config.manifest)
    unpack = unpack_pairs if config.output == "pairs" else unpack_entities
    arguments = {"decision": decision, "raise_errors": config.on_error == "raise"}

    def process(dataset: "Dataset") -> "Dataset":
        entities = dataset.map(preprocess, num_cpus=TASK_CPUS) if preprocess else dataset
        if config.exactly_once:
            entities = entities.materialize()
        catalog = shared_catalog(config)
        rounds = entities.repartition(target_num_rows_per_block=config.entities_per_block).map_batches(
            prepare_rounds,
            fn_kwargs={
                "items_per_round": config.items_per_round if config.output == "pairs" else None,
                "catalog_size": None if config.catalog is None else len(config.catalog),
            },
            batch_size=config.entities_per_block,
            batch_format="pyarrow",
            num_cpus=TASK_CPUS,
        )
        found = score_stages(config, rounds, catalog).map_batches(
            unpack, fn_kwargs=arguments, batch_size=None, batch_format="pyarrow", num_cpus=TASK_CPUS
        )
        if config.exactly_once:
            found = found.materialize()
            check_exactly_once(entities, found, config)
        return found.map(postprocess, num_cpus=TASK_CPUS) if postprocess else found

    return process


def score_stages(config: MisConfig, rounds: "Dataset", catalog: Any) -> "Dataset":
    """Prepared rounds to scored rounds, through the two actor pools."""
    config = config.for_actors()
    tokenised = rounds.map_batches(
        Tokenise, fn_constructor_kwargs={"config": config}, **_actors(config, config.tokenizers)
    )
    scored: Dataset = tokenised.map_batches(
        Score, fn_constructor_kwargs={"config": config, "catalog": catalog}, **_actors(config, config.scorers)
    )
    return scored


def shared_catalog(config: MisConfig) -> Any:
    """The reference of the config's catalog, tokenised here and put once; None without one."""
    if config.catalog is None:
        return None
    ray = require_ray()
    prompt = Prompt(config.spec, load_tokenizer(config.path))
    return ray.put(SharedCatalog.tokenised(list(config.catalog), list(config.catalog.values()), prompt))


def _actors(config: MisConfig, pool: Pool) -> dict[str, Any]:
    ray = require_ray()
    return {
        "batch_size": config.rounds_per_batch,
        "batch_format": "pyarrow",
        "compute": ray.data.ActorPoolStrategy(min_size=pool.min, max_size=pool.max),
        "num_cpus": pool.cpus,
        "num_gpus": pool.gpus or None,
        "resources": pool.resources or None,
        "ray_remote_args_fn": partial(dict, max_restarts=config.max_restarts, max_task_retries=config.max_task_retries),
    }
