"""Code measured in place whose tax is known: all of it, or next to none."""

import os
import threading

import numpy as np
import pytest
import torch

import frameworktax as ft
from frameworktax.attribution import probe
from frameworktax.errors import UsageError

needs_sampler = pytest.mark.skipif(
    probe() is not None,
    reason="perf_event_open is not allowed here",
)


def on_cpu(found):
    """Return the lines of a breakdown in which the code itself runs.

    The others depend on the machine: neither loop nor roots wait or call the system, so ``wait`` is
    time in which another process or another machine had the processor, and ``system`` is ticks
    that a hypervisor took.
    """
    return {line: ns for line, ns in found.bill_ns.items() if line not in ("wait", "system")}


@needs_sampler
def test_a_loop_of_the_interpreter_is_all_tax():
    with ft.tax("loop") as loop:
        sum(i & 7 for i in range(2_000_000))
    found = loop.result()
    assert found.share.value > 0.95
    lines = on_cpu(found)
    assert lines["python"] > 0.8 * sum(lines.values())


@pytest.mark.timing
@needs_sampler
def test_roots_of_large_arrays_are_next_to_none():
    """An instruction of the processor; a sine would be a call into libm for each number."""
    a = np.ones(1_000_000)

    @ft.tax("roots")
    def roots():
        for _ in range(64):
            np.sqrt(a, out=a)

    for _ in range(24):
        roots()
    found = roots.block.result()
    assert found.calls == 24
    lines = on_cpu(found)
    assert lines["kernel"] > 0.9 * sum(lines.values())
    assert sum(found.bill_ns.values()) == pytest.approx(found.latency.value)
    assert found.share.value == pytest.approx(1 - lines["kernel"] / found.latency.value)


class Looping(torch.nn.Module):
    """Counts in the interpreter."""

    def __init__(self, steps):
        super().__init__()
        self.steps = steps

    def forward(self):
        return sum(i & 7 for i in range(self.steps))


class Model(torch.nn.Module):
    def __init__(self, *steps):
        super().__init__()
        self.layers = torch.nn.ModuleList(map(Looping, steps))

    def forward(self):
        return [layer() for layer in self.layers]


@needs_sampler
def test_the_layer_that_pays_is_named_and_layers_add_up_to_the_latency():
    """One of three loops is ten times as long; a thread that comes later has no part in it."""
    model = Model(1_000, 10_000, 1_000)
    before = {path: dict(vars(module)) for path, module in model.named_modules()}
    block = ft.tax(module=model)
    plain = ft.tax()

    def run(runs):
        for _ in range(runs):
            with block:
                model()
            with plain:
                model()

    run(600)
    first = block.result()
    thread = threading.Thread(target=run, args=(40,))
    thread.start()
    thread.join()
    found = block.result()
    assert (first.calls, found.calls) == (600, 640)
    assert plain.result().layers == ()
    times = {layer.path: layer.time_ns.value for layer in found.layers}
    assert set(times) == {"", "layers.0", "layers.1", "layers.2", None}
    assert sum(times.values()) == pytest.approx(found.latency.value)
    assert times["layers.1"] > 0.6 * found.latency.value
    assert {layer.path: layer.calls for layer in found.layers}["layers.1"] == 1
    assert first.layers[0].calls == found.layers[0].calls == 1
    assert 0.15 * 600 < len(block._layers._latencies) < 0.35 * 600
    assert {path: dict(vars(module)) for path, module in model.named_modules()} == before
    # on a busy host no interval separates them, and all are one line: layers.0–2
    assert "\n  layers." in str(found) and "layers." in found._repr_html_()


@needs_sampler
def test_modules_of_a_compiled_function_are_left_alone_once_that_is_seen():
    layer = torch.nn.Linear(4, 4)
    around = torch.compile(lambda x: layer(x) + 1, backend="eager")
    x = torch.zeros(1, 4)
    around(x)
    block = ft.tax(module=layer)
    for _ in range(300):
        with block:
            around(x)
    found = block.result()
    assert len(block._layers._latencies) == 1
    assert found.layers == () and "forward" not in vars(layer)


@needs_sampler
def test_a_child_forked_within_a_run_has_its_module_as_it_was():
    model = Model(10)
    block = ft.tax(module=model)
    left = None
    for _ in range(100):
        with block:
            is_child = block._local.profiler.placing and os.fork() == 0
        if is_child:
            os._exit("forward" in vars(model))
        if block._local.profiler.placing:
            left = os.waitstatus_to_exitcode(os.wait()[1])
            break
    assert left == 0


@needs_sampler
def test_a_forked_child_has_layers_of_its_own():
    block = ft.tax(module=Model(10_000))

    def run():
        for _ in range(60):
            with block:
                block.module()
        return {layer.path for layer in block.result().layers}

    paths = run()
    assert "layers.0" in paths
    child = os.fork()
    if not child:
        try:
            os._exit(0 if run() == paths and block.result().calls == 60 else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_name_has_one_module():
    ft.tax("named", module=Model(1), fresh=True)
    with pytest.raises(UsageError, match="another module"):
        ft.tax("named", module=Model(1))
    assert ft.tax("named").module is not None
    ft.tax("named", module=Model(1), fresh=True)
