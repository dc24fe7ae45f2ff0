"""What holds for every test: no network, one thread, no wall-clock bound, the same examples every time."""

import gc
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # tiny models gain nothing from more, and busy machines lose much
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    import dagster as dg

    from tests.pipeline_fixtures import TinyProject

# Many tests start processes: where Python may not keep what it compiled, each of them compiles torch and dagster anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

settings.register_profile(
    "semlabel",
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("semlabel")

# A test that waits for processes of its own runs while others compute, so the longest of them begin first: one of them
# at the end keeps the other cores waiting.
LONGEST = ("test_docs.py", "test_killed_run.py", "test_serve_command.py", "test_serving_chaos.py", "test_crash.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The files of `LONGEST` first, all else in its order."""
    items.sort(key=lambda item: LONGEST.index(item.path.name) if item.path.name in LONGEST else len(LONGEST))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """What is imported for the tests is no garbage: none is looked for meanwhile, nor in it by a training later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def _environment_kept() -> Iterator[None]:
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


# A command sets what the processes that it starts are to know, here in the process of all tests.
_of_a_module = pytest.fixture(scope="module", autouse=True, name="_of_a_module")(_environment_kept)
_of_a_test = pytest.fixture(autouse=True, name="_of_a_test")(_environment_kept)


@pytest.fixture
def command(project, capfd):
    """Run a command on the module's `project`, in this process; gives exit code, stdout and stderr."""

    def run(*arguments):
        from semlabel.cli import run_command

        capfd.readouterr()
        code = run_command(arguments)
        return (code, *capfd.readouterr())

    return run


@pytest.fixture(scope="session")
def first_run(tmp_path_factory: pytest.TempPathFactory) -> "tuple[TinyProject, dg.ExecuteInProcessResult]":
    """A project after its first run: everything was trained, promoted and published."""
    import dagster as dg

    from tests.pipeline_fixtures import ENTITIES, make_project, run

    project = make_project(tmp_path_factory.mktemp("pipeline") / "labeled", ENTITIES)
    return project, run(project, dg.DagsterInstance.ephemeral())


@pytest.fixture
def instance() -> "Iterator[dg.DagsterInstance]":
    """A Dagster of the test's own, in memory, whose runs draw no plots."""
    from tests.pipeline_fixtures import quick_instance

    with quick_instance() as fresh:
        yield fresh
