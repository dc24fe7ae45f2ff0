"""What a published version carries on about drift: the sums of the nights since its labeler's first version.

Knows one small JSON file inside a version; deliberately knows nothing of how a night is measured. It holds counts per
candidate and no entity, so nothing in it has to be erased. A version without the file (an older one) begins anew.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from semlabel.drift.labels import WINDOW
from semlabel.drift.quality import Measures
from semlabel.drift.spans import Span
from semlabel.drift.sums import Sums
from semlabel.errors import WarehouseError

FOLDER, FILE = "drift", "state.json"
SCHEMA_VERSION = 1


@dataclass(frozen=True, eq=False)
class History:
    """Since `first_version` of labeler `labeler_digest`: spans over `candidates`, and the measures of the texts.

    `nights` are the newest spans, `since` all of them as one (None before the first night). `cuts` divide the margins
    of the first version into ten equal parts. `first`, `last`: measures of the first and the newest version;
    `arrived`: agreement with the references that arrived since; `count`: nights since then.
    """

    labeler_digest: str
    first_version: str
    candidates: tuple[str, ...]
    cuts: tuple[float, ...]
    first: Measures
    last: Measures
    since: Span | None = None
    nights: tuple[Span, ...] = ()
    arrived: Measures = field(default_factory=dict)
    count: int = 0

    def over(self, candidates: Sequence[str]) -> "History":
        """The same history told for the candidates of another catalog."""
        wanted = tuple(candidates)
        if wanted == self.candidates:
            return self
        since = self.since.over(self.candidates, wanted) if self.since is not None else None
        nights = tuple(night.over(self.candidates, wanted) for night in self.nights)
        return History(**(vars(self) | {"candidates": wanted, "since": since, "nights": nights}))

    def after(self, night: Span, measures: Measures, arrived: Measures) -> "History":
        """The history with one more night, whose span is over `candidates`."""
        since = night if self.since is None else self.since.then(night)
        nights = (*self.nights, night)[-WINDOW:]
        more: dict[str, Any] = {"since": since, "nights": nights, "last": dict(measures), "arrived": dict(arrived)}
        more["count"] = self.count + 1
        return History(**(vars(self) | more))


def read_history(version: Path) -> History | None:
    """The history that a version carries, or None. Raises WarehouseError for a file that cannot be read."""
    path = version / FOLDER / FILE
    if not path.exists():
        return None
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
        if told["schema_version"] != SCHEMA_VERSION:
            return None
        return _history(told)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise WarehouseError(f"{path}: no readable history ({type(error).__name__}): roll back or publish") from error


def write_history(version: Path, history: History) -> None:
    """Write the history into the folder of a version that is being staged."""
    told: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "labeler_digest": history.labeler_digest,
        "first_version": history.first_version,
        "candidates": list(history.candidates),
        "cuts": list(history.cuts),
        "count": history.count,
        "since": history.since.to_json() if history.since is not None else None,
        "nights": [night.to_json() for night in history.nights],
    }
    for name in ("first", "last", "arrived"):
        told[name] = {measure: list(vars(sums).values()) for measure, sums in getattr(history, name).items()}
    path = version / FOLDER / FILE
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(told, allow_nan=False, separators=(",", ":")) + "\n", encoding="utf-8")


def _history(told: dict[str, Any]) -> History:
    def measures(name: str) -> dict[str, Sums]:
        return {measure: Sums.of_row(row) for measure, row in told[name].items()}

    return History(
        labeler_digest=told["labeler_digest"],
        first_version=told["first_version"],
        candidates=tuple(told["candidates"]),
        cuts=tuple(told["cuts"]),
        first=measures("first"),
        last=measures("last"),
        since=Span.from_json(told["since"]) if told["since"] is not None else None,
        nights=tuple(Span.from_json(night) for night in told["nights"]),
        arrived=measures("arrived"),
        count=int(told["count"]),
    )
