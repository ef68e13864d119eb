"""What can be known of the GPU runtimes without a GPU: reasons, in words and without torch."""

import subprocess
import sys
from types import SimpleNamespace

import pytest

from frameworktax import runtimes
from frameworktax.runtimes import cuda_graph, onnxruntime_cuda
from frameworktax.runtimes.base import Target

CUDA = Target(device="cuda:0")


def test_without_a_driver_there_is_no_gpu(tmp_path, monkeypatch):
    monkeypatch.setattr(cuda_graph.shutil, "which", lambda name: None)
    assert cuda_graph.missing_gpu(tmp_path).startswith("no GPU here")


@pytest.mark.parametrize("file", cuda_graph.DRIVERS)
def test_with_a_driver_the_torch_that_is_installed_decides(tmp_path, monkeypatch, file):
    (tmp_path / file).parent.mkdir()
    (tmp_path / file).touch()
    version = tmp_path / "version.py"
    spec = SimpleNamespace(origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(cuda_graph.shutil, "which", lambda name: None)
    monkeypatch.setattr(cuda_graph.importlib.util, "find_spec", lambda name: spec)
    assert cuda_graph.missing_gpu(tmp_path) is None  # no version.py: torch itself will say
    version.write_text("cuda: Optional[str] = None\nhip: Optional[str] = None\n")
    assert "built without CUDA" in cuda_graph.missing_gpu(tmp_path)
    version.write_text("cuda: Optional[str] = '13.0'\nhip: Optional[str] = None\n")
    assert cuda_graph.missing_gpu(tmp_path) is None


@pytest.mark.parametrize(
    ("text", "built"),
    [
        ("cuda: Optional[str] = None\nhip: Optional[str] = None\nxpu = None", False),
        ("cuda = '12.4'\nhip = None", True),
        ("cuda: Optional[str] = None\nhip: Optional[str] = '6.2.1'", True),
        ("debug = False", True),
    ],
)
def test_the_build_is_read_from_its_version_file(text, built):
    assert cuda_graph.built_for_gpu(text) is built


@pytest.mark.parametrize("name", ["cuda-graph", "onnxruntime-cuda"])
def test_on_a_machine_with_a_gpu_the_rest_is_checked(monkeypatch, name):
    monkeypatch.setattr(cuda_graph, "missing_gpu", lambda: None)
    monkeypatch.setattr(onnxruntime_cuda, "missing_gpu", lambda: None)
    runtime = runtimes.get(name)
    monkeypatch.setattr(type(runtime), "packages", ())
    monkeypatch.setattr(onnxruntime_cuda, "missing_provider", lambda: None)
    assert runtime.missing(CUDA) is None
    assert "runs on cuda only" in runtime.missing(Target())
    monkeypatch.setattr(type(runtime), "packages", ("no_such_package",))
    assert "no_such_package not installed" in runtime.missing(CUDA)


def test_onnxruntime_on_cuda_has_no_bfloat16(monkeypatch):
    monkeypatch.setattr(onnxruntime_cuda, "missing_gpu", lambda: None)
    runtime = runtimes.get("onnxruntime-cuda")
    monkeypatch.setattr(type(runtime), "packages", ())
    reason = runtime.missing(Target(device="cuda:0", precision="bfloat16"))
    assert reason == "no bfloat16 here; choose --precision float32, float16"


def test_the_cpu_build_of_onnxruntime_is_told_from_the_gpu_build(tmp_path, monkeypatch):
    spec = SimpleNamespace(origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(onnxruntime_cuda.importlib.util, "find_spec", lambda name: spec)
    assert "CPU build" in onnxruntime_cuda.missing_provider()
    (tmp_path / "capi").mkdir()
    (tmp_path / "capi" / onnxruntime_cuda.LIBRARY).touch()
    assert onnxruntime_cuda.missing_provider() is None


def test_asking_what_is_missing_imports_no_engine():
    code = (
        "import sys; from frameworktax import runtimes; from frameworktax.runtimes.base import "
        "Target\nfor n in ('cuda-graph', 'onnxruntime-cuda'): runtimes.get(n).missing("
        "Target(device='cuda:0'))\nassert not {'torch', 'onnxruntime'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_reason_of_a_broken_capture_is_its_first_error():
    try:
        try:
            raise RuntimeError("CUDA error: operation not permitted when stream is capturing\nmore")
        finally:
            raise RuntimeError(
                "CUDA error: operation failed due to a previous error during capture"
            )
    except RuntimeError as error:
        said = cuda_graph.cause(error)
    assert said.startswith("CUDA error: operation not permitted when stream is capturing; look for")
    assert "\n" not in said


def test_an_error_of_the_model_itself_is_told_as_it_is():
    try:
        try:
            {}["handled by the model"]
        except KeyError:
            raise TypeError("forward() takes 2 arguments")  # noqa: B904 - that is the case tested
    except TypeError as error:
        assert cuda_graph.cause(error) == "forward() takes 2 arguments"
    assert cuda_graph.cause(ValueError()) == "ValueError"


def test_nodes_that_fell_back_are_counted():
    nodes = [(onnxruntime_cuda.PROVIDER, "MatMul")] * 9
    nodes += [("CPUExecutionProvider", "Shape")] * 2 + [("CPUExecutionProvider", "Gather")]
    text = onnxruntime_cuda.fallback_text(nodes)
    assert text == "3 of 12 nodes run on the CPU (Shape 2, Gather 1)"
    assert "does not say how many" in onnxruntime_cuda.fallback_text(None)
