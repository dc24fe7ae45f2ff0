"""Two honest baselines that a labeler has to beat: TF-IDF cosine, and logistic regression on TF-IDF cross features.

They see the same training pairs as the labeler and are tuned on the same `calibrate` pairs by average precision.
Knows nothing of language models or of the warehouse.

The logistic regression has one weight for every pair of an entity term and a candidate term, one for every term of
either side alone, and one for the cosine. Its millions of weights are never written out: a penalised fit lies in the
span of the training texts, so it is found exactly in the coordinates of their Gram matrix (and approximately, over
`_LANDMARKS` sampled texts and the leading `_RANK` directions, where there are more).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from semlabel.progress import Progress, ProgressSink, silent

FloatArray = NDArray[np.float64]

N_GRAMS: dict[str, dict[str, Any]] = {
    "words": {"analyzer": "word", "ngram_range": (1, 1)},
    "words and pairs": {"analyzer": "word", "ngram_range": (1, 2)},
    "3-5 letters": {"analyzer": "char_wb", "ngram_range": (3, 5)},
    "4-6 letters": {"analyzer": "char_wb", "ngram_range": (4, 6)},
}
PENALTIES = (1.0, 10.0, 100.0, 1000.0)
"""Searched values of C, the inverse of the penalty."""

_LANDMARKS, _RANK, _MAX_STEPS = 1500, 400, 150
_COSINE_SCALE = 10.0
_BLOCK = 64
"""Pairs multiplied at a time where few cells of the grid are wanted: rows that fit the cache are thrice as fast."""


class Baseline(Protocol):
    """Something that scores pairs of texts; higher means more likely YES."""

    @property
    def settings(self) -> dict[str, Any]:
        """What was chosen on calibrate, and the average precision it reached there."""
        ...

    def scores(self, entity_texts: Sequence[str], candidate_texts: Sequence[str]) -> FloatArray:
        """Scores (pairs,) of equally long rows of entity and candidate texts."""
        ...


@dataclass(frozen=True)
class CosineBaseline:
    """Cosine of the two TF-IDF vectors. `settings` says which n-grams were best on calibrate."""

    vectorizer: Any
    settings: dict[str, Any]

    def scores(self, entity_texts: Sequence[str], candidate_texts: Sequence[str]) -> FloatArray:
        """See `Baseline.scores`."""
        return _Vectors.of(self.vectorizer, _Pairs.of(entity_texts, candidate_texts)).cosines


@dataclass(frozen=True)
class LogisticBaseline:
    """Logistic regression on TF-IDF cross features. `settings` has the n-grams and the C chosen on calibrate."""

    vectorizer: Any
    entity_space: "_Space"
    candidate_space: "_Space"
    weights: FloatArray
    cosine_weight: float
    settings: dict[str, Any]

    def scores(self, entity_texts: Sequence[str], candidate_texts: Sequence[str]) -> FloatArray:
        """See `Baseline.scores`; the score is the log odds."""
        return self.log_odds(_Vectors.of(self.vectorizer, _Pairs.of(entity_texts, candidate_texts)))

    def log_odds(self, vectors: "_Vectors") -> FloatArray:
        """(pairs,), from the vectors that `self.vectorizer` gives."""
        entity = self.entity_space.coordinates(vectors.entities)
        candidate = self.candidate_space.coordinates(vectors.candidates)
        crossed = vectors.pairs.at_product(entity @ self.weights, candidate)
        return crossed + _COSINE_SCALE * self.cosine_weight * vectors.cosines


def fit_baselines(
    train_pairs: Any, calibrate_pairs: Any, seed: int = 7, progress: ProgressSink = silent
) -> dict[str, Baseline]:
    """Fit and tune both baselines: `tfidf_cosine` and `tfidf_logistic`.

    Both tables (mappings or DataFrames) have columns `entity_text`, `candidate_text` and `label`. Raises ValueError
    when either lacks pairs of one label.
    """
    train, train_labels = _judged(train_pairs, "training")
    tune, tune_labels = _judged(calibrate_pairs, "calibrate")
    cosines: list[tuple[float, Baseline]] = []
    logistics: list[tuple[float, Baseline]] = []

    def tried(found: list[tuple[float, Baseline]], baseline: Baseline, scores: FloatArray) -> None:
        found.append((_average_precision(tune_labels, scores), baseline))
        total = len(N_GRAMS) * (1 + len(PENALTIES))
        progress(Progress("baselines", len(cosines) + len(logistics), total, "settings"))

    for name, options in N_GRAMS.items():
        vectorizer = _vectorizer(options, train.entities + train.candidates)
        learn, judge = _Vectors.of(vectorizer, train), _Vectors.of(vectorizer, tune)
        tried(cosines, CosineBaseline(vectorizer, {"n_grams": name}), judge.cosines)
        for logistic in _fit_logistic(vectorizer, name, learn, train_labels, seed):
            tried(logistics, logistic, logistic.log_odds(judge))
    return {"tfidf_cosine": _best(cosines), "tfidf_logistic": _best(logistics)}


def similarity(entity_texts: Sequence[str], candidate_texts: Sequence[str]) -> FloatArray:
    """(entities, candidates): cosines of TF-IDF vectors of these very texts. Nothing is learned or tuned."""
    vectorizer = _vectorizer(N_GRAMS["3-5 letters"], [*entity_texts, *candidate_texts])
    entities, candidates = vectorizer.transform(entity_texts), vectorizer.transform(candidate_texts)
    return np.asarray((entities @ candidates.T).toarray(), dtype=np.float64)


@dataclass(frozen=True)
class _Pairs:
    """Pairs of texts as distinct texts and indices, because most texts come many times."""

    entities: list[str]
    candidates: list[str]
    entity: NDArray[np.intp]
    candidate: NDArray[np.intp]

    @classmethod
    def of(cls, entity_texts: Sequence[str], candidate_texts: Sequence[str]) -> "_Pairs":
        if len(entity_texts) != len(candidate_texts):
            raise ValueError(f"{len(entity_texts)} entity texts but {len(candidate_texts)} candidate texts")
        entities, entity = np.unique(np.asarray(entity_texts, dtype=object), return_inverse=True)
        candidates, candidate = np.unique(np.asarray(candidate_texts, dtype=object), return_inverse=True)
        return cls(list(entities), list(candidates), entity, candidate)

    def at(self, grid: FloatArray) -> FloatArray:
        """The cells of a grid (distinct entities, distinct candidates) that are pairs."""
        return grid[self.entity, self.candidate]

    def at_product(self, left: FloatArray, right: FloatArray) -> FloatArray:
        """The cells of left @ right.T that are pairs."""
        if len(self.entity) * 50 >= len(left) * len(right):
            return self.at(left @ right.T)
        found = np.empty(len(self.entity))
        for start in range(0, len(found), _BLOCK):
            part = slice(start, start + _BLOCK)
            found[part] = np.einsum("pr,pr->p", left[self.entity[part]], right[self.candidate[part]])
        return found


@dataclass(frozen=True)
class _Vectors:
    """What one vectorizer makes of some pairs: computed once for every baseline on it, because it takes longest."""

    pairs: _Pairs
    entities: Any
    candidates: Any
    cosines: FloatArray

    @classmethod
    def of(cls, vectorizer: Any, pairs: _Pairs) -> "_Vectors":
        """Vectors (distinct texts, terms) of either side, sparse; cosines (pairs,)."""
        entities, candidates = vectorizer.transform(pairs.entities), vectorizer.transform(pairs.candidates)
        # Rows of a TF-IDF matrix have length one.
        return cls(pairs, entities, candidates, pairs.at((entities @ candidates.T).toarray()))


@dataclass(frozen=True)
class _Space:
    """Coordinates of texts in the span of landmark texts, with a constant 1 appended."""

    landmarks: Any
    projection: FloatArray

    @classmethod
    def of(cls, vectors: Any, seed: int) -> "_Space":
        """`vectors`: (texts, terms) sparse."""
        count = vectors.shape[0]
        chosen = np.random.default_rng(seed).permutation(count)[:_LANDMARKS] if count > _LANDMARKS else np.arange(count)
        landmarks = vectors[chosen]
        values, directions = np.linalg.eigh((landmarks @ landmarks.T).toarray())
        kept = np.flatnonzero(values > 1e-9 * values[-1])[::-1][:_RANK]
        return cls(landmarks, directions[:, kept] / np.sqrt(values[kept]))

    def coordinates(self, vectors: Any) -> FloatArray:
        """(texts, rank + 1); distances among the landmark texts are kept exactly up to the rank."""
        inner = (vectors @ self.landmarks.T).toarray() @ self.projection
        return np.column_stack([inner, np.ones(len(inner))])


def _fit_logistic(
    vectorizer: Any, name: str, train: _Vectors, labels: NDArray[np.bool_], seed: int
) -> Iterator[LogisticBaseline]:
    """One fit per C, each started from the one before."""
    from scipy.optimize import minimize
    from scipy.sparse import csr_array

    pairs, spaces = train.pairs, (_Space.of(train.entities, seed), _Space.of(train.candidates, seed))
    left, right = spaces[0].coordinates(train.entities), spaces[1].coordinates(train.candidates)
    cosine, truth = _COSINE_SCALE * train.cosines, labels.astype(np.float64)
    shape = (left.shape[1], right.shape[1])

    def objective(theta: FloatArray, penalty: float) -> tuple[float, FloatArray]:
        weights = theta[:-1].reshape(shape)
        score = pairs.at_product(left @ weights, right) + theta[-1] * cosine
        error = 1.0 / (1.0 + np.exp(-np.clip(score, -500, 500))) - truth
        cells = csr_array((error, (pairs.entity, pairs.candidate)), shape=(len(left), len(right)))
        slope = left.T @ (cells @ right)
        loss = float(np.sum(np.logaddexp(0.0, score) - truth * score)) + penalty / 2.0 * float(theta @ theta)
        return loss, np.append(slope.ravel(), error @ cosine) + penalty * theta

    theta = np.zeros(shape[0] * shape[1] + 1)
    for inverse in PENALTIES:
        step = minimize(
            objective, theta, args=(1.0 / inverse,), jac=True, method="L-BFGS-B", options={"maxiter": _MAX_STEPS}
        )
        theta = step.x
        settings = {"n_grams": name, "C": inverse}
        weights = theta[:-1].reshape(shape).copy()
        yield LogisticBaseline(vectorizer, *spaces, weights, float(theta[-1]), settings)


def _vectorizer(options: dict[str, Any], texts: Sequence[str]) -> Any:
    from sklearn.feature_extraction.text import TfidfVectorizer

    return TfidfVectorizer(sublinear_tf=True, **options).fit(texts)


def _judged(table: Any, name: str) -> tuple[_Pairs, NDArray[np.bool_]]:
    labels = np.asarray(table["label"], dtype=bool)
    if not labels.any() or labels.all():
        raise ValueError(f"the {name} pairs do not hold both labels, so no baseline can be fitted")
    return _Pairs.of(list(table["entity_text"]), list(table["candidate_text"])), labels


def _average_precision(labels: NDArray[np.bool_], scores: FloatArray) -> float:
    from sklearn.metrics import average_precision_score

    return float(average_precision_score(labels, scores))


def _best(tried: list[tuple[float, Baseline]]) -> Baseline:
    score, baseline = max(tried, key=lambda found: found[0])
    baseline.settings["calibrate_average_precision"] = score
    return baseline
