"""A deployment's folder is looked at before anything in it is loaded; a call finds its artifact."""

import collections
import copy
import errno
import inspect
import json
import os
import pickle
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace

import numpy as np
import pytest
import race_plugin

import frameworktax as ft
from frameworktax import comparing, models, runtimes
from frameworktax.cli.report import compare_command
from frameworktax.comparing import measure_again
from frameworktax.errors import DeploymentError, NothingMeasuredError, UsageError, WorkerError
from frameworktax.measure.worker import Server
from frameworktax.models.base import Inputs, Model, draw
from frameworktax.optimize.delivery import check_output
from frameworktax.records import Run, Workload
from frameworktax.runtimes import artifacts, deployment, huge_pages, serving
from frameworktax.runtimes.base import Target
from frameworktax.runtimes.deployment import Interface, Manifest, Padding, Shape, padded_to, tree
from frameworktax.runtimes.serving import Outputs, binder, builder, dtypes_of
from frameworktax.runtimes.torch_common import flatten

COMMAND = "frameworktax optimize mine.py:build -o deploy"
WEIGHT = np.arange(12, dtype=np.float32).reshape(4, 3)
PARAMETERS = [("x", "POSITIONAL_OR_KEYWORD", False), ("scale", "POSITIONAL_OR_KEYWORD", True)]


@pytest.fixture(autouse=True)
def plugin(tmp_path, monkeypatch):
    folder = tmp_path / "plugin"
    folder.mkdir()
    race_plugin.install(folder)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setitem(runtimes.BUILT_IN, "steady", "race_runtimes:Steady")


INTERFACE = Interface(
    parameters=PARAMETERS,
    inputs=["args.0"],
    dtypes=["float32"],
    output={"mapping": {"y": {"tensor": "float32"}}, "class": "dict", "none": []},
)


@pytest.fixture
def deploy(tmp_path):
    """A deployment of y = x @ WEIGHT at batches 1, 2 and, between, 3; batch 8 is eager's."""
    folder = tmp_path / "deploy"
    inner = folder / "model" / "steady" / "artifact"
    inner.mkdir(parents=True)
    np.save(inner / "model.npy", WEIGHT)
    for batch in (1, 2):
        np.savez(inner / f"inputs-{batch}.npz", **{"0": np.ones((batch, 4), np.float32)})
    made = artifacts.Artifact(
        folder=inner,
        names=["input_0"],
        dtypes=["float32"],
        files={1: "model.npy", 2: "model.npy"},
    )
    made.write()
    shapes = [
        Shape(batch=b, length=None, sizes=((b, 4),), runtime="steady", folder="model/steady",
              is_between=b == 3)
        for b in (1, 2, 3)
    ]  # fmt: skip
    shapes.append(Shape(batch=8, length=None, sizes=((8, 4),), reason="all were slower"))
    manifest = Manifest(
        model="mine.py:build",
        is_live=False,
        command=COMMAND,
        made="2026-01-01T00:00:00+00:00",
        frameworktax="0.1.0",
        python="3.11",
        machine=deployment.this_machine(),
        packages={"numpy": np.__version__},
        device="cpu",
        precision="float32",
        threads=1,
        interface=INTERFACE,
        shapes=tuple(shapes),
        files=deployment.files_in(folder),
    )
    deployment.write(folder, manifest)
    return folder


def change(folder, **fields):
    deployment.write(folder, replace(deployment.parse(folder), **fields))


def refused(folder):
    with pytest.raises(DeploymentError) as error:
        ft.load(folder)
    assert "\n" not in str(error.value)
    return str(error.value)


# --- calling --------------------------------------------------------------------------------------


def test_it_computes_by_shape_with_the_modules_own_signature(deploy):
    fast = ft.load(deploy)
    x = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    for batch in (1, 2, 3):
        np.testing.assert_array_equal(fast(x[:batch])["y"], x[:batch] @ WEIGHT)
        np.testing.assert_array_equal(fast(x=x[:batch])["y"], x[:batch] @ WEIGHT)
    assert list(inspect.signature(fast).parameters) == ["x", "scale"]
    strided = np.asfortranarray(x[:2])
    np.testing.assert_array_equal(fast(strided)["y"], x[:2] @ WEIGHT)


def test_torch_tensors_give_torch_tensors(deploy):
    import torch

    fast = ft.load(deploy)
    x = torch.ones(2, 4, requires_grad=True)
    result = fast(x)["y"]
    assert isinstance(result, torch.Tensor)
    assert torch.equal(result, torch.ones(2, 4) @ torch.from_numpy(WEIGHT))


def test_tensors_become_arrays_that_an_engine_can_take_and_arrays_tensors():
    import torch

    into, out = serving._conversions("cpu", given=True, taken=False)
    table = torch.arange(6.0).reshape(2, 3)
    tensors = {
        "plain": table,
        "strided": table.t(),
        "with a gradient": table.clone().requires_grad_(),
        "negated later": torch.complex(table, -table).conj().imag,
        "of no axis": torch.tensor(3.0),
        "in bfloat16": table.bfloat16(),
    }
    for name, tensor in tensors.items():
        array = into(tensor)
        assert array.flags.c_contiguous and array.shape == tuple(tensor.shape), name
        np.testing.assert_array_equal(array, tensor.detach().tolist(), name)
    assert into(table).ctypes.data == table.data_ptr()  # where it can be, without a copy
    with pytest.raises(DeploymentError, match="meta"):
        into(torch.ones(2, device="meta"))
    with pytest.raises(DeploymentError, match="cpu"):
        serving._conversions("cuda:0", given=True, taken=False)[0](table)
    assert out(np.ones(2, np.float32), torch.float32).dtype is torch.float32
    assert out(np.ones(2, np.float32), torch.float64).dtype is torch.float64


