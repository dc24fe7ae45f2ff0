"""Gate by gate, case by case and launch by launch through Dagster: what readers see changes only when that is allowed.

All cells are marked slow. The fast ones are a subset in which every gate, and every pair of asset, outcome and launch,
meets at least once; the pure table (`test_gate_truth_table`) has every gate in every case.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import combinations, product
from typing import NamedTuple

import dagster as dg
import pytest

from assets.checks import CHECKS
from semlabel.gates import ALWAYS, ERROR_GATES_BEFORE_PUBLICATION, GATES
from semlabel.published import current_version
from tests.gate_cases import OUTCOMES, result_of
from tests.pipeline_fixtures import CANDIDATES, ENTITIES, TinyProject, published, quick_instance, run
from tests.test_pipeline import refusal

LAUNCHES = ("same job", "nightly selection", "alone later", "selected subset")
RED = tuple(outcome for outcome in OUTCOMES if outcome != "pass")
PART = ["predictions", "published_predictions"]


class Place(NamedTuple):
    """A project of its own, and the Dagster that knows of its runs."""

    project: TinyProject
    instance: dg.DagsterInstance


class Cell(NamedTuple):
    gate: str
    outcome: str
    launch: str

    def pairs(self) -> set[frozenset]:
        """What this cell covers: its gate, and every pair of the gate's asset, the outcome and the launch."""
        factors = {("asset", GATES[self.gate].asset), ("outcome", self.outcome), ("launch", self.launch)}
        return {frozenset(pair) for pair in combinations(sorted(factors), 2)} | {frozenset([self.gate])}


ALL = [Cell(*cell) for cell in product(ALWAYS, RED, LAUNCHES)]


def subset(cells: list[Cell]) -> list[Cell]:
    """Greedily the fewest cells that cover what all of them cover."""
    left = set().union(*(cell.pairs() for cell in cells))
    chosen: list[Cell] = []
    while left:
        best = max(cells, key=lambda cell: len(cell.pairs() & left))
        chosen.append(best)
        left -= best.pairs()
    return chosen


FEW = subset(ALL)


def with_news(first_run, folder) -> TinyProject:
    """A published project with one more entity in its source, which nobody has judged: something to publish."""
    copy = first_run[0].copied(folder)
    copy.write_entities([*copy.entities(), {"entity_id": "new", "text": "keep the plan of the office and the records"}])
    return copy


@pytest.fixture
def fresh(first_run, instance, tmp_path) -> Place:
    return Place(with_news(first_run, tmp_path / "fresh"), instance)


@pytest.fixture(scope="module")
def night(first_run, tmp_path_factory) -> Iterator[Place]:
    """The same after a night in which every gate passed while publishing was paused: it waits to be published."""
    project = with_news(first_run, tmp_path_factory.mktemp("night") / "labeled")
    with quick_instance() as instance:
        project.operations.set_publishing_paused(True, "for the test")
        made = run(project, instance, "nightly_labeling")
        project.operations.set_publishing_paused(False, "")
        assert "publishing is paused" in refusal(made, "published_predictions")
        yield Place(project, instance)


@pytest.fixture
def place_of(fresh, night, tmp_path) -> Callable[[str], Place]:
    """Where something is launched."""

    def place(launch: str) -> Place:
        return fresh if launch in LAUNCHES[:2] else Place(night.project.copied(tmp_path / "later"), night.instance)

    return place


@contextmanager
def forced(project: TinyProject, said: dict[str, str]) -> Iterator[None]:
    """Let each gate of `said` find that outcome when it is asked next; nothing older of it is left to repeat."""
    genuine = {gate: CHECKS[gate].evidence for gate in said}
    with project.operations.file.transaction() as connection:
        connection.executemany("DELETE FROM gate_results WHERE gate = ?", [(gate,) for gate in said])
    for gate, outcome in said.items():
        object.__setattr__(CHECKS[gate], "evidence", _finding(gate, outcome))
    try:
        yield
    finally:
        for gate, evidence in genuine.items():
            object.__setattr__(CHECKS[gate], "evidence", evidence)


