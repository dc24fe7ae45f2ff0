"""A warehouse small enough to reason about, and a scorer whose margins are a known function of the two texts."""

import atexit
import hashlib
import shutil
import struct
import tempfile
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import ClassVar

import numpy as np
import pandas as pd

from semlabel import refresh
from semlabel.operations import Operations
from semlabel.warehouse import Warehouse


def margin(entity_text: str, candidate_text: str, scorer: str = "scorer") -> np.float32:
    """A margin in about -8 .. 8 that depends on every byte of both texts and on the scorer, and on nothing else."""
    digest = hashlib.sha256("\x1f".join((scorer, entity_text, candidate_text)).encode()).digest()
    return np.float32(struct.unpack("<q", digest[:8])[0] / 2**60)


class Scorer:
    """Counts what it is asked; raises when `fails_at` calls have been answered."""

    def __init__(self, scorer: str = "scorer", fails_at: int | None = None) -> None:
        self.scorer, self.fails_at = scorer, fails_at
        self.calls: list[tuple[str, list[str]]] = []

    def __call__(self, entity_text: str, candidate_texts: list[str]) -> np.ndarray:
        if self.fails_at is not None and len(self.calls) >= self.fails_at:
            raise RuntimeError("killed")
        self.calls.append((entity_text, candidate_texts))
        return np.array([margin(entity_text, text, self.scorer) for text in candidate_texts], dtype=np.float32)

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """Every pair of texts that was scored, in order."""
        return [(entity, candidate) for entity, candidates in self.calls for candidate in candidates]


def entities(texts: Mapping[str, str]) -> pd.DataFrame:
    return pd.DataFrame({"entity_id": list(texts), "text": list(texts.values())}, dtype=str)


def catalog(texts: Mapping[str, str]) -> pd.DataFrame:
    return pd.DataFrame({"candidate_id": list(texts), "text": list(texts.values())}, dtype=str).assign(certified=True)


class Project:
    """A warehouse and an `ops.sqlite` in one folder, with three entities and five candidates unless told otherwise."""

    ENTITIES: ClassVar = {"e1": "alpha", "e2": "beta", "e3": "gamma"}
    CATALOG: ClassVar = {f"c{number}": f"candidate {number}" for number in range(5)}

    def __init__(self, folder: Path, scored: bool = False) -> None:
        self.folder = folder
        if not (folder / "ops.sqlite").exists():
            shutil.copytree(_template(scored), folder, dirs_exist_ok=True)
        self.operations = Operations(folder / "ops.sqlite")
        self.warehouse = Warehouse.open(folder / "warehouse.duckdb", memory_limit="500MB", threads=1)

    def put(self, new_entities: Mapping[str, str] | None = None, new_catalog: Mapping[str, str] | None = None) -> None:
        if new_entities is not None:
            self.warehouse.replace_entities(entities(new_entities), "run")
        if new_catalog is not None:
            self.warehouse.replace_catalog(catalog(new_catalog), "run")

    def plan(self, ids: Iterable[str] | None = None, items: int = 100, scorer: str = "scorer") -> refresh.RefreshPlan:
        return refresh.plan(self.warehouse, scorer, ids, items)

    def refresh(
        self, score: Scorer | None = None, ids: Iterable[str] | None = None, items: int = 100, run: str = "run"
    ) -> refresh.RefreshOutcome:
        score = score or Scorer()
        made = self.plan(ids, items, score.scorer)
        return refresh.execute(made, self.warehouse, self.operations, score, run)

    def predictions(self) -> pd.DataFrame:
        return self.warehouse.frame("SELECT * FROM predictions ORDER BY entity_id, candidate_id")

    def close(self) -> None:
        self.warehouse.close()


@cache
def _template(scored: bool) -> Path:
    """The files of a filled project, made once: copying them is quicker than making them for every test."""
    folder = Path(tempfile.mkdtemp(prefix="semlabel-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    Operations(folder / "ops.sqlite").start_run("run", "nightly_labeling")
    with Warehouse.open(folder / "warehouse.duckdb") as warehouse:
        warehouse.replace_entities(entities(Project.ENTITIES), "run")
        warehouse.replace_catalog(catalog(Project.CATALOG), "run")
        warehouse.activate_labeler("labeler", "scorer", 0.5, 1.5, -0.25)
    if scored:
        project = Project(folder)
        project.refresh()
        project.close()
    return folder
