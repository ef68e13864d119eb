"""The user's own model: a function of theirs, or a module that lives in the caller's Python.

``file.py:function`` or ``package.module:function`` takes no arguments and returns a
``torch.nn.Module``, or a module and its example inputs: a tensor, a tuple or list (positional), or
a dict (named). Whatever goes wrong in it is one line that names the user's file and line.

A live object may be what a library hands out ready-made, a pipeline of transformers' or a
SentenceTransformer: then the model in it is measured, on what its own tokenizer or feature
extractor makes of an example. Neither library is imported here: an object of theirs can only come
from a process that has it. A module travels to the measuring processes as a file written with
cloudpickle by the process that has it and read only by the processes that one starts; no other
pickle is ever read.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from frameworktax.errors import UsageError, UserModelError, nearest, one_line
from frameworktax.models import file_of, torchvision_operators
from frameworktax.models.base import Inputs, Model
from frameworktax.models.finalize import finalize
from frameworktax.models.libraries import begun
from frameworktax.records import Workload

BEGINS_OTHERS = "begins-others"
"""Note on a model whose file starts something when it is imported."""
DEEP = 4
"""Levels of an argument in which a tensor is looked for: a cache has its own in the fourth."""
GIVE = "give a tensor, or a tuple, list or dict of tensors"
RETURN = "return a torch.nn.Module and its example inputs (a tensor, tuple, list or dict)"


def build(name: str, workload: Workload) -> Model:
    """Call the user's function and wrap what it returns.

    Raises:
        UserModelError: file or function missing, the function raises or returns something else,
            or the batch dimension is not clear.
    """
    with _own_folder_first(name):
        before = begun()
        function = _function(name)
        after = begun()
        idle = threading.active_count(), after[1]
        try:
            result = function()
        # Broad on purpose, here and below: foreign code may raise anything, and all of it is shown;
        # a script that is imported ends the process, unless it looks at its __name__.
        except (Exception, SystemExit) as error:
            file = getattr(sys.modules.get(function.__module__), "__file__", None)
            raise UserModelError(f"{name} raised {_line(error, file)}") from error
    # of its own threads: torch has others as soon as a call of the function computes something
    running = threading.active_count(), begun()[1]
    module, example = _module_and_example(name, result)
    model = wrap(name, module, example, workload.batch_dim)
    for code, deed, earlier, later in (
        (BEGINS_OTHERS, f"importing {name.rpartition(':')[0]}", before, after),
        ("begun-beside", f"calling {name}", idle, running),
    ):
        counts = zip(("threads", "processes"), earlier, later, strict=True)
        if started := [what for what, a, b in counts if b > a]:
            text = f"{deed} starts {' and '.join(started)}, which run beside what is measured"
            model.notes.append((code, text))
    return model


def wrap(name: str, module: Any, given: Any, batch_dim: int | None) -> Model:
    """Return a live module and its example inputs as a model.

    Inputs for another batch size repeat or cut the example along the batch dimension.

    Raises:
        UserModelError: the inputs are no tensor, tuple, list or dict, hide tensors inside
            containers, or the batch dimension does not follow from them; or the module is
            compiled, or has weights without sizes or values.
    """
    import torch

    example = _as_inputs(name, given)
    if any(
        t.is_meta for t in (*module.parameters(), *module.buffers(), *example.tensors().values())
    ):
        raise UserModelError(
            f"{name} has weights or inputs on the meta device, which have no values; load them "
            "onto the CPU first"
        )
    if any(torch.nn.parameter.is_lazy(t) for t in module.parameters()):
        raise UserModelError(
            f"{name} has lazy layers, whose weights have no sizes yet; call it once on its example "
            "before you return it"
        )
    # What is compiled has imported this; it takes long.
    wrapped = getattr(sys.modules.get("torch._dynamo.eval_frame"), "OptimizedModule", ())
    for path, part in module.named_modules():
        if isinstance(part, wrapped) or part._compiled_call_impl is not None:
            raise UserModelError(
                f"{name}{f', its {path},' if path else ''} is compiled by torch.compile, so that "
                "eager would not be eager; give the module itself and choose --runtimes inductor"
            )
    dims = _batch_dims(name, example, batch_dim)
    by_mode = (torch.nn.modules.dropout._DropoutNd, torch.nn.modules.batchnorm._BatchNorm)
    notes = []
    if any(part.training for part in module.modules() if isinstance(part, by_mode)):
        text = "it was in training mode: dropout is off and batch norms use what they have kept"
        notes.append(("evaluation-mode", text))

    def inputs(batch: int) -> Inputs:
        def resized(path: str, value: Any) -> Any:
            if path not in dims:
                return value
            rows = torch.arange(batch, device=value.device) % value.shape[dims[path]]
            return value.index_select(dims[path], rows)

        return example.map(resized)

    return Model(module, inputs, dims, notes=notes)


@contextmanager
def _own_folder_first(name: str) -> Iterator[None]:
    """Have the user's file find its neighbours, as a script does; afterwards they come last.

    An engine that is imported later must not find a user's ``onnx.py``.
    """
    file = file_of(name)
    folder = str(file.resolve().parent) if file else ""
    if file is None or folder in sys.path:
        yield
        return
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        if folder in sys.path:  # the user's code may have changed it
            sys.path.remove(folder)
        sys.path.append(folder)


def _function(name: str) -> Callable[[], Any]:
    where, _, attribute = name.rpartition(":")
    if not where or not attribute:
        raise UserModelError(f"'{name}' names no function; write file.py:function")
    file = file_of(name)
    module = _from_file(file) if file else _from_package(name, where)
    function = getattr(module, attribute, None)
    if function is None:
        known = [key for key, value in vars(module).items() if callable(value)]
        raise UserModelError(f"{where} has no function '{attribute}'{nearest(attribute, known)}")
    if not callable(function):
        raise UserModelError(
            f"{name} is of type {type(function).__name__}; write a function to {RETURN}"
        )
    try:
        inspect.signature(function).bind()
    except ValueError:
        pass  # a builtin without a signature: calling it will show
    except TypeError as error:
        remedy = "write a function without any, or give them defaults"
        raise UserModelError(f"{name} wants arguments: {error}; {remedy}") from error
    return function  # type: ignore[no-any-return] # a user's: what it takes is not known


def _from_file(path: Path) -> ModuleType:
    path = path.resolve()
    # A name of its own: a user's onnx.py must not stand for the package.
    private = f"_frameworktax_user_{path.stem}"
    spec = importlib.util.spec_from_file_location(private, path)
    if spec is None or spec.loader is None:
        raise UserModelError(f"{path} is not a Python file; name one that ends in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[private] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[private]
        text = f"importing {path} raised {_line(error, str(path))}"
        if isinstance(error, ImportError) and "relative import" in str(error):
            text += "; a file in a package is named package.module:function"
        raise UserModelError(text) from error
    return module


def _from_package(name: str, where: str) -> ModuleType:
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))  # last: a local onnx.py must not stand for the engine
    try:
        return importlib.import_module(where)
    except (Exception, SystemExit) as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and f"{where}.".startswith(f"{missing}."):
            raise UserModelError(
                f"no module {where} (for {name}); run from its folder, or write file.py:function"
            ) from error
        raise UserModelError(f"importing {where} raised {_line(error, None)}") from error


def _line(error: BaseException, file: str | None) -> str:
    """Return ``Type: message (file:line)`` on one line, at the deepest frame in ``file``."""
    text = one_line(error)
    if isinstance(error, SyntaxError):  # its message names the line; its frames are not the user's
        return text
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if file and frame.filename == file]
    frame = own[-1] if own else frames[-1]
    # Settable once in a process, and a process may build a model several times.
    remedy = "; leave that call out, --threads sets them" if "interop threads" in text else ""
    return f"{text} ({frame.filename}:{frame.lineno}){remedy}"


def _module_and_example(name: str, result: Any) -> tuple[Any, Any]:
    import torch

    if isinstance(result, torch.nn.Module):
        # Lightning's and transformers' own conventions for an example.
        for attribute in ("example_input_array", "dummy_inputs"):
            example = getattr(result, attribute, None)
            if example is not None:
                return result, example
        raise UserModelError(f"{name} returned a module without inputs; {RETURN}")
    kind = type(result).__name__
    if isinstance(result, tuple | list) and len(result) == 2:
        module, example = result
        if isinstance(module, torch.nn.Module):
            return module, example
        kind = f"a pair that starts with {type(module).__name__}"
    raise UserModelError(f"{name} returned {kind}; {RETURN}")


def _as_inputs(name: str, example: Any) -> Inputs:
    import torch

    if isinstance(example, Mapping):
        inputs = Inputs(kwargs={str(key): value for key, value in example.items()})
    elif isinstance(example, torch.Tensor | tuple | list):
        inputs = Inputs((example,) if isinstance(example, torch.Tensor) else tuple(example))
    else:
        raise UserModelError(f"inputs of {name} are of type {type(example).__name__}; {GIVE}")
    for path, value in inputs.items():
        if isinstance(value, torch.Tensor):
            if value.is_nested:
                raise UserModelError(
                    f"{name} has a nested tensor in {path}; give a padded one, and a mask"
                )
        elif _holds_tensors(value, DEEP):
            raise UserModelError(
                f"{name} nests tensors in {path}; pass every tensor as an argument of its own"
            )
    return inputs


def _holds_tensors(value: Any, deep: int) -> bool:
    """Return whether a value is a tensor or holds one: a container, a cache, a graph."""
    import torch

    if isinstance(value, torch.Tensor):
        return True
    if isinstance(value, torch.nn.Module | type) or not deep:
        return False
    if isinstance(value, Mapping):
        inner: Iterable[Any] = value.values()
    elif isinstance(value, tuple | list | set | frozenset):
        inner = value
    else:
        inner = getattr(value, "__dict__", {}).values()
    return any(_holds_tensors(one, deep - 1) for one in [*inner])


def _batch_dims(name: str, example: Inputs, batch_dim: int | None) -> dict[str, int]:
    """Return the batch dimension of each tensor: the one asked for, or 0 where all agree."""
    shapes = {path: tuple(t.shape) for path, t in example.tensors().items() if t.dim()}
    if not shapes:
        raise UserModelError(f"inputs of {name} have no tensor to batch; {GIVE}")
    dim = 0 if batch_dim is None else batch_dim
    if any(not -len(shape) <= dim < len(shape) for shape in shapes.values()):
        raise UserModelError(
            f"{name}: --batch-dim {dim} does not exist in every input: {_shown(shapes)}"
        )
    dims = {path: dim % len(shape) for path, shape in shapes.items()}
    sizes = {shapes[path][d] for path, d in dims.items()}
    if len(sizes) > 1:
        raise UserModelError(
            f"{name}: inputs disagree on dimension {dim}: {_shown(shapes)}; name the batch "
            "dimension with --batch-dim, and keep constants in the module"
        )
    if sizes == {0}:
        raise UserModelError(f"inputs of {name} are of batch 0; give at least one sample")
    return dims


def _shown(shapes: Mapping[str, tuple[int, ...]]) -> str:
    return ", ".join(f"{path.partition('.')[2]} {shape}" for path, shape in shapes.items())


# --- a live object: the module in it, and its inputs ----------------------------------------------

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


def unpack(model: Any, inputs: Any) -> Live | None:
    """Return what is to be measured of a live object, None for a name; a module is as it is.

    Args:
        model: a ``torch.nn.Module``, a pipeline or a SentenceTransformer.
        inputs: for a module its example inputs; for the others what they are called with, a
            sentence or an image for one; a list of them is one batch.

    Raises:
        UsageError: there is no example, or one beside a name.
        UserModelError: the example cannot be used, or the model is not called with tensors.
    """
    if isinstance(model, str):
        if inputs is not None:
            raise UsageError(
                f"inputs are for a live module; {model} brings its own: leave them out"
            )
        return None
    if inputs is None:
        raise UsageError(
            f"a live {type(model).__name__} needs an example of what it is called with: "
            "measure(module, inputs), measure(pipeline, 'a sentence')"
        )
    for kind, unpacked in ((PIPELINE, _of_pipeline), (ENCODER, _of_encoder)):
        known = getattr(sys.modules.get(kind[0]), kind[1], None)
        if isinstance(known, type) and isinstance(model, known):
            try:
                return unpacked(model, inputs)
            except UserModelError:
                raise
            except Exception as error:  # foreign code on the caller's example: any error
                raise UserModelError(
                    f"{kind[1]} did not take the example ({one_line(error)[:200]}); give what it "
                    "is called with"
                ) from error
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(model, torch.nn.Module):
        raise UserModelError(
            f"{type(model).__name__} is no torch.nn.Module; give a module, a name, or "
            "file.py:function"
        )
    return Live(type(model).__name__, model, inputs)


def _of_pipeline(pipeline: Any, example: Any) -> Live:
    """Run the pipeline once and take what it calls its model with, the first time."""
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
    size = {"batch_size": len(example)} if isinstance(example, list) else {}
    hook = pipeline.model.register_forward_pre_hook(
        lambda _, args, kwargs: calls.append((args, kwargs)), with_kwargs=True
    )
    try:
        pipeline(example, **size)
    finally:
        hook.remove()
    args, kwargs = calls[0] if calls else ((), {})
    if "past_key_values" in kwargs:  # it generates: the prompt alone is an input
        kwargs = {name: kwargs[name] for name in PROMPT if name in kwargs}
    inputs = _tensors(kwargs)
    plain = (bool, int, float, str, type(None))
    others = [k for k, v in kwargs.items() if k not in inputs and not isinstance(v, plain)]
    if args or others or not inputs:
        raise UserModelError(
            f"the {pipeline.task} pipeline does not call its model with named tensors alone "
            f"({', '.join(others) or 'no name'}); measure(pipeline.model, inputs)"
        )
    which = "the forward pass" if len(calls) == 1 else f"the first of {len(calls)} forward passes"
    text = (
        f"measured is {which} of the model in a {pipeline.task} pipeline; what the pipeline does "
        "before and after is not"
    )
    name = type(pipeline.model).__name__
    return Live(name, pipeline.model, inputs, (("model-alone", text),))


def _tensors(given: Mapping[str, Any]) -> dict[str, Any]:
    import torch

    return {k: v.detach().cpu() for k, v in given.items() if isinstance(v, torch.Tensor)}


def _of_encoder(encoder: Any, example: Any) -> Live:
    """Wrap all modules of a sentence encoder as one, from named tensors to (batch, width)."""
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

    tokenize = getattr(encoder, "preprocess", None) or encoder.tokenize  # its name before 6.0
    inputs = _tensors(tokenize(example if isinstance(example, list) else [example]))
    if not set(PROMPT) <= inputs.keys() <= {*PROMPT, "token_type_ids"}:
        raise UserModelError(
            f"this sentence encoder takes {', '.join(inputs)}; only those of token ids and their "
            "mask are known: measure a module of your own around it"
        )
    text = "measured are the modules of the sentence encoder, pooling too; tokenisation is not"
    return Live(type(encoder).__name__, Sentences(), inputs, (("model-alone", text),))


# --- to the measuring processes -------------------------------------------------------------------


def send(live: Live, path: Path) -> None:
    """Write a module and its example inputs for the measuring processes.

    Raises:
        Exception: whatever pickling raises.
    """
    import cloudpickle

    with path.open("xb") as file:
        path.chmod(0o600)
        # What can be imported travels by name: the other side must look where this one looks.
        cloudpickle.dump(sys.path, file)
        cloudpickle.dump(live, file)


def build_live(live: str, workload: Workload, device: str) -> Model:
    """Return a module that was sent to a file as a model.

    Raises:
        UserModelError: the inputs are no tensor, tuple, list or dict, or the batch dimension is
            not clear.
    """
    import pickle

    torchvision_operators.declare()  # unpickling imports whatever the module is made of
    with Path(live).open("rb") as file:
        sys.path.extend(p for p in pickle.load(file) if p not in sys.path)
        sent = pickle.load(file)
    model = wrap(sent.name, sent.module, sent.inputs, workload.batch_dim)
    model.notes.extend(sent.notes)
    return finalize(model, workload, device)