def _finding(gate: str, outcome: str):
    def evidence(step):
        if outcome == "cannot_compute":
            raise ZeroDivisionError("no rows to divide by")
        return result_of(gate, outcome)

    return evidence


def launched(place: Place, launch: str, gates: Iterable[str]) -> list:
    """The runs of a launch. A later one follows a night while publishing was paused, after which these gates were asked
    again (but for the last one, which asks about what is published).
    """
    if launch == "same job":
        return [run(*place)]
    if launch == "nightly selection":
        return [run(*place, "nightly_labeling")]
    before = [gate for gate in gates if GATES[gate].asset != PART[1]]
    asked = [run(*place, checks={gate: GATES[gate].asset for gate in before})] if before else []
    return [*asked, run(*place, select=PART[1:] if launch == "alone later" else PART)]


def judge(place: Place, cell: Cell) -> None:
    project = place.project
    before = current_version(project.settings.paths.published)
    with forced(project, {cell.gate: cell.outcome}):
        runs = launched(place, cell.launch, [cell.gate])
    recorded = [row for made in runs for row in project.operations.gates_of_run(made.run_id)]
    told = [row for row in recorded if row["gate"] == cell.gate]
    assert {(row["verdict"], bool(row["computed"])) for row in told} == {_kept(cell)}
    moved = current_version(project.settings.paths.published) != before
    blocks = cell.gate in ERROR_GATES_BEFORE_PUBLICATION and told[-1]["severity"] == "ERROR"
    assert moved == (not blocks), cell
    if moved:
        assert published(project)["rows"] == (ENTITIES + 1) * CANDIDATES
    elif cell.launch == "alone later":
        assert told[-1]["sentence"] in refusal(runs[-1], "published_predictions")
    if blocks or (cell.gate == "snapshot_matches_warehouse"):
        assert not runs[-1].success


def _kept(cell: Cell) -> tuple[str, bool]:
    result = result_of(cell.gate, cell.outcome)
    return result.verdict, result.computed


@pytest.mark.parametrize("cell", FEW, ids="-".join)
def test_a_gate_that_did_not_pass_holds_the_publication_however_it_is_launched(place_of, cell):
    judge(place_of(cell.launch), cell)


@pytest.mark.slow
@pytest.mark.parametrize("cell", [cell for cell in ALL if cell not in FEW], ids="-".join)
def test_every_gate_in_every_case_holds_the_publication_however_it_is_launched(place_of, cell):
    judge(place_of(cell.launch), cell)


@pytest.mark.parametrize("launch", LAUNCHES)
def test_when_every_gate_passes_every_launch_publishes(place_of, launch):
    place = place_of(launch)
    project = place.project
    before = current_version(project.settings.paths.published)
    with forced(project, dict.fromkeys(ALWAYS, "pass")):
        runs = launched(place, launch, ALWAYS)
    recorded = {row["gate"]: row for made in runs for row in project.operations.gates_of_run(made.run_id)}
    assert set(recorded) == set(ALWAYS) and {row["verdict"] for row in recorded.values()} == {"pass"}
    assert runs[-1].success and current_version(project.settings.paths.published) != before
    assert published(project)["rows"] == (ENTITIES + 1) * CANDIDATES


def test_the_fast_cells_cover_every_gate_and_every_pair():
    covered = set().union(*(cell.pairs() for cell in FEW))
    assets = {gate.asset for gate in GATES.values()}
    wanted = {frozenset([gate]) for gate in ALWAYS}
    for names in (
        product([("asset", name) for name in assets], [("outcome", name) for name in RED]),
        product([("asset", name) for name in assets], [("launch", name) for name in LAUNCHES]),
        product([("launch", name) for name in LAUNCHES], [("outcome", name) for name in RED]),
    ):
        wanted |= {frozenset(pair) for pair in names}
    assert covered == wanted and len(FEW) <= 40
