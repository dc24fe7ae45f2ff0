"""Experiments: equal pairs, the right losses, nothing extrapolated, runs that go on, and every cell accounted for."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score, f1_score
from torch.nn.functional import cross_entropy
from transformers import TrainingArguments

from semlabel.bench.experiments import ablations, data_efficiency
from semlabel.bench.experiments.curves import first_reach, mean_curves, ratio_at_their_best, ratios
from semlabel.bench.experiments.cuts import best_f1_cut, candidate_cuts, f1_of
from semlabel.bench.experiments.learners import PackedGeneration, SemanticScoring
from semlabel.bench.experiments.problem import Part, load_problem, overridden
from semlabel.bench.experiments.variants import Variant, read_variants
from semlabel.bench.experiments.whole_prompt import WholePromptTrainer, whole_prompt_objective
from semlabel.bench.kept import Kept
from semlabel.bench.kept import Part as KeptPart
from semlabel.cli import run_command
from semlabel.errors import SettingsError
from semlabel.generation.examples import NO_LOSS
from semlabel.generation.prompt import PackPrompt
from semlabel.generation.trainer import collate_packs, list_objective, pack_rounds
from semlabel.label_trainer import collate
from semlabel.metrics import quality_draws
from semlabel.models import load_model
from semlabel.packing import Layout
from semlabel.prompt import Prompt, PromptSpec
from semlabel.settings import Training, load_settings
from semlabel.training import train, trainable_model
from semlabel.training_data import TrainingRound
from tests.tiny import save_tiny, tiny_tokenizer

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
WORDS = ("keep", "repair", "teach", "sell", "join", "check", "plan", "write")
THINGS = ("records", "machines", "people", "goods")
PLAN = data_efficiency.Plan(
    sizes=(8, 16), learning_rates=(1e-3, 1e-4), seeds=(0, 1), calibrate=3, test=3, free=1, query_tokens=48,
    catalog_top=8, resamples=20,
)  # fmt: skip
SMALL = ablations.Plan(pairs=8, calibrate=3, test=3, query_tokens=48, catalog_top=8, resamples=20)


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A project of 24 entities, 12 candidates and a tiny model."""
    folder = tmp_path_factory.mktemp("project")
    save_tiny(folder / "model")
    rng = np.random.default_rng(3)
    candidates = [f"{word} {thing}" for word in WORDS[:4] for thing in THINGS[:3]]
    entities, references = [], []
    for number in range(24):
        own = rng.permutation(len(candidates))[:3]
        text = f"number {number * 7919} " + " ".join(rng.permutation(WORDS)) + f" {rng.integers(10**9)}"
        entities.append(f"e{number},{text}")
        references += [f"e{number},c{place},1" for place in own]
    (folder / "entities.csv").write_text("entity_id,text\n" + "\n".join(entities) + "\n")
    listed = [f"c{place},{text},g{place % 3}" for place, text in enumerate(candidates)]
    (folder / "catalog.csv").write_text("candidate_id,text,group\n" + "\n".join(listed) + "\n")
    (folder / "references.csv").write_text("entity_id,candidate_id,label\n" + "\n".join(references) + "\n")
    (folder / "pipeline.toml").write_text(
        """
[sources]
entities = "entities.csv"
catalog = "catalog.csv"
references = "references.csv"
[model]
base = "./model"
precision = "fp32"
[prompt]
template = "Profile: {entity}\\nActivity: {candidate}\\nAnswer:"
max_query_tokens = 48
[splits]
calibrate = 2
certify = 2
test = 2
[training]
items_per_round = 4
precision = "fp32"
[calibration]
min_precision = 0.5
"""
    )
    return load_settings(folder / "pipeline.toml")


@pytest.fixture(scope="module")
def problem(project):
    return load_problem(overridden(project, PLAN.overrides()), PLAN.calibrate, PLAN.test)


