"""Second stage: texts of rounds become token ids, by the one tokenisation there is, on CPU actors.

Knows prompts and nothing of models. A text that the prompt refuses leaves its reason: of an entity in `error`, of a
candidate in `problems`.
"""

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from semlabel.distributed.accounting import same_rounds
from semlabel.distributed.config import MisConfig
from semlabel.distributed.schemas import TOKENISED, table
from semlabel.errors import PromptError
from semlabel.manifest import read_manifest
from semlabel.prompt import Prompt, load_tokenizer

_PASSED_ON = ("entity_id", "round", "candidate_ids", "positions", "error")


class Tokenise:
    """An actor with a tokenizer. Raises, when it starts, PromptError for a prompt that does not fit it and LabelerError
    for another labeler than the job's.
    """

    def __init__(self, config: MisConfig) -> None:
        if config.labeler is not None:
            config.refuse_other(read_manifest(config.labeler))
        self._prompt = Prompt(config.spec, load_tokenizer(config.path))

    def __call__(self, batch: pa.Table) -> pa.Table:
        """The token ids of a batch of rounds, in its order."""
        rows = [self._tokenised(row) for row in batch.to_pylist()]
        return same_rounds("tokenise", batch, table(rows, TOKENISED))

    def _tokenised(self, row: Mapping[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = {column: row[column] for column in _PASSED_ON}
        if row["candidate_texts"] is not None:
            texts = [text or "" for text in row["candidate_texts"]]
            found["items"], found["problems"] = self._prompt.items_or_problems(texts)
        if found["error"] is None:
            try:
                query = self._prompt.query(row["text"] or "")
            except PromptError as error:
                found["error"] = str(error)
            else:
                found |= {"query": query.ids, "truncated": query.truncated}
        return found
