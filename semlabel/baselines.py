"""Two simple baselines that a fine-tuned model must beat: TF-IDF cosine, and logistic regression on TF-IDF crosses.

Both are fitted on the training pairs and tuned (n-grams, regularisation) by average precision on `calibrate`, as well
as their kind allows: a weak baseline proves nothing. Knows texts and labels; nothing of models, splits or gates.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pandas as pd
    from scipy.sparse import csr_matrix

_NGRAMS: tuple[dict[str, Any], ...] = (
    {"analyzer": "word", "ngram_range": (1, 1)},
    {"analyzer": "word", "ngram_range": (1, 2)},
    {"analyzer": "char_wb", "ngram_range": (3, 5)},
)
_C = (1.0, 10.0, 100.0, 1000.0)
_ENTITY_TERMS = 40
_CROSS_BITS = 18


@dataclass(frozen=True)
class Baseline:
    """A fitted baseline: `score` ranks pairs, `chosen` says what the search on `calibrate` found."""

    score: Callable[[Sequence[str], Sequence[str]], np.ndarray]
    chosen: dict[str, Any]

    def scores(self, entity_texts: "Sequence[str] | pd.Series", candidate_texts: "Sequence[str] | pd.Series") -> Any:
        """One float64 per pair of texts; higher means YES more likely."""
        return self.score(list(entity_texts), list(candidate_texts))


def fit_baselines(train: "pd.DataFrame", calibrate: "pd.DataFrame", seed: int = 7) -> dict[str, Baseline]:
    """`tfidf_cosine` and `tfidf_logistic`, fitted on `train` and tuned on `calibrate`.

    Both frames have entity_text, candidate_text and label, one row per pair. Raises ValueError unless both answers
    occur in both frames.
    """
    for name, frame in (("train", train), ("calibrate", calibrate)):
        if frame["label"].nunique() < 2:
            raise ValueError(f"the {name} pairs have only one answer; baselines need both")
    spaces = [_TextSpace(train, options) for options in _NGRAMS]
    return {
        "tfidf_cosine": _best(found for space in spaces for found in _cosine(space, calibrate)),
        # Character n-grams give a hundred times the crosses and no better ranking.
        "tfidf_logistic": _best(found for space in spaces[:2] for found in _logistic(space, train, calibrate, seed)),
    }


def _best(tried: Iterable[tuple[float, Baseline]]) -> Baseline:
    precision, baseline = max(tried, key=lambda found: found[0])
    return replace(baseline, chosen=baseline.chosen | {"calibrate_average_precision": precision})


def _precision(calibrate: "pd.DataFrame", scores: np.ndarray) -> float:
    from sklearn.metrics import average_precision_score

    return float(average_precision_score(calibrate["label"], scores))


def _cosine(space: "_TextSpace", calibrate: "pd.DataFrame") -> Iterator[tuple[float, Baseline]]:
    scores = space.cosine(list(calibrate["entity_text"]), list(calibrate["candidate_text"]))
    yield _precision(calibrate, scores), Baseline(space.cosine, space.name)


class _TextSpace:
    """TF-IDF of entities and candidates in one vocabulary, learned from the texts of the training pairs."""

    def __init__(self, train: "pd.DataFrame", options: dict[str, Any]) -> None:
        from sklearn.feature_extraction.text import TfidfVectorizer

        self.name = {"analyzer": options["analyzer"], "ngrams": list(options["ngram_range"])}
        texts = [*dict.fromkeys(train["entity_text"]), *dict.fromkeys(train["candidate_text"])]
        self.vectorizer = TfidfVectorizer(sublinear_tf=True, min_df=1, strip_accents="unicode", **options).fit(texts)

    def rows(self, texts: Sequence[str]) -> "tuple[csr_matrix, np.ndarray]":
        """Vectors of the distinct texts, and which of them each text is."""
        distinct = {text: number for number, text in enumerate(dict.fromkeys(texts))}
        return self.vectorizer.transform(list(distinct)).tocsr(), np.array([distinct[text] for text in texts])

    def cosine(self, entity_texts: Sequence[str], candidate_texts: Sequence[str]) -> np.ndarray:
        entities, entity_of = self.rows(entity_texts)
        candidates, candidate_of = self.rows(candidate_texts)
        table = np.asarray((entities @ candidates.T).todense())
        return table[entity_of, candidate_of]

    def features(self, entity_texts: Sequence[str], candidate_texts: Sequence[str]) -> "csr_matrix":
        """Per pair: the cosine, the product of every shared term, the candidate's terms, and hashed crosses of the
        entity's weightiest terms with the candidate's terms."""
        from scipy.sparse import csr_matrix, hstack

        entities, entity_of = self.rows(entity_texts)
        candidates, candidate_of = self.rows(candidate_texts)
        shared = entities[entity_of].multiply(candidates[candidate_of]).tocsr()
        cosine = csr_matrix(np.asarray(shared.sum(axis=1)))
        crosses = _crosses(_weightiest(entities, _ENTITY_TERMS), candidates, entity_of, candidate_of)
        return hstack([cosine, shared, candidates[candidate_of], crosses], format="csr")


def _weightiest(matrix: "csr_matrix", keep: int) -> "csr_matrix":
    """The `keep` largest entries of every row."""
    kept = matrix.copy()
    for row in range(kept.shape[0]):
        values = kept.data[kept.indptr[row] : kept.indptr[row + 1]]
        if len(values) > keep:
            values[values < np.partition(values, -keep)[-keep]] = 0
    kept.eliminate_zeros()
    return kept


def _crosses(
    entities: "csr_matrix", candidates: "csr_matrix", entity_of: np.ndarray, candidate_of: np.ndarray
) -> "csr_matrix":
    """Hashed products of an entity's and a candidate's terms, (pairs, 2 ** bits)."""
    from scipy.sparse import csr_matrix

    # Two odd multipliers and the top bits: a cheap hash that spreads neighbouring columns.
    left = entities.indices.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    right = candidates.indices.astype(np.uint64) * np.uint64(0xC2B2AE3D27D4EB4F)
    indices, data, ends = [], [], [0]
    for one, other in zip(entity_of, candidate_of, strict=True):
        a, b = slice(*entities.indptr[one : one + 2]), slice(*candidates.indptr[other : other + 2])
        mixed = (left[a, None] ^ right[None, b]) * np.uint64(0xFF51AFD7ED558CCD)
        indices.append((mixed >> np.uint64(64 - _CROSS_BITS)).astype(np.int32).ravel())
        data.append((entities.data[a, None] * candidates.data[None, b]).astype(np.float32).ravel())
        ends.append(ends[-1] + len(data[-1]))
    crosses = csr_matrix(
        (np.concatenate(data), np.concatenate(indices), np.array(ends)), shape=(len(entity_of), 1 << _CROSS_BITS)
    )
    crosses.sum_duplicates()
    return crosses


def _logistic(
    space: _TextSpace, train: "pd.DataFrame", calibrate: "pd.DataFrame", seed: int
) -> Iterator[tuple[float, Baseline]]:
    """One fitted model per regularisation strength, with its average precision on calibrate."""
    from sklearn.linear_model import LogisticRegression

    features, judged = (
        space.features(list(pairs["entity_text"]), list(pairs["candidate_text"])) for pairs in (train, calibrate)
    )
    labels = train["label"].to_numpy(dtype=bool)
    for c in _C:
        model = LogisticRegression(C=c, solver="liblinear", dual=True, random_state=seed, max_iter=500).fit(
            features, labels
        )
        scored = Baseline(_LogisticScore(space, model), space.name | {"C": c})
        yield _precision(calibrate, model.decision_function(judged)), scored


@dataclass(frozen=True)
class _LogisticScore:
    space: _TextSpace
    model: Any

    def __call__(self, entity_texts: Sequence[str], candidate_texts: Sequence[str]) -> np.ndarray:
        return np.asarray(self.model.decision_function(self.space.features(entity_texts, candidate_texts)))
