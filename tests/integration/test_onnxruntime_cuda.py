"""What the CUDA runtime of ONNX Runtime relies on, checked on the installed one without a GPU."""

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest

onnxruntime = pytest.importorskip("onnxruntime")
onnx = pytest.importorskip("onnx")

from frameworktax.errors import WorkerError
from frameworktax.runtimes import onnxruntime_cuda
from frameworktax.runtimes.artifacts import Artifact
from frameworktax.runtimes.base import Target


@pytest.fixture
def path(tmp_path):
    port = onnx.helper.make_tensor_value_info
    kind = onnx.TensorProto.FLOAT
    graph = onnx.helper.make_graph(
        [
            onnx.helper.make_node("MatMul", ["a", "a"], ["b"]),
            onnx.helper.make_node("Relu", ["b"], ["c"]),
        ],
        "two",
        [port("a", kind, [4, 4])],
        [port("c", kind, [4, 4])],
    )
    model = onnx.helper.make_model(
        graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=10
    )
    onnx.save(model, tmp_path / "model.onnx")
    return tmp_path / "model.onnx"


def test_nodes_are_counted_by_provider(path):
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    assert sorted(onnxruntime_cuda._assigned(session)) == [
        ("CPUExecutionProvider", "MatMul"),
        ("CPUExecutionProvider", "Relu"),
    ]


@pytest.mark.skipif(
    onnxruntime_cuda.PROVIDER in onnxruntime.get_available_providers(),
    reason="this onnxruntime has the CUDA provider",
)
@pytest.mark.filterwarnings("ignore:Specified provider")
def test_a_provider_that_does_not_start_is_an_error_and_not_the_cpu(path):
    loaded = object.__new__(onnxruntime_cuda.OnnxCudaLoaded)
    loaded._target, loaded._option = Target(device="cuda:0"), ""
    loaded._artifact = SimpleNamespace(file=lambda batch: path, free_dimension=None)
    loaded._stream, loaded._device_id, loaded._notes = SimpleNamespace(cuda_stream=1), 0, []
    with pytest.raises(WorkerError, match="CUDAExecutionProvider"):
        loaded.session(1)
    assert loaded.notes() == []


@pytest.fixture
def loaded(tmp_path, monkeypatch):
    """What serves y = relu(a @ b) on a "device" that is the CPU, in float32, and how it waited."""
    torch = pytest.importorskip("torch")
    port, kind = onnx.helper.make_tensor_value_info, onnx.TensorProto
    graph = onnx.helper.make_graph(
        [
            onnx.helper.make_node("MatMul", ["a", "b"], ["c"]),
            onnx.helper.make_node("Relu", ["c"], ["y"]),
            onnx.helper.make_node("ArgMax", ["y"], ["at"], axis=1, keepdims=0),
        ],
        "served",
        [port("b", kind.FLOAT, [4, 3]), port("a", kind.FLOAT, ["n", 4])],
        [port("y", kind.FLOAT, ["n", 3]), port("at", kind.INT64, ["n"])],
    )
    opset = [onnx.helper.make_opsetid("", 17)]
    model = onnx.helper.make_model(graph, opset_imports=opset, ir_version=10)
    onnx.save(model, tmp_path / "model.onnx")
    for batch in (2, 3):
        arrays = {"0": np.ones((batch, 4), np.float32), "1": np.ones((4, 3), np.float32)}
        np.savez(tmp_path / f"inputs-{batch}.npz", **arrays)
    artifact = Artifact(
        folder=tmp_path, names=["a", "b"], dtypes=["float32"] * 2,
        files={2: "model.onnx", 3: "model.onnx"}, free_dimension="n",
    )  # fmt: skip
    waited = []
    caller = SimpleNamespace(wait_stream=lambda other: waited.append("caller"))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: caller)

    class OnCpu(onnxruntime_cuda.OnnxCudaLoaded):
        place = ("cpu", 0)

        def start(self):
            self._stream = SimpleNamespace(wait_stream=lambda other: waited.append("session"))

        def session(self, batch):
            options = self.session_options(batch)
            return self.open(batch, options, providers=["CPUExecutionProvider"])

    return OnCpu(artifact, Target()), waited


def test_tensors_are_taken_where_they_are_and_outputs_are_new_ones(loaded):
    import torch

    served, waited = loaded
    random = torch.Generator().manual_seed(0)
    one, dynamic = served.serve(2), served.serve(None)
    assert served.takes_torch
    for serve, batch in ((one, 2), (dynamic, 3), (dynamic, 2), (dynamic, 3)):
        a, b = torch.randn(batch, 4, generator=random), torch.randn(4, 3, generator=random)
        waited.clear()
        y, at = serve([a, b])
        assert waited[0] == "session" and waited[-1] == "caller"
        expected = (a @ b).relu()
        kept = y.clone()
        serve([a * 0, b])
        assert torch.equal(y, kept), "a later call changes it"
        torch.testing.assert_close(y, expected)
        assert at.dtype is torch.int64 and torch.equal(at, expected.argmax(1))


def test_several_threads_may_call_at_once(loaded):
    import torch

    serve = loaded[0].serve(None)
    wrong = []

    def work(number):
        a, b = torch.full((2 + number % 2, 4), float(number)), torch.ones(4, 3)
        for _ in range(50):
            if not torch.equal(serve([a, b])[0], (a @ b).relu()):
                wrong.append(number)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))  # raises what any of them did
    assert wrong == []


def test_what_makes_an_engine_a_whole_model_is_read_from_its_file(tmp_path, path):
    """The EPContext model that TensorRT writes for a part of this one has other outputs."""

    def write(file, inputs, outputs):
        port, kind = onnx.helper.make_tensor_value_info, onnx.TensorProto.FLOAT
        node = onnx.helper.make_node("EPContext", inputs, outputs, domain="com.microsoft")
        ports = [[port(name, kind, [4, 4]) for name in names] for names in (inputs, outputs)]
        graph = onnx.helper.make_graph([node], "engine", *ports)
        onnx.save(onnx.helper.make_model(graph), file)

    for (inputs, outputs), wanted in (
        ((["a"], ["c"]), "batch-4/engine.onnx"),
        ((["b"], ["c"]), "model.onnx"),
        ((["a"], ["b"]), "model.onnx"),
    ):
        folder = tmp_path / "-".join(inputs + outputs)
        folder.mkdir()
        (folder / "model.onnx").write_bytes(path.read_bytes())
        loaded = object.__new__(onnxruntime_cuda.TensorRtLoaded)
        loaded._artifact = Artifact(folder=folder, names=["a"], dtypes=["float32"],
                                    files={4: "model.onnx"})  # fmt: skip
        loaded._start = lambda batch, *, may_fall_back, made=(inputs, outputs), own=loaded: write(
            own._written["trt_ep_context_file_path"], *made
        )
        assert loaded.build(4) == wanted
        assert sorted(p.name for p in folder.iterdir()) == [wanted.partition("/")[0]]
