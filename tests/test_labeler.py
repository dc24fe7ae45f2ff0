"""Labelers prove themselves when loaded, decide by one rule, and change hands without a moment of half a labeler."""

import dataclasses
import json
import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from semlabel import labeler_files
from semlabel.errors import LabelerError, PromptError
from semlabel.labeler import Labeler, decide, measure_known_pairs
from semlabel.labeler_files import find_labeler, promoted_path, switch_current, write_checkpoint, write_labeler
from semlabel.manifest import MANIFEST_FILE, Manifest, describe_files, digest_of_weights, read_manifest
from semlabel.prompt import Prompt, PromptSpec
from semlabel.scorer import Scorer
from tests.tiny import save_tiny, tiny_tokenizer

SPEC = PromptSpec("Profile: {entity}\nActivity: {candidate}\nAnswer:", max_query_tokens=64, max_item_tokens=48)
PAIRS = (("gives the patient medicine", "give medicine"), ("joins metal parts", "keep records"))
CALIBRATION = {"platt_a": 2.0, "platt_b": -1.0}


@dataclasses.dataclass(frozen=True)
class FloorPolicy:
    min_precision: float | None = None
    max_fpr: float | None = None


def threshold_result(threshold: float | None = 0.25, word: str = "certified", floor: float = 0.5) -> SimpleNamespace:
    return SimpleNamespace(threshold=threshold, policy=FloorPolicy(min_precision=floor), word=word)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Path:
    """A checkpoint of a tiny model with two known pairs; never changed by a test."""
    folder = tmp_path_factory.mktemp("checkpoint")
    model_dir = save_tiny(folder / "model")
    scorer = Scorer.load(model_dir, SPEC, precision="fp32", device="cpu")
    known = measure_known_pairs(scorer, PAIRS)
    write_checkpoint(
        folder / "checkpoint",
        model_dir,
        prompt=scorer.prompt,
        base_model="tiny",
        precision="fp32",
        known_pairs=known,
        training={"pairs_digest": "p" * 64},
        evidence={"order_invariance": {"verdict": "pass"}},
    )
    return folder / "checkpoint"


@pytest.fixture
def labeler_dir(checkpoint, tmp_path) -> Path:
    return write_labeler(tmp_path / "labelers", checkpoint, threshold_result(), CALIBRATION)[1]


def reseal(directory: Path, **changes) -> None:
    """Write a manifest with changed fields whose digests are all right: only loading the model can tell."""
    content = json.loads((directory / MANIFEST_FILE).read_text()) | changes
    (directory / MANIFEST_FILE).write_text(Manifest.sealed(**content).to_json())


def test_the_decision_is_yes_from_the_threshold_on():
    margins = np.array([0.1, np.nextafter(np.float32(0.1), np.float32(0)), 0.2, -np.float32(0.1)], dtype=np.float32)
    assert decide(margins, float(np.float32(0.1))).tolist() == [True, False, True, False]
    # 0.1 as a float32 lies above 0.1 as a float64: the comparison is in float64.
    assert decide(np.float32([0.1]), 0.1).tolist() == [True]
    assert decide(np.zeros((2, 0)), 0.0).shape == (2, 0)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_margin_that_is_no_number_is_never_a_no(value):
    with pytest.raises(ValueError, match="not finite"):
        decide([0.0, value], 0.5)


def test_an_uncertified_labeler_scores_but_does_not_decide(checkpoint, tmp_path):
    digest, path = write_labeler(tmp_path, checkpoint, threshold_result(None))
    labeler = Labeler.load(path)
    assert (labeler.digest, labeler.threshold, labeler.manifest.certified) == (digest, None, "uncertified")
    assert labeler.score(*PAIRS[0][:1], [PAIRS[0][1]]).shape == (1,)
    with pytest.raises(LabelerError, match="no threshold"):
        labeler.decide("text", ["sell"])
    with pytest.raises(LabelerError, match="not calibrated"):
        labeler.probabilities([0.0])


