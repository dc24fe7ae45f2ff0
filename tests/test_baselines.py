"""Baselines: strong where their kind can be, tuned on calibrate, deterministic."""

import numpy as np
import pandas as pd
import pytest

from semlabel.baselines import fit_baselines

WORDS = ["bake", "sew", "drive", "teach", "paint", "weld", "cook", "file", "plan", "sing", "mend", "sort"]
# What only training pairs can tell: the candidate's word never stands in the entity's text.
SYNONYMS = {word: f"{word[::-1]}ing" for word in WORDS}


def _pairs(seed: int, entities: int, synonyms: bool) -> pd.DataFrame:
    random = np.random.default_rng(seed)
    rows = []
    for _ in range(entities):
        own = set(random.choice(WORDS, size=4, replace=False))
        text = " and ".join(sorted(own))
        rows += [(text, f"know {SYNONYMS[word] if synonyms else word}", word in own) for word in WORDS]
    return pd.DataFrame(rows, columns=["entity_text", "candidate_text", "label"])


def _precision(baseline, pairs: pd.DataFrame) -> float:
    from sklearn.metrics import average_precision_score

    return average_precision_score(pairs["label"], baseline.scores(pairs["entity_text"], pairs["candidate_text"]))


def test_shared_words_are_found_by_both() -> None:
    fitted = fit_baselines(_pairs(1, 60, synonyms=False), _pairs(2, 20, synonyms=False))
    test = _pairs(3, 20, synonyms=False)
    assert set(fitted) == {"tfidf_cosine", "tfidf_logistic"}
    assert _precision(fitted["tfidf_cosine"], test) == pytest.approx(1.0)
    assert _precision(fitted["tfidf_logistic"], test) > 0.99


def test_the_logistic_one_learns_crosses_that_share_no_word() -> None:
    fitted = fit_baselines(_pairs(1, 150, synonyms=True), _pairs(2, 20, synonyms=True))
    test = _pairs(3, 20, synonyms=True)
    assert _precision(fitted["tfidf_logistic"], test) > 0.95
    assert _precision(fitted["tfidf_cosine"], test) < 0.6


def test_the_search_is_told_and_the_same_every_time() -> None:
    train, calibrate = _pairs(1, 40, synonyms=False), _pairs(2, 10, synonyms=False)
    first, second = (fit_baselines(train, calibrate)["tfidf_logistic"] for _ in range(2))
    assert first.chosen == second.chosen
    assert set(first.chosen) == {"analyzer", "ngrams", "C", "calibrate_average_precision"}
    texts = list(calibrate["entity_text"]), list(calibrate["candidate_text"])
    assert np.array_equal(first.scores(*texts), second.scores(*texts))


def test_texts_without_a_known_word_get_a_score_and_not_an_error() -> None:
    fitted = fit_baselines(_pairs(1, 40, synonyms=False), _pairs(2, 10, synonyms=False))
    for baseline in fitted.values():
        assert np.isfinite(baseline.scores(["", "Ωmega"], ["???", "bake"])).all()


def test_one_answer_alone_is_refused() -> None:
    train = _pairs(1, 5, synonyms=False)
    with pytest.raises(ValueError, match="calibrate pairs have only one answer"):
        fit_baselines(train, train[~train["label"]])