def test_the_entities_that_the_project_holds_out_are_never_looked_at(project, problem):
    from semlabel.sources import read_entities
    from semlabel.splits import assign_splits

    split = assign_splits(read_entities(project).frame, project.splits).split
    used = set(problem.entities["entity_id"])
    assert used == {entity_id for entity_id, name in split.items() if name == "train"}
    held_out = [set(part.entity_ids) for part in (problem.calibrate, problem.test)]
    trained = set(problem.pairs(problem.settings)["entity_id"])
    assert len(held_out[0]) == len(held_out[1]) == 3
    assert not held_out[0] & held_out[1] and not trained & (held_out[0] | held_out[1])


def test_what_is_judged_is_the_whole_cross_product_in_the_catalogs_order(problem):
    part = problem.test
    assert len(part.labels) == 3 * 8 == len(part.of(np.zeros((3, 8))))
    known = set(zip(problem.references["entity_id"], problem.references["candidate_id"], strict=True))
    ids = list(problem.catalog["candidate_id"])
    expected = [(part.entity_ids[r], ids[c]) in known for r, c in zip(part.rows, part.columns, strict=True)]
    assert part.labels.tolist() == expected
    assert len(part.first(1).labels) == 8


def test_smaller_sizes_are_the_start_of_larger_ones_and_too_large_ones_are_refused(problem):
    def pairs(size):
        return problem.pairs(overridden(problem.settings, {"training": {"max_pairs": size}}))

    assert pairs(8).equals(pairs(16).iloc[:8])
    with pytest.raises(SettingsError, match=r"1,000 training pairs are asked for and \d+ are there"):
        pairs(1000)
    with pytest.raises(SettingsError, match=r"training.hard_fraction = 2"):
        overridden(problem.settings, {"training": {"hard_fraction": 2}})


def packs(problem, pack_size=3):
    settings = overridden(problem.settings, {"training": {"max_pairs": 8}})
    prompt = PackPrompt(PromptSpec.from_settings(settings.prompt), tiny_tokenizer(), pack_size)
    pairs = problem.pairs(settings)
    return prompt, pairs, pack_rounds(prompt, pairs, problem.entities, problem.candidates, 7, 4)


def test_the_packs_hold_exactly_the_pairs_and_an_entity_is_a_round(problem):
    prompt, pairs, rounds = packs(problem)
    assert sum(len(one.labels) for one in rounds) == len(pairs) == 8
    assert sum(sum(one.labels) for one in rounds) == int(pairs["label"].sum())
    texts = dict(zip(problem.candidates["candidate_id"], problem.candidates["text"], strict=True))
    written = " ".join(prompt.text_of(example.ids) for one in rounds for example in one.examples)
    for candidate_id, count in pairs["candidate_id"].value_counts().items():
        assert written.count(f". {texts[candidate_id]}\n") >= count
    assert [len(one.examples) for one in rounds] == [1] * 4 or all(len(one.examples) <= 2 for one in rounds)


def test_the_loss_of_lists_is_that_of_transformers_on_the_answer_tokens_alone(problem, tmp_path):
    _, _, rounds = packs(problem)
    model = trainable_model(problem.settings.model.base, Training(), "cpu", "stock")
    objective = list_objective()
    kept = TrainingArguments(str(tmp_path))  # else the Trainer makes a folder of its own where the tests are run
    trainer = objective.trainer(model=model, args=kept, precision="fp32", train_dataset=[], data_collator=collate_packs)
    for one in rounds:
        batch = collate_packs([one])
        loss, _ = trainer.summed_loss(model, batch)
        expected, terms = 0.0, 0
        for example in one.examples:
            logits = model(input_ids=torch.tensor([example.ids])).logits[0, :-1]
            targets = torch.tensor(example.targets[1:])
            expected += cross_entropy(logits, targets, ignore_index=NO_LOSS, reduction="sum").item()
            terms += int((targets != NO_LOSS).sum())
        assert trainer.terms(batch) == terms > 0
        assert loss.item() == pytest.approx(expected, rel=1e-5)


