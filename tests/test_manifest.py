"""The manifest tells on every change: no edited file, no other scorer under the same digest."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from semlabel.digests import digest_of
from semlabel.errors import LabelerError
from semlabel.manifest import (
    MANIFEST_FILE,
    KnownPair,
    Manifest,
    PromptPart,
    describe_files,
    digest_of_weights,
    read_manifest,
    scorer_digest,
    verify,
)
from semlabel.prompt import PromptSpec

SPEC = PromptSpec("{entity} {candidate}")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A labeler directory whose tensors are a few bytes: what is in them does not matter here."""
    folder = tmp_path / "labeler"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"tensors" * 100)
    (folder / "config.json").write_text('{"model_type": "llama"}')
    (folder / "tokenizer.json").write_text('{"tokens": []}')
    (folder / MANIFEST_FILE).write_text(manifest_of(folder).to_json())
    return folder


def manifest_of(folder: Path, **changes) -> Manifest:
    files = describe_files(folder)
    fields = {
        "base_model": "tiny",
        "prompt": PromptPart.from_spec(SPEC),
        "answer_tokens": {"yes": {"text": "Yes", "id": 5}, "no": {"text": "No", "id": 6}},
        "tokenizer_digest": digest_of("tokenizer"),
        "weights_digest": digest_of_weights(files),
        "precision": "fp32",
        "scoring_code_version": 1,
        "threshold": 0.1 + 0.2,
        "policy": {"min_precision": 0.5},
        "calibration": {"platt_a": 1.25, "platt_b": -3.5, "ece": 0.01},
        "certified": "certified",
        "limits": {"max_query_tokens": 256},
        "training": {"pairs_digest": digest_of("pairs"), "seconds": 12.5},
        "evidence": {"held_out_quality": {"verdict": "pass"}},
        "known_pairs": (KnownPair(query="a nurse", candidate="give medicine", margin=1.5),),
        "files": files,
        "created_at": "2026-01-01T00:00:00+00:00",
    }
    return Manifest.sealed(**(fields | changes))


def edit(folder: Path, **changes) -> None:
    """Change fields of labeler.json in place, as a person with an editor would."""
    content = json.loads((folder / MANIFEST_FILE).read_text())
    (folder / MANIFEST_FILE).write_text(json.dumps(content | changes))


def test_what_is_written_is_what_is_read_to_the_last_bit(directory):
    assert verify(directory) == read_manifest(directory) == manifest_of(directory)
    assert read_manifest(directory).threshold == 0.1 + 0.2
    assert read_manifest(directory).calibration.model_dump() == {"platt_a": 1.25, "platt_b": -3.5, "ece": 0.01}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"threshold": 0.0}, "labeler digest"),
        ({"policy": {"min_precision": 0.4}}, "labeler digest"),
        ({"calibration": None}, "labeler digest"),
        ({"certified": "estimated"}, "labeler digest"),
        ({"precision": "bf16"}, "scorer digest"),
        ({"tokenizer_digest": digest_of("other")}, "scorer digest"),
        ({"weights_digest": digest_of("other")}, "weights digest"),
        ({"prompt": PromptPart.from_spec(SPEC).model_dump() | {"template": "{entity}: {candidate}"}}, "prompt digest"),
        ({"answer_tokens": {"yes": {"text": "Yes", "id": 6}, "no": {"text": "No", "id": 5}}}, "scorer digest"),
        ({"evidence": {}}, "manifest digest"),
        ({"known_pairs": []}, "manifest digest"),
        ({"training": {}}, "manifest digest"),
        ({"created_at": "2027-01-01T00:00:00+00:00"}, "manifest digest"),
    ],
)
def test_an_edited_manifest_is_refused_naming_the_digest(directory, change, named):
    edit(directory, **change)
    with pytest.raises(LabelerError, match=f"the {named} differs"):
        read_manifest(directory)


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("config.json", "digest of config.json"),
        ("tokenizer.json", "digest of tokenizer.json"),
        ("model.safetensors", "weights digest"),
    ],
)
@pytest.mark.parametrize("same_size", [True, False])
def test_an_edited_file_is_refused_naming_its_digest(directory, name, named, same_size):
    content = (directory / name).read_bytes()
    (directory / name).write_bytes(b"X" + content[1:] if same_size else content + b" ")
    with pytest.raises(LabelerError, match=f"the {named} differs"):
        verify(directory)


def test_an_added_or_lost_file_is_refused_by_name(directory):
    (directory / "added_tokens.json").write_text("{}")
    with pytest.raises(LabelerError, match=r"added_tokens\.json is not part of this labeler"):
        read_manifest(directory)
    (directory / "added_tokens.json").unlink()
    (directory / ".DS_Store").write_text("left by a file manager, loaded by nobody")
    assert read_manifest(directory)
    (directory / "tokenizer.json").unlink()
    with pytest.raises(LabelerError, match=r"tokenizer\.json is missing"):
        read_manifest(directory)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "weights.pt", "modeling.py"])
def test_pickles_and_code_never_enter_a_labeler(directory, name):
    (directory / name).write_bytes(b"")
    with pytest.raises(LabelerError, match=f"{name}: a labeler holds safetensors"):
        describe_files(directory)


