"""Finds the fastest setting of a method for some tasks, and keeps a log of everything that was tried.

Settings of one ladder are tried in order, and a ladder is left when two in a row were slower than its best; the best of
all is then tried with several tasks at work at once. Knows nothing of what the other settings mean.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from semlabel.bench.methods import Method, Scored, Setting
from semlabel.bench.tasks import Task

_SLOWER_IN_A_ROW = 2


def timed(method: Method, tasks: Sequence[Task], setting: Setting, device: str = "cpu") -> tuple[float, Scored]:
    """Seconds of one call, and what it gave."""
    start = _now(device)
    scored = method.run(tasks, setting)
    return _now(device) - start, scored


def _now(device: str) -> float:
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    return time.perf_counter()


@dataclass(frozen=True)
class Tuned:
    """The fastest setting, and one flat record for every setting that was tried."""

    setting: Setting
    log: list[dict[str, Any]]


def tune(method: Method, tasks: Sequence[Task], repetitions: int, device: str = "cpu") -> Tuned:
    """Try the method's ladders; a setting's time is its best of `repetitions`.

    One call before the first, or before those of every setting where the method sets something up for it, does not
    count.
    """
    labels = sum(len(task.items) for task in tasks)
    best: tuple[float, Setting] | None = None
    log: list[dict[str, Any]] = []

    def tried(setting: Setting) -> float:
        nonlocal best
        if not log or method.sets_up:
            method.run(tasks, setting)  # the very first call also pays for what libraries set up once
        seconds = min(timed(method, tasks, setting, device)[0] for _ in range(repetitions))
        log.append({"setting": spelled(setting), "labels_per_s": labels / seconds})
        if best is None or seconds < best[0]:
            best = seconds, setting
        return seconds

    for ladder in method.ladders(tasks):
        fastest, slower = float("inf"), 0
        for setting in ladder:
            seconds = tried(setting)
            slower = 0 if seconds < fastest else slower + 1
            fastest = min(fastest, seconds)
            if slower == _SLOWER_IN_A_ROW:
                break
    if best is None:
        raise ValueError(f"{method.name} has no settings to try")
    lanes = min(len(tasks), torch.get_num_threads())
    if method.has_lanes and lanes > 1 and device == "cpu":
        tried(best[1] | {"lanes": lanes})
    return Tuned(best[1], log)


def spelled(setting: Setting) -> str:
    """`items_per_forward=32`, for tables and logs."""
    return ", ".join(f"{name}={value}" for name, value in setting.items())
