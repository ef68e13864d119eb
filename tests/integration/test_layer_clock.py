"""Which module a moment belongs to: on a fake clock exactly, and with real samples once."""

import bisect
import collections
import functools
import json
import math
import os
import sys
import threading
import time
from pathlib import Path

import native_code
import pytest
import torch
from attempts import in_attempts

from frameworktax.attribution import call_stacks, operators, perf_event, probe
from frameworktax.attribution.layers import (
    OUTSIDE,
    PERIOD_NS,
    ModuleClock,
    attribute_modules,
    by_module,
)
from frameworktax.attribution.operators import attribute_operators
from frameworktax.attribution.perf_event import PerfEventSampler
from frameworktax.attribution.sampler import Ticks, drawn_period_ns
from frameworktax.attribution.symbols import JIT, Leaf
from frameworktax.errors import WorkerError
from frameworktax.testing import FakeClock


class Work(torch.nn.Module):
    """Spends time on a fake clock, then calls what is inside it."""

    def __init__(self, clock, ns, *inside):
        super().__init__()
        self.clock, self.ns = clock, ns
        self.inside = torch.nn.ModuleList(inside)

    def forward(self):
        self.clock.work(self.ns)
        for module in self.inside:
            module()


def spent(root, call, clock):
    """Return path → (ns, calls) by a sample every ns of the fake clock."""
    before = {name: dict(vars(module)) for name, module in root.named_modules()}
    with ModuleClock(root, lambda: clock.now_ns) as modules:
        begin = clock.now_ns
        call()
        ticks = [(at, Leaf(JIT, "")) for at in range(begin, clock.now_ns)]
    assert {name: dict(vars(module)) for name, module in root.named_modules()} == before
    places = by_module(modules, [Ticks(collections.Counter(), 0, timed=ticks)])
    found = {module["path"]: (0, module["calls"]) for module in places["modules"]}
    assert all(calls for _, calls in found.values())
    for index, _, bucket, count in places["ticks"][0]:
        assert bucket == "kernel"
        path = None if index == OUTSIDE else places["modules"][index]["path"]
        found[path] = (count, 0 if path is None else found[path][1])
    return found


@pytest.fixture
def clock():
    return FakeClock(start_ns=1_000)


def test_each_layer_has_its_own_time_and_its_calls(clock):
    shared = Work(clock, 5)
    root = Work(clock, 10, Work(clock, 20, shared, shared), shared, Work(clock, 40))

    def call():
        clock.work(3)
        root()
        clock.work(4)

    assert spent(root, call, clock) == {
        "": (10, 1),
        "inside.0": (20, 1),
        "inside.0.inside.0": (15, 3),  # shared: one layer, under its first name
        "inside.2": (40, 1),
        None: (7, 0),
    }


def test_a_method_by_another_name_belongs_to_its_module(clock):
    class Encoder(Work):
        def encode(self):
            self.clock.work(30)
            self.forward()  # its own: still one call

    class Net(Work):
        def forward(self):
            self.clock.work(1)
            self.inside[0].encode()

    root = Net(clock, 0, Encoder(clock, 2, Work(clock, 8)))
    assert spent(root, root, clock) == {
        "": (1, 1),
        "inside.0": (32, 1),
        "inside.0.inside.0": (8, 1),
    }


def test_the_time_of_a_generator_is_of_who_takes_what_it_yields(clock):
    class Tokens(Work):
        def forward(self):
            for _ in range(2):
                self.clock.work(20)
                sent = yield "token"
                assert sent is None

    class Net(Work):
        def forward(self):
            for _ in self.inside[0]():
                self.clock.work(1)

    root = Net(clock, 0, Tokens(clock, 0))
    assert spent(root, root, clock) == {"": (42, 1)}


def test_a_value_in_a_methods_place_stays_a_value(clock):
    class Scaled(Work):
        scale = Work.forward

        def forward(self):
            return self.scale + 1

    root = Scaled(clock, 0)
    root.scale = 2.0
    with ModuleClock(root, lambda: clock.now_ns):
        assert root() == 3.0


def test_a_call_of_another_thread_is_not_noted(clock):
    root = Work(clock, 1)
    with ModuleClock(root, lambda: clock.now_ns) as modules:
        thread = threading.Thread(target=root)
        thread.start()
        thread.join()
    assert modules.events == []


