"""Models: sizes, counts, seeds, twins, and the user's own."""

from __future__ import annotations

import re
import sys
from importlib.machinery import PathFinder

import pytest

from frameworktax import models
from frameworktax.errors import UserModelError
from frameworktax.models.describe import _formulas, describe
from frameworktax.records import Workload
from frameworktax.report import run_blocks

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")


def run(model, batch):
    inputs = model.inputs(batch)
    with torch.no_grad():
        output = model.module(*inputs.args, **inputs.kwargs)
    return output if isinstance(output, torch.Tensor) else next(iter(output.values()))


def test_models_come_in_eval_mode() -> None:
    small = Workload(model="resnet-18", width=0.25, image_size=32)
    assert not models.build(small).module.training


def test_counts_of_bert_base_at_128() -> None:
    facts = describe(models.build(Workload(model="bert-base")), 1)
    layers = 12 * (4 * 768 * 768 + 2 * 768 * 3072) * 128 + 768 * 768
    assert facts["macs"] == layers
    assert round(facts["macs"] / 1e9, 2) == 10.87
    assert facts["flops"] == 2 * layers + 12 * 2 * 2 * 128 * 128 * 768
    assert round(facts["flops"] / 1e9, 2) == 22.35
    assert facts["notes"] == []


def test_counts_of_resnet_50() -> None:
    facts = describe(models.build(Workload(model="resnet-50"), "meta"), 1)
    assert round(facts["macs"] / 1e9, 2) == 4.09
    assert facts["flops"] == 2 * facts["macs"]


@pytest.mark.parametrize("batch", [1, 3])
def test_counts_of_the_stack(batch: int) -> None:
    facts = describe(models.build(Workload(model="mlp")), batch)
    assert facts == {
        "parameters": 8_396_800,
        "flops": batch * 2 * 8 * 1024 * 1024,
        "macs": batch * 8 * 1024 * 1024,
        "operators": 24,  # t, addmm, relu for each of 8
        "padding_share": None,
        "notes": [],
    }


def test_a_layer_that_is_one_operator_is_counted() -> None:
    """On CPU tensors an LSTM is one operator, on which torch has no formula."""
    from frameworktax.models.base import Inputs, Model

    module = torch.nn.LSTM(8, 16, batch_first=True).eval()
    model = Model(module, lambda b: Inputs((torch.zeros(b, 5, 8),)), {"args.0": 0})
    assert describe(model, 2)["flops"] == 2 * 2 * 5 * 4 * 16 * (8 + 16)


@pytest.mark.parametrize("dimensions", [1, 2, 3])
@pytest.mark.parametrize("kind", ["Conv", "ConvTranspose"])
def test_macs_of_convolutions(kind: str, dimensions: int) -> None:
    from frameworktax.models.base import Inputs, Model

    module = getattr(torch.nn, f"{kind}{dimensions}d")(4, 6, 3, groups=2).eval()
    size = (4, *[5] * dimensions)
    facts = describe(Model(module, lambda b: Inputs((torch.zeros(b, *size),)), {"args.0": 0}), 2)
    positions = 3 if kind == "Conv" else 5  # of outputs, or of inputs
    assert facts["macs"] == 2 * positions**dimensions * 3**dimensions * 4 * 6 // 2
    assert facts["flops"] == 2 * facts["macs"]


def test_operators_are_those_of_a_call_that_nothing_is_hooked_into() -> None:
    """torch's transformer layer is one fused operator, but not where a layer in it has a hook."""
    from frameworktax.models.base import Inputs, Model

    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    model = Model(layer, lambda b: Inputs((torch.zeros(b, 5, 8),)), {"args.0": 0})
    facts = describe(model, 3)
    assert facts["operators"] == 1
    assert facts["macs"] == 3 * 5 * (4 * 8 * 8 + 2 * 8 * 16)
    assert facts["flops"] == 2 * facts["macs"] + 3 * 2 * 2 * 5 * 5 * 8
    assert facts["notes"] == []
    assert all(parameter.requires_grad for parameter in layer.parameters())


