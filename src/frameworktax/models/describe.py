"""What a model is made of: parameters, FLOPs, MACs, operators."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from frameworktax.errors import one_line
from frameworktax.models import generate, onnx_file
from frameworktax.models.base import Inputs, Model

QUANTISED = "nn.quantized"
"""In the name of torch's modules of quantised layers."""
SPARSE = " of a sparse tensor"
"""After the name of a product in which most elements may be left out."""
WITHOUT_FORMULA = (
    *("_transformer_encoder_layer_fwd", "_native_multi_head_attention"),
    *("_linear_pointwise", "_convolution_pointwise", "onednn.", "quantized."),
    *("pack_mm", "_int_mm", "_dyn_quant_matmul", "_trilinear", "aten.addbmm", "_cdist", SPARSE),
)
"""Operators that hold matrix products and have no formula."""


def describe(model: Model, batch: int) -> dict[str, Any]:
    """Count what one call at this batch size is made of: a forward pass, or generating.

    Returns:
        ``parameters``; ``flops`` (2 per multiply-add, torch's formulas, attention included);
        ``macs`` (multiply-adds of products with a parameter, which linear, convolution and
        recurrent layers are, as the paper counts: attention scores and other products of
        activations are left out);
        ``operators`` (aten operators dispatched in one call without gradients);
        ``padding_share`` (of the tokens computed; None where no sentence is padded); and
        ``notes``, (code, text) pairs: a count that failed is None and has a note.
    """
    if model.onnx_path is not None:
        text = "FLOPs, MACs and operators not counted: an ONNX file has no torch module to run"
        unknown = dict.fromkeys(("flops", "macs", "operators", "padding_share"))
        known = {"parameters": onnx_file.parameters(model.onnx_path)}
        return {**known, **unknown, "notes": [("flops-not-counted", text)]}
    notes: list[tuple[str, str]] = []
    inputs, decoding = model.inputs(batch), model.decoding
    run = model.module if decoding is None else generate.Greedy(model.module, decoding)
    flops, macs, operators = _count(model.module, run, inputs, notes)
    parameters: int | None = sum(p.numel() for p in model.module.parameters())
    if any(QUANTISED in type(layer).__module__ for layer in model.module.modules()):
        parameters = None
        text = "parameters not counted: quantised layers have their weights packed"
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


def _count(
    module: Any, run: Callable[..., Any], inputs: Inputs, notes: list[tuple[str, str]]
) -> tuple[int | None, int | None, int | None]:
    """Run twice and count: FLOPs, MACs and operators, None with a note where that fails."""
    import torch

    try:
        with torch.no_grad(), _unfused(), _counter(module) as counter:
            run(*inputs.args, **inputs.kwargs)
        with torch.no_grad(), _counter(module) as called:  # as it is measured
            run(*inputs.args, **inputs.kwargs)
    except Exception as error:  # noqa: BLE001 - a model that fails here fails as a row in eager too
        notes.append(("counts-failed", f"not counted: {one_line(error)}"))
        return None, None, None
    if counter.hidden is not None:
        text = f"FLOPs and MACs not counted: {counter.hidden} has no formula"
        notes.append(("flops-not-counted", text))
        return None, None, called.operators
    return counter.flops, counter.macs, called.operators


@contextmanager
def _unfused() -> Iterator[None]:
    """Have torch's transformer layers call operators that have formulas, not one for a layer."""
    from torch.backends import mha

    was = mha.get_fastpath_enabled()
    mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        mha.set_fastpath_enabled(was)


