"""A module that lives in the caller's Python, measured in processes of their own.

It may be what a library hands out ready-made, a pipeline of transformers' or a SentenceTransformer:
then the model in it is measured, on what its own tokenizer or feature extractor makes of an
example. Neither library is imported here: an object of theirs can only come from a process that
has it.

A module travels as a file written with cloudpickle by the process that has it and read only by
the processes that one starts; no other pickle is ever read.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from frameworktax.errors import UsageError, UserModelError
from frameworktax.models import torchvision_operators
from frameworktax.models.base import Model
from frameworktax.models.finalize import finalize
from frameworktax.models.user import as_inputs, wrap

if TYPE_CHECKING:
    from frameworktax.records import Workload

PIPELINE = ("transformers.pipelines.base", "Pipeline")
ENCODER = ("sentence_transformers", "SentenceTransformer")
PROMPT = ("input_ids", "attention_mask")


@dataclass(frozen=True, slots=True)
class Live:
    """A module of the caller's, its example inputs, and notes on what of it is measured."""

    name: str
    module: Any
    inputs: Any
    notes: tuple[tuple[str, str], ...] = ()


def unpack(model: Any, inputs: Any) -> Live:
    """Return what is to be measured of a live object; a module is measured as it is.

    Args:
        model: a ``torch.nn.Module``, a pipeline or a SentenceTransformer.
        inputs: for a module its example inputs; for the others what they are called with, a
            sentence or an image for one; a list of them is one batch.

    Raises:
        UsageError: there is no example.
        UserModelError: the example cannot be used, or the model is not called with tensors.
    """
    pipeline, encoder = _is(model, PIPELINE), _is(model, ENCODER)
    if inputs is None:
        if pipeline or encoder:
            kind = type(model).__name__
            raise UsageError(f"a {kind} needs an example: measure(model, 'a sentence')")
        raise UsageError("a live module needs its example inputs: measure(module, inputs)")
    if pipeline:
        return _of_pipeline(model, inputs)
    return _of_encoder(model, inputs) if encoder else Live(type(model).__name__, model, inputs)


def _is(model: Any, name: tuple[str, str]) -> bool:
    kind = getattr(sys.modules.get(name[0]), name[1], None)
    return isinstance(kind, type) and isinstance(model, kind)


def _of_pipeline(pipeline: Any, example: Any) -> Live:
    """Run the pipeline once and take what it calls its model with."""
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
    size = {"batch_size": len(example)} if isinstance(example, list) else {}
    hook = pipeline.model.register_forward_pre_hook(
        lambda _, args, kwargs: calls.append((args, kwargs)), with_kwargs=True
    )
    try:
        _tried(pipeline, lambda: pipeline(example, **size))
    finally:
        hook.remove()
    if not calls:
        raise UserModelError(
            f"the {pipeline.task} pipeline did not call its model; measure(pipeline.model, inputs)"
        )
    args, kwargs = calls[0]
    which = "the forward pass" if len(calls) == 1 else f"the first of {len(calls)} forward passes"
    text = (
        f"measured is {which} of the model in a {pipeline.task} pipeline; what the pipeline does "
        "before and after is not"
    )
    inputs, name = _tensors(pipeline, args, kwargs), type(pipeline.model).__name__
    return Live(name, pipeline.model, inputs, (("model-alone", text),))


def _tensors(pipeline: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the named tensors of a call.

    Raises:
        UserModelError: it has others, or what is not passed on holds some.
    """
    import torch

    if "past_key_values" in kwargs:  # it generates: the prompt alone is an input
        kwargs = {name: kwargs[name] for name in PROMPT if name in kwargs}
    found = {k: v.detach().cpu() for k, v in kwargs.items() if isinstance(v, torch.Tensor)}
    plain = (bool, int, float, str, type(None))
    others = [name for name, v in kwargs.items() if name not in found and not isinstance(v, plain)]
    if args or others or not found:
        what = ", ".join(others) or "arguments without a name"
        raise UserModelError(
            f"the {pipeline.task} pipeline calls its model with {what}; "
            "measure(pipeline.model, inputs) with named tensors"
        )
    return found


def _of_encoder(encoder: Any, example: Any) -> Live:
    """Wrap all modules of a sentence encoder as one that takes tensors by name."""
    import torch

    texts = example if isinstance(example, list) else [example]
    tokenize = getattr(encoder, "preprocess", None) or encoder.tokenize  # its name before 6.0
    features = _tried(encoder, lambda: tokenize(texts))
    inputs = {k: v.detach().cpu() for k, v in features.items() if isinstance(v, torch.Tensor)}
    if not set(PROMPT) <= inputs.keys() <= {*PROMPT, "token_type_ids"}:
        raise UserModelError(
            f"this sentence encoder takes {', '.join(inputs)}; only those of token ids and their "
            "mask are known: measure a module of your own around it"
        )
    text = "measured are the modules of the sentence encoder, pooling too; tokenisation is not"
    name = type(encoder).__name__
    return Live(name, _sentences(encoder), inputs, (("model-alone", text),))


def _sentences(encoder: Any) -> Any:
    """Return all modules of a SentenceTransformer as one, from tokens to (batch, width)."""
    import torch

    class Sentences(torch.nn.Module):  # type: ignore[misc] # torch is untyped to mypy here
        def __init__(self) -> None:
            super().__init__()
            self.encoder = encoder

        def forward(
            self, input_ids: Any, attention_mask: Any, token_type_ids: Any = None
        ) -> torch.Tensor:
            features = {"input_ids": input_ids, "attention_mask": attention_mask}
            if token_type_ids is not None:
                features["token_type_ids"] = token_type_ids
            return self.encoder(features)["sentence_embedding"]

    return Sentences()


def _tried(model: Any, call: Callable[[], Any]) -> Any:
    """Return what a library's own call gives; whatever it raises is one line."""
    try:
        return call()
    except Exception as error:  # foreign code on the caller's example: any error
        text = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        raise UserModelError(
            f"{type(model).__name__} did not take the example ({text}); give what it is called with"
        ) from error


# --- to the measuring processes -------------------------------------------------------------------


def send(live: Live, path: Path) -> None:
    """Write a module and its example inputs for the measuring processes.

    Raises:
        Exception: whatever pickling raises; the caller then measures in place.
    """
    import cloudpickle

    with path.open("xb") as file:
        path.chmod(0o600)
        # What can be imported travels by name: the other side must look where this one looks.
        cloudpickle.dump(sys.path, file)
        cloudpickle.dump(live, file)


def build_live(live: Any, workload: Workload, device: str) -> Model:
    """Return a sent module (a path) or one of this process (``Live``) as a model.

    Raises:
        UserModelError: the inputs are no tensor, tuple, list or dict, or the batch dimension is
            not clear.
    """
    torchvision_operators.declare()  # unpickling imports whatever the module is made of
    if isinstance(live, str):
        import pickle

        with Path(live).open("rb") as file:
            sys.path.extend(p for p in pickle.load(file) if p not in sys.path)
            sent = pickle.load(file)
        module = sent.module
    else:
        sent = live
        module = copy.deepcopy(live.module)  # eval() and casting must not reach the caller's own
    inputs = as_inputs(sent.name, sent.inputs)
    model = wrap(sent.name, module, inputs, workload.batch_dim)
    model.notes.extend(sent.notes)
    return finalize(model, workload, device)