def test_a_layer_that_raises_is_left(clock):
    class Raising(Work):
        def forward(self):
            self.clock.work(5)
            raise ValueError

    class Net(Work):
        def forward(self):
            with pytest.raises(ValueError):
                self.inside[0]()
            self.clock.work(9)

    root = Net(clock, 0, Raising(clock, 0))
    assert spent(root, root, clock) == {"": (9, 1), "inside.0": (5, 1)}


def test_what_runs_outside_python_is_one_layer(clock):
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.scripted = torch.jit.script(
                torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
            )
            self.compiled = torch.compile(
                torch.nn.Sequential(torch.nn.Linear(4, 4)), backend="eager"
            )
            self.in_place = torch.nn.Sequential(torch.nn.Linear(4, 4))
            self.in_place.compile(backend="eager")

        def forward(self, x):
            return self.in_place(self.compiled(self.scripted(x)))

    root, x = Net(), torch.zeros(1, 4)
    for _ in range(3):
        root(x)
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    with ModuleClock(root) as modules:
        for _ in range(3):
            root(x)
    called = {one["path"]: (one["type"], one["calls"]) for one in modules.modules()}
    assert called == {
        "": ("Net", 3),
        "scripted": ("Sequential (scripted)", 3),
        "compiled": ("Sequential (compiled)", 3),
        "in_place": ("Sequential (compiled)", 3),
    }
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == graphs


needs_samples = pytest.mark.skipif(
    probe() is not None, reason="perf_event_open is not allowed here"
)
needs_stacks = pytest.mark.skipif(
    probe() is not None or call_stacks.missing() is not None,
    reason="stacks cannot be sampled here",
)


@needs_samples
def test_a_function_compiled_around_modules_has_no_layers():
    layer = torch.nn.Linear(4, 4)
    around = torch.compile(lambda x: layer(x) + 1, backend="eager")
    x = torch.zeros(1, 4)
    around(x)
    with pytest.raises(WorkerError, match="compiled function"):
        attribute_modules(lambda: around(x), layer, duration_ns=1_000_000)


@needs_samples
def test_the_period_of_samples_by_layer_is_varied(monkeypatch):
    """From the first call on; the middle of it would come once in 147,000 times."""
    called, drawn, vary = [], [], PerfEventSampler.vary

    def noted(sampler):
        called.append(sampler)
        vary(sampler)

    def draw(period_ns):
        drawn.append(drawn_period_ns(period_ns))
        return drawn[-1]

    monkeypatch.setattr(PerfEventSampler, "vary", noted)
    monkeypatch.setattr(perf_event, "drawn_period_ns", draw)
    model, x = torch.nn.Linear(4, 4), torch.zeros(1, 4)
    found = attribute_modules(lambda: model(x), model, duration_ns=10_000_000)
    assert len(called) == found["calls"]
    assert drawn and drawn[0] != PERIOD_NS
    assert found["period_ns"] == PERIOD_NS


class Spin(torch.nn.Module):
    """Takes processor time of its own thread, whatever else runs on the machine."""

    def __init__(self, ns):
        super().__init__()
        self.ns = ns

    def forward(self):
        end = time.thread_time_ns() + self.ns
        while time.thread_time_ns() < end:
            pass


@needs_samples
def test_a_spin_comes_back_as_that_layers_time():
    """Six layers spin 0.2 ms, the third of them 0.6 ms."""
    root = torch.nn.ModuleList(Spin(600_000 if i == 2 else 200_000) for i in range(6))
    between = []

    def call():
        begin = time.thread_time_ns()
        for layer in root:
            layer()
        between.append(1 - 1_600_000 / (time.thread_time_ns() - begin))

    found = attribute_modules(call, root, duration_ns=600_000_000)
    while sum(count for stretch in found["ticks"] for *_, count in stretch) < 1000:  # others ran
        found["ticks"] += attribute_modules(call, root, duration_ns=600_000_000)["ticks"]
    paths = [module["path"] for module in found["modules"]]
    counts = dict.fromkeys([*paths, None], 0)
    for stretch in found["ticks"]:
        for index, _, _, count in stretch:
            counts[paths[index] if index >= 0 else None] += count
    others = sum(counts[path] for path in "01345") / 5
    assert counts["2"] / others == pytest.approx(3, rel=0.25)
    assert max(counts[path] for path in "01345") < 1.6 * others
    assert counts[None] < (0.1 + sum(between) / len(between)) * sum(counts.values())
    source = found["modules"][0]
    assert os.path.basename(source["file"]) == os.path.basename(__file__)
    assert source["line"] == sys.modules[__name__].Spin.forward.__code__.co_firstlineno


