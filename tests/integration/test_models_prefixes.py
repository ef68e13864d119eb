"""Models by prefix: names of torchvision and timm, types and folders of Hugging Face, ONNX."""

from __future__ import annotations

import importlib.util
import json
import os

import pytest

from frameworktax import models
from frameworktax.errors import UsageError
from frameworktax.models.describe import describe
from frameworktax.records import Workload

torch = pytest.importorskip("torch")


def refused(said: str, **workload) -> str:
    with pytest.raises(UsageError) as caught:
        models.build(Workload(**workload))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def run(model, batch):
    inputs = model.inputs(batch)
    with torch.no_grad():
        output = model.module(*inputs.args, **inputs.kwargs)
    return output if isinstance(output, torch.Tensor) else next(iter(output.values()))


def needs(package: str) -> None:
    from frameworktax.models.torchvision_operators import declare

    declare()
    pytest.importorskip(package)


# --- torchvision and timm -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "size", "shape"),
    [
        ("vit_b_32", 64, (2, 1000)),
        ("lraspp_mobilenet_v3_large", 32, (2, 21, 32, 32)),
    ],
)
def test_any_name_of_torchvision(name: str, size: int, shape: tuple[int, ...]) -> None:
    needs("torchvision")
    model = models.build(Workload(model=f"torchvision:{name}", image_size=size))
    output = run(model, 2)
    assert tuple(output.shape) == shape
    assert 0.05 < float(output.abs().max()) < 100
    assert model.batch_dims == {"args.0": 0}
    assert not model.has_twin


def test_names_torchvision_lacks_or_cannot_run() -> None:
    needs("torchvision")
    refused("no model 'resnet81', did you mean 'resnet18'?", model="torchvision:resnet81")
    refused("is a detection model", model="torchvision:ssd300_vgg16")
    refused(
        "40 pixels a side (Input shape indivisible by patch size!)",
        model="torchvision:vit_b_32",
        image_size=40,
    )


def test_any_name_of_timm() -> None:
    needs("timm")
    model = models.build(Workload(model="timm:vit_tiny_patch16_224", image_size=32))
    output = run(model, 2)
    assert tuple(output.shape) == (2, 1000) and 0.05 < float(output.abs().max()) < 100
    assert models.build(Workload(model="timm:test_vit")).inputs(1).args[0].shape[2:] == (160, 160)
    refused("timm has no model 'resnet19', did you mean 'resnet1", model="timm:resnet19")


def test_a_missing_extra_is_told(monkeypatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda n: None if n in ("timm", "onnx") else found(n)
    )
    with pytest.raises(UsageError, match=r"timm not installed; pip install 'frameworktax\[vision"):
        models.check(Workload(model="timm:resnet18"))


# --- Hugging Face ---------------------------------------------------------------------------------

SETTINGS = {
    "model_type": "llama",
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "intermediate_size": 8,
    "vocab_size": 50,
    "max_position_embeddings": 64,
}


@pytest.fixture
def folder(tmp_path):
    pytest.importorskip("transformers")
    (tmp_path / "config.json").write_text(json.dumps(SETTINGS))
    return tmp_path


def test_a_folder_without_weights_has_random_ones(folder) -> None:
    model = models.build(Workload(model=f"hf:{folder}", length=8))
    assert model.positions == 64
    assert int(model.inputs(3).kwargs["input_ids"].max()) < 50
    assert tuple(run(model, 3).shape) == (3, 8, 16)
    assert [code for code, _ in model.notes] == ["random-weights"]
    again = models.build(Workload(model=f"hf:{folder}", length=8))
    assert torch.equal(run(model, 2), run(again, 2))


def test_a_folder_with_weights_has_those(folder) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(5)
    saved = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder))
    saved.save_pretrained(folder)
    model = models.build(
        Workload(model=f"hf:{folder}", length=8, phase="generate", new_tokens=4, kv_cache="dynamic")
    )
    assert model.notes == [] and model.module.can_generate()
    state = model.module.state_dict()
    assert all(torch.equal(state[key], value) for key, value in saved.state_dict().items())


