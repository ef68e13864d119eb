"""Measured points with round numbers, on a CPU and on a device."""

from __future__ import annotations

from frameworktax.records import Estimate, Measurement, Workload


def estimate(value, half=0.0, n=5):
    return Estimate(value=value, low=value - half, high=value + half, n=n)


def point(runtime="eager", batch=1, latency=1000.0, tax=400.0, *, platform="cpu", **more):
    shape = {k: more.pop(k) for k in ("width", "depth", "model", "length") if k in more}
    made = {
        "workload": Workload(model=shape.pop("model", "m"), batch=batch, **shape),
        "runtime": runtime,
        "paradigm": "eager",
        "platform": platform,
        "threads": 1,
        "status": "ok",
        "latency_ns": estimate(latency, 10),
        "kernel_ns": estimate(latency - tax, 10),
        "tax_ns": estimate(tax, 10),
        "tax_share": estimate(tax / latency, 0.01),
        "bill_method": "program-counter-sampling (perf-event)",
        "kernel_detail_ns": {"gemm": 300.0, "packing": 150.0, "vectorised": 150.0},
    }
    return Measurement(**made | more)


def device_point(batch=1, **more):
    made = {
        "platform": "cuda:0",
        "latency": 100_000.0,
        "tax": 60_000.0,
        "enqueue_ns": estimate(90_000.0, 500),
        "span_ns": estimate(44_000.0, 100),
        "bill_method": "device-profile",
        "launches": 41,
        "kernel_detail_ns": None,
    }
    return point(batch=batch, **made | more)