def _counter(module: Any) -> Any:
    """Return a context that counts ``operators``, their ``flops``, and the ``macs`` of layers.

    ``hidden`` is the first operator that lacks a formula, or None. A product counts as a layer's
    where a factor is a parameter, a view of one, or computed from parameters and buffers alone, as
    weights that are normalised or cast are. The product of two such is none itself: DeBERTa's
    projected positions meet activations in attention.
    """
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    formulas = _formulas()
    constants = {_storage(buffer): False for buffer in module.buffers()}
    constants |= {_storage(parameter): True for parameter in module.parameters()}

    class Counter(TorchDispatchMode):  # type: ignore[misc] # torch is untyped to mypy here
        def __init__(self) -> None:
            super().__init__()
            self.operators = self.flops = self.macs = 0
            self.hidden: str | None = None
            self._kept: list[Any] = []  # so that no other tensor gets the storage of a constant

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            kwargs = kwargs or {}
            operator = func.overloadpacket
            formula = formulas.get(operator)
            if formula is None and func is not torch.ops.prim.device.default:
                with self:  # an operator that others make up is whole in inference mode
                    found = func.decompose(*args, **kwargs)
                if found is not NotImplemented:
                    return found
            self.operators += 1
            found = func(*args, **kwargs)
            given = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
            self._note_hidden(str(func), given)
            is_constant = bool(given) and all(_storage(tensor) in constants for tensor in given)
            if formula is not None:
                flops = int(formula(*args, **kwargs, out_val=found))
                self.flops += flops
                # A vector of constants is part of a weight, as its spectral norm is.
                is_constant = is_constant and found.dim() < 2
                factors = given[1:3] if str(operator) in ADDING else given[:2]
                is_layer = any(constants.get(_storage(factor)) for factor in factors)
                if is_layer and not is_constant and "attention" not in str(operator):
                    self.macs += flops // 2
            made = [t for t in tree_leaves(found) if isinstance(t, torch.Tensor)]
            if is_constant:
                has_parameter = any(constants[_storage(tensor)] for tensor in given)
                constants.update((_storage(tensor), has_parameter) for tensor in made)
                self._kept += made
            else:
                for tensor in made:  # one that activations were written to is none any more
                    constants.pop(_storage(tensor), None)
            return found

        def _note_hidden(self, name: str, given: list[Any]) -> None:
            if "mm" in name and any(tensor.layout is not torch.strided for tensor in given):
                name += SPARSE
            if self.hidden is None and any(part in name for part in WITHOUT_FORMULA):
                self.hidden = name

    return Counter()


ADDING = ("aten.addmm", "aten.baddbmm", "aten.addmv")
"""Products whose first tensor is added."""


def _storage(tensor: Any) -> int | None:
    """Return what tensors that view the same memory share, None for a sparse one."""
    return int(tensor.untyped_storage()._cdata) if str(tensor.layout) == "torch.strided" else None


def _formulas() -> dict[Any, Callable[..., int]]:
    """Return torch's formulas for FLOPs, and those that torch 2.13 lacks.

    It has the formula for the CUDA kernels of attention only, and none for a mixture's experts,
    where every token's row meets the matrix of one expert, (tokens, k) with (experts, k, n); for
    products with a vector; and for recurrent layers that are one operator.
    """
    import torch
    from torch.utils.flop_counter import flop_registry, sdpa_flop_count

    def attention(query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> int:
        return int(sdpa_flop_count(query.shape, key.shape, value.shape))

    def experts(tokens: Any, weights: Any, *args: Any, **kwargs: Any) -> int:
        return 2 * int(tokens.numel()) * int(weights.shape[-1])

    def vector(matrix: Any, *args: Any, **kwargs: Any) -> int:
        return 2 * int(matrix.numel())

    def added_vector(bias: Any, matrix: Any, *args: Any, **kwargs: Any) -> int:
        return 2 * int(matrix.numel())

    def recurrent(tokens: Any, weights: Any, *args: Any, **kwargs: Any) -> int:
        matrices = [tensor for tensor in weights if tensor.dim() == 2]
        return 2 * int(math.prod(tokens.shape[:-1]) * sum(matrix.numel() for matrix in matrices))

    def one_recurrent(tokens: Any, inner: Any, outer: Any, *args: Any, **kwargs: Any) -> int:
        return recurrent(tokens, [inner, outer])

    aten = torch.ops.aten
    extra: dict[Any, Callable[..., int]] = {
        aten._scaled_dot_product_flash_attention_for_cpu: attention,
        **dict.fromkeys((aten.mv, aten.dot, aten.vdot), vector),
        aten.addmv: added_vector,
        **dict.fromkeys((aten._cudnn_rnn, aten.miopen_rnn), recurrent),
        aten.mkldnn_rnn_layer: one_recurrent,
    }
    if hasattr(aten, "_grouped_mm"):  # not in the oldest torch that this runs with
        extra[aten._grouped_mm] = experts
    return {**flop_registry, **extra}
