"""What a model is made of: parameters, FLOPs, MACs, operators."""

from __future__ import annotations

import copy
import inspect
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from frameworktax.errors import one_line
from frameworktax.models import generate, onnx_file
from frameworktax.models.base import Inputs, Model

if TYPE_CHECKING:
    import torch

UNCOUNTED = (
    "mkldnn_rnn_layer",
    "_cudnn_rnn",
    "miopen_rnn",
    "_transformer_encoder_layer_fwd",
    "_native_multi_head_attention",
    "_linear_pointwise",
    "_convolution_pointwise",
)
"""Fused operators, of a CPU and of a GPU's libraries, that hold matrix products and for which the
counter has no formula."""
QUANTISED = "nn.quantized"
"""In the name of torch's modules of quantised layers."""
SPARSE = " of a sparse tensor"
"""After the name of a product in which most elements may be left out."""
WITHOUT_FORMULA = (
    *("quantized.", "onednn.", "pack_mm", "_int_mm", "_dyn_quant_matmul"),
    *("_trilinear", "aten.addbmm", "_cdist", SPARSE),
)
"""Operators, on ``meta`` as well, that hold matrix products and have no formula either."""
TRANSPOSED = "Conv1D"
"""Class of GPT-2's projections: a linear layer with transposed weights."""
WAVLM = "WavLMAttention"
"""As ``torch.nn.MultiheadAttention``, hands the weights of its four projections to one function and
calls no linear layer."""


def describe(model: Model, batch: int) -> dict[str, Any]:
    """Count what one call at this batch size is made of: a forward pass, or generating.

    Returns:
        ``parameters``; ``flops`` (2 per multiply-add, torch's formulas, attention included);
        ``macs`` (multiply-adds of linear, convolution and recurrent layers only, as the paper
        counts: attention scores and other products of activations are left out);
        ``operators`` (aten operators dispatched in one call without gradients);
        ``padding_share`` (of the tokens computed; None where no sentence is padded); and
        ``notes``, (code, text) pairs: a count that failed is None and has a note.
    """
    if model.onnx_path is not None:
        text = "FLOPs, MACs and operators not counted: an ONNX file has no torch module to run"
        unknown = dict.fromkeys(("flops", "macs", "operators", "padding_share"))
        known = {"parameters": onnx_file.parameters(model.onnx_path)}
        return {**known, **unknown, "notes": [("flops-not-counted", text)]}
    import torch

    notes: list[tuple[str, str]] = []
    inputs, decoding = model.inputs(batch), model.decoding
    run = model.module if decoding is None else generate.Greedy(model.module, decoding)
    macs, names, flops_here = _count_real(model.module, run, inputs, notes)
    operators = None if names is None else len(names)
    hidden = next((n for n in names or () if any(part in n for part in WITHOUT_FORMULA)), None)
    flops = None
    # Decoding reads its tokens, so it cannot run without data.
    if decoding is None and hidden is None:
        flops = _flops_on_meta(model.module, inputs)
    if flops is None and hidden is None:
        flops = flops_here
    if flops is None and operators is not None:
        text = (
            "the model reads values of its tensors, so it cannot run without data, and it uses a "
            "fused operator that has no formula"
        )
        text = f"{hidden} has no formula" if hidden is not None else text
        notes.append(("flops-not-counted", f"FLOPs not counted: {text}"))
    parameters: int | None = sum(p.numel() for p in model.module.parameters())
    if any(QUANTISED in type(layer).__module__ for layer in model.module.modules()):
        parameters = macs = None
        text = "parameters and MACs not counted: quantised layers have their weights packed"
        notes.append(("counts-failed", text))
    elif any(isinstance(layer, torch.jit.ScriptModule) for layer in model.module.modules()):
        macs = None
        text = "MACs not counted: TorchScript does not show its layers; give the module itself"
        notes.append(("counts-failed", text))
    return {
        "parameters": parameters,
        "flops": flops,
        "macs": macs,
        "operators": operators,
        "padding_share": _padding_share(model, batch),
        "notes": notes,
    }


def _padding_share(model: Model, batch: int) -> float | None:
    return None if model.real is None else 1.0 - float(model.real(batch).mean())


