"""Every entity of one table with every candidate of another: for notebooks, and for `semlabel label`.

Knows loaded labelers and columns. Knows nothing of files (that is `sources`) or of how a labeler is shown. A value that
cannot be used stops the whole table with its place: somebody who looks at a frame can mend it at once.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from semlabel.errors import LabelerError, PromptError, SourceError
from semlabel.prompt import Query
from semlabel.sources import is_blank

if TYPE_CHECKING:
    import pandas as pd

    from semlabel.labeler import Labeler

_AT_ONCE = 64  # entities that are tokenised together
_NAMED = 5


@dataclass(frozen=True)
class Scored:
    """One entity with all candidates, in their order. `probabilities` and `labels` are None where there is no
    calibration or no threshold, labels also where the labeler decides with shortlists; `truncated` says that the
    entity's text was cut to the limit.
    """

    entity_id: str
    margins: npt.NDArray[np.float32]
    probabilities: npt.NDArray[np.float64] | None
    labels: npt.NDArray[np.bool_] | None
    truncated: bool


def scored(
    labeler: "Labeler", entity_ids: Sequence[str], entity_texts: Sequence[str], candidate_texts: Sequence[str]
) -> Iterator[Scored]:
    """The entities one after the other, each with every candidate. Raises PromptError for a text that does not fit."""
    from semlabel.decision import decide

    decides = labeler.threshold is not None and labeler.manifest.shortlist is None
    items = labeler.prompt.items(candidate_texts) if candidate_texts else []
    for start in range(0, len(entity_ids), _AT_ONCE):
        ids = entity_ids[start : start + _AT_ONCE]
        queries: list[Query] = labeler.prompt.queries(entity_texts[start : start + _AT_ONCE])
        for entity_id, query, margins in zip(ids, queries, _in_order(labeler, queries, items), strict=True):
            yield Scored(
                entity_id,
                margins,
                labeler.probabilities(margins) if labeler.manifest.calibration is not None else None,
                decide(margins, labeler.threshold) if decides else None,
                query.truncated,
            )


def _in_order(
    labeler: "Labeler", queries: Sequence[Query], items: Sequence[Sequence[int]]
) -> Iterator[npt.NDArray[np.float32]]:
    """Margins query by query, each as soon as those before it are there; short rounds share forwards."""
    waiting: dict[int, npt.NDArray[np.float32]] = {}
    given = 0
    for number, margins in labeler.scorer.margins_of([(query.ids, items) for query in queries]):
        if isinstance(margins, PromptError):
            raise margins
        waiting[number] = margins
        while given in waiting:
            yield waiting.pop(given)
            given += 1


def score_frame(labeler: "Labeler", entities: Any, catalog: Any) -> "pd.DataFrame":
    """One row a pair, entity by entity: entity_id, candidate_id, margin, probability, label, truncated.

    Probability and label are missing values where the labeler has no calibration or no threshold, the label also where
    it decides with shortlists.
    """
    import pandas as pd

    entity_ids, entity_texts = columns(entities, "entities", "entity_id")
    candidate_ids, candidate_texts = columns(catalog, "catalog", "candidate_id")
    _refuse_unfit(labeler, candidate_ids, candidate_texts)
    found = list(scored(labeler, entity_ids, entity_texts, candidate_texts))
    pairs = len(found) * len(candidate_ids)
    missing = [None] * pairs

    def together(values: list[Any]) -> Any:
        return np.concatenate(values) if values and values[0] is not None else missing

    return pd.DataFrame(
        {
            "entity_id": pd.Series([one.entity_id for one in found for _ in candidate_ids], dtype="str"),
            "candidate_id": pd.Series(candidate_ids * len(found), dtype="str"),
            "margin": pd.Series(together([one.margins for one in found]), dtype="float32"),
            "probability": pd.Series(together([one.probabilities for one in found]), dtype="float64"),
            "label": pd.Series(together([one.labels for one in found]), dtype="boolean"),
            "truncated": pd.Series([one.truncated for one in found for _ in candidate_ids], dtype="bool"),
        }
    )


def label_frame(labeler: "Labeler", entities: Any, catalog: Any) -> "pd.DataFrame":
    """As `score_frame`, with a label for every pair.

    Raises LabelerError while the labeler is uncertified, and for one that decides with shortlists.
    """
    labeler.manifest.refuse_without_shortlist()
    if labeler.threshold is None:
        raise LabelerError("this labeler has no threshold: nothing was certified, so use score_frame")
    frame = score_frame(labeler, entities, catalog)
    return frame.assign(label=frame["label"].astype("bool"))


def columns(table: Any, name: str, id_name: str) -> tuple[list[str], list[str]]:
    """Ids and texts of a data frame, or of anything else that gives a column by its name.

    Raises SourceError for a column that is not there, an id twice, or a value that is no text, naming the rows.
    """
    found = []
    for column in (id_name, "text"):
        try:
            values = list(table[column])
        except (KeyError, TypeError, IndexError, LookupError):
            there = ", ".join(map(str, getattr(table, "columns", table if isinstance(table, Mapping) else ())))
            raise SourceError(
                f"{name}: no column {column} among {there or 'none'}; rename yours to {id_name} and text"
            ) from None
        bad = [row for row, value in enumerate(values) if not isinstance(value, str) or is_blank(value)]
        if bad:
            raise SourceError(f"{name}: {column} is blank or no text in {_rows(bad)}; drop or mend those rows")
        found.append(values)
    ids, texts = found
    if len(ids) != len(texts):
        raise SourceError(f"{name}: {len(ids)} ids but {len(texts)} texts; give one text for each id")
    first: dict[str, int] = {}
    again = [row for row, value in enumerate(ids) if first.setdefault(value, row) != row]
    if again:
        raise SourceError(
            f"{name}: {id_name} {ids[again[0]]!r} stands there before, in {_rows(again)}; keep one of each"
        )
    return ids, texts


def _refuse_unfit(labeler: "Labeler", ids: Sequence[str], texts: Sequence[str]) -> None:
    for candidate_id, problem in zip(ids, labeler.prompt.item_problems(texts), strict=True):
        if problem is not None:
            raise SourceError(f"catalog: {candidate_id}: {problem}")


def _rows(rows: Sequence[int]) -> str:
    more = f" and {len(rows) - _NAMED} more" if len(rows) > _NAMED else ""
    return f"row {', '.join(map(str, rows[:_NAMED]))}{more} (counted from 0)"
