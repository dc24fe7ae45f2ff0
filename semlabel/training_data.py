"""Training rounds: the pairs of one entity as token ids, ready to be packed into one sequence.

Knows nothing of models or optimisers. Texts become ids through the same prompt that serves, so what is trained is what
is scored. A round is one entity's query with its items; labels are 1 for YES and 0 for NO.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from semlabel.digests import digest_of
from semlabel.errors import SourceError

if TYPE_CHECKING:
    import pandas as pd

    from semlabel.prompt import Prompt, PromptSpec
    from semlabel.settings import Training


@dataclass(frozen=True)
class TrainingRound:
    """One query (token ids), its items (token ids each, at least one of them) and their labels (1 YES, 0 NO)."""

    query: list[int]
    items: list[list[int]]
    labels: list[int]

    def __post_init__(self) -> None:
        if not self.items or len(self.items) != len(self.labels):
            raise ValueError(
                f"a round needs as many labels as items: {len(self.items)} items, {len(self.labels)} labels"
            )
        if not all(self.items):
            raise ValueError("a training item is empty; it must end with the position its label is read at")
        if not set(self.labels) <= {0, 1}:
            raise ValueError(f"labels are 1 or 0, found {sorted(set(self.labels) - {0, 1})}")


def training_spec(spec: "PromptSpec", settings: "Training") -> "PromptSpec":
    """The prompt specification to train with: the served one, entities cut shorter when `[training]` says so."""
    limit = min(settings.max_query_tokens or spec.max_query_tokens, spec.max_query_tokens)
    return replace(spec, max_query_tokens=limit)


def rounds_from_pairs(
    pairs: "pd.DataFrame",
    entities: "pd.DataFrame",
    catalog: "pd.DataFrame",
    prompt: "Prompt",
    items_per_round: int = 200,
) -> list[TrainingRound]:
    """Rounds of `pairs` (entity_id, candidate_id, label), entities in the order in which they first appear.

    `entities` and `catalog` hold the texts (entity_id, text; candidate_id, text). An entity with more than
    `items_per_round` pairs gets several rounds. Raises SourceError for an id without a text and PromptError for a
    candidate that does not fit the prompt.
    """
    texts = dict(zip(entities["entity_id"], entities["text"], strict=True))
    candidate_texts = dict(zip(catalog["candidate_id"], catalog["text"], strict=True))
    _refuse_unknown(pairs["entity_id"], texts, "entity")
    _refuse_unknown(pairs["candidate_id"], candidate_texts, "candidate")
    used = list(dict.fromkeys(pairs["candidate_id"]))
    items = dict(zip(used, prompt.items([candidate_texts[used_id] for used_id in used]), strict=True))
    judged: dict[str, list[tuple[str, int]]] = {}
    for entity_id, candidate_id, label in zip(pairs["entity_id"], pairs["candidate_id"], pairs["label"], strict=True):
        judged.setdefault(entity_id, []).append((candidate_id, int(label)))
    queries = prompt.queries([texts[entity_id] for entity_id in judged])
    rounds = []
    for query, entity_pairs in zip(queries, judged.values(), strict=True):
        for start in range(0, len(entity_pairs), items_per_round):
            part = entity_pairs[start : start + items_per_round]
            rounds.append(TrainingRound(query.ids, [items[other] for other, _ in part], [label for _, label in part]))
    return rounds


def rounds_digest(rounds: Sequence[TrainingRound]) -> str:
    """The identity of what is trained on: every token id and label, in order."""
    return digest_of([[one.query, one.items, one.labels] for one in rounds])


def _refuse_unknown(ids: "pd.Series", known: dict[str, str], what: str) -> None:
    unknown = [value for value in dict.fromkeys(ids) if value not in known]
    if unknown:
        raise SourceError(
            f"training pairs: {len(unknown)} {what} ids have no text, the first is {unknown[0]!r}; "
            "rebuild the training pairs from the present tables"
        )