def describe_batches(
    model: Model, batches: Sequence[int], limit_s: float
) -> dict[int, dict[str, Any]]:
    """Describe batch sizes in ascending order until ``limit_s`` are over, and scale to the others.

    Counting runs the model, which takes long at a large batch. A count that grows by the same
    amount per sample is scaled to the batch sizes left, with a note; another is None there.
    """
    found: dict[int, dict[str, Any]] = {}
    ordered = sorted(batches)
    start = time.monotonic()
    for batch in ordered:
        if len(found) >= 2 and time.monotonic() - start > limit_s:
            break
        found[batch] = describe(model, batch)
    counted = sorted(found)
    for batch in ordered[len(counted) :]:
        facts: dict[str, Any] = {
            key: _scaled({size: found[size][key] for size in counted}, batch)
            for key in ("parameters", "flops", "macs", "operators")
        }
        text = f"counts scaled from batch {counted[0]} and {counted[-1]}"
        facts["padding_share"] = _padding_share(model, batch)
        notes = [*found[counted[-1]]["notes"], ("counts-scaled", text)]
        found[batch] = {**facts, "notes": notes}
    return found


def _scaled(counts: Mapping[int, int | None], batch: int) -> int | None:
    """Return the count at a batch size on the line through others; None where there is none."""
    (first, low), *_, (last, high) = counts.items()
    if low is None or high is None or (high - low) % (last - first):
        return None
    step = (high - low) // (last - first)
    is_line = all(count == low + step * (size - first) for size, count in counts.items())
    return low + step * (batch - first) if is_line else None


def _flops_on_meta(module: torch.nn.Module, inputs: Inputs) -> int | None:
    """Count FLOPs without data: on ``meta``, fused CPU operators fall apart into counted ones.

    The copy shares nothing and holds nothing: each parameter is handed to ``deepcopy`` as already
    copied. Returns None where the model needs values, as a mask that is asked ``.all()`` does.
    """
    import torch

    memo: dict[int, Any] = {}
    for parameter in module.parameters():
        memo[id(parameter)] = torch.nn.Parameter(parameter.detach().to("meta"), False)
    for buffer in module.buffers():
        memo[id(buffer)] = buffer.to("meta")

    ghosts = inputs.map(lambda _, v: v.to("meta") if isinstance(v, torch.Tensor) else v)
    try:
        ghost = copy.deepcopy(module, memo)
        with torch.no_grad(), _counter() as counter:
            ghost(*ghosts.args, **ghosts.kwargs)
    except Exception:  # noqa: BLE001 - any model code runs here; the count on data follows
        return None
    return int(counter.get_total_flops())