def test_a_model_without_safetensors_is_refused(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(LabelerError, match="no safetensors"):
        describe_files(tmp_path)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "this is not a labeler directory"),
        ("", "cut short or edited"),
        ('{"schema_version": 1, "diges', "cut short or edited"),
        ("[]", "cut short or edited"),
    ],
)
def test_a_broken_manifest_is_one_line_not_a_traceback(directory, content, said):
    if content is None:
        (directory / MANIFEST_FILE).unlink()
    else:
        (directory / MANIFEST_FILE).write_text(content)
    with pytest.raises(LabelerError, match=said) as caught:
        read_manifest(directory)
    assert "\n" not in str(caught.value)


def test_a_manifest_of_a_newer_version_is_refused_as_such(directory):
    edit(directory, schema_version=2)
    with pytest.raises(LabelerError, match="schema version 2, this program reads 1; upgrade"):
        read_manifest(directory)


@pytest.mark.parametrize("name", ["../model.safetensors", "a/b.json", ".hidden.json"])
def test_a_manifest_never_points_out_of_its_directory(directory, name):
    content = json.loads((directory / MANIFEST_FILE).read_text())
    content["files"][name] = content["files"]["config.json"]
    (directory / MANIFEST_FILE).write_text(json.dumps(content))
    with pytest.raises(LabelerError, match="files"):
        read_manifest(directory)


SCORER = {
    "weights_digest": digest_of("weights"),
    "tokenizer_digest": digest_of("tokenizer"),
    "prompt": SPEC,
    "answer_ids": (5, 6),
    "limits": {"max_query_tokens": 256},
    "precision": "fp32",
    "code_version": 1,
}


@pytest.mark.parametrize(
    "change",
    [
        {"weights_digest": digest_of("other weights")},
        {"tokenizer_digest": digest_of("other tokenizer")},
        {"prompt": PromptSpec("{entity}  {candidate}")},
        {"prompt": PromptSpec("{entity} {candidate}", format="chat")},
        {"prompt": PromptSpec("{entity} {candidate}", yes="yes")},
        {"prompt": PromptSpec("{entity} {candidate}", max_query_tokens=100)},
        {"answer_ids": (6, 5)},
        {"limits": {"max_query_tokens": 255}},
        {"precision": "bf16"},
        {"code_version": 2},
    ],
)
def test_whatever_moves_a_margin_makes_another_scorer(change):
    assert scorer_digest(**(SCORER | change)) != scorer_digest(**SCORER)


def test_the_config_counts_as_weights_and_the_tokenizer_does_not(directory):
    before = digest_of_weights(describe_files(directory))
    (directory / "tokenizer.json").write_text("{}")
    assert digest_of_weights(describe_files(directory)) == before
    (directory / "config.json").write_text("{}")
    assert digest_of_weights(describe_files(directory)) != before


@pytest.mark.parametrize("field", ["threshold", "policy", "calibration", "certified"])
def test_another_rule_is_another_labeler_of_the_same_scorer(directory, field):
    changed = {"threshold": None, "policy": {}, "calibration": None, "certified": "estimated"}[field]
    first, second = manifest_of(directory), manifest_of(directory, **{field: changed})
    assert first.digest != second.digest
    assert first.scorer_digest == second.scorer_digest


def test_a_labeler_without_a_shortlist_is_the_one_it_was_before_there_were_any(directory):
    plain = manifest_of(directory)
    assert "shortlist" not in json.loads(plain.to_json()) and plain == manifest_of(directory, shortlist=None)
    facts = plain.model_dump(mode="json", exclude={"digest", "manifest_digest", "created_at", "evidence"})
    assert plain.digest == digest_of({name: facts[name] for name in facts if name not in ("known_pairs", "training")})
    shortlist = {"size": 200, "encoder": "tfidf", "encoder_digest": "a" * 64, "digest": "b" * 64}
    listed = manifest_of(directory, shortlist=shortlist)
    assert listed.digest != plain.digest and listed.scorer_digest == plain.scorer_digest
    (directory / MANIFEST_FILE).write_text(listed.to_json())
    assert verify(directory) == listed
    edit(directory, shortlist=shortlist | {"size": 300})
    with pytest.raises(LabelerError, match="labeler digest"):
        read_manifest(directory)


@pytest.mark.parametrize("field", ["training", "evidence", "known_pairs", "created_at"])
def test_when_and_how_it_was_made_is_no_part_of_a_labelers_identity(directory, field):
    changed = {"training": {}, "evidence": {}, "known_pairs": (), "created_at": "2027-01-01T00:00:00+00:00"}[field]
    assert manifest_of(directory).digest == manifest_of(directory, **{field: changed}).digest


def test_a_threshold_that_is_no_number_is_no_threshold(directory):
    with pytest.raises(ValueError, match="finite"):
        manifest_of(directory, threshold=float("nan"))


def test_reading_a_manifest_imports_no_torch(directory):
    code = (
        "import sys; from pathlib import Path; import semlabel.labeler, semlabel.labeler_files;"
        "from semlabel.manifest import verify; verify(Path(sys.argv[1]));"
        "print([m for m in ('torch', 'transformers', 'sklearn', 'scipy') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(directory)], capture_output=True, text=True, check=True,
        cwd=Path(__file__).parent.parent,
    )  # fmt: skip
    assert done.stdout.strip() == "[]"