def test_a_loaded_labeler_scores_the_texts_as_the_scorer_scores_their_tokens(labeler_dir, checkpoint):
    labeler = Labeler.load(labeler_dir)
    scorer = Scorer.load(checkpoint, SPEC, precision="fp32", device="cpu")
    items = ["sell goods", "keep records", "sell goods", "weld"]
    query = "keeps records " * 40  # cut by the prompt's rule
    margins = labeler.score(query, items)
    assert scorer.prompt.query(query).truncated
    expected = [scorer.plain_margin(scorer.prompt.whole(query, item)) for item in items]
    assert margins.dtype == np.float32
    assert np.allclose(margins, expected, atol=1e-4)
    assert labeler.decide(query, items).tolist() == [margin >= 0.25 for margin in expected]
    probabilities = labeler.probabilities(margins)
    assert probabilities == pytest.approx(1 / (1 + np.exp(-(2.0 * margins.astype(np.float64) - 1.0))))
    assert repr(labeler) == f"Labeler({labeler.digest[:12]}, tiny, fp32, threshold=0.25)"


def test_no_candidates_give_no_margins_and_one_text_is_not_a_list_of_letters(labeler_dir):
    labeler = Labeler.load(labeler_dir, self_check=False)
    assert labeler.score("text", []).shape == labeler.decide("text", []).shape == (0,)
    with pytest.raises(TypeError, match="not one text"):
        labeler.score("text", "weld")
    with pytest.raises(PromptError, match="blank"):
        labeler.score("text", ["weld", " "])


def test_known_pairs_are_stored_with_the_margins_they_had(checkpoint):
    known = read_manifest(checkpoint).known_pairs
    scorer = Scorer.load(checkpoint, SPEC, precision="fp32", device="cpu")
    assert [(pair.query, pair.candidate) for pair in known] == list(PAIRS)
    expected = [scorer.plain_margin(scorer.prompt.whole(*pair)) for pair in PAIRS]
    assert [pair.margin for pair in known] == pytest.approx(expected, abs=1e-4)


def test_a_known_pair_with_another_margin_refuses_the_labeler(labeler_dir):
    pairs = [pair.model_dump() for pair in read_manifest(labeler_dir).known_pairs]
    pairs[1]["margin"] += 0.01
    reseal(labeler_dir, known_pairs=pairs)
    with pytest.raises(LabelerError, match="known pair with candidate 'keep records'"):
        Labeler.load(labeler_dir)


def test_other_weights_under_a_right_manifest_are_told_by_the_known_pairs(labeler_dir):
    file = labeler_dir / "model.safetensors"
    weights = {name: tensor.clone() for name, tensor in load_file(file).items()}
    weights["model.norm.weight"] *= 1.1
    file.unlink()
    save_file(weights, file, metadata={"format": "pt"})
    files = {name: entry.model_dump() for name, entry in describe_files(labeler_dir).items()}
    reseal(labeler_dir, files=files, weights_digest=digest_of_weights(describe_files(labeler_dir)))
    with pytest.raises(LabelerError, match="known pair"):
        Labeler.load(labeler_dir)


def test_edited_weights_are_refused_before_they_are_loaded(labeler_dir):
    file = labeler_dir / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.unlink()
    file.write_bytes(content)
    with pytest.raises(LabelerError, match="the weights digest differs"):
        Labeler.load(labeler_dir)


def test_answers_that_became_other_tokens_are_refused(labeler_dir):
    answers = json.loads((labeler_dir / MANIFEST_FILE).read_text())["answer_tokens"]
    answers["yes"]["id"], answers["no"]["id"] = answers["no"]["id"], answers["yes"]["id"]
    reseal(labeler_dir, answer_tokens=answers)
    with pytest.raises(LabelerError, match="answer tokens"):
        Labeler.load(labeler_dir, self_check=False)


def test_a_labeler_of_other_scoring_code_is_refused(labeler_dir):
    reseal(labeler_dir, scoring_code_version=0)
    with pytest.raises(LabelerError, match="certified with scoring code 0"):
        Labeler.load(labeler_dir)


