"""Where the trend goes: recorded calls replayed on the paper's devices and on faster ones.

    python benchmarks/trend.py [--redraw]

There is no GPU here: two traces that others recorded on theirs are replayed. A store with points of
a GPU named in FRAMEWORKTAX_TREND_STORE is told as well.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from frameworktax import api
from frameworktax.analysis.regime import DEVICES
from frameworktax.analysis.whatif import replay
from frameworktax.analysis.whatif.formulas import UNIFORM, Refused, errors_shown, totals
from frameworktax.analysis.whatif.replay import Queues
from frameworktax.records import Estimate, Measurement
from frameworktax.report.words import duration
from frameworktax.reproduce import paper
from frameworktax.traces import kineto
from frameworktax.traces.timeline import build
from machines import MOST, Outlook, grid, outlook, uniform
from question import ROOT, place, table

VARIABLE = "FRAMEWORKTAX_TREND_STORE"
FASTER = (1.0, 2.0, 4.0, 8.0)
HOSTS = (1.0, 1.2, 1.5)
ANCHOR = ("A100", "A100 80GB PCIe")
"""The device that both the paper's table and the data sheets have: half precision there is counted
without tensor cores, so peaks of the two are joined by their ratios to this one."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A recorded or measured call, and the device it ran on (a key of ``DEVICES``)."""

    title: str
    queues: Queues
    device: str | None
    formula: str
    said: str


@dataclass(frozen=True, slots=True)
class Recorded:
    """A trace in the tests' data: what it is of, and the mark around a call."""

    file: str
    title: str
    device: str
    mark: str
    said: str


TRACES = (
    Recorded(
        "h100-bert-small-step.json",
        "BERT-small, one step on an H100 80GB HBM3",
        "H100",
        "ProfilerStep#",
        "Recorded with Python stacks, which makes the host slower than it is without a profiler: "
        "tax shares are upper figures.",
    ),
    Recorded(
        "a100-alexnet.json",
        "AlexNet, one forward pass on an A100 (PG509, 40 GB)",
        "A100-SXM4-40GB",
        "measure|forward",
        "Times in whole microseconds. Most of the step is cudaMalloc, which a warm process does "
        "not repeat.",
    ),
)


def recorded(trace: Recorded) -> Subject:
    """Return the last call in a trace as queues."""
    pattern = re.compile(re.escape(trace.mark))
    step = build(kineto.read(ROOT / "tests" / "data" / trace.file), pattern).steps()[-1]
    return Subject(
        trace.title, replay.queues_of(step), trace.device, replay.RECORDED,
        f"Replay of a recorded trace (`tests/data/{trace.file}`), not measured here. {trace.said}",
    )  # fmt: skip


def measured(folder: Path) -> Iterator[Subject]:
    """Yield what a store holds of GPUs: eager at its smallest batch, by model."""
    first: dict[str, Measurement] = {}
    for m in api.read_store(folder).run.measurements:
        if m.platform == "cpu" or m.runtime != "eager":
            continue
        with suppress(Refused):
            totals(m)
            known = first.get(m.workload.model)
            if known is None or m.workload.batch < known.workload.batch:
                first[m.workload.model] = m
    for m in first.values():
        latency, host, kernel, span = (total.value for total in totals(m))
        queues = uniform(
            launches=m.launches or 0,
            host_ns=host,
            kernel_ns=kernel,
            span_ns=span,
            latency_ns=latency,
        )
        title = f"{m.workload.model}, batch {m.workload.batch}, measured on {m.platform}"
        yield Subject(title, queues, None, UNIFORM, f"From the totals in {folder}.")


def generations(device: str) -> list[tuple[str, float, float]]:
    """Return (name, least, most) speed of known devices over this one: by bandwidth and by peak."""
    own = DEVICES[device]
    anchor = DEVICES[ANCHOR[1]]
    per_tflops = anchor.single / paper.peak_tflops(ANCHOR[0])
    found = [
        (
            p["gpu"],
            float(p["memory_bandwidth_gb_per_s"]) * 1e9,
            float(p["fp16_tflops"]) * per_tflops,
        )
        for p in paper.platforms()
    ]
    found += [(name, DEVICES[name].bandwidth, DEVICES[name].single) for name in ("H100", "H200")]
    speeds = [
        (name, *sorted((bandwidth / own.bandwidth, peak / own.single)))
        for name, bandwidth, peak in found
    ]
    return sorted(speeds, key=lambda s: s[1] * s[2])