def test_packed_generation_learns_lists_through_the_same_training(problem, tmp_path):
    settings = overridden(
        problem.settings, {"training": {"max_pairs": 8, "learning_rate": 2e-2, "epochs": 12.0, "seed": 1}}
    )
    learner = PackedGeneration(problem, settings)
    pairs = problem.pairs(settings)
    result = learner.train(pairs, tmp_path / "out")
    assert result.pairs == 8 * 12
    assert result.loss_curve[-1] < 0.2 < 1.0 < result.loss_curve[0]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["model", "training.json"]
    texts = problem.test.texts
    decisions, faults, _ = learner.answer(result.model_dir, texts)
    assert (faults.lists, faults.candidates) == (3, 24)
    # A list that ends after four candidates, as in training, is counted and not repaired.
    assert decisions.shape == (3, 8) and (decisions == -1).sum() == faults.missing + faults.duplicated
    scored = learner.score(result.model_dir, texts)
    assert scored.margins.shape == (3, 8) and np.isfinite(scored.margins).all()
    assert scored.counts["decoded_tokens"] > 0


def test_margins_stand_where_their_candidates_stand_however_lists_are_shuffled(problem):
    learner = PackedGeneration(problem, problem.settings)
    base = problem.settings.model.base
    one = learner.score(base, problem.test.texts).margins
    generators, places, requests = learner._requests(base, problem.test.texts, True, 0.0)
    assert places.tolist() != list(range(8))
    answered = generators[0].answer(requests)
    for place, number in enumerate(places):
        assert one[1, number] == answered[1].margins[place]


def test_the_loss_on_whole_prompts_is_the_sum_over_single_prompts(problem, tmp_path):
    prompt = Prompt(PromptSpec.from_settings(problem.settings.prompt), tiny_tokenizer())
    items = prompt.items(["keep records", "sell", "teach people to plan"])
    one = TrainingRound(prompt.query("a nurse of the office").ids, items, [1, 0, 1])
    base = problem.settings.model.base
    model = trainable_model(base, Training(), "cpu")
    objective = whole_prompt_objective(prompt)
    kept = TrainingArguments(str(tmp_path))
    trainer = objective.trainer(model=model, args=kept, precision="fp32", train_dataset=[], data_collator=collate)
    assert isinstance(trainer, WholePromptTrainer)
    batch = collate([one])
    plain = load_model(base, "fp32", "cpu")
    expected, terms = 0.0, 0
    for item, label in zip(one.items, one.labels, strict=True):
        ids = [*one.query, *item, prompt.yes_id if label else prompt.no_id]
        logits = plain(input_ids=torch.tensor([ids])).logits[0, :-1]
        expected += cross_entropy(logits, torch.tensor(ids[1:]), reduction="sum").item()
        terms += len(ids) - 1
    assert trainer.terms(batch) == terms
    assert trainer.summed_loss(model, batch)[0].item() == pytest.approx(expected, rel=1e-5)
    assert Layout.from_tensors(batch["layout"]).total < terms


def test_another_objective_is_another_training(problem, tmp_path):
    prompt = Prompt(PromptSpec.from_settings(problem.settings.prompt), tiny_tokenizer())
    rounds = [TrainingRound(prompt.query("a nurse").ids, prompt.items(["keep records"]), [1])]
    base = problem.settings.model.base
    first = train(base, prompt, rounds, Training(), tmp_path, device="cpu")
    other = train(base, prompt, rounds, Training(), tmp_path, device="cpu", objective=whole_prompt_objective(prompt))
    assert first.training_digest != other.training_digest
    assert other.loss_curve != first.loss_curve


def test_f1_is_best_at_the_chosen_cut_and_a_cut_stands_between_margins():
    rng = np.random.default_rng(1)
    labels = rng.random(200) < 0.2
    margins = (rng.normal(size=200) + labels).round(1)
    cut = best_f1_cut(labels, margins)
    best = max(f1_score(labels, margins >= other) for other in np.unique(margins))
    assert f1_score(labels, margins >= cut) == f1_of(labels, margins >= cut) == best
    assert cut not in margins
    assert best_f1_cut([False, False], [1.0, 2.0]) > 2.0
    assert f1_of(np.zeros(2, bool), np.zeros(2, bool)) == 0.0