def test_a_labeler_without_known_pairs_is_never_written(checkpoint, tmp_path):
    with pytest.raises(LabelerError, match="no known pairs"):
        write_labeler(tmp_path, checkpoint, threshold_result(), CALIBRATION, known_pairs=())
    assert list(tmp_path.iterdir()) == []


def test_a_labeler_keeps_what_its_checkpoint_knew(checkpoint, tmp_path):
    _, path = write_labeler(
        tmp_path, checkpoint, threshold_result(), CALIBRATION | {"certified_text_ids": ["t"]},
        evidence={"held_out_quality": {"verdict": "pass"}},
    )  # fmt: skip
    made, before = read_manifest(path), read_manifest(checkpoint)
    assert made.scorer_digest == before.scorer_digest
    assert made.policy == {"min_precision": 0.5, "max_fpr": None}
    assert made.calibration.model_dump() == CALIBRATION | {"certified_text_ids": ["t"]}
    assert sorted(made.evidence) == ["held_out_quality", "order_invariance"]
    assert made.training == before.training
    assert made.known_pairs == before.known_pairs


def test_weights_are_linked_and_copied_where_they_cannot_be(checkpoint, tmp_path, monkeypatch):
    _, linked = write_labeler(tmp_path / "linked", checkpoint, threshold_result())
    assert (linked / "model.safetensors").samefile(checkpoint / "model.safetensors")
    assert not (linked / "config.json").samefile(checkpoint / "config.json")

    def refuse(*_, **__):
        raise OSError("links are not supported here")

    monkeypatch.setattr(os, "link", refuse)
    _, copied = write_labeler(tmp_path / "copied", checkpoint, threshold_result())
    assert not (copied / "model.safetensors").samefile(checkpoint / "model.safetensors")
    assert read_manifest(copied).digest == read_manifest(linked).digest


def test_writing_the_same_labeler_again_changes_nothing(checkpoint, tmp_path):
    first = write_labeler(tmp_path, checkpoint, threshold_result(), CALIBRATION)
    content = (first[1] / MANIFEST_FILE).read_bytes()
    assert write_labeler(tmp_path, checkpoint, threshold_result(), CALIBRATION) == first
    assert (first[1] / MANIFEST_FILE).read_bytes() == content
    assert [path.name for path in tmp_path.iterdir()] == [first[0]]


def test_a_damaged_labeler_is_mended_by_writing_it_again(checkpoint, tmp_path):
    first = write_labeler(tmp_path, checkpoint, threshold_result())
    (first[1] / "config.json").write_text("{}")
    assert write_labeler(tmp_path, checkpoint, threshold_result()) == first
    assert Labeler.load(first[1]).digest == first[0]
    assert [path.name for path in tmp_path.iterdir()] == [first[0]]


def test_a_damaged_checkpoint_becomes_no_labeler(checkpoint, tmp_path):
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    for file in checkpoint.iterdir():
        (damaged / file.name).write_bytes(file.read_bytes())
    with (damaged / "model.safetensors").open("r+b") as stream:
        stream.seek(-1, os.SEEK_END)
        stream.write(b"\x7f")
    with pytest.raises(LabelerError, match="weights digest differs"):
        write_labeler(tmp_path / "labelers", damaged, threshold_result())
    assert not (tmp_path / "labelers").exists()


@pytest.mark.parametrize("step", ["fsync_tree", "_put_in_place"])
def test_a_full_disk_leaves_no_half_labeler(checkpoint, tmp_path, monkeypatch, step):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(labeler_files, step, full)
    with pytest.raises(OSError, match="No space left"):
        write_labeler(tmp_path, checkpoint, threshold_result())
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_writer_left_is_removed_but_not_what_a_living_one_writes(checkpoint, tmp_path):
    for name, age in (("old", 7200), ("new", 10)):
        left = tmp_path / f".staging-{name}"
        left.mkdir()
        (left / "model.safetensors").write_bytes(b"half")
        seconds = left.stat().st_mtime - age
        os.utime(left, (seconds, seconds))
    digest, _ = write_labeler(tmp_path, checkpoint, threshold_result())
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([".staging-new", digest])


