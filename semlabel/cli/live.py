"""What a run shows while it works: stage, rate and time left, and each gate as it is decided.

Reads progress from `ops.sqlite` in a thread of its own, so that the work is never slowed by the showing. On a terminal
it is one moving bar; elsewhere a line every half minute. Knows nothing of Dagster: whoever runs tells it what happens.
"""

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol

from semlabel.cli.text import number
from semlabel.estimate import duration
from semlabel.gates.result import VERDICT_WORDS

if TYPE_CHECKING:
    from semlabel.cli.execution import Event

POLL_SECONDS = 0.5
LINE_SECONDS = 30.0

ReadProgress = Callable[[], Sequence[Mapping[str, Any]]]


class Display(Protocol):
    """Somewhere progress can be shown."""

    def say(self, text: str) -> None:
        """One line that stays."""

    def progress(self, stage: str, done: int, total: int, unit: str) -> None:
        """How far a stage is; `total` is 0 while unknown."""


@dataclass
class Rate:
    """Units per second of one stage since it was first seen: what a resumed run had done before counts nothing."""

    stage: str = ""
    first_done: int = 0
    first_time: float = 0.0

    def of(self, stage: str, done: int, now: float) -> float | None:
        """Units per second, None until something was done while we watched."""
        if stage != self.stage or done < self.first_done:
            self.stage, self.first_done, self.first_time = stage, done, now
            return None
        elapsed = now - self.first_time
        return (done - self.first_done) / elapsed if done > self.first_done and elapsed > 0 else None


@dataclass
class PlainDisplay:
    """Lines for logs and pipes: at the start of a stage, every half minute, and at its end."""

    stream: IO[str]
    clock: Callable[[], float] = time.monotonic
    _rate: Rate = field(default_factory=Rate)
    _last: tuple[str, float, bool] = ("", -1e9, False)

    def say(self, text: str) -> None:
        """One line that stays."""
        print(text, file=self.stream, flush=True)

    def progress(self, stage: str, done: int, total: int, unit: str) -> None:
        """A line when there is something new to say."""
        now = self.clock()
        rate = self._rate.of(stage, done, now)
        last_stage, last_time, last_complete = self._last
        complete = bool(total) and done >= total
        same = stage == last_stage and not (last_complete and not complete)  # two assets of a run may both score
        if same and (last_complete or (not complete and now - last_time < LINE_SECONDS)):
            return
        self._last = (stage, now, complete)
        self.say("  " + line(stage, done, total, unit, rate))


class TerminalDisplay:
    """One moving bar on a terminal, with the lines that stay above it."""

    def __init__(self, stream: IO[str]) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        self._console = Console(file=stream, force_terminal=True)
        self._bar = Progress(
            TextColumn("  {task.description}"),
            BarColumn(bar_width=30),
            TextColumn("{task.fields[text]}"),
            console=self._console,
            transient=True,
            # What steps print belongs into the log and not above the bar.
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._rate = Rate()
        self._task: Any = None
        self._bar.start()

    def say(self, text: str) -> None:
        """One line that stays."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def progress(self, stage: str, done: int, total: int, unit: str) -> None:
        """Move the bar; a new stage takes the place of the old one."""
        if self._task is None:
            self._task = self._bar.add_task(stage, total=None, text="")
        rate = self._rate.of(stage, done, time.monotonic())
        text = line("", done, total, unit, rate)
        self._bar.update(self._task, description=stage, completed=done, total=total or None, text=text)

    def close(self) -> None:
        """Take the bar away."""
        self._bar.stop()


def line(stage: str, done: int, total: int, unit: str, rate: float | None) -> str:
    """`score: 3,200 of 30,000 pairs, 112 pairs/s, about 4 min left`."""
    parts = [f"{done:,} of {total:,} {unit}" if total else f"{done:,} {unit}"]
    if rate is not None:
        parts.append(f"{rate:,.0f} {unit}/s" if rate >= 10 else f"{rate:.2g} {unit}/s")
        if total > done:
            parts.append(f"about {duration((total - done) / rate)} left")
    return (f"{stage}: " if stage else "") + ", ".join(parts)


class Watch:
    """Turns events and stored progress into what a display shows; `read` gives the stages, the last moved one last."""

    def __init__(self, read: ReadProgress) -> None:
        self._read = read
        self._display: Display | None = None
        self._since = ""
        self._asset = ""
        self._started = time.monotonic()

    def show_on(self, display: Display) -> None:
        """Where to show from now on."""
        self._display = display

    def event(self, event: "Event") -> None:
        """An asset has begun or was made, a gate was decided, a step failed."""
        if event.kind == "start":
            self._since, self._asset, self._started = _now(), event.name, time.monotonic()
            self._say(event.name)
        elif event.kind == "made":
            rows = "" if event.rows is None else f"{number(event.rows)} rows, "
            self._say(f"  {rows}{duration(time.monotonic() - self._started)}")
        elif event.kind == "gate":
            verdict = "warn" if not event.passed and not event.blocking else VERDICT_WORDS[event.verdict]
            # A night repeats the verdicts on assets that it does not make, in no particular place.
            of_asset = "" if event.asset == self._asset else f" ({event.asset})"
            self._say(f"  {verdict}  {event.name}{of_asset}" + ("" if event.passed else f": {event.text}"))
        else:
            self._say(f"  FAIL  {event.name}: {event.text}")

    def poll(self) -> None:
        """Show the stage that moved last, if it moved since the current asset began."""
        rows = self._read()
        if self._display is None or not rows or str(rows[-1]["updated_at"]) < self._since:
            return
        row = rows[-1]
        if row["done"] or row["total"]:  # a stage that found nothing to do is not worth a line
            self._display.progress(str(row["stage"]), int(row["done"]), int(row["total"]), str(row["unit"]))

    def _say(self, text: str) -> None:
        if self._display is not None:
            self._display.say(text)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds")


@contextmanager
def live(watch: Watch, stream: IO[str], terminal: bool) -> Iterator[None]:
    """Show what `watch` sees until the block ends."""
    display: PlainDisplay | TerminalDisplay = TerminalDisplay(stream) if terminal else PlainDisplay(stream)
    watch.show_on(display)
    stopped = threading.Event()

    def poll() -> None:
        while not stopped.wait(POLL_SECONDS):
            watch.poll()

    thread = threading.Thread(target=poll, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()
        watch.poll()
        if isinstance(display, TerminalDisplay):
            display.close()


@contextmanager
def quiet(log: Path) -> Iterator[tuple[IO[str], bool]]:
    """Send everything this process and its children print to `log`; yields the stream people still see.

    Done with file descriptors, because libraries in C, warnings and Dagster's captured step output do not ask Python.
    The second value says whether that stream is a terminal. Where stderr is no file (a test), nothing is redirected.
    """
    log.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        terminal = sys.stderr.isatty()
        visible = os.fdopen(os.dup(sys.stderr.fileno()), "w", buffering=1, encoding="utf-8", errors="replace")
        # 1 and 2 are what children and C libraries write to, even where Python's own streams go elsewhere.
        redirected = {1, 2, sys.stdout.fileno(), sys.stderr.fileno()}
    except (OSError, ValueError, AttributeError):
        yield sys.stderr, False
        return
    _flush()
    saved = {number: os.dup(number) for number in redirected}
    with log.open("ab") as file:
        for number in redirected:
            os.dup2(file.fileno(), number)
    try:
        yield visible, terminal
    finally:
        _flush()
        for number, original in saved.items():
            os.dup2(original, number)
            os.close(original)
        visible.close()


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
