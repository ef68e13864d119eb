"""What can be known of the GPU runtimes without a GPU: reasons, in words and without torch."""

import gc
import importlib
import os
import subprocess
import sys
import tempfile
import threading
import weakref
from contextlib import contextmanager, nullcontext
from functools import partial
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace

import pytest

from frameworktax import api, host, runtimes
from frameworktax.errors import UsageError, WorkerError, ends_device
from frameworktax.measure import series
from frameworktax.measure.plan import Plan, points_for
from frameworktax.measure.series import series_of
from frameworktax.models.base import Inputs, Model
from frameworktax.models.finalize import check_device
from frameworktax.optimize import race
from frameworktax.optimize.run import Asked, deliverable
from frameworktax.records import Workload
from frameworktax.runtimes import (
    artifacts,
    cuda_graph,
    deployment,
    inductor,
    onnxruntime_cuda,
    torch_common,
)
from frameworktax.runtimes.base import Target

CUDA = Target(device="cuda:0")
libraries = importlib.import_module("frameworktax.models.libraries")


@pytest.mark.parametrize("file", ["dev/nvidia3", "dev/dxg", "dev/kfd"])
def test_a_driver_shows_by_its_files(tmp_path, file):
    assert not host.gpu_makers(tmp_path)
    (tmp_path / file).parent.mkdir()
    (tmp_path / file).touch()
    assert host.gpu_makers(tmp_path)


def test_without_a_driver_there_is_no_gpu(monkeypatch):
    monkeypatch.setattr(host, "gpu_makers", frozenset)
    assert cuda_graph.missing_gpu().startswith("no GPU here")


