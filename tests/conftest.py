"""What holds for every test: no network, one thread, no wall-clock bound, the same examples every time."""

import os
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

settings.register_profile(
    "semlabel",
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("semlabel")


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
    import dagster as dg

    with dg.DagsterInstance.ephemeral() as fresh:
        yield fresh
