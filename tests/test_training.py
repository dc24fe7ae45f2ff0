"""Training through the real Trainer: right gradients, resumable, nothing random, nothing computed for nothing."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file
from torch.nn.functional import cross_entropy, softplus

from semlabel import training
from semlabel.attention import SPLIT
from semlabel.errors import LabelerError, ModelRefused, PromptError, SourceError
from semlabel.label_trainer import LabelTrainer, collate
from semlabel.models import load_model, using_attention
from semlabel.progress import Progress, silent
from semlabel.prompt import Prompt, PromptSpec, tokenizer_digest
from semlabel.settings import Training
from semlabel.training import train, trainable_model
from semlabel.training_data import TrainingRound, rounds_from_pairs, training_spec
from tests.tiny import save_tiny, tiny_tokenizer

SPEC = PromptSpec("Profile: {entity}\nActivity: {candidate}\nAnswer:", max_query_tokens=96, max_item_tokens=48)
ENTITIES = (
    "keeps the records of a small office and plans the work of others",
    "joins metal parts and checks the work against the plan",
    "gives the patient medicine",
    "sells goods",
    "teaches people to repair machines in the record office",
)
CANDIDATES = ("keep records", "repair machines", "teach people", "sell goods and plan", "weld", "give medicine")


def tiny_prompt() -> Prompt:
    return Prompt(SPEC, tiny_tokenizer())


def weights_of(directory: Path) -> dict[str, torch.Tensor]:
    # Copies: tensors of a mapped file would change with it.
    return {name: tensor.clone() for name, tensor in load_file(directory / "model.safetensors").items()}


def uneven_rounds(prompt: Prompt, sizes: tuple[int, ...] = (5, 1, 3, 2, 6)) -> list[TrainingRound]:
    """Rounds of different numbers of items of different lengths, labels mixed."""
    items = prompt.items(CANDIDATES)
    return [
        TrainingRound(
            prompt.query(ENTITIES[number % len(ENTITIES)]).ids,
            [items[(number + k) % len(items)] for k in range(size)],
            [(number + k) % 3 % 2 for k in range(size)],
        )
        for number, size in enumerate(sizes)
    ]


def steady_model(base: Path, settings: Training, device: str = "cpu", attention: str = SPLIT):
    """The model `train` would train, with LoRA's zero matrices filled so that every gradient says something."""
    torch.manual_seed(5)
    model = trainable_model(base, settings, device, attention)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(0.0, 0.05)
    return model


