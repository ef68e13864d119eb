"""Where the time of a call goes: kernel time, the tax, and the lines of the bill.

On a CPU a sampler says which share of the time a call spends in which bucket; the shares are
applied to the *unprofiled* latency. On a GPU kernel time comes from the device and the tax splits
into host starvation and device gaps. Every bill adds up to the latency.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

from frameworktax.analysis.estimates import (
    difference,
    median_interval,
    one_minus,
    product,
    quotient,
    scaled,
    share_interval,
)
from frameworktax.records import BILL, Attribution, Estimate, Note

SAMPLING = "program-counter-sampling"
TWIN = "width-shrunk-twin"
DEVICE = "device-profile"
MAX_INFLATION = 0.05
"""Slow-down by the sampler above which its shares carry a warning."""
HOST_LINES = ("dispatch", "python", "allocator", "runtime", "threading", "system", "launch")
"""Host work that can keep a device waiting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bill:
    """A latency taken apart; every field in ns or a share, None where it is not known.

    ``shares`` holds each bucket's share of wall time with its interval (CPU sampling only).
    """

    method: str
    lines: Mapping[str, float]
    kernel: Estimate
    tax: Estimate
    share: Estimate
    span: Estimate | None = None
    detail: Mapping[str, float] | None = None
    symbols: tuple[tuple[str, str, str, float], ...] = ()
    shares: Mapping[str, Estimate] = field(default_factory=dict)
    inflation: float | None = None
    launches: int | None = None
    kernel_names: Mapping[str, int] = field(default_factory=dict)
    sm_activity: Estimate | None = None
    warp_occupancy: Estimate | None = None
    notes: tuple[Note, ...] = ()


def from_samples(
    latency: Estimate, attributions: Sequence[Attribution], mean_ns: float | None = None
) -> Bill | None:
    """Return the bill of a CPU point from program-counter samples, or None without samples.

    Line = (1 − blocked share) × share of samples × unprofiled latency. The line ``wait`` is time
    off the CPU less the time in which others had it, which belongs to no line; a bucket the bill
    does not know goes to ``remainder``.

    Args:
        latency: unprofiled, ns.
        attributions: of this point; those without samples are passed over.
        mean_ns: mean call without a profiler, for the cost of sampling; a median would not do,
            a short call holds either a whole tick or none.
    """
    used = [a for a in attributions if any(sum(s.values()) for s in a.samples)]
    if not used:
        return None
    sampler = used[0].method
    used = [a for a in used if a.method == sampler]  # one sampler a bill: they see different things
    method = f"{SAMPLING} ({sampler})"
    # Time in which others had the processor is no cost of the call: it is in no share.
    queued_ns = sum(a.queued_ns or 0 for a in used)
    own_ns = sum(a.wall_ns for a in used) - queued_ns
    timed = all(a.off_cpu_ns is not None for a in used) and own_ns > 0
    wait = (sum(a.off_cpu_ns or 0 for a in used) - queued_ns) / own_ns if timed else 0.0
    stretches = [_known(s) for a in used for s in a.samples if sum(s.values())]
    totals = [sum(s.values()) for s in stretches]
    shares = {
        name: scaled(share_interval([s.get(name, 0) for s in stretches], totals, method), 1 - wait)
        for name in BILL
        if any(name in s for s in stretches)
    }
    if "kernel" not in shares:
        shares["kernel"] = Estimate(value=0.0, low=0.0, high=0.0, method=method, n=len(stretches))
    lines = {name: share.value * latency.value for name, share in shares.items()}
    lines.setdefault("remainder", 0.0)
    if timed:
        lines["wait"] = lines.get("wait", 0.0) + wait * latency.value
    tax_share = one_minus(shares["kernel"])
    sampled = own_ns / sum(a.calls for a in used)
    inflation = sampled / (latency.value if mean_ns is None else mean_ns) - 1
    return Bill(
        method=method,
        lines={name: lines[name] for name in BILL if name in lines},
        kernel=product(latency, shares["kernel"], method),
        tax=product(latency, tax_share, method),
        share=tax_share,
        detail=_detail(used, sum(totals), (1 - wait) * latency.value),
        symbols=_symbols(used, sum(totals), (1 - wait) * latency.value),
        shares=shares,
        inflation=inflation,
        notes=tuple(_sampling_notes(used, sum(totals), timed, inflation)),
    )


def _known(stretch: Mapping[str, int]) -> dict[str, int]:
    """Return the stretch with foreign buckets moved to ``remainder``."""
    known = {name: count for name, count in stretch.items() if name in BILL}
    foreign = sum(count for name, count in stretch.items() if name not in BILL)
    if foreign:
        known["remainder"] = known.get("remainder", 0) + foreign
    return known


def _detail(used: Sequence[Attribution], samples: int, on_cpu_ns: float) -> dict[str, float] | None:
    names = list(dict.fromkeys(name for a in used for name in a.detail))
    counts = {name: sum(a.detail.get(name, 0) for a in used) for name in names}
    return {name: count / samples * on_cpu_ns for name, count in counts.items()} or None


def _symbols(
    used: Sequence[Attribution], samples: int, on_cpu_ns: float
) -> tuple[tuple[str, str, str, float], ...]:
    """Return (line, library, symbol, ns in a call) of the leaders, most time first."""
    counts: Counter[tuple[str, str, str]] = Counter()
    for line, library, symbol, count in (leader for a in used for leader in a.top):
        counts[line if line in BILL else "remainder", library, symbol] += count
    return tuple(
        (line, library, symbol, count / samples * on_cpu_ns)
        for (line, library, symbol), count in counts.most_common()
    )