def test_with_a_driver_the_torch_that_is_installed_decides(tmp_path, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(host, "gpu_makers", lambda: frozenset({"NVIDIA"}))
    version = tmp_path / "version.py"
    spec = SimpleNamespace(origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(cuda_graph.importlib.util, "find_spec", lambda name: spec)
    assert cuda_graph.missing_gpu() is None  # no version.py: torch itself will say
    version.write_text("cuda: Optional[str] = None\nhip: Optional[str] = None\n")
    assert "built without CUDA" in cuda_graph.missing_gpu()
    version.write_text("cuda: Optional[str] = None\nhip: Optional[str] = '7.0'\n")
    assert "built for AMD's" in cuda_graph.missing_gpu()
    version.write_text("cuda: Optional[str] = '13.0'\nhip: Optional[str] = None\n")
    assert cuda_graph.missing_gpu() is None
    # A chip of another maker has a driver too, and a torch for CUDA is what pip installs.
    monkeypatch.setattr(host, "gpu_makers", lambda: frozenset({"AMD"}))
    assert "built for NVIDIA's" in cuda_graph.missing_gpu()


@pytest.mark.parametrize(
    ("shown", "is_hidden"), [("", True), ("-1", True), ("NoDevFiles", True), ("1", False)]
)
def test_a_process_that_is_shown_no_gpu_has_none(monkeypatch, shown, is_hidden):
    monkeypatch.setattr(host, "gpu_makers", lambda: frozenset({"NVIDIA"}))
    monkeypatch.setattr(cuda_graph.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", shown)
    assert (cuda_graph.missing_gpu() is not None) == is_hidden


@pytest.mark.parametrize(
    ("has_torch", "missing", "device"),
    [(True, None, "cuda:0"), (True, "built without CUDA", "cpu"), (False, None, "cpu")],
)
def test_auto_is_the_gpu_where_torch_was_built_for_one(monkeypatch, has_torch, missing, device):
    """By torch itself: a system's may have no metadata, and a CPU's no +cpu in its version."""
    monkeypatch.setattr(cuda_graph, "missing_gpu", lambda: missing)
    monkeypatch.setattr(api.importlib.util, "find_spec", lambda name: has_torch or None)
    assert api.pick_device("auto") == device


def test_a_device_has_one_name_and_its_number_is_one(monkeypatch):
    monkeypatch.setattr(api.host, "gpu_makers", lambda: {"NVIDIA"})
    assert [api.pick_device(text) for text in ("cuda", "cuda:", "cuda:1", "cuda:01")] == [
        "cuda:0", "cuda:0", "cuda:1", "cuda:1"
    ]  # fmt: skip
    with pytest.raises(UsageError, match="no device"):
        api.pick_device("cuda:²")


@pytest.mark.parametrize(("begun", "forked"), [(True, False), (False, True)])
def test_a_process_that_has_begun_cuda_is_not_to_be_forked(monkeypatch, begun, forked):
    cuda = SimpleNamespace(is_initialized=lambda: begun, _is_in_bad_fork=lambda: forked)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    assert libraries.uses_device()


def test_nor_is_one_that_has_a_device_open(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setattr(libraries, "DEVICES", ("/dev/full",))
    assert not libraries.uses_device()
    with open("/dev/full"):
        assert libraries.uses_device()


@pytest.mark.parametrize(("device", "more"), [("cpu", ("inductor",)), ("cuda:0", ())])
def test_what_counts_devices_at_import_is_not_imported_ahead_for_a_device(tmp_path, device, more):
    points = points_for(Workload(model="mlp"), batches=[1], runtimes=["inductor"], device=device)
    (one,) = series_of(points, Plan(points=points, folder=tmp_path), tmp_path)
    assert one.libraries == ("torch", *more)


@pytest.mark.parametrize(
    ("text", "built"),
    [
        ("cuda: Optional[str] = None\nhip: Optional[str] = None\nxpu = None", set()),
        ("cuda = '12.4'\nhip = None", {"NVIDIA"}),
        ("cuda: Optional[str] = None\nhip: Optional[str] = '6.2.1'", {"AMD"}),
        ("debug = False", {"AMD", "NVIDIA"}),
    ],
)
def test_the_build_is_read_from_its_version_file(text, built):
    assert cuda_graph.built_for(text) == built


def test_on_a_device_dense_text_comes_without_its_mask(monkeypatch):
    pytest.importorskip("transformers")
    from frameworktax import models

    finishing = importlib.import_module("frameworktax.models.finalize")
    monkeypatch.setattr(finishing, "place", lambda model, *more, **named: model)
    small = {"model": "bert-tiny", "length": 8}
    there = models.build(Workload(**small), "cuda:0")
    assert set(there.inputs(2).kwargs) == {"input_ids"} == {p[7:] for p in there.batch_dims}
    assert "no-mask" in [code for code, _ in there.notes]
    here = models.build(Workload(**small), "cpu")
    assert set(here.inputs(2).kwargs) == {"input_ids", "attention_mask"}
    ragged = models.build(Workload(**small, input="ragged", length_mean=5, length_sd=1), "cuda:0")
    assert "attention_mask" in ragged.inputs(2).kwargs


def test_the_floor_synchronises_on_a_device(torch):
    loaded = runtimes.get("null").load(None, CUDA, None)
    loaded.bind(1)()
    assert torch.cuda.waited == []
    loaded.synchronize()
    assert torch.cuda.waited == ["cuda:0"]


@pytest.mark.parametrize(
    ("precision", "benchmark", "said"),
    [("float32", False, ("heuristics", "without TF32")), ("float16", False, ("heuristics",)),
     ("float32", True, ("timing them", "without TF32"))],
)  # fmt: skip
def test_the_choice_of_convolutions_and_tf32_is_recorded(monkeypatch, precision, benchmark, said):
    cudnn = SimpleNamespace(benchmark=benchmark)
    fake = SimpleNamespace(backends=SimpleNamespace(cudnn=cudnn))
    monkeypatch.setitem(sys.modules, "torch", fake)
    model = Model(module=None, inputs=lambda batch: Inputs(), batch_dims={})

    def notes(target):
        return torch_common.TorchLoaded(model, target, None, None).notes()

    assert notes(Target()) == []
    ((code, text),) = notes(Target("cuda:0", precision))
    assert code == "device-arithmetic"
    assert [word in text for word in ("heuristics", "timing them", "without TF32")] == [
        word in said for word in ("heuristics", "timing them", "without TF32")
    ]


GPU_ONLY = [
    "cuda-graph", "onnxruntime-cuda", "onnxruntime-cuda-graph", "tensorrt",
]  # fmt: skip


@pytest.mark.parametrize("name", GPU_ONLY)
def test_on_a_machine_with_a_gpu_the_rest_is_checked(monkeypatch, name):
    monkeypatch.setattr(cuda_graph, "missing_gpu", lambda: None)
    monkeypatch.setattr(onnxruntime_cuda, "missing_gpu", lambda: None)
    runtime = runtimes.get(name)
    monkeypatch.setattr(type(runtime), "packages", ())
    monkeypatch.setattr(onnxruntime_cuda, "missing_provider", lambda library: None)
    assert runtime.missing(CUDA) is None
    assert "--device cuda" in runtime.missing(Target())
    monkeypatch.setattr(type(runtime), "packages", ("no_such_package",))
    assert "no_such_package not installed" in runtime.missing(CUDA)


def test_onnxruntime_on_cuda_has_no_bfloat16(monkeypatch):
    monkeypatch.setattr(onnxruntime_cuda, "missing_gpu", lambda: None)
    runtime = runtimes.get("onnxruntime-cuda")
    monkeypatch.setattr(type(runtime), "packages", ())
    reason = runtime.missing(Target(device="cuda:0", precision="bfloat16"))
    assert "bfloat16" in reason and reason.endswith("--precision float32, float16")


def test_the_cpu_build_of_onnxruntime_is_told_from_the_gpu_build(tmp_path, monkeypatch):
    spec = SimpleNamespace(origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(onnxruntime_cuda.importlib.util, "find_spec", lambda name: spec)
    for library in (onnxruntime_cuda.LIBRARY, onnxruntime_cuda.TENSORRT_LIBRARY):
        assert "CPU build" in onnxruntime_cuda.missing_provider(library)
        (tmp_path / "capi").mkdir(exist_ok=True)
        (tmp_path / "capi" / library).touch()
        assert onnxruntime_cuda.missing_provider(library) is None


def test_the_reason_of_a_broken_capture_is_its_first_error():
    try:
        try:
            raise RuntimeError("CUDA error: operation not permitted when stream is capturing\nmore")
        finally:
            raise RuntimeError(
                "CUDA error: operation failed due to a previous error during capture"
            )
    except RuntimeError as error:
        said = cuda_graph.reason(cuda_graph.cause(error))
    assert said.startswith("CUDA error: operation not permitted when stream is capturing; ")
    assert "\n" not in said


def test_an_error_of_the_model_itself_is_told_as_it_is():
    try:
        try:
            {}["handled by the model"]
        except KeyError:
            raise TypeError("forward() takes 2 arguments")  # noqa: B904 - that is the case tested
    except TypeError as error:
        assert cuda_graph.reason(cuda_graph.cause(error)) == "forward() takes 2 arguments"
    assert cuda_graph.reason(ValueError()) == "ValueError"


def test_nodes_that_fell_back_are_counted():
    nodes = [(onnxruntime_cuda.PROVIDER, "MatMul")] * 9
    nodes += [("CPUExecutionProvider", "Shape")] * 2 + [("CPUExecutionProvider", "Gather")]
    text = onnxruntime_cuda.fallback_text(nodes)
    assert text.startswith("3 of 12 ") and text.endswith("CPU (Shape 2, Gather 1)")


# --- ONNX Runtime's two further modes, on a fake that writes down what it is asked -------------


class FakeSession:
    """Runs nothing; a session with a graph records its first run that may be recorded."""

    def __init__(self, path, options, providers, enable_fallback):
        self.providers = providers
        self.options = options
        self.runs = []
        self.recorded = None
        self.sessions.append(self)

    def get_providers(self):
        return [name for name, _ in self.providers]

    def get_inputs(self):
        return [SimpleNamespace(name="x")]

    def get_outputs(self):
        return [SimpleNamespace(name="y")]

    def io_binding(self):
        return FakeBinding()

    def run_with_iobinding(self, binding, options):
        self.runs.append((dict(binding.outputs), dict(options.entries)))
        graph = self.providers[0][1].get("enable_cuda_graph") == "1"
        if graph and options.entries.get("gpu_graph_id") != "-1" and self.recorded is None:
            self.recorded = dict(binding.outputs)


class FakeBinding:
    def __init__(self):
        self.outputs = {}

    def bind_ortvalue_input(self, name, value):
        self.input = value

    def bind_output(self, name, *place):
        self.outputs[name] = "wherever"

    def get_outputs(self):
        return ["its final place"]

    def bind_ortvalue_output(self, name, value):
        self.outputs[name] = value


class FakeOptions:
    def __init__(self):
        self.entries = {}

    def add_run_config_entry(self, key, value):
        self.entries[key] = value

    add_session_config_entry = add_run_config_entry


@pytest.fixture
def loaded(monkeypatch, tmp_path):
    """A maker of what a GPU runtime loads, over fakes of torch and onnxruntime."""
    FakeSession.sessions = []
    ort = SimpleNamespace(
        InferenceSession=FakeSession,
        SessionOptions=FakeOptions,
        RunOptions=FakeOptions,
        preload_dlls=lambda: None,
        GraphOptimizationLevel=SimpleNamespace(ORT_ENABLE_ALL=99),
        OrtValue=SimpleNamespace(ortvalue_from_numpy=lambda array, *place: (array, place)),
    )
    stream = SimpleNamespace(cuda_stream=4711)
    cuda = SimpleNamespace(
        set_device=lambda device: None,
        Stream=lambda device: stream,
        set_stream=lambda given: None,
        synchronize=lambda device: None,
    )
    torch = SimpleNamespace(cuda=cuda, device=lambda name: SimpleNamespace(index=0))
    for name, fake in (("onnxruntime", ort), ("torch", torch), ("tensorrt", SimpleNamespace())):
        monkeypatch.setitem(sys.modules, name, fake)
    artifact = SimpleNamespace(
        directory=tmp_path,
        files={1: "model.onnx", 4: "model.onnx"},
        file=lambda batch: tmp_path / "model.onnx",
        inputs=lambda batch: ["array"],
        names=["x"],
        free_dimension=None,
        notes=[],
        gpu=None,
    )
    monkeypatch.setattr(artifacts.Artifact, "read", lambda directory: artifact)
    monkeypatch.delenv("NVIDIA_TF32_OVERRIDE", raising=False)

    def load(name, **target):
        return runtimes.get(name).load(None, Target(device="cuda:0", **target), tmp_path)

    return load


def test_a_graph_is_recorded_with_outputs_in_their_final_place(loaded):
    call = loaded("onnxruntime-cuda-graph").bind(1)
    (session,) = FakeSession.sessions
    (_, settings), *_ = session.providers
    assert settings == {
        "device_id": "0", "user_compute_stream": "4711", "use_tf32": "0", "enable_cuda_graph": "1",
    }  # fmt: skip
    assert session.recorded is None, "the run that gives the shapes must not be recorded"
    call()
    assert session.recorded == {"y": "its final place"}


def test_without_a_graph_every_run_is_the_same(loaded):
    call = loaded("onnxruntime-cuda").bind(1)
    call()
    (session,) = FakeSession.sessions
    assert session.recorded is None
    assert [entries for _, entries in session.runs] == [
        {"disable_synchronize_execution_providers": "1"}
    ] * 2


@pytest.mark.parametrize(("precision", "half"), [("float32", "0"), ("float16", "1")])
def test_tensorrt_comes_before_cuda_and_keeps_its_engines(loaded, tmp_path, precision, half):
    runtime = loaded("tensorrt", precision=precision)
    for batch in (1, 4):
        runtime.bind(batch)
        session = FakeSession.sessions[-1]
        assert session.get_providers() == [onnxruntime_cuda.TENSORRT, onnxruntime_cuda.PROVIDER]
        settings = session.providers[0][1]
        assert settings["trt_fp16_enable"] == half
        assert settings["trt_engine_cache_path"] == str(tmp_path / "engines" / str(batch))
        assert settings["trt_timing_cache_path"] == str(tmp_path / "engines")
        assert (tmp_path / "engines" / str(batch)).is_dir()
    assert len(FakeSession.sessions) == 2
    assert os.environ["NVIDIA_TF32_OVERRIDE"] == "0"


def test_tensorrt_that_does_not_start_is_an_error_and_not_cuda(loaded, monkeypatch):
    monkeypatch.setattr(FakeSession, "get_providers", lambda self: [onnxruntime_cuda.PROVIDER])
    with pytest.raises(WorkerError, match="TensorrtExecutionProvider did not start"):
        loaded("tensorrt").bind(1)


def test_graphs_of_inductor_are_refused_on_a_cpu():
    reason = runtimes.get("inductor-reduce-overhead").missing(Target())
    assert reason is not None and reason.endswith("--device cuda")


# --- what torch is asked, on a fake of it ------------------------------------------------------


class Input:
    """Stands for a tensor that a graph reads at its address."""


class Graph:
    def replay(self):
        pass


@pytest.fixture
def torch(monkeypatch):
    """A torch that captures what is called and replays nothing."""
    stream = SimpleNamespace(wait_stream=lambda other: None, synchronize=lambda: None)
    cuda = SimpleNamespace(
        CUDAGraph=Graph,
        Stream=lambda: stream,
        current_stream=lambda: stream,
        graph=lambda graph, stream, **mode: nullcontext(),
        stream=lambda stream: nullcontext(),
        set_device=lambda device: cuda.devices.append(device),
        devices=[],
        synchronize=lambda device: cuda.waited.append(device),
        waited=[],
    )
    fake = SimpleNamespace(
        backends=SimpleNamespace(cudnn=SimpleNamespace(allow_tf32=True)),
        cuda=cuda,
        inference_mode=nullcontext,
        set_float32_matmul_precision=lambda kind: None,
        set_num_interop_threads=lambda threads: None,
        set_num_threads=lambda threads: None,
    )
    monkeypatch.setitem(sys.modules, "torch", fake)
    return fake


def test_what_a_graph_reads_lives_as_long_as_its_replay(torch, tmp_path):
    """Freed, its place would be the next batch size's, and the replay would read that."""
    made = []

    def inputs(batch):
        given = Input()
        made.append(weakref.ref(given))
        return Inputs(args=(given,))

    model = Model(module=lambda given: "output", inputs=inputs, batch_dims={})
    loaded = runtimes.get("cuda-graph").load(model, CUDA, tmp_path)
    replays = [loaded.bind(batch) for batch in (1, 4)]
    del loaded
    gc.collect()
    assert [replay() for replay in replays] == ["output"] * 2
    assert all(given() is not None for given in made)
    replays.clear()
    gc.collect()
    assert all(given() is None for given in made)


@pytest.mark.parametrize(("precision", "stays"), [("float32", False), ("float16", True)])
def test_the_device_asked_for_is_the_current_one_and_float32_is_no_tf32(torch, precision, stays):
    torch_common.configure(Target(device="cuda:1", precision=precision))
    assert torch.cuda.devices == ["cuda:1"]
    assert torch.backends.cudnn.allow_tf32 is stays
    torch_common.configure(Target())
    assert torch.cuda.devices == ["cuda:1"]


NO_TF32 = """
import torch
torch.cuda.set_device = lambda device: None
{said}
from frameworktax.runtimes.base import Target
from frameworktax.runtimes.torch_common import configure
configure(Target("cuda:0"))
cuda, cudnn = torch.backends.cuda, torch.backends.cudnn
parts = [cuda.matmul, *(getattr(cudnn, name) for name in ("conv", "rnn") if hasattr(cudnn, name))]
print(*(getattr(part, "fp32_precision", "ieee") for part in parts))
print(cuda.matmul.allow_tf32, cudnn.allow_tf32)  # which raises where its two parts differ
"""


@pytest.mark.parametrize("said", ["torch.backends", "torch.backends.cudnn"])
def test_what_the_models_code_says_of_tf32_does_not_hold_for_float32(said):
    """Of all back ends, or of cuDNN: the words that torch has from 2.9 on."""
    pytest.importorskip("torch")
    code = NO_TF32.format(said=f"{said}.fp32_precision = 'tf32'")
    made = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    precisions, flags = made.stdout.splitlines()
    assert "tf32" not in precisions
    assert flags == "False False"


TUNED = {"max_autotune": True, "coordinate_descent_tuning": True}


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("inductor", {}),
        ("inductor-reduce-overhead", {"options": {"triton.cudagraphs": True}}),
        ("inductor-max-autotune", {"options": TUNED}),
    ],
)
def test_inductor_on_a_device_compiles_no_cpp(torch, monkeypatch, tmp_path, name, options):
    """Which vector instructions there are takes half a minute to find, and no kernel has any."""
    asked = []
    monkeypatch.setattr(inductor, "use_directory", lambda folder, *, in_cpp: asked.append(in_cpp))
    torch._dynamo = SimpleNamespace(
        config=SimpleNamespace(), utils=SimpleNamespace(counters={"stats": {}})
    )
    monkeypatch.setitem(sys.modules, "torch._dynamo", torch._dynamo)
    monkeypatch.setitem(sys.modules, "torch._dynamo.utils", torch._dynamo.utils)
    torch.compile = lambda module, **given: asked.append(given)
    torch.compiler = SimpleNamespace(cudagraph_mark_step_begin=None)
    torch.no_grad = nullcontext
    model = Model(module=None, inputs=lambda batch: Inputs(), batch_dims={})
    runtimes.get(name).load(model, CUDA, tmp_path)
    assert asked == [False, {"dynamic": False, **options}]


@pytest.mark.parametrize(
    ("graphs", "breaks", "skipped", "codes"),
    [
        (1, {}, 0, []),
        (1, {}, 2, ["graphs-skipped"]),
        (2, {"item()\n Hint: none": 4, "print": 1}, 0, ["graph-breaks"]),
        (0, {}, 0, ["graph-breaks"]),
    ],
)
def test_what_torch_compile_left_out_is_noted(torch, monkeypatch, graphs, breaks, skipped, codes):
    counters = {"stats": {"unique_graphs": graphs}, "graph_break": breaks}
    counters["inductor"] = {"cudagraph_skips": skipped}
    monkeypatch.setitem(sys.modules, "torch._dynamo", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "torch._dynamo.utils", SimpleNamespace(counters=counters))
    model = Model(module=None, inputs=lambda batch: Inputs(), batch_dims={})
    loaded = inductor._CompiledLoaded(model, CUDA, None, None)
    loaded.bind(1)
    notes = [note for note in loaded.notes() if note[0] != "device-arithmetic"]
    assert [code for code, _ in notes] == codes
    assert all("\n" not in text for _, text in notes)
    assert not breaks or notes[0][1].endswith(": item() and 1 more")


def test_an_error_of_a_kernel_in_the_calls_before_is_not_said_to_be_of_the_capture(torch):
    """It comes with the next synchronise, and the process is of no use any more."""
    wrong = RuntimeError("CUDA error: an illegal memory access was encountered")
    pending = []

    def synchronize():
        if pending:
            raise wrong

    @contextmanager
    def graph(graph, stream, **mode):
        synchronize()
        yield

    waiting = {"wait_stream": lambda other: None, "synchronize": synchronize}
    torch.cuda.Stream, torch.cuda.graph = lambda: SimpleNamespace(**waiting), graph
    torch.cuda.set_stream = lambda stream: None
    with pytest.raises(RuntimeError) as raised:
        cuda_graph.recorded(lambda: pending.append(1))
    assert raised.value is wrong
    assert ends_device(wrong)


class OutOfMemoryError(RuntimeError):
    """Named like torch's."""


@pytest.mark.parametrize(
    ("first", "status"),
    [
        (OutOfMemoryError("CUDA ran out"), "out-of-memory"),
        (RuntimeError("CUDA error: out of memory"), "out-of-memory"),
        (RuntimeError("operation not permitted when stream is capturing"), "failed"),
    ],
)
def test_memory_that_runs_out_in_a_capture_has_its_own_status(torch, first, status):
    @contextmanager
    def capturing(graph, stream, **mode):
        try:
            yield
        finally:
            raise RuntimeError("operation failed due to a previous error during capture")

    def call():
        calls.append(1)
        if len(calls) > cuda_graph.WARM_CALLS:
            raise first

    calls, torch.cuda.graph, torch.cuda.set_stream = [], capturing, lambda stream: None
    with pytest.raises(WorkerError) as raised:
        cuda_graph.recorded(call)
    assert raised.value.status == status


# --- graphs that are delivered -----------------------------------------------------------------


class Memory:
    """A tensor whose changes are written down: on which stream, in which order."""

    def __init__(self, log, data):
        self.log, self.data = log, data

    def copy_(self, other):
        self.log.append("in")
        self.data = other.data

    def clone(self):
        self.log.append("out")
        return Memory(self.log, self.data)


class Doubling(Graph):
    """A program of one kernel: after its capture, replaying it doubles what lies at its input."""

    def __call__(self, given):
        output = Memory(given.log, 2 * given.data)

        def replay():
            given.log.append("replay")
            self.meanwhile()
            output.data = 2 * given.data

        self.kernels = replay
        return [output]

    def meanwhile(self):
        """Run while the graph works."""


@pytest.fixture
def graphed(torch, monkeypatch):
    """A served graph, its program, and what it and the streams of its callers do, in order."""
    log = []

    class Event:
        recorded = None

        def record(self, stream):
            log.append("record")
            self.recorded = stream

    program = Doubling()
    program.replay = lambda: program.kernels()
    stream = SimpleNamespace(
        wait_stream=lambda other: None,
        wait_event=lambda event: log.append(f"wait for {event.recorded and 'the last'}"),
    )
    cuda = torch.cuda
    cuda.CUDAGraph, cuda.Event, torch.no_grad = (lambda: program), Event, nullcontext
    cuda.current_stream = lambda device=None: stream
    serve = cuda_graph.replaying(program, [Memory(log, 1)], "cuda:0")
    return serve, program, log


def test_a_served_graph_computes_from_what_it_is_given_and_later_calls_change_nothing(graphed):
    serve, _, log = graphed
    (first,) = serve([Memory(log, 5)])
    (second,) = serve([Memory(log, 7)])
    assert (first.data, second.data) == (10, 14)
    each = ["in", "replay", "out", "record"]
    assert log == ["record", *(["wait for the last", *each] * 2)]


def test_each_graph_is_captured_on_the_stream_that_its_call_was_warm_on(torch):
    """Not on torch's default, one for all: of one device, and of one workspace of cuBLAS."""
    warm, captured = [], []
    still = {"wait_stream": lambda other: None, "synchronize": lambda: None}
    torch.cuda.Stream = lambda: SimpleNamespace(**still)
    torch.cuda.stream = lambda stream: warm.append(stream) or nullcontext()
    modes = []

    def graph(graph, stream=None, capture_error_mode="global"):
        captured.append(stream)
        modes.append(capture_error_mode)
        return nullcontext()

    torch.cuda.graph = graph
    for _ in range(2):
        cuda_graph.recorded(lambda: None)
    assert captured == warm
    assert captured[0] is not captured[1]
    assert set(modes) == {"thread_local"}, "other threads' calls of CUDA would break it"


def test_two_threads_never_use_the_memory_of_a_graph_at_once(graphed):
    serve, program, log = graphed
    made, others = {}, []

    def call(value):
        made[value] = serve([Memory(log, value)])[0].data

    def meanwhile():
        if not others:
            others.append(threading.Thread(target=call, args=(7,)))
            others[0].start()
            others[0].join(0.2)
            assert made == {}, "the other call did not wait"

    program.meanwhile = meanwhile
    call(5)
    others[0].join()
    assert made == {5: 10, 7: 14}


def test_what_cannot_be_captured_is_not_served_and_says_why(torch):
    torch.no_grad, torch.cuda.set_stream = nullcontext, lambda stream: None
    calls = []

    def program(given):
        calls.append(given)
        if len(calls) > cuda_graph.WARM_CALLS:
            raise RuntimeError("operation not permitted when stream is capturing")

    with pytest.raises(WorkerError, match=r"cannot be captured: .*\.item\(\)"):
        cuda_graph.replaying(program, [1], "cuda:0")


@pytest.mark.parametrize("name", ["torchscript", "torchscript-frozen", "aot-inductor"])
def test_graphs_are_for_devices_and_race_there(monkeypatch, name):
    monkeypatch.setattr(inductor.CompiledRuntime, "missing", torch_common.TorchRuntime.missing)
    graph = runtimes.get(f"{name}@graph")
    assert str(graph.missing(Target())).endswith("--device cuda")
    assert graph.serves_with == ("torch",)
    workload = Workload(model="mlp")
    for wanted in ([name], [name, f"{name}@graph"]):
        assert deliverable(wanted, CUDA, workload)[0] == [name, f"{name}@graph"]
    graph_first = deliverable([f"{name}@graph", name], CUDA, workload)[0]
    assert graph_first == [f"{name}@graph", name]
    assert deliverable(name, Target(), workload)[0] == [name]
    names = [n for _, n in race.with_tunings([(workload, name)], CUDA)]
    assert f"{name}@graph" not in names, "it raced already"


def test_a_package_in_a_graph_has_one_runner_and_no_events(torch, monkeypatch, tmp_path):
    """And is loaded once for all batch sizes that share it."""
    asked = []

    def loader(path, name, alone, runners, at):
        asked.append((path, alone, runners, at))
        return SimpleNamespace(run=lambda tensors: tensors)

    torch._C = SimpleNamespace(_aoti=SimpleNamespace(AOTIModelPackageLoader=loader))
    torch.device = lambda name: SimpleNamespace(index=0)
    artifact = artifacts.Artifact(
        folder=tmp_path, names=["x"], dtypes=["float32"],
        files={1: "model-1.pt2", 2: "model.pt2", 4: "model.pt2"},
    )  # fmt: skip
    for option, wanted in (("", (False, inductor.RUNNERS)), ("graph", (True, 1))):
        loaded = inductor._Loaded(artifact, CUDA, option)
        for batch in artifact.files:
            loaded.servable(batch)
        assert asked == [
            (str(tmp_path / name), *wanted, 0) for name in ("model-1.pt2", "model.pt2")
        ]
        asked.clear()


def test_a_package_is_unpacked_in_the_folder_of_the_session(torch, monkeypatch, tmp_path):
    """Measuring processes are killed, and what lies beside an artifact stays in the cache."""
    session, folder, unpacked = tmp_path / "session", tmp_path / "kept" / "artifact", []
    session.mkdir()
    folder.mkdir(parents=True)
    monkeypatch.setenv("TMPDIR", str(session))
    monkeypatch.setattr(tempfile, "tempdir", None)
    artifact = artifacts.Artifact(folder=folder, names=[], dtypes=[])
    for target in (CUDA, Target()):
        loaded = inductor._Loaded(artifact, target)
        monkeypatch.setattr(
            loaded, "_own_loader", lambda *_: unpacked.append(Path(os.environ["TMPDIR"]))
        )
        loaded.open(folder / "model.pt2")
        assert unpacked[-1].parent == session
        assert unpacked[-1].exists() == target.is_cuda  # whose kernels are read when first launched
    assert os.environ["TMPDIR"] == str(session)
    assert list(folder.parent.iterdir()) == [folder]


@pytest.fixture(params=["", "cpu", "cuda"])
def cast(request):
    """What the program's autocast is on for."""
    return request.param


@pytest.fixture
def program_s(torch, cast):
    """Return what of a program's torch anything may change, as it is now."""

    def place(kind, **inner):
        return SimpleNamespace(fp32_precision=kind, **inner)

    backends = torch.backends = SimpleNamespace(
        cuda=SimpleNamespace(matmul=place("tf32")),
        mkldnn=SimpleNamespace(matmul=place("none")),
        cudnn=place("none", allow_tf32=True, conv=place("tf32"), rnn=place("none")),
    )
    now = {"threads": 8, "device": 3, "float32": "high", "cast": cast}
    for of, name, words in (
        (torch, "threads", "num_threads"),
        (torch, "float32", "float32_matmul_precision"),
        (torch.cuda, "device", "device"),
    ):
        setattr(of, f"set_{words}", partial(now.__setitem__, name))
        setattr(of, f"get_{words}", partial(now.get, name))
    torch.cuda.current_device = torch.cuda.get_device
    torch.set_num_interop_threads = lambda threads: pytest.fail("settable once")
    torch.no_grad = nullcontext
    torch.is_autocast_enabled = lambda kind: now["cast"] == kind

    @contextmanager
    def autocast(kind, *, enabled):
        assert not enabled
        before, now["cast"] = now["cast"], "" if kind == now["cast"] else now["cast"]
        try:
            yield
        finally:
            now["cast"] = before

    torch.autocast = autocast
    places = ("cuda.matmul", "mkldnn.matmul", "cudnn", "cudnn.conv", "cudnn.rnn")

    def state():
        found = {name: attrgetter(name)(backends).fp32_precision for name in places}
        return {**now, **found, "allowed": backends.cudnn.allow_tf32}

    return state


def program_of(run, target, option=""):
    class Loaded(artifacts.TorchArtifactLoaded):
        def open(self, path):
            pytest.fail("another program is served")

        def servable(self, batch):
            return run

        def tensors(self, batch):
            return [f"inputs of {batch}"]

    loaded = object.__new__(Loaded)
    loaded._option, loaded._target = option, target
    return loaded


class Made:
    """Stands for an output, in memory of its own unless it is a clone's original."""

    def __init__(self, at=None):
        self.at = id(self) if at is None else at

    def data_ptr(self):
        return self.at

    def numel(self):
        return 1

    def clone(self):
        return Made()


def on_a_device(threads=1, **fields):
    wanted = {"threads": threads, "device": "cuda:1", "float32": "highest", "allowed": False}
    return {**wanted, "cudnn": "ieee", "cudnn.conv": "ieee", "cudnn.rnn": "ieee", **fields}


@pytest.mark.parametrize(
    ("target", "wanted"),
    [
        (Target(), {"threads": 1}),
        (Target(threads=8), {"threads": 8}),
        (Target(device="cuda:1"), on_a_device()),
        (Target(device="cuda:1", precision="float16"), {"threads": 1, "device": "cuda:1"}),
    ],
)
def test_a_program_that_loads_and_calls_a_deployment_has_its_own_settings_again(
    program_s, cast, target, wanted
):
    before, seen = program_s(), []

    def run(given):
        seen.append(program_s())
        if given == "fails":
            raise RuntimeError
        return [Made()]

    serve = program_of(run, target).serve(4)
    assert program_s() == before
    serve(["x"])
    with pytest.raises(RuntimeError):
        serve(["fails"])
    assert program_s() == before
    wanted = {**before, **wanted, "cast": "" if target.device.startswith(cast) else cast}
    assert seen == [wanted] * len(seen)


def test_settings_that_torch_does_not_read_since_they_are_mixed_are_put_back(torch, program_s):
    """By its new names alone TF32 is on: asked by the old one, torch raises."""

    def mixed():
        raise RuntimeError("mix of the legacy and new APIs")

    torch.get_float32_matmul_precision, before = mixed, program_s()
    with torch_common.configured(Target(device="cuda:1")):
        torch.backends.cuda.matmul.fp32_precision = "ieee"  # as setting the old one does
    assert {**program_s(), "float32": ""} == {**before, "float32": ""}


@pytest.mark.parametrize("batch", [4, None])
def test_kernels_are_compiled_when_a_program_is_loaded(program_s, batch):
    for target, wanted in ((CUDA, cuda_graph.WARM_CALLS), (Target(), 2)):
        calls = []
        program_of(lambda given, to=calls: to.append(given) or [Made()], target).serve(batch)
        assert calls == [f"inputs of {batch}"] * wanted


def test_constants_of_a_program_are_not_handed_out(program_s):
    """A frozen program computes what no input changes once: callers would write into that."""
    made = program_of(lambda given: [Made(), Made(7)], Target()).serve(4)(["x"])
    assert [one.at == id(one) for one in made] == [True, True]


def test_other_sizes_than_a_graph_was_captured_for_have_no_artifact(tmp_path):
    made = artifacts.Artifact(
        folder=tmp_path, names=["x"], dtypes=["float32"], is_fixed=True,
        files={2: "model.pt", 4: "model.pt"},
    )  # fmt: skip
    assert made.dynamic is None
    with pytest.raises(WorkerError):
        made.file(None)


def test_why_a_runtime_of_graphs_is_not_delivered_is_in_the_race(monkeypatch):
    _, others = deliverable(["all", "torchscript"], CUDA, Workload(model="mlp"))
    reasons = dict(others)
    assert "code" in reasons["cuda-graph"]
    assert "measuring alone" in reasons["onnxruntime-cuda-graph"]


def test_memory_is_no_goal_on_a_device(monkeypatch):
    monkeypatch.setattr(api, "pick_device", lambda device: "cuda:0")
    with pytest.raises(UsageError, match="peak memory"):
        Asked(model="mlp", aim="memory")
    assert Asked(model="mlp", aim="startup").device == "cuda:0"


def test_a_card_is_known_by_its_name_its_architecture_and_its_driver(torch, monkeypatch):
    card = SimpleNamespace(name="NVIDIA H200", major=9, minor=0)
    torch.cuda.get_device_properties = {"cuda:0": card}.get
    monkeypatch.setattr(torch_common, "read", lambda root, path: "580.65.06")
    name = torch_common.gpu_name("cuda:0")
    assert name == "NVIDIA H200, compute capability 9.0, driver 580.65.06"

    def none(device):
        raise AssertionError("Torch not compiled with CUDA enabled")

    torch.cuda.get_device_properties = none
    assert "no GPU" in torch_common.gpu_name("cuda:0")


def test_a_device_that_does_not_work_says_why(monkeypatch):
    def init():
        raise RuntimeError("The NVIDIA driver on your system is too old\n(found version 11040)")

    cuda = SimpleNamespace(is_available=lambda: False, init=init)
    for version, why in (("13.0", "driver on your system is too old (found"), (None, "no CUDA")):
        fake = SimpleNamespace(cuda=cuda, version=SimpleNamespace(cuda=version, hip=None))
        monkeypatch.setitem(sys.modules, "torch", fake)
        with pytest.raises(UsageError) as raised:
            check_device("cuda:0")
        assert why in str(raised.value) and "\n" not in str(raised.value)
        assert str(raised.value).endswith("choose --device cpu")


def test_what_was_compiled_for_another_card_is_not_taken_from_the_cache(monkeypatch):
    cards = iter(["H100", "H200", "H200"])
    monkeypatch.setattr(series, "_gpus", lambda: [{"name": next(cards), "driver": "580"}])
    workload = Workload(model="mlp")
    (point,) = points_for(workload, batches=[1], runtimes=["aot-inductor"], device="cuda:0")
    first, second, third = (series.artifact_key(point, [1], {}) for _ in range(3))
    assert first != second == third


def test_which_of_several_kinds_of_cards_is_shown_is_part_of_what_is_compiled_for_it(monkeypatch):
    """``cuda:0`` is another card then, for which the artefact of the first one is refused."""
    keys = {}
    (point,) = points_for(
        Workload(model="mlp"), batches=[1], runtimes=["aot-inductor"], device="cuda:0"
    )
    for names in (("A100", "L4"), ("L4", "L4")):
        found = [{"name": name, "driver": "580"} for name in names]
        monkeypatch.setattr(series, "_gpus", lambda found=found: found)
        for shown in "01":
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", shown)
            keys[names, shown] = series.artifact_key(point, [1], {})
    assert keys[("A100", "L4"), "0"] != keys[("A100", "L4"), "1"]
    assert keys[("L4", "L4"), "0"] == keys[("L4", "L4"), "1"]


# --- engines of TensorRT that are delivered ----------------------------------------------------


@pytest.fixture
def engines(loaded, monkeypatch, tmp_path):
    """What TensorRT is exported to and loaded from; ``takes`` says which outputs it computes."""
    port = SimpleNamespace
    takes = ["y"]

    class Building(FakeSession):
        def __init__(self, path, options, providers, enable_fallback):
            super().__init__(path, options, providers, enable_fallback)
            self.path, settings = Path(path), providers[0][1]
            if settings.get("trt_dump_ep_context_model") == "1":
                file = Path(settings["trt_ep_context_file_path"])
                file.write_text("\n".join(takes))
                file.with_name("TRTKernel_sm90.engine").write_bytes(b"engine")
            elif "trt_engine_cache_path" in settings:
                Path(settings["trt_engine_cache_path"], "another.engine").touch()

    def read(path, load_external_data):
        names = Path(path).read_text().splitlines()
        return port(graph=port(input=[port(name="x")], output=[port(name=n) for n in names]))

    def export(made, *, static):
        assert static, "an engine with sizes of its own is built when a session starts"
        files = {1: "model-1.onnx", 4: "model-4.onnx"}
        for name in files.values():
            (made.folder / name).write_text("y")
            (made.folder / f"{name}.data").touch()
        return files

    sys.modules["onnxruntime"].InferenceSession = Building
    monkeypatch.setitem(sys.modules, "onnx", SimpleNamespace(load=read))
    monkeypatch.setattr(onnxruntime_cuda, "export_onnx", export)
    folder = tmp_path / "length-16/tensorrt/artifact"
    folder.mkdir(parents=True)
    made = artifacts.Artifact(folder=folder, names=["x"], dtypes=["float32"])
    made.target = Target(device="cuda:0", precision="float16")
    monkeypatch.setattr(artifacts.Artifact, "read", lambda directory: made)
    return made, takes


def test_engines_are_built_before_files_are_hashed_and_not_when_they_are_loaded(
    engines, tmp_path, monkeypatch
):
    made, _ = engines
    runtime = runtimes.get("tensorrt")
    assert set(runtime.serves_with) == {"onnxruntime-gpu", "tensorrt", "torch"}
    made.files = runtime.write(made)
    assert os.environ["NVIDIA_TF32_OVERRIDE"] == "0"
    hashed = deployment.files_in(tmp_path)
    artifact = "length-16/tensorrt/artifact"
    assert set(hashed) == {
        f"{artifact}/batch-{batch}/{name}"
        for batch in (1, 4) for name in ("engine.onnx", "TRTKernel_sm90.engine")
    }  # fmt: skip
    assert {s.providers[0][1]["trt_fp16_enable"] for s in FakeSession.sessions} == {"1"}
    monkeypatch.delenv("NVIDIA_TF32_OVERRIDE")
    FakeSession.sessions.clear()
    loaded = runtime.load(None, CUDA, tmp_path)
    for batch in made.files:
        loaded.session(batch)
    assert deployment.files_in(tmp_path) == hashed
    paths = [str(session.path.relative_to(made.folder)) for session in FakeSession.sessions]
    assert paths == ["batch-1/engine.onnx", "batch-4/engine.onnx"]
    settings = {key for s in FakeSession.sessions for key in s.providers[0][1]}
    assert not [key for key in settings if "cache" in key or "dump" in key]
    assert "NVIDIA_TF32_OVERRIDE" not in os.environ, "best not set where an engine runs"
    with pytest.raises(WorkerError, match="only parts"):
        loaded.serve(None)


def test_an_engine_of_a_part_of_the_model_is_measured_and_not_delivered(engines, tmp_path):
    made, takes = engines
    takes[:] = ["inner"]  # of the last part that was written
    runtime = runtimes.get("tensorrt")
    made.files = runtime.write(made)
    assert made.files == {1: "model-1.onnx", 4: "model-4.onnx"}
    loaded = runtime.load(None, CUDA, tmp_path)
    with pytest.raises(WorkerError, match=r"parts .*onnxruntime-cuda") as refused:
        loaded.serve(1)
    assert refused.value.status == "unavailable"
    made.inputs = lambda batch: ["array"]
    loaded.bind(4)
    cache = FakeSession.sessions[-1].providers[0][1]["trt_engine_cache_path"]
    assert cache == str(made.directory / "engines" / "4")
    assert not deployment.files_in(made.folder).keys() - {
        f"model-{batch}.onnx{end}" for batch in (1, 4) for end in ("", ".data")
    }