class Product(torch.nn.Module):
    """A product, and an elementwise operator beside it."""

    def __init__(self):
        super().__init__()
        self.x, self.y = torch.randn(64, 512), torch.randn(512, 512)

    def forward(self):
        return torch.erfinv(torch.tanh(self.x)), self.x @ self.y


def named(found):
    """Return (operator, line of the breakdown) → samples, by path."""
    counts = collections.defaultdict(collections.Counter)
    for stretch in found["ticks"]:
        for index, operator, bucket, count in stretch:
            path = found["modules"][index]["path"] if index >= 0 else None
            counts[path][operator, bucket] += count
    return counts


def kernels(counts, operator):
    return counts[operator, "kernel"]


@pytest.mark.timing
@needs_stacks
@in_attempts
def test_operators_have_the_time_that_they_take_apart():
    """Four equal layers; the ratio of two operators is that of the same two timed alone."""
    root = torch.nn.ModuleList(Product() for _ in range(4))

    def call():
        for layer in root:
            layer()

    products = [(layer.x, layer.y) for layer in root]
    angles = [(torch.tanh(x),) for x, _ in products]

    def cpu_ns(function, given):
        begin = time.thread_time_ns()
        for _ in range(25):
            for arguments in given:  # of all layers, which find the caches as they do in a call
                function(*arguments)
        return time.thread_time_ns() - begin

    def apart():
        return cpu_ns(torch.erfinv, angles) / cpu_ns(torch.matmul, products)

    for _ in range(20):
        call()
    before = apart()
    found = attribute_operators(call, root, duration_ns=1_500_000_000)
    after = apart()
    by_path = named(found)
    each = [kernels(by_path[str(i)], "aten::matmul") for i in range(4)]
    assert min(each) > 20
    # Equal products: each count's own spread is its root, the mean's half of that.
    assert all(abs(n - sum(each) / 4) < 5 * math.sqrt(sum(each) / 4) for n in each)
    every = sum((by_path[str(i)] for i in range(4)), collections.Counter())
    ratio = kernels(every, "aten::erfinv") / kernels(every, "aten::matmul")
    assert 0.6 * min(before, after) < ratio < 1.7 * max(before, after)
    without = sum(n for (operator, line), n in every.items() if line == "kernel" and not operator)
    assert without < 0.03 * sum(n for (_, line), n in every.items() if line == "kernel")


@needs_stacks
def test_a_ring_without_room_for_stacks_is_refused(monkeypatch):
    monkeypatch.setattr(call_stacks.StackSampler, "room", lambda self: 0)
    with pytest.raises(WorkerError, match="ulimit -l"):
        attribute_operators(lambda: None, torch.nn.Linear(1, 1))


class Nodes(torch.nn.Module):
    """Two equal products, and 200 operators on eight numbers in between."""

    def __init__(self):
        super().__init__()
        self.first, self.last = torch.nn.Linear(768, 768), torch.nn.Linear(768, 768)
        self.small = torch.nn.Parameter(torch.randn(200, 1))

    def forward(self, x):
        x = self.first(x)
        z = x[:1, :8]
        for i in range(200):
            z = torch.sin(z + self.small[i]) if i % 2 else z + self.small[i]
        return self.last(x + z.sum())


def profiled_nodes(session, given):
    """Return the names in ONNX Runtime's own profile, in the order in which nodes ran."""
    session.run(None, given)
    events = json.loads(Path(session.end_profiling()).read_text())
    names = (event["name"] for event in events if event.get("cat") == "Node")
    return [name.removesuffix("_kernel_time") for name in names if name.endswith("_kernel_time")]


