"""Progress of a session on standard error: a bar on a terminal, a few plain lines in a log.

Nothing is drawn while a block is timed: what is shown moves only when the session says something,
which is between blocks, and at most four times a second. No thread refreshes it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from frameworktax.measure.reporter import Reporter
from frameworktax.records import Point, point_name

LOG_EVERY_S = 10.0
"""In a log, a line this often."""
DRAW_EVERY_S = 0.25

Seconds = Callable[[], float]


def drawable(console: Console) -> bool:
    """Return whether what was printed can be drawn over: a terminal, and not one that is told."""
    return console.is_terminal and not console.is_dumb_terminal and console.file.isatty()


def briefly(names: str) -> str:
    """Return ``bert-base and 6 more (2 of 2)`` for a list of names with commas between."""
    listed, part = re.fullmatch(r"(.*?)( \(\d+ of \d+\))?", names, re.DOTALL).groups("")  # type: ignore[union-attr] # matches any text
    first, *others = listed.split(", ")
    return f"{first}{f' and {len(others)} more' if others else ''}{part}"


class Lines:
    """Lines of a log: none wrapped, and seldom one that says no more than how far it is."""

    def __init__(self, console: Console, clock: Seconds = time.monotonic) -> None:
        self._console = console
        self._clock = clock
        self._said = float("-inf")

    @property
    def due(self) -> bool:
        """Whether the last line was long enough ago."""
        return self._clock() - self._said >= LOG_EVERY_S

    def now(self, text: str) -> None:
        """Print a line."""
        self._said = self._clock()
        self._console.print(text, soft_wrap=True, markup=False)

    def sometimes(self, text: str) -> None:
        """Print a line if it is time for one."""
        if self.due:
            self.now(text)


class Bar(Reporter):
    """A reporter for people; use as a context manager.

    Args:
        console: to draw on, or to print to.
        budget_s: of the session.
        verbose: lines instead of a bar, one for each change of phase.
        clock: tells the time, s.
    """

    def __init__(
        self,
        console: Console,
        budget_s: float,
        *,
        verbose: bool = False,
        clock: Seconds = time.monotonic,
    ) -> None:
        self._console = console
        self._clock = clock
        self._end = clock() + budget_s
        self._phase = ""
        self._point = ""
        self._drawn = float("-inf")
        self._lines = Lines(console, clock)
        self._verbose = verbose
        self._progress: Progress | None = None
        if drawable(console) and not verbose:
            self._progress = Progress(
                TextColumn("[bold]{task.fields[phase]}"),
                BarColumn(bar_width=24),
                TextColumn("{task.description}", markup=False),
                TimeElapsedColumn(),
                console=console,
                auto_refresh=False,  # a refresh thread would compete with what is measured
                transient=True,
            )
            self._task = self._progress.add_task("", total=1.0, phase="")

    def __enter__(self) -> Bar:
        if self._progress:
            self._progress.start()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._progress:
            self._progress.stop()

    def phase(self, text: str) -> None:
        """Say that a new phase begins."""
        self._phase, self._point = text, ""
        self._drawn = float("-inf")
        if self._progress:
            self._draw(0, 1, "")
        elif self._verbose:
            self._lines.now(f"{text}, {self._left()}")
        else:
            self._lines.sometimes(f"{text}, {self._left()}")

    def now(self, point: Point) -> None:
        """Say what is timed next."""
        if self._progress:
            self._point = f"{point.runtime}, batch {point.workload.batch}"
        elif self._verbose:
            self._lines.sometimes(f"{self._phase}: {point_name(point)}")

    def progress(self, done: float, total: float, text: str) -> None:
        """Say how much of the phase is done."""
        if self._progress:
            self._draw(done, total, text)
        else:
            said = f"{self._phase}: {done:.0f} of {total:.0f}, {text}, {self._left()}"
            self._lines.sometimes(said)

    def say(self, text: str) -> None:
        """Print a line that stays."""
        self._console.print(text, soft_wrap=True, markup=False)

    def _left(self) -> str:
        return f"{max(0.0, self._end - self._clock()):.0f} s of the budget left"

    def _draw(self, done: float, total: float, text: str) -> None:
        now = self._clock()
        if self._progress is None or now - self._drawn < DRAW_EVERY_S:
            return
        self._drawn = now
        said = ", ".join(filter(None, (text, self._point, self._left())))
        self._progress.update(
            self._task,
            completed=done,
            total=max(total, 1e-9),
            description=said,
            phase=self._phase,
        )
        self._progress.refresh()