def test_weights_that_cannot_be_read_say_so(folder, monkeypatch) -> None:
    from huggingface_hub import constants
    from transformers import AutoConfig

    from frameworktax.models import hugging_face

    (folder / "model.safetensors").write_bytes(b"")
    assert "save_pretrained" in refused(f"weights of hf:{folder} ", model=f"hf:{folder}")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    config = AutoConfig.from_pretrained(folder)  # the hub's cache may have it alone
    monkeypatch.setattr(hugging_face, "_config", lambda name, workload: config)
    name = "hf:nobody/has-this-model"
    assert "connect to the hub" in refused(f"weights of {name} ", model=name)


def test_a_pickle_of_weights_is_not_read(folder) -> None:
    """Unpickling this file would make another one."""
    (folder / "pytorch_model.bin").write_bytes(
        b"cos\nsystem\n(S'touch " + str(folder / "ran").encode() + b"'\ntR."
    )
    model = models.build(Workload(model=f"hf:{folder}", length=8))
    assert [code for code, _ in model.notes] == ["random-weights"]
    assert not (folder / "ran").exists()


def test_code_that_comes_with_a_model_runs_only_if_trusted(folder) -> None:
    (folder / "config.json").write_text(
        json.dumps(
            {
                "model_type": "of-its-own",
                "auto_map": {"AutoConfig": "own.OwnConfig", "AutoModel": "own.OwnModel"},
            }
        )
    )
    (folder / "own.py").write_text(
        f"open({str(folder / 'ran')!r}, 'w').close()\nraise OSError('and ended')\n"
    )
    name = f"hf:{folder}"
    refused("--trust-remote-code", model=name)
    assert not (folder / "ran").exists()
    said = refused("and ended", model=name, trust_remote_code=True)
    assert "--trust-remote-code" not in said
    assert (folder / "ran").exists()


def test_folders_and_types_that_are_none(folder, tmp_path, monkeypatch) -> None:
    assert "'bertt'" in refused("'bert'?", model="hf:bertt")
    refused("1 to 64, not 65", model=f"hf:{folder}", length=65)
    refused("--image-size", model=f"hf:{folder}", image_size=32)
    empty = tmp_path / "empty"
    empty.mkdir()
    refused("save_pretrained", model=f"hf:{empty}")
    refused("save_pretrained", model=f"hf:{tmp_path}/absent")
    refused("hf: cannot be loaded", model="hf:")
    refused("no folder ./none", model="hf:./none")
    for text in ("{", "[]", '"bert"'):
        (empty / "config.json").write_text(text)
        refused("save_pretrained", model=f"hf:{empty}")
    generating = {"phase": "generate", "new_tokens": 1, "kv_cache": "none"}
    refused("hf:bert generates no text", model="hf:bert", **generating)