def test_shrunk_cuts_lie_between_the_candidates_own_and_the_one_for_all():
    rows, columns = np.divmod(np.arange(40), 2)
    labels = (columns == 0) & (rows % 4 == 0)
    part = Part([str(n) for n in range(20)], [""] * 20, rows, columns, labels)
    margins = np.where(labels, 2.0, 0.0) + 3.0 * (columns == 1)
    overall = best_f1_cut(labels, margins)
    own, shrunk = (candidate_cuts(part, margins, 3, shrink) for shrink in (False, True))
    assert own[0] == 1.0 and own[1] > 3.0
    assert shrunk[0] == pytest.approx(5 / 25 * own[0] + 20 / 25 * overall)
    assert shrunk[1] == own[2] == overall


def test_draws_begin_with_the_pairs_as_they_are():
    rng = np.random.default_rng(2)
    labels, margins = rng.random(60) < 0.3, rng.normal(size=60)
    entities = np.repeat(np.arange(6), 10)
    draws = quality_draws(entities, labels, margins, margins >= 0.2, resamples=50)
    assert {name: drawn.shape for name, drawn in draws.items()} == dict.fromkeys(draws, (51,))
    assert draws["average_precision"][0] == pytest.approx(average_precision_score(labels, margins))
    assert draws["f1"][0] == pytest.approx(f1_score(labels, margins >= 0.2))
    again = quality_draws(entities, labels, margins, margins >= 0.2, resamples=50)
    assert all(np.array_equal(draws[name], again[name], equal_nan=True) for name in draws)


def test_a_quality_is_read_off_between_sizes_and_never_beyond_them():
    sizes, curve = (100, 200, 400), [0.2, 0.4, 0.3]
    assert first_reach(sizes, curve, 0.3) == pytest.approx(100 * 2**0.5)
    assert first_reach(sizes, curve, 0.4) == 200
    assert first_reach(sizes, curve, 0.2) == 0.0
    assert first_reach(sizes, curve, 0.41) == math.inf


def test_a_ratio_outside_of_what_was_tested_is_more_or_less_and_not_a_number():
    sizes = (100, 200, 400)
    ours = np.array([[0.2, 0.4, 0.6]] * 3)
    theirs = np.array([[0.1, 0.2, 0.4]] * 3)  # always one size behind
    found = ratios(sizes, ours, theirs)
    assert [row["ratio"] for row in found] == [
        {"is": "equal", "value": 2.0},
        {"is": "equal", "value": 2.0},
        {"is": "more", "value": 1.0},
    ]
    assert ratios(sizes, theirs, ours)[0]["low"] == {"is": "less", "value": 1.0}
    best = ratio_at_their_best(sizes, ours, theirs)
    assert (best["ratio"], best["quality"]) == ({"is": "equal", "value": 2.0}, 0.4)
    assert ratio_at_their_best(sizes, theirs, ours)["ratio"] == {"is": "less", "value": 1.0}
    assert ratio_at_their_best(sizes, ours, theirs - 0.3)["ratio"] == {"is": "more", "value": 4.0}


def test_pairs_that_brought_nothing_are_not_counted_against_whoever_had_them():
    sizes, ours = (100, 200, 400), np.array([[0.2, 0.4, 0.6]] * 3)
    flat, falling = np.array([[0.1, 0.4, 0.4]] * 3), np.array([[0.1, 0.4, 0.3]] * 3)
    for theirs in (flat, falling):
        best = ratio_at_their_best(sizes, ours, theirs)
        assert (best["ratio"], best["quality"], best["pairs"]) == ({"is": "equal", "value": 1.0}, 0.4, 200)


