"""Kernels by module and operator on a fake device: every number is known in advance."""

from array import array
from bisect import bisect_right
from dataclasses import replace

import numpy as np
import pytest
from fake_device import FakeDevice

from frameworktax.analysis import places as placing
from frameworktax.attribution.device_places import (
    attribute_device_modules,
    clock_offset,
    place_calls,
)
from frameworktax.attribution.device_profile import HEAD_MARKERS
from frameworktax.errors import TraceError
from frameworktax.records import Estimate, Module, Places
from frameworktax.testing import FakeClock
from frameworktax.traces.events import HOST_CALLS

EPOCH = 1_751_410_836_000_000_000


class Entered:
    """Modules by hand: ``enter`` and ``leave`` at the present moment, of a clock of their own."""

    def __init__(self, clock, shift_ns):
        self.clock, self.shift_ns = clock, shift_ns
        self.times, self.state, self.stack = array("q"), [-1], [-1]

    def now(self):
        return self.clock.now_ns + self.shift_ns

    def enter(self, index):
        self.stack.append(index)
        self._note()

    def leave(self):
        self.stack.pop()
        self._note()

    def _note(self):
        self.times.append(self.now())
        self.state.append(self.stack[-1])

    def innermost(self, times):
        return [self.state[bisect_right(self.times, t)] for t in times]


def profiled(call, device, entered, calls=3, operators=False):
    """Do what the real run does, with modules by hand."""
    marks, begins = [], []

    def mark():
        device.synchronize()
        before = entered.now()
        device.marker()
        marks.append((before, entered.now()))
        device.synchronize()

    def work():
        for _ in range(HEAD_MARKERS):
            device.marker()
        for _ in range(calls):
            mark()
            begins.append(entered.now())
            call()
            device.synchronize()
        mark()

    return device.profile(work, operators), marks, begins


@pytest.fixture
def setting():
    clock = FakeClock(EPOCH)
    return clock, FakeDevice(clock, launch_latency_ns=100), Entered(clock, 7_000_000_000)


def model(clock, device, entered):
    """The root launches one kernel, a slow child two, another child one behind a long kernel."""

    def call():
        entered.enter(0)
        clock.work(1_000)
        with device.operator("aten::embedding"):
            device.launch(host_ns=500, kernel_ns=200)
        entered.enter(1)
        with device.operator("aten::linear"):
            clock.work(4_000)
            with device.operator("aten::addmm"):
                device.launch(host_ns=500, kernel_ns=9_000)
        device.launch(host_ns=500, kernel_ns=300)
        entered.leave()
        entered.enter(2)
        device.launch(host_ns=500, kernel_ns=400)
        entered.leave()
        entered.leave()

    return call


def test_kernels_and_the_time_the_device_waited_go_to_the_module_that_launched(setting):
    clock, device, entered = setting
    trace, marks, begins = profiled(model(clock, device, entered), device, entered)
    found = place_calls(trace, 0, marks, begins, entered.innermost)
    # Kernel 1 from 1,600 to 1,800; kernel 2 arrives at 6,100 and ends at 15,100; the rest queue up.
    in_each_call = {
        (0, "", "device_gap"): 1_000,
        (0, "", "kernel"): 200,
        (1, "", "device_gap"): 4_300,
        (1, "", "kernel"): 9_300,
        (2, "", "kernel"): 400,
    }
    assert found == [in_each_call] * 3


def test_operators_are_the_outermost_around_a_launch(setting):
    clock, device, entered = setting
    call = model(clock, device, entered)
    trace, marks, begins = profiled(call, device, entered, operators=True)
    (ticks, *_) = place_calls(trace, 0, marks, begins, entered.innermost)
    kernels = {(index, name): ns for (index, name, line), ns in ticks.items() if line == "kernel"}
    assert kernels == {
        (0, "aten::embedding"): 200,
        (1, "aten::linear"): 9_000,
        (1, ""): 300,
        (2, ""): 400,
    }


def test_of_operators_that_begin_together_the_outer_one_counts_wherever_it_is_in_the_file(setting):
    clock, device, entered = setting

    def call():
        with device.operator("aten::matmul"):
            with device.operator("aten::mm"):
                device.launch(host_ns=500, kernel_ns=200)
            clock.work(100)

    trace, marks, begins = profiled(call, device, entered, operators=True)
    for order in (slice(None), slice(None, None, -1)):
        events = trace.events.where(np.arange(len(trace.events))[order])
        found = place_calls(replace(trace, events=events), 0, marks, begins, entered.innermost)
        assert {name for ticks in found for _, name, _ in ticks} == {"aten::matmul"}


def test_a_graph_belongs_to_the_module_that_replays_it(setting):
    _, device, entered = setting

    def call():
        entered.enter(4)
        device.replay([100, 200], host_ns=50)
        entered.leave()

    trace, marks, begins = profiled(call, device, entered)
    found = place_calls(trace, 0, marks, begins, entered.innermost)
    assert found[0] == {(4, "", "kernel"): 300}


