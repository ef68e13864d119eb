"""Measuring processes that run nothing: every answer takes a scripted time on a fake clock."""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from frameworktax.errors import WorkerError
from frameworktax.measure import protocol
from frameworktax.measure.known import KnownModels
from frameworktax.measure.process import Gate
from frameworktax.measure.protocol import (
    Bound,
    Described,
    Facts,
    Loaded,
)
from frameworktax.measure.recorder import Bench, EffortClock, Recorder
from frameworktax.measure.reporter import Reporter
from frameworktax.measure.template import Templates
from frameworktax.records import Block
from frameworktax.testing import FakeClock


class FakeHost:
    """Starts fake processes; keeps what was asked of them, in order, as (runtime, step, batch).

    Attributes:
        call_ns: (runtime, batch size) → time of a call.
        noise: relative standard deviation of block medians.
        setup_ns: runtime → what loading or exporting it takes.
        facts: batch size → what the model's description says of it.
        before: called with (worker, request) before each answer; may raise, wait, or move the
            clock.
    """

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.asked: list[tuple[str, str, int | None, int]] = []
        self.workers: list[FakeWorker] = []
        self.call_ns: Callable[[str, int], int] = lambda runtime, batch: 1_000_000 * batch
        self.noise = 0.0
        self.setup_ns: dict[str, int] = {}
        self.has_twin = False
        self.facts: dict[int, Facts] = {}
        self.resident_bytes = 1_000
        self.before: Callable[[FakeWorker, Any], None] = lambda worker, request: None
        self.random = random.Random(5)

    def process(self, label: str, *_: Any, **__: Any) -> FakeWorker:
        """Start a process where a session makes a ``Worker``."""
        worker = FakeWorker(self, label)
        self.workers.append(worker)
        return worker

    def steps(self, step: str) -> list[tuple[str, int | None, int]]:
        """Return (runtime, batch, process) of what was asked, in order."""
        return [(name, batch, n) for name, what, batch, n in self.asked if what == step]


class AtOnce:
    """A pool whose work is done when ``submit`` returns."""

    def __init__(self, threads: int) -> None:
        pass

    def submit(self, work: Callable[..., Any], *arguments: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(work(*arguments))
        except Exception as error:  # noqa: BLE001 - a future keeps whatever was raised
            done.set_exception(error)
        return done

    def shutdown(self, **options: Any) -> None:
        pass


class FakeWorker:
    def __init__(self, host: FakeHost, label: str) -> None:
        self.host, self.label = host, label
        self.runtime, _, number = label.partition(", process ")
        self.process = int(number or 0)
        self.alive = True
        self.printed_bytes = 0
        self.notes: list[Any] = []
        self.started = "started"
        self.signals: list[Any] = []

    def request(self, method: Any, timeout_s: float, *_: Any, **given: Any) -> Any:
        request = SimpleNamespace(step=method.__name__, **given)
        host, name = self.host, self.runtime
        if not self.alive:
            raise WorkerError("crashed", "ended")
        batch = getattr(request, "batch", None)
        runtime = getattr(request, "runtime", name)
        host.asked.append((runtime, request.step, batch, self.process))
        host.before(self, request)
        call_ns = host.call_ns(name, batch) if batch is not None else 0
        match request.step:
            case "describe":
                return Described(facts=host.facts, has_twin=host.has_twin)
            case "prepare":
                host.clock.wait(host.setup_ns.get(request.runtime, 0))
                return 1
            case "load":
                Path(request.folder).mkdir(parents=True, exist_ok=True)
                host.clock.wait(host.setup_ns.get(request.runtime, 0))
                return Loaded(load_ns=1)
            case "bind":
                host.clock.work(11 * call_ns)
                return Bound(
                    calls=11, call_ns=call_ns, settled=True, first_ns=1, peak_memory_bytes=1
                )
            case "output":
                np.savez(Path(request.path), np.ones(3))
                return None
            case "block":
                value = max(1, round(call_ns * (1 + host.random.gauss(0, host.noise))))
                host.clock.work(15_000_000 + request.calls * value)
                return timed(value, request.calls)
            case "calibrate":
                host.clock.work(request.duration_ns)
                return timed(400_000, 75)
            case "sample" | "device":
                duration_ns = getattr(request, "duration_ns", 2_000_000_000)
                host.clock.work(duration_ns)
                return protocol.attribution(
                    {
                        "method": "perf-event",
                        "calls": 1,
                        "wall_ns": duration_ns,
                        "latency_ns": 10,
                        "samples": ({"kernel": 1},),
                        "notes": [],
                    }
                )
            case "memory":
                return host.resident_bytes
        return None

    def signal(self, which: Any) -> None:
        self.signals.append(which)

    def kill(self) -> None:
        self.alive = False


def timed(value: int, calls: int) -> Block:
    return Block(
        session="",
        point="",
        process=0,
        round=0,
        latency_ns=(value,) * calls,
        pipelined_ns=value * calls,
        pipelined_calls=calls,
        cpu_ns=value * calls,
    )


def made_bench(plan: Any, series: Any, writer: Any, scratch: Path, sampler: str | None) -> Bench:
    """Return what the parts of a session share, on a fake clock."""
    clock = FakeClock()
    return Bench(
        plan=plan,
        series=series,
        recorder=Recorder(writer),
        reporter=Reporter(),
        gate=Gate(Templates()),
        known=KnownModels(plan.folder),
        effort=EffortClock(clock),
        clock=clock,
        scratch=scratch,
        sampler=sampler,
    )
