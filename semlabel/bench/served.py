"""A server started as people start it, for a measurement, and ended when the block ends.

Knows processes and addresses; deliberately knows nothing of load or rates.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from semlabel.bench.other_engine import MODULE, VARIABLE, Kind
from semlabel.errors import SemlabelError
from semlabel.serving.plan import Address, Plan
from semlabel.serving.pointer import Pointer

_READY_SECONDS, _END_SECONDS, _LOOK_SECONDS = 600.0, 60.0, 0.1
_ANY = Address("127.0.0.1", 0)
_ANY_PORT = "127.0.0.1:0"


class Served(NamedTuple):
    """Where a server answers: HTTP and gRPC, each HOST:PORT."""

    http: str
    grpc: str


@contextmanager
def served(labeler: Path, device: str, threads: int, workers: int, other: Kind | None = None) -> Iterator[Served]:
    """A server of a labeler directory that answers; with `other`, the same server around that engine.

    Raises SemlabelError with the end of its log when it does not come up.
    """
    options = ["--device", device, "--threads", str(threads), "--workers", str(workers)]
    addresses = ["--http", _ANY_PORT, "--grpc", _ANY_PORT]
    command = ["semlabel", "serve", "--labeler", str(labeler.absolute()), *addresses, *options]
    # The tokens of a server that people use are not for this one.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SEMLABEL_SERVE")}
    if other is not None:
        plan = Plan(
            pointer=Pointer(labeler=labeler.absolute()),
            socket=Path("engine"),
            http=_ANY,
            grpc=_ANY,
            workers=workers,
            device=device,
            threads=threads,
        )
        command = [MODULE, "supervise", plan.model_dump_json()]
        environment[VARIABLE] = other.model_dump_json()
    # In a folder of its own no settings file of a project is found: what is served is what was asked for.
    with tempfile.TemporaryDirectory(prefix="semlabel-bench-") as folder:
        log = Path(folder) / "log"
        with log.open("w") as stream:
            process = subprocess.Popen(
                [sys.executable, "-m", *command], cwd=folder, env=environment, stdout=stream, stderr=stream
            )
        try:
            yield _ready(process, log)
        finally:
            process.terminate()
            try:
                process.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _ready(process: "subprocess.Popen[bytes]", log: Path) -> Served:
    deadline = time.monotonic() + _READY_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        text = log.read_text(encoding="utf-8", errors="replace")
        found = [re.search(rf"{scheme}://(127\.0\.0\.1:\d+)", text) for scheme in ("http", "grpc")]
        if found[0] and found[1] and _answers(found[0][1]):
            return Served(found[0][1], found[1][1])
        time.sleep(_LOOK_SECONDS)
    end = " | ".join(log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-5:])
    raise SemlabelError(f"the server did not come up: {end}")


def _answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://{address}/readyz", timeout=5) as answer:
            return bool(json.load(answer)["status"] == "ready")
    except (urllib.error.URLError, OSError, ValueError):
        return False
