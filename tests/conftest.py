"""What holds for every test: no network, one thread, no wall-clock bound, the same examples every time."""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # tiny models gain nothing from more, and busy machines lose much
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest
from hypothesis import HealthCheck, settings

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
