"""`semlabel rollback`: table, promotions and labeler change together, or none of them does."""

import shutil
from pathlib import Path

import pytest

from semlabel.labeler_files import CURRENT, promoted_path, switch_current
from semlabel.published import current_version, version_names
from tests.test_cli_commands import labelers, project, published, published_state  # noqa: F401


def test_a_rollback_restores_version_and_labeler_and_pauses_publishing(command, published, labelers, project):  # noqa: F811
    first, second = version_names(project / "run" / "published")
    assert current_version(project / "run" / "published") == second
    code, out, _ = command("rollback", first, "--who", "ada", "--reason", "wrong tau")
    assert code == 0
    assert f"published again: {first}" in out
    assert current_version(project / "run" / "published") == first
    assert promoted_path(project / "run" / "labelers").name == labelers["certified"].name
    assert published.publishing_paused() == "wrong tau"
    assert published.promoted()["who"] == "ada"


def edited(file: Path) -> None:
    """Another file in the place of this one: another labeler may have the same one under a hard link."""
    content = bytearray(file.read_bytes())
    content[-2] ^= 1
    file.unlink()
    file.write_bytes(content)


def gone(labeler: Path) -> None:
    shutil.rmtree(labeler)


def without_manifest(labeler: Path) -> None:
    (labeler / "labeler.json").unlink()


def with_edited_manifest(labeler: Path) -> None:
    file = labeler / "labeler.json"
    file.write_text(file.read_text().replace('"threshold": 0.25', '"threshold": 0.5'))


def with_edited_tokenizer(labeler: Path) -> None:
    edited(labeler / "tokenizer.json")


def with_edited_weights(labeler: Path) -> None:
    edited(labeler / "model.safetensors")


def that_cannot_be_pointed_to(labeler: Path) -> None:
    link = labeler.parent / CURRENT
    link.unlink()
    link.mkdir()


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (gone, "no labeler is called"),
        (without_manifest, "this is not a labeler directory"),
        (with_edited_manifest, "the file was edited"),
        (with_edited_tokenizer, "tokenizer.json"),
        (with_edited_weights, "model.safetensors"),
        (that_cannot_be_pointed_to, "is no symbolic link"),
    ],
)
def test_a_rollback_to_a_version_whose_labeler_cannot_be_used_changes_nothing(
    command,
    published,  # noqa: F811
    labelers,  # noqa: F811
    project,  # noqa: F811
    damage,
    told,
):
    folder, kept = project / "run" / "published", project / "run" / "labelers"
    first, second = version_names(folder)
    switch_current(kept, labelers["stricter"].name)
    published.promote(labelers["stricter"].name, "ada", "first")
    before = published.promoted()
    damage(kept / labelers["certified"].name)
    code, _, err = command("rollback", first)
    assert code == 2 and told in err and len(err.splitlines()) == 1
    assert current_version(folder) == second and published.promoted() == before
    assert damage is that_cannot_be_pointed_to or promoted_path(kept).name == labelers["stricter"].name
    assert published.publishing_paused() is None
    assert [row["action"] for row in published.publications()] == ["published", "published"]
