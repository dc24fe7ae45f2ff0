"""The rounds of a refresh plan through the actors: each round one row, its texts in the object store, results as they
come.

Knows the refresh plan and the stages; nothing of tables or commits. The rounds are the plan's own, so the same
candidates meet in the same forward as on one machine.
"""

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from semlabel.distributed.catalog import SharedCatalog
from semlabel.distributed.config import MisConfig, Pool
from semlabel.distributed.processor import score_stages
from semlabel.distributed.runtime import RaySession, RaySettings, cause_of, ray_session, require_ray
from semlabel.distributed.schemas import PREPARED, table
from semlabel.errors import PromptError, SemlabelError
from semlabel.prompt import Prompt, load_tokenizer
from semlabel.round_stream import Found, Round, ScoreRounds, WantedRound, partly
from semlabel.settings import Scoring

_TOKENIZER_CPUS = 0.5
_TASKS_CPUS = 1.0  # room for what is no actor


def session_for(scoring: Scoring) -> AbstractContextManager[RaySession]:
    """The Ray of the settings; a local one is told of as many CPUs as its actors reserve, however few there are."""
    cpus = scoring.ray_scorers * scoring.ray_cpus + _TOKENIZER_CPUS + _TASKS_CPUS
    return ray_session(RaySettings(scoring.address, cpus=cpus, dashboard=scoring.ray_dashboard))


def config_of(scoring: Scoring, directory: Path, device: str) -> MisConfig:
    """The job that scores with the labeler of a directory, which every node must see under this path."""
    return MisConfig(
        labeler=directory,
        method=scoring.method,
        device=device,
        items_per_round=scoring.items_per_round,
        max_round_tokens=scoring.max_round_tokens,
        threads=scoring.threads,
        tokenizers=Pool(cpus=_TOKENIZER_CPUS),
        scorers=Pool(max=scoring.ray_scorers, cpus=scoring.ray_cpus, gpus=scoring.ray_gpus),
        rounds_per_batch=None,
    )


def plan_scorer(config: MisConfig) -> ScoreRounds:
    """What scores the rounds of a plan. Raises LabelerError when the config's labeler is none."""
    prompt = Prompt(config.spec, load_tokenizer(config.path))

    def score_rounds(wanted: Iterable[WantedRound]) -> Iterator[tuple[Round, Found]]:
        ray = require_ray()
        entries: list[Round] = []
        places: dict[int, int] = {}
        texts: list[str] = []

        def rows(part: Iterable[WantedRound]) -> Iterator[dict[str, Any]]:
            for one in part:
                for key, text in zip(one.candidate_keys, one.candidate_texts, strict=True):
                    if places.setdefault(key, len(places)) == len(texts):
                        texts.append(text)
                positions = [places[key] for key in one.candidate_keys]
                yield {"round": len(entries), "text": one.entity_text, "positions": positions}
                entries.append(one.entry)

        # An actor gets what is committed together, so that the same rounds share a forward as would here.
        blocks = [ray.put(table(list(rows(part)), PREPARED)) for _, part in groupby(wanted, key=lambda one: one.batch)]
        catalog = ray.put(SharedCatalog.tokenised([str(key) for key in places], texts, prompt))
        scored = score_stages(config, ray.data.from_arrow_refs(blocks), catalog)
        try:
            for batch in scored.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0):
                for row in batch.to_pylist():
                    yield entries[row["round"]], _found(row)
        except ray.exceptions.RayError as error:
            cause = cause_of(error)
            raise cause if isinstance(cause, SemlabelError) else error from None

    return score_rounds


def _found(row: dict[str, Any]) -> Found:
    """The margins of a round, and why the prompt refused some of its candidates or the whole of it."""
    if row["error"]:
        return PromptError(row["error"])
    pairs = zip(row["margins"], row["problems"], strict=True)
    margins = np.array([margin for margin, problem in pairs if problem is None], dtype=np.float32)
    return partly(margins, row["problems"])
