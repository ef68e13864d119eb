"""Progress of a session on standard error: a bar on a terminal, plain lines in a log.

Nothing is drawn while a block is timed: the bar moves only when the session says something,
which is between blocks.
"""

from __future__ import annotations

import time

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from frameworktax.study.values import duration

LOG_EVERY_S = 10.0
"""In a log, a line at each new phase and then one this often."""


class Bar:
    """A reporter for people; use as a context manager."""

    def __init__(self, console: Console, budget_s: float) -> None:
        self._console = console
        self._end = time.monotonic() + budget_s
        self._phase = ""
        self._said = 0.0
        self._progress: Progress | None = None
        if console.is_terminal:
            self._progress = Progress(
                TextColumn("[bold]{task.fields[phase]}"),
                BarColumn(bar_width=24),
                TextColumn("{task.description}"),
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
        self._phase = text
        self._said = 0.0
        self.progress(0, 1, "")

    def progress(self, done: float, total: float, text: str) -> None:
        """Say how much of the phase is done; at most four times a second."""
        now = time.monotonic()
        text = f"{text}, " if text else ""
        text += self._left(max(0.0, self._end - now))
        if self._progress:
            if now - self._said > 0.25:
                self._said = now
                self._progress.update(
                    self._task,
                    completed=done,
                    total=max(total, 1e-9),
                    description=text,
                    phase=self._phase,
                )
                self._progress.refresh()
        elif now - self._said > LOG_EVERY_S:
            self._said = now
            self._console.print(f"{self._phase}: {done:.0f} of {total:.0f}, {text}")

    def say(self, text: str) -> None:
        """Print a line that stays."""
        self._console.print(text, soft_wrap=True, markup=False)

    def _left(self, seconds: float) -> str:
        return f"{seconds:.0f} s of the budget left"


class StudyBar(Bar):
    """A bar over a whole study: which session of how many, and when it will be over."""

    def __init__(self, console: Console) -> None:
        super().__init__(console, 0.0)
        self._place = ""

    def session(self, number: int, total: int, name: str, left_s: float) -> None:
        """Say that a session begins, and how long the study will still take."""
        self._place = f"session {number} of {total}, {name}: "
        self._end = time.monotonic() + left_s
        self._said = 0.0

    def phase(self, text: str) -> None:
        """Say that a new phase begins."""
        super().phase(self._place + text)

    def _left(self, seconds: float) -> str:
        return f"about {duration(seconds)} of the study left"