def test_a_hub_out_of_reach_is_one_line(folder, monkeypatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    said = refused("hf:nobody/has-this-model", model="hf:nobody/has-this-model")
    assert "hf:bert" in said  # what can be named instead


def test_a_hub_that_does_not_answer_is_not_asked_again_and_again(monkeypatch) -> None:
    from huggingface_hub import constants

    nowhere = "http://127.0.0.1:9"
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", nowhere)
    template = f"{nowhere}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    waits: list[float] = []
    monkeypatch.setattr("time.sleep", waits.append)
    refused("hf:nobody/has-this-model", model="hf:nobody/has-this-model")
    assert waits == []


def test_weights_that_memory_cannot_hold_are_not_made(folder, monkeypatch) -> None:
    from frameworktax.models import hugging_face

    monkeypatch.setattr(hugging_face.host, "memory_available_bytes", lambda: 1000)
    assert "0.0 GB are free" in refused("config.json", model=f"hf:{folder}")


# --- ONNX -----------------------------------------------------------------------------------------


def write(path, operator="MatMul", shape=("n", 4), **save) -> None:
    onnx = pytest.importorskip("onnx")
    import numpy as np

    make, float32 = onnx.helper, onnx.TensorProto.FLOAT
    graph = make.make_graph(
        [make.make_node(operator, ["x", "w"], ["y"])],
        "linear",
        [make.make_tensor_value_info("x", float32, list(shape))],
        [make.make_tensor_value_info("y", float32, [*shape[:-1], 3])],
        [onnx.numpy_helper.from_array(np.ones((4, 3), np.float32), "w")],
    )
    opset = [make.make_opsetid("", 17)]
    onnx.save(make.make_model(graph, opset_imports=opset, ir_version=8), path, **save)


def test_an_onnx_file_is_a_model_without_a_module(tmp_path) -> None:
    path = tmp_path / "model.onnx"
    write(path)
    model = models.build(Workload(model=f"onnx:{path}"))
    assert model.onnx_path == path
    assert model.batch_dims == {"kwargs.x": 0}
    assert tuple(model.inputs(5).kwargs["x"].shape) == (5, 4)
    facts = describe(model, 5)
    assert (facts["parameters"], facts["flops"]) == (12, None)
    assert [code for code, _ in facts["notes"]] == ["flops-not-counted"]
    with pytest.raises(UsageError, match=r"torch module; .*onnxruntime.*openvino"):
        model.module()


@pytest.mark.parametrize(
    ("kind", "count"),
    [("FLOAT", 12), ("FLOAT16", 12), ("BFLOAT16", 12), ("DOUBLE", 12), ("INT8", 12), ("INT64", 0)],
)
def test_weights_of_every_type_are_counted_and_shapes_are_not(tmp_path, kind, count) -> None:
    onnx = pytest.importorskip("onnx")
    from frameworktax.models import onnx_file

    dtype = getattr(onnx.TensorProto, kind)
    weight = onnx.helper.make_tensor("w", dtype, [4, 3], [1] * 12)
    graph = onnx.helper.make_graph([], "weights", [], [], [weight])
    onnx.save(onnx.helper.make_model(graph), tmp_path / "model.onnx")
    assert onnx_file.parameters(tmp_path / "model.onnx") == count


def test_other_symbolic_dimensions_take_the_length(tmp_path) -> None:
    path = tmp_path / "model.onnx"
    write(path, shape=("n", "tokens", 4))
    model = models.build(Workload(model=f"onnx:{path}", length=7))
    assert tuple(model.inputs(2).kwargs["x"].shape) == (2, 7, 4)


def test_ids_stay_inside_the_table_they_look_up(tmp_path) -> None:
    onnx = pytest.importorskip("onnx")
    import numpy as np

    make, proto = onnx.helper, onnx.TensorProto
    graph = make.make_graph(
        [
            make.make_node("Gather", [table, "input_ids"], [y])
            for table, y in (("table", "y"), ("larger", "z"))
        ],
        "embedding",
        [
            make.make_tensor_value_info("input_ids", proto.INT64, ["n", "t"]),
            make.make_tensor_value_info("attention_mask", proto.INT64, ["n", "t"]),
        ],
        [make.make_tensor_value_info(y, proto.FLOAT, ["n", "t", 2]) for y in "yz"],
        [
            onnx.numpy_helper.from_array(np.ones((rows, 2), np.float32), table)
            for rows, table in ((9, "table"), (20, "larger"))
        ],
    )
    opset = [make.make_opsetid("", 17)]
    path = tmp_path / "ids.onnx"
    onnx.save(make.make_model(graph, opset_imports=opset, ir_version=8), path)
    inputs = models.build(Workload(model=f"onnx:{path}", length=50)).inputs(2).kwargs
    assert set(inputs["input_ids"].flatten().tolist()) == set(range(9))
    assert inputs["attention_mask"].tolist() == [[1] * 50] * 2


def test_onnx_files_that_are_none(tmp_path) -> None:
    path = tmp_path / "model.onnx"
    write(path)
    whole = path.read_bytes()
    name = f"onnx:{path}"
    for part in (len(whole) // 2, 40, 12):
        path.write_bytes(whole[:part])
        refused("ONNX", model=name)
    path.write_bytes(b"hello world, this is text")
    refused("is no valid ONNX file", model=name)
    path.write_bytes(b"")
    refused("graph is empty", model=name)
    write(path, operator="Frobnicate")
    refused("is no valid ONNX file (No Op registered for Frobnicate", model=name)
    write(path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    models.build(Workload(model=name))
    os.remove(tmp_path / "weights.bin")
    assert "weights.bin" in refused("is no valid ONNX file", model=name)
    write(path, shape=(2, 4))
    fixed = models.build(Workload(model=name))
    assert tuple(fixed.inputs(2).kwargs["x"].shape) == (2, 4)
    with pytest.raises(UsageError, match=r"batch of 2; .*--batch 2"):
        fixed.inputs(3)
    write(path, shape=(2, "n", 4))
    refused("batch dimension", model=name)
    refused("--precision", model=name, precision="float16")
