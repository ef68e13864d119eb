"""Every runtime on small models: agrees with eager, loads lightly in a fresh process."""

from __future__ import annotations

import functools
import gc
import json
import shutil
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from frameworktax import models, runtimes
from frameworktax.errors import WorkerError
from frameworktax.host.cache import cache_folder
from frameworktax.measure.parity import TOLERANCE
from frameworktax.models.base import Inputs, Model, draw
from frameworktax.records import FLOOR, Workload
from frameworktax.runtimes.artifacts import Artifact, ArtifactLoaded
from frameworktax.runtimes.base import LOWER, Target
from frameworktax.runtimes.deployment import tree
from frameworktax.runtimes.serving import builder
from frameworktax.runtimes.torch_common import flatten, to_arrays

torch = pytest.importorskip("torch")

BATCHES = [1, 3]
TARGET = Target()
WORKLOADS = {
    "bert-tiny": Workload(model="bert-tiny", length=16, depth=0.5),
    "mlp": Workload(model="mlp", width=0.125, depth=0.25),
    "resnet-18": Workload(model="resnet-18", width=0.25, image_size=32),
    "conv": Workload(model="conv", width=0.25, depth=0.25),
    "gpt2": Workload(model="gpt2", length=8, width=0.1, depth=0.1),
}


APART = ("eager", "jax", "executorch", "litert", "iree", "tract", "zentorch", FLOOR)


def compared(prepares: bool) -> list[str]:
    """Return the runtimes to compare with eager here; ``test_runtimes_apart.py`` has some."""
    return [
        name
        for name, runtime in ((name, runtimes.get(name)) for name in runtimes.BUILT_IN)
        if runtime.prepares == prepares
        and {"cpu", "dense"} <= {*runtime.devices, *runtime.inputs}
        and not (runtime.by_name_only or name in APART)
    ]


WITHOUT_TORCH = ("onnxruntime", "openvino")

FRESH = """
import json, sys
from pathlib import Path
import numpy as np
from frameworktax import runtimes
from frameworktax.runtimes.base import Target
name, folders, batches = json.loads(sys.argv[1])
notes = []
for folder in folders:
    loaded = runtimes.get(name).load(None, Target(), Path(folder))
    for batch in batches:
        call = loaded.bind(batch)
        call()
        result = call()
        loaded.synchronize()
        np.savez(Path(folder) / f"outputs-{batch}.npz", *loaded.outputs(result))
    notes.append(loaded.notes())
heavy = ("transformers", "torch", "onnx", "openvino", "onnxruntime", "pydantic", "pandas")
print(json.dumps([[m for m in heavy if m in sys.modules], notes]))
"""


def runnable(name: str, target: Target = TARGET):
    runtime = runtimes.get(name)
    missing = runtime.missing(target)
    if missing:
        pytest.skip(f"{name}: {missing}")
    return runtime


@pytest.fixture(scope="module", autouse=True)
def compile_little():
    """Let Inductor compile one kernel and little else.

    Headers compiled for many kernels, and a look for each instruction set, take longer than it.
    """
    from torch._inductor import config, cpu_vec_isa

    settings = {"cpp_cache_precompile_headers": False, "aot_inductor.precompile_headers": False}
    settings["aot_inductor.compile_wrapper_opt_level"] = "O0"
    with config.patch(settings), pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpu_vec_isa, "supported_vec_isa_list", [cpu_vec_isa.VecAVX2()])
        yield


@pytest.fixture(scope="module", autouse=True)
def no_telemetry():
    """As in a measuring process: OpenVINO reports its conversions to no server."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "openvino_telemetry", None)
        yield


@pytest.fixture(scope="module", autouse=True)
def register_once():
    """Let torch's ONNX exporter read its table of operators once, not for each model: a second."""
    from torch.onnx._internal.exporter._registration import ONNXRegistry

    with pytest.MonkeyPatch.context() as patch:
        once = staticmethod(functools.cache(ONNXRegistry.from_torchlib))
        patch.setattr(ONNXRegistry, "from_torchlib", once)
        yield


@pytest.fixture(scope="module")
def prepared(tmp_path_factory) -> Callable[[str, str], Path]:
    """Return a function: the folder of a runtime's export of a model, made once for all tests.

    For one batch size more than most tests run: a file is known to serve any where it serves two.
    """

    @functools.cache
    def made(name: str, key: str) -> Path:
        folder = tmp_path_factory.mktemp(name)
        batches = [*batches_for(name), 4]
        runnable(name).prepare(models.build(WORKLOADS[key]), batches, TARGET, folder)
        return folder

    return made


def batches_for(name: str) -> list[int]:
    """Return the batch sizes to compare; to compile for another takes long."""
    return BATCHES[1:] if runtimes.get(name).compiles else BATCHES


