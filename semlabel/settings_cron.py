"""A cron line of five fields: what is wrong with it in words, before a scheduler reads it.

The parser that Dagster uses is part of dagster, which nothing here imports, so what a field may hold stands here once
more: whatever passes here passes there (a test compares the two). Knows nothing of when a line comes due.
"""

import re
from collections.abc import Mapping
from typing import NamedTuple

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_WEEKDAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_LENGTHS = dict(enumerate((31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31), start=1))
_PART = re.compile(r"(?:\*|(?P<low>[a-z]+|[0-9]+)(?:-(?P<high>[a-z]+|[0-9]+))?)(?:/(?P<step>[0-9]+))?")
_NTH_WEEKDAY = re.compile(r"(?P<nth>[a-z]+|[0-9]+)#[1-5]|l(?P<last>[0-9])")


class _Field(NamedTuple):
    name: str
    low: int
    high: int
    names: Mapping[str, int] = {}

    @property
    def every(self) -> set[int]:
        return set(range(self.low, self.high + 1))


_DAY, _MONTH = _Field("day", 1, 31), _Field("month", 1, 12, {name: n for n, name in enumerate(_MONTHS, start=1)})
_WEEKDAY = _Field("weekday", 0, 7, {name: n for n, name in enumerate(_WEEKDAYS)})
_FIELDS = (_Field("minute", 0, 59), _Field("hour", 0, 23), _DAY, _MONTH, _WEEKDAY)


def check_cron(cron: str) -> None:
    """Raise ValueError, saying what is wrong, for a line that is no cron line of five fields or never comes due."""
    written = cron.lower().split()
    if len(written) != len(_FIELDS):
        raise ValueError(f"has {len(written)} fields; expected five: {' '.join(field.name for field in _FIELDS)}")
    values = {field.name: _values(field, text) for field, text in zip(_FIELDS, written, strict=True)}
    if not any(day <= _LENGTHS[month] for month in values["month"] for day in values["day"]):
        raise ValueError(f"has day {written[2]} of month {written[3]}, which never comes; expected a day of that month")


def _values(field: _Field, text: str) -> set[int]:
    """What a field stands for at most: steps are not looked at."""
    parts = text.split(",")
    if text == "?" and field in (_DAY, _WEEKDAY):
        return field.every
    nth = [_NTH_WEEKDAY.fullmatch(part) for part in parts]
    if field == _WEEKDAY and all(nth):
        return {_value(field, found["nth"] or found["last"]) for found in nth if found}
    return set[int]().union(*(_part(field, part) for part in parts))


def _part(field: _Field, part: str) -> set[int]:
    if part == "l" and field == _DAY:
        return {min(_LENGTHS.values())}
    found = _PART.fullmatch(part)
    if found is None or (found["step"] and int(found["step"]) == 0):
        shape = "expected numbers, *, lists such as 1,15, ranges such as 1-5 and steps such as */15"
        raise ValueError(f'has {field.name} "{part}"; {shape}')
    if found["low"] is None:
        return field.every
    low = _value(field, found["low"])
    last = field.high if found["step"] else low
    high = last if found["high"] is None else _value(field, found["high"])
    # A range may go round: fri-mon, or 22-2.
    return set(range(low, high + 1)) if low <= high else field.every


def _value(field: _Field, text: str) -> int:
    value = field.names.get(text, int(text) if text.isdigit() else -1)
    if not field.low <= value <= field.high:
        names = f" or {' '.join(field.names)}" if field.names else ""
        raise ValueError(f"has {field.name} {text}; expected {field.low} to {field.high}{names}")
    return value