def page(subjects: Sequence[Subject]) -> str:
    """Return the page."""
    lines = [
        "# Where the trend goes",
        "",
        "Written by `make trend`. No GPU was measured for this page: it replays calls that were "
        "recorded on the devices named, by two queues (a host that launches, a device that runs; "
        "[method.md](../method.md), section 9), with kernels and host work made faster by a "
        "factor. What is told of other devices is a prediction.",
        "",
        "*tax* is the share of the call in which no kernel runs. *knee* is how far kernel time may "
        "grow before the latency has grown by 10 %: the free batch, over the recorded one, where "
        "kernel time is linear in the batch, and a lower figure of it where it is not. Intervals "
        "reach to what would be if launch latency, pauses and unexplained waits shrank with the "
        "part that gets faster.",
    ]
    for subject in subjects:
        lines += ["", *_subject(subject)]
    lines += ["", "## What it comes to", "", *_sum(subjects)]
    return "\n".join(lines) + "\n"


def _subject(subject: Subject) -> list[str]:
    now = outlook(subject.queues)
    kernels = subject.queues.kernel_ns
    beyond = replay.unexplained(subject.queues.sync_ns, now.latency_ns.value)
    lines = [f"## {subject.title}", "", subject.said, ""]
    if beyond:
        return [*lines, f"Not replayed: {beyond}."]
    lines += [
        f"{len(kernels)} kernels and copies, {duration(float(kernels.sum()))} of "
        f"{duration(now.latency_ns.value)}; {_error(subject.formula)}.",
        "",
    ]  # fmt: skip
    if subject.device is not None:
        rows = []
        for name, low, high in generations(subject.device):
            ends = [outlook(subject.queues, device_speed=speed) for speed in (low, high)]
            rows.append((name, f"{low:.2f} to {high:.2f}", *_between(ends)))
        lines += table(("device, host as recorded", "speed", "latency", "tax", "knee"), rows)
        lines += [
            "",
            "Speeds over the recorded device, by memory bandwidth and by peak, the paper's table 2 "
            "and data sheets; kernels this short may gain less than either. Hosts differ too: the "
            "table has no figure for theirs.",
            "",
        ]
    rows = [
        (f"× {found.device_speed:g}", f"× {found.host_speed:g}", *_between([found]))
        for found in grid(subject.queues, FASTER, HOSTS)
    ]
    lines += table(("device", "host", "latency", "tax", "knee"), rows, left=2)
    return lines


def _error(formula: str) -> str:
    known = errors_shown().get(formula)
    if known is None:
        return (
            "error of this replay: never held against a measurement on a GPU (none was here); "
            "against a simulated device within 2 % at the 95th percentile for one stream"
        )
    return (
        f"error of this replay as measured: {known['median']:.1%} at the median, "
        f"{known['p95']:.1%} at the 95th percentile of {known['n']:.0f} checks"
    )


def _between(found: Sequence[Outlook]) -> tuple[str, str, str]:
    """Return latency, tax and knee, from the slowest to the fastest with their intervals."""
    latency = _joined([o.latency_ns for o in found])
    share = _joined([o.tax_share for o in found])
    knee = _joined([o.free_growth for o in found])
    bound = any(o.is_lower_bound for o in found)
    return (
        f"{duration(latency[0])} ({duration(latency[1])} to {duration(latency[2])})",
        f"{share[0]:.1%} ({share[1]:.1%} to {share[2]:.1%})",
        f"over {MOST:.0f}" if bound else f"{knee[0]:.3g} ({knee[1]:.3g} to {knee[2]:.3g})",
    )


def _joined(estimates: Sequence[Estimate]) -> tuple[float, float, float]:
    values = [e.value for e in estimates]
    middle = sum(values) / len(values)
    return middle, min(e.low for e in estimates), max(e.high for e in estimates)


def _sum(subjects: Sequence[Subject]) -> list[str]:
    lines = []
    for subject in subjects:
        now = outlook(subject.queues)
        if replay.unexplained(subject.queues.sync_ns, now.latency_ns.value):
            continue
        fast = outlook(subject.queues, device_speed=8.0)
        both = outlook(subject.queues, device_speed=8.0, host_speed=1.5)
        gain = now.latency_ns.value / fast.latency_ns.value
        most = now.latency_ns.value / both.latency_ns.value
        lines.append(
            f"- {subject.title}: a device eight times faster makes the call {gain:.2f} times "
            f"faster; its tax goes from {now.tax_share.value:.1%} to {fast.tax_share.value:.1%}, "
            f"the knee from {now.free_growth.value:.3g} to {fast.free_growth.value:.3g}. With a "
            f"host 1.5 times faster as well: {most:.2f} times."
        )
    return lines


def main() -> None:
    at = place("trend", __doc__ or "")
    subjects = [recorded(trace) for trace in TRACES]
    if os.environ.get(VARIABLE):
        subjects += measured(Path(os.environ[VARIABLE]))
    at.write(page(subjects))


if __name__ == "__main__":
    main()
