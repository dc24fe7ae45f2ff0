"""A labeler: one immutable directory that turns an entity's text and candidate texts into margins and labels.

Knows nothing of gates, tables or training: it proves, whenever it is loaded, that it still is what was certified.
Margins are logits, float32; how a label comes of one stands in `decision`, how the directory is written and promoted in
`labeler_files`, what it says of itself in `manifest`.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt

from semlabel.decision import decide
from semlabel.errors import LabelerError
from semlabel.labeler_files import (
    CURRENT,
    find_labeler,
    promoted_path,
    switch_current,
    write_checkpoint,
    write_labeler,
)
from semlabel.manifest import KnownPair, Manifest, read_manifest, scorer_digest, verify
from semlabel.prompt import Prompt
from semlabel.versions import SCORING_CODE_VERSION

if TYPE_CHECKING:
    import pandas as pd

    from semlabel.scorer import Scorer

__all__ = [
    "CURRENT",
    "KnownPair",
    "Labeler",
    "Manifest",
    "decide",
    "find_labeler",
    "measure_known_pairs",
    "promoted_path",
    "read_manifest",
    "scorer_digest",
    "switch_current",
    "verify",
    "write_checkpoint",
    "write_labeler",
]

# How far a known pair may move between machines: rounding of another kernel, never another prompt or other weights.
KNOWN_PAIR_TOLERANCE = {"fp32": 1e-3, "bf16": 0.5, "int8": 0.5}


class Labeler:
    """A verified labeler directory, loaded. Thread-safe only as far as its model is: one call at a time."""

    def __init__(self, path: Path, manifest: Manifest, scorer: "Scorer") -> None:
        self.path = path
        self.manifest = manifest
        self.scorer = scorer

    @classmethod
    def load(
        cls,
        path: Path | str,
        device: str = "auto",
        method: str = "auto",
        verify: bool = True,
        self_check: bool = True,
        items_per_round: int = 200,
        max_round_tokens: int = 8192,
        lanes: int = 0,
    ) -> Self:
        """Load a labeler directory and prove it: digests (`verify`), packing and known margins (`self_check`).

        It scores in the precision it was certified in. Raises LabelerError naming what differs, ModelRefused when the
        method cannot serve the model.
        """
        from semlabel.scorer import Scorer

        directory = Path(path).resolve()
        manifest = _verify(directory) if verify else read_manifest(directory)
        _check_code_version(directory, manifest)
        scorer = Scorer.load(
            directory,
            manifest.prompt.spec(),
            precision=manifest.precision,
            device=device,
            method=method,
            items_per_round=items_per_round,
            max_round_tokens=max_round_tokens,
            self_check=self_check,
            lanes=lanes,
        )
        _check_answers(directory, manifest, scorer.prompt)
        if self_check:
            _check_known_pairs(directory, manifest, scorer)
        return cls(directory, manifest, scorer)

    @property
    def digest(self) -> str:
        """The labeler's identity (sha256, hex)."""
        return self.manifest.digest

    @property
    def threshold(self) -> float | None:
        """Margin from which a pair is a YES; None while uncertified."""
        return self.manifest.threshold

    @property
    def prompt(self) -> Prompt:
        """The prompt that turns texts into token ids."""
        return self.scorer.prompt

    def score(self, query: str, items: Sequence[str]) -> npt.NDArray[np.float32]:
        """Margins (N,) float32 of one entity's text with N candidate texts, in their order; no items, empty array.

        An entity longer than the prompt's limit is cut by the prompt's rule. Raises PromptError for a candidate that
        is blank or too long.
        """
        if isinstance(items, str):
            raise TypeError("items must be a sequence of candidate texts, not one text")
        if not items:
            return np.zeros(0, dtype=np.float32)
        return self.scorer.margins(self.prompt.query(query).ids, self.prompt.items(items))

    def decide(self, query: str, items: Sequence[str]) -> npt.NDArray[np.bool_]:
        """Labels (N,) of one entity's text with N candidate texts.

        Raises LabelerError while uncertified, and for a labeler that decides with shortlists.
        """
        self.manifest.refuse_without_shortlist()
        return decide(self.score(query, items), self.threshold)

    def probabilities(self, margins: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """Calibrated probabilities of margins, float64, same shape. Raises LabelerError while uncalibrated."""
        calibration = self.manifest.calibration
        if calibration is None:
            raise LabelerError(f"{self.path}: this labeler is not calibrated; it has margins but no probabilities")
        from semlabel.calibration import Platt

        return Platt(calibration.platt_a, calibration.platt_b).probability(np.asarray(margins, dtype=np.float64))

    def score_frame(self, entities: Any, catalog: Any) -> "pd.DataFrame":
        """Every entity with every candidate, one row a pair: entity_id, candidate_id, margin, probability, label,
        truncated.

        `entities` has columns entity_id and text, `catalog` candidate_id and text: data frames, or anything else that
        gives a column by its name. Needs pandas. Raises SourceError naming the rows that cannot be used.
        """
        from semlabel.frames import score_frame

        return score_frame(self, entities, catalog)

    def label_frame(self, entities: Any, catalog: Any) -> "pd.DataFrame":
        """As `score_frame`, with a decision for every pair. Raises LabelerError while uncertified."""
        from semlabel.frames import label_frame

        return label_frame(self, entities, catalog)

    def _repr_html_(self) -> str:
        from semlabel.labeler_card import card

        return card(self.manifest)

    def __repr__(self) -> str:
        threshold = "uncertified" if self.threshold is None else f"threshold={self.threshold:.4g}"
        return f"Labeler({self.digest[:12]}, {self.manifest.base_model}, {self.manifest.precision}, {threshold})"


# `load` takes a flag of the same name.
_verify = verify


def _check_code_version(directory: Path, manifest: Manifest) -> None:
    if manifest.scoring_code_version != SCORING_CODE_VERSION:
        raise LabelerError(
            f"{directory}: certified with scoring code {manifest.scoring_code_version}, this is scoring code "
            f"{SCORING_CODE_VERSION}; run the train_labeler job again to certify it with this version"
        )


def _check_answers(directory: Path, manifest: Manifest, prompt: Prompt) -> None:
    expected = (manifest.answer_tokens.yes.id, manifest.answer_tokens.no.id)
    found = (prompt.yes_id, prompt.no_id)
    if found != expected:
        raise LabelerError(
            f"{directory}: the answer tokens are {found} with this tokenizer, the labeler was certified with {expected}"
        )


def measure_known_pairs(scorer: "Scorer", pairs: Iterable[tuple[str, str]]) -> tuple[KnownPair, ...]:
    """Score (entity text, candidate text) pairs to store with a labeler. A few obvious ones will do."""
    pairs = list(pairs)
    margins = _pair_margins(scorer, pairs)
    return tuple(
        KnownPair(query=query, candidate=candidate, margin=float(margin))
        for (query, candidate), margin in zip(pairs, margins, strict=True)
    )


def _pair_margins(scorer: "Scorer", pairs: Sequence[tuple[str, str]]) -> list[float]:
    # One forward a pair: a known margin must not depend on which other pairs are stored with it.
    return [
        float(scorer.margins(scorer.prompt.query(query).ids, [scorer.prompt.item(candidate)])[0])
        for query, candidate in pairs
    ]


def _check_known_pairs(directory: Path, manifest: Manifest, scorer: "Scorer") -> None:
    tolerance = KNOWN_PAIR_TOLERANCE[manifest.precision]
    found = _pair_margins(scorer, [(pair.query, pair.candidate) for pair in manifest.known_pairs])
    for pair, margin in zip(manifest.known_pairs, found, strict=True):
        if not abs(margin - pair.margin) <= tolerance:
            raise LabelerError(
                f"{directory}: the known pair with candidate {pair.candidate[:40]!r} scores {margin:.4f}, it was "
                f"{pair.margin:.4f} when the labeler was made (allowed difference {tolerance:g}); do not use it here"
            )
