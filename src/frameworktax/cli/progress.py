"""Progress on standard error: a picture drawn in place on a terminal, a few plain lines in a log.

One reporter serves a session and a study of many: what runs, how much is done and failed, and the
time that is left. The table of what is being measured stands from the first value on: only what is
cheap is computed, an interval over the block medians at hand. Nodes of a cluster send no values
before a session ends. It is drawn only when the session says something,
which is between blocks, at most twice a second and for at most a fiftieth of the time; no thread
refreshes it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import fmean, median
from typing import TYPE_CHECKING, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from frameworktax.errors import flat, indented
from frameworktax.measure.reporter import Reporter
from frameworktax.records import FLOOR, FamilyKey, Point, distinct_name, point_name
from frameworktax.report import blocks
from frameworktax.report.render_terminal import drawn
from frameworktax.report.words import milliseconds, plus_minus, time_text
from frameworktax.stats import UNTIL, process_interval, relative_half_width
from frameworktax.sweep.values import duration

if TYPE_CHECKING:
    from frameworktax.programs.document import Program

LOG_EVERY_S = 10.0
"""In a log, a line this often."""
DRAW_EVERY_S = 0.5
DRAW_SHARE = 0.02
"""Share of the time that drawing may take: nothing is timed meanwhile."""
BAR_WIDTH = 40
LEAST = 3
"""Values from which on an interval is shown: that of two is many times as wide."""

Seconds = Callable[[], float]
Medians = Sequence[Sequence[float]]
"""For each process of a point the medians of its blocks, ns."""


def drawable(console: Console) -> bool:
    """Return whether text can be drawn over: on a terminal, not where colour is only forced."""
    return console.is_terminal and not console.is_dumb_terminal and console.file.isatty()


def briefly(names: str) -> str:
    """Return ``bert-base and 6 more (2 of 2)`` for a list of names with commas between."""
    found = re.search(r" \(\d+ of \d+\)$", names)
    part = found[0] if found else ""
    first, *others = names.removesuffix(part).split(", ")
    return f"{first}{f' and {len(others)} more' if others else ''}{part}"


class _Drawing:
    """A picture drawn in place where there is a terminal; use as a context manager."""

    def __init__(self, console: Console, *, draws: bool) -> None:
        self._console = console
        self._live: Live | None = None
        if draws:
            self._live = Live(
                console=console,
                auto_refresh=False,  # a refresh thread would compete with what is measured
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
            )

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._live:
            self._live.stop()


class ProgressView(_Drawing, Reporter):
    """A reporter for people.

    ``verbose`` are lines instead of a picture: each phase, and each point that has a result.
    ``live`` says whether to draw, None to find out. A study gives its own estimate with each
    session, in place of the session's.
    """

    def __init__(
        self,
        console: Console,
        *,
        verbose: bool = False,
        live: bool | None = None,
        clock: Seconds = time.monotonic,
    ) -> None:
        super().__init__(console, draws=drawable(console) and not verbose if live is None else live)
        self._clock = clock
        self._verbose = verbose
        self._printed = self._drawn = float("-inf")
        self._drawing = 0.0
        self._end = clock()
        self._after_s, self._besides = 0.0, ""
        self._counts: dict[str, int] = {}
        self._running = 0
        self._session = ""
        self._phase = ""
        self._next = ""
        self._asked: dict[Point, FamilyKey] = {}
        self._until = UNTIL
        self._medians: dict[Point, Medians] = {}
        """Of points in the order of their last values."""
        self._said: set[tuple[FamilyKey | None, str]] = set()
        self._set_up: dict[str, tuple[str, float]] = {}
        self._fresh: set[Point] = set()
        """Points with a value from a session that has not ended: in no count yet."""

    # --- events: see ``Reporter`` ---------------------------------------------------------------

    def say(self, text: str) -> None:
        self._console.print(indented(text), soft_wrap=True, markup=False)

    def counts(self, counts: Mapping[str, int]) -> None:
        self._counts = dict(counts)

    def session(self, number: int, total: int, name: str, left_s: float) -> None:
        self._end = self._clock() + left_s
        self._running += 1
        self._session = f"session {number} of {total}: {briefly(name)}"
        self._next = ""
        self._log(f"{self._session}; {self._left()}", often=self._running <= 1 or self._verbose)
        self._draw(at_once=True)

    def remaining(self, seconds: float) -> None:
        if not self._session:  # a study has an estimate of its own
            self._end = self._clock() + seconds + self._after_s

    def follows(self, seconds: float, besides: str) -> None:
        self._after_s, self._besides = seconds, f", {besides}"

    def asked(self, points: Sequence[Point], until: float) -> None:
        self._asked |= {point: point.family() for point in points}
        self._until = until

    def measured(self, point: Point, medians_ns: Medians) -> None:
        # values of a twin and of the floor are no result
        if point.runtime != FLOOR and not point.workload.twin and any(medians_ns):
            self._asked.setdefault(point, point.family())
            self._medians.pop(point, None)
            self._medians[point] = medians_ns
            self._fresh.add(point)
        self._log_values(point)
        self._draw()

    def setting_up(self, label: str, step: str) -> None:
        self._set_up[label] = (step, self._clock())
        self._log(f"{self._indent()}{step}: {label}", often=self._verbose)
        self._draw()

    def ready(self, label: str) -> None:
        self._set_up.pop(label, None)
        self._draw()

    def phase(self, text: str) -> None:
        self._phase = text
        self._next = ""
        for point in self._medians:  # a phase ends once every point had its turn
            self._log_values(point, final=True)
        self._log(f"{self._indent()}{text}; {self._left()}", often=self._verbose)
        self._draw(at_once=True)

    def now(self, point: Point) -> None:
        self._next = point_name(point, model=bool(self._session))
        self._log(f"{self._indent()}{self._phase}: {self._next}; {self._left()}", often=False)
        self._draw()

    def ended(self) -> None:
        self._running -= 1
        self._fresh.clear()
        self._phase = ""
        self._log(f"  {self._score()}", often=self._running <= 1 or self._verbose)
        self._draw(at_once=True)

    # --- what is shown ------------------------------------------------------------------------

    def _log(self, text: str, *, often: bool) -> None:
        """Print a line to a log; seldom, unless it says more than how far the session is."""
        now = self._clock()
        if self._live is None and (often or now - self._printed >= LOG_EVERY_S):
            self._printed = now
            self.say(text)

    def _indent(self) -> str:
        return "  " if self._session else ""

    def _left(self) -> str:
        left_s = self._end - self._clock()
        known = f"about {duration(left_s)} left" if left_s >= 0 else "longer than estimated"
        return f"{known}{self._besides}"

    def _score(self) -> str:
        """Return how many points are measured, failed and open, the session's own included."""
        total = sum(self._counts.values())
        measured = self._counts.get("measured", 0) + len(self._fresh)
        failed = self._counts.get("failed", 0) + self._counts.get("given-up", 0)
        parts = [f"{measured} of {total} points measured"]
        parts += [f"{failed} failed"] if failed else []
        return ", ".join([*parts, f"{self._open()} left"])

    def _open(self) -> int:
        # A session that measures a lost point again ends more points than were open when it began.
        return max(0, self._counts.get("open", 0) - len(self._fresh))

    def _draw(self, *, at_once: bool = False) -> None:
        begin = self._clock()
        pause = max(DRAW_EVERY_S, self._drawing / DRAW_SHARE)
        if self._live and (at_once or begin - self._drawn >= pause):
            self._live.update(self.picture(), refresh=True)
            self._drawn = self._clock()
            self._drawing = self._drawn - begin

    def picture(self) -> Group:
        """Return what a terminal shows."""
        score = self._left()
        done, total = len(self._medians), len(self._asked)
        if done:
            score = f"{done} of {total} points have a value; {score}"
        if self._session:
            total = sum(self._counts.values())
            done = total - self._open()
            score = f"{self._score()}; {self._left()}"
        bar = Table.grid()  # a bar alone does not end its line
        # before anything is known the total is zero, which rich divides by
        bar.add_row(ProgressBar(total=max(total, 1e-9), completed=done, width=BAR_WIDTH))
        parts: list[RenderableType] = [bar, _text(score, "bold")]
        parts += [_text(self._session)] if self._session else []
        parts += map(_text, self._steps())
        if self._medians:
            parts += [Text(), drawn(self._table(), self._console)]
        return Group(*parts)

    def _table(self) -> blocks.Table:
        """Return the family of the point measured last: runtimes by batch."""
        newest = next(reversed(self._medians))
        family = self._asked[newest]
        at = {(p.runtime, p.workload.batch): p for p, its in self._asked.items() if its == family}
        batches = sorted({batch for _, batch in at})
        runtimes = dict.fromkeys(p.runtime for p in at.values() if p in self._medians)
        title = point_name(newest, runtime=False, batch=False, defaults=True)
        return blocks.table(
            f"{title}: latency of one call, ms",
            ["runtime", *(blocks.right(f"batch {b}") for b in batches)],
            [
                [runtime, *(self._cell(at.get((runtime, b))) for b in batches)]
                for runtime in runtimes
            ],
        )

    def _cell(self, point: Point | None) -> blocks.Cell:
        if point is None or point not in self._medians:
            return blocks.Cell("·", style="dim")
        ns, around, is_done = self._known(point)
        brief, note = milliseconds(ns), around.replace(" ", "")
        return blocks.Cell(brief, style="strong" if is_done else "", note=note, short=brief)

    def _log_values(self, point: Point, *, final: bool = False) -> None:
        """Log once the values of a point's runtime: as each batch has one, or ``final``."""
        key = (self._asked.get(point), point.runtime)
        mine = [p for p, family in self._asked.items() if (family, p.runtime) == key]
        is_whole = all(p in self._medians for p in mine)
        if not mine or key in self._said or not (is_whole or final):
            return
        self._said.add(key)
        values = []
        for p in sorted(mine, key=lambda p: p.workload.batch):
            ns, around, _ = self._known(p) if p in self._medians else (None, "", False)
            text = "no value" if ns is None else f"{time_text(ns)} {around}".rstrip()
            values.append(f"{text} at batch {p.workload.batch}")
        is_study = bool(self._session)
        name = point_name(point, batch=False) if is_study else distinct_name(point, self._asked)
        line = f"{self._indent()}  {name}: {', '.join(values)}"
        self._log(line, often=not is_study or self._verbose)

    def _known(self, point: Point) -> tuple[float, str, bool]:
        """Return a point's value, ns, its interval as text, and whether that is narrow enough.

        Below ``LEAST`` values it is the mean of processes, and no interval is shown.
        """
        medians = self._medians[point]
        found = process_interval(medians)
        if found is None or found.n < LEAST:
            return fmean(median(one) for one in medians if one), "", False
        return found.value, plus_minus(found), relative_half_width(found) <= self._until

    def _steps(self) -> list[str]:
        """Return what is done now, what is next, and what is being set up beside it."""
        now = self._clock()
        lines = [f"  {self._phase}"] if self._phase else []
        lines += [f"  next: {self._next}"] if self._next else []
        steps = [
            f"{label} ({step}, {now - begin:.0f} s)"
            for label, (step, begin) in self._set_up.items()
        ]
        return [*lines, f"  set-up: {', '.join(steps)}"] if steps else lines


