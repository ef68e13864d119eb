"""What the CUDA runtime of ONNX Runtime relies on, checked on the installed one without a GPU."""

from types import SimpleNamespace

import pytest

onnxruntime = pytest.importorskip("onnxruntime")
onnx = pytest.importorskip("onnx")

from frameworktax.errors import WorkerError
from frameworktax.runtimes import onnxruntime_cuda
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
    loaded._stream, loaded._device_id, loaded._fallback = SimpleNamespace(cuda_stream=1), 0, {}
    with pytest.raises(
        WorkerError, match="would run elsewhere: CUDAExecutionProvider did not start"
    ):
        loaded.session(1)
    assert loaded._fallback == {}
