"""Which shares of YES moved by more than chance explains, and by enough to matter.

Knows spans, limits and the tests; deliberately knows nothing of versions, files or verdicts. For every candidate and
span two things are looked at: whether the flips of entities that stayed lean to one side, and whether entities that
arrived are labeled YES as often as those before them. They are of different entities, so they count together. The same
over all candidates, with the entity as the unit, sees many candidates that move a little. All questions of a night
share one error `alpha` by Holm.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from semlabel.drift import chance
from semlabel.drift.spans import Span, joined
from semlabel.drift.sums import unlikely

EVERY_CANDIDATE = "all candidates"
WINDOW = 30
"""Nights of the middle span: what has to be seen within a month must not drown in the noise of a year."""
_TONIGHT, _WINDOW, _ALL = "tonight", f"the last {WINDOW} versions", "since the labeler's first version"


@dataclass(frozen=True)
class Limits:
    """`alpha`: the chance of a false finding of one night. A candidate's share must have moved by `points` (a share),
    the labels of all candidates together by `labels` (a share of what they were)."""

    alpha: float
    points: float
    labels: float


@dataclass(frozen=True)
class Finding:
    """A share of YES that moved: whose, over which span, and what it was seen in; `p` is adjusted for all questions.

    `now` is `before` with what flips and arrivals changed of the whole; `arrived` is the share among the arrivals (None
    without any). `up`, `down`: flips NO to YES and back.
    """

    name: str
    span: str
    before: float
    now: float
    arrived: float | None
    up: int
    down: int
    p: float

    @property
    def moved(self) -> float:
        """By how much, as a share: of the whole or, where that is more, of the arrivals."""
        return max(abs(self.now - self.before), abs(self.arrived - self.before) if self.arrived is not None else 0.0)


def spans_of(nights: Sequence[Span], since: Span | None, tonight: Span) -> dict[str, Span]:
    """The spans to judge by name: tonight, the last nights, everything; those that are the same only once."""
    found = {_TONIGHT: tonight}
    if nights:
        found[_WINDOW] = joined([*nights[-(WINDOW - 1) :], tonight])
    if since is not None and len(nights) >= WINDOW:
        found[_ALL] = since.then(tonight)
    return found


def findings(candidates: Sequence[str], spans: Mapping[str, Span], limits: Limits) -> list[Finding]:
    """The moves that chance does not explain, largest first. At most `limits.alpha` is the chance of a false one."""
    chances = [look(span) for span in spans.values() for look in (_of_candidates, _of_all)]
    if not chances:
        return []
    p, least = (np.concatenate([getattr(one, name) for one in chances]) for name in ("p", "least"))
    adjusted = iter(np.split(chance.holm(p, 2 * least, limits.alpha), np.cumsum([one.p.size for one in chances])[:-1]))
    found: list[Finding] = []
    for name, span in spans.items():
        likely = next(adjusted)
        for place in map(int, np.flatnonzero(likely <= limits.alpha)):
            one = _candidate(candidates[place], name, span, place, float(likely[place]))
            found += [one] if one.moved >= limits.points and span.entities[place] > 0 else []
        together = _all(name, span, float(next(adjusted)[0]))
        if together.p <= limits.alpha and together.moved >= limits.labels * together.before:
            found.append(together)
    return sorted(found, key=lambda one: (one.name != EVERY_CANDIDATE, -one.moved, one.name, one.span))


def _of_candidates(span: Span) -> chance.Chance:
    arrived = chance.arrivals(span.yes, span.entities, span.new_yes, span.new)
    return chance.flips(span.up, span.down).together(arrived)


def _of_all(span: Span) -> chance.Chance:
    arrived = chance.one(*unlikely(span.surplus, span.before.less(span.before.share)))
    return chance.symmetric_sum(span.flip_sum, span.flip_squares).together(arrived)


def _candidate(name: str, span_name: str, span: Span, place: int, p: float) -> Finding:
    entities, new = int(span.entities[place]), int(span.new[place])
    up, down = int(span.up[place]), int(span.down[place])
    before = int(span.yes[place]) / max(entities, 1)
    arrived = int(span.new_yes[place]) / new if new else None
    surplus = int(span.new_yes[place]) - new * before
    now = before + (up - down + surplus) / max(entities, 1)
    return Finding(name, span_name, before, min(1.0, max(0.0, now)), arrived, up, down, p)


def _all(span_name: str, span: Span, p: float) -> Finding:
    before, total = span.before.share, max(span.before.total, 1.0)
    now = before + (span.flip_sum + span.surplus.hits) / total
    arrived = before + span.surplus.share if span.surplus.total else None
    return Finding(EVERY_CANDIDATE, span_name, before, now, arrived, int(span.up.sum()), int(span.down.sum()), p)