def fresh(name: str, folders: list[Path]):
    """Load in a process of its own; return the modules it imported, and notes by folder.

    Outputs lie in each folder, ``outputs-BATCH.npz``.
    """
    request = json.dumps([name, list(map(str, folders)), batches_for(name)])
    done = subprocess.run([sys.executable, "-c", FRESH, request], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def eager(model: Model, batch: int, target: Target = TARGET) -> list[np.ndarray]:
    loaded = runtimes.get("eager").load(model, target, Path())
    return loaded.outputs(loaded.bind(batch)())


def assert_close(ours: list[np.ndarray], reference: list[np.ndarray], tolerance=1e-4) -> None:
    assert [a.shape for a in ours] == [a.shape for a in reference]
    for a, b in zip(ours, reference, strict=True):
        assert a.dtype == b.dtype
        assert np.abs(b).max() > 0.1, "a degenerate reference proves nothing"
        assert np.abs(a - b).max() / np.abs(b).max() < tolerance


def keys_for(name: str) -> list[str]:
    """Compiling takes long: compiled runtimes get the smallest model.

    Exporting takes seconds a layer: exported ones get convolutions without the rest of a ResNet.
    gpt2 through the exporters is in test_runtimes_decoding.py.
    """
    if runtimes.get(name).compiles:
        return ["mlp"]
    if name in WITHOUT_TORCH:
        return ["bert-tiny", "mlp", "conv"]
    return [key for key in WORKLOADS if key != "conv"]


@pytest.mark.parametrize(
    ("name", "key"), [(name, key) for name in compared(prepares=False) for key in keys_for(name)]
)
def test_in_process_runtimes_agree_with_eager(name: str, key: str, tmp_path: Path) -> None:
    runtime = runnable(name)
    model = models.build(WORKLOADS[key])
    loaded = runtime.load(model, TARGET, tmp_path)
    for batch in batches_for(name):
        assert_close(loaded.outputs(loaded.bind(batch)()), eager(model, batch))
    if name == "inductor":
        assert any((tmp_path / "inductor-cache").rglob("*.so"))
        assert any((cache_folder() / "inductor-common").rglob("*.so"))  # for every model
        assert [code for code, _ in loaded.notes()] == ["compile-options"]


@pytest.mark.parametrize("name", compared(prepares=True))
def test_artifacts_agree_with_eager_in_a_fresh_process(name: str, prepared) -> None:
    folders = {key: prepared(name, key) for key in keys_for(name)}
    imported, notes = fresh(name, list(folders.values()))
    assert "transformers" not in imported
    assert "torch" not in imported or name not in WITHOUT_TORCH
    assert "exported-per-batch" not in [code for of_one in notes for code, _ in of_one]
    for key, folder in folders.items():
        model = models.build(WORKLOADS[key])
        for batch in batches_for(name):
            with np.load(folder / f"outputs-{batch}.npz") as stored:
                assert_close([stored[k] for k in stored.files], eager(model, batch))
        leftovers = {path.name for path in folder.iterdir()} - {f"outputs-{b}.npz" for b in BATCHES}
        assert leftovers <= {"artifact", "inductor-cache"}


def test_aot_inductor_compiles_once_for_batch_1_and_once_for_all_others(
    tmp_path: Path, monkeypatch
) -> None:
    runtime = runnable("aot-inductor")
    compiled = []

    def package(program, *, package_path, inductor_configs):
        compiled.append([tuple(a.shape) for a in program.example_inputs[0]])
        Path(package_path).touch()

    monkeypatch.setattr("torch._inductor.aoti_compile_and_package", package)
    runtime.prepare(models.build(WORKLOADS["mlp"]), [1, 2, 3], TARGET, tmp_path)
    assert Artifact.read(tmp_path).files == {1: "model-1.pt2", 2: "model.pt2", 3: "model.pt2"}
    assert [shape[0] for (shape,) in compiled] == [1, 2]


@pytest.mark.parametrize("name", ["torchscript-frozen", "onnxruntime", "openvino"])
def test_what_only_exports_statically_is_exported_for_each_batch(name: str, tmp_path: Path) -> None:
    runtime = runnable(name)

    class Fixed(torch.nn.Module):
        def forward(self, x):
            size = int(x.shape[0])
            return torch.cat([x[i : i + 1] * (i + size) for i in range(size)]) + 1

    model = Model(
        Fixed().eval(), lambda b: Inputs((torch.arange(4.0 * b).reshape(b, 4),)), {"args.0": 0}
    )
    runtime.prepare(model, BATCHES, TARGET, tmp_path)
    loaded = runtime.load(None, TARGET, tmp_path)
    assert [code for code, _ in loaded.notes()] == ["exported-per-batch"]
    assert len(set(Artifact.read(tmp_path).files.values())) == 2
    for batch in BATCHES:
        assert_close(loaded.outputs(loaded.bind(batch)()), eager(model, batch))


@pytest.mark.parametrize("kind", ["numpy", "number", "branch", "random", "raises"])
def test_a_trace_in_which_values_are_fixed_is_refused(kind: str, tmp_path: Path) -> None:
    """It agrees with eager on the example, and was shown as the fastest runtime."""

    class Reads(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(4, 4)

        def forward(self, x):
            y = self.linear(x)
            if kind == "numpy":
                return torch.from_numpy(y.numpy() * 2)
            if kind == "number":
                return y + y.max().item()
            if kind == "branch":
                return y if x[0, 0] == 1 else -y
            if kind == "raises" and x[0, 0] != 1:
                raise ValueError
            return y + torch.rand(()) if kind == "random" else y

    rows = torch.arange(1.0, 9.0).reshape(2, 4)
    model = Model(Reads().eval(), lambda b: Inputs((rows[:b].clone(),)), {"args.0": 0})
    prepare = functools.partial(runtimes.get("torchscript").prepare, model, [1, 2], TARGET)
    if kind in ("random", "raises"):  # nothing can be compared
        prepare(tmp_path)
    else:
        with pytest.raises(WorkerError, match="other values"):
            prepare(tmp_path)


@pytest.mark.parametrize("name", ["onnxruntime", "openvino", "aot-inductor"])
def test_what_is_torchscript_already_is_refused_by_what_exports(name: str, tmp_path: Path) -> None:
    """It said "Sequential.forward() takes 2 positional arguments but 3 were given"."""
    module = torch.jit.script(torch.nn.Sequential(torch.nn.Linear(4, 4)).eval())
    model = Model(module, lambda b: Inputs((torch.ones(b, 4),)), {"args.0": 0})
    with pytest.raises(WorkerError, match="the module that it was made from"):
        runnable(name).prepare(model, BATCHES, TARGET, tmp_path)


def test_a_trace_of_a_module_that_writes_into_its_inputs_serves_all_batches(tmp_path) -> None:
    class Normalised(torch.nn.Module):
        def forward(self, x):
            return x.sub_(0.5).div_(0.5)

    model = Model(Normalised().eval(), lambda b: Inputs((torch.ones(b, 4),)), {"args.0": 0})
    runtimes.get("torchscript").prepare(model, [1, 2], TARGET, tmp_path)
    assert set(Artifact.read(tmp_path).files.values()) == {"model.pt"}


class Reading(torch.nn.Module):
    """Makes a Python number of a value: of its input, of its weights, or of a size."""

    def __init__(self, of) -> None:
        super().__init__()
        self.register_buffer("scale", torch.tensor(2.0))
        self.of = of

    def forward(self, x):
        found = torch.zeros(4)
        found[0] = x.abs().max()
        x = x[:, : self.scale.long()]  # a slice by a tensor is in the trace
        value = {
            "input": found.sum,
            "list": lambda: found.tolist()[0],
            "array": lambda: np.asarray(found).sum(),
            "equal": lambda: 2 if torch.equal(found, found * 2) else 3,
            "range": lambda: sum(1 for _ in range(found.sum().long())),
            "weight": lambda: self.scale * 1,
            "size": lambda: x.shape[0] * x.shape[1],
        }[self.of]()
        return x * 2 if value > 1000 else x + torch.arange(x.abs().max() * 0 + 2)


READ = ("input", "list", "array", "equal", "range")


@pytest.mark.parametrize(
    ("of", "codes"), [*((of, {"values-fixed"}) for of in READ), ("weight", set()), ("size", set())]
)
def test_a_trace_that_fixes_what_a_value_of_its_inputs_decides_says_so(of, codes, tmp_path):
    model = Model(Reading(of).eval(), lambda b: Inputs((torch.ones(b, 4),)), {"args.0": 0})
    runtime = runtimes.get("torchscript")
    runtime.prepare(model, [1, 2], TARGET, tmp_path)
    notes = runtime.load(None, TARGET, tmp_path).notes()
    assert {code for code, _ in notes} == codes
    assert all(f"{Path(__file__).name}:" in text for _, text in notes)


def test_what_ends_in_a_convolution_is_traced_and_followed(tmp_path) -> None:
    module = torch.nn.Conv2d(3, 3, 3)
    model = Model(module.eval(), lambda b: Inputs((torch.ones(b, 3, 8, 8),)), {"args.0": 0})
    runtime = runtimes.get("torchscript")
    runtime.prepare(model, BATCHES, TARGET, tmp_path)
    loaded = runtime.load(None, TARGET, tmp_path)
    assert not loaded.notes()
    assert_close(loaded.outputs(loaded.bind(1)()), eager(model, 1))


class Transformer(Reading):
    """What the optimiser of transformers takes for one."""

    config = SimpleNamespace(model_type="bert")

    def set_attn_implementation(self, name: str) -> None:
        assert name == "eager"


@pytest.mark.parametrize(("of", "is_fixed"), [("input", True), ("size", False)])
def test_the_old_exporter_traces_and_says_what_it_fixes_too(of, is_fixed, tmp_path):
    runtime = runnable("onnxruntime@fused")
    model = Model(Transformer(of).eval(), lambda b: Inputs((torch.ones(b, 4),)), {"args.0": 0})
    runtime.prepare(model, [1, 2], TARGET, tmp_path)
    codes = {code for code, _ in Artifact.read(tmp_path).notes}
    assert ("values-fixed" in codes) == is_fixed


def test_what_torch_compile_leaves_to_eager_is_said(tmp_path):
    runtime = runnable("inductor")

    class Uncompiled(torch.nn.Linear):
        @torch.compiler.disable
        def forward(self, x):
            return super().forward(x)

    module = Uncompiled(4, 4).eval()
    model = Model(module, lambda b: Inputs((torch.ones(b, 4),)), {"args.0": 0})
    loaded = runtime.load(model, TARGET, tmp_path)
    assert [code for code, _ in loaded.notes()] == ["compile-options"]
    loaded.bind(1)()
    (text,) = [text for code, text in loaded.notes() if code == "graph-breaks"]
    assert "compiled nothing" in text


def test_what_converts_only_a_fixed_batch_is_converted_for_each(tmp_path, monkeypatch) -> None:
    runtime, model = runnable("onnxruntime"), models.build(WORKLOADS["mlp"])
    export = torch.onnx.export

    def refusing(program, *args, **given):
        if program.range_constraints:
            (folder,) = tmp_path.glob(".artifact*.partial")
            (folder / "model.onnx.data").touch()
            raise ValueError("a symbolic size")
        return export(program, *args, **given)

    monkeypatch.setattr(torch.onnx, "export", refusing)
    runtime.prepare(model, BATCHES, TARGET, tmp_path)
    assert Artifact.read(tmp_path).files == {1: "model-1.onnx", 3: "model-3.onnx"}
    loaded = runtime.load(None, TARGET, tmp_path)
    ((code, text),) = loaded.notes()
    assert code == "exported-per-batch" and "a symbolic size" in text
    assert not list((tmp_path / "artifact").glob("model.*"))
    for batch in BATCHES:
        assert_close(loaded.outputs(loaded.bind(batch)()), eager(model, batch))


@pytest.mark.parametrize(
    "name", ["inference-mode", "torchscript", "torchscript-frozen", "openvino"]
)
def test_bfloat16_on_a_cpu(name: str, tmp_path: Path) -> None:
    target = Target(precision="bfloat16")
    runtime = runnable(name, target)
    model = models.build(Workload(model="mlp", width=0.125, precision="bfloat16"))
    runtime.prepare(model, BATCHES, target, tmp_path)
    loaded = runtime.load(model if runtime.needs_model else None, target, tmp_path)
    for batch in BATCHES:
        ours = loaded.outputs(loaded.bind(batch)())
        assert_close(ours, eager(model, batch, target), tolerance=0.05)


@pytest.mark.parametrize("name", ["eager", "onnxruntime"])
def test_int8_is_near_float32_and_not_it(name: str, tmp_path: Path) -> None:
    """Dynamic quantisation: a difference of some thousandths, and every product counted."""
    target = Target(precision="int8")
    runtime = runnable(name, target)
    model = models.build(Workload(model="mlp", width=0.125, precision="int8"))
    runtime.prepare(model, BATCHES, target, tmp_path)
    loaded = runtime.load(model if runtime.needs_model else None, target, tmp_path)
    for batch in BATCHES:
        reference = eager(model, batch)
        ours = loaded.outputs(loaded.bind(batch)())
        assert_close(ours, reference, tolerance=0.05)
        assert np.abs(ours[0] - reference[0]).max() / np.abs(reference[0]).max() > 1e-4
    if name == "onnxruntime":
        assert "quantize_dynamic: 8 of 8 " in dict(loaded.notes())["quantised-weights"]


def test_int8_of_a_convolution_and_a_head_that_narrows(tmp_path: Path) -> None:
    """The exporter leaves the shape of a weight as it was before it was transposed."""
    target = Target(precision="int8")
    runtime = runnable("onnxruntime", target)
    torch.manual_seed(0)
    layers = [torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(32, 5)]
    for layer in (layers[0], layers[3]):
        # One weight twice as large as any other, beside a zero: the others have 7 bits then, and
        # pairs of products fit the 16 bits that processors without VNNI add them in.
        rows = layer.weight.data.view(layer.weight.shape[0], -1)
        rows[0, 0], rows[0, 1] = 2 * rows.abs().max(), 0.0
    model = Model(
        torch.nn.Sequential(*layers).eval(),
        lambda b: Inputs((torch.arange(48.0 * b).reshape(b, 3, 4, 4) % 7 - 3,)),
        {"args.0": 0},
    )
    runtime.prepare(model, BATCHES, target, tmp_path)
    loaded = runtime.load(None, target, tmp_path)
    for batch in BATCHES:
        assert_close(loaded.outputs(loaded.bind(batch)()), eager(model, batch), tolerance=0.05)
    assert "quantize_dynamic: 2 of 2 " in dict(loaded.notes())["quantised-weights"]


@pytest.mark.parametrize(
    ("module", "inputs"), [(torch.nn.ReLU(), 1), (torch.nn.MultiheadAttention(4, 1), 3)]
)
def test_int8_without_a_linear_layer_is_refused(module: torch.nn.Module, inputs: int) -> None:
    """Torch leaves the one of its attention as it is."""
    model = Model(module, lambda b: Inputs((torch.ones(b, 4),) * inputs), {"args.0": 0})
    with pytest.raises(WorkerError, match=r"linear layer.*--precision") as caught:
        runtimes.get("eager").load(model, Target(precision="int8"), Path())
    assert caught.value.status == "unavailable"


@pytest.mark.parametrize(
    "option", [option for option in runtimes.get("onnxruntime").options if option not in LOWER]
)
def test_levels_of_onnxruntime_agree_and_say_what_was_fused(option: str, prepared) -> None:
    runtime = runnable(f"onnxruntime@{option}")
    assert runtime.name == f"onnxruntime@{option}"
    model = models.build(WORKLOADS["bert-tiny"])
    folder = prepared(runtime.name if option == "fused" else "onnxruntime", "bert-tiny")
    loaded = runtime.load(None, TARGET, folder)
    for batch in BATCHES:
        assert_close(loaded.outputs(loaded.bind(batch)()), eager(model, batch))
    notes = dict(loaded.notes())
    assert notes.keys() == ({"attention-fused"} if option == "fused" else set())
    assert all(" 1 of 1 " in text for text in notes.values())
    assert {path.name for path in (folder / "artifact").iterdir()} == {
        "manifest.json", "model.onnx", "inputs-1.npz", "inputs-3.npz", "inputs-4.npz",
    }  # fmt: skip


def test_fused_attention_masks_what_the_mask_says_and_not_the_ends_of_rows(prepared) -> None:
    runtime = runnable("onnxruntime@fused")
    loaded = runtime.load(None, TARGET, prepared("onnxruntime@fused", "bert-tiny"))
    model, serve = models.build(WORKLOADS["bert-tiny"]), loaded.serve(4)
    given = model.inputs(4).kwargs
    mask = torch.ones_like(given["attention_mask"])
    mask[0, 1::2], mask[1, :3], mask[2, 3:] = 0, 0, 0  # holes, and padding on each side
    with torch.no_grad():
        expected = to_arrays(model.module(**{**given, "attention_mask": mask}))
    made = serve([(mask if name == "attention_mask" else t).numpy() for name, t in given.items()])
    assert_close([array.astype(np.float64) for array in made], expected)


def test_only_transformers_can_be_fused(tmp_path: Path) -> None:
    runtime = runnable("onnxruntime@fused")
    with pytest.raises(WorkerError, match="no transformer to fuse"):
        runtime.prepare(models.build(WORKLOADS["mlp"]), BATCHES, TARGET, tmp_path)


@pytest.mark.parametrize("name", ["onnxruntime", "openvino"])
def test_an_onnx_file_is_taken_as_it_is(name: str, prepared, tmp_path: Path) -> None:
    runtime = runnable(name)
    made = models.build(WORKLOADS["mlp"])
    artifact = Artifact.read(prepared("onnxruntime", "mlp"))
    (port,) = artifact.names

    def inputs(batch: int) -> Inputs:
        return Inputs(kwargs={port: torch.from_numpy(artifact.inputs(batch)[0])})

    dims = {f"kwargs.{port}": 0}
    model = Model(torch.nn.Identity(), inputs, dims, onnx_path=artifact.file(1))
    before = artifact.file(1).stat()
    runtime.prepare(model, BATCHES, TARGET, tmp_path / "taken")
    loaded = runtime.load(None, TARGET, tmp_path / "taken")
    for batch in BATCHES:
        assert_close(loaded.outputs(loaded.bind(batch)()), eager(made, batch))
    assert artifact.file(1).stat() == before
    assert not list((tmp_path / "taken").rglob("*.onnx"))


def test_an_onnx_file_gets_its_sizes_filled_in(prepared, tmp_path: Path) -> None:
    """For engines that want fixed shapes; the same outputs, and the file as it was."""
    import onnx
    import onnxruntime

    made = models.build(WORKLOADS["mlp"])
    source = Artifact.read(prepared("onnxruntime", "mlp"))
    (port,) = source.names
    before = source.file(1).stat()
    model = Model(
        torch.nn.Identity(),
        lambda batch: Inputs(kwargs={port: torch.from_numpy(source.inputs(batch)[0])}),
        {f"kwargs.{port}": 0},
        onnx_path=source.file(1),
    )
    runtimes.get("tract").prepare(model, BATCHES, TARGET, tmp_path / "fixed")
    fixed = Artifact.read(tmp_path / "fixed")
    for batch in BATCHES:
        graph = onnx.load(fixed.file(batch)).graph
        assert graph.input[0].type.tensor_type.shape.dim[0].dim_value == batch
        assert not graph.value_info
        session = onnxruntime.InferenceSession(fixed.file(batch))
        found = session.run(None, {port: fixed.inputs(batch)[0]})
        assert_close([a.astype(np.float64) for a in found], eager(made, batch))
    assert source.file(1).stat() == before


def test_an_onnx_file_is_not_for_every_runtime() -> None:
    workload = Workload(model="onnx:model.onnx")
    takers = {n for n in runtimes.BUILT_IN if runtimes.get(n).cannot(workload) is None}
    assert takers >= {"onnxruntime", "openvino", "iree", "tract", "onnxruntime-cuda"}
    assert not takers & {"eager", "inductor", "torchscript", "jax", "executorch", "litert"}
    reason = runtimes.get("eager").cannot(workload)
    assert reason is not None and reason.endswith("--runtimes onnxruntime,openvino")


def test_openvino_takes_no_more_threads_than_cores_and_says_so(prepared) -> None:
    runtime = runnable("openvino")
    notes = []
    for threads in (1, 4096):
        loaded = runtime.load(None, Target(threads=threads), prepared("openvino", "mlp"))
        loaded.bind(1)
        notes.append([text for code, text in loaded.notes() if code == "threads-differ"])
    assert not notes[0] and "asked for 4096" in notes[1][0]


def test_openvino_computes_in_the_precision_asked_for(prepared) -> None:
    """Unasked it takes bfloat16 where the CPU has it; float32 must then be nearer by far."""
    runtime = runnable("openvino")
    model = models.build(WORKLOADS["mlp"])
    loaded = runtime.load(None, TARGET, prepared("openvino", "mlp"))
    assert_close(loaded.outputs(loaded.bind(3)()), eager(model, 3), tolerance=1e-5)
    assert loaded.notes() == []


def test_sizes_of_a_model_have_the_weights_of_its_file_in_common(prepared, tmp_path: Path) -> None:
    """OpenVINO maps the file; each reading of it would be another mapping, and more memory."""
    runtime, folder = runnable("openvino"), tmp_path / "own"
    shutil.copytree(prepared("openvino", "mlp"), folder)
    loaded = runtime.load(None, TARGET, folder)
    calls = [loaded.bind(batch) for batch in BATCHES]
    weights = next(folder.rglob("*.bin")).resolve()
    maps = Path("/proc/self/maps").read_text()
    assert sum(line.endswith(str(weights)) for line in maps.splitlines()) == 1
    assert calls


def test_named_inputs_constants_and_mixed_types(tmp_path: Path) -> None:
    """Keyword tensors, a plain value, an integer output, None and a nest in the output."""

    class Mixed(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(4, 4)

        def forward(self, x, *, mask, power):
            y = self.linear(x) * mask**power
            return {"y": y, "none": None, "nest": (y + 1, [mask * 2])}

    torch.manual_seed(0)
    model = Model(
        Mixed().eval(),
        lambda b: Inputs((torch.ones(b, 4),), {"mask": torch.full((b, 1), 2), "power": 2}),
        {"args.0": 0, "kwargs.mask": 0},
    )
    reference = eager(model, 3)
    assert [str(a.dtype) for a in reference] == ["float64", "float64", "int64"]
    for name in ("torchscript-frozen", "onnxruntime", "openvino"):
        runtime = runtimes.get(name)
        if runtime.missing(TARGET):
            continue
        folder = tmp_path / name
        runtime.prepare(model, BATCHES, TARGET, folder)
        loaded = runtime.load(None, TARGET, folder)
        assert_close(loaded.outputs(loaded.bind(3)()), reference)


def test_outputs_are_copies(prepared) -> None:
    """A runtime may write the next result into the same memory."""
    for name in ("onnxruntime", "openvino"):
        runtime = runtimes.get(name)
        if runtime.missing(TARGET):
            continue
        loaded = runtime.load(None, TARGET, prepared(name, "mlp"))
        call = loaded.bind(1)
        first = loaded.outputs(call())
        kept = [a.copy() for a in first]
        for array in first:
            array += 1
        assert_close(loaded.outputs(call()), kept, tolerance=1e-7)


@pytest.mark.parametrize("name", ["torchscript-frozen", "onnxruntime", "openvino"])
def test_bound_inputs_stay_alive(name: str, prepared) -> None:
    """Engines that share memory do not own it: freed inputs get overwritten, not noticed."""
    runtime = runnable(name)
    model = models.build(WORKLOADS["mlp"])
    loaded = runtime.load(None, TARGET, prepared(name, "mlp"))
    call = runtime.load(None, TARGET, prepared(name, "mlp")).bind(1)  # and nothing else of it stays
    gc.collect()
    junk = [np.full((1, 128), 1e3, np.float32) for _ in range(10_000)]
    assert_close(loaded.outputs(call()), eager(model, 1))
    assert junk[0][0, 0] == 1e3


def test_a_parameter_that_is_returned_is_served_as_a_plain_tensor(tmp_path: Path) -> None:
    class Returning(torch.nn.Linear):
        def forward(self, x):
            return super().forward(x), self.bias

    model = Model(Returning(4, 4).eval(), lambda b: Inputs((torch.ones(b, 4),)), {"args.0": 0})
    runtime = runtimes.get("torchscript")
    runtime.prepare(model, [1], TARGET, tmp_path)
    made = runtime.load(None, TARGET, tmp_path).serve(1)([torch.ones(1, 4)])
    assert not any(tensor.requires_grad for tensor in made)


def test_outputs_that_openvino_cannot_hand_out_are_refused(tmp_path: Path) -> None:
    """numpy has no bfloat16: its bits would be read as float16, another number."""

    class Narrow(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x + 1).bfloat16()

    model = Model(Narrow(), lambda b: Inputs((torch.ones(b, 4),)), {"args.0": 0})
    with pytest.raises(WorkerError, match="bfloat16") as caught:
        runnable("openvino").prepare(model, [1], TARGET, tmp_path)
    assert caught.value.status == "unavailable"


def test_bound_inputs_stay_alive_where_the_binding_forgets_them(
    prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in ONNX Runtime 1.24 and older: later ones keep what was bound."""
    runtime = runnable("onnxruntime")
    from onnxruntime import IOBinding

    def bind_ortvalue_input(self, name, value) -> None:
        self._iobinding.bind_ortvalue_input(name, value._ortvalue)

    monkeypatch.setattr(IOBinding, "bind_ortvalue_input", bind_ortvalue_input)
    seen, inputs = [], Artifact.inputs

    def watched(self, batch):
        arrays = inputs(self, batch)
        seen.extend(map(weakref.ref, arrays))
        return arrays

    monkeypatch.setattr(Artifact, "inputs", watched)
    call = runtime.load(None, TARGET, prepared("onnxruntime", "mlp")).bind(1)
    gc.collect()
    assert [array().shape for array in seen if array() is not None] == [(1, 128)]
    call()


def test_threads_are_pinned_and_a_program_may_have_its_own_between_operators() -> None:
    code = (
        "import os\n"
        "from pathlib import Path\n"
        "from frameworktax import models, runtimes\n"
        "from frameworktax.records import Workload\n"
        "from frameworktax.runtimes.base import Target\n"
        "import torch\n"
        "if os.fork():\n"
        "    os.wait()\n"
        "else:\n"
        "    torch.set_num_interop_threads(2)\n"
        "for threads in (2, 1):\n"
        "    model = models.build(Workload(model='mlp', width=0.1))\n"
        "    runtimes.get('eager').load(model, Target(threads=threads), Path())\n"
        "    print(torch.get_num_threads(), torch.get_num_interop_threads(), flush=True)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "2 2\n1 2\n" + "2 1\n1 1\n"


def test_flatten_keeps_order_and_refuses_nothing() -> None:
    a, b, c = torch.ones(1), torch.ones(2), torch.ones(3)
    assert [len(t) for t in flatten({"z": c, "a": (a, None, [b, 5])})] == [3, 1, 2]
    with pytest.raises(WorkerError, match=r"\(dict\) holds no tensor"):
        flatten({"a": None})
    arrays = to_arrays((torch.tensor([True]), torch.tensor([1 + 2j]), a.bfloat16()))
    assert [array.tolist() for array in arrays] == [[1], [[1.0, 2.0]], [1.0]]
    assert [str(array.dtype) for array in arrays] == ["int64", "float64", "float64"]


def test_arrays_of_every_type_are_compared_as_numbers() -> None:
    narrow = pytest.importorskip("ml_dtypes").bfloat16
    given = [np.array([1 + 2j], np.complex64), np.array([1.5], narrow), np.array([True])]
    arrays = ArtifactLoaded.outputs(None, given)
    assert [array.tolist() for array in arrays] == [[[1.0, 2.0]], [1.5], [1]]
    assert [str(array.dtype) for array in arrays] == ["float64", "float64", "int64"]


# --- delivered engines, on any values ---------------------------------------------------------

SERVED = {
    "torchscript": "bert-tiny",
    "onnxruntime": "bert-tiny",
    "openvino": "bert-tiny",
    "aot-inductor": "mlp",  # it compiles for long
    "onnxruntime@int8": "mlp",
    "openvino@serial": "mlp",
    "torchscript@bfloat16": "mlp",
    "torchscript-frozen@nhwc": "resnet-18",
}
"""An engine that can be delivered, and the model it is asked for."""


@pytest.mark.parametrize("name", SERVED)
def test_serving_equals_eager(name: str, prepared) -> None:
    """On any values, at the batch it was made for and at others, from several threads at once."""
    runtime = runnable(name)
    tolerance = TOLERANCE[runtime.computes_in("float32")]
    model = models.build(WORKLOADS[SERVED[name]])
    exporter = name.removesuffix("@serial")  # which changes nothing of what is exported
    loaded = runtime.load(None, TARGET, prepared(exporter, SERVED[name]))
    one, dynamic = loaded.serve(3), loaded.serve(None)
    wrong = []
    assert loaded.bind(3)() is not None

    def check(serve, batch, number):
        inputs = draw(model, batch, number)
        tensors = [tensor.contiguous() for tensor in inputs.tensors().values()]
        with torch.no_grad():
            expected = flatten(model.module(*inputs.args, **inputs.kwargs))
        on_torch = loaded.takes_torch
        made = serve(tensors if on_torch else [tensor.numpy() for tensor in tensors])
        kept = [np.asarray(array).copy() for array in made]
        serve(tensors if on_torch else [tensor.numpy() * 0 for tensor in tensors])
        for ours, theirs, copy in zip(made, expected, kept, strict=True):
            np.testing.assert_array_equal(np.asarray(ours), copy)  # no later call changes it
            largest = theirs.abs().max().item()
            if not np.allclose(copy, theirs.numpy(), rtol=0, atol=tolerance * largest):
                wrong.append((batch, number))

    for number in (0, 5, 6, 7):
        check(one, 3, number)
        check(dynamic, 2, number)
        check(dynamic, 4, number)
    threads = [threading.Thread(target=check, args=(one, 3, number)) for number in range(8, 12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_graph_of_a_program_serves_what_eager_computes(tmp_path, monkeypatch) -> None:
    """On a stand-in for the device: a graph that computes anew into memory that stays the same."""
    import frameworktax.runtimes.cuda_graph as cuda_graph

    def recorded(call, ready=None):
        output = [tensor.clone() for tensor in call()]

        def replay():
            for kept, made in zip(output, call(), strict=True):
                kept.copy_(made)

        return replay, output

    stream = SimpleNamespace(wait_event=lambda event: None)
    monkeypatch.setattr(cuda_graph, "recorded", recorded)
    monkeypatch.setattr(torch.cuda, "Event", lambda: SimpleNamespace(record=lambda stream: None))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
    model = models.build(WORKLOADS["bert-tiny"])
    runtime = runtimes.get("torchscript@graph")
    runtime.prepare(model, BATCHES, TARGET, tmp_path)
    loaded = runtime.load(None, TARGET, tmp_path)
    reference = [eager(model, batch) for batch in BATCHES]
    calls = [loaded.bind(batch) for batch in BATCHES]
    for call, expected in [*zip(calls, reference, strict=True)] * 2:
        assert_close(loaded.outputs(call()), expected)
    serve = loaded.serve(3)
    kept = []

    def check(number):
        inputs = draw(model, 3, number)
        with torch.no_grad():
            expected = flatten(model.module(*inputs.args, **inputs.kwargs))
        kept.append((serve(list(inputs.tensors().values())), expected))

    threads = [threading.Thread(target=check, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for made, expected in kept:
        torch.testing.assert_close(made, expected, atol=1e-4, rtol=0)
    with pytest.raises(WorkerError, match="batch None"):
        loaded.serve(None)


def test_what_takes_no_images_has_none_to_lay_out(tmp_path: Path) -> None:
    model = models.build(WORKLOADS["mlp"])
    with pytest.raises(WorkerError, match="no images"):
        runtimes.get("torchscript@nhwc").prepare(model, [1], Target(), tmp_path)
    assert runtimes.get("torchscript@nhwc").cannot(Workload(model="mlp")) is not None


def test_a_package_is_not_loaded_where_torch_has_no_loader_of_its_own(prepared, monkeypatch):
    artifact = prepared("torchscript", "mlp")  # any
    loaded = runtimes.get("aot-inductor").load(None, TARGET, artifact)

    def absent(*_):
        raise TypeError("takes two arguments")

    monkeypatch.setattr(loaded, "_own_loader", absent)
    with pytest.raises(WorkerError, match="update torch") as caught:
        loaded.bind(1)
    assert caught.value.status == "unavailable"


@pytest.mark.parametrize("make", [torch.max, torch.sort])
def test_torchs_own_named_tuples_are_built_again(make) -> None:
    result = make(torch.tensor([[3.0, 5.0, 4.0]]), dim=1)
    structure = json.loads(json.dumps(tree(result)))
    made = builder(structure)(iter(flatten(result)))
    assert made.values.tolist() == result.values.tolist()
    assert made.indices.tolist() == result.indices.tolist()
    assert builder(tree(tuple(result)))(iter(flatten(result))) == tuple(result)


def test_an_output_with_keys_that_are_no_names_is_refused() -> None:
    with pytest.raises(WorkerError, match="the key 1"):
        tree({"a": torch.ones(1), 1: torch.ones(2)})