def test_what_cannot_be_counted_is_none_with_a_note() -> None:
    from frameworktax.models.base import Inputs, Model

    class Raises(torch.nn.Module):
        def forward(self, x):
            raise ValueError("not\ntoday")

    facts = describe(Model(Raises(), lambda b: Inputs((torch.zeros(b, 5, 8),)), {"args.0": 0}), 1)
    assert facts["operators"] is None
    ((code, text),) = facts["notes"]
    assert code == "counts-failed" and text.endswith("ValueError: not today")

    class Branches(torch.nn.Linear):
        def forward(self, x):
            return torch.cond(x.sum() > 0, super().forward, lambda x: 2 * x, (x,))

    facts = describe(of_example(Branches(8, 8), torch.ones(3, 8)), 3)
    assert (facts["flops"], facts["macs"], facts["operators"]) == (None, None, None)
    assert [code for code, _ in facts["notes"]] == ["counts-failed"]


def of_example(module, *tensors):
    """Return a module as a model whose batch is that of these tensors."""
    from frameworktax.models.base import Inputs, Model

    return Model(module.eval(), lambda _: Inputs(tensors), {})


def test_layers_are_counted_by_what_they_are_given() -> None:
    """A subclass of attention was no layer; one of a linear layer, or a packed sequence, ended
    the count."""

    class Attention(torch.nn.MultiheadAttention):
        pass

    class WithExtra(torch.nn.Linear):
        def forward(self, x, extra=None):
            return super().forward(x), extra

    class Packed(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.gru = torch.nn.GRU(8, 16, batch_first=True)

        def forward(self, x, lengths):
            packed = torch.nn.utils.rnn.pack_padded_sequence(
                x, lengths, batch_first=True, enforce_sorted=False
            )
            return self.gru(packed)[1]

    x = torch.zeros(3, 5, 8)
    attention = of_example(Attention(8, 2, batch_first=True), x, x, x)
    assert describe(attention, 3)["macs"] == 3 * 5 * 4 * 8 * 8
    assert describe(of_example(WithExtra(8, 4), x), 3)["macs"] == 3 * 5 * 8 * 4
    packed = of_example(Packed(), x, torch.tensor([5, 2, 1]))
    assert describe(packed, 3)["macs"] == (5 + 2 + 1) * 3 * 16 * (8 + 16)


def test_attention_with_a_forward_of_its_own_is_counted_once() -> None:
    class MultiheadAttention(torch.nn.MultiheadAttention):
        def forward(self, x):
            return self.out_proj(x)

    facts = describe(of_example(MultiheadAttention(8, 2), torch.zeros(3, 8)), 3)
    assert facts["macs"] == 3 * 8 * 8


def functional(linear):
    return lambda x: torch.nn.functional.linear(x, linear.weight, linear.bias)


def summed(linear):
    return lambda x: torch.einsum("bti,oi->bto", x, linear.weight)


def batched(linear):
    return lambda x: torch.bmm(x, linear.weight.t().expand(x.shape[0], -1, -1))


def cast(linear):
    return lambda x: torch.nn.functional.linear(x.double(), linear.weight.double())


def spectral(linear):
    return torch.nn.utils.parametrizations.spectral_norm(linear)


@pytest.mark.parametrize(
    "call",
    [functional, summed, batched, cast, spectral, torch.nn.utils.parametrizations.weight_norm],
)
def test_a_product_with_a_parameter_is_a_layer(call) -> None:
    """Those that no module of torch's calls were missing; attention is still none."""

    class Attends(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(8, 4)
            self.call = call(self.linear)
            self.bias = torch.nn.Parameter(torch.zeros(3, 5, 5))

        def forward(self, x):
            y = self.call(x).float()
            scores = torch.baddbmm(self.bias, y, y.transpose(1, 2)) + x @ x.transpose(1, 2)
            return torch.nn.functional.scaled_dot_product_attention(scores, scores, scores)

    facts = describe(of_example(Attends(), torch.ones(3, 5, 8)), 3)
    assert facts["macs"] == 3 * 5 * 8 * 4


def test_projected_positions_in_attention_are_no_layer() -> None:
    """As DeBERTa's: both factors are activations, though one depends on no input."""

    class Positions(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.positions = torch.nn.Parameter(torch.ones(5, 8))
            self.linear = torch.nn.Linear(8, 8)

        def forward(self, x):
            return x @ self.linear(self.positions).t()

    facts = describe(of_example(Positions(), torch.ones(3, 8)), 3)
    assert facts["macs"] == 5 * 8 * 8
    assert facts["flops"] == 2 * (5 * 8 * 8 + 3 * 8 * 5)


def test_a_copy_of_a_parameter_that_is_written_to_is_no_weight() -> None:
    class Writes(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.start = torch.nn.Parameter(torch.ones(3, 8))

        def forward(self, x):
            x = self.start.clone().add_(x)
            return x @ x.t()

    assert describe(of_example(Writes(), torch.ones(3, 8)), 3)["macs"] == 0


def test_a_model_in_inference_mode_is_counted() -> None:
    """There a linear layer is an operator as a whole."""

    class Inferring(torch.nn.Linear):
        @torch.inference_mode()
        def forward(self, x):
            return super().forward(x)

    facts = describe(of_example(Inferring(8, 4), torch.ones(3, 5, 8)), 3)
    assert facts["macs"] == facts["flops"] // 2 == 3 * 5 * 8 * 4


def test_products_with_a_vector_are_counted() -> None:
    class Scores(torch.nn.Module):
        def forward(self, x):
            return torch.addmv(x[:, 0], x, x[0]) @ (x @ x[0])

    facts = describe(of_example(Scores(), torch.ones(5, 8)), 5)
    assert facts["flops"] == 2 * (5 * 8 + 5 * 8 + 5)


@pytest.mark.parametrize("kind", ["bilinear", "sparse", "csr", "quantised"])
def test_what_hides_its_products_has_no_count(kind) -> None:
    """They counted nothing, and a sparse matrix in rows as a dense one."""

    class Sparse(torch.nn.Module):
        def forward(self, x):
            identity = torch.eye(8)
            return (identity.to_sparse_csr() if kind == "csr" else identity.to_sparse()) @ x.t()

    linear = torch.nn.Sequential(torch.nn.Linear(8, 8))
    x = torch.zeros(3, 8)
    if kind == "bilinear":
        model = of_example(torch.nn.Bilinear(8, 8, 4), x, x)
    elif kind in ("sparse", "csr"):
        model = of_example(Sparse(), x)
    else:
        kinds = {torch.nn.Linear}
        model = of_example(torch.ao.quantization.quantize_dynamic(linear, kinds), x)
    facts = describe(model, 3)
    assert facts["flops"] is facts["macs"] is None
    assert (facts["parameters"] is None) == (kind == "quantised")
    assert facts["operators"]
    assert facts["notes"]


def test_a_scripted_module_is_counted() -> None:
    model = of_example(torch.jit.script(torch.nn.Linear(8, 4)), torch.zeros(3, 8))
    facts = describe(model, 3)
    assert facts["macs"] == facts["flops"] // 2 == 3 * 8 * 4
    assert facts["notes"] == []


@pytest.mark.parametrize("name", ["_cudnn_rnn", "miopen_rnn"])
def test_recurrent_layers_of_a_gpu_have_a_formula(name) -> None:
    layer = torch.nn.LSTM(8, 16, num_layers=2)
    formula = _formulas()[getattr(torch.ops.aten, name)]
    counted = formula(torch.zeros(5, 3, 8), list(layer.parameters()), 4, None)
    assert counted == 2 * 5 * 3 * 4 * 16 * (8 + 16 + 16 + 16)


@pytest.mark.parametrize("name", ["mobilenet-v2", "resnet-18"])
def test_calibration_does_not_depend_on_the_image_size(name: str) -> None:
    small, large = (
        models.build(Workload(model=name, width=0.25, image_size=size)).module.state_dict()
        for size in (32, 64)
    )
    assert all(torch.equal(small[key], large[key]) for key in small)
    assert 0.5 < run(models.build(Workload(model=name, image_size=64)), 1).abs().max() < 20


def test_factors() -> None:
    config = models.build(Workload(model="bert-small", width=0.5, depth=0.5)).module.config
    assert (config.num_hidden_layers, config.hidden_size, config.intermediate_size) == (
        2,
        256,
        1024,
    )
    assert config.num_attention_heads == 8
    assert config._attn_implementation == "sdpa"
    assert len(models.build(Workload(model="mlp", width=2, depth=0.5)).module) == 8
    assert models.build(Workload(model="mlp", width=2)).module[0].in_features == 2048


@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
def test_precision_casts_floats_only(precision: str) -> None:
    model = models.build(Workload(model="bert-tiny", precision=precision, length=4))
    dtype = getattr(torch, precision)
    assert {p.dtype for p in model.module.parameters()} == {dtype}
    assert model.inputs(1).kwargs["input_ids"].dtype == torch.int64
    image = models.build(Workload(model="mlp", precision=precision, width=0.125))
    assert image.inputs(1).args[0].dtype == dtype


def test_a_model_in_another_precision_than_it_is_measured_in_has_a_note(user_file) -> None:
    for precision in ("float32", "bfloat16"):
        cast = models.build(Workload(model=f"{user_file}:double", precision=precision))
        ((code, text),) = cast.notes
        assert code in run_blocks.CHANGING  # shown, not folded
        assert code == "precision-cast" and "float64" in text and precision in text
    assert models.build(Workload(model=f"{user_file}:linear", precision="bfloat16")).notes == []


@pytest.mark.parametrize("layer", [torch.nn.Dropout(0.5), torch.nn.BatchNorm1d(4)])
def test_a_module_that_computes_something_else_in_training_has_a_note(layer) -> None:
    module, x = torch.nn.Sequential(torch.nn.Linear(4, 4), layer), torch.ones(2, 4)
    for training, codes in ((True, ["evaluation-mode"]), (False, [])):
        found = models.user.wrap("mine", module.train(training), x, None)
        assert [code for code, _ in found.notes] == codes
    assert models.user.wrap("mine", torch.nn.Linear(4, 4), x, None).notes == []


def test_complex_numbers_stay_complex(tmp_path) -> None:
    path = tmp_path / "waves.py"
    path.write_text(
        "import torch\n"
        "class Waves(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.w = torch.nn.Parameter(torch.tensor([2 + 3j]))\n"
        "        self.register_buffer('turn', torch.tensor([1j]))\n"
        "    def forward(self, x):\n"
        "        return (x * self.w * self.turn).real\n"
        "def build(): return Waves(), torch.ones(1, 1)\n"
    )
    assert run(models.build(Workload(model=f"{path}:build")), 2).tolist() == [[-3.0]] * 2


# --- the user's own ---------------------------------------------------------------------------

USER = """
import torch
from torch import nn

class Two(nn.Module):
    def forward(self, x, scale):
        return x * scale.mean()

def linear(): return nn.Linear(4, 2), torch.arange(8.0).reshape(2, 4)
def named(): return nn.Linear(4, 2), {"input": torch.ones(3, 4)}
def listed(): return nn.Linear(4, 2), [torch.ones(1, 4)]
def double(): return nn.Linear(4, 2).double(), torch.ones(1, 4, dtype=torch.float64)
def extra(): return Two(), (torch.ones(2, 4), torch.tensor(3.0))
def disagree(): return Two(), (torch.ones(7, 2, 4), torch.ones(1, 2, 4))
def lightning():
    module = nn.Linear(4, 2)
    module.example_input_array = torch.ones(1, 4)
    return module
def bare(): return nn.Linear(4, 2)
def wrong(): return 5
def swapped(): return torch.ones(1, 4), nn.Linear(4, 2)
def odd_inputs(): return nn.Linear(4, 2), "text"
def no_tensor(): return nn.Linear(4, 2), (3,)
def nested(): return nn.Linear(4, 2), ([torch.ones(1, 4)],)
def empty(): return nn.Linear(4, 2), torch.ones(0, 4)
def instance(): return Two
def raises():
    return helper()
def helper():
    raise RuntimeError("no\\nluck")
def deep(): return torch.ones(2) @ torch.ones(3)
def threads():
    for _ in range(2):  # as where two runtimes are prepared in one process
        torch.set_num_interop_threads(1)
number = 3
def drawn():
    import random
    import numpy
    weight = numpy.random.normal(random.random(), size=(2, 4))
    made = nn.Linear(4, 2)
    made.weight.data.copy_(torch.from_numpy(weight))
    return made, torch.ones(1, 4)
"""


@pytest.fixture
def user_file(tmp_path):
    path = tmp_path / "my_code.py"
    path.write_text(USER)
    return path


def test_user_inputs_are_repeated_and_cut(user_file) -> None:
    model = models.build(Workload(model=f"{user_file}:linear"))
    assert model.batch_dims == {"args.0": 0}
    assert not model.module.training
    assert not model.has_twin
    assert model.inputs(1).args[0].tolist() == [[0, 1, 2, 3]]
    assert model.inputs(3).args[0].tolist() == [[0, 1, 2, 3], [4, 5, 6, 7], [0, 1, 2, 3]]


@pytest.mark.parametrize("function", ["linear", "drawn"])
def test_every_build_draws_the_same_numbers(user_file, function) -> None:
    one, other = (models.build(Workload(model=f"{user_file}:{function}")) for _ in range(2))
    assert torch.equal(run(one, 5), run(other, 5))


def test_user_inputs_of_every_kind(user_file) -> None:
    assert run(models.build(Workload(model=f"{user_file}:named")), 2).shape == (2, 2)
    assert run(models.build(Workload(model=f"{user_file}:listed")), 2).shape == (2, 2)
    assert run(models.build(Workload(model=f"{user_file}:double")), 2).dtype == torch.float32
    assert run(models.build(Workload(model=f"{user_file}:lightning")), 2).shape == (2, 2)
    scalar = models.build(Workload(model=f"{user_file}:extra"))
    assert scalar.batch_dims == {"args.0": 0}
    assert scalar.inputs(5).args[1].shape == ()


def test_user_names_the_batch_dimension(user_file) -> None:
    model = models.build(Workload(model=f"{user_file}:disagree", batch_dim=1))
    assert model.batch_dims == {"args.0": 1, "args.1": 1}
    assert [tuple(t.shape) for t in model.inputs(3).args] == [(7, 3, 4), (1, 3, 4)]
    assert models.build(Workload(model=f"{user_file}:disagree", batch_dim=-2)).batch_dims == {
        "args.0": 1,
        "args.1": 1,
    }


def test_user_package_from_the_current_folder(tmp_path, monkeypatch) -> None:
    (tmp_path / "parcel").mkdir()
    (tmp_path / "parcel" / "__init__.py").write_text("")
    (tmp_path / "parcel" / "inner.py").write_text(USER)
    (tmp_path / "parcel" / "needs.py").write_text("import not_there_at_all")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert run(models.build(Workload(model="parcel.inner:linear")), 2).shape == (2, 2)
    with pytest.raises(UserModelError, match=r"no module parcel\.outer"):
        models.build(Workload(model="parcel.outer:linear"))
    with pytest.raises(UserModelError, match=r"No module named 'not_there_at_all'.*needs.py:1"):
        models.build(Workload(model="parcel.needs:linear"))


@pytest.mark.parametrize(
    ("function", "batch_dim", "said"),
    [
        ("bare", None, r"without inputs; .*torch\.nn\.Module"),
        ("wrong", None, r"returned int; .*torch\.nn\.Module"),
        ("swapped", None, r"starts with Tensor; "),
        ("odd_inputs", None, r"are of type str; "),
        ("no_tensor", None, r"have no tensor"),
        ("nested", None, r"args\.0"),
        ("empty", None, r"batch 0"),
        ("instance", None, r"returned type; .*torch\.nn\.Module"),
        ("disagree", None, r"0 \(7, 2, 4\), 1 \(1, 2, 4\); .*--batch-dim"),
        ("disagree", 0, r"disagree on dimension 0"),
        ("disagree", 3, r"--batch-dim 3\b"),
        ("raises", None, r"RuntimeError: no luck \(FILE:30\)"),
        ("deep", None, r"\(FILE:31\)"),
        ("threads", None, r"\(FILE:34\); leave that call out, --threads"),
        ("rasies", None, r"'rasies', .*'raises'\?"),
        ("number", None, r"type int; .*function"),
        ("", None, r"no function"),
    ],
)
def test_user_errors_are_one_line(user_file, function, batch_dim, said) -> None:
    with pytest.raises(UserModelError) as caught:
        models.build(Workload(model=f"{user_file}:{function}", batch_dim=batch_dim))
    assert re.search(said, str(caught.value).replace(str(user_file), "FILE"))
    assert "\n" not in str(caught.value)


def test_user_files_that_do_not_load(tmp_path) -> None:
    with pytest.raises(UserModelError, match=r"no file .*absent.py"):
        models.build(Workload(model=f"{tmp_path}/absent.py:f"))
    broken = tmp_path / "broken.py"
    broken.write_text("def f(:\n")
    with pytest.raises(UserModelError, match=r"raised SyntaxError: .*broken.py, line 1"):
        models.build(Workload(model=f"{broken}:f"))
    broken.write_text("import math\n1 / 0\n")
    with pytest.raises(UserModelError, match=r"raised ZeroDivisionError: .*broken.py:2\)"):
        models.build(Workload(model=f"{broken}:f"))
    broken.write_text("from .layers import f\n")
    with pytest.raises(UserModelError, match=r"broken.py:1\); .* package\.module:function"):
        models.build(Workload(model=f"{broken}:f"))


def test_user_file_may_be_called_like_a_package(tmp_path) -> None:
    path = tmp_path / "onnx.py"
    path.write_text(USER)
    before = sys.modules.get("onnx")
    models.build(Workload(model=f"{path}:linear"))
    assert sys.modules.get("onnx") is before
    found = PathFinder.find_spec("onnx")  # what a later import would find
    installed = [p for p in sys.path if p != str(tmp_path)]
    assert found is not None
    expected = PathFinder.find_spec("onnx", installed)
    assert found.origin == (expected.origin if expected else str(path))


def test_a_user_file_finds_its_neighbours(tmp_path) -> None:
    """At the top, inside the function, and when it is called."""
    (tmp_path / "a_neighbour_of_mine.py").write_text("SIZE = 4\n")
    (tmp_path / "a_late_one_of_mine.py").write_text("import torch\nONE = torch.tensor(1.0)\n")
    path = tmp_path / "main.py"
    path.write_text(
        "import torch\nfrom torch import nn\nfrom a_neighbour_of_mine import SIZE\n"
        "class Late(nn.Module):\n"
        "    def forward(self, x):\n"
        "        from a_late_one_of_mine import ONE\n"
        "        return x + ONE\n"
        "def build(): return Late(), torch.ones(1, SIZE)\n"
    )
    assert run(models.build(Workload(model=f"{path}:build")), 2).tolist() == [[2.0] * 4] * 2
