"""One night as a process that kills itself at a chosen point: scoring, publication, purge and compaction.

    python -m tests.kill_harness FOLDER RUN_ID [POINT NUMBER DELAY]

A point is a transaction that begins, is about to be committed or is committed (in the warehouse or in `ops.sqlite`), a
step of a publication, or a step of a compaction. When the point of that name is reached for the NUMBERth time the
process is killed with signal 9: at once, or DELAY seconds later from a thread, which is how a kill lands inside the
commit, rename or copy that follows. Without a point the night ends well, and prints the names of its points.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

from semlabel import publish as publishing
from semlabel import upkeep
from semlabel.compaction import compact
from semlabel.operations_schema import OperationsFile
from semlabel.warehouse import Opening, Warehouse
from tests.storage import Project
from tests.test_refresh import NeighbourlyScorer

MANIFEST = {"digest": "labeler", "scorer_digest": "scorer", "base_model": "tiny", "threshold": 0.5}
FIRST = {f"e{number:02}": f"entity number {number}" for number in range(20)}
SECOND = {key: text if number < 3 else f"{text}, edited" for number, (key, text) in enumerate(FIRST.items())}
PAIRS = 17 * 5
"""What the second night has to score: 51 rounds of at most two candidates, so a batch is one round."""
BATCH = 2


class Points:
    """Counts the points that are reached, and kills at the chosen one."""

    def __init__(self, chosen: str, number: int, delay: float) -> None:
        self.chosen, self.number, self.delay = chosen, number, delay
        self.names: list[str] = []

    def __call__(self, name: str) -> None:
        self.names.append(name)
        if name == self.chosen and self.names.count(name) == self.number:
            if self.delay:
                threading.Thread(target=self._later, daemon=True).start()
            else:
                os.kill(os.getpid(), signal.SIGKILL)

    def _later(self) -> None:
        time.sleep(self.delay)
        os.kill(os.getpid(), signal.SIGKILL)


class LoggedScorer(NeighbourlyScorer):
    """Notes every pair that it scores in a file that outlives it."""

    def __init__(self, log: Path) -> None:
        super().__init__()
        self.log = log

    def __call__(self, entity_text: str, candidate_texts: list[str]):
        with self.log.open("a") as log:
            log.write("".join(f"{entity_text}|{text}\n" for text in candidate_texts))
        return super().__call__(entity_text, candidate_texts)


def watched(reached: Points) -> None:
    """Make the transactions and the publication of this process tell their points."""

    def transactions(kind: type, what: str) -> None:
        whole = kind.transaction

        @contextmanager
        def transaction(self: object) -> Iterator[object]:
            with whole(self) as connection:
                reached(f"{what} begins")
                yield connection
                reached(f"{what} commits")
            reached(f"{what} committed")

        kind.transaction = transaction

    def step(owner: object, name: str) -> None:
        whole: Callable = getattr(owner, name)

        def told(*arguments: object, **options: object) -> object:
            reached(f"publication: {name}")
            return whole(*arguments, **options)

        setattr(owner, name, told)

    transactions(Warehouse, "warehouse")
    transactions(OperationsFile, "operations")
    for name in ("_copy", "_verified_copy", "rename"):
        step(publishing._Stage, name)
    for name in ("write_manifest", "fsync_tree", "switch", "purge"):
        step(publishing, name)
    upkeep.compact = lambda path, factor, opening: compact(
        path, factor, opening, lambda name: reached(f"compaction: {name}")
    )


def night(folder: Path, run_id: str, entities: dict[str, str]) -> str:
    """One night; returns the content hash of the warehouse at its end."""
    project = Project(folder)
    project.operations.start_run(run_id, "nightly_labeling")
    with project.operations.lease("warehouse", run_id, 30):
        project.put(entities)
        project.refresh(LoggedScorer(folder / "scored.log"), items=2, run=run_id)
        publishing.publish(
            project.warehouse,
            project.operations,
            SimpleNamespace(keep=7, uncertified_candidates="publish"),
            folder / "published",
            MANIFEST,
            [],
            run_id,
            recheck=lambda: None,
        )
        project.close()
        opening = Opening("500MB", 1)
        upkeep.keep_up(folder / "warehouse.duckdb", 0.0, 0.0, opening)
        with opening.open(folder / "warehouse.duckdb") as warehouse:
            content = warehouse.content_hash()
    project.operations.finish_run(run_id, "SUCCESS")
    return content


def main(folder: str, run_id: str, point: str = "", number: str = "0", delay: str = "0") -> None:
    """Run the second night in this process."""
    reached = Points(point, int(number), float(delay))
    watched(reached)
    content = night(Path(folder), run_id, SECOND)
    print(content, *reached.names, sep="\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
