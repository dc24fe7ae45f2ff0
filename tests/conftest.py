"""What holds for every test: no network, one thread, no wall-clock bound, the same examples every time."""

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