@needs_stacks
@pytest.mark.parametrize("engine", ["onnxruntime", "openvino"])
def test_samples_of_a_stripped_engine_name_the_node(engine, tmp_path, monkeypatch):
    """By the runtime's own names, and within a call in the order in which it runs its nodes."""
    module = pytest.importorskip(engine)
    pytest.importorskip("onnx")
    monkeypatch.chdir(tmp_path)
    x = torch.randn(16, 768)
    torch.onnx.export(Nodes().eval(), (x,), "m.onnx", dynamo=False)
    if engine == "onnxruntime":
        options = module.SessionOptions()
        options.intra_op_num_threads = 1
        session = module.InferenceSession("m.onnx", options)
        given = {session.get_inputs()[0].name: x.numpy()}
        run = functools.partial(session.run, None, given)
        options.enable_profiling = True
        order = profiled_nodes(module.InferenceSession("m.onnx", options), given)
    else:
        settings = {"INFERENCE_NUM_THREADS": 1, "NUM_STREAMS": 1}
        settings |= {"INFERENCE_PRECISION_HINT": "f32"}  # else some processors convert to bfloat16
        compiled = module.Core().compile_model("m.onnx", "CPU", settings)
        run = functools.partial(compiled.create_infer_request().infer, {0: x.numpy()})
        order = [one.get_friendly_name() for one in compiled.get_runtime_model().get_ordered_ops()]
    begins, seen = [], []
    place = operators.Namer.place

    def call():
        begins.append(time.perf_counter_ns())
        run()

    def noted(self, caught):
        found = place(self, caught)
        seen.append((caught.time_ns, found[0]))
        return found

    monkeypatch.setattr(operators.Namer, "place", noted)
    monkeypatch.setattr(operators, "PERIOD_NS", 250_000)
    found = attribute_operators(call, None, duration_ns=1_000_000_000)
    counts = {path: lines.total() for path, lines in named(found).items()}
    assert counts.keys() - {""} <= set(order)
    assert len(counts) > 50
    assert len({module["path"] for module in found["modules"]}) == len(found["modules"])
    ran = [(bisect.bisect(begins, at), order.index(node.name)) for at, node in seen if node]
    assert sorted(ran) == ran
    whole = sum(counts.values())
    del counts[""]
    (a, first), (b, second) = collections.Counter(counts).most_common(2)
    assert abs(first - second) < 5 * math.sqrt(first + second)
    assert first + second > 0.2 * whole
    assert {a, b} == {min(counts, key=order.index), max(counts, key=order.index)}


@pytest.mark.timing
@needs_stacks
@in_attempts
def test_a_node_that_spins_has_its_own_time(tmp_path):
    """A custom operator between two products, against the clock of the thread that it reads."""
    onnx, engine = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")
    if native_code.COMPILER is None:
        pytest.skip("no C compiler")
    spun = native_code.load(native_code.SPINNING_NODE, "spun", tmp_path)
    made, number = onnx.helper, onnx.TensorProto.FLOAT
    sizes = {"x": [64, 256], "y": [64, 256], "s": [1]}
    ports = {name: made.make_tensor_value_info(name, number, size) for name, size in sizes.items()}
    weight = onnx.numpy_helper.from_array(torch.randn(256, 256).numpy(), "w")
    nodes = [
        made.make_node("MatMul", ["x", "w"], ["t"], name="first"),
        made.make_node("Spin", ["t"], ["s"], name="spinning", domain="test"),
        made.make_node("MatMul", ["t", "w"], ["y"], name="second"),
    ]
    graph = made.make_graph(nodes, "g", [ports["x"]], [ports["y"], ports["s"]], [weight])
    domains = [made.make_opsetid("", 17), made.make_opsetid("test", 1)]
    model = made.make_model(graph, opset_imports=domains, ir_version=8)
    options = engine.SessionOptions()
    options.intra_op_num_threads = 1
    options.register_custom_ops_library(str(tmp_path / "libspun_operator.so"))
    session = engine.InferenceSession(model.SerializeToString(), options)
    given = {"x": torch.randn(64, 256).numpy()}
    took_ns = 0

    def call():
        nonlocal took_ns
        begin = time.thread_time_ns()
        session.run(None, given)
        took_ns += time.thread_time_ns() - begin

    for _ in range(20):
        call()
    took_ns = 0
    spun(1)
    found = attribute_operators(call, None, duration_ns=1_500_000_000)
    known = spun(0) / took_ns
    by_path = named(found)
    counts = {path: lines.total() for path, lines in by_path.items()}
    assert counts.keys() <= {"", "first", "spinning", "second"}
    assert {operator for operator, _ in by_path["spinning"]} == {"Spin"}
    assert 0.1 < known < 0.9
    assert counts["spinning"] / sum(counts.values()) == pytest.approx(known, rel=0.1)
