"""The shelf: what was let go is freed, and what cannot be loaded leaves the labeler that answers where it is."""

import asyncio
import gc
import weakref
from pathlib import Path

import grpc
import pytest
import torch

from semlabel.errors import LabelerError, SemlabelError
from semlabel.labeler import Labeler
from semlabel.labeler_files import switch_current
from semlabel.serving.engine import Engine
from semlabel.serving.plan import Plan
from semlabel.serving.pointer import Pointer, Wanted
from semlabel.serving.proto import engine_pb2, engine_pb2_grpc
from semlabel.serving.served import FrontLabeler
from semlabel.serving.shelf import Shelf
from tests.serving_fixtures import QUERY, make_labelers, running, until, until_ready
from tests.test_serving import publish_catalog


class Pointing:
    """A pointer to what is set."""

    def __init__(self, current=None, ready=None):
        self.target = Wanted(current, ready)

    def wanted(self):
        return self.target


class Part:
    """What a labeler is made of and refers to."""

    def __init__(self, whole):
        self.whole = whole


class Knotted:
    """A labeler whose parts refer to it."""

    def __init__(self, path):
        self.path, self.digest, self.scorer = path, path.name, Part(self)


@pytest.fixture(scope="module")
def labelers(tmp_path_factory):
    return make_labelers(tmp_path_factory.mktemp("labelers"), (0.1, 0.2, 0.3, 0.4))


def real(path):
    return Labeler.load(path, device="cpu", self_check=False)


@pytest.mark.parametrize("load", [Knotted, real])
def test_of_labelers_that_follow_each_other_those_let_go_are_freed(labelers, load):
    scorers = []

    def watched(path):
        labeler = load(path)
        scorers.append(weakref.ref(labeler.scorer))
        return labeler

    pointer = Pointing()
    shelf = Shelf(pointer, watched)
    for path in labelers:
        pointer.target = Wanted(path, None)
        assert shelf.refresh()
    # The one that answers, and the one before it for requests under way.
    assert list(shelf.loaded) == [path.name for path in labelers[2:]]
    assert [scorer() is None for scorer in scorers] == [True, True, False, False]
    assert gc.get_freeze_count() > 10_000


def test_a_labeler_is_let_go_before_the_next_one_is_held_ready(labelers):
    pointer, beside = Pointing(), []

    def load(path):
        beside.append(set(shelf.loaded))
        return Knotted(path)

    shelf = Shelf(pointer, load)
    first, second, third, fourth = labelers
    for target in (Wanted(first, None), Wanted(second, None), Wanted(third, fourth)):
        pointer.target = target
        shelf.refresh()
    assert beside[-1] == {second.name, third.name}


def because(error, cause):
    error.__cause__ = cause
    return error


PASSING = [
    PermissionError(13, "Permission denied", "model.safetensors"),
    OSError(5, "Input/output error"),
    MemoryError(),
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
    RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes. Error code 12"),
    because(LabelerError("d: the model cannot be loaded: no room"), RuntimeError("CUDA error: out of memory")),
    because(LabelerError("d: cannot be read; restore the directory"), OSError(5, "Input/output error")),
]
WRONG = [
    LabelerError("d: the weights digest differs from the content"),
    because(LabelerError("d: no labeler.json found"), FileNotFoundError(2, "No such file or directory")),
    because(LabelerError("d: no tokenizer can be loaded"), OSError("Can't load tokenizer for 'd'")),
    ValueError("could not determine the shape of object type 'torch.storage.UntypedStorage'"),
    RuntimeError("size mismatch for lm_head.weight"),
]


class Failing:
    """A shelf on which one labeler answers and the promoted one fails to load so often; `tried` at these times."""

    def __init__(self, answering, promoted, error, times):
        self.promoted, self.error, self.times = promoted, error, times
        self.now, self.tried = 0.0, []
        self.pointer = Pointing(answering, promoted)
        self.shelf = Shelf(self.pointer, self.load, lambda: self.now)

    def load(self, path):
        if path == self.promoted:
            self.tried.append(self.now)
            if len(self.tried) <= self.times:
                raise self.error
        return Knotted(path)

    def wait(self, seconds):
        for _ in range(seconds):
            self.now += 1.0
            self.shelf.refresh()


def names(error):
    return type(error).__name__


@pytest.mark.parametrize("error", PASSING, ids=names)
def test_what_a_disk_or_the_memory_failed_leaves_who_answers_and_is_tried_again_after_a_pause(labelers, caplog, error):
    failing = Failing(*labelers[:2], error, 2)
    shelf = failing.shelf
    assert shelf.refresh() and shelf.current == labelers[0].name and list(shelf.loaded) == [labelers[0].name]
    failing.wait(89)
    assert failing.tried == [0.0, 30.0]
    reason = str(error) if isinstance(error, SemlabelError) else f"{labelers[1]}: cannot be loaded: {names(error)}: "
    assert shelf.problem.startswith(reason) and "\n" not in shelf.problem
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == [
        f"labeler not loaded: {shelf.problem}"
    ]
    failing.wait(2000)
    assert failing.tried == [0.0, 30.0, 90.0]
    assert shelf.problem == "" and list(shelf.loaded) == [path.name for path in labelers[:2]]


