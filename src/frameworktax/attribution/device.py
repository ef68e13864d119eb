"""Where the time of a call goes on a GPU: kernel time and span, from runs of their own.

``analysis.bill`` makes the bill of them:

    latency L ─┬─ kernel K                 union of kernels and copies (``device_profile``)
               ├─ device gap D − K         the device idle although work was queued
               └─ host starvation L − D    the device waiting for the host (or for the first launch
                                           to arrive, or the host for the last synchronise)

L comes from runs without a profiler, D from a backlog (``backlog``). Nothing is clamped: a noisy
difference may be negative and is shown so.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import Any

from frameworktax.attribution.backlog import SpanRun, measure_span
from frameworktax.attribution.device_profile import DeviceRun, Notes, profile_device
from frameworktax.attribution.torch_device import Device, TorchDevice
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

Read = Callable[[], nvml.Reading]


def attribute_gpu(
    call: Callable[[], Any],
    synchronize: Callable[[], None],
    device: str = "cuda:0",
    calls: int = 10,
    *,
    clock: Clock = REAL,
    on: Device | None = None,
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
    gpu = TorchDevice(device) if on is None else on
    notes: Notes = []
    if read is None:
        try:
            read = nvml.Nvml(gpu_uuid(device)).read
        except OSError as error:
            notes.append(("clocks-unread", f"the state of the device was not read: {error}"))
    before = _state_under_load(call, synchronize, read, clock)
    run, why = _profile(call, synchronize, calls, clock, gpu)
    if run is None:
        notes.append(("device-profile-failed", f"kernel time not measured: {why}"))
    else:
        notes += run.notes
    span = measure_span(
        call,
        gpu,
        repeats=calls,
        host_ns=_host_ns(call, synchronize, clock),
        enqueued=max(run.enqueued, default=None) if run else None,
        clock=clock,
    )
    span = _behind(span, run)
    if span.reason is not None:
        notes.append(("span-unavailable", f"device span not measured: {span.reason}"))
    after = _state_under_load(call, synchronize, read, clock)
    if read is not None:
        notes += nvml.notes(before, after)
    return {
        "method": METHOD,
        "calls": len(run.wall_ns) if run else 0,
        "wall_ns": sum(run.wall_ns) if run else 0,
        "latency_ns": round(median(run.wall_ns)) if run else 0,
        "lost": run.lost if run else 0,
        "kernel_ns": run.kernel_ns if run else (),
        "kernels": run.kernels if run else (),
        "copies": run.copies if run else (),
        "launches": run.launches if run else (),
        "wait_ns": run.wait_ns if run else (),
        "sm_active_ns": run.sm_active_ns if run else (),
        "warp_ns": run.warp_ns if run else (),
        "kernel_names": run.names if run else {},
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


def _state_under_load(
    call: Callable[[], Any], synchronize: Callable[[], None], read: Read | None, clock: Clock
) -> dict[str, int]:
    """Return the state of the device while calls run, after enough of them."""
    if read is None:
        return {}
    begin = clock.wall_ns()
    while clock.wall_ns() - begin < LOAD_NS:
        call()
        synchronize()
    readings = []
    for _ in range(READINGS):
        call()
        readings.append(read())
        synchronize()
    return nvml.state(readings)


def _profile(
    call: Callable[[], Any],
    synchronize: Callable[[], None],
    calls: int,
    clock: Clock,
    gpu: Device,
) -> tuple[DeviceRun | None, str]:
    """Profile, again where records were lost; return the last, or why there is none."""
    run, why = None, ""
    for _ in range(ATTEMPTS):
        try:
            run = profile_device(call, synchronize, calls, clock, device=gpu)
        except (TraceError, RuntimeError, AssertionError, OSError) as error:
            # torch.profiler raises RuntimeError, or asserts where its build has no CUPTI.
            why = " ".join(str(error).split())[:300] or type(error).__name__
        else:
            if not run.lost:
                break
    return run, why


def _host_ns(call: Callable[[], Any], synchronize: Callable[[], None], clock: Clock) -> int:
    """Return the longest host time until the call returns."""
    longest = 0
    for _ in range(TIMED_CALLS):
        begin = clock.wall_ns()
        call()
        longest = max(longest, clock.wall_ns() - begin)
        synchronize()
    return longest


def _behind(span: SpanRun, run: DeviceRun | None) -> SpanRun:
    """Refuse a span that is shorter than the kernels it should hold."""
    found, kernels = span.median_ns, median(run.kernel_ns) if run and run.kernel_ns else 0
    if found is None or found >= NOT_BEHIND * kernels:
        return span
    text = f"{found / 1e3:.1f} µs for {kernels / 1e3:.1f} µs of kernels: they run on another stream"
    return SpanRun(reason=text)
