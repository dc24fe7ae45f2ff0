"""A version that is replaced, refused or removed, killed at every change of a folder: nobody meets half of one."""

import itertools
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest

from semlabel import erase_versions, published
from semlabel.erase_versions import erase_from_versions
from semlabel.errors import GateBlocked
from semlabel.published import REPLACING, VERSIONS, clean, current_version, replace_version, verify_version
from tests.test_publish import Publisher

CHANGES = ("rename", "replace", "unlink", "rmdir", "mkdir", "link", "symlink")


class Killed(BaseException):
    """The process is gone: it does nothing more, not even what it would do after an error."""


@contextmanager
def killed_before(number: int) -> Iterator[None]:
    """Die before the NUMBERth rename, link, unlink or new folder of a block; nothing of what follows is done."""
    done = itertools.count(1)

    def counted(change: Callable, *arguments, **options):
        if next(done) >= number:
            raise Killed
        return change(*arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        for name in CHANGES:
            patch.setattr(os, name, partial(counted, getattr(os, name)))
        yield


def is_killed(number: int, action: Callable[[], object]) -> bool:
    """Whether an action was killed before its NUMBERth change, rather than over before."""
    try:
        with killed_before(number):
            action()
    except Killed:
        return True
    return False


def all_whole(folder: Path) -> list[dict]:
    """The manifests of everything that has a version's name, and of `current`, every file of them proven."""
    verify_version((folder / "current").resolve(strict=True))
    return [verify_version(folder / VERSIONS / name) for name in published.version_names(folder)]


@pytest.fixture
def project(tmp_path):
    project = Publisher(tmp_path / "project")
    yield project
    project.close()


@pytest.fixture
def staged(project, monkeypatch):
    """The hidden name of the complete folder that an erasure puts in the place of the one version."""
    project.publish()
    made = []
    monkeypatch.setattr(erase_versions, "replace_version", lambda directory, name, path: made.append(path))
    erase_from_versions(project.target, "e2")
    return made[0].name


@pytest.mark.parametrize("is_current", [True, False])
def test_a_replacement_killed_before_any_change_of_a_folder_is_finished_whole(project, staged, tmp_path, is_current):
    version = current_version(project.target)
    if not is_current:
        shutil.copytree(project.target / VERSIONS / version, project.target / VERSIONS / "000002-20260101T000000Z")
        published.switch(project.target, "000002-20260101T000000Z")
    names = published.version_names(project.target)
    for number in itertools.count(1):
        folder = tmp_path / "killed"
        shutil.copytree(project.target, folder, symlinks=True)
        if not is_killed(number, lambda f=folder: replace_version(f, version, f / VERSIONS / staged)):
            break
        all_whole(folder)
        is_killed(number, lambda f=folder: clean(f))
        all_whole(folder)
        clean(folder)
        manifest, *_ = all_whole(folder)
        assert bool(manifest.get("erasures")) is (number > 1), number
        assert current_version(folder) == names[-1]
        assert sorted(path.name for path in (folder / VERSIONS).iterdir()) == names
        shutil.rmtree(folder)
    assert number > 30


@pytest.mark.parametrize("current_on", ["the version", "the fresh folder"])
def test_a_fresh_folder_that_is_not_whole_never_takes_the_place_of_a_whole_version(project, current_on):
    """What a killed process of an earlier release leaves."""
    version = project.publish().version
    whole, half = project.target / VERSIONS / version, project.target / VERSIONS / f"{REPLACING}{version}"
    shutil.copytree(whole, half)
    (half / "manifest.json").unlink()
    if current_on == "the fresh folder":
        published.switch(project.target, half.name)
    clean(project.target)
    assert current_version(project.target) == version and len(all_whole(project.target)) == 1
    assert [path.name for path in (project.target / VERSIONS).iterdir()] == [version]


def test_a_refused_version_whose_removal_is_killed_is_not_left_half_under_its_name(project):
    project.publish()
    project.put({"e1": "edited"})
    for number in itertools.count(1):
        with ExitStack() as killing:

            def refuse(number=number, killing=killing):
                killing.enter_context(killed_before(number))
                raise GateBlocked("red")

            with pytest.raises((Killed, GateBlocked)) as ended:
                project.publish(recheck=refuse)
        # Killed before its first change, the refused version stays, whole and never pointed to.
        assert len(all_whole(project.target)) == 2
        if ended.type is GateBlocked:
            break
    assert number > 8
    project.publish()
    assert not list((project.target / VERSIONS).glob(".*"))


def test_a_purge_that_is_killed_leaves_no_half_of_a_version(project, monkeypatch):
    for text in ("one", "two", "three"):
        project.put({"e1": text})
        project.publish()
    monkeypatch.setattr(published, "_now", lambda: datetime.now(UTC) + timedelta(hours=25))
    for number in itertools.count(1):
        if not is_killed(number, lambda: published.purge(project.target, 1)):
            break
        assert all_whole(project.target)
        clean(project.target)
    assert len(all_whole(project.target)) == 1
    assert not list((project.target / VERSIONS).glob(".*"))