def test_a_best_rate_at_an_edge_is_followed_by_the_next_one_out_and_not_for_ever():
    planned = (1.0, 2.0, 4.0)
    assert data_efficiency._beyond(planned, 2.0, planned) == []
    assert data_efficiency._beyond(planned, 4.0, planned) == [8.0]
    assert data_efficiency._beyond(planned, 1.0, planned) == [0.5]
    assert data_efficiency._beyond(planned, 8.0, (*planned, 8.0)) == [16.0]
    assert data_efficiency._beyond(planned, 4.0, (*planned, 8.0)) == []
    assert data_efficiency._beyond(planned, 16.0, (*planned, 8.0, 16.0)) == []
    assert data_efficiency._beyond((2.0,), 2.0, (2.0,)) == []


def test_an_interval_that_reaches_what_was_not_tested_says_so():
    ours = np.array([[0.2, 0.4]] * 40)
    theirs = np.array([[0.1, 0.3 if draw % 2 else 0.1] for draw in range(40)])
    theirs[0] = [0.1, 0.3]
    row = ratios((100, 200), ours, theirs)[0]
    assert row["ratio"]["is"] == "equal" and row["low"]["is"] == "equal"
    assert row["high"] == {"is": "more", "value": 2.0}


def test_seeds_are_drawn_too_and_the_first_curve_is_their_mean():
    draws = np.array([[[1.0] * 200, [3.0] * 200]])
    curves = mean_curves(draws, np.random.default_rng(0))
    assert curves[0, 0] == 2.0
    assert set(curves[:, 0]) == {1.0, 2.0, 3.0}


def test_a_part_is_made_once_and_half_a_file_is_none(tmp_path):
    kept, made = Kept(tmp_path / "parts"), []

    def make():
        made.append(1)
        return KeptPart({"margins": np.arange(3.0)}, {"seconds": 1.5})

    first = kept.part("one", make)
    again = Kept(tmp_path / "parts").part("one", make)
    assert made == [1]
    assert again.facts == first.facts == {"seconds": 1.5}
    assert list(again.arrays) == ["margins"] and again.arrays["margins"].tolist() == [0.0, 1.0, 2.0]
    with pytest.raises(RuntimeError):
        kept.part("two", lambda: (_ for _ in ()).throw(RuntimeError))
    assert sorted(path.name for path in kept.folder.iterdir()) == ["one.npz"]


@pytest.fixture(scope="module")
def efficiency(problem, tmp_path_factory):
    out = tmp_path_factory.mktemp("efficiency")
    return data_efficiency.run(problem, PLAN, out, keep_in=out / "models"), out


def test_every_method_size_and_seed_has_its_cell_with_the_same_pairs(efficiency):
    document, out = efficiency
    cells = document["cells"]
    assert [(cell["seed"], cell["pairs"], cell["method"]) for cell in cells] == [
        (seed, size, method) for seed in (0, 1) for size in (8, 16) for method in ("mis", "generation")
    ]
    for ours, theirs in zip(cells[::2], cells[1::2], strict=True):
        for name in ("pairs_trained", "positives_trained", "entities_trained", "steps"):
            assert ours[name] == theirs[name], name
    first, later = cells[0], cells[4]
    assert set(first["calibrate_average_precision_by_rate"]) > {"0.001", "0.0001"}  # the better of two is at an edge
    assert list(later["calibrate_average_precision_by_rate"]) == [f"{first['learning_rate']:g}"]
    best = max(first["calibrate_average_precision_by_rate"].items(), key=lambda rate: rate[1])[0]
    assert best == f"{first['learning_rate']:g}"
    assert cells[1]["free"]["lists"] == 1 and "free" not in first
    assert document["complete"] is True
    assert json.loads((out / "data_efficiency.json").read_text()) == json.loads(json.dumps(document))


