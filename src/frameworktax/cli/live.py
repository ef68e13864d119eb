"""How a study goes, on standard error: a picture drawn anew on a terminal, a few lines in a log.

What runs, what is done and what failed, the time that is left, and the last verdicts. It is drawn
only when the study says something, which is between blocks, at most four times a second, and
no thread refreshes it. Verdicts are read from the session's shard, between its phases.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from frameworktax.cli.progress import DRAW_EVERY_S, Lines, Seconds, briefly, drawable
from frameworktax.measure.reporter import Reporter
from frameworktax.records import Point, point_name
from frameworktax.report.latest import Latest, latest, verdict
from frameworktax.report.render_terminal import STYLES
from frameworktax.sweep.local import ENDED
from frameworktax.sweep.values import duration

SHOWN = 5
"""Verdicts that are shown."""
NODES = 8
"""Nodes of a cluster that get a line each."""
LOOK_SHARE = 0.01
"""Share of the time that reading shards for verdicts may take."""
BAR_WIDTH = 40


class StudyView(Reporter):
    """Tells how a study goes; use as a context manager.

    Args:
        console: to draw on, or to print to.
        verbose: lines instead of a picture: each phase, and each point that has a verdict.
        live: whether to draw; None to find out.
        clock: tells the time, s.
    """

    def __init__(
        self,
        console: Console,
        *,
        verbose: bool = False,
        live: bool | None = None,
        clock: Seconds = time.monotonic,
    ) -> None:
        self._console = console
        self._clock = clock
        self._verbose = verbose
        self._lines = Lines(console, clock)
        draws = drawable(console) and not verbose if live is None else live
        self._live = self._made(console) if draws else None
        self._drawn = self._looked = float("-inf")
        self._took = 0.0
        self._end = clock()
        self._counts: dict[str, int] = {}
        self._out = 0
        self._session = ""
        self._doing: dict[str, str] = {}
        self._done = (0.0, 1.0, "")
        self._next = ""
        self._shard: Path | None = None
        self._inside = Latest()
        self._verdicts: dict[tuple[str, str], tuple[str, ...]] = {}

    @staticmethod
    def _made(console: Console) -> Live:
        return Live(
            console=console,
            auto_refresh=False,  # a refresh thread would compete with what is measured
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
            vertical_overflow="ellipsis",
        )

    def __enter__(self) -> StudyView:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._live:
            self._live.stop()

    # --- what is told -------------------------------------------------------------------------

    def counts(self, counts: Mapping[str, int]) -> None:
        """Take over how many points stand how: ``measured``, ``failed``, ``open`` and so on."""
        self._counts = dict(counts)

    def session(self, number: int, total: int, name: str, left_s: float) -> None:
        """Say that a session begins, and how long the study will still take."""
        self._end = self._clock() + left_s
        self._out += 1
        self._session = f"session {number} of {total}: {briefly(name)}"
        self._done, self._next = (0.0, 1.0, ""), ""
        if self._live is None:
            self._line(f"{self._session}; {self._left()}")
        self._draw(at_once=True)

    def phase(self, text: str) -> None:
        """Say that a new phase begins; one of a node comes as ``NODE: phase``."""
        node, _, doing = text.rpartition(": ")
        self._doing.pop(node, None)
        if doing != ENDED:
            self._doing[node] = doing
        self._done, self._next = (0.0, 1.0, ""), ""
        if self._live is None:
            said = f"  {text}; {self._left()}"
            (self._lines.now if self._verbose else self._lines.sometimes)(said)
        if (self._live or self._verbose) and self._shard is not None and doing != ENDED:
            self._look(self._shard)
        self._draw(at_once=True)

    def progress(self, done: float, total: float, text: str) -> None:
        """Say how much of the phase is done."""
        self._done = (done, total, text)
        if self._live is None:
            doing = next(reversed(self._doing.values()), "")
            self._lines.sometimes(f"  {doing}: {done:.0f} of {total:.0f}, {text}; {self._left()}")
        self._draw()

    def now(self, point: Point) -> None:
        """Say what is timed next."""
        self._next = point_name(point)
        self._draw()

    def say(self, text: str) -> None:
        """Print a line that stays."""
        self._console.print(text, soft_wrap=True, markup=False)

    def records(self, shard: Path, *, ended: bool = False) -> None:
        """Take over where the records of a session go, or that it has ended."""
        if not ended:
            self._shard, self._inside = shard, Latest()
            return
        self._out -= 1
        self._look(shard, at_once=self._out == 0)
        self._shard, self._inside = None, Latest()
        if self._live is None:
            newest = next(reversed(self._verdicts.values()), ())
            last = f"; last: {', '.join(filter(None, newest))}" if newest else ""
            self._line(f"  {self._score()}{last}")
        self._draw(at_once=True)

    # --- what is shown ------------------------------------------------------------------------

    def _line(self, text: str) -> None:
        """Print a line; seldom, where sessions run side by side and there are very many."""
        (self._lines.now if self._out <= 1 or self._verbose else self._lines.sometimes)(text)

    def _left(self) -> str:
        return f"about {duration(max(0.0, self._end - self._clock()))} of the study left"

    def _score(self) -> str:
        """Return how many points are measured, failed and left, the session's own included."""
        total = sum(self._counts.values())
        measured = self._counts.get("measured", 0) + self._inside.measured
        failed = self._counts.get("failed", 0) + self._counts.get("given-up", 0)
        failed += self._inside.failed
        parts = [f"{measured} of {total} points measured"]
        parts += [f"{failed} failed"] if failed else []
        return ", ".join([*parts, f"{self._open()} left"])

    def _open(self) -> int:
        inside = self._inside
        told = inside.measured + inside.failed + inside.unavailable
        return max(0, self._counts.get("open", 0) - told)

    def _look(self, shard: Path, *, at_once: bool = False) -> None:
        """Read what a session found; seldom enough to cost next to nothing."""
        begin = self._clock()
        if not at_once and begin - self._looked < self._took / LOOK_SHARE:
            return
        self._inside = latest(shard, SHOWN)
        for measurement in self._inside.verdicts:
            cells = verdict(measurement)
            known = self._verdicts.pop(cells[:2], None)
            self._verdicts[cells[:2]] = cells
            if self._verbose and known is None:
                self._lines.now(f"  {', '.join(filter(None, cells))}")
        for key in list(self._verdicts)[:-SHOWN]:
            del self._verdicts[key]
        self._looked = self._clock()
        self._took = self._looked - begin

    def _draw(self, *, at_once: bool = False) -> None:
        now = self._clock()
        if self._live and (at_once or now - self._drawn >= DRAW_EVERY_S):
            self._drawn = now
            self._live.update(self.picture(), refresh=True)

    def picture(self) -> Group:
        """Return what a terminal shows."""
        total = max(1, sum(self._counts.values()))
        bar = Table.grid()  # a bar alone does not end its line
        bar.add_row(ProgressBar(total=total, completed=total - self._open(), width=BAR_WIDTH))
        parts: list[Table | Text] = [
            bar,
            _text(f"{self._score()}; {self._left()}", "bold"),
            _text(self._session),
            *map(_text, self._running()),
        ]
        if self._verdicts:
            parts.append(_text("last verdicts", "dim"))
            parts.append(_verdicts(list(self._verdicts.values())))
        return Group(*parts)

    def _running(self) -> list[str]:
        done, total, text = self._done
        lines = []
        for node, doing in list(self._doing.items())[:NODES]:
            if node:
                lines.append(f"  {node}: {doing}")
                continue
            far = f", {done:.0f} of {total:.0f}" if text else ""
            lines.append("  " + ", ".join(filter(None, (f"{doing}{far}", text))))
            lines += [f"  next: {self._next}"] if self._next else []
        more = len(self._doing) - NODES
        return [*lines, *([f"  and {more} more"] if more > 0 else [])]


def _text(text: str, style: str = "") -> Text:
    return Text(text, style=style, no_wrap=True, overflow="ellipsis")


def _verdicts(rows: list[tuple[str, ...]]) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    for least in (0, 4, len("10.4 ms ± 3%"), 0, 0):
        table.add_column(no_wrap=True, overflow="ellipsis", min_width=least)
    for point, runtime, latency, share, regime in rows:
        style = STYLES.get(regime, "")
        table.add_row(Text(f"  {point}"), Text(runtime), Text(latency), Text(share, style=style),
                      Text(regime, style=style))  # fmt: skip
    return table