def test_the_pauses_grow_to_ten_minutes(labelers):
    failing = Failing(*labelers[:2], MemoryError(), 1000)
    failing.shelf.refresh()
    failing.wait(3000)
    assert failing.tried == [0.0, 30.0, 90.0, 210.0, 450.0, 930.0, 1530.0, 2130.0, 2730.0]


@pytest.mark.parametrize("error", WRONG, ids=names)
def test_a_labeler_that_is_wrong_leaves_who_answers_and_is_not_tried_again_while_it_is_wanted(labelers, caplog, error):
    failing = Failing(*labelers[:2], error, 1)
    shelf = failing.shelf
    assert shelf.refresh() and shelf.current == labelers[0].name
    failing.wait(3000)
    assert failing.tried == [0.0] and str(error) in shelf.problem
    assert len([record for record in caplog.records if record.levelname == "ERROR"]) == 1
    failing.pointer.target = Wanted(labelers[0], None)
    failing.wait(1)
    assert shelf.problem == ""
    failing.pointer.target = Wanted(*labelers[:2])
    failing.wait(1)
    assert len(failing.tried) == 2 and list(shelf.loaded) == [path.name for path in labelers[:2]]


def test_a_pointer_that_cannot_be_read_leaves_who_answers(labelers):
    pointer = Pointing(labelers[0])
    shelf = Shelf(pointer, Knotted)
    shelf.refresh()

    def broken():
        raise PermissionError(13, "Permission denied", "current")

    pointer.wanted = broken
    assert shelf.refresh() and shelf.current == labelers[0].name
    assert shelf.problem == "PermissionError: [Errno 13] Permission denied: 'current'"


@pytest.fixture
def project(labelers, tmp_path):
    """The publication is of the first labeler, the second is promoted."""
    publish_catalog(tmp_path / "published", "000001-20260101T000000Z", labelers[0].name, ["sell goods"])
    switch_current(labelers[1].parent, labelers[1].name)
    return Pointer(labelers=labelers[0].parent, published=tmp_path / "published")


def test_a_promoted_labeler_that_cannot_be_read_is_told_by_the_engine_which_goes_on(project, labelers, tmp_path):
    def load(path):
        if path == labelers[1]:
            raise PermissionError(13, "Permission denied", "model.safetensors")
        return real(path)

    with (
        running(project, tmp_path, load=load) as server,
        grpc.insecure_channel(f"unix:{tmp_path / 'engine'}") as channel,
    ):
        until_ready(server)
        until(lambda: server.engine.shelf.problem)
        states = engine_pb2_grpc.EngineStub(channel).Watch(engine_pb2.Nothing(), timeout=30)
        for state in (next(states), next(states)):
            assert state.current == labelers[0].name and "Permission denied: 'model.safetensors'" in state.problem
        assert server.post("/v1/label", {"text": QUERY})[0] == 200


@pytest.mark.parametrize("error", [OSError(24, "Too many open files"), ValueError("no tokenizer")], ids=names)
def test_a_front_that_cannot_read_a_labeler_goes_on_with_the_one_it_has(
    project, labelers, tmp_path, monkeypatch, caplog, error
):
    load, broken = FrontLabeler.load, True

    def sometimes(path, *sizes):
        if broken and path == labelers[1]:
            raise error
        return load(path, *sizes)

    monkeypatch.setattr(FrontLabeler, "load", sometimes)
    switch_current(labelers[0].parent, labelers[0].name)
    with running(project, tmp_path) as server:
        until_ready(server)
        switch_current(labelers[1].parent, labelers[1].name)
        until(lambda: "not switched: " in caplog.text)
        until(lambda: labelers[1].name in server.engine.shelf.loaded)
        assert server.post("/v1/label", {"text": QUERY})[0] == 200
        broken = False
        until(lambda: labelers[1].name in server.ask("GET", "/v1/labeler")[1]["loaded"])
    assert caplog.text.count("not switched: ") == 1


@pytest.mark.parametrize("error", [*PASSING, *WRONG], ids=names)
def test_the_very_first_labeler_that_cannot_be_had_is_refused(labelers, error):
    def load(path):
        raise error

    class Refused(Exception):
        """What ends a process whose first labeler cannot be had."""

    def refuse(reason):
        raise Refused(reason)

    engine = Engine(Plan(pointer=Pointer(labeler=labelers[0]), socket=Path("engine")), load, refuse)
    with pytest.raises(Refused) as refused:
        asyncio.run(engine.follow())
    assert str(refused.value) == engine.shelf.problem and str(error) in engine.shelf.problem
