"""Where a labeler is wrong: its worst candidates, and the pairs that it is most wrong about.

Knows a table of judged pairs (entity_id, candidate_id, label, margin) and tau. Knows nothing of where they come from
or how they are shown.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class CandidateErrors:
    """One candidate at tau: how many pairs are flagged, how many references say YES, how many are both.

    `precision` and `recall` are None where nothing is flagged or no reference says YES.
    """

    candidate_id: str
    flagged: int
    positives: int
    correct: int

    @property
    def precision(self) -> float | None:
        """Correct ones among the flagged."""
        return self.correct / self.flagged if self.flagged else None

    @property
    def recall(self) -> float | None:
        """Correct ones among the positives."""
        return self.correct / self.positives if self.positives else None


def candidate_errors(pairs: "pd.DataFrame", threshold: float) -> list[CandidateErrors]:
    """Every candidate of the judged pairs, by id."""
    flagged = pairs["margin"].astype(float) >= threshold
    counted = pairs.assign(flagged=flagged, correct=flagged & pairs["label"])
    sums = counted.groupby("candidate_id", sort=True)[["flagged", "label", "correct"]].sum()
    return [CandidateErrors(str(row[0]), int(row[1]), int(row[2]), int(row[3])) for row in sums.itertuples()]


def worst(found: list[CandidateErrors], measure: str, most: int) -> list[CandidateErrors]:
    """The lowest `precision` or `recall` below 1; of equal ones those first that rest on most pairs."""
    rests_on = "flagged" if measure == "precision" else "positives"
    wrong = [one for one in found if getattr(one, measure) is not None and getattr(one, measure) < 1]
    key: Any = lambda one: (getattr(one, measure), -getattr(one, rests_on), one.candidate_id)  # noqa: E731
    return sorted(wrong, key=key)[:most]


def false_positives(pairs: "pd.DataFrame", threshold: float | None, most: int) -> "pd.DataFrame":
    """References NO with the highest margins: those flagged at tau; without tau simply the highest ones."""
    wrong = pairs[~pairs["label"]]
    if threshold is not None:
        wrong = wrong[wrong["margin"].astype(float) >= threshold]
    return wrong.sort_values(["margin", "entity_id", "candidate_id"], ascending=[False, True, True]).head(most)


def false_negatives(pairs: "pd.DataFrame", threshold: float | None, most: int) -> "pd.DataFrame":
    """References YES with the lowest margins: those below tau; without tau simply the lowest ones."""
    wrong = pairs[pairs["label"]]
    if threshold is not None:
        wrong = wrong[wrong["margin"].astype(float) < threshold]
    return wrong.sort_values(["margin", "entity_id", "candidate_id"]).head(most)
