"""What of a trace cannot be trusted."""

from __future__ import annotations

import numpy as np

from frameworktax.records import Note
from frameworktax.traces.events import CATEGORIES, Recorded
from frameworktax.traces.timeline import Timeline

FRAMES = CATEGORIES.index("python_function")


def notes(recorded: Recorded, timeline: Timeline) -> tuple[Note, ...]:
    """Return the trust notes of a trace, what weighs most first."""
    return (*_of_the_file(recorded, timeline), *_of_the_device(timeline), *_of_the_host(timeline))


def _of_the_file(recorded: Recorded, timeline: Timeline) -> list[Note]:
    found = []
    if recorded.cut:
        text = f"the file is not whole: {recorded.cut}; what came before is used"
        found.append(Note("trace-cut-off", text))
    if recorded.malformed:
        text = f"{recorded.malformed} records of the file cannot be read and were left out"
        found.append(Note("records-malformed", text))
    if recorded.trace.invalid:
        text = f"{recorded.trace.invalid} records have impossible times and were not counted"
        found.append(Note("records-invalid", text))
    if timeline.duplicates:
        text = f"{timeline.duplicates} records repeat another one exactly and count once"
        found.append(Note("records-repeated", text))
    resolution = recorded.trace.resolution_ns
    if resolution >= 1000 and len(timeline.work):
        found.append(
            Note("coarse-clock", f"this profiler writes times in steps of {resolution} ns")
        )
    return found


def _of_the_device(timeline: Timeline) -> list[Note]:
    work, windows = timeline.work, timeline.windows
    if not len(work):
        text = (
            "no record of a device: operators hold kernels and their dispatch alike, so that "
            "the tax is a lower figure"
        )
        return [Note("no-device-records", text)]
    found = []
    for device, ns in timeline.shift_ns.items():
        text = (
            f"device {device} stamps kernels up to {ns} ns before their launch: its clock was "
            "moved by that much"
        )
        found.append(Note("clocks-skewed", text))
    if timeline.idle_calls:
        text = (
            f"{timeline.idle_calls} launches have no record on any device: records were lost, "
            "device time is too low"
        )
        found.append(Note("launches-without-kernels", text))
    alone = int(((timeline.call < 0) & timeline.is_kernel).sum())
    if alone:
        text = f"{alone} kernels have no launch: what the host did for them is not known"
        found.append(Note("kernels-without-launch", text))
    filled = np.unique(timeline.step_of[timeline.step_of >= 0])
    empty = len(windows.names) - len(filled)
    if empty:
        text = f"{empty} of {len(windows.names)} steps have no record of a device"
        found.append(Note("steps-without-device", text))
    outside = int((timeline.step_of < 0).sum())
    if outside:
        text = f"{outside} records of a device belong to no step; they count in the device's total"
        found.append(Note("records-outside-steps", text))
    crossed = _crossed(timeline)
    if crossed:
        text = f"{crossed} kernels begin before the one ahead of them on their stream has ended"
        found.append(Note("kernels-overlap", text))
    return found


def _of_the_host(timeline: Timeline) -> list[Note]:
    found = []
    if not timeline.windows.marked:
        text = (
            "no step marks: the whole trace is one step, set-up and pauses included; call "
            "profiler.step() after each"
        )
        found.append(Note("no-steps", text))
    if timeline.windows.overlapping:
        text = f"{timeline.windows.overlapping} step marks overlap another and were left out"
        found.append(Note("steps-overlap", text))
    if not (timeline.events.category == FRAMES).any():
        text = (
            "no Python frames: time of the host between operators is in the remainder; profile "
            "with with_stack=True"
        )
        found.append(Note("no-python-frames", text))
    text = (
        "recorded under a profiler, which slows the host: shares show where to look, walls are "
        "no latency"
    )
    found.append(Note("under-profiler", text))
    return found


def _crossed(timeline: Timeline) -> int:
    """Return how many kernels begin before an earlier one on the same known stream has ended."""
    work = timeline.work.where(timeline.is_kernel & (timeline.work.stream >= 0))
    work = work.take(np.lexsort((work.start_ns, work.stream, work.device)))
    same = (work.stream[1:] == work.stream[:-1]) & (work.device[1:] == work.device[:-1])
    return int((same & (work.start_ns[1:] < work.end_ns[:-1])).sum())
