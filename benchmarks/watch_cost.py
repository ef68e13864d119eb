"""What a watch costs: requests under load with and without it, interleaved.

    python benchmarks/watch_cost.py [--requests 10000] [--quick] [--out FILE]

Two threads call a small encoder each, as two workers of a server do, in turns of 25 requests:
with the watch (exported to Prometheus every 5 s, one call in a hundred sampled), and without. A
turn's place within a pair is drawn, so that a host that drifts favours neither. The ratios of p50,
p99 and of the calling thread's processor time have intervals from resampled pairs. ``null`` is the
same without a watch on either side: what this host's noise alone does. Results go to
``benchmarks/results/watch_cost.json``.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from prometheus_client import CollectorRegistry

import frameworktax as ft
from frameworktax.integrations.exporters import OpenTelemetry, Prometheus

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "examples" / "serving"))
from model import Config, Encoder, tokens_of

TURN = 25
THREADS = 2
RESAMPLED = 1000
SEED = 5
p50, p99 = (partial(np.quantile, q=q) for q in (0.5, 0.99))
TEXT = "where does the time go when a small model waits for its framework"


def pairs(requests: int, *, watched: bool, seed: int) -> tuple[np.ndarray, np.ndarray, dict]:
    """Return latencies and processor times with faults of the watch.

    The former as (without or with, pair, request of a turn), the latter as (without or with, pair),
    both in ns.
    """
    config = Config(layers=1)
    tokens = tokens_of([TEXT] * 2, config)
    count = requests // (TURN * THREADS)
    found = np.zeros((2, count * THREADS, TURN), np.int64)
    cpu = np.zeros((2, count * THREADS), np.int64)
    faults: dict[str, int] = {}

    def work(thread: int) -> None:
        plain, other = Encoder(config), Encoder(config)
        watch = None
        if watched:
            watch = ft.watch(other, exporter=Prometheus(CollectorRegistry()))
        draw = random.Random(seed + thread)
        with torch.inference_mode():
            for model in (plain, other) * 20:
                model(tokens)
            for pair in range(count):
                for which in draw.sample((0, 1), 2):
                    model = (plain, other)[which]
                    cpu_begin = time.thread_time_ns()
                    for request in range(TURN):
                        begin = time.perf_counter_ns()
                        model(tokens)
                        latency = time.perf_counter_ns() - begin
                        found[which, thread * count + pair, request] = latency
                    cpu[which, thread * count + pair] = time.thread_time_ns() - cpu_begin
        if watch is not None:
            watch.stop()
            faults.update(watch.faults)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found, cpu, faults


def ratio(
    plain: np.ndarray, other: np.ndarray, statistic: Callable[[np.ndarray], float]
) -> dict[str, float]:
    """Return the ratio of a statistic with its 95 % interval over resampled pairs of turns."""
    draw = np.random.default_rng(SEED)
    ratios = []
    for _ in range(RESAMPLED):
        chosen = draw.integers(0, len(plain), len(plain))
        ratios.append(statistic(other[chosen]) / statistic(plain[chosen]))
    low, high = np.quantile(ratios, (0.025, 0.975))
    value = statistic(other) / statistic(plain)
    return {"value": float(value), "low": float(low), "high": float(high)}


class Nothing:
    """A model that does nothing, so that a call is the watch's."""

    def __call__(self, tokens: torch.Tensor) -> None:
        """Do nothing."""


def per_call(calls: int) -> dict[str, float]:
    """Return µs of CPU time that a call costs its own thread, and the exporting one."""
    tokens = torch.zeros(2, 8)

    def spent(model: Nothing) -> float:
        begin = time.thread_time_ns()
        for _ in range(calls):
            model(tokens)
        return (time.thread_time_ns() - begin) / calls / 1e3

    plain = spent(Nothing())
    found = {}
    model: Nothing = Nothing()
    with ft.watch(model, exporter=Prometheus(CollectorRegistry()), sample=0, interval_s=3600):
        model(tokens)
        found["calling_us"] = spent(model) - plain
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    provider = MeterProvider([InMemoryMetricReader()])
    for name, exporter in (
        ("exporting_prometheus_us", Prometheus(CollectorRegistry())),
        ("exporting_opentelemetry_us", OpenTelemetry(provider)),
    ):
        model = Nothing()
        with ft.watch(model, exporter=exporter, sample=0, interval_s=3600) as watch:
            spent(model)
            begin = time.process_time_ns()  # this thread waits for the watch's
            watch.flush()
            found[name] = (time.process_time_ns() - begin) / calls / 1e3
    provider.shutdown()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--quick", action="store_true", help="500 requests, to see that it runs")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results/watch_cost.json")
    given = parser.parse_args()
    requests = 500 if given.quick else given.requests
    torch.set_num_threads(1)
    found: dict[str, object] = {"requests": requests, "per_call": per_call(20_000)}
    for name, watched in (("null", False), ("watched", True)):
        latencies, cpu, faults = pairs(requests, watched=watched, seed=SEED)
        found[name] = {
            "requests": int(latencies[1].size),
            "p50_ns": float(p50(latencies[0])),
            "p99_ns": float(p99(latencies[0])),
            "cpu_ns": float(cpu[0].mean() / TURN),
            "p50_ratio": ratio(*latencies, p50),
            "p99_ratio": ratio(*latencies, p99),
            "cpu_ratio": ratio(*cpu, np.mean),
            "faults": faults,
        }
        print(name, json.dumps(found[name]))
    print("per call", json.dumps(found["per_call"]))
    given.out.parent.mkdir(exist_ok=True)
    given.out.write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
