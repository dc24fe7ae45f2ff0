"""Which of two versions of a text is the later one: numbers, times, and names with numbers in them.

Knows how versions are written; deliberately knows nothing of sources or of texts that came online, which both go by
this order.
"""

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

_SHOWN = 40  # characters of a version in a message
_NUMBER = re.compile(r"-?\d+(\.\d+)?", re.ASCII)
_DOTTED = re.compile(r"\d+(?:\.\d+)*", re.ASCII)
_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_FRACTION = re.compile(r"(?<=:\d\d)[.,](\d+)", re.ASCII)
_YEAR_LAST = re.compile(r"\d{1,2}([./-])\d{1,2}\1(?:19|20)\d\d(?!\d)", re.ASCII)


@dataclass(frozen=True)
class Order:
    """How versions compare: the later one has the higher `rank`; and what of it may not be meant."""

    rank: Callable[[str], Any]
    warning: str | None = None


def number_of(version: str) -> Decimal | None:
    """The number that a version is; None for any other."""
    return Decimal(version) if _NUMBER.fullmatch(version) else None


def order_of(versions: Collection[str]) -> Order:
    """The order of the versions of one column, none of them empty.

    Numbers where all of them are numbers, times where all are (ISO 8601, UTC unless they say otherwise). Otherwise
    those that differ in their numbers alone compare by these, one after the other: v9 before v10, 1.9 before 1.10.1.
    Text is the last resort.
    """
    if all(_NUMBER.fullmatch(version) for version in versions):
        return Order(Decimal, _mistakable(versions))
    if all(_moment(version) for version in versions):
        return Order(_moment)
    year_last = all(_YEAR_LAST.match(version) for version in versions)
    if len({_DOTTED.sub("0", version) for version in versions}) == 1 and not year_last:
        return Order(_numbers)
    why = "dates with the year last have no order, write 2024-12-31" if year_last else "written in several ways"
    low, high = min(versions)[:_SHOWN], max(versions)[:_SHOWN]
    return Order(str, f"versions are compared as text, {low!r} before {high!r}: {why}")


def _mistakable(versions: Collection[str]) -> str | None:
    """What to say of numbers with a point that would compare otherwise if they were 1.9 and 1.10 of something."""
    dotted = sorted(version for version in versions if "." in version and not version.startswith("-"))
    by_value, by_parts = sorted(dotted, key=Decimal), sorted(dotted, key=_numbers)
    for value, part in zip(by_value, by_parts, strict=True):
        if value != part:
            return (
                f"versions are compared as decimal numbers, {value[:_SHOWN]!r} not after {part[:_SHOWN]!r}; "
                f"if they count on after the point, write v{part[:_SHOWN]}"
            )
    return None


def _moment(version: str) -> tuple[datetime, Decimal] | None:
    """The second and the fraction of it, which may have more digits than a datetime holds."""
    if not _DATE.match(version):
        return None
    fraction = _FRACTION.search(version)
    try:
        moment = datetime.fromisoformat(_FRACTION.sub("", version, count=1))
    except ValueError:
        return None
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return aware, Decimal(f"0.{fraction[1]}" if fraction else 0)


def _numbers(version: str) -> list[list[tuple[int, str]]]:
    """The numbers in it, part by part. By length first, so that no number is too long to be one."""
    return [
        [(len(digits), digits) for digits in (part.lstrip("0") for part in number.split("."))]
        for number in _DOTTED.findall(version)
    ]
