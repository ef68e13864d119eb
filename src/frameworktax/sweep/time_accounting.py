"""Where the time of a sweep went: stretches of wall time that add up to the whole."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from frameworktax.measure.reporter import Reporter
from frameworktax.records import Point

MEASURING = ("blocks", "attribution")
"""What counts as measuring: blocks, with the calibrator's, and runs for attribution."""
ASKED = {"block": "blocks", "calibrate": "blocks", "sample": "attribution", "device": "attribution"}
"""Requests that are answered one at a time on the host → what they are spent on."""


class PhaseClock(Reporter):
    """A reporter that passes progress on and keeps how long each phase took."""

    def __init__(self, inner: Reporter) -> None:
        self.wall_ns: dict[str, int] = {}
        self._inner = inner
        self._phase = "setting up"
        self._since = time.monotonic_ns()

    def phase(self, text: str) -> None:
        """Close the phase before, begin the next."""
        self._close()
        self._phase = text
        self._inner.phase(text)

    def progress(self, done: float, total: float, text: str) -> None:
        """Pass it on."""
        self._inner.progress(done, total, text)

    def now(self, point: Point) -> None:
        """Pass it on."""
        self._inner.now(point)

    def setting_up(self, label: str, step: str) -> None:
        """Pass it on."""
        self._inner.setting_up(label, step)

    def ready(self, label: str) -> None:
        """Pass it on."""
        self._inner.ready(label)

    def measured(self, point: Point, medians_ns: Sequence[Sequence[float]]) -> None:
        """Pass it on."""
        self._inner.measured(point, medians_ns)

    def remaining(self, seconds: float) -> None:
        """Pass it on."""
        self._inner.remaining(seconds)

    def end(self) -> None:
        """Close the last phase; what follows is the end of processes."""
        self._close()
        self._phase = "ending"

    def _close(self) -> None:
        now = time.monotonic_ns()
        self.wall_ns[self._phase] = self.wall_ns.get(self._phase, 0) + now - self._since
        self._since = now


def itemise(phases: Mapping[str, int], asked: Mapping[str, int]) -> dict[str, int]:
    """Return wall time by what it was spent on, ns; the parts add up to the phases.

    Args:
        phases: wall time by phase of the session.
        asked: wall time that workers were waited for, by request.
    """
    found = dict.fromkeys(MEASURING, 0)
    for request, name in ASKED.items():
        found[name] += asked.get(request, 0)
    rounds = ("measuring", "attributing")
    for phase, spent in phases.items():
        if phase not in rounds:
            found[phase] = found.get(phase, 0) + spent
    # Pauses that keep blocks of one point apart, pinning, writing records.
    found["between blocks"] = sum(phases.get(p, 0) for p in rounds) - sum(
        found[name] for name in MEASURING
    )
    return found


def overhead(spent: Mapping[str, int], wall_ns: int) -> float | None:
    """Return (wall − measuring) / measuring; None if nothing was measured."""
    measuring = sum(spent.get(name, 0) for name in MEASURING)
    return (wall_ns - measuring) / measuring if measuring else None