def _count_real(
    module: torch.nn.Module, run: Callable[..., Any], inputs: Inputs, notes: list[tuple[str, str]]
) -> tuple[int | None, list[str] | None, int | None]:
    """Run and count: macs, names of operators, flops (None if one of these has no formula)."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    class Operators(TorchDispatchMode):  # type: ignore[misc] # torch is untyped to mypy here
        def __init__(self) -> None:
            super().__init__()
            self.names: list[str] = []

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            is_sparse = "mm" in str(func) and any(
                isinstance(given, torch.Tensor) and given.layout is not torch.strided
                for given in args
            )
            self.names.append(str(func) + SPARSE * is_sparse)
            return func(*args, **(kwargs or {}))

    counted, called = Operators(), Operators()
    try:
        with torch.no_grad(), _counting_macs(module) as macs, _counter() as counter, counted:
            run(*inputs.args, **inputs.kwargs)
        # As it is measured: a transformer layer of torch's that has hooks leaves its fused operator
        # out, and which operators a product becomes depends on weights that want a gradient.
        with torch.no_grad(), called:
            run(*inputs.args, **inputs.kwargs)
    except Exception as error:  # noqa: BLE001 - a model that fails here fails as a row in eager too
        notes.append(("counts-failed", f"not counted: {one_line(error)}"))
        return None, None, None
    fused = any(name in operator for operator in counted.names for name in UNCOUNTED)
    by_operator = {str(k): n for k, n in counter.get_flop_counts().get("Global", {}).items()}
    # Experts are linear layers that are no modules.
    linear = sum(macs) + by_operator.get("aten._grouped_mm", 0) // 2
    return linear, called.names, None if fused else int(counter.get_total_flops())


def _counter() -> Any:
    """Return torch's counter, with formulas that torch 2.13 lacks.

    It has the formula for the CUDA kernels of attention only, and none for a mixture's experts:
    there every token's row meets the matrix of one expert, (tokens, k) with (experts, k, n).
    Products with a vector have none either.
    """
    import torch
    from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

    def attention(
        query: Any, key: Any, value: Any, *args: Any, out_shape: Any = None, **kwargs: Any
    ) -> int:
        return int(sdpa_flop_count(query, key, value))

    def experts(tokens: Any, weights: Any, *args: Any, out_shape: Any = None, **kwargs: Any) -> int:
        return 2 * int(tokens[-2]) * int(tokens[-1]) * int(weights[-1])

    def vector(matrix: Any, *args: Any, out_shape: Any = None, **kwargs: Any) -> int:
        return 2 * int(math.prod(matrix))

    def added_vector(
        bias: Any, matrix: Any, *args: Any, out_shape: Any = None, **kwargs: Any
    ) -> int:
        return 2 * int(math.prod(matrix))

    aten = torch.ops.aten
    extra: dict[Any, Callable[..., int]] = {
        aten._scaled_dot_product_flash_attention_for_cpu: attention,
        **dict.fromkeys((aten.mv, aten.dot, aten.vdot), vector),
        aten.addmv: added_vector,
    }
    if hasattr(torch.ops.aten, "_grouped_mm"):  # not in the oldest torch that this runs with
        extra[torch.ops.aten._grouped_mm] = experts
    return FlopCounterMode(display=False, custom_mapping=extra)


@contextmanager
def _counting_macs(module: torch.nn.Module) -> Iterator[list[int]]:
    """Yield a list that gets the multiply-adds of linear, convolution and recurrent layers.

    By layer and not by operator: a linear map of a transposed tensor is the same operator (bmm)
    as a product of activations. No weight wants a gradient meanwhile: torch's counter hooks inputs
    that do, and fails; DeBERTa passes a weight as one.
    """
    from torch import nn

    counts: list[int] = []

    def is_attention(layer: Any) -> bool:  # one with a forward of its own may call its layers
        return getattr(type(layer), "forward", None) is nn.MultiheadAttention.forward

    def hook(layer: Any, args: Any, kwargs: Any, output: Any) -> None:
        name = type(layer).__name__
        # In the order of ``forward``, given by position or by name.
        given = [*inspect.signature(layer.forward).bind(*args, **kwargs).arguments.values()]
        if isinstance(layer, nn.Linear) or name == TRANSPOSED:
            rows = given[0].numel() // given[0].shape[-1]
            counts.append(rows * layer.weight.numel())
        elif is_attention(layer) or name == WAVLM:
            # Query, key, value; WavLM's takes one tensor for all three.
            tensors = (*(given[:1] * 3 if name == WAVLM else given[:3]), output[0])
            counts.append(sum(tensor.numel() for tensor in tensors) * layer.embed_dim)
        elif isinstance(layer, nn.RNNBase | nn.RNNCellBase):
            is_packed = isinstance(given[0], nn.utils.rnn.PackedSequence)
            tensor = given[0].data if is_packed else given[0]
            steps = tensor.numel() // tensor.shape[-1]
            counts.append(steps * sum(p.numel() for p in layer.parameters() if p.dim() == 2))
        elif isinstance(layer, nn.modules.conv._ConvTransposeNd):
            inner = layer.out_channels // layer.groups * math.prod(layer.kernel_size)
            counts.append(given[0].numel() * inner)
        elif isinstance(layer, nn.modules.conv._ConvNd):
            inner = layer.in_channels // layer.groups * math.prod(layer.kernel_size)
            counts.append(output.numel() * inner)

    kinds = (nn.Linear, nn.RNNBase, nn.RNNCellBase, nn.modules.conv._ConvNd)
    handles = [
        layer.register_forward_hook(hook, with_kwargs=True)
        for layer in module.modules()
        if isinstance(layer, kinds)
        or is_attention(layer)
        or type(layer).__name__ in (WAVLM, TRANSPOSED)
    ]
    wanting = [p for p in module.parameters() if p.requires_grad]
    try:
        for parameter in wanting:
            parameter.requires_grad_(False)
        yield counts
    finally:
        for parameter in wanting:
            parameter.requires_grad_(True)
        for handle in handles:
            handle.remove()
