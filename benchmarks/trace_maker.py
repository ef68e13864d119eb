"""Traces as Kineto writes them, of any size, seeded, with what is in them known beforehand.

    python benchmarks/trace_maker.py FILE [--events N] [--seed N]

A step is a ProfilerStep mark, a copy on a stream of its own, and calls of layers: Python frames
around operators around a launch, a kernel that starts once it has arrived and its stream is free,
and the two ends of the arrow between them. Every number is an integer of nanoseconds until it is
written.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

HEAD = """{
  "schemaVersion": 1,
  "deviceProperties": [
    {
      "id": 0, "name": "NVIDIA H100 80GB HBM3", "totalGlobalMem": 84929347584,
      "computeMajor": 9, "computeMinor": 0, "numSms": 132
    }
  ],
  "displayTimeUnit": "ms",
  "baseTimeNanoseconds": 1751410836000000000,
  "traceEvents": [
"""
TAIL = '\n  ],\n  "traceName": "made.json"\n}\n'
LAYERS = ("linear", "layer_norm", "gelu", "softmax", "dropout", "add", "matmul", "embedding")
CALLS = 214
"""Calls of layers in a step."""
LATENCY_NS, PID, STREAM, COPY_STREAM = 3_500, 4711, 7, 20


@dataclass
class Truth:
    """What a reader must find."""

    events: int = 0
    steps: int = 0
    launches: int = 0
    kernels: int = 0
    copies: int = 0
    kernel_ns: int = 0
    wall_ns: int = 0
    bytes: int = 0


def us(ns: int) -> str:
    return f"{ns // 1000}.{ns % 1000:03d}"


def event(cat: str, name: str, start: int, end: int, args: str, tid: int = PID) -> str:
    pid = 0 if cat in ("kernel", "gpu_memcpy") else PID
    return (
        f'  {{\n    "ph": "X", "cat": "{cat}", "name": "{name}", "pid": {pid}, "tid": {tid},\n'
        f'    "ts": {us(start)}, "dur": {us(end - start)},\n'
        f'    "args": {{\n      {args}\n    }}\n  }}'
    )


def arrow(ph: str, number: int, at: int, tid: int) -> str:
    bind, pid = (', "bp": "e"', 0) if ph == "f" else ("", PID)
    return (
        f'  {{\n    "ph": "{ph}", "id": {number}, "pid": {pid}, "tid": {tid}, "ts": {us(at)},\n'
        f'    "cat": "ac2g", "name": "ac2g"{bind}\n  }}'
    )


def on_device(number: int, stream: int, kernel: bool) -> str:
    where = f'"External id": {number}, "device": 0, "context": 1, "stream": {stream}'
    rest = (
        '"grid": [48, 12, 1], "block": [128, 1, 1], "est. achieved occupancy %": 31'
        if kernel
        else '"bytes": 98304, "memory bandwidth (GB/s)": 19.1'
    )
    return f'{where},\n      "correlation": {number}, "registers per thread": 32, {rest}'


def step(number: int, at: int, first: int, draw: random.Random, truth: Truth) -> Iterator[str]:
    """Yield the events of a step; its last is the mark, which holds its wall."""
    now, free, copies_end = at + 20_000, 0, 0
    busy: list[tuple[int, int]] = []
    copy_at = now + draw.randrange(200_000)
    busy.append((copy_at, copy_at + draw.randrange(20_000, 90_000)))
    yield event("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", *busy[0],
                on_device(first, COPY_STREAM, False), COPY_STREAM)  # fmt: skip
    yield event("cuda_runtime", "cudaMemcpyAsync", now, now + 4_000,
                f'"External id": {first}, "cbid": 41, "correlation": {first}')  # fmt: skip
    now += 5_000
    for call in range(CALLS):
        layer, this = draw.choice(LAYERS), first + 1 + call
        begin = now
        frame, inner = begin + draw.randrange(1_000, 4_000), draw.randrange(1_000, 3_000)
        operator = frame + inner
        launch = operator + draw.randrange(2_000, 6_000)
        launched = launch + draw.randrange(2_000, 6_000)
        left = launched + draw.randrange(500, 2_000)
        end = left + draw.randrange(1_000, 3_000)
        start = max(launch + LATENCY_NS, free)
        free = start + draw.randrange(2_000, 24_000)
        busy.append((start, free))
        where = f'"Python parent id": {this}, "Python id": {this + 1}, "Ev Idx": {this}'
        ids = f'"External id": {this}, "Record function id": 0'
        shape = '"Input Dims": [[1, 128, 768], [768, 768], [768]], "Ev Idx": '
        yield event("python_function", f"nn.Module: {layer.title()}_{call % 24}", begin, end,
                    where + ', "Python module id": 3')  # fmt: skip
        yield event("python_function", f"torch/nn/modules/{layer}.py(124): forward",
                    begin + 400, end - 200, where)  # fmt: skip
        yield event("python_function", f"<built-in function {layer}>", frame, left + 300, where)
        yield event("cpu_op", f"aten::{layer}", operator - 700, left, f"{ids}, {shape}{this}")
        yield event("cpu_op", "aten::empty_strided", operator - 500, operator, f"{ids}, {shape}1")
        yield event("cpu_op", f"aten::{layer}_out", operator, launched + 200, f"{ids}, {shape}2")
        yield event("cuda_runtime", "cudaLaunchKernel", launch, launched,
                    f'"External id": {this}, "cbid": 211, "correlation": {this}')  # fmt: skip
        yield event("kernel", f"void at::native::vectorized_elementwise_kernel<4, at::native::"
                    f"{layer}_functor<float>, std::array<char*, 3ul> >(int, float)", start, free,
                    on_device(this, STREAM, True), STREAM)  # fmt: skip
        yield arrow("s", this, launch, PID)
        yield arrow("f", this, start, STREAM)
        now = end + draw.randrange(500, 4_000)
    done = max(now, free) + 8_000
    last = f'"External id": {first}, "cbid": 165, "correlation": {first + CALLS + 1}'
    yield event("cuda_runtime", "cudaDeviceSynchronize", now, done, last)
    yield event("user_annotation", f"ProfilerStep#{number}", at, done + 5_000,
                f'"External id": {first}, "Ev Idx": {first}')  # fmt: skip
    truth.steps += 1
    truth.launches += CALLS
    truth.kernels += CALLS
    truth.copies += 1
    truth.wall_ns += done + 5_000 - at
    for start, end in sorted(busy):
        truth.kernel_ns += max(0, end - max(start, copies_end))
        copies_end = max(copies_end, end)


def make(path: Path, events: int, seed: int = 1) -> Truth:
    """Write a trace of at least so many events; gzipped where the name ends in ``.gz``."""
    draw, truth, at = random.Random(seed), Truth(), 1_419_247_332_972_313
    with gzip.open(path, "wt") if path.suffix == ".gz" else path.open("w") as file:
        truth.bytes += file.write(HEAD)
        before = ""
        while truth.events < events:
            written = list(step(truth.steps, at, 1 + truth.steps * (CALLS + 2), draw, truth))
            truth.events += len(written)
            truth.bytes += file.write(before + ",\n".join(written))
            before = ",\n"
            at += truth.wall_ns // truth.steps + 400_000 + draw.randrange(1_000_000)
        truth.bytes += file.write(TAIL)
    return truth


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--events", type=int, default=216_000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    print(json.dumps(asdict(make(given.file, given.events, given.seed))))
