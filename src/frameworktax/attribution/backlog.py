"""Span D: how long the device takes over a call whose work was all queued before it began.

Without a profiler. A spin kernel of known length keeps the device busy while the host enqueues the
call; then the device runs the call's work back to back:

    host     spin · start event · the call's launches · end event · is the start event pending?
    device   spin spin spin spin spin spin spin spin spin │start│ k k k k k k │end│

The span is the time between the two events. It is the device's own only if not one kernel waited
for the host: the spin must still be running, so the *start* event still pending, when the whole
call has been enqueued (a pending end event alone would let the device starve in between).

Two events with nothing between them are not at the same time either: the span of an empty call is
measured as well, and a device gap below it is none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

from frameworktax.attribution.torch_device import Device
from frameworktax.clock import REAL, Clock

QUEUE_LIMIT = 900
"""Entries a call may enqueue; the launch queue is about 1,000 deep, and then the host blocks."""
SPIN_FACTOR = 4
"""The spin lasts this many times the host's time over the call, and grows by it."""
MIN_SPIN_NS = 1_000_000
MAX_SPIN_NS = 1_000_000_000
"""A longer spin would trip the watchdog of a device with a display, and cost too much anyway."""
WAITING_SHARE = 0.5
"""A call whose host time grows by this share of what the spin grows by waits for the device."""
CALIBRATION_CYCLES = (400_000, 4_400_000)
RISE_NS = 100_000_000
"""Spinning before cycles are counted: the clock of an idle device takes tens of milliseconds to
rise, and cycles per nanosecond with it."""
RISE_SPINS = 16
"""Spins for that at most, each twice as long as the one before."""


@dataclass(frozen=True, slots=True)
class SpanRun:
    """Spans of a call, one per repeat; empty, with the reason, where there is none.

    Attributes:
        span_ns: device time from the end of the spin to the end of the call's work.
        empty_ns: the same of a call that does nothing, median.
        spin_ns: the spin as measured, median.
        reason: why there is no span, in one line.
    """

    span_ns: tuple[int, ...] = ()
    empty_ns: int | None = None
    spin_ns: int | None = None
    reason: str | None = None

    @property
    def median_ns(self) -> float | None:
        """The median span, None where there is none."""
        return median(self.span_ns) if self.span_ns else None


@dataclass(frozen=True, slots=True)
class _Once:
    covered: bool
    span_ns: int
    spin_ns: int
    host_ns: int


def calibrate(device: Device) -> float:
    """Return cycles per nanosecond of the spin kernel, from events around two lengths of it.

    The difference of two lengths leaves out what launching and the events cost. The device spins
    before, so that its clock has risen.

    Raises:
        ValueError: a longer spin took no longer; its kernel does not count time here.
    """
    short, long = CALIBRATION_CYCLES
    rates = []
    spun_ns, cycles = 0, long
    for _ in range(RISE_SPINS):
        spun_ns += _spin_ns(device, cycles)
        cycles *= 2
        if spun_ns >= RISE_NS:
            break
    else:
        raise ValueError("a longer spin kernel took no longer; it cannot be timed here")
    for _ in range(3):
        took = _spin_ns(device, long) - _spin_ns(device, short)
        if took <= 0:
            raise ValueError("a longer spin kernel took no longer; it cannot be timed here")
        rates.append((long - short) / took)
    return median(rates)


def measure_span(
    call: Callable[[], Any],
    device: Device,
    *,
    repeats: int = 10,
    host_ns: int,
    enqueued: int | None = None,
    max_spin_ns: int = MAX_SPIN_NS,
    clock: Clock = REAL,
) -> SpanRun:
    """Measure the span of a call by backlog.

    Args:
        call: what is measured; warm; its work must be ordered behind the current stream.
        device: what it runs on.
        repeats: spans wanted.
        host_ns: how long the host takes over the call until it returns.
        enqueued: entries of the launch queue a call takes; None if not known.
        max_spin_ns: the longest spin tried.
        clock: to read time from.

    Returns:
        All spans, or the reason why there are none: never some of them.
    """
    if enqueued is not None and enqueued > QUEUE_LIMIT:
        return SpanRun(reason=f"a call takes {enqueued} of about 1,000 places in the launch queue")
    try:
        cycles_per_ns = calibrate(device)
    except ValueError as error:
        return SpanRun(reason=str(error))
    spin_ns = max(MIN_SPIN_NS, SPIN_FACTOR * host_ns)
    before: _Once | None = None
    while spin_ns <= max_spin_ns:
        cycles = round(spin_ns * cycles_per_ns)
        runs = _repeat(call, device, cycles, repeats, clock)
        if all(run.covered for run in runs):
            empty = _repeat(_nothing, device, cycles, repeats, clock)
            return SpanRun(
                span_ns=tuple(run.span_ns for run in runs),
                empty_ns=round(median(run.span_ns for run in empty)),
                spin_ns=round(median(run.spin_ns for run in runs)),
            )
        now = runs[-1]
        if before and now.host_ns - before.host_ns >= WAITING_SHARE * (
            now.spin_ns - before.spin_ns
        ):
            return SpanRun(reason="the call waits for the device (a synchronise inside the model)")
        before = now
        spin_ns *= SPIN_FACTOR
    longest = max_spin_ns / 1e6
    return SpanRun(reason=f"the host needs longer to enqueue the call than a {longest:g} ms spin")


def _repeat(
    call: Callable[[], Any], device: Device, cycles: int, repeats: int, clock: Clock
) -> list[_Once]:
    """Measure up to ``repeats`` times; the first that is not covered is the last."""
    runs: list[_Once] = []
    while len(runs) < repeats and (not runs or runs[-1].covered):
        runs.append(_once(call, device, cycles, clock))
    return runs


def _once(call: Callable[[], Any], device: Device, cycles: int, clock: Clock) -> _Once:
    before, start, end = device.event(), device.event(), device.event()
    device.synchronize()
    before.record()
    device.spin(cycles)
    start.record()
    begin = clock.wall_ns()
    call()
    end.record()
    covered = not start.query()
    host_ns = clock.wall_ns() - begin
    device.synchronize()
    return _Once(covered, end.since_ns(start), start.since_ns(before), host_ns)


def _spin_ns(device: Device, cycles: int) -> int:
    start, end = device.event(), device.event()
    device.synchronize()
    start.record()
    device.spin(cycles)
    end.record()
    device.synchronize()
    return end.since_ns(start)


def _nothing() -> None:
    """Stand in for a call, to measure what two events take."""