def _sampling_notes(
    used: Sequence[Attribution], samples: int, timed: bool, inflation: float
) -> list[Note]:
    notes = []
    lost = sum(a.lost for a in used)
    if lost:
        notes.append(Note("samples-lost", f"{lost} of {lost + samples} samples were lost"))
    if not timed:
        text = "time off the CPU was not recorded; the breakdown covers time on the CPU only"
        notes.append(Note("no-off-cpu", text))
    if inflation > MAX_INFLATION:
        text = f"a call took {inflation:.0%} longer while it was sampled; shares may be off"
        notes.append(Note("sampler-inflation", text))
    return notes


def from_twin(latency: Estimate, twin: Estimate, share: Estimate) -> Bill:
    """Return the bill of a point whose symbols are stripped, from its width-shrunk twin.

    Args:
        latency: of the point, ns.
        twin: latency of the twin in the same runtime, ns: the warm overhead.
        share: twin over latency, without the host's drift, which both of them share.
    """
    text = (
        "samples cannot separate kernels from the executor here: the tax is the latency of a "
        "width-shrunk twin, the warm overhead, 0.25 to 0.7 of the tax among real kernels"
    )
    return Bill(
        method=TWIN,
        lines={"kernel": latency.value - twin.value, "runtime": twin.value, "remainder": 0.0},
        kernel=difference(latency, twin, TWIN),
        tax=replace(twin, method=TWIN),
        share=share,
        notes=(Note("twin-tax", text),),
    )


def from_device(latency: Estimate, attributions: Sequence[Attribution]) -> Bill | None:
    """Return the bill of a GPU point, or None without a device profile of at least six calls.

    Host starvation is L − D, or L − K where no span D was measured (it then includes the device
    gaps); device gaps are D − K. Host samples, where there are any, split the starvation by their
    shares; what they do not place, and all of it without them, is ``remainder``. A sample inside
    a math library or a vectorised loop of the host is ``dispatch`` here: what computes is the
    device. Waiting for it between two launches, which a sample cannot tell from launching, is
    left out of ``launch`` by the profile's own times.

    Args:
        latency: unprofiled, one synchronise per call, ns.
        attributions: device profiles, and host samples under other methods.
    """
    device = [a for a in attributions if a.kernel_ns]
    kernel = median_interval([k for a in device for k in a.kernel_ns], DEVICE)
    if kernel is None:
        return None
    spans = [s for a in attributions for s in a.span_ns]
    span = median_interval(spans, "backlog")
    busy = span or kernel
    starvation = latency.value - busy.value
    lines = {"kernel": kernel.value}
    if span is not None:
        lines["device_gap"] = span.value - kernel.value
    sampled = [a for a in attributions if not a.kernel_ns and a.samples]
    host = [_known(s) for a in sampled for s in a.samples]
    counts: dict[str, float] = {name: sum(s.get(name, 0) for s in host) for name in HOST_LINES}
    counts["dispatch"] += sum(s.get("kernel", 0) for s in host)
    waited = _waited(device, sampled) * sum(sum(s.values()) for s in host)
    counts["launch"] -= waited
    total = sum(sum(s.values()) - s.get("wait", 0) for s in host) - waited
    notes = _device_notes(device, span, kernel)
    if total > 0:
        lines |= {n: starvation * count / total for n, count in counts.items() if count}
    else:
        notes.append(Note("starvation-not-split", "no host samples: host starvation is one line"))
    lines["remainder"] = latency.value - sum(lines.values())
    tax = difference(latency, kernel, DEVICE)
    launches = [count for a in device for count in a.launches]
    return Bill(
        method=DEVICE,
        lines={name: lines[name] for name in BILL if name in lines},
        kernel=kernel,
        tax=tax,
        share=one_minus(quotient(kernel, latency, DEVICE)),
        span=span,
        launches=round(median(launches)) if launches else None,
        kernel_names=device[-1].kernel_names,
        sm_activity=_filled([ns for a in device for ns in a.sm_active_ns], latency),
        warp_occupancy=_filled([ns for a in device for ns in a.warp_ns], latency),
        notes=tuple(notes),
    )


def _waited(device: Sequence[Attribution], sampled: Sequence[Attribution]) -> float:
    """Return the share of the sampled host time that waits for the device inside the call."""
    waits = [ns for a in device for ns in a.wait_ns]
    calls, wall_ns = sum(a.calls for a in sampled), sum(a.wall_ns for a in sampled)
    return median(waits) * calls / wall_ns if waits and wall_ns else 0.0


def _filled(filled_ns: Sequence[int], latency: Estimate) -> Estimate | None:
    """Return how full the device was over a call: kernel time × fullness over latency."""
    found = median_interval(filled_ns, "launch-data")
    return None if found is None else quotient(found, latency, "launch-data")


def _device_notes(
    device: Sequence[Attribution], span: Estimate | None, kernel: Estimate
) -> list[Note]:
    empty = [a.empty_span_ns for a in device if a.empty_span_ns is not None]
    if span is None or not empty or span.value - kernel.value >= median(empty):
        return []
    text = f"device gaps are below {median(empty) / 1e3:.1f} µs, the span of a call without work"
    return [Note("gaps-below-floor", text)]