def test_tensors_made_of_arrays_are_contiguous():
    """Programs that were compiled ahead of time read them in the order of the example."""
    into, _ = serving._conversions("cpu", given=False, taken=True)
    table = np.arange(6.0).reshape(2, 3)
    for array in (table, table.T, np.asfortranarray(table), table[:, ::-1]):
        tensor = into(array)
        assert tensor.is_contiguous()
        np.testing.assert_array_equal(tensor.numpy(), array)


def test_arrays_are_handed_on_in_the_order_and_type_that_is_asked_for():
    into, out = serving._conversions("cpu", given=False, taken=False)
    table = np.arange(6.0).reshape(2, 3)
    for array in (table, table.T, np.float32(3), np.array(3.0)):
        found = into(array)
        assert found.flags.c_contiguous and found.shape == np.shape(array)
        np.testing.assert_array_equal(found, array)
    assert into(table) is table and out(table, table.dtype) is table
    assert out(table, np.dtype("float32")).dtype == np.float32


@pytest.mark.parametrize("takes_torch", [True, False])
def test_arrays_are_float32_where_the_module_returns_bfloat16(takes_torch):
    import torch

    def serve(given):
        return [tensor.bfloat16() for tensor in given] if takes_torch else given

    interface = Interface(parameters=PARAMETERS, inputs=["args.0"], dtypes=["float32"],
                          output={"tensor": "bfloat16"})  # fmt: skip
    fast = serving.StandIn(interface, "cpu", {((2,),): (serve, takes_torch)})
    assert fast(np.ones(2, np.float32)).dtype == np.float32
    assert fast(torch.ones(2)).dtype is torch.bfloat16


@pytest.mark.parametrize(
    ("args", "kwargs", "said"),
    [
        ((np.ones((5, 4), np.float32),), {}, "x (5, 4)"),
        ((np.ones((8, 4), np.float32),), {}, "all were slower"),
        ((np.ones((1, 4), np.float64),), {}, "takes float32; convert it"),
        (([1.0],), {}, "'x' is a list"),
        ((), {}, "no x given"),
        ((np.ones((1, 4), np.float32), 2.0), {}, "scale was given"),
        ((np.ones((1, 4), np.float32),), {"scale": 2.0}, "scale was given"),
        ((np.ones((1, 4), np.float32),), {"other": 1}, "other was given"),
        ((np.ones((1, 4), np.float32),), {"other": ...}, "other was given"),
        ((np.ones((1, 4), np.float32),), {"x": np.ones((1, 4), np.float32)}, "given twice"),
    ],
)
def test_a_call_that_it_was_not_made_for_is_refused(deploy, args, kwargs, said):
    fast = ft.load(deploy)
    for _ in range(2):
        with pytest.raises(DeploymentError) as error:
            fast(*args, **kwargs)
        assert said in str(error.value)


def test_torch_tensors_and_arrays_are_not_mixed():
    import torch

    inputs = Interface(parameters=[], inputs=["kwargs.a", "kwargs.b"], dtypes=["float32"] * 2,
                       output={"tensor": "float32"})  # fmt: skip
    array = np.ones(2, np.float32)
    with pytest.raises(DeploymentError, match="mixed"):
        serving.StandIn(inputs, "cpu", {})(a=array, b=torch.from_numpy(array))


def test_a_tensor_that_is_not_dense_is_refused_whatever_was_called_before(deploy):
    import torch

    x = torch.ones(2, 4)
    odd = [x.to_sparse(), torch.nested.nested_tensor([x])]
    odd += [x.to_mkldnn()] if torch.backends.mkldnn.is_available() else []
    for fast in (ft.load(deploy), serving.StandIn(INTERFACE, "cpu", {((2, 4),): (list, True)})):
        for _ in range(2):
            for one in odd:
                with pytest.raises(DeploymentError, match=r"to_dense|padded"):
                    fast(one)
            fast(x)


def test_it_keeps_weights_in_huge_pages_once_each_engine_was_called(deploy, monkeypatch):
    """Engines may pack weights at the first call."""
    seen, collapsed = [], []
    engine = runtimes.get("steady").loaded
    monkeypatch.setattr(engine, "run", lambda self, weight: lambda x: seen.append(x[0].shape) or x)
    monkeypatch.setattr(huge_pages, "missing", lambda: None)
    monkeypatch.setattr(
        huge_pages.HugePages, "collapse", lambda self, new: collapsed.append([*seen])
    )
    fast = ft.load(deploy)
    assert collapsed == [[(1, 4)], [(1, 4), (2, 4)], [(1, 4), (2, 4), (1, 4)]]  # the last dynamic
    assert repr(fast).endswith("steady; 0 of 0 MB in huge pages>")
    seen.clear()
    change(deploy, aim="startup")
    assert "startup" in str(ft.load(deploy).huge_pages)
    assert (seen, len(collapsed)) == ([], 3)


def test_one_engine_serves_all_batch_sizes_of_what_is_made_for_memory_or_startup(
    deploy, monkeypatch
):
    engine, loaded = runtimes.get("steady").loaded, []
    serve = engine.serve
    monkeypatch.setattr(engine, "serve", lambda self, n: loaded.append(n) or serve(self, n))
    x = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    for aim, wanted in (("latency", [1, 2, None]), ("memory", [None]), ("startup", [None])):
        loaded.clear()
        change(deploy, aim=aim)
        fast = ft.load(deploy)
        assert loaded == wanted
        for batch in (1, 2, 3):
            np.testing.assert_array_equal(fast(x[:batch])["y"], x[:batch] @ WEIGHT)
    made = artifacts.Artifact.read(deploy / "model/steady")
    shutil.copy(made.folder / "model.npy", made.folder / "one.npy")
    replace(made, files={1: "one.npy", 2: "model.npy", 4: "model.npy"}).write()
    change(deploy, files=deployment.files_in(deploy))
    loaded.clear()
    assert ft.load(deploy) and loaded == [1, None]


