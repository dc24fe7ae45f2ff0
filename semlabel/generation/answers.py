"""Reads a generated answer list strictly: what is not exactly an answer is counted, and nothing is repaired.

A line is a number, one blank and one of the two answers. A candidate has a label only where exactly one line answers
it. Deliberately does not know tokens, models or what the candidates are.
"""

import re
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Faults:
    """What was wrong with answer lists. `candidates` were asked for; `lists` is how many lists were read.

    `malformed` lines are no answer at all, `extra` lines answer a number that was not asked for, `missing` candidates
    have no line, `duplicated` ones several (these have no label either), `unfinished` lists never came to an end.
    """

    lists: int = 0
    candidates: int = 0
    malformed: int = 0
    missing: int = 0
    duplicated: int = 0
    extra: int = 0
    unfinished: int = 0

    def __add__(self, other: "Faults") -> "Faults":
        mine, theirs = asdict(self), asdict(other)
        return Faults(**{name: mine[name] + theirs[name] for name in mine})

    def to_json(self) -> dict[str, int]:
        """All counts by name."""
        return asdict(self)


@dataclass(frozen=True)
class ParsedList:
    """The labels of one list in the order of its candidates, None where there is no single answer, and its faults."""

    labels: list[bool | None]
    faults: Faults


def parse(text: str, candidates: int, yes: str, no: str, finished: bool = True) -> ParsedList:
    """Read the answer list `text` about `candidates` numbered from 1; `finished` is False when it was cut off.

    Of a list that was cut off, a last line that looks whole still counts: nobody can tell whether it was.
    """
    line_of = re.compile(rf"([1-9][0-9]*) ({re.escape(yes)}|{re.escape(no)})", re.ASCII)
    given: dict[int, list[bool]] = {}
    malformed = extra = 0
    for line in text.split("\n") if text else []:
        answer = line_of.fullmatch(line)
        if answer is None:
            malformed += 1
        elif len(answer[1]) > len(str(candidates)) or int(answer[1]) > candidates:
            extra += 1
        else:
            given.setdefault(int(answer[1]), []).append(answer[2] == yes)
    answers = [given.get(number, []) for number in range(1, candidates + 1)]
    faults = Faults(
        lists=1,
        candidates=candidates,
        malformed=malformed,
        missing=sum(not lines for lines in answers),
        duplicated=sum(len(lines) > 1 for lines in answers),
        extra=extra,
        unfinished=not finished,
    )
    return ParsedList([lines[0] if len(lines) == 1 else None for lines in answers], faults)
