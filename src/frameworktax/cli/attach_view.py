"""What is known of an attached process by now: drawn in place, or a line now and then in a log."""

from __future__ import annotations

import time
from collections.abc import Iterator

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from frameworktax.cli.progress import drawable
from frameworktax.errors import flat
from frameworktax.programs.blocks import load, symbol_table, thread_table
from frameworktax.programs.document import Program
from frameworktax.report.render_terminal import drawn

LOG_EVERY_S = 10.0


class View:
    """A picture on a terminal, or lines in a log; use as a context manager.

    Args:
        out: to draw on, or to print to.
        quiet: show nothing.
    """

    def __init__(self, out: Console, *, quiet: bool) -> None:
        self._out = out
        self._quiet = quiet
        self._logged = time.monotonic()
        self._live: Live | None = None
        if not quiet and drawable(out):
            self._live = Live(console=out, auto_refresh=False, transient=True)

    def __enter__(self) -> View:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._live:
            self._live.stop()

    def show(self, found: Program) -> None:
        """Show it, or not: a log has a line every ten seconds."""
        if self._live:
            self._live.update(Group(*self._picture(found)), refresh=True)
        elif not self._quiet and time.monotonic() - self._logged >= LOG_EVERY_S:
            self._logged = time.monotonic()
            self._out.print(flat(found.headline), markup=False, soft_wrap=True)

    def _picture(self, found: Program) -> Iterator[Text]:
        first = found.processes[0]
        yield Text(f"{flat(found.headline)}; {load(first)}", style="bold")
        rows = max(
            2, (self._out.height - 12) // 2
        )  # small as a terminal may be, something is shown
        yield drawn(thread_table("Threads", found.sections[:rows]), self._out)
        tax = [one for one in first.symbols_ns if one[0] != "kernel"]
        if tax:
            yield drawn(symbol_table("Where the tax is", tax[:rows], first.cpu_ns), self._out)
        yield Text("Ctrl-C ends the observation, not the process", style="dim")