def test_inputs_of_the_dynamic_file_are_of_a_size_that_it_serves(deploy):
    made = artifacts.Artifact.read(deploy / "model/steady")
    made = replace(made, files={1: "one", 8: "any", 4: "any"})
    made.write()
    (made.folder / "any").touch()
    for size in (4, 8):
        array = np.full((size, 4), size, np.float32)
        np.savez(made.folder / f"inputs-{size}.npz", **{"0": array})
    (found,) = artifacts.Artifact.read(deploy / "model/steady").inputs(None)
    assert found.tolist() == [[4.0] * 4] * 4


def test_an_input_that_is_a_number_is_no_row(deploy):
    made = artifacts.Artifact.read(deploy / "model/steady")
    turned = np.asfortranarray(np.arange(6.0).reshape(2, 3))
    np.savez(made.folder / "inputs-1.npz", **{"0": np.float32(3), "1": turned})
    number, rows = made.inputs(1)
    assert (number.shape, number.item()) == ((), 3)
    assert rows.flags.c_contiguous and rows.tolist() == turned.tolist()


def test_the_module_runs_what_has_no_artifact(deploy):
    import torch

    fast = ft.load(deploy, module=lambda x: {"y": x.sum()})
    assert fast(torch.ones(8, 4))["y"] == 32
    assert fast(torch.ones(2, 4))["y"].shape == (2, 3)


def test_a_module_in_training_mode_does_not_stand_in(deploy):
    import torch

    module = torch.nn.Dropout(0.5)
    fast = ft.load(deploy, module=module)
    with pytest.raises(DeploymentError, match=r"eval\(\)"):
        fast(torch.ones(8, 4))
    module.eval()
    assert torch.equal(fast(torch.ones(8, 4)), torch.ones(8, 4))


def test_several_threads_call_it_and_it_is_pickled_by_its_path(deploy):
    fast = pickle.loads(pickle.dumps(ft.load(deploy)))
    assert len(pickle.dumps(fast)) < 1000
    wrong = []

    def work(value):
        x = np.full((2, 4), value, np.float32)
        for _ in range(20):
            if not np.array_equal(fast(x)["y"], x @ WEIGHT):
                wrong.append(value)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))  # raises what any of them did
    assert wrong == []


def halving():
    """Return memory of an engine that halves (2, 3), as each thread makes it."""
    given, made = np.zeros((2, 3), np.float32), np.zeros((2, 3), np.float32)
    return lambda: np.divide(given, 2, out=made), [given], [made]


def test_what_an_engine_left_in_its_memory_stays_as_it_was():
    serve = artifacts.copying(halving)
    for given in (np.arange(6.0, dtype=np.float32).reshape(2, 3), np.ones((3, 2), np.float32).T):
        (made,) = serve([given])
        serve([given + 100])
        np.testing.assert_array_equal(made, given / 2)


