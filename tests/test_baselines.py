"""Baselines: they learn what such models can learn, are tuned only on calibrate, and are exact where they say so."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score

from semlabel import baselines
from semlabel.baselines import fit_baselines

TOPICS = {
    "grow plants": ["irrigates orchards", "prunes shrubs", "sows seeds in soil"],
    "repair engines": ["fixes motors", "replaces gaskets", "tests brakes"],
    "teach students": ["grades homework", "lectures pupils", "plans lessons"],
    "cook meals": ["bakes bread", "seasons soups", "roasts poultry"],
}


@pytest.fixture(autouse=True)
def few_settings(monkeypatch):
    monkeypatch.setattr(baselines, "PENALTIES", (1.0, 30.0))
    chosen = {name: baselines.N_GRAMS[name] for name in ("words", "3-5 letters")}
    monkeypatch.setattr(baselines, "N_GRAMS", chosen)


def pairs(entities, seed=0, named=False):
    """Entities do two topics' tasks each; without `named` no word of the candidate stands in the entity."""
    rng = np.random.default_rng(seed)
    table = {"entity_text": [], "candidate_text": [], "label": []}
    for _ in range(entities):
        does = rng.choice(list(TOPICS), 2, replace=False)
        tasks = [rng.choice(TOPICS[topic]) for topic in does] + [f"filler{rng.integers(30)}"]
        text = " and ".join([*tasks, *(does if named else [])])
        for topic in TOPICS:
            table["entity_text"].append(text)
            table["candidate_text"].append(topic)
            table["label"].append(topic in does)
    return table


def reached(baseline, table):
    return average_precision_score(table["label"], baseline.scores(table["entity_text"], table["candidate_text"]))


def test_cosine_finds_shared_words():
    found = fit_baselines(pairs(30, named=True), pairs(15, seed=1, named=True))
    assert reached(found["tfidf_cosine"], pairs(15, seed=2, named=True)) > 0.95


def test_cross_features_learn_what_no_shared_word_says():
    found = fit_baselines(pairs(60), pairs(20, seed=1))
    fresh = pairs(30, seed=2)
    assert reached(found["tfidf_logistic"], fresh) > 0.97
    assert reached(found["tfidf_cosine"], fresh) < 0.8


def test_the_fit_equals_logistic_regression_on_the_written_out_cross_features():
    table = pairs(25)
    train, labels = baselines._judged(table, "training")
    vectorizer = baselines._vectorizer(baselines.N_GRAMS["words"], train.entities + train.candidates)
    vectors = baselines._Vectors.of(vectorizer, train)
    *_, ours = baselines._fit_logistic(vectorizer, "words", vectors, labels, seed=7)

    def written_out(texts, candidates):
        left = np.column_stack([vectorizer.transform(texts).toarray(), np.ones(len(texts))])
        right = np.column_stack([vectorizer.transform(candidates).toarray(), np.ones(len(candidates))])
        cosine = 10.0 * (left[:, :-1] * right[:, :-1]).sum(axis=1)
        return np.column_stack([np.einsum("pi,pj->pij", left, right).reshape(len(texts), -1), cosine])

    oracle = LogisticRegression(C=30.0, fit_intercept=False, tol=1e-10, max_iter=5000)
    oracle.fit(written_out(table["entity_text"], table["candidate_text"]), labels)
    fresh = pairs(10, seed=5)
    expected = oracle.decision_function(written_out(fresh["entity_text"], fresh["candidate_text"]))
    assert ours.scores(fresh["entity_text"], fresh["candidate_text"]) == pytest.approx(expected, abs=0.02)


def test_settings_are_chosen_by_average_precision_on_calibrate():
    train, calibrate = pairs(40), pairs(20, seed=1)
    found = fit_baselines(train, calibrate)
    for name in ("tfidf_cosine", "tfidf_logistic"):
        settings = found[name].settings
        assert settings["calibrate_average_precision"] == pytest.approx(reached(found[name], calibrate))
    assert found["tfidf_logistic"].settings["C"] in (1.0, 30.0)


def test_scores_do_not_depend_on_row_order_or_on_the_other_pairs():
    found, fresh = fit_baselines(pairs(30), pairs(15, seed=1)), pairs(10, seed=2)
    order = np.random.default_rng(0).permutation(len(fresh["label"]))
    for baseline in found.values():
        scores = baseline.scores(fresh["entity_text"], fresh["candidate_text"])
        shuffled = baseline.scores(
            [fresh["entity_text"][i] for i in order], [fresh["candidate_text"][i] for i in order]
        )
        assert shuffled == pytest.approx(scores[order], abs=1e-9)
        alone = baseline.scores(fresh["entity_text"][:1], fresh["candidate_text"][:1])
        assert alone == pytest.approx(scores[:1], abs=1e-9)


def test_the_same_seed_gives_the_same_scores(monkeypatch):
    monkeypatch.setattr(baselines, "_LANDMARKS", 20)
    train, calibrate, fresh = pairs(40), pairs(15, seed=1), pairs(10, seed=2)
    runs = [
        fit_baselines(train, calibrate, seed=3)["tfidf_logistic"].scores(fresh["entity_text"], fresh["candidate_text"])
        for _ in range(2)
    ]
    assert (runs[0] == runs[1]).all()
    assert average_precision_score(fresh["label"], runs[0]) > 0.9


def test_words_never_seen_in_training_are_no_error():
    found = fit_baselines(pairs(20), pairs(10, seed=1))
    for baseline in found.values():
        assert np.isfinite(baseline.scores(["zzz qqq", ""], ["unheard of", "grow plants"])).all()


def test_tables_that_cannot_be_learned_from_are_refused():
    table = pairs(10)
    with pytest.raises(ValueError, match="training pairs do not hold both labels"):
        fit_baselines(table | {"label": [False] * len(table["label"])}, table)
    with pytest.raises(ValueError, match="calibrate pairs do not hold both labels"):
        fit_baselines(table, table | {"label": [True] * len(table["label"])})
    with pytest.raises(ValueError, match="2 entity texts but 1 candidate"):
        fit_baselines(table, table)["tfidf_cosine"].scores(["a", "b"], ["c"])


def test_every_text_is_turned_into_a_vector_once_per_vectorizer_however_many_settings_are_tried(monkeypatch):
    from sklearn.feature_extraction.text import TfidfVectorizer

    transformed = []
    original = TfidfVectorizer.transform
    monkeypatch.setattr(TfidfVectorizer, "transform", lambda self, x: transformed.append(len(x)) or original(self, x))
    train, calibrate = pairs(30), pairs(15, seed=1)
    fit_baselines(train, calibrate)
    once = [len(set(table[side])) for table in (train, calibrate) for side in ("entity_text", "candidate_text")]
    assert transformed == once * len(baselines.N_GRAMS)


def test_it_is_told_how_far_the_fits_are():
    told = []
    fit_baselines(pairs(30), pairs(15, seed=1), progress=told.append)
    assert [(step.done, step.total, step.unit) for step in told] == [(n, 6, "settings") for n in range(1, 7)]


def test_scattered_pairs_are_multiplied_in_blocks_to_the_same_bits():
    rng = np.random.default_rng(0)
    left, right, count = rng.normal(size=(300, 37)), rng.normal(size=(300, 37)), 3 * baselines._BLOCK + 1
    entity, candidate = rng.integers(300, size=(2, count))
    found = baselines._Pairs([""] * 300, [""] * 300, entity, candidate).at_product(left, right)
    assert (found == np.einsum("pr,pr->p", left[entity], right[candidate])).all()
