"""Where the time of a call goes on a GPU: kernel time and span, from runs of their own.

    latency L ─┬─ kernel K                 union of kernels and copies (``device_profile``)
               ├─ device gap D − K         the device idle although work was queued
               └─ host starvation L − D    the device waiting for the host (or for the first launch
                                           to arrive, or the host for the last synchronise)

L comes from runs without a profiler, D from a backlog. Nothing is clamped: a noisy
difference may be negative and is shown so.

The span D is how long the device takes over a call whose work was all queued before it began: a
spin kernel keeps the device busy while the host enqueues the call.

    host     spin · start event · the call's launches · end event · is the start event pending?
    device   spin spin spin spin spin spin spin spin spin │start│ k k k k k k │end│

It is the time between the two events, and the device's own only if not one kernel waited for the
host: the *start* event must still be pending when the whole call has been enqueued (a pending end
event alone would let the device starve in between). The span of an empty call is measured as well;
a device gap below it is none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any

from frameworktax.attribution.device_profile import DeviceRun, Notes, Warm, profile_device
from frameworktax.attribution.torch_device import TorchDevice
from frameworktax.clock import REAL, Clock
from frameworktax.errors import TraceError
from frameworktax.host import nvml

METHOD = "device-profile"
ATTEMPTS = 3
"""Profiles made at most, where records were lost (pytorch#192021)."""
TIMED_CALLS = 5
"""Calls whose host time sets the length of the spin."""
NOT_BEHIND = 0.5
"""A span below this share of kernel time was not measured on the stream the work ran on."""
LOAD_NS = 100_000_000
"""Calls before the state of the device is read: an idle device lowers its clocks."""
READINGS = 3
"""Of the state, each while a call is under way."""

Read = Callable[[], Mapping[str, int]]


def attribute_gpu(
    call: Callable[[], Any],
    synchronize: Callable[[], None],
    device: str = "cuda:0",
    calls: int = 10,
    *,
    clock: Clock = REAL,
    on: TorchDevice | None = None,
    read: Read | None = None,
) -> dict[str, Any]:
    """Measure kernel time and span of a warm call.

    Run it after all timing in the process: a profiler may leave hooks on the launch path.

    Args:
        call: what is measured; its work must be ordered behind torch's current stream.
        synchronize: waits for its outputs.
        device: ``cuda:N``.
        calls: profiled calls, and spans.
        clock: to read time from.
        on: the device's operations; torch's unless given.
        read: reads the state of the device; NVML unless given.

    Returns:
        Fields of ``records.Attribution``, as plain data; notes are (code, text) pairs. What could
        not be measured is empty, and a note says why.
    """
    warm = Warm(call, synchronize, TorchDevice(device) if on is None else on, clock)
    notes: Notes = []
    if read is None:
        try:
            read = nvml.reader(gpu_uuid(device))
        except OSError as error:
            notes.append(("clocks-unread", f"the state of the device was not read: {error}"))
    before = _state_under_load(warm, read)
    run = _profile(warm, calls)
    profiled = asdict(run)
    notes += profiled.pop("notes")
    enqueued = max(profiled.pop("enqueued"), default=None)
    span = measure_span(warm, repeats=calls, host_ns=_host_ns(warm), enqueued=enqueued)
    span = _behind(span, run)
    if span.reason is not None:
        notes.append(("span-unavailable", f"device span not measured: {span.reason}"))
    after = _state_under_load(warm, read)
    if read is not None:
        notes += nvml.notes(before, after)
    return {
        **profiled,
        "method": METHOD,
        "calls": len(run.wall_ns),
        "wall_ns": sum(run.wall_ns),
        "latency_ns": round(median(run.wall_ns or (0,))),
        "span_ns": span.span_ns,
        "empty_span_ns": span.empty_ns,
        "device_state": after,
        "notes": notes,
    }


def gpu_uuid(device: str) -> str:
    """Return NVML's name for a device.

    Raises:
        OSError: it is not NVIDIA's (torch for ROCm names its devices ``cuda`` too), or this torch
            does not say it.
    """
    import torch

    if torch.version.hip is not None:
        raise OSError("it is AMD's, and NVML reads NVIDIA's alone")
    uuid = getattr(torch.cuda.get_device_properties(torch.device(device)), "uuid", None)
    if uuid is None:
        raise OSError("this torch does not give the device's UUID; install a newer one")
    return f"GPU-{uuid}"


def _state_under_load(warm: Warm, read: Read | None) -> dict[str, int]:
    """Return the state of the device while calls run, after enough of them."""
    if read is None:
        return {}
    begin = warm.clock.wall_ns()
    while warm.clock.wall_ns() - begin < LOAD_NS:
        warm.run()
    readings = []
    for _ in range(READINGS):
        warm.call()
        readings.append(read())
        warm.synchronize()
    return nvml.state(readings)


def _profile(warm: Warm, calls: int) -> DeviceRun:
    """Profile, again where records were lost; return the best, or one of no calls with a note."""
    run = DeviceRun()
    for _ in range(ATTEMPTS):
        try:
            found = profile_device(warm, calls)
        except (TraceError, RuntimeError, AssertionError, OSError) as error:
            # torch.profiler raises RuntimeError, or asserts where its build has no CUPTI.
            why = " ".join(str(error).split())[:300] or type(error).__name__
            if not run.wall_ns:
                text = f"kernel time not measured: {why}"
                run = DeviceRun(notes=[("device-profile-failed", text)])
        else:
            run = found if not run.wall_ns or found.lost < run.lost else run
            if not run.lost:
                break
    return run


def _host_ns(warm: Warm) -> int:
    """Return the longest host time until the call returns."""
    longest = 0
    for _ in range(TIMED_CALLS):
        begin = warm.clock.wall_ns()
        warm.call()
        longest = max(longest, warm.clock.wall_ns() - begin)
        warm.synchronize()
    return longest


def _behind(span: SpanRun, run: DeviceRun) -> SpanRun:
    """Refuse a span that is shorter than the kernels it should hold."""
    found, kernels = span.median_ns, median(run.kernel_ns or (0,))
    if found is None or found >= NOT_BEHIND * kernels:
        return span
    text = f"{found / 1e3:.1f} µs for {kernels / 1e3:.1f} µs of kernels: they run on another stream"
    return SpanRun(reason=text)


# --- the span, by backlog -------------------------------------------------------------------------

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
        reason: why there is no span, in one line.
    """

    span_ns: tuple[int, ...] = ()
    empty_ns: int | None = None
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


def calibrate(device: TorchDevice) -> float:
    """Return cycles per nanosecond of the spin kernel, from events around two lengths of it.

    The difference of two lengths leaves out what launching and the events cost. The device spins
    before, so that its clock has risen.

    Raises:
        ValueError: a longer spin took no longer; its kernel does not count time here.
    """
    empty = Warm(_nothing, _nothing, device)
    short, long = CALIBRATION_CYCLES
    rates = []
    spun_ns, cycles = 0, long
    for _ in range(RISE_SPINS):
        spun_ns += _once(empty, cycles).spin_ns
        cycles *= 2
        if spun_ns >= RISE_NS:
            break
    else:
        raise ValueError("a longer spin kernel took no longer; it cannot be timed here")
    for _ in range(3):
        took = _once(empty, long).spin_ns - _once(empty, short).spin_ns
        if took <= 0:
            raise ValueError("a longer spin kernel took no longer; it cannot be timed here")
        rates.append((long - short) / took)
    return median(rates)


def measure_span(
    warm: Warm, *, repeats: int = 10, host_ns: int, enqueued: int | None = None
) -> SpanRun:
    """Measure the span of a call by backlog.

    Args:
        warm: what is measured.
        repeats: spans wanted.
        host_ns: how long the host takes over the call until it returns.
        enqueued: entries of the launch queue a call takes; None if not known.

    Returns:
        All spans, or the reason why there are none: never some of them.
    """
    if enqueued is not None and enqueued > QUEUE_LIMIT:
        return SpanRun(reason=f"a call takes {enqueued} of about 1,000 places in the launch queue")
    try:
        cycles_per_ns = calibrate(warm.device)
    except ValueError as error:
        return SpanRun(reason=str(error))
    spin_ns = max(MIN_SPIN_NS, SPIN_FACTOR * host_ns)
    before: _Once | None = None
    while spin_ns <= MAX_SPIN_NS:
        cycles = round(spin_ns * cycles_per_ns)
        runs = _repeat(warm, cycles, repeats)
        if all(run.covered for run in runs):
            shortest = round(MIN_SPIN_NS * cycles_per_ns)
            empty = _repeat(replace(warm, call=_nothing), shortest, repeats)
            return SpanRun(
                span_ns=tuple(run.span_ns for run in runs),
                empty_ns=round(median(run.span_ns for run in empty)),
            )
        now = runs[-1]
        if before and now.host_ns - before.host_ns >= WAITING_SHARE * (
            now.spin_ns - before.spin_ns
        ):
            return SpanRun(reason="the call waits for the device (a synchronise inside the model)")
        before = now
        spin_ns *= SPIN_FACTOR
    longest = MAX_SPIN_NS / 1e6
    return SpanRun(reason=f"the host needs longer to enqueue the call than a {longest:g} ms spin")


def _repeat(warm: Warm, cycles: int, repeats: int) -> list[_Once]:
    """Measure up to ``repeats`` times; the first that is not covered is the last."""
    runs: list[_Once] = []
    while len(runs) < repeats and (not runs or runs[-1].covered):
        runs.append(_once(warm, cycles))
    return runs


def _once(warm: Warm, cycles: int) -> _Once:
    device = warm.device
    before, start, end = device.event(), device.event(), device.event()
    device.synchronize()
    before.record()
    device.spin(cycles)
    start.record()
    begin = warm.clock.wall_ns()
    warm.call()
    end.record()
    covered = not start.query()  # the device has not reached it
    host_ns = warm.clock.wall_ns() - begin
    device.synchronize()
    spin_ns, span_ns = (  # of ms, which the driver counts in steps of 0.5 µs
        round(earlier.elapsed_time(later) * 1e6)
        for earlier, later in ((before, start), (start, end))
    )
    return _Once(covered, span_ns, spin_ns, host_ns)


def _nothing() -> None:
    """Stand in for a call, to measure what two events take."""