def test_threads_that_call_at_once_have_memory_of_their_own():
    both, wrong = threading.Barrier(2), []

    def make():
        run, inputs, outputs = halving()

        def slow():
            both.wait()  # both threads have copied their inputs
            run()
            both.wait()

        return slow, inputs, outputs

    serve = artifacts.copying(make)

    def work(value):
        (made,) = serve([np.full((2, 3), value, np.float32)])
        wrong.extend(made[made != value / 2])

    threads = [threading.Thread(target=work, args=(value,)) for value in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert wrong == []


# --- as a runtime ---------------------------------------------------------------------------------


def test_a_candidate_is_called_as_its_deployment_would_be(tmp_path, monkeypatch):
    import torch

    source = tmp_path / "mine.py"
    source.write_text(race_plugin.MODEL)
    model = models.build(Workload(model=f"{source}:build"))
    candidate = runtimes.get("steady@deployed")
    assert "torch" in candidate.imports
    candidate.prepare(model, [2, 3], Target(), tmp_path)

    def bind(self, batch):
        pytest.fail("the engine ran alone, its inputs bound")

    def run(self, weight):
        def run(arrays):
            seen.append(arrays)
            return [arrays[0] @ weight]

        return run

    engine, seen = candidate.loaded, []
    monkeypatch.setattr(engine, "bind", bind)
    monkeypatch.setattr(engine, "run", run)
    loaded = candidate.load(None, Target(), tmp_path)
    for batch in (2, 3):
        call = loaded.bind(batch)
        x = model.inputs(batch).args[0]
        for _ in range(2):
            result = call()
            assert list(result) == ["y"] and isinstance(result["y"], torch.Tensor)
            torch.testing.assert_close(result["y"], x @ model.module.weight.detach())
            (array,) = seen.pop()
            assert isinstance(array, np.ndarray) and array.shape == (batch, 4)
        np.testing.assert_array_equal(loaded.outputs(result)[0], result["y"].double().numpy())
    assert loaded.notes() == candidate.load(None, Target(), tmp_path).notes()


def test_only_what_can_be_delivered_is_called_so():
    for name, plain in (("openvino@deployed", "openvino"), ("aot-inductor@static-deployed",
                        "aot-inductor@static")):  # fmt: skip
        assert runtimes.deployed(plain) == name
        assert runtimes.without_deployed(name) == plain
        made = runtimes.get(name)
        assert (made.name, made.option) == (name, runtimes.get(plain).option)
        assert made.serves_with == runtimes.get(plain).serves_with
    assert runtimes.without_deployed("deployed") == "deployed"
    for name in ("eager@deployed", "onnxruntime@7-deployed", "onnxruntime@", "inductor@deployed"):
        with pytest.raises(UsageError):
            runtimes.get(name)


# --- what no deployment does ----------------------------------------------------------------------

MODULES = """
import threading
from collections import deque

import torch

class Calls:
    def __init__(self):
        self.lock, self.key, self.last = threading.Lock(), lambda x: x, deque([0], maxlen=1)

class Own(torch.nn.Linear):
    def __init__(self):
        super().__init__(4, 3)
        self.register_buffer("count", torch.zeros(1))
        self.calls, self.seen = 0, []
        self.places, self.object, self.self = [torch.zeros(1)], {"a": Calls()}, [self]
        self.conjugate = torch.zeros(2, dtype=torch.cfloat).conj()
        self.deep = []
        for _ in range(10_000):
            self.deep = [self.deep]

def module(change):
    def build():
        class Changed(Own):
            def forward(self, x):
                y = super().forward(x)
                return y + (change(self, x) or 0)
        return Changed(), torch.randn(2, 4)
    return build

pure = module(lambda self, x: None)
writing = module(lambda self, x: x.clamp_(0).sum() * 0)
counting = module(lambda self, x: self.count.add_(1) * 0)
remembering = module(lambda self, x: self.seen.append(x))
replacing = module(lambda self, x: self.places[0].add_(1) * 0)
hiding = module(lambda self, x: self.object["a"].last.append(self.object["a"].last[0] + 1))
tuning = module(lambda self, x: self.weight.mul_(1).sum() * 0)
drawing = module(lambda self, x: torch.rand(1))
dropping = module(lambda self, x: torch.nn.functional.dropout(x).sum())

def stepping(self, x):
    self.calls += 1

stepping = module(stepping)
"""


@pytest.mark.parametrize(
    ("name", "said"),
    [("pure", None), ("writing", r"into its input args\.0"), ("counting", "'count'"),
     ("remembering", "'seen'"), ("replacing", "'places'"), ("hiding", "'object'"),
     ("tuning", "'weight'"), ("drawing", "other outputs"),
     ("dropping", "other outputs"), ("stepping", "'calls'")],
)  # fmt: skip
def test_a_module_of_which_a_call_does_more_than_return_outputs_is_refused(tmp_path, name, said):
    source = tmp_path / "own.py"
    source.write_text(MODULES)
    workload = Workload(model=f"{source}:{name}", batch=2)
    places = {"inputs": str(tmp_path / "in.npz"), "outputs": str(tmp_path / "out.npz")}
    for number in (0, 5):
        given = {"workload": workload, "device": "cpu", "number": number, **places}
        if said is None:
            assert Server().draw(**given).made == ((2, 3),)
            continue
        with pytest.raises(WorkerError, match=said) as error:
            Server().draw(**given)
        assert error.value.status == "unavailable"


def test_a_trace_that_does_not_say_how_it_is_called_is_refused():
    import torch

    traced = torch.jit.trace(torch.nn.Linear(4, 4).eval(), torch.ones(1, 4))
    model = Model(traced, lambda b: Inputs((torch.ones(b, 4),)), {})
    assert draw(model, 2, 5).args[0].shape == (2, 4)
    with pytest.raises(WorkerError, match="made from") as error:
        deployment.describe(model, torch.ones(1, 4))
    assert error.value.status == "unavailable"


@pytest.mark.parametrize("how", ["", "writes", "keeps", "counts"])
@pytest.mark.parametrize("on_torch", [True, False])
def test_an_engine_that_writes_into_its_inputs_or_keeps_its_outputs_is_not_proven(
    deploy, tmp_path, monkeypatch, how, on_torch
):
    x = np.random.default_rng(0).normal(size=(2, 4)).astype(np.float32)
    constant, calls = x @ WEIGHT, []

    def run(self, weight):
        def run(arrays):
            made = arrays[0] @ weight
            if how == "writes":
                arrays[0][0] = 0
            calls.append(1)
            made = made + (len(calls) % 7 == 0) if how == "counts" else made
            return [constant if how == "keeps" else made]

        return run

    monkeypatch.setattr(runtimes.get("steady").loaded, "run", run)
    np.savez(tmp_path / "in.npz", **{"args.0": x})
    np.savez(tmp_path / "out.npz", (x @ WEIGHT).astype(np.float64))
    places = {"inputs": str(tmp_path / "in.npz"), "outputs": str(tmp_path / "out.npz")}
    given = {"folder": str(deploy), "precision": "float32", "on_torch": on_torch, **places}
    server = Server()
    found = [server.serve(**given) for _ in range(4)]
    said = {"": None, "writes": "writes into its inputs", "keeps": "written into, outputs differ",
            "counts": "outputs differ"}[how]  # fmt: skip
    wrong = [one.reason for one in found if one.within_tolerance is False]
    assert [said in reason for reason in wrong[:1]] == [True] * bool(how)


@pytest.mark.parametrize(
    ("mask", "at", "is_equal"),
    [
        ([[0, 0, 1], [1, 1, 1]], (0, 1), True),  # attends to nothing where none looks ahead
        ([[0, 0, 1], [1, 1, 1]], (0, 2), False),
        ([[1, 0, 0], [1, 1, 1]], (0, 1), False),
    ],
)
def test_what_comes_before_the_first_token_of_a_row_has_no_defined_output(
    tmp_path, mask, at, is_equal
):
    interface = Interface(
        parameters=[("attention_mask", "POSITIONAL_OR_KEYWORD", False)],
        inputs=["args.0"],
        dtypes=["int64"],
        output={"tensor": "float32"},
    )

    def run(arrays):
        made = np.ones((2, 3, 5), np.float32)
        made[at] = np.nan
        return [made]

    server = Server()
    server._deployment = serving.StandIn(interface, "cpu", {((2, 3),): (run, False)})
    places = {name: str(tmp_path / f"{name}.npz") for name in ("inputs", "outputs")}
    np.savez(places["inputs"], **{"args.0": np.array(mask)})
    np.savez(places["outputs"], np.ones((2, 3, 5)))
    found = server.serve(folder="", precision="float32", on_torch=False, **places)
    assert found.within_tolerance is is_equal


# --- sizes between the shapes ---------------------------------------------------------------------

PADDING = Padding(inputs=((0, 1), (0, 1)), outputs=((0, 1), (0, None)), batch=True, length=True,
                  together=True)  # fmt: skip


def grid(*, latency_ns=10.0, **fields):
    """Return a manifest of batches 1, 4 and lengths 16, 64, eager taking twice as long."""
    shapes = [
        Shape(batch=b, length=n, sizes=((b, n), (b, n)), runtime="steady", folder="f",
              gain=(2.0, 1.9, 2.1), latency_ns=(latency_ns if b == 4 else 10.0,) * 3)
        for n in (16, 64) for b in (1, 4)
    ]  # fmt: skip
    return Manifest(
        model="m", is_live=False, command=COMMAND, made="", frameworktax="", python="",
        machine=deployment.this_machine(), packages={}, device="cpu", precision="float32",
        threads=1, interface=Interface(parameters=[], inputs=[], dtypes=[]),
        shapes=tuple(shapes), padding=replace(PADDING, **fields),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("batch", "length", "found"),
    [(3, 16, (4, 16)), (3, 20, (4, 64)), (1, 17, (1, 64)), (2, 64, (4, 64)), (5, 16, None),
     (1, 15, None), (1, 65, None)],
)  # fmt: skip
def test_the_next_larger_shape_serves_what_lies_between(batch, length, found):
    shape = padded_to(grid(), [(batch, length)] * 2)
    assert (shape and (shape.batch, shape.length)) == found


def test_padding_serves_only_what_is_proven_and_never_slower_than_eager():
    assert padded_to(grid(batch=False), [(3, 16)] * 2) is None
    assert padded_to(grid(length=False), [(1, 20)] * 2) is None
    alone = grid(together=False)
    assert [bool(padded_to(alone, [at] * 2)) for at in ((3, 16), (1, 20), (3, 20))] == [1, 1, 0]
    both = grid(batch=False, together=True)
    assert [bool(padded_to(both, [at] * 2)) for at in ((3, 16), (1, 20), (3, 20))] == [0, 1, 1]
    assert padded_to(replace(grid(), padding=None), [(3, 16)] * 2) is None
    assert padded_to(grid(), [(3, 16), (2, 16)]) is None, "the inputs disagree"
    assert padded_to(grid(), [(3, 16), (3, 16, 1)]) is None
    # eager takes 20 ns at batch 1, and longer at 3
    assert padded_to(grid(latency_ns=20.0), [(3, 16)] * 2) is not None
    assert padded_to(grid(latency_ns=21.0), [(3, 16)] * 2) is None
    # and 30 ns at batch 2, the next smaller one where it was asked for
    slower = grid(latency_ns=25.0)
    nearer = [replace(s, batch=2, gain=(3.0, 2.9, 3.1)) for s in slower.shapes if s.batch == 1]
    assert padded_to(slower, [(3, 16)] * 2) is None
    assert padded_to(replace(slower, shapes=(*slower.shapes, *nearer)), [(3, 16)] * 2) is not None
    left = [replace(s, runtime=None) if s.batch == 4 else s for s in grid().shapes]
    assert padded_to(replace(grid(), shapes=tuple(left)), [(3, 16)] * 2) is None


def test_rows_are_added_where_only_one_length_was_asked_for():
    axes = Padding(inputs=((0, None), (0, None)), outputs=((0, None),), batch=True)
    of_16 = replace(grid(), shapes=grid().shapes[:2], padding=axes)
    assert padded_to(of_16, [(3, 16)] * 2) == of_16.shapes[1]
    assert padded_to(of_16, [(3, 15)] * 2) is None


@pytest.mark.parametrize("on_torch", [False, True])
def test_rows_repeat_tokens_are_zero_and_outputs_are_cut(on_torch):
    import torch

    def run(tensors):
        seen.extend(tensors)
        return tensors

    seen = []
    ids = np.arange(1, 7).reshape(2, 3)
    given = [torch.from_numpy(ids), torch.ones(2, 3)] if on_torch else [ids, np.ones((2, 3))]
    serving._growing(run, PADDING.inputs, [(3, 4), (3, 4)])(given)
    assert seen[0].tolist() == [[1, 2, 3, 0], [4, 5, 6, 0], [4, 5, 6, 0]]
    assert seen[1].tolist() == [[1, 1, 1, 0]] * 3


def test_a_padded_call_returns_the_rows_that_were_given(deploy):
    shapes = [s for s in deployment.parse(deploy).shapes if not s.is_between and s.runtime]
    asked = [shapes[0], replace(shapes[1], batch=4, sizes=((4, 4),))]
    made = artifacts.Artifact.read(deploy / "model/steady")
    made.files = {1: "model.npy", 4: "model.npy"}
    made.write()
    np.savez(made.folder / "inputs-4.npz", **{"0": np.ones((4, 4), np.float32)})
    axes = Padding(inputs=((0, None),), outputs=((0, None),), batch=True)
    written = deployment.files_in(deploy)
    change(deploy, shapes=tuple(asked), padding=axes, files=written)
    fast = ft.load(deploy)
    x = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    for _ in range(2):
        np.testing.assert_allclose(fast(x[:3])["y"], x[:3] @ WEIGHT, rtol=1e-6)
    for odd in (x, x[0], np.float32(1), x[None]):
        with pytest.raises(DeploymentError, match="no artifact"):
            fast(np.asarray(odd))


# --- refusing -------------------------------------------------------------------------------------


def test_a_changed_file_is_refused_before_an_engine_is_asked(deploy, monkeypatch):
    monkeypatch.setattr(runtimes, "get", lambda name: pytest.fail("an engine was asked"))
    path = deploy / "model/steady/artifact/model.npy"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    said = refused(deploy)
    assert "model.npy was changed" in said
    assert COMMAND in said
    path.unlink()
    assert "model.npy" in refused(deploy)


@pytest.mark.parametrize("name", ["proof.json", "README.md", "requirements.txt"])
def test_what_is_read_or_shown_is_in_the_manifest_as_well(deploy, name):
    (deploy / name).write_text("as it was written")
    change(deploy, files=deployment.files_in(deploy))
    assert ft.load(deploy)
    (deploy / name).write_text("As it was written")
    assert f"{name} was changed" in refused(deploy)
    with pytest.raises(DeploymentError, match=f"{name} was changed"):
        measure_again(deploy)
    (deploy / name).unlink()
    assert name in refused(deploy)


@pytest.mark.parametrize("what", ["model.npy", ""])
def test_a_symbolic_link_is_refused(deploy, tmp_path, what):
    path = deploy / "model/steady/artifact" / what
    moved = tmp_path / "moved"
    path.rename(moved)
    path.symlink_to(moved)
    assert "symbolic link" in refused(deploy)


def test_a_link_to_the_whole_deployment_is_followed(deploy, tmp_path):
    (tmp_path / "current").symlink_to(deploy)
    assert ft.load(tmp_path / "current").folder == deploy


def test_where_a_build_of_torch_is_found_is_in_the_requirements():
    found = deployment.requirements({"torch": "2.13.0+cpu", "numpy": "2.4"}, "0.1").splitlines()
    assert found[:3] == ["frameworktax==0.1", "numpy==2.4", "torch==2.13.0+cpu"]
    assert found[3].startswith("--extra-index-url https://") and found[3].endswith("/whl/cpu")
    assert len(deployment.requirements({"torch": "2.13.0"}, "0.1").splitlines()) == 2


def test_builds_of_one_version_have_other_ids(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    found = []
    for lines in ("e/e.so,sha256=A,9\ne/a.so,sha256=B,9", "e/a.so,sha256=B,9\ne/e.so,sha256=A,9\n"
                  "e/__init__.py,sha256=C,1\n../../bin/e,sha256=D,1", "e/e.so,sha256=E,9", "",
                  None):  # fmt: skip
        folder = tmp_path / "engine-1.0.dist-info"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: engine\nVersion: 1.0\n")
        if lines is not None:
            (folder / "RECORD").write_text(lines)
        found.append(deployment.builds(["engine"]))
    assert found[0] == found[1] != found[2]
    assert [len(one.get("engine", "")) for one in found] == [16, 16, 16, 0, 0]


def test_what_lies_beside_an_artifact_is_refused(deploy):
    (deploy / "model/steady/artifact/model.so").write_bytes(b"")
    assert "model.so does not belong" in refused(deploy)


def test_another_kind_of_machine_is_refused(deploy):
    here = deployment.this_machine()
    change(deploy, machine=replace(here, architecture="aarch64-be"))
    assert "aarch64-be" in refused(deploy)
    change(deploy, machine=replace(here, features=(*here.features, "avx9000")))
    assert "lacks avx9000" in refused(deploy)
    change(deploy, machine=replace(here, features=()))
    assert ft.load(deploy)


def test_another_card_or_driver_is_refused_before_an_engine_is_asked(deploy, monkeypatch):
    made_for = "NVIDIA H200, compute capability 9.0, driver 580.65.06"
    artifact = artifacts.Artifact.read(deploy / "model/steady")
    artifact.gpu = made_for
    artifact.write()
    change(deploy, files=deployment.files_in(deploy))
    here = [made_for]
    monkeypatch.setattr(artifacts, "gpu_name", lambda device: here[0])
    assert ft.load(deploy)
    engine = runtimes.get("steady").loaded
    monkeypatch.setattr(engine, "__init__", lambda *_: pytest.fail("an engine was asked"))
    for other in (made_for.replace("9.0", "8.0"), made_for.replace("580", "570")):
        here[0] = other
        said = refused(deploy)
        assert made_for in said and other in said and COMMAND in said


def test_other_versions_are_refused(deploy):
    change(deploy, packages={"numpy": "1.0"})
    assert "numpy 1.0" in refused(deploy)
    change(deploy, packages={"no-such-engine": "1.0"})
    assert "here is none" in refused(deploy)


def test_a_path_out_of_the_folder_is_refused(deploy):
    files = dict(deployment.parse(deploy).files)
    files["../secret"] = next(iter(files.values()))
    change(deploy, files=files)
    assert "leads out" in refused(deploy)


def test_another_users_files_are_refused(deploy, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    mine = os.stat(deploy).st_uid
    if mine == 0:  # root's files are taken by all
        monkeypatch.setattr(deployment, "ROOT", -1)
    assert f"belongs to user {mine}" in refused(deploy)


@pytest.mark.parametrize(
    ("what", "mode"),
    [
        ("", 0o777),
        ("model", 0o777),
        ("model/steady/artifact/model.npy", 0o777),
        ("model/steady/artifact/model.npy", 0o1777),  # which protects what is in a folder alone
    ],
)
def test_what_every_user_may_write_is_refused(deploy, what, mode):
    (deploy / what).chmod(mode)
    assert "every user" in refused(deploy)


def test_one_that_may_not_be_read_is_not_made_again(deploy, monkeypatch):
    def closed(*_):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(deployment.os, "open", closed)
    said = refused(deploy)
    assert "chmod" in said and "frameworktax optimize" not in said


@pytest.mark.parametrize("proof", [None, "{}", "{"])
def test_one_without_its_proof_is_not_compared(deploy, proof):
    if proof is not None:
        (deploy / "proof.json").write_text(proof)
        change(deploy, files=deployment.files_in(deploy))
    with pytest.raises(DeploymentError, match=COMMAND):
        measure_again(deploy)


@pytest.mark.parametrize(("given", "least", "most"), [(None, 3, 12), (5, 5, 0)])
def test_it_is_measured_again_in_more_processes_where_no_number_was_given(
    deploy, monkeypatch, given, least, most
):
    def run_plan(plan, *_, **__):
        assert (plan.processes, plan.most_processes) == (least, most)
        raise NothingMeasuredError("seen")

    monkeypatch.setattr(comparing, "read", lambda _: Run(measurements=()))
    monkeypatch.setattr(comparing.api, "run_plan", run_plan)
    (deploy / "proof.json").touch()
    with pytest.raises(DeploymentError, match=r"not in manifest\.json"):
        measure_again(deploy, processes=given)
    change(deploy, files=deployment.files_in(deploy))
    with pytest.raises(NothingMeasuredError, match="seen"):
        measure_again(deploy, processes=given)


@pytest.mark.parametrize("beside", [{"b": "results"}, {"metric": "tax"}, {"model": ["a=b"]}])
def test_what_would_be_ignored_beside_a_deployment_is_refused(deploy, beside):
    with pytest.raises(UsageError, match="is a deployment"):
        compare_command(str(deploy), **beside)


def test_what_is_left_of_a_deployment_is_no_store(deploy):
    (deploy / "proof.json").touch()
    (deploy / "manifest.json").unlink()
    with pytest.raises(DeploymentError, match="no deployment in"):
        compare_command(str(deploy), gate="5%")


def test_no_deployment_and_a_damaged_one(deploy, tmp_path):
    assert "no deployment" in refused(tmp_path / "nowhere")
    whole = (deploy / "manifest.json").read_text()
    (deploy / "manifest.json").write_text(whole[:100])
    assert "damaged" in refused(deploy)
    (deploy / "manifest.json").write_text("[" * 100_000)
    assert "damaged" in refused(deploy)
    (deploy / "manifest.json").write_text(json.dumps({**json.loads(whole), "version": 99}))
    assert "99" in refused(deploy)


def test_a_manifest_of_which_any_field_was_changed_is_refused_and_may_be_replaced(deploy):
    path = deploy / "manifest.json"
    whole = json.loads(path.read_text())
    path.write_text(json.dumps(dict(reversed(whole.items()))))
    ft.load(deploy)  # laid out anew, and the same
    for name in [name for name in whole if name != "schema"]:
        for odd in [odd for odd in (None, "a\nb", {}, -1) if odd != whole[name]]:
            path.write_text(json.dumps({**whole, name: odd}))
            assert "rebuild it: " in refused(deploy)
            check_output(deploy, deploy.parent / "store")
    shape = {**whole["shapes"][0], "batch": 2}  # all of the right types
    path.write_text(json.dumps({**whole, "shapes": [shape, *whole["shapes"][1:]]}))
    assert refused(deploy).endswith(f"manifest.json was changed; rebuild it: {COMMAND}")
    path.write_text(json.dumps({**whole, "schema": "something"}))
    assert "damaged" in refused(deploy)
    with pytest.raises(UsageError, match="no deployment"):
        check_output(deploy, deploy.parent / "store")


@pytest.mark.parametrize(
    ("place", "odd"),
    [
        (("packages",), ["numpy"]),
        (("shapes",), 3),
        (("shapes", 0, "sizes"), [3]),
        (("shapes", 0, "sizes"), []),
        (("shapes", 0, "runtime"), "a\nb"),
        (("files", "model/steady/artifact/model.npy"), None),
        (("machine", "system"), "a\nb"),
        (("machine", "features"), 1),
        (("padding",), {"inputs": [], "outputs": []}),
        (("interface", "dtypes"), []),
        (("interface", "inputs"), ["args.x"]),
        (("interface", "parameters"), [["x", "SIDEWAYS", False]]),
        (("interface", "parameters"), [["not a name", "POSITIONAL_ONLY", False]]),
        (("interface", "output"), {"mapping": 3}),
        (("interface", "output"), {"mapping": {"y": {"tensor": "float32"}}}),
    ],
)
def test_a_forged_manifest_is_refused_in_one_line(deploy, place, odd):
    path = deploy / "manifest.json"
    forged = json.loads(path.read_text())
    *above, name = place
    inner = forged
    for key in above:
        inner = inner[key]
    inner[name] = odd
    fields = {k: v for k, v in forged.items() if k not in ("schema", "version", "sha256")}
    path.write_text(json.dumps({**forged, "sha256": deployment._digest(fields)}))
    assert str(deploy) in refused(deploy)


def test_a_folder_in_the_place_of_a_file_is_refused(deploy):
    path = deploy / "model/steady/artifact/model.npy"
    path.unlink()
    path.mkdir()
    before = os.listdir("/proc/self/fd")
    assert "model.npy: Is a directory" in refused(deploy)
    assert os.listdir("/proc/self/fd") == before


# --- structures -----------------------------------------------------------------------------------

Pair = collections.namedtuple("Pair", "left right")


def through_json(data):
    return json.loads(json.dumps(data))


def test_structures_are_built_again():
    import torch

    a, b, c = torch.ones(1), torch.ones(2, dtype=torch.int64), torch.ones(3)
    for result in (a, (a, b), [a, (b, c)], {"p": a, "q": [b, None]}, Pair(a, (b, 3, "x"))):
        structure = through_json(tree(result))
        tensors = [t for t in (a, b, c) if len(dtypes_of(structure)) >= len(t)]
        built = builder(structure)(iter(tensors))
        assert repr(built) == repr(result)
    assert dtypes_of(tree([a, (b, c)])) == ["float32", "int64", "float32"]


def test_a_named_tuple_may_be_pickled_and_have_fields_that_were_renamed():
    import torch

    renamed = collections.namedtuple("Renamed", "left class", rename=True)
    for result in (Pair(1, 2.5), renamed(1, 2.5), torch.topk(torch.tensor([1.0, 3.0]), 1)):
        built = builder(through_json(tree(result)))(iter(result))
        assert type(built).__match_args__ == type(result).__match_args__
        for again in (pickle.loads(pickle.dumps(built)), copy.deepcopy(built)):
            assert type(again) is type(built) and again == built


def test_a_library_s_output_is_stood_in_for():
    import torch

    class ModelOutput(collections.OrderedDict):
        pass

    cache = object()
    given = ModelOutput(last=torch.ones(1), states=(torch.ones(2), torch.ones(3)), cache=cache)
    structure = through_json(tree(given))
    structure["none"] = ["pooled"]
    built = builder(structure)(iter(["a", "b", "c"]))
    assert isinstance(built, Outputs)
    assert built.last == built["last"] == built[0] == built.to_tuple()[0] == "a"
    assert built[1] == ("b", "c")
    assert built.pooled is None
    assert "cache" not in built
    assert deployment.left_out(structure) == built.left_out == ["cache"]
    assert deployment.left_out(tree([{"a": torch.ones(1), "b": (given, given)}])) == ["cache"] * 2
    assert deployment.left_out(tree(torch.ones(1))) == []
    with pytest.raises(AttributeError, match="'cache' is no tensor"):
        _ = built.cache
    with pytest.raises(AttributeError, match="only last, states"):
        _ = built.other
    with pytest.raises(WorkerError, match="object"):
        tree((torch.ones(1), cache))


def test_a_dataclass_is_compared_and_stood_in_for():
    """One beside a tensor was left out of the comparison: whatever it held was equal."""
    import torch

    @dataclass
    class Found:
        box: torch.Tensor
        more: object = None
        again: object = None

    given = (torch.ones(1), Found(torch.zeros(2), again=[torch.ones(3)]))
    assert [t.shape[0] for t in flatten(given)] == [1, 2, 3]
    structure = through_json(tree(given))
    assert dtypes_of(structure) == ["float32"] * 3
    first, found = builder(structure)(iter("abc"))
    assert (first, found.box, found.more, found.again) == ("a", "b", None, ["c"])


@pytest.mark.parametrize("odd", [float("nan"), float("inf"), object()])
def test_what_no_manifest_can_hold_is_refused(odd):
    import torch

    given = models.base.Inputs((torch.ones(1),), {"scale": odd})
    model = models.base.Model(torch.nn.Identity(), lambda batch: given, {"args.0": 0})
    with pytest.raises(WorkerError, match=r"kwargs\.scale is"):
        deployment.describe(model, torch.ones(1))
    with pytest.raises(WorkerError, match="the output holds"):
        tree((torch.ones(1), odd))


def test_a_constant_before_a_tensor_is_part_of_a_call():
    interface = Interface(
        parameters=[*PARAMETERS, ("y", "POSITIONAL_OR_KEYWORD", False)],
        inputs=["args.0", "args.2"],
        dtypes=["float32", "float32"],
        constants={"args.1": 2.0, "args.3": 3},
        output={"list": [{"tensor": "float32"}] * 2},
    )
    given = {"args.0": np.zeros(2, np.float32), "args.2": np.ones(2, np.float32)}
    fast = serving.StandIn(interface, "cpu", {((2,), (2,)): (lambda arrays: arrays, False)})
    args, kwargs = fast.arguments(given, on_torch=False)
    assert (args[1], args[3:], kwargs) == (2.0, [3], {})
    assert [made.tolist() for made in fast(*args, **kwargs)] == [[0, 0], [1, 1]]


def test_constants_may_be_repeated_and_not_changed():
    interface = Interface(
        **through_json(
            asdict(
                Interface(
                    parameters=[*PARAMETERS, ("ids", "KEYWORD_ONLY", True)],
                    inputs=["args.0", "kwargs.ids"],
                    dtypes=["float32", "int64"],
                    constants={"args.1": 2.0},
                    defaults={"scale": 2.0},
                )
            )
        )
    )
    bind = binder(interface)
    assert bind(("x", 2.0), {"ids": "i"}) == ["x", "i"]
    assert bind((), {"ids": "i", "x": "x"}) == ["x", "i"]
    for args, kwargs in ((("x", 3.0), {"ids": "i"}), (("x", None), {"ids": "i"}), (("x",), {})):
        with pytest.raises(DeploymentError):
            bind(args, kwargs)


def test_a_default_that_the_example_left_out_may_be_given_and_not_changed():
    import torch

    class Turns(torch.nn.Module):
        def forward(self, x, flip=False, *, size=2, odd=(), mask=None):
            return x

    given = models.base.Inputs((torch.ones(1),), {"size": 3})
    model = models.base.Model(Turns(), lambda batch: given, {"args.0": 0})
    interface = Interface(**through_json(asdict(deployment.describe(model, torch.ones(1)))))
    bind = binder(interface)
    assert bind(("x", False), {"size": 3, "mask": None}) == bind(("x",), {"size": 3}) == ["x"]
    for args, kwargs in ((("x", True), {}), (("x", 0), {}), (("x",), {"flip": None}),
                         (("x",), {"size": 2}), (("x",), {"odd": None}),
                         (("x",), {"other": None})):  # fmt: skip
        with pytest.raises(DeploymentError):
            bind(args, {"size": 3, **kwargs})


class Scales:
    """A module of which every argument but one may be left out."""

    def forward(self, x, mask=None, scale=2.0, *others, flip=False, **more):
        return x


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((), {"flip": True}),  # False to the module where it is left out
        ((), {"scale": 3.0}),
        ((), {"scale": None}),
        ((None, 3.0), {}),
        ((None, 2.0, 5), {}),
        ((), {"more": 1}),
    ],
)
def test_what_the_export_fixed_is_never_given_in_place_of_the_modules_default(args, kwargs):
    import torch

    x = np.ones(2, np.float32)
    given = models.base.Inputs((torch.ones(2), *args), kwargs)
    model = models.base.Model(Scales(), lambda batch: given, {"args.0": 0})
    interface = Interface(**through_json(asdict(deployment.describe(model, torch.ones(1)))))
    fast = serving.StandIn(interface, "cpu", {((2,),): (lambda arrays: arrays, False)})
    for _ in range(2):
        assert fast(x, *args, **kwargs).tolist() == [1, 1]
        for left_out in (lambda: fast(x), lambda: fast(x=x), lambda: fast(x, None)):
            with pytest.raises(DeploymentError, match=r"no .* given.*; give that"):
                left_out()
    args, kwargs = fast.arguments({"args.0": x}, on_torch=False)
    assert fast(*args, **kwargs).tolist() == [1, 1]


def test_its_signature_has_the_modules_own_defaults():
    import torch

    given = models.base.Inputs((torch.ones(2),), {"flip": True})
    model = models.base.Model(Scales(), lambda batch: given, {"args.0": 0})
    interface = deployment.describe(model, torch.ones(1))
    assert interface.signature() == inspect.signature(model.module.forward)
