"""Several machines in one store: what changes with the device, and what with the host."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from frameworktax.analysis.roofline import device_of
from frameworktax.records import Environment, Estimate
from frameworktax.reproduce import paper
from frameworktax.reproduce.rows import NotEvaluable, Row, select, values
from frameworktax.stats import NORMAL_95

FASTER = 1.15
"""Ratio of two peaks from which on one device is the faster."""
TIMES = ("latency", "host", "kernel")


def name_of(environment: Environment, platform: str) -> str:
    """Return what a machine is called: its device and its host."""
    if not platform.startswith("cuda"):
        return environment.cpu
    gpu = _gpu(environment, platform)
    return f"{gpu.get('name', platform)} with {environment.cpu}"


def peaks_of(environment: Environment, platform: str) -> tuple[float | None, float | None]:
    """Return a device's peak by the paper's table 2 and by its data sheet, TFLOPS.

    The two count differently (with or without tensor cores, half or single precision), so that
    machines are compared by one of them only; None where it does not know the device.
    """
    if not platform.startswith("cuda"):
        return None, None
    gpu = _gpu(environment, platform)
    name = str(gpu.get("name", ""))
    printed = [p.peak_tflops for p in paper.platforms() if p.gpu.split()[-1] in name.split()]
    device = device_of(gpu)
    return (printed[0] if printed else None), (device.single / 1e12 if device else None)


def _gpu(environment: Environment, platform: str) -> Mapping[str, Any]:
    number = int(platform.partition(":")[2] or 0)
    found = {int(gpu.get("index", i)): gpu for i, gpu in enumerate(environment.gpus)}
    return found.get(number, {})


def apart(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """Return machine → its rows."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(str(row.at.get("machine", "this machine")), []).append(row)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """A machine's point at the smallest batch: what the host and what the device take of it, ns.

    The ratios are to the first machine's; None where a time is missing.
    """

    machine: str
    model: str
    latency_ns: float
    host_ns: float | None
    kernel_ns: float | None
    host_ratio: float | None
    device_ratio: float | None


def effects(rows: Sequence[Row]) -> list[Effect]:
    """Return what host and device take of each model on each machine; empty for one machine."""
    by_machine = apart(rows)
    if len(by_machine) < 2:
        return []
    found = []
    for model in values(rows, "model"):
        first: dict[str, float] = {}
        for name, mine in by_machine.items():
            chosen = select(mine, {"model": model, "runtime": "eager", "batch": "first"})
            if not chosen or "latency" not in chosen[0].numbers:
                continue
            times = {q: chosen[0].numbers[q].value for q in TIMES if q in chosen[0].numbers}
            first = first or times
            ratio = {q: times[q] / first[q] for q in times if first.get(q)}
            found.append(
                Effect(
                    machine=name,
                    model=str(model),
                    latency_ns=times["latency"],
                    host_ns=times.get("host"),
                    kernel_ns=times.get("kernel"),
                    host_ratio=ratio.get("host"),
                    device_ratio=ratio.get("kernel"),
                )
            )
    return found


def _need_several(names: Sequence[str]) -> None:
    if len(names) < 2:
        raise NotEvaluable(
            "one machine in the store; copy the files of several stores into one folder"
        )


def free_on_faster(rows: Sequence[Row], free: Mapping[str, Estimate]) -> Estimate:
    """Return the share of pairs of machines whose faster device has the larger free value.

    Args:
        rows: with ``peaks`` among their axes: by table 2, by the data sheet.
        free: machine → its free value.

    Raises:
        NotEvaluable: one machine; peaks not known; no pair differs.
    """
    _need_several(list(free))
    peaks = _peaks({name: mine[0].at.get("peaks") for name, mine in apart(rows).items()})
    agree = []
    for a, b in itertools.combinations(free, 2):
        slow, fast = sorted((a, b), key=lambda name: peaks[name])
        if peaks[fast] / peaks[slow] < FASTER:
            continue
        if free[fast].low > free[slow].high:
            agree.append(True)
        elif free[fast].high < free[slow].low:
            agree.append(False)
    return share(agree)


def _peaks(
    known: Mapping[str, tuple[float | None, float | None] | None],
) -> dict[str, float]:
    """Return every machine's peak by the first source that knows them all."""
    for source in (0, 1):
        found = {name: (both or (None, None))[source] for name, both in known.items()}
        known_peaks = {name: peak for name, peak in found.items() if peak is not None}
        if len(known_peaks) == len(found):
            return known_peaks
    raise NotEvaluable("the peaks of these devices are not known from one source")


def floor_follows_host(points: Mapping[str, Sequence[Estimate]]) -> Estimate:
    """Return the share of pairs of machines whose batch-1 latency goes with host time.

    For each pair: is the ratio of latencies nearer, in logarithms, to that of host times than to
    that of kernel times? A pair whose two ratios are alike does not count.

    Args:
        points: machine → (latency, host time, kernel time) at one workload.
    """
    _need_several(list(points))
    agree = []
    for a, b in itertools.combinations(points, 2):
        latency, host, kernel = (
            math.log(x.value / y.value) for x, y in zip(points[a], points[b], strict=True)
        )
        if abs(host - kernel) >= math.log(FASTER):
            agree.append(abs(latency - host) < abs(latency - kernel))
    return share(agree)


def share(agree: Sequence[bool]) -> Estimate:
    """Return the share of pairs that agree, with Wilson's interval."""
    n = len(agree)
    if not n:
        raise NotEvaluable("no two machines differ enough to tell")
    p, z = sum(agree) / n, NORMAL_95
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return Estimate(
        value=p,
        low=min(centre - half, p),
        high=max(centre + half, p),
        method="share of pairs of machines, Wilson",
        n=n,
    )
