"""A real model under watch: compiled, in a forked server, with a tax that is known."""

import contextlib
import os
import threading
import time

import numpy as np
import pytest
import torch
from attempts import in_attempts
from prometheus_client import CollectorRegistry

import frameworktax as ft
from frameworktax.attribution.perf_event import probe
from frameworktax.errors import UsageError
from frameworktax.integrations.exporters import Prometheus
from frameworktax.programs.calls import Recorder, module_call
from frameworktax.programs.observed import read_notes

HOUR_S = 3600.0
needs_sampler = pytest.mark.skipif(probe() is not None, reason="perf_event_open is not allowed")


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(8, 4)

    def forward(self, x):
        return self.linear(x).relu()


@pytest.fixture
def registry():
    return CollectorRegistry()


def watch(model, registry, **options):
    return ft.watch(
        model,
        name="m",
        exporter=Prometheus(registry),
        interval_s=HOUR_S,
        **{"sample": 1, **options},
    )


def calls(registry, batch="2"):
    labels = {"model": "m", "call": "call", "batch": batch}
    return registry.get_sample_value("frameworktax_call_duration_seconds_count", labels)


def test_a_model_is_watched_before_and_after_it_is_compiled(registry):
    net, x = Net(), torch.randn(2, 8)
    expected = net(x)
    with watch(net, registry, sample=0) as before:
        compiled = torch.compile(net, backend="eager", fullgraph=True)
        assert torch.equal(compiled(x), expected)  # the watch is no part of the graph
        assert torch.equal(net(x), expected)
    assert calls(registry) == 1
    with watch(compiled, CollectorRegistry(), sample=0) as outside:
        assert torch.equal(compiled(x), expected)
    net.compile(backend="eager")
    with watch(net, CollectorRegistry(), sample=0) as inside:
        assert torch.equal(net(x), expected)
    assert before.faults == outside.faults == inside.faults == {}
    assert type(net) is Net


@pytest.mark.filterwarnings("ignore")  # TorchScript is deprecated
@pytest.mark.parametrize("is_traced", [True, False])
def test_a_torchscript_program_is_watched_and_as_it_was_afterwards(registry, is_traced):
    net, x = Net(), torch.randn(2, 8)
    program = torch.jit.trace(net, x) if is_traced else torch.jit.script(net)
    kind = type(program)
    with watch(program, registry, sample=0) as watched:
        assert torch.equal(program(x), net(x))
    assert type(program) is kind and torch.equal(program(x), net(x))
    assert calls(registry) == 1 and watched.faults == {}


def test_a_forward_that_only_begins_its_work_is_wrong_use(registry):
    class Generates(Net):
        def forward(self, x):
            yield super().forward(x)

    with pytest.raises(UsageError, match="before its work is done"):
        watch(Generates(), registry)


@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_model_is_called_as_its_class_calls_it(registry, monkeypatch, is_replaced):
    own, through = torch.nn.Module.__call__, []

    def replaced(self, *args, **kwargs):
        through.append(self)
        return own(self, *args, **kwargs)

    if is_replaced:  # by another tool
        monkeypatch.setattr(torch.nn.Module, "__call__", replaced)
    net, x = Net(), torch.randn(2, 8)
    hooked = []
    net.register_forward_hook(lambda *_: hooked.append(1))
    with watch(net, registry, sample=0) as watched:
        for _ in range(3):
            net(x)
        assert len(hooked) == 3
        net._compiled_call_impl = lambda x: x + 1  # as `net.compile()` sets it
        assert torch.equal(net(x), x + 1)
    assert through.count(net) == 4 * is_replaced
    assert calls(registry) == 4 and watched.faults == {}


def test_a_run_has_every_call_of_a_watched_model(registry, monkeypatch, tmp_path):
    own, recorder = torch.nn.Module.__call__, Recorder(str(tmp_path), "none", "")
    observed = module_call(recorder, own)
    monkeypatch.setattr(torch.nn.Module, "__call__", observed)
    net, x = Net(), torch.randn(2, 8)
    with watch(net, registry, sample=0) as watched:
        for _ in range(50):
            net(x)
    assert calls(registry) == 50 and watched.faults == {}
    (found,) = read_notes(tmp_path)
    (thread,) = found.threads.values()
    assert [one["class"] for one in found.roots.values()] == ["Net"]
    assert len(thread.rows) + thread.counted[:, 3].sum() == 50


