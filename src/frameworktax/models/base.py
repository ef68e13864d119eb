"""What a model is: a module with seeded weights, and inputs for any batch size.

A family is a ``build(name, workload) -> Model`` function and a table per name in ``models.toml``.
Weights come from a fixed seed and are calibrated so that outputs are of ordinary size (parity
between runtimes means nothing on outputs of 1e-21 or 1e+8).
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import math
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FunctionType, SimpleNamespace
from typing import TYPE_CHECKING, Any

from frameworktax.records import SEED as SEED  # where families take it from

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray

    from frameworktax.records import Workload

DEFAULT_LENGTH, DEFAULT_IMAGE_SIZE = 128, 224
"""Tokens, and pixels a side, of a model that says nothing of them."""


@dataclass
class Inputs:
    """What a call receives: positional and named arguments, tensors or plain values."""

    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)

    def items(self) -> list[tuple[str, Any]]:
        """Return the path (``args.0``, ``kwargs.input_ids``) and value of each, in order."""
        named = [(f"args.{number}", value) for number, value in enumerate(self.args)]
        return named + [(f"kwargs.{name}", value) for name, value in self.kwargs.items()]

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return path → value of all tensors, in order."""
        import torch

        return {path: value for path, value in self.items() if isinstance(value, torch.Tensor)}

    def map(self, change: Callable[[str, Any], Any]) -> Inputs:
        """Return the same inputs, each value what ``change`` returns for its path and value."""
        return Inputs(
            tuple(change(f"args.{number}", value) for number, value in enumerate(self.args)),
            {name: change(f"kwargs.{name}", value) for name, value in self.kwargs.items()},
        )


@dataclass(frozen=True, slots=True)
class Decoding:
    """How to generate: greedily ``new_tokens`` tokens, ``kv_cache`` none, dynamic or static."""

    new_tokens: int
    kv_cache: str


@dataclass
class Model:
    """A built model.

    Attributes:
        module: in eval mode, on the device and in the precision asked for. An ONNX file has no
            module: a stub stands here that raises when called.
        inputs: batch size → ``Inputs`` on the same device; seeded, so that every process that
            asks for the same batch size gets equal values.
        batch_dims: path of each tensor in the inputs (``args.0``, ``kwargs.input_ids``) → its
            batch dimension; a tensor without one is absent.
        has_twin: whether ``workload.twin`` builds a width-shrunk twin.
        notes: (code, text) pairs that belong beside every number of this model.
        positions: most tokens that a sample may have, prompt and generated ones together.
        onnx_path: the ONNX file that is the model itself, or None.
        decoding: how to generate; None for a forward pass. The module is then a causal language
            model with a head: called with ``input_ids``, ``attention_mask``, ``past_key_values``
            and ``use_cache`` it returns ``logits`` (batch, tokens, vocabulary) and the cache.
            ``inputs(batch)`` is the prompt.
        real: ragged input: batch size → which tokens are no padding, (batch, tokens).
    """

    module: torch.nn.Module
    inputs: Callable[[int], Inputs]
    batch_dims: dict[str, int]
    has_twin: bool = False
    notes: list[tuple[str, str]] = field(default_factory=list)
    positions: int | None = None
    onnx_path: Path | None = None
    decoding: Decoding | None = None
    real: Callable[[int], NDArray[np.bool_]] | None = None


# --- widths and depths ----------------------------------------------------------------------------


def wide(full: int, workload: Workload, step: int = 1) -> int:
    """Return a layer's width by the width factor, ``step`` or a multiple; a twin's is ``step``."""
    return step if workload.twin else step * max(1, round(full * workload.width / step))


def deep(full: int, workload: Workload) -> int:
    """Return a number of layers under the depth factor, at least one."""
    return max(1, round(full * workload.depth))


# --- inputs by shape ------------------------------------------------------------------------------

Draw = Callable[[int, "torch.Generator"], "torch.Tensor"]
"""Batch size and generator → one tensor, its batch first."""


def normal(*shape: int) -> Draw:
    """Return a drawer of noise, (batch, *shape)."""
    import torch

    # On the CPU by name: a model may be built with ``meta`` as the default device.
    return lambda batch, generator: torch.randn(batch, *shape, generator=generator, device="cpu")


def integers(below: int, *shape: int) -> Draw:
    """Return a drawer of integers from 0, (batch, *shape)."""
    import torch

    return lambda batch, generator: torch.randint(
        0, below, (batch, *shape), generator=generator, device="cpu"
    )


def ones(*shape: int) -> Draw:
    """Return a drawer of integers that are all 1, (batch, *shape)."""
    import torch

    return lambda batch, _: torch.ones((batch, *shape), dtype=torch.int64, device="cpu")