def test_the_page_and_the_plot_are_made_and_no_model_is_left_but_those_that_are_kept(efficiency, problem):
    document, out = efficiency
    assert sorted(path.name for path in (out / "models").iterdir()) == ["generation", "mis"]
    cell = next(cell for cell in document["cells"] if (cell["method"], cell["pairs"], cell["seed"]) == ("mis", 16, 0))
    margins = problem.test.of(
        SemanticScoring(problem, problem.settings).score(out / "models/mis", problem.test.texts).margins
    )
    assert cell["average_precision"] == pytest.approx(average_precision_score(problem.test.labels, margins))
    page = (out / "data_efficiency.md").read_text()
    assert "| 8 |" in page and "| 16 |" in page and "## Lists written freely" in page
    assert (out / "data_efficiency.png").read_bytes().startswith(b"\x89PNG")
    assert not [path for path in (out / ".experiments").iterdir() if path.is_dir()]
    assert len(document["curves"]) == 2 * 2 * 2 and len(document["ratios"]) == 2 * 2


def test_a_model_of_another_training_is_not_kept_under_this_ones_name(problem, efficiency, tmp_path):
    plan = data_efficiency.Plan(**(vars(PLAN) | {"seeds": (0,), "learning_rates": (1e-3,), "sizes": (4, 8)}))
    data_efficiency.run(problem, plan, tmp_path, keep_in=tmp_path / "models")
    before = (tmp_path / "models" / "mis" / "model.safetensors").read_bytes()
    larger = data_efficiency.Plan(**(vars(plan) | {"sizes": (4, 8, 16)}))
    data_efficiency.run(problem, larger, tmp_path, keep_in=tmp_path / "models")
    assert (tmp_path / "models" / "mis" / "model.safetensors").read_bytes() != before


def test_a_killed_run_goes_on_and_gives_what_an_unbroken_one_gives(problem, efficiency, tmp_path, monkeypatch):
    plan = data_efficiency.Plan(**(vars(PLAN) | {"seeds": (0,), "learning_rates": (1e-3,)}))

    def kill(progress):
        if progress.unit == "cells" and progress.done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        data_efficiency.run(problem, plan, tmp_path, kill)
    kept = {path.name for path in (tmp_path / ".experiments").glob("*.npz")}
    assert len(kept) == 4  # two methods, each with its training and its judgement
    trained = []
    real = SemanticScoring.train
    monkeypatch.setattr(SemanticScoring, "train", lambda *given: trained.append(1) or real(*given))
    resumed = data_efficiency.run(problem, plan, tmp_path)
    assert len(trained) == 2  # the larger size only, for its training and for its judgement
    whole = {(cell["method"], cell["pairs"]): cell for cell in efficiency[0]["cells"] if cell["seed"] == 0}
    for cell in resumed["cells"]:
        same = whole[cell["method"], cell["pairs"]]
        precision = same["calibrate_average_precision_by_rate"]["0.001"]
        assert cell["calibrate_average_precision"] == precision
        if same["learning_rate"] == 1e-3:
            assert cell["average_precision"] == same["average_precision"] and cell["f1"] == same["f1"]


VARIANTS = (
    Variant("recipe"),
    Variant("whole", loss="whole_prompt"),
    Variant("small rounds", round_items=2, settings={"training": {"rounds_per_step": 2}}),
    Variant("in fp32", settings={"model": {"precision": "fp32"}}),
    Variant("base", train=False),
    Variant("lists", method="generation"),
    Variant("tfidf", method="tfidf_cosine"),
    Variant("encoder", method="minilm_logistic"),
)


@pytest.fixture(scope="module")
def varied(problem, tmp_path_factory):
    out = tmp_path_factory.mktemp("varied")
    monkeypatch = pytest.MonkeyPatch()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    trainings = []
    real = SemanticScoring.train
    monkeypatch.setattr(SemanticScoring, "train", lambda *given: trainings.append(given[2].name) or real(*given))
    document = ablations.run(problem, VARIANTS, SMALL, out, "ablations")
    monkeypatch.undo()
    return document, out, trainings


