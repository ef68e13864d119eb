"""Small traces with known answers; times in ns."""

from __future__ import annotations

import json
import tempfile
from decimal import Decimal
from pathlib import Path

from frameworktax.explaining import explain
from frameworktax.traces import intervals, kineto

HOST, DEVICE_STREAM = 100, 7


def busy_ns(trace):
    """Return, per device, the time at least one kernel, copy or memset ran."""
    work = trace.device()
    own = {d: work.where(work.device == d) for d in sorted(set(work.device.tolist()))}
    return {d: intervals.union_ns(w.start_ns, w.end_ns) for d, w in own.items()}


def parse(text):
    """Return the trace of a text, read as the measuring process's own profile."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        path.write_text(text)
        return kineto.read(path, own=True)


def explained(tmp_path, *events, **options):
    """Return the document of a trace file of these events."""
    path = tmp_path / "t.json"
    path.write_text(trace(*events))
    return explain(path, **options).run


def us(ns):
    return Decimal(ns) / 1000


def event(cat, name, start, end, *, tid=HOST, pid=1, **args):
    """Return an event as text, its times exact in microseconds with three decimals."""
    fields = {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid}
    head = json.dumps(fields)[:-1]
    return f'{head}, "ts": {us(start):f}, "dur": {us(end - start):f}, "args": {json.dumps(args)}}}'


def trace(*events, head='"schemaVersion": 1, ', tail=', "traceName": "x"'):
    return "{" + head + '"traceEvents": [\n' + ",\n".join(events) + "\n]" + tail + "}"


def kernel(start, end, correlation, *, device=0, stream=DEVICE_STREAM, name="k", cat="kernel"):
    return event(
        cat, name, start, end, pid=device, tid=stream,
        device=device, stream=stream, correlation=correlation,
    )  # fmt: skip


def launch(start, end, correlation, name="cudaLaunchKernel", tid=HOST, cat="cuda_runtime"):
    return event(cat, name, start, end, tid=tid, correlation=correlation)


def one_step(shift=0):
    """Return a step of 10,000 ns whose bill is known: see ``ONE_STEP``."""
    return [
        event("user_annotation", "ProfilerStep#3", 10_000, 20_000),
        event("python_function", "model.py(7): forward", 10_000, 17_000),
        event("python_function", "nn.Module: Linear_0", 10_500, 16_000),
        event("cpu_op", "aten::linear", 11_000, 13_000),
        event("cpu_op", "aten::addmm", 11_200, 12_900),
        launch(11_500, 12_500, 1),
        kernel(12_600 + shift, 14_000 + shift, 1),
        event("cpu_op", "aten::relu", 14_500, 15_500),
        launch(15_000, 15_400, 2),
        kernel(16_000 + shift, 17_500 + shift, 2),
        launch(15_600, 15_800, 3, "cudaMemcpyAsync"),
        kernel(17_000 + shift, 18_000 + shift, 3, stream=8, cat="gpu_memcpy", name="Memcpy DtoH"),
        launch(17_000, 19_000, 4, "cudaDeviceSynchronize"),
    ]


ONE_STEP = {
    # 12,600 to 14,000 and 16,000 to 17,500
    "kernel": 2_900,
    # 17,500 to 18,000
    "copies": 500,
    # addmm and linear around the launch, relu before its launch: 500 + 0 and 500
    "framework": 1_000,
    # frames before linear and relu: 1,000, and 14,000 to 14,500
    "python": 1_500,
    # 11,500 to 12,500 and 15,000 to 15,400
    "launch": 1_400,
    # the first launch had returned at 12,500, the second at 15,400
    "device_gap": 700,
    # 18,000 to 19,000
    "wait": 1_000,
    # after the synchronise
    "remainder": 1_000,
}