def drawn(*args: Draw, **kwargs: Draw) -> Callable[[int], Inputs]:
    """Return batch size → inputs, drawn in this order from the project's seed."""
    import torch

    def inputs(batch: int) -> Inputs:
        generator = torch.Generator().manual_seed(SEED)
        return Inputs(
            tuple(draw(batch, generator) for draw in args),
            {name: draw(batch, generator) for name, draw in kwargs.items()},
        )

    return inputs


def model_of(
    module: Any,
    *args: Draw,
    named: Mapping[str, Draw] | None = None,
    has_twin: bool = True,
    **fields: Any,
) -> Model:
    """Return a module with seeded inputs, positional and named, the batch first in each.

    ``fields`` are other attributes of ``Model``.
    """
    kwargs = dict(named or {})
    dims = {path: 0 for path, _ in Inputs(args, kwargs).items()}
    return Model(module, drawn(*args, **kwargs), dims, has_twin=has_twin, **fields)


def state(module: torch.nn.Module) -> dict[str, object]:
    """Return what a module keeps from call to call, by name, as values to compare.

    Of a parameter how often it was written to; of other tensors, containers and objects among its
    own and its parts' attributes a hash of all that they hold, as far as it can be pickled.
    """
    found: dict[str, object] = {}
    pickled = _state_pickler()
    for path, part in module.named_modules():
        own = {**vars(part), **dict(part.named_buffers(recurse=False))}
        for name, value in {**own, **dict(part.named_parameters(recurse=False))}.items():
            if name not in ("_parameters", "_buffers", "_modules"):  # each has a name of its own
                found[f"{path}.{name}".lstrip(".")] = pickled(value)
    return found


def _state_pickler() -> Callable[[object], str]:
    """Return a function from an object to a hash of what it and all that it holds hold.

    Of modules there is nothing, and of what cannot be pickled (a lock, a function) the type alone.
    What several objects hold is in the hash of the first.
    """
    import torch

    class Pickler(pickle.Pickler):
        def reducer_override(self, value: Any) -> Any:
            if value is repr:
                return NotImplemented
            what: object = type(value).__qualname__
            if isinstance(value, torch.nn.Parameter):
                what = None if value.is_inference() else value._version
            elif isinstance(value, torch.Tensor) and value.layout is torch.strided:
                whole = value.detach().cpu().resolve_conj().resolve_neg().contiguous()
                what = whole.reshape(-1).view(torch.uint8).numpy().tobytes()
            elif not isinstance(value, torch.nn.Module | torch.Tensor | type | FunctionType):
                with contextlib.suppress(Exception):  # of foreign code
                    what = value.__reduce_ex__(pickle.DEFAULT_PROTOCOL)
            return what if isinstance(what, tuple) else (repr, (what,))

    digest = hashlib.sha256()
    pickler = Pickler(SimpleNamespace(write=lambda data: digest.update(data)))

    def pickled(value: object) -> str:
        nonlocal digest
        digest = hashlib.sha256()
        with contextlib.suppress(RecursionError, pickle.PicklingError):  # the rest is left out
            pickler.dump(value)
        return digest.hexdigest()

    return pickled


# --- outputs of ordinary size: random weights make parity meaningless otherwise -------------------
#
# Untouched, MobileNetV2's outputs are about 4e-21 (denormal, and slow for that), ResNet-152's 7e+8.
# Heads start as zeros in torchvision's vision transformer, and layers that are scaled by 1e-6, as
# ConvNeXt's, could be wrong without a trace.

FAINT = 1e-2
"""A constant scale below this stands for "learn me": trained ones are 0.1 and more."""
SCALE = 0.1


def calibrate(module: torch.nn.Module, inputs: Inputs) -> None:
    """Set every batch norm to weight 1, bias 0 and the statistics of a batch.

    ``momentum = None`` makes the running statistics those of the batch alone. Layers of zeros and
    faint scales are given values first. Leaves the module in eval mode; does nothing to a module
    without data (device ``meta``).
    """
    import torch

    module.eval()
    if any(p.is_meta for p in module.parameters()):
        return
    _wake(module)
    norms = [m for m in module.modules() if isinstance(m, torch.nn.modules.batchnorm._BatchNorm)]
    for norm in norms:
        if norm.affine:
            torch.nn.init.ones_(norm.weight)
            torch.nn.init.zeros_(norm.bias)
        norm.reset_running_stats()
        norm.momentum = None
        norm.train()  # alone: dropout and stochastic depth would average over themselves
    if norms:
        with torch.no_grad():
            module(*inputs.args, **inputs.kwargs)
    module.eval()


