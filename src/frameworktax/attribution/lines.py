"""Which line of Python each sample belongs to: a signal at every sample notes where Python is.

The kernel sends the signal when it takes the sample. Python handles it where the interpreter next
looks: after a call into C has returned, at the start of a function, at the end of a loop's turn. So
a sample inside a C function goes to the line that called it, and one between two calls may go to
the next. Frames of torch, of the standard library and of this package are passed over: the line is
one of the user's code or of the model library's.
"""

from __future__ import annotations

import signal
import sysconfig
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from frameworktax.attribution.buckets import classify
from frameworktax.attribution.layers import short_path
from frameworktax.attribution.perf_event import PerfEventSampler
from frameworktax.attribution.sampler import Call, sample
from frameworktax.attribution.symbols import Leaf
from frameworktax.clock import REAL, Clock
from frameworktax.errors import WorkerError

SIGNAL = signal.SIGPROF
OWN = str(Path(__file__).parents[1])
STANDARD = sysconfig.get_path("stdlib")
PASSED = ("torch", "frameworktax")
"""Packages whose frames are passed over."""

Line = tuple[str, int, str]
"""File, line, function; an empty file where no such frame was there."""


class LineNotes:
    """Notes (time, line) at every signal."""

    def __init__(self) -> None:
        self.notes: list[tuple[int, Line]] = []
        self._passed: dict[str, bool] = {}

    @contextmanager
    def listening(self) -> Iterator[LineNotes]:
        """Take signals while the block lasts.

        Raises:
            WorkerError: this is not the main thread, which alone handles signals.
        """
        try:
            before = signal.signal(SIGNAL, self._note)
        except ValueError as error:
            raise WorkerError("unavailable", "lines are sampled in the main thread only") from error
        try:
            yield self
        finally:
            signal.signal(SIGNAL, before)

    def _note(self, number: int, frame: FrameType | None) -> None:
        now = time.perf_counter_ns()
        while frame is not None and self._is_passed(frame.f_code.co_filename):
            frame = frame.f_back
        if frame is None:
            self.notes.append((now, ("", 0, "")))
        else:
            code = frame.f_code
            self.notes.append((now, (code.co_filename, frame.f_lineno, code.co_qualname)))

    def _is_passed(self, file: str) -> bool:
        if file not in self._passed:
            self._passed[file] = is_passed(file)
        return self._passed[file]


def is_passed(file: str) -> bool:
    """Return whether a source file is neither the user's nor the model library's."""
    if file.startswith("<"):
        return True
    packages = [f"/site-packages/{name}/" for name in PASSED]
    inside = "/site-packages/" in file or "/dist-packages/" in file
    standard = file.startswith(f"{STANDARD}/") and not inside
    return standard or file.startswith(f"{OWN}/") or any(name in file for name in packages)


def by_line(
    notes: Sequence[tuple[int, Line]], ticks: Sequence[tuple[int, Leaf]]
) -> Counter[tuple[Line, str]]:
    """Return samples by line and line of the bill: each goes to the first note after it."""
    times = [time_ns for time_ns, _ in notes]
    counts: Counter[tuple[Line, str]] = Counter()
    for time_ns, leaf in ticks:
        at = bisect_left(times, time_ns)
        line = notes[at][1] if at < len(notes) else ("", 0, "")
        counts[line, classify(leaf)[0]] += 1
    return counts


def attribute_lines(
    call: Call,
    *,
    stretches: int = 5,
    duration_ns: int = 1_000_000_000,
    min_calls: int = 3,
    clock: Clock = REAL,
) -> dict[str, Any]:
    """Return which line of Python each sample of a run belongs to, as fields of ``records.Places``.

    The arguments are those of ``attribute_modules``.

    Raises:
        WorkerError: this host allows no sampling, or this is not the main thread.
    """
    lines = LineNotes()
    with lines.listening():
        try:
            sampler = PerfEventSampler(duration_ns // stretches, signal=SIGNAL)
        except OSError as error:
            raise WorkerError("unavailable", f"{error.strerror or error}") from error
        with sampler:
            run = sample(
                call,
                sampler,
                stretches=stretches,
                duration_ns=duration_ns,
                min_calls=min_calls,
                clock=clock,
            )
            seen = by_line(lines.notes, [tick for part in sampler.timed() for tick in part])
    return {
        "method": "line",
        "calls": run.calls,
        "latency_ns": run.latency_ns,
        "wall_ns": sum(stretch.wall_ns for stretch in run.stretches),
        "period_ns": run.period_ns,
        "modules": (),
        "lines": tuple(
            (short_path(file) if file else "", number, function, bucket, count)
            for ((file, number, function), bucket), count in seen.most_common()
        ),
        "lost": sum(stretch.ticks.lost for stretch in run.stretches),
        "notes": (),
    }
