"""Checks of the method on a GPU: device times found in one way against the same in another.

    PYTHONPATH=src python benchmarks/gpu_method.py

Prints a JSON object a line: the check, whether it is within its bound, and the numbers. Exit code
3 where a check failed. ``gpu_suite.py`` runs it as one of its parts.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

Row = dict[str, Any]
BLOCKS = 15
"""Blocks of 30 calls where host time is compared: a shared host changes its speed between them."""


def check_method() -> int:
    """Print a row per check."""
    import torch

    from frameworktax.attribution.torch_device import TorchDevice

    gpu = TorchDevice("cuda:0")
    failed = 0
    with torch.inference_mode():
        for check in (
            check_hooks,  # before anything else is profiled
            check_launch_names,
            check_spin,
            check_matmul,
            check_graph_span,
            check_cold_cache,
            check_injected_host_time,
            check_bill,
            check_timing,
            check_sessions,
        ):
            try:
                rows = check(gpu)
            except Exception as error:  # noqa: BLE001 - a part that fails is a row, not the end
                text = " ".join(f"{type(error).__name__}: {error}".split())[:200]
                rows = [{"check": check.__name__, "ok": False, "result": text}]
            for row in rows:
                failed += not row["ok"]
                print(json.dumps(row), flush=True)
    return 0 if not failed else 3


def ratio(
    check: str, got: float, expected: float, within: float | None, within_ns: float = 0
) -> Row:
    """A row that compares two times in ns; without ``within`` it only tells."""
    share = got / expected
    ok = within is None or abs(share - 1) <= within or abs(got - expected) <= within_ns
    result = f"{got / 1e3:.1f} µs against {expected / 1e3:.1f} µs: {share:.3f}"
    return {"check": check, "ok": ok, "result": result, "ratio": share, "within": within}


def profiled(gpu: Any, call: Callable[[], Any], calls: int = 10) -> Any:
    from frameworktax.attribution.device_profile import Warm, profile_device

    run = profile_device(Warm(call, gpu.synchronize, gpu), calls)
    wrong = [text for _, text in run.notes]
    if wrong:
        raise RuntimeError("; ".join(wrong))
    return run


def kernel_ns(gpu: Any, call: Callable[[], Any], calls: int = 10) -> float:
    return median(profiled(gpu, call, calls).kernel_ns)


def span_ns(gpu: Any, call: Callable[[], Any]) -> float:
    from frameworktax.attribution.device import measure_span
    from frameworktax.attribution.device_profile import Warm

    warm = Warm(call, gpu.synchronize, gpu)
    found = measure_span(warm, host_ns=round(enqueue_ns(gpu, call)))
    if found.median_ns is None:
        raise RuntimeError(found.reason)
    return found.median_ns


def times(gpu: Any, call: Callable[[], Any], calls: int = 30) -> tuple[float, float, float]:
    """Return median latency and enqueue, and pipelined time a call, ns."""
    from frameworktax.measure.timing import device_block

    block = device_block(call, gpu.synchronize, calls=calls)
    pipelined = block.pipelined_ns / block.pipelined_calls
    return median(block.latency_ns), median(block.enqueue_ns or [0]), pipelined


def enqueue_ns(gpu: Any, call: Callable[[], Any]) -> float:
    return times(gpu, call, 10)[1]


def small_mlp() -> Callable[[], Any]:
    """Forty layers of little work: launch-bound on any card."""
    import torch

    layers = [torch.nn.Linear(256, 256) for _ in range(40)]
    module = torch.nn.Sequential(*layers).eval().to("cuda:0")
    x = torch.randn(8, 256, device="cuda:0")
    for _ in range(20):
        module(x)
    return lambda: module(x)


def big_chain() -> Callable[[], Any]:
    import torch

    a = torch.randn(4096, 4096, device="cuda:0")
    out = torch.empty_like(a)

    def call() -> None:
        for _ in range(10):
            torch.mm(a, a, out=out)

    call()
    return call


def replayed(call: Callable[[], Any]) -> Callable[[], Any]:
    """Return the replay of a graph of a call."""
    from frameworktax.runtimes.cuda_graph import recorded

    return recorded(call)[0]


def undisturbed(gpu: Any, call: Callable[[], Any]) -> float:
    """Return the latency of the least disturbed of blocks that lie apart: a host may be shared."""
    found = []
    for _ in range(BLOCKS):
        found.append(times(gpu, call)[0])
        time.sleep(0.1)
    return min(found)


def check_hooks(gpu: Any) -> list[Row]:
    """What the first profile of a process leaves behind: spans are measured after profiles."""
    eager = small_mlp()
    ways = {"eager": eager, "graph replay": replayed(eager)}
    before = {name: (undisturbed(gpu, c), span_ns(gpu, c)) for name, c in ways.items()}
    rows, took_s = [], []
    for _ in range(2):
        begin = time.perf_counter_ns()
        profiled(gpu, eager)
        took_s.append((time.perf_counter_ns() - begin) / 1e9)
    text = f"{took_s[0]:.2f} s and {took_s[1]:.2f} s"
    rows.append({"check": "first and second profile of a process take", "ok": True, "result": text})
    for name, call in ways.items():
        latency, span = undisturbed(gpu, call), span_ns(gpu, call)
        what = f"40 layers, {name}, after a profile against before"
        rows.append(ratio(f"{what}: latency", latency, before[name][0], None))
        rows.append(ratio(f"{what}: D", span, before[name][1], 0.05))
    return rows


def check_launch_names(gpu: Any) -> list[Row]:
    """Say what this profiler calls a launch, and whether each of nine markers is found by it."""
    import numpy as np

    from frameworktax.attribution.torch_device import MARKER
    from frameworktax.traces.events import HOST_CALLS

    trace = gpu.profile(lambda: [gpu.marker() for _ in range(9)] and gpu.synchronize())
    records = trace.device(gpu.index)
    records = records.where(records.containing(MARKER))
    host = trace.events.of(*HOST_CALLS)
    calls = host.where(np.isin(host.correlation, records.correlation))
    names = sorted({calls.name_of(i) for i in range(len(calls))})
    found = len(set(calls.correlation.tolist()))
    text = f"{len(records)} of 9 records, {found} launches, named {', '.join(names) or 'nothing'}"
    return [{"check": "names of launch calls", "ok": 0 < len(records) == found, "result": text}]


def check_spin(gpu: Any) -> list[Row]:
    from frameworktax.attribution.device import calibrate

    rows = []
    for wanted in (100_000, 2_000_000):
        cycles = round(wanted * calibrate(gpu))
        got = kernel_ns(gpu, lambda cycles=cycles: gpu.spin(cycles))
        name = f"spin kernel of {wanted / 1e6:g} ms by profile"
        rows.append(ratio(name, got, wanted, 0.01, within_ns=2_000))
    return rows


def check_cold_cache(gpu: Any) -> list[Row]:
    """What a kernel takes longer when 256 MB were written before it: L2 is warm elsewhere."""
    import torch

    call = small_mlp()
    flush = torch.empty(256 << 20, dtype=torch.uint8, device="cuda:0")

    def cold() -> None:
        flush.zero_()
        call()

    both, flushing = kernel_ns(gpu, cold), kernel_ns(gpu, flush.zero_)
    return [
        ratio("40 layers: K with cold L2 against warm", both - flushing, kernel_ns(gpu, call), None)
    ]


def check_matmul(gpu: Any) -> list[Row]:
    call = big_chain()
    return [
        ratio(
            "matmul chain: K against its span by events",
            kernel_ns(gpu, call),
            span_ns(gpu, call),
            0.05,
        )
    ]


def check_graph_span(gpu: Any) -> list[Row]:
    call = small_mlp()
    ways = call, replayed(call)
    runs = [profiled(gpu, c) for c in ways]
    eager, graph = (
        {"D": span_ns(gpu, c), "K": median(run.kernel_ns), "latency": times(gpu, c)[0]}
        for c, run in zip(ways, runs, strict=True)
    )
    names = runs[0].kernel_names
    same = names == runs[1].kernel_names
    text = f"{len(names)} names, {runs[0].kernels[0]} and {runs[1].kernels[0]} records"
    counts = f"{runs[0].launches[0]} and {runs[1].launches[0]} launches"
    return [
        {
            "check": "40 layers: graph replay has eager's kernels by name",
            "ok": same,
            "result": text,
        },
        {
            "check": "40 layers: launches by the profile, eager and graph",
            "ok": runs[0].launches[0] == runs[0].kernels[0] and runs[1].launches[0] == 1,
            "result": counts,
        },
        *(
            ratio(f"40 layers: eager {what} against graph replay", eager[what], graph[what], w)
            for what, w in (("D", None), ("K", 0.05 if same else None), ("latency", None))
        ),
        # A profiler can make kernels longer and not shorter: above one by that much at least.
        ratio("40 layers: K of the graph against its span", graph["K"], graph["D"], None),
    ]


def check_injected_host_time(gpu: Any) -> list[Row]:
    call, added = small_mlp(), 2_000_000

    def slower() -> None:
        until = time.perf_counter_ns() + added
        while time.perf_counter_ns() < until:
            pass
        call()

    grew = median(times(gpu, slower)[0] - times(gpu, call)[0] for _ in range(BLOCKS))
    rows = [ratio("2 ms of host time: L grows by it", grew, added, 0.1)]
    for what, find, within in (("K", kernel_ns, 0.05), ("D", span_ns, 0.1)):
        slow, plain = find(gpu, slower), find(gpu, call)
        rows.append(ratio(f"2 ms of host time: {what} stays", slow, plain, within))
    return rows


def check_bill(gpu: Any) -> list[Row]:
    rows = []
    for name, call in (("40 small layers", small_mlp()), ("matmul chain", big_chain())):
        latency, enqueue, _ = times(gpu, call)
        kernel, span = kernel_ns(gpu, call), span_ns(gpu, call)
        whole = {
            "L": latency,
            "H": enqueue,
            "D": span,
            "K": kernel,
            "starvation": latency - span,
            "gaps": span - kernel,
        }
        parts = ", ".join(f"{label} {ns / 1e3:.1f}" for label, ns in whole.items())
        ok = kernel <= 1.02 * span and span <= 1.02 * latency  # clocks move by that much
        rows.append(
            {"check": f"K <= D <= L of {name} within 2 %, µs", "ok": ok, "result": parts, **whole}
        )
    return rows


def check_timing(gpu: Any) -> list[Row]:
    rows = []
    for name, call in (("40 small layers", small_mlp()), ("matmul chain", big_chain())):
        latency, _, pipelined = times(gpu, call)
        rows.append(ratio(f"{name}: pipelined against latency", pipelined, latency, None))
    return rows


def check_sessions(gpu: Any) -> list[Row]:
    """Records lost over ten sessions with idling between."""
    from frameworktax.attribution.device_profile import Warm, profile_device

    call = small_mlp()
    runs = []
    for _ in range(10):
        time.sleep(0.5)
        runs.append(profile_device(Warm(call, gpu.synchronize, gpu), 10))
    lost = sum(run.lost for run in runs)
    counts = sorted({count for run in runs for count in run.kernels})
    under = median(ns for run in runs for ns in run.wall_ns)
    text = f"{lost} records lost, kernels a call {counts}"
    return [
        {"check": "ten profiles", "ok": not lost and len(counts) == 1, "result": text},
        ratio("latency under the profiler against without", under, times(gpu, call)[0], None),
    ]


if __name__ == "__main__":
    from frameworktax.runtimes.cuda_graph import missing_gpu

    sys.exit(missing_gpu() or check_method())