def _wake(module: torch.nn.Module) -> None:
    """Give values to layers that start as zeros, and size to scales that start as next to none."""
    import torch

    generator = torch.Generator().manual_seed(SEED)
    for layer in module.modules():
        zeros = isinstance(layer, torch.nn.Linear | torch.nn.Conv2d) and not layer.weight.any()
        if zeros:
            torch.nn.init.kaiming_normal_(layer.weight, nonlinearity="linear", generator=generator)
    with torch.no_grad():
        for parameter in module.parameters():
            first = parameter.flatten()[:1]
            if 0 < float(first.abs().sum()) < FAINT and bool((parameter == first).all()):
                parameter.fill_(SCALE)


# --- inputs like a model's own: to show that two programs agree beyond one example ---------------

EDGES = 3
"""Numbers 1 to 3 draw edge values: every number the least, the largest, the one nearest zero."""
ROWS = 16
"""Samples of the example that give the range of values: one alone may have a single index."""


def draw(model: Model, batch: int, number: int) -> Inputs:
    """Return inputs of a batch size in the place of the model's own.

    Values stay within those of ``ROWS`` samples of the example, so that an index stays one: whole
    numbers between its least and its largest, floats normal with its mean and deviation, cut at its
    ends. Floats that are all one number are drawn between 0 and it, or 1 where it is 0. Other
    constants stay. Of a mask, zeros and ones, two of eight draws mask the ends of rows, as padding
    does, one masks their begins, one whatever comes after the first token, and the others are the
    example: a row without a one has no defined output.
    Number 0 is the model's own input, 1 to ``EDGES`` are edge values, others are random.
    """
    import torch

    own = model.inputs(batch)
    if number == 0:
        return own
    generator = torch.Generator().manual_seed(SEED + number)
    rows = dict(model.inputs(max(batch, ROWS)).items())
    names: list[str] = []
    with contextlib.suppress(ValueError):  # a trace's forward has no signature
        names = list(inspect.signature(model.module.forward).parameters)

    def drawn(path: str, value: Any) -> Any:
        place = path.removeprefix("args.")
        is_named = place.isdecimal() and int(place) < len(names)
        return _drawn(names[int(place)] if is_named else path, value, rows[path], number, generator)

    return own.map(drawn)


def _drawn(name: str, example: Any, rows: Any, number: int, generator: torch.Generator) -> Any:
    """Return what is drawn in the place of an example, its values within those of ``rows``.

    ``name`` is that of the parameter, or a path that ends in it.
    """
    import torch

    if not isinstance(example, torch.Tensor) or not example.numel():
        return example
    if example.is_complex():
        own, all_rows = (torch.view_as_real(t.resolve_conj()) for t in (example, rows))
        return torch.view_as_complex(_drawn(name, own, all_rows, number, generator))
    is_mask = "mask" in name and example.dim() >= 2
    if example.dtype == torch.bool and not (is_mask and rows.all()):
        found = torch.rand(example.shape, generator=generator) < rows.float().mean().item()
        return found.to(example.device)
    if not rows.is_floating_point():
        rows = rows.long()  # unsigned types have no least and no largest
    low, high = rows.min().item(), rows.max().item()
    if is_mask and high == 1 and bool((rows == rows**2).all()):
        return _masked(example, number, generator) if number % 2 else example
    is_constant = low == high
    if is_constant:
        if not example.is_floating_point() or not math.isfinite(low):
            return example
        low, high = sorted((0.0, low or 1.0))
    if number <= EDGES:
        nearest = min(max(low, 0), high)  # to zero
        return torch.full_like(example, (low, high, nearest)[number - 1])
    if not example.is_floating_point():
        found = torch.randint(int(low), int(high) + 1, example.shape, generator=generator)
    elif is_constant:
        found = torch.rand(example.shape, generator=generator) * (high - low) + low
    else:
        wide = rows.float()
        found = torch.randn(example.shape, generator=generator).to(example.device)
        found = (found * wide.std() + wide.mean()).clamp(low, high)
    return found.to(example.device, example.dtype)


def _masked(mask: torch.Tensor, number: int, generator: torch.Generator) -> torch.Tensor:
    """Return a mask of ones with zeros in the place of some, at least one left in each row."""
    import torch

    width = mask.shape[-1]
    if number % 4 == 1 or number % 8 == 7:
        size = (*mask.shape[:-1], 1)
        kept = torch.arange(width) < torch.randint(1, width + 1, size, generator=generator)
        kept = kept if number % 4 == 1 else kept.flip(-1)
    else:
        kept = torch.rand(mask.shape, generator=generator) < 0.5
        kept[..., 0] = True
    return kept.to(mask.device, mask.dtype)