def _text(text: str, style: str = "") -> Text:
    return Text(indented(text), style=style, no_wrap=True, overflow="ellipsis")


class AttachView(_Drawing):
    """What is known of an attached process by now.

    It is drawn in place on a terminal; a log gets a line now and then.
    """

    def __init__(self, out: Console, *, quiet: bool) -> None:
        super().__init__(out, draws=not quiet and drawable(out))
        self._quiet = quiet
        self._logged = time.monotonic()

    @property
    def is_due(self) -> bool:
        """Whether it is to be shown now: a log has a line every ten seconds."""
        if self._live or self._quiet:
            return self._live is not None
        return time.monotonic() - self._logged >= LOG_EVERY_S

    def show(self, found: Program) -> None:
        """Show it."""
        if self._live:
            self._live.update(Group(*self._picture(found)), refresh=True)
            return
        self._logged = time.monotonic()
        self._console.print(flat(found.headline), markup=False, soft_wrap=True)

    def _picture(self, found: Program) -> Iterator[RenderableType]:
        from frameworktax.programs.blocks import load, symbol_table, thread_table

        first = found.processes[0]
        yield Text(f"{flat(found.headline)}; {load(first)}", style="bold")
        # small as a terminal may be, something is shown
        rows = max(2, (self._console.height - 12) // 2)
        yield drawn(thread_table("Threads", found.sections[:rows]), self._console)
        tax = [one for one in first.symbols_ns if one[0] != "kernel"]
        if tax:
            yield drawn(symbol_table("Where the tax is", tax[:rows], first.cpu_ns), self._console)
        yield Text("Ctrl-C ends the observation, not the process", style="dim")