def test_a_new_checkpoint_replaces_the_one_before(checkpoint, tmp_path):
    prompt = Prompt(SPEC, tiny_tokenizer())
    target = tmp_path / "checkpoint"
    made = [
        write_checkpoint(
            target, save_tiny(tmp_path / f"model{seed}", seed=seed), prompt=prompt, base_model="tiny", precision="fp32"
        )
        for seed in (1, 2)
    ]
    assert made[0].weights_digest != made[1].weights_digest
    assert read_manifest(target) == made[1]
    assert made[1].threshold is None
    assert "generation_config.json" not in made[1].files


def test_a_model_with_a_pickle_beside_it_becomes_no_checkpoint(tmp_path):
    model_dir = save_tiny(tmp_path / "model")
    torch.save({}, model_dir / "optimizer.pt")
    with pytest.raises(LabelerError, match=r"optimizer\.pt: a labeler holds safetensors"):
        write_checkpoint(
            tmp_path / "checkpoint", model_dir, prompt=Prompt(SPEC, tiny_tokenizer()), base_model="t", precision="fp32"
        )
    assert not (tmp_path / "checkpoint").exists()


def test_current_is_a_relative_link_that_survives_moving_the_project(checkpoint, tmp_path):
    labelers = tmp_path / "here"
    digests = [write_labeler(labelers, checkpoint, threshold_result(tau), CALIBRATION)[0] for tau in (0.1, 0.2)]
    assert promoted_path(labelers) is None
    for digest in digests:
        assert switch_current(labelers, digest) == promoted_path(labelers) == labelers / digest
    assert (labelers / "current").readlink() == Path(digests[1])
    labelers.rename(tmp_path / "there")
    assert read_manifest(tmp_path / "there" / "current").digest == digests[1]
    assert Labeler.load(tmp_path / "there" / "current", self_check=False).digest == digests[1]


def test_nothing_is_promoted_that_is_not_there_or_was_edited(checkpoint, tmp_path):
    digest, path = write_labeler(tmp_path, checkpoint, threshold_result())
    other, edited = write_labeler(tmp_path, checkpoint, threshold_result(0.5))
    switch_current(tmp_path, digest)
    content = json.loads((edited / MANIFEST_FILE).read_text())
    (edited / MANIFEST_FILE).write_text(json.dumps(content | {"threshold": 0.4}))
    for wrong in (other, "f" * 64):
        with pytest.raises(LabelerError):
            switch_current(tmp_path, wrong)
    (tmp_path / ("e" * 64)).symlink_to(path)
    with pytest.raises(LabelerError, match="another digest"):
        switch_current(tmp_path, "e" * 64)
    assert promoted_path(tmp_path) == path


def test_a_current_that_points_nowhere_is_said_not_taken_for_no_promotion(tmp_path):
    (tmp_path / "current").symlink_to("gone")
    with pytest.raises(LabelerError, match="points to gone, which is gone"):
        promoted_path(tmp_path)
    (tmp_path / "current").unlink()
    (tmp_path / "current").mkdir()
    for ask in (promoted_path, lambda folder: switch_current(folder, "f" * 64)):
        with pytest.raises(LabelerError):
            ask(tmp_path)


def test_a_labeler_is_found_by_the_beginning_of_its_digest(checkpoint, tmp_path):
    digest, path = write_labeler(tmp_path, checkpoint, threshold_result())
    assert find_labeler(tmp_path, digest[:8]) == find_labeler(tmp_path, digest) == path
    with pytest.raises(LabelerError, match=f"no labeler is called 'zz'; there are: {digest[:12]}"):
        find_labeler(tmp_path, "zz")
    with pytest.raises(LabelerError, match="no labeler is called ''"):
        find_labeler(tmp_path, "")
    (tmp_path / (digest[:10] + "0" * 54)).mkdir()
    with pytest.raises(LabelerError, match="2 labelers begin with"):
        find_labeler(tmp_path, digest[:8])
