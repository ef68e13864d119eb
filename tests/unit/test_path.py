"""The path of one sample: which functions a measured latency passes through, in order."""

import re
import socket
import sys
import threading
from array import array
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from fake_workers import made_bench

import frameworktax
from frameworktax import api, store
from frameworktax.measure import timing, worker
from frameworktax.measure.plan import Plan
from frameworktax.measure.process import Worker
from frameworktax.measure.rounds import Rounds
from frameworktax.measure.series import PointRun, Series
from frameworktax.records import Point, Workload
from frameworktax.testing import FakeClock, FakeLoaded, FakeRuntime

PACKAGE = str(Path(frameworktax.__file__).parent)
SAMPLE_NS = 1_234_567
"""One call's latency, that of no other call and no median."""
LATENCIES_NS = (1_000_000, SAMPLE_NS, 1_000_001, 1_000_002, 1_000_003)
DATA = ("records", "store.columns", "store.shards")
"""Modules whose objects are data: what they hold is looked at."""
BESIDE = ("EffortClock.called", "block_medians")
"""What is shown the sample and hands nothing on."""


def holds(value):
    """Return whether the sample is in what a function takes or returns."""
    if isinstance(value, int | float):
        return value == SAMPLE_NS
    if isinstance(value, bytes | str):
        return str(SAMPLE_NS) in str(value)
    if isinstance(value, np.ndarray | array):
        return SAMPLE_NS in value
    if isinstance(value, Mapping):
        return any(map(holds, value.values()))
    if isinstance(value, list | tuple):
        return any(map(holds, value))
    if type(value).__module__.startswith(tuple(f"frameworktax.{name}" for name in DATA)):
        return any(map(holds, (getattr(value, name) for name in _fields(value))))
    return False


def _fields(value):
    slots = getattr(value, "__slots__", ()) or getattr(value, "__struct_fields__", ())
    return (*getattr(value, "__dict__", ()), *slots)


class Trace:
    """Notes the functions of the package that take the sample, return it or are handed it.

    What is defined inside a function is part of it, and a class stands for its ``__init__``.
    """

    def __init__(self):
        self.path = []
        self._looking = threading.local()

    def __enter__(self):
        threading.setprofile(self._look)
        sys.setprofile(self._look)
        return self

    def __exit__(self, *exc):
        sys.setprofile(None)
        threading.setprofile(None)

    def _look(self, frame, event, argument):
        if event not in ("call", "return") or getattr(self._looking, "now", False):
            return
        code = frame.f_code
        if not code.co_filename.startswith(PACKAGE) or "Fake" in code.co_qualname:
            return
        self._looking.now = True
        if event == "return" and holds(argument):
            self._note(frame)
            self._note(frame.f_back)
        elif event == "call":
            names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
            given = (frame.f_locals.get(name) for name in names if name != "self")
            if any(map(holds, given)):
                self._note(frame)
        self._looking.now = False

    def _note(self, frame):
        code = frame.f_code
        name = code.co_qualname.partition(".<locals>")[0].removesuffix(".__init__")
        if code.co_filename.startswith(PACKAGE) and name not in (*self.path, *BESIDE):
            self.path.append(name)


def measured(folder, monkeypatch):
    """Measure one point in a process that is a thread, and read it back from its store."""
    clock = FakeClock()
    monkeypatch.setitem(timing.host_block.__kwdefaults__, "clock", clock)
    server = worker.Server()
    server._loaded = FakeLoaded(
        clock, cost_ns=lambda batch, number: LATENCIES_NS[number % len(LATENCIES_NS)]
    )
    server._calls[1] = server._loaded.bind(1)
    monkeypatch.setattr(worker, "Server", lambda: server)
    ours, theirs = socket.socketpair()
    answers = threading.Thread(target=worker.serve, args=[theirs.detach()], daemon=True)
    point = Point(workload=Workload(model="m", batch=1), runtime="fake")
    series = Series(runtime=FakeRuntime(), points={1: point}, folder=folder)
    process = series.workers[0] = Worker("process 0")
    process._channel, process._process = ours, SimpleNamespace()
    run = series.runs[1, 0] = series.bound[1, 0] = PointRun(series, 1, 0, calls=5, call_ns=1)
    answers.start()
    with store.Writer(folder / "s", "session") as writer:
        bench = made_bench(Plan(points=(), folder=folder), [series], writer, folder, None)
        bench.recorder.subjects(series, None)
        rounds = Rounds(bench, cpus=[0], seed="seed")
        monkeypatch.setattr(rounds, "_pin", lambda runs: None)
        rounds.first([run])
    ours.close()
    answers.join()
    return api.read_store(folder / "s")


def test_the_path_of_one_sample_is_the_documented_one(tmp_path, monkeypatch):
    with Trace() as trace:
        results = measured(tmp_path, monkeypatch)
    (found,) = results
    assert found.latency_ns.value == sorted(LATENCIES_NS)[2]
    assert SAMPLE_NS in found.samples_ns[0]
    text = (Path(PACKAGE).parents[1] / "docs" / "architecture.md").read_text()
    section = text.partition("## The path of one sample\n")[2].partition("\n## ")[0]
    documented = [line.strip().split("  ")[-1] for line in re.findall("^ {4}.*", section, re.M)]
    assert trace.path == [name.strip() for line in documented for name in line.split(" · ")]
    assert str(len(trace.path)) in re.findall(r"\d+", section)
    assert len(trace.path) <= 14
