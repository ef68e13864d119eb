"""The steps of a trace: where each begins and ends on the host."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from frameworktax.traces.kineto import STEP, Events

Ns = NDArray[np.int64]
WHOLE = "whole trace"
STEP_NAME = re.compile(r"(?:step|iter|iteration)[\W_]{0,2}\d+\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Windows:
    """Steps in order, none overlapping another.

    Attributes:
        names: as the trace has them.
        begin_ns: on the host.
        end_ns: on the host.
        thread: that holds the mark; -1 where no step is marked.
        device_ns: length of the same step as the device saw it; -1 where it was not recorded.
        marked: the trace has step marks; else the one window is the whole trace.
        overlapping: marks left out because they overlap an earlier one.
    """

    names: tuple[str, ...]
    begin_ns: Ns
    end_ns: Ns
    thread: Ns
    device_ns: Ns
    marked: bool
    overlapping: int

    def of(self, times: Ns) -> Ns:
        """Return in which window each moment lies, -1 for none."""
        at = np.searchsorted(self.begin_ns, times, side="right") - 1
        return np.where((at >= 0) & (times < self.end_ns[np.maximum(at, 0)]), at, -1)


def is_step(name: str) -> bool:
    """Return whether a mark with this name stands for a step: ``step 3``, ``iteration 12``."""
    return STEP_NAME.match(name) is not None


def _marks(events: Events) -> Events:
    """Return the marks of steps: the profiler's own, else those that the user named so."""
    marks = events.of("user_annotation")
    own = marks.named(STEP)
    if own.any():
        return marks.where(own)
    chosen = [i for i, name in enumerate(events.names) if is_step(name)]
    return marks.where(np.isin(marks.name, chosen))


def windows(events: Events, work: Events) -> Windows:
    """Return the steps that are marked, or the whole trace as one; ``work`` is on its clock."""
    on_device = events.of("gpu_user_annotation")
    on_device = on_device.where(on_device.named(STEP))
    lengths = {
        on_device.name_of(i): int(on_device.end_ns[i] - on_device.start_ns[i])
        for i in range(len(on_device))
    }
    marks = _marks(events)
    if not len(marks):
        return _whole(events, work)
    marks = marks.take(np.lexsort((marks.end_ns, marks.start_ns)))
    keep, reached = [], None
    for i, (start, end) in enumerate(
        zip(marks.start_ns.tolist(), marks.end_ns.tolist(), strict=True)
    ):
        if reached is None or start >= reached:
            keep.append(i)
            reached = end
    kept = marks.take(np.array(keep, np.int64))
    names = tuple(kept.name_of(i) for i in range(len(kept)))
    return Windows(
        names=names,
        begin_ns=kept.start_ns,
        end_ns=kept.end_ns,
        thread=kept.thread,
        device_ns=np.array([lengths.get(name, -1) for name in names], np.int64),
        marked=True,
        overlapping=len(marks) - len(kept),
    )


def _whole(events: Events, work: Events) -> Windows:
    begin = int(min(events.start_ns.min(), work.start_ns.min(initial=2**62)))
    end = int(max(events.end_ns.max(), work.end_ns.max(initial=-(2**62))))
    return Windows(
        names=(WHOLE,),
        begin_ns=np.array([begin]),
        end_ns=np.array([end]),
        thread=np.array([-1]),
        device_ns=np.array([-1]),
        marked=False,
        overlapping=0,
    )
