"""Numbers, times and tables as plain aligned text that reads the same on a terminal, in a log and in an e-mail.

Knows nothing of what it lays out.
"""

from collections.abc import Sequence
from datetime import UTC, datetime


def table(headers: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> str:
    """Aligned columns under their headers; the columns numbered in `right` are flush right. Nothing is cut."""
    lines = [list(headers), *[list(row) for row in rows]]
    widths = [max(len(line[i]) for line in lines) for i in range(len(headers))]

    def laid_out(line: Sequence[str]) -> str:
        cells = [c.rjust(w) if i in right else c.ljust(w) for i, (c, w) in enumerate(zip(line, widths, strict=True))]
        return "  ".join(cells).rstrip()

    return "\n".join([laid_out(lines[0]), "  ".join("-" * w for w in widths), *[laid_out(line) for line in lines[1:]]])


def number(value: float | None, digits: int = 3) -> str:
    """A number people can read: whole ones with separators, others with `digits` significant digits, None as `-`."""
    if value is None:
        return "-"
    if float(value).is_integer() and abs(value) < 1e15:
        return f"{int(value):,}"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.{digits}g}"


def interval(value: float | None, low: float | None, high: float | None) -> str:
    """`0.953 (0.941-0.964)`; without an interval the value alone."""
    if value is None:
        return "-"
    return f"{value:.3f}" if low is None or high is None else f"{value:.3f} ({low:.3f}-{high:.3f})"


def size(count: float) -> str:
    """Bytes as `512 B`, `3.4 MB`, `1.2 GB`."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"


def age(when: str | None, now: datetime | None = None) -> str:
    """How long ago an ISO time was: `just now`, `12 min ago`, `3 h ago`, `5 days ago`."""
    seconds = age_seconds(when, now)
    if seconds is None:
        return "never"
    if seconds < 90:
        return "just now"
    for limit, unit, length in ((5400, "min", 60), (172_800, "h", 3600)):
        if seconds < limit:
            return f"{seconds / length:.0f} {unit} ago"
    return f"{seconds / 86_400:.0f} days ago"


def minute(when: str) -> str:
    """An ISO time in UTC, for people: `2026-11-30 12:33 UTC`."""
    then = datetime.fromisoformat(when)
    then = then.astimezone(UTC) if then.tzinfo else then
    return f"{then:%Y-%m-%d %H:%M} UTC"


def age_seconds(when: str | None, now: datetime | None = None) -> float | None:
    """Seconds since an ISO time (UTC where it names no zone); None for None."""
    if when is None:
        return None
    then = datetime.fromisoformat(when)
    then = then if then.tzinfo else then.replace(tzinfo=UTC)
    return ((now or datetime.now(UTC)) - then).total_seconds()
