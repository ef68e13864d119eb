"""How a module is called and what it returns, as plain data: enough to stand in for it.

Of what a module takes, tensors are inputs and everything else is a constant of the export. Of what
it returns, tensors are replaced and the containers around them are built anew: tuples, lists,
named tuples, dictionaries, and the outputs of transformers, of which the library is not needed.
"""

from __future__ import annotations

import inspect
from collections import OrderedDict, namedtuple
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import TYPE_CHECKING, Any

from frameworktax.errors import DeploymentError, WorkerError

if TYPE_CHECKING:
    from frameworktax.models.base import Model

Plain = bool | int | float | str | None
KINDS = {kind.name: kind for kind in inspect._ParameterKind}


@dataclass(frozen=True, slots=True, kw_only=True)
class Interface:
    """A module's calls as data.

    Attributes:
        parameters: name, kind and whether there is a default, in the order of ``forward``.
        inputs: paths of the tensors (``args.0``, ``kwargs.input_ids``), in the artefact's order.
        dtypes: of the inputs, as torch writes them without its prefix.
        constants: path → value of what else the example was called with.
        output: the tree of what is returned; see ``tree``.
    """

    parameters: Sequence[tuple[str, str, bool]]
    inputs: Sequence[str]
    dtypes: Sequence[str]
    constants: Mapping[str, Plain] = field(default_factory=dict)
    output: Any = None

    @property
    def names(self) -> list[str]:
        """What the inputs are called by: parameters of ``forward``."""
        return [_name(path, self.positions) for path in self.inputs]

    @property
    def positions(self) -> list[str]:
        """Parameters that may be given by position."""
        return [name for name, kind, _ in self.parameters if kind.startswith("POSITIONAL")]

    def signature(self) -> inspect.Signature:
        """Return the module's own signature; a default is shown as ``...``."""
        return inspect.Signature(
            [
                inspect.Parameter(name, KINDS[kind], default=... if has_default else _NONE)
                for name, kind, has_default in self.parameters
            ]
        )


_NONE = inspect.Parameter.empty


def describe(model: Model, result: Any) -> Interface:
    """Return how a model is called and what it returned.

    Raises:
        WorkerError: it is called with or returns what cannot be written down.
    """
    inputs = model.inputs(1)
    tensors = inputs.tensors()
    constants = {path: v for path, v in inputs.items() if path not in tensors}
    for path, value in constants.items():
        if not isinstance(value, Plain):
            raise WorkerError(
                "unavailable", f"{path} is a {type(value).__name__}; pass tensors and plain values"
            )
    found = inspect.signature(model.module.forward).parameters.values()
    return Interface(
        parameters=[(p.name, p.kind.name, p.default is not _NONE) for p in found],
        inputs=list(tensors),
        dtypes=[_dtype(v) for v in tensors.values()],
        constants=constants,
        output=tree(result),
    )


def _dtype(tensor: Any) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def tree(result: Any) -> Any:
    """Return the structure of an output as JSON.

    ``{"tensor": dtype}``, ``{"value": plain}``, ``{"tuple": [...]}`` (``names`` of a named one),
    ``{"list": [...]}``, or ``{"mapping": {key: ...}}`` with the name of its class and its fields
    that are None. What a mapping holds beside these is ``absent``.

    Raises:
        WorkerError: another kind of object.
    """
    import torch

    if isinstance(result, torch.Tensor):
        return {"tensor": _dtype(result)}
    if isinstance(result, Plain):
        return {"value": result}
    if isinstance(result, tuple):
        names = {"names": result._fields} if hasattr(result, "_fields") else {}
        return {"tuple": [tree(v) for v in result], "class": type(result).__name__, **names}
    if isinstance(result, list):
        return {"list": [tree(v) for v in result]}
    if isinstance(result, Mapping):
        kinds = torch.Tensor | tuple | list | Mapping | Plain
        known = {k: v for k, v in result.items() if isinstance(k, str) and isinstance(v, kinds)}
        own: list[str] = [f.name for f in fields(result)] if is_dataclass(result) else []
        return {
            "mapping": {key: tree(value) for key, value in known.items()},
            "class": type(result).__name__,
            "none": [name for name in own if getattr(result, name, None) is None],
            "absent": [str(key) for key in result if key not in known],
        }
    raise WorkerError(
        "unavailable",
        f"the output holds a {type(result).__name__}; return tensors, tuples, lists or dicts",
    )