def test_a_kernel_without_a_launch_belongs_to_no_module(setting):
    clock, device, entered = setting
    trace, marks, begins = profiled(model(clock, device, entered), device, entered)
    host = trace.events.of(*HOST_CALLS)
    in_first = host.start_ns > begins[0] - entered.shift_ns
    gone = host.correlation[in_first][0]
    kept = trace.events.where(~((trace.events.correlation == gone) & (trace.events.device < 0)))
    found = place_calls(replace(trace, events=kept), 0, marks, begins, entered.innermost)
    assert found[0][-1, "", "kernel"] == 200
    assert sum(ns for (*_, line), ns in found[0].items() if line == "kernel") == 9_900


def test_clocks_that_no_difference_joins_are_refused(setting):
    clock, device, entered = setting
    trace, marks, begins = profiled(model(clock, device, entered), device, entered)
    drifting = [(a + 1_000 * i, b + 1_000 * i) for i, (a, b) in enumerate(marks)]
    with pytest.raises(TraceError, match="drift"):
        place_calls(trace, 0, drifting, begins, entered.innermost)
    host = trace.events.of(*HOST_CALLS)
    with pytest.raises(TraceError, match="not recorded"):
        clock_offset(host, np.full(len(marks), -1), marks)


def test_layers_of_a_device_add_up_to_its_breakdown():
    ticks = (
        ((0, "", "kernel", 200), (0, "", "device_gap", 1_000),
         (1, "", "kernel", 9_300), (1, "", "device_gap", 4_000)),
    ) * 3  # fmt: skip
    run = Places(
        session="s", point="p", process=0, method="module", calls=3, latency_ns=1, ticks=ticks,
        modules=(Module(path="", type="Net", calls=3), Module(path="a", type="Linear", calls=3)),
    )  # fmt: skip
    bill = {"kernel": 9_500.0, "device_gap": 500.0, "python": 3_000.0, "launch": 1_500.0,
            "remainder": 500.0}  # fmt: skip
    latency = Estimate(value=15_000.0, low=14_900.0, high=15_100.0, n=5)
    root, child, rest = placing.layers(latency, bill, [run])
    assert root.bill_ns == pytest.approx(
        {"kernel": 200, "device_gap": 100, "python": 600, "launch": 300, "remainder": 100}
    )
    assert child.bill_ns["kernel"] == pytest.approx(9_300)
    assert child.bill_ns["python"] == pytest.approx(2_400)
    total = sum(layer.time_ns.value for layer in (root, child, rest))
    assert total == pytest.approx(15_000)


def test_a_whole_run_by_module_and_by_operator():
    torch = pytest.importorskip("torch")
    clock = FakeClock(EPOCH)
    device = FakeDevice(clock)

    class Slow(torch.nn.Module):
        def forward(self, x):
            clock.work(3_000)
            with device.operator("aten::mm"):
                device.launch(kernel_ns=500, host_ns=100)
            return x

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = Slow(), Slow()

        def forward(self, x):
            return self.second(self.first(x))

    net = Net()
    found = attribute_device_modules(
        lambda: net(1), net, device.synchronize, device, by="operator", calls=4, clock=clock
    )
    run = Places(
        session="s", point="p", process=0,
        **{**found, "modules": tuple(Module(**fields) for fields in found["modules"])},
    )  # fmt: skip
    paths = {module.path: at for at, module in enumerate(run.modules)}
    assert {module.path: module.calls for module in run.modules} == {"": 4, "first": 4, "second": 4}
    assert [{(i, name, line): ns for i, name, line, ns in t} for t in run.ticks] == [
        {
            (paths["first"], "aten::mm", "device_gap"): 3_000,
            (paths["first"], "aten::mm", "kernel"): 500,
            (paths["second"], "aten::mm", "device_gap"): 2_600,
            (paths["second"], "aten::mm", "kernel"): 500,
        }
    ] * 4
    assert (run.method, run.latency_ns) == ("operator", 6_700)
    assert "forward" not in vars(net.first)  # nothing is left behind


def test_the_latency_of_a_run_is_the_median_of_its_calls():
    """Of an even number of calls the middle of two; each takes 1 µs longer than the one before."""
    torch = pytest.importorskip("torch")
    clock = FakeClock(EPOCH)
    device = FakeDevice(clock)
    made = []

    class Slower(torch.nn.Module):
        def forward(self):
            made.append(self)
            clock.work(1_000 * len(made))
            device.launch(kernel_ns=500, host_ns=100)

    net = Slower()
    found = attribute_device_modules(net, net, device.synchronize, device, calls=4, clock=clock)
    assert found["wall_ns"] == 3_600 + 4_600 + 5_600 + 6_600
    assert found["latency_ns"] == 5_100