@pytest.mark.filterwarnings("ignore:`torch.jit")  # TorchScript is deprecated
@pytest.mark.filterwarnings("error::torch.jit.TracerWarning")
@pytest.mark.parametrize("inputs", ["", "values"])
def test_a_trace_has_nothing_of_a_run_or_a_watch(registry, monkeypatch, tmp_path, inputs):
    def operations(program):
        return [node.kind() for node in program.inlined_graph.nodes()]

    net, x = Net(), torch.randn(2, 8)
    plain = operations(torch.jit.trace(Net(), x))
    recorder = Recorder(str(tmp_path), "module", inputs)
    observed = module_call(recorder, torch.nn.Module.__call__)
    monkeypatch.setattr(torch.nn.Module, "__call__", observed)
    # The model is not known yet, then known and noted in detail: each trace is checked by another.
    assert operations(torch.jit.trace(net, x)) == plain
    net(x)
    assert operations(torch.jit.trace(net, x)) == plain
    with watch(net, registry, sample=0) as watched:
        assert operations(torch.jit.trace(net, x)) == plain
        assert operations(torch.jit.trace(net, x)) == plain
    assert watched.faults == {}


@needs_sampler
def test_a_forked_child_begins_with_numbers_and_samplers_of_its_own(registry):
    net, x = Net(), torch.randn(2, 8)
    with watch(net, registry) as watched:
        for _ in range(5):
            net(x)
        busy = threading.Event()
        other = threading.Thread(target=lambda: [net(x), busy.wait(60)])  # a ring of its own
        other.start()
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            with contextlib.suppress(BaseException):
                for _ in range(3):
                    net(x)
                watched.flush()
                threads = [t.name for t in threading.enumerate()]
                ours = threads.count("frameworktax-watch")
                said = f"{calls(registry)} {dict(watched.faults)} {ours}"
                watched.stop()
                os.write(writing, said.encode())
            os._exit(0)
        os.close(writing)
        _, status = os.waitpid(child, 0)
        with os.fdopen(reading) as said:
            assert said.read() == "3.0 {} 1"
        assert status == 0
        net(x)
        busy.set()
        other.join()
    assert calls(registry) == 7
    assert watched.faults == {}


@needs_sampler
def test_a_block_in_a_forked_child_is_measured_there():
    def spin():
        sum(range(100_000))

    with ft.tax("before") as block:
        spin()
    child = os.fork()
    if child == 0:
        code = 1
        with contextlib.suppress(BaseException):
            for _ in range(4):
                with block:
                    spin()
            code = 0 if block.result().calls == 4 else 2
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    with block:
        spin()
    assert block.result().calls == 2


@needs_sampler
@pytest.mark.timing
@in_attempts
def test_a_spin_for_half_of_the_time_is_a_tax_of_one_half():
    a = np.ones((256, 256))
    out = np.empty_like(a)  # no allocation, and no page faults, in the kernel's half

    class Half:
        def __call__(self, x):
            begin = time.thread_time_ns()
            for _ in range(30):
                np.sqrt(x, out=out)
            until = 2 * time.thread_time_ns() - begin
            while time.thread_time_ns() < until:
                pass

    model, registry = Half(), CollectorRegistry()
    with watch(model, registry) as watched:
        begin = time.thread_time()
        while time.thread_time() - begin < 2:
            model(a)
    assert watched.faults == {}
    labels = {"model": "m", "call": "call", "batch": "129-256"}
    name = "frameworktax_sampled_time_seconds_total"
    seconds = {
        part: registry.get_sample_value(name, {**labels, "part": part}) or 0.0
        for part in ("kernel", "python", "system", "dispatch")
    }
    share = seconds["kernel"] / sum(seconds.values())
    assert share == pytest.approx(0.5, abs=0.06), seconds