class Outputs(OrderedDict[str, Any]):
    """What transformers' outputs are: entries by name, as attributes and by number."""

    none: Sequence[str] = ()
    """Fields that the module left None."""

    def __getattr__(self, name: str) -> Any:
        if name in self:
            return self[name]
        if name in self.none:
            return None
        raise AttributeError(f"the deployment's output has no '{name}', only {', '.join(self)}")

    def __getitem__(self, key: Any) -> Any:
        return super().__getitem__(key) if isinstance(key, str) else self.to_tuple()[key]

    def to_tuple(self) -> tuple[Any, ...]:
        """Return the entries without their names."""
        return tuple(self.values())


def dtypes_of(structure: Any) -> list[str]:
    """Return the dtypes of a tree's tensors, in order."""
    if "tensor" in structure:
        return [structure["tensor"]]
    return [dtype for part in _parts(structure) for dtype in dtypes_of(part)]


def _parts(structure: Any) -> list[Any]:
    if "mapping" in structure:
        return list(structure["mapping"].values())
    return structure.get("tuple") or structure.get("list") or []


def builder(structure: Any) -> Callable[[Iterator[Any]], Any]:
    """Return a function from tensors in order to the structure around them."""
    if "tensor" in structure:
        return next
    if "value" in structure:
        return lambda _: structure["value"]
    parts = [builder(part) for part in _parts(structure)]
    if "mapping" not in structure:
        made: Any = list if "list" in structure else tuple
        if "names" in structure:
            kind: Any = namedtuple(structure["class"], structure["names"])  # type: ignore[misc] # named by the module
            made = kind._make
        return lambda tensors: made([part(tensors) for part in parts])
    pairs = list(zip(structure["mapping"], parts, strict=True))
    if structure["class"] in ("dict", "OrderedDict"):
        return lambda tensors: {key: part(tensors) for key, part in pairs}

    def build(tensors: Iterator[Any]) -> Outputs:
        found = Outputs((key, part(tensors)) for key, part in pairs)
        found.none = structure["none"]
        return found

    return build


# --- from a call to tensors in order --------------------------------------------------------------


def binder(interface: Interface) -> Callable[[tuple[Any, ...], dict[str, Any]], list[Any]]:
    """Return a function from the arguments of a call to the tensors in the artefact's order.

    It raises DeploymentError where a tensor is missing, or anything else differs from what the
    deployment was made with.
    """
    positions, names = interface.positions, interface.names
    constants = {_name(path, positions): value for path, value in interface.constants.items()}
    known = set(names)

    def bind(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        given = dict(kwargs)
        for number, value in enumerate(args):
            name = positions[number] if number < len(positions) else f"args.{number}"
            if name in given:
                raise DeploymentError(f"'{name}' was given twice; give it once")
            given[name] = value
        missing = [name for name in names if given.get(name) is None]
        if missing:
            raise DeploymentError(f"no {', '.join(missing)} given; the deployment needs it")
        for name, value in given.items():
            if name in known or (name not in constants and value is None):
                continue
            known_as = constants.get(name)
            if name not in constants or type(value) is not type(known_as) or value != known_as:
                made = f"{name}={constants[name]!r}" if name in constants else f"no {name}"
                raise DeploymentError(
                    f"{name} was given and differs: the deployment was made with {made}; "
                    "leave it out"
                )
        return [given[name] for name in names]

    return bind


def _name(path: str, positions: Sequence[str]) -> str:
    """Return the parameter that a path of ``Inputs`` belongs to; ``args.N`` beyond the named."""
    kind, _, name = path.partition(".")
    if kind == "kwargs":
        return name
    return positions[int(name)] if int(name) < len(positions) else path