def test_every_variant_is_judged_against_the_recipe_and_what_is_missing_is_said(varied):
    document, out, _ = varied
    cells = {cell["variant"]: cell for cell in document["cells"]}
    own = ["recipe, per-candidate cuts", "recipe, per-candidate cuts, shrunk"]
    assert list(cells) == [variant.name for variant in VARIANTS[:-1]] + own
    assert [entry["variant"] for entry in document["missing"]] == ["encoder"]
    assert cells["recipe"]["average_precision_difference"] == {"value": 0.0, "low": 0.0, "high": 0.0}
    assert cells["in fp32"]["average_precision"] == cells["recipe"]["average_precision"]
    assert cells["whole"]["average_precision"] != cells["recipe"]["average_precision"]
    assert cells["base"]["steps"] is None and cells["base"]["auc"]["value"] is not None
    assert cells["small rounds"]["steps"] == cells["recipe"]["steps"] == 2
    assert {cells[name]["pairs_trained"] for name in ("recipe", "whole", "lists", "tfidf")} == {8}
    assert cells[own[0]]["auc"] is None and cells[own[0]]["f1"]["value"] is not None
    page = (out / "ablations.md").read_text()
    assert "| recipe |" in page and "## Not measured" in page and "bench-minilm" in page


def test_variants_that_differ_only_in_how_they_are_scored_share_a_training(problem, tmp_path, monkeypatch):
    trained = []
    real = SemanticScoring.score
    monkeypatch.setattr(SemanticScoring, "score", lambda *given: trained.append(given[1]) or real(*given))
    pair = (Variant("a"), Variant("b", settings={"scoring": {"items_per_round": 3}}))
    ablations.run(problem, pair, SMALL, tmp_path, "x")
    assert len(set(trained)) == 1
    assert not [path for path in (tmp_path / ".experiments").iterdir() if path.is_dir()]


def test_done_variants_are_not_done_again(problem, varied, monkeypatch):
    document, out, _ = varied
    monkeypatch.setattr(SemanticScoring, "train", None)
    monkeypatch.setattr(SemanticScoring, "score", None)
    again = ablations.run(problem, VARIANTS[:5], SMALL, out, "again")
    assert again["cells"][:5] == document["cells"][:5]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "at least one"),
        ("[[variant]]\nname = 'a'\nlos = 'x'", "key 'los'"),
        ("[[variant]]\nloss = 'label'", "no name"),
        ("[[variant]]\nname = 'a'\nloss = 'x'", "loss 'x'"),
        ("[[variant]]\nname = 'a'\nmethod = 'x'", "method 'x'"),
        ("[[variant]]\nname = 'a'\nround_items = 'x'", "is no int"),
        ("[[variant]]\nname = 'a'\n[[variant]]\nname = 'a'", "one name"),
        ("[[variant", "not valid TOML"),
    ],
)
def test_a_wrong_file_of_variants_is_one_line(text, message, tmp_path):
    (tmp_path / "v.toml").write_text(text)
    with pytest.raises(SettingsError, match=message):
        read_variants(tmp_path / "v.toml")


def test_the_shipped_variants_can_be_read_and_are_settings(project):
    for name, first in (("ablations", "recipe"), ("formats", "readout")):
        read = read_variants(BENCHMARKS / f"{name}.toml")
        assert read.variants[0].name == first
        for variant in read.variants:
            overridden(project, read.recipe, variant.settings)


def test_the_commands_write_their_files(project, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(data_efficiency.Plan, "quick", classmethod(lambda cls: PLAN))
    monkeypatch.setattr(ablations.Plan, "quick", classmethod(lambda cls: SMALL))
    shared = ["--config", str(project.path), "--quick", "--out", str(tmp_path), "--threads", "1"]
    options = ["--seed", "0", "--rate", "1e-3", "--pairs", "4", "--pairs", "8"]
    assert run_command(["bench", "data-efficiency", *shared, *options, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["plan"]["sizes"] == [4, 8] and document["seeds"] == [0]
    assert run_command(["bench", "formats", *shared]) == 0
    assert "| chat |" in capsys.readouterr().out
    cells = json.loads((tmp_path / "formats.json").read_text())["cells"]
    assert cells[1]["tokens_per_item"] > cells[0]["tokens_per_item"]
    assert run_command(["bench", "ablations", *shared, "--only", "nothing"]) == 2
    assert "no variant 'nothing'" in capsys.readouterr().err
