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


def check_method() -> int:
    """Print a row per check."""
    import torch

    from frameworktax.attribution.torch_device import TorchDevice

    gpu = TorchDevice("cuda:0")
    failed = 0
    with torch.inference_mode():
        for check in (
            check_spin,
            check_matmul,
            check_graph_span,
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


def ratio(check: str, got: float, expected: float, within: float | None) -> Row:
    """A row that compares two times in ns; without ``within`` it only tells."""
    share = got / expected
    ok = within is None or abs(share - 1) <= within
    result = f"{got / 1e3:.1f} µs against {expected / 1e3:.1f} µs: {share:.3f}"
    return {"check": check, "ok": ok, "result": result, "ratio": share, "within": within}


def kernel_ns(gpu: Any, call: Callable[[], Any], calls: int = 10) -> float:
    from frameworktax.attribution.device_profile import profile_device

    run = profile_device(call, gpu.synchronize, calls, device=gpu)
    if run.notes:
        raise RuntimeError("; ".join(text for _, text in run.notes))
    return median(run.kernel_ns)


def span_ns(gpu: Any, call: Callable[[], Any]) -> float:
    from frameworktax.attribution.backlog import measure_span

    found = measure_span(call, gpu, host_ns=round(enqueue_ns(gpu, call)))
    if found.median_ns is None:
        raise RuntimeError(found.reason)
    return found.median_ns


def times(gpu: Any, call: Callable[[], Any], calls: int = 30) -> tuple[float, float, float]:
    """Return median latency and enqueue, and pipelined time a call, ns."""
    from frameworktax.measure.timing import time_block

    block = time_block(call, gpu.synchronize, calls=calls, on_device=True)
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


def check_spin(gpu: Any) -> list[Row]:
    from frameworktax.attribution.backlog import calibrate

    wanted = 2_000_000
    cycles = round(wanted * calibrate(gpu))
    return [
        ratio(
            "spin kernel of 2 ms by profile", kernel_ns(gpu, lambda: gpu.spin(cycles)), wanted, 0.05
        )
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
    import torch

    call = small_mlp()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    eager, replayed = (
        {"D": span_ns(gpu, c), "K": kernel_ns(gpu, c), "latency": times(gpu, c)[0]}
        for c in (call, graph.replay)
    )
    return [
        ratio(f"40 layers: eager {what} against graph replay", eager[what], replayed[what], within)
        for what, within in (("D", None), ("K", 0.1), ("latency", None))
    ]


def check_injected_host_time(gpu: Any) -> list[Row]:
    call, added = small_mlp(), 2_000_000

    def slower() -> None:
        until = time.perf_counter_ns() + added
        while time.perf_counter_ns() < until:
            pass
        call()

    grew = times(gpu, slower)[0] - times(gpu, call)[0]
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
        ok = kernel <= span <= latency
        rows.append({"check": f"K <= D <= L of {name}, µs", "ok": ok, "result": parts, **whole})
    return rows


def check_timing(gpu: Any) -> list[Row]:
    rows = []
    for name, call in (("40 small layers", small_mlp()), ("matmul chain", big_chain())):
        latency, _, pipelined = times(gpu, call)
        rows.append(ratio(f"{name}: pipelined against latency", pipelined, latency, None))
    return rows


def check_sessions(gpu: Any) -> list[Row]:
    """Records lost over ten sessions with idling between, and what a profiler leaves behind."""
    from frameworktax.attribution.device_profile import profile_device

    call = small_mlp()
    before = times(gpu, call)[0]
    runs = []
    for _ in range(10):
        time.sleep(0.5)
        runs.append(profile_device(call, gpu.synchronize, 10, device=gpu))
    lost = sum(run.lost for run in runs)
    counts = sorted({count for run in runs for count in run.kernels})
    profiled = median(ns for run in runs for ns in run.wall_ns)
    text = f"{lost} records lost, kernels a call {counts}"
    return [
        {"check": "ten profiles", "ok": not lost and len(counts) == 1, "result": text},
        ratio("latency under the profiler against without", profiled, before, None),
        ratio("latency after the profiles against before", times(gpu, call)[0], before, None),
    ]  # fmt: skip


if __name__ == "__main__":
    sys.exit(check_method())