def gradients_seen_by_the_trainer(base, out_dir, rounds, settings, monkeypatch):
    """Each optimiser step's rounds and every trainable parameter's accumulated gradient, before clipping."""
    seen: list[TrainingRound] = []
    steps: list[dict[str, torch.Tensor]] = []

    def recording(batch):
        seen.extend(batch)
        return collate(batch)

    def capture(trainer, model):
        steps.append({name: p.grad.clone() for name, p in model.named_parameters() if p.requires_grad})
        return torch.tensor(0.0)

    monkeypatch.setattr(training, "collate", recording)
    monkeypatch.setattr(training, "trainable_model", steady_model)
    monkeypatch.setattr(LabelTrainer, "_clip_grad_norm", capture)
    train(base, tiny_prompt(), rounds, settings, out_dir, device="cpu")
    size = settings.rounds_per_step
    return [(seen[start : start + size], steps[start // size]) for start in range(0, len(seen), size)]


def single_prompt_gradients(model, prompt: Prompt, rounds) -> dict[str, torch.Tensor]:
    """The same gradients from plain forwards of whole single prompts: full vocabulary, ordinary attention, float64."""
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    model.zero_grad()
    items = sum(len(one.items) for one in rounds)
    with using_attention(base, "sdpa"):
        for one in rounds:
            for item, label in zip(one.items, one.labels, strict=True):
                logits = base(input_ids=torch.tensor([one.query + item]), use_cache=False).logits[0, -1]
                margin = logits[prompt.yes_id] - logits[prompt.no_id]
                (softplus(-margin if label else margin) / items).backward()
    return {name: p.grad for name, p in model.named_parameters() if p.requires_grad}


@pytest.mark.parametrize(
    ("kind", "method", "lanes", "overrides"),
    [
        ("llama", "full", 1, {"tie_word_embeddings": True}),
        ("llama", "full", 2, {"tie_word_embeddings": True}),
        ("llama", "full", 2, {"tie_word_embeddings": False}),
        ("llama", "lora", 2, {"tie_word_embeddings": True}),
        ("llama", "lora", 1, {"tie_word_embeddings": False}),
        ("gemma3_text", "full", 2, {"sliding_window": 16}),  # queries are longer than the window
        ("phi", "lora", 2, {}),  # a head with a bias
    ],
)
def test_gradients_of_packed_uneven_rounds_equal_those_of_single_prompts(
    kind, method, lanes, overrides, tmp_path, monkeypatch
):
    base = save_tiny(tmp_path / "base", kind, **overrides)
    prompt = tiny_prompt()
    # So small a rate that all steps see the same weights; five rounds by two leave a last step of one.
    settings = Training(
        precision="fp32", method=method, rounds_per_step=2, lanes=lanes, lora_rank=4, learning_rate=1e-30
    )
    steps = gradients_seen_by_the_trainer(base, tmp_path / "out", uneven_rounds(prompt), settings, monkeypatch)
    model = steady_model(base, settings).double()
    assert [len(rounds) for rounds, _ in steps] == [2, 2, 1]
    assert len({len(one.items) for one in uneven_rounds(prompt)}) == 5
    for rounds, found in steps:
        expected = single_prompt_gradients(model, prompt, rounds)
        assert found.keys() == expected.keys()
        for name, gradient in expected.items():
            # Where a gradient cancels to nothing (a key's bias moves no softmax) rounding is all that is left.
            allowed = 1e-5 * gradient.abs().max() + 1e-8
            assert (found[name] - gradient).abs().max() <= allowed, name


def test_lanes_follow_the_weights_and_end_with_the_same_ones_whichever_is_done_first(tmp_path):
    base = save_tiny(tmp_path / "base")
    prompt = tiny_prompt()
    rounds = uneven_rounds(prompt)
    ends = {}
    for name, lanes in (("one", 1), ("three", 3), ("three again", 3)):
        settings = Training(precision="fp32", rounds_per_step=4, lanes=lanes, epochs=3, learning_rate=1e-3)
        ends[name] = train(base, prompt, rounds, settings, tmp_path / name, device="cpu")
    assert len(ends["one"].loss_curve) == 6
    assert ends["three"].loss_curve == pytest.approx(ends["one"].loss_curve, abs=1e-5)
    first, again = (weights_of(ends[name].model_dir) for name in ("three", "three again"))
    assert all(torch.equal(first[name], again[name]) for name in first)


def test_the_loss_of_a_step_is_the_mean_over_all_its_items(tmp_path):
    base = save_tiny(tmp_path / "base")
    prompt = tiny_prompt()
    rounds = uneven_rounds(prompt)
    settings = Training(precision="fp32", rounds_per_step=len(rounds), learning_rate=1e-30)
    result = train(base, prompt, rounds, settings, tmp_path / "out", device="cpu")
    model = load_model(base, "fp32", "cpu")
    losses = []
    for one in rounds:
        for item, label in zip(one.items, one.labels, strict=True):
            logits = model(input_ids=torch.tensor([one.query + item])).logits[0, -1].detach()
            answers = logits[[prompt.no_id, prompt.yes_id]]
            losses.append(float(cross_entropy(answers[None], torch.tensor([label]))))
    assert result.loss_curve == pytest.approx([sum(losses) / len(losses)], rel=1e-5)
    assert result.pairs == len(losses)


KILLED_AFTER_FIVE_STEPS = """
import os, signal, sys
from pathlib import Path
from tests.test_training import resumable_training

def kill(progress):
    kill.calls += 1
    if kill.calls == 5:
        os.kill(os.getpid(), signal.SIGKILL)

kill.calls = 0
resumable_training(Path(sys.argv[1]), Path(sys.argv[2]), kill)
"""


def resumable_training(base: Path, out_dir: Path, progress=silent):
    """Two epochs of three steps each, a checkpoint after every second step; step 4 lies in the second epoch."""
    prompt = tiny_prompt()
    settings = Training(precision="fp32", epochs=2.0, rounds_per_step=2, save_every_steps=2, learning_rate=1e-2)
    return train(base, prompt, uneven_rounds(prompt), settings, out_dir, progress, device="cpu")


def test_a_killed_training_goes_on_and_ends_with_the_same_weights(tmp_path):
    base = save_tiny(tmp_path / "base")
    progress: list[Progress] = []
    whole = resumable_training(base, tmp_path / "whole", progress.append)
    assert progress[-1] == Progress("training", 34, 34, "pairs")
    command = [sys.executable, "-c", KILLED_AFTER_FIVE_STEPS, str(base), str(tmp_path / "killed")]
    root = Path(__file__).parent.parent
    killed = subprocess.run(command, cwd=root, env=os.environ | {"PYTHONPATH": str(root)}, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert [path.name for path in (tmp_path / "killed" / "trainer").iterdir()] == ["checkpoint-4"]
    seen = []
    resumed = resumable_training(base, tmp_path / "killed", seen.append)
    assert (whole.resumed_from, resumed.resumed_from) == (None, 4)
    assert seen == progress[4:]
    assert resumed.loss_curve == whole.loss_curve
    assert resumed.pairs == whole.pairs == 34
    expected, found = (weights_of(result.model_dir) for result in (whole, resumed))
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[name], found[name]) for name in expected)


def test_half_written_checkpoints_are_thrown_away(tmp_path):
    base = save_tiny(tmp_path / "base")
    out = tmp_path / "out"

    class Stop(Exception):
        pass

    def stop_in_the_fifth_step(update):
        if update.done > 24:
            raise Stop

    with pytest.raises(Stop):
        resumable_training(base, out, stop_in_the_fifth_step)
    (checkpoint,) = (out / "trainer").iterdir()
    later = checkpoint.with_name("checkpoint-5")
    later.mkdir()
    (later / "model.safetensors").write_bytes(b"the disk was full")
    with (checkpoint / "optimizer.pt").open("r+b") as file:
        file.truncate(100)
    assert resumable_training(base, out).resumed_from is None


def test_a_finished_training_is_not_done_again_and_leaves_only_its_model(tmp_path, monkeypatch):
    base = save_tiny(tmp_path / "base")
    first = resumable_training(base, tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["model", "training.json"]
    monkeypatch.setattr(training, "trainable_model", None)
    assert resumable_training(base, tmp_path / "out") == first


@pytest.mark.parametrize("change", ["learning_rate", "rounds", "weights", "model file"])
def test_a_changed_training_never_answers_with_the_old_model(change, tmp_path):
    base = save_tiny(tmp_path / "base")
    prompt = tiny_prompt()
    rounds, settings, out = uneven_rounds(prompt, (2, 1)), Training(precision="fp32"), tmp_path / "out"
    first = train(base, prompt, rounds, settings, out, device="cpu")
    before = weights_of(first.model_dir)
    match change:
        case "learning_rate":
            settings = Training(precision="fp32", learning_rate=1e-3)
        case "rounds":
            rounds[0] = TrainingRound(rounds[0].query, rounds[0].items, [1 - label for label in rounds[0].labels])
        case "weights":
            save_tiny(tmp_path / "base", seed=1)
        case "model file":
            (first.model_dir / "model.safetensors").write_bytes(b"short")
    second = train(base, prompt, rounds, settings, out, device="cpu")
    after = weights_of(second.model_dir)
    same = all(torch.equal(before[name], after[name]) for name in before)
    assert same == (change == "model file")
    assert (second.training_digest == first.training_digest) == (change == "model file")


@pytest.mark.parametrize(("kind", "name"), [("llama", "attention_dropout"), ("phi", "resid_pdrop")])
def test_dropout_in_the_config_is_refused(kind, name, tmp_path):
    base = save_tiny(tmp_path / "base", kind, **{name: 0.1})
    prompt = tiny_prompt()
    with pytest.raises(ModelRefused, match=f"{name} = 0.1.*config.json"):
        train(base, prompt, uneven_rounds(prompt), Training(precision="fp32"), tmp_path / "out", device="cpu")


def test_lora_brings_no_dropout(tmp_path):
    model = trainable_model(save_tiny(tmp_path / "base"), Training(precision="fp32", method="lora"), "cpu")
    assert any("lora_A" in name for name, _ in model.named_modules())
    assert not [m for m in model.modules() if isinstance(m, torch.nn.modules.dropout._DropoutNd) and m.p > 0]


@pytest.mark.parametrize(
    "settings",
    [
        {"learning_rate": 2e-2, "epochs": 8.0},
        {"method": "lora", "learning_rate": 2e-2, "epochs": 25.0},
        {"learning_rate": 2e-2, "epochs": 8.0, "precision": "bf16"},
    ],
)
def test_a_toy_problem_is_learned_and_the_saved_model_has_learned_it(settings, tmp_path):
    base = save_tiny(tmp_path / "base")
    prompt = tiny_prompt()
    items = prompt.items(["keep records", "weld"])
    rounds = [TrainingRound(prompt.query(text).ids, items, [1, 0]) for text in ENTITIES[:2]]
    result = train(base, prompt, rounds, Training(**{"precision": "fp32"} | settings), tmp_path / "out", device="cpu")
    assert result.loss_curve[-1] < 0.3 < result.loss_curve[0]
    model = load_model(result.model_dir, "fp32", "cpu")
    for one in rounds:
        for item, label in zip(one.items, one.labels, strict=True):
            logits = model(input_ids=torch.tensor([one.query + item])).logits[0, -1]
            assert (logits[prompt.yes_id] > logits[prompt.no_id]) == bool(label)


def test_a_merged_lora_is_a_plain_model_of_the_base_models_shape(tmp_path):
    base = save_tiny(tmp_path / "base")
    prompt = tiny_prompt()
    settings = Training(precision="fp32", method="lora", learning_rate=1e-2)
    result = train(base, prompt, uneven_rounds(prompt), settings, tmp_path / "out", device="cpu")
    before, after = weights_of(base), weights_of(result.model_dir)
    assert {n: t.shape for n, t in before.items()} == {n: t.shape for n, t in after.items()}
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {name for name in before if "_proj" in name}
    assert not [path for path in result.model_dir.iterdir() if path.suffix in (".bin", ".pt") or "adapter" in path.name]
    assert tokenizer_digest(result.model_dir) == tokenizer_digest(base)


def test_the_head_is_never_run_over_the_vocabulary(tmp_path, monkeypatch):
    base = save_tiny(tmp_path / "base", tie_word_embeddings=False)
    prompt = tiny_prompt()

    def with_a_trap(*arguments):
        model = trainable_model(*arguments)
        model.lm_head.register_forward_pre_hook(lambda *_: pytest.fail("the head was run"))
        return model

    monkeypatch.setattr(training, "trainable_model", with_a_trap)
    result = train(base, prompt, uneven_rounds(prompt), Training(precision="fp32"), tmp_path / "out", device="cpu")
    before, after = weights_of(base), weights_of(result.model_dir)
    rows = (before["lm_head.weight"] != after["lm_head.weight"]).any(dim=1).nonzero().flatten().tolist()
    assert rows == sorted([prompt.yes_id, prompt.no_id])


def test_the_first_step_already_moves_the_weights(tmp_path):
    base = save_tiny(tmp_path / "base")
    prompt = tiny_prompt()
    settings = Training(precision="fp32", rounds_per_step=5, warmup_fraction=1.0)
    result = train(base, prompt, uneven_rounds(prompt), settings, tmp_path / "out", device="cpu")
    before, after = weights_of(base), weights_of(result.model_dir)
    assert result.steps == 1
    assert not torch.equal(before["model.norm.weight"], after["model.norm.weight"])


def test_a_loss_that_is_no_number_stops_the_training(tmp_path):
    base = save_tiny(tmp_path / "base")
    prompt = tiny_prompt()
    settings = Training(precision="fp32", learning_rate=1e30)
    with pytest.raises(LabelerError, match=r"step 2; lower \[training\] learning_rate"):
        train(base, prompt, uneven_rounds(prompt), settings, tmp_path / "out", device="cpu")


def test_no_rounds_are_refused(tmp_path):
    with pytest.raises(SourceError, match="no training rounds"):
        train(tmp_path, tiny_prompt(), [], Training(precision="fp32"), tmp_path / "out")


def tables() -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    entities = pd.DataFrame({"entity_id": ["b", "a"], "text": [ENTITIES[1], ENTITIES[0]]})
    catalog = pd.DataFrame({"candidate_id": ["1", "2", "3"], "text": CANDIDATES[:3]})
    pairs = [("a", "3", True), ("a", "1", False), ("b", "1", True), ("a", "2", True)]
    return pd.DataFrame(pairs, columns=["entity_id", "candidate_id", "label"]), entities, catalog


def test_rounds_hold_the_served_prompts_tokens_with_their_own_labels():
    prompt = tiny_prompt()
    rounds = rounds_from_pairs(*tables(), prompt)
    whole = [[one.query + item for item in one.items] for one in rounds]
    assert whole == [
        [prompt.whole(ENTITIES[0], CANDIDATES[number]) for number in (2, 0, 1)],
        [prompt.whole(ENTITIES[1], CANDIDATES[0])],
    ]
    assert [one.labels for one in rounds] == [[1, 0, 1], [1]]


def test_an_entity_with_many_pairs_gets_several_rounds():
    rounds = rounds_from_pairs(*tables(), tiny_prompt(), items_per_round=2)
    assert [one.labels for one in rounds] == [[1, 0], [1], [1]]
    assert rounds[0].query == rounds[1].query


@pytest.mark.parametrize(("column", "what"), [("entity_id", "entity"), ("candidate_id", "candidate")])
def test_a_pair_without_a_text_is_refused_not_skipped(column, what):
    pairs, entities, catalog = tables()
    pairs.loc[1, column] = "nobody"
    with pytest.raises(SourceError, match=f"1 {what} ids have no text, the first is 'nobody'"):
        rounds_from_pairs(pairs, entities, catalog, tiny_prompt())


def test_a_candidate_too_long_for_the_prompt_is_refused_not_cut():
    pairs, entities, catalog = tables()
    catalog.loc[0, "text"] = "record " * 100
    with pytest.raises(PromptError, match="max_item_tokens = 48"):
        rounds_from_pairs(pairs, entities, catalog, tiny_prompt())


@pytest.mark.parametrize(("items", "labels"), [([], []), ([[1]], []), ([[1]], [2]), ([[]], [1])])
def test_a_round_that_makes_no_sense_is_no_round(items, labels):
    with pytest.raises(ValueError, match=r"label|empty"):
        TrainingRound([5], items, labels)


def test_training_may_cut_entities_shorter_than_serving_but_not_longer():
    assert training_spec(SPEC, Training(precision="fp32")) == SPEC
    assert training_spec(SPEC, Training(max_query_tokens=50)).max_query_tokens == 50
    assert training_spec(SPEC, Training(max_query_tokens=500)) == SPEC
