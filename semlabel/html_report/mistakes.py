"""The labeler's mistakes as people look at them: worst candidates, confusing pairs, references that look wrong.

Knows pairs and their texts; of entities the ids only, unless the settings ask for more. Knows nothing of the warehouse.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from semlabel.html_report.contradictions import Contradictions
from semlabel.html_report.markup import Html, entity, figure, outside, paragraph, section, table, tag
from semlabel.html_report.wrong_pairs import CandidateErrors, candidate_errors, worst

if TYPE_CHECKING:
    import pandas as pd

    from semlabel.manifest import Manifest

MOST_CANDIDATES = 10
MOST_PAIRS = 20
_SURE = 0.95
_MARK = "(?)"
_MOST_OF_A_TEXT = 160


@dataclass(frozen=True)
class Texts:
    """Texts by id; those of entities are empty where the settings do not ask for any."""

    entities: Mapping[str, str] = field(default_factory=dict)
    candidates: Mapping[str, str] = field(default_factory=dict)

    def of_entity(self, entity_id: str) -> Html:
        """The id, and below it the text where there is one."""
        return _with_text(entity(entity_id), self.entities.get(entity_id))

    def of_candidate(self, candidate_id: str) -> Html:
        """The id, and below it the text where there is one."""
        return _with_text(outside(candidate_id), self.candidates.get(candidate_id))


def candidates_section(manifest: "Manifest", pairs: "pd.DataFrame", texts: Texts) -> Html:
    """The candidates with the lowest precision and the lowest recall at tau, on calibrate."""
    title = "Worst candidates"
    if manifest.threshold is None:
        return section(title, paragraph("Without a threshold nothing is labeled YES, so no candidate has a precision."))
    if pairs.empty:
        return section(title, paragraph("No judged pair of calibrate has a margin."))
    found = candidate_errors(pairs, manifest.threshold)
    parts = [paragraph("On calibrate, which the threshold was chosen on: where to look, not what to promise.")]
    for measure in ("precision", "recall"):
        parts += [tag("h3", f"Lowest {measure}"), _candidates(worst(found, measure, MOST_CANDIDATES), texts)]
    return section(title, *parts)


def pairs_section(
    manifest: "Manifest", false_positives: "pd.DataFrame", false_negatives: "pd.DataFrame", texts: Texts
) -> Html:
    """The pairs of calibrate that the labeler is most wrong about, with a mark where it is sure."""
    without = "" if manifest.threshold is not None else " (there is no threshold, so these are simply the extremes)"
    return section(
        "Confusing pairs",
        tag("h3", f"Labeled YES, reference NO: highest margins{without}"),
        _pairs(manifest, false_positives, texts, expected=False),
        tag("h3", f"Labeled NO, reference YES: lowest margins{without}"),
        _pairs(manifest, false_negatives, texts, expected=True),
        paragraph(
            f"{_MARK} marks pairs of which the labeler is at least {_SURE:.0%} sure that the reference is wrong: often "
            "it is, so look at it."
        ),
    )


def references_section(
    refused: Mapping[str, int], contradictory: Sequence[str], found: Contradictions, texts: Texts
) -> Html:
    """References that contradict each other or could not be used."""
    parts = [tag("h3", "Refused in this run")]
    parts.append(table(["reason", "references"], [[outside(why), figure(count)] for why, count in refused.items()]))
    if contradictory:
        parts += [
            paragraph("Listed as YES and as NO, entity / candidate:"),
            table(["reference"], [[entity(row)] for row in contradictory]),
        ]
    parts += [
        tag("h3", "The same said, judged differently"),
        paragraph(
            f"{figure(found.total)} times two near-duplicates of train or calibrate are judged differently for one "
            "candidate. Those of certify and test stay unseen."
        ),
    ]
    if found.first:
        rows = [
            [
                texts.of_entity(one.yes_entity_id),
                texts.of_entity(one.no_entity_id),
                texts.of_candidate(one.candidate_id),
                "listed NO" if one.listed else "not listed",
            ]
            for one in found.first
        ]
        parts.append(table(["YES for", "NO for", "candidate", ""], rows))
    return section("References that look wrong", *parts)


def _candidates(found: Sequence[CandidateErrors], texts: Texts) -> Html:
    rows = [
        [
            texts.of_candidate(one.candidate_id),
            figure(one.precision, 3),
            figure(one.recall, 3),
            figure(one.flagged),
            figure(one.positives),
            figure(one.correct),
        ]
        for one in found
    ]
    return table(["candidate", "precision", "recall", "labeled YES", "reference YES", "both"], rows)


def _pairs(manifest: "Manifest", pairs: "pd.DataFrame", texts: Texts, expected: bool) -> Html:
    rows: list[list[Any]] = []
    names = zip(pairs["entity_id"], pairs["candidate_id"], pairs["margin"].tolist(), strict=True)
    for entity_id, candidate_id, margin in names:
        probability = _probability(manifest, margin)
        against = None if probability is None else probability if not expected else 1 - probability
        rows.append(
            [
                texts.of_entity(entity_id),
                texts.of_candidate(candidate_id),
                figure(margin),
                figure(probability, 3) + (f" {_MARK}" if against is not None and against >= _SURE else ""),
            ]
        )
    return table(["entity", "candidate", "margin", "probability"], rows)


def _probability(manifest: "Manifest", margin: float) -> float | None:
    from semlabel.calibration import Platt

    fitted = manifest.calibration
    return None if fitted is None else float(Platt(fitted.platt_a, fitted.platt_b).probability(margin))


def _with_text(name: Html, text: str | None) -> Html:
    if text is None:
        return name
    return tag("div", name, tag("div", outside(text, _MOST_OF_A_TEXT), class_="small"))
