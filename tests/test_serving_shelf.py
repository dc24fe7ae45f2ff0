"""The shelf: what was let go is freed, and what cannot be loaded leaves the labeler that answers where it is."""

import gc
import weakref
from types import SimpleNamespace

import pytest

from semlabel.labeler import Labeler
from semlabel.serving.pointer import Wanted
from semlabel.serving.shelf import Shelf
from tests.serving_fixtures import make_labelers


class Pointing:
    """A pointer to what is set."""

    def __init__(self, current=None, ready=None):
        self.target = Wanted(current, ready)

    def wanted(self):
        return self.target


class Knotted:
    """A labeler whose parts refer to each other."""

    def __init__(self, path):
        self.path, self.digest = path, path.name
        self.scorer = SimpleNamespace(labeler=self)


@pytest.fixture(scope="module")
def labelers(tmp_path_factory):
    return make_labelers(tmp_path_factory.mktemp("labelers"), (0.1, 0.2, 0.3, 0.4))


def real(path):
    return Labeler.load(path, device="cpu", self_check=False)


@pytest.mark.parametrize("load", [Knotted, real])
def test_of_labelers_that_follow_each_other_those_let_go_are_freed(labelers, load):
    freed = []

    def watched(path):
        labeler = load(path)
        freed.append(weakref.ref(labeler.scorer))
        return labeler

    pointer = Pointing()
    shelf = Shelf(pointer, watched)
    for path in labelers:
        pointer.target = Wanted(path, None)
        assert shelf.refresh()
    # The one that answers, and the one before it for requests under way.
    assert list(shelf.loaded) == [path.name for path in labelers[2:]]
    assert [scorer() is None for scorer in freed] == [True, True, False, False]
    assert gc.get_freeze_count() > 10_000


def test_a_labeler_is_let_go_before_the_next_one_is_held_ready(labelers):
    pointer, held = Pointing(), []

    def load(path):
        held.append(sorted(shelf.loaded))
        return Knotted(path)

    shelf = Shelf(pointer, load)
    first, second, third, fourth = labelers
    for target in (Wanted(first, None), Wanted(second, None), Wanted(third, fourth)):
        pointer.target = target
        shelf.refresh()
    assert held[-1] == sorted([second.name, third.name])
