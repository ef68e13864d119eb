"""A deployment as a callable that stands in for its module.

``load("deploy/")`` needs neither the model's code nor its library, and of the engines only those
chosen. Everything is loaded when it is made: a call looks up what serves the shapes of its inputs
and runs that.
"""

from __future__ import annotations

import sys
from collections import OrderedDict, namedtuple
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from inspect import Signature
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np

from frameworktax import runtimes
from frameworktax.errors import DeploymentError, FrameworktaxError, WorkerError, as_path, flat
from frameworktax.runtimes import deployment
from frameworktax.runtimes.artifacts import Artifact, ArtifactLoaded, Serve
from frameworktax.runtimes.base import Loaded, Target
from frameworktax.runtimes.deployment import Axes, Interface, Padding, Shape, Sizes, shape_name
from frameworktax.runtimes.huge_pages import HugePages

Run = Callable[[Sequence[Any]], Any]
Build = Callable[[Iterator[Any]], Any]
"""Puts tensors into the module's containers."""
KIND = attrgetter("shape", "dtype")
"""Which artifact serves a tensor depends on these."""
Served = tuple[Serve, bool]
"""A call of an engine, and whether it takes torch's tensors."""


def load(folder: str | Path, *, module: Any = None) -> Deployment:
    """Load what ``frameworktax optimize`` wrote.

    Args:
        folder: with the manifest.
        module: the model itself, called where no artifact serves; without it that is refused.

    Returns:
        A callable with the module's own signature: torch tensors give torch tensors, numpy arrays
        give numpy arrays, in the containers that the module returns.

    Raises:
        DeploymentError: it was made for another machine or other versions, or was changed.
    """
    return Deployment(as_path("folder", folder), module)


class StandIn:
    """A callable with a module's own signature, over what serves sizes of its inputs.

    Torch tensors give torch tensors, numpy arrays give numpy arrays.

    Args:
        interface: how the module is called.
        device: that torch's tensors come from and are returned on.
        served: sizes of the inputs, in order → what serves them.
    """

    def __init__(self, interface: Interface, device: str, served: Mapping[Sizes, Served]) -> None:
        self.interface, self._device, self._served = interface, device, served
        self._names = interface.names
        # All tensors by position, or all by name, and nothing else: what most calls are.
        self._count = len(self._names) if not interface.required else -1
        positions = [*interface.positions, *(f"args.{i}" for i in range(self._count))]
        self._is_positional = positions[: self._count] == self._names
        self._bind = binder(interface)
        self._build = builder(interface.output)
        self._dtypes = dtypes_of(interface.output)
        self._table: dict[Any, Run] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run what stands in for the module.

        Raises:
            DeploymentError: the arguments are not those of the deployment, or no artifact serves
                their shapes and no module was given.
        """
        if self._is_positional and not kwargs and len(args) == self._count:
            tensors: Sequence[Any] = args
        elif not args and len(kwargs) == self._count:
            tensors = [kwargs.get(name) for name in self._names]
        else:
            tensors = self._bind(args, kwargs)
        try:
            run = self._table.get(tuple(map(KIND, tensors)))
        except (AttributeError, TypeError, RuntimeError):  # a nested tensor has no sizes
            run = None
        if run is None:
            tensors = self._bind(args, kwargs)
            run = self._resolve(tensors, args, kwargs)
        return run(tensors)

    def arguments(
        self, given: Mapping[str, np.ndarray], *, on_torch: bool = True
    ) -> tuple[list[Any], dict[str, Any]]:
        """Return arrays by path as arguments of a call.

        They are torch's tensors on the device, or where ``on_torch`` is false as they are.
        """
        values: Mapping[str, Any] = given
        if on_torch:
            import torch

            kinds = dict(zip(self.interface.inputs, self.interface.dtypes, strict=True))
            values = {
                path: torch.from_numpy(array).to(self._device, getattr(torch, kinds[path]))
                for path, array in given.items()
            }
        known = {**self.interface.constants, **values}
        paths = [path.partition(".") for path in (*values, *self.interface.required)]
        numbers = [int(name) for kind, _, name in paths if kind == "args"]
        args = [known[f"args.{number}"] for number in range(max(numbers, default=-1) + 1)]
        kwargs = {name: known[f"kwargs.{name}"] for kind, _, name in paths if kind == "kwargs"}
        return args, kwargs

    # --- a shape for the first time -------------------------------------------------------------

    def _resolve(self, tensors: Sequence[Any], args: Any, kwargs: Any) -> Run:
        """Return what runs these tensors, and remember it for their shapes and types."""
        on_torch = self._check_types(tensors)
        sizes = tuple(tuple(t.shape) for t in tensors)
        run = self._run(sizes, on_torch=on_torch)
        if run is None:
            return self._unserved(sizes, args, kwargs)
        self._table[tuple(map(KIND, tensors))] = run
        return run

    def _run(self, sizes: Sizes, *, on_torch: bool) -> Run | None:
        """Return what runs inputs of these sizes, None where nothing does."""
        return self._runner(sizes, self._build, on_torch) if sizes in self._served else None

    def _unserved(self, sizes: Sizes, args: Any, kwargs: Any) -> Run:
        """Return what runs arguments that nothing serves; by default there is nothing."""
        raise DeploymentError(f"no artifact serves inputs of sizes {sizes}")

    def _runner(self, sizes: Sizes, build: Build, on_torch: bool) -> Run:
        """Return a call of an engine between the caller's kind of tensors and its own."""
        serve, takes_torch = self._served[sizes]
        into, out = _conversions(self._device, given=on_torch, taken=takes_torch)
        names = self._dtypes
        if not on_torch:  # numpy has no bfloat16
            names = ["float32" if name == "bfloat16" else name for name in names]
        if on_torch or takes_torch:
            import torch

            kinds = [getattr(torch, name) for name in names]
        else:
            kinds = [np.dtype(name) for name in names]

        def run(tensors: Sequence[Any]) -> Any:
            # By map: a comprehension costs twice as much. The proof has compared their number.
            return build(map(out, serve(list(map(into, tensors))), kinds))

        return run

    def _check_types(self, tensors: Sequence[Any]) -> bool:
        """Return whether these are torch's tensors; False for numpy's arrays.

        Raises:
            DeploymentError: they are neither, mixed, on a device, or of another type.
        """
        torch = sys.modules.get("torch")
        kinds = [torch is not None and isinstance(t, torch.Tensor) for t in tensors]
        for name, t, is_torch, dtype in zip(
            self._names, tensors, kinds, self.interface.dtypes, strict=True
        ):
            if not is_torch and not isinstance(t, np.ndarray):
                raise DeploymentError(
                    f"'{name}' is a {type(t).__name__}; give torch tensors or numpy arrays"
                )
            if is_torch and t.is_nested:
                raise DeploymentError(f"'{name}' is a nested tensor; give a padded one")
            if is_torch != kinds[0]:
                raise DeploymentError("torch tensors and numpy arrays are mixed; give one kind")
            given = str(t.dtype).removeprefix("torch.")
            if given != dtype:
                raise DeploymentError(
                    f"'{name}' is {given}, the deployment takes {dtype}; convert it before the call"
                )
        return bool(kinds and kinds[0])


class Deployment(StandIn):
    """A loaded deployment; several threads may call it. It is pickled by its path.

    Attributes:
        folder: absolute.
        manifest: what is known of it.
        huge_pages: what of its engines' memory is in them, or why nothing is.
    """

    def __init__(self, folder: Path, module: Any = None) -> None:
        """Check everything, then load the engines; see ``load``."""
        self.folder = folder.resolve()
        self.manifest = deployment.read(self.folder)
        self._module = module
        self.huge_pages = pages_for(self.manifest.device, self.manifest.aim)
        try:
            super().__init__(self.manifest.interface, self.manifest.device, self._serve())
        except deployment.WRONG as error:
            raise deployment.damaged(self.folder / deployment.MANIFEST, error) from error

    def _serve(self) -> dict[Sizes, Served]:
        """Return what serves each shape."""
        target = Target(self.manifest.device, self.manifest.precision, self.manifest.threads)

        @cache
        def engine(folder: str, runtime: str) -> Loaded:
            return runtimes.get(runtime).load(None, target, self.folder / folder)

        @cache
        def serving(folder: str, runtime: str, batch: int | None) -> Served:
            return served_by(engine(folder, runtime), batch, self.huge_pages)

        found = {}
        for shape in deployment.served(self.manifest.shapes):
            try:
                is_shared = shape.is_between or self._is_light(shape)
                batch = None if is_shared else shape.batch
                found[shape.sizes] = serving(str(shape.folder), str(shape.runtime), batch)
            except (FrameworktaxError, RuntimeError, OSError) as error:
                text = f"{shape.runtime} did not load {shape_name(shape)} ({error})"
                raise DeploymentError(
                    flat(f"{self.folder}: {text}; rebuild it: {self.manifest.command}")
                ) from error
        return found

    def _is_light(self, shape: Shape) -> bool:
        """Return whether an engine serves this shape with others, for it to be loaded once."""
        if self.manifest.aim not in deployment.LIGHT or self.manifest.device != "cpu":
            return False
        artifact = Artifact.read(self.folder / str(shape.folder))
        return artifact.dynamic is not None and artifact.files.get(shape.batch) == artifact.dynamic

    def _run(self, sizes: Sizes, *, on_torch: bool) -> Run | None:
        """Return what runs inputs of these sizes, padded where that is proven equal."""
        found = super()._run(sizes, on_torch=on_torch)
        larger = None if found else deployment.padded_to(self.manifest, sizes)
        padding = self.manifest.padding
        if larger is None or padding is None:
            return found
        run = self._runner(larger.sizes, _cutting(self._build, padding, sizes), on_torch)
        return _growing(run, padding.inputs, larger.sizes)

    def _unserved(self, sizes: Sizes, args: Any, kwargs: Any) -> Run:
        """Return a call of the module, where one was given.

        Raises:
            DeploymentError: there is none, or it is in training mode.
        """
        module = self._module
        if module is None:
            raise DeploymentError(f"{self._why_not(sizes)}; or load(folder, module=…) runs eager")
        if getattr(module, "training", False):
            raise DeploymentError(
                "no artifact serves these sizes, and the module that was given is in training "
                "mode: it would compute something else than what was proven; call its eval()"
            )

        def eager(_: Sequence[Any]) -> Any:
            import torch

            with torch.no_grad():
                return module(*args, **kwargs)

        return eager

    def _why_not(self, sizes: Sizes) -> str:
        for shape in self.manifest.shapes:
            if shape.sizes == sizes:
                return f"{shape_name(shape)} was left to eager: {shape.reason}"
        known = [shape_name(shape) for shape in deployment.served(self.manifest.shapes)]
        given = ", ".join(f"{n} {size}" for n, size in zip(self._names, sizes, strict=True))
        more = f" and {len(known) - 8} more" if len(known) > 8 else ""
        return (
            f"no artifact serves {given}; this deployment serves {'; '.join(known[:8])}{more}: "
            f"add the size to what makes it: {self.manifest.command}"
        )

    # --- standing in ------------------------------------------------------------------------------

    @property
    def __signature__(self) -> Signature:
        return self.interface.signature()

    @property
    def shapes(self) -> tuple[Shape, ...]:
        """What is served, and what is left to eager."""
        return self.manifest.shapes

    def __reduce__(self) -> Any:
        return Deployment, (self.folder, self._module)

    def __repr__(self) -> str:
        known = {str(s.runtime) for s in deployment.served(self.manifest.shapes)}
        engines = ", ".join(sorted(known)) or "eager"
        return (
            f"<deployment of {self.manifest.model} in {self.folder}: {engines}; {self.huge_pages}>"
        )


def pages_for(device: str, aim: str = "latency") -> HugePages:
    """Return huge pages for engines on a device, unless asking for them costs what is aimed at."""
    if device != "cpu":
        return HugePages("they are asked for on a CPU only")
    return HugePages(f"made for {aim}" if aim in deployment.LIGHT else None)


def served_by(engine: Loaded, batch: int | None, pages: HugePages) -> Served:
    """Return what serves a batch size; None for any that the artifact's dynamic file takes.

    Its weights are in huge pages where those can be had.

    Raises:
        WorkerError: the runtime cannot serve.
    """
    if not isinstance(engine, ArtifactLoaded):
        raise WorkerError("unavailable", "this runtime cannot be delivered")
    with pages.take():
        serve = engine.serve(batch)
        if pages.refusal is None:  # OpenVINO packs weights at the first call
            serve(engine.tensors(batch))
    return serve, engine.takes_torch


def _conversions(
    device: str, *, given: bool, taken: bool
) -> tuple[Callable[[Any], Any], Callable[[Any, Any], Any]]:
    """Return what turns an input into the engine's, and an output and its type into the caller's.

    Args:
        device: of the deployment; torch's tensors come from it and are returned on it.
        given: whether the caller has torch's tensors.
        taken: whether the engine takes them.
    """
    if not given and not taken:
        return _contiguous, lambda array, kind: array.astype(kind, copy=False)
    import torch

    def typed(tensor: Any, kind: Any) -> Any:
        return tensor if tensor.dtype is kind else tensor.to(kind)

    if not given:
        return (
            lambda array: torch.from_numpy(np.array(array, order="C")).to(device),
            lambda tensor, kind: typed(tensor, kind).cpu().numpy(),
        )
    from_numpy, on_cpu, strided = torch.from_numpy, device == "cpu", torch.strided

    def contiguous(tensor: Any) -> Any:
        if tensor.layout is not strided:
            raise DeploymentError(f"an input is in {tensor.layout}; give its to_dense()")
        if tensor.is_cpu if on_cpu else str(tensor.device) == device:
            return tensor.contiguous()
        raise DeploymentError(f"an input is on {tensor.device}; this deployment runs on {device}")

    if taken:
        return contiguous, typed

    def tensor_of(array: Any, kind: Any) -> Any:
        tensor = from_numpy(array)
        if not on_cpu:
            tensor = tensor.to(device)
        return tensor if tensor.dtype is kind else tensor.to(kind)

    def array_of(tensor: Any) -> Any:
        if on_cpu:
            try:
                return _contiguous(tensor.numpy())
            except (RuntimeError, TypeError):  # with a gradient, a pending negation, on a device
                pass
        tensor = contiguous(tensor)
        if tensor.dtype is torch.bfloat16:  # artifacts have it in float32
            tensor = tensor.float()
        return tensor.numpy(force=True)

    return array_of, tensor_of


def _cutting(build: Build, padding: Padding, sizes: Sizes) -> Build:
    """Return what cuts what was added to inputs of these sizes off the outputs, and builds."""
    here = padding.sizes(sizes) or (None, None)
    cuts = [
        tuple(
            slice(here[axes.index(at)]) if at in axes else slice(None)
            for at in range(1 + max((d for d in axes if d is not None), default=-1))
        )
        for axes in padding.outputs
    ]
    return lambda made: build(t[cut] for t, cut in zip(made, cuts, strict=True))


def _growing(run: Run, axes: Sequence[Axes], sizes: Sizes) -> Run:
    """Return a run of inputs that are padded to these sizes: rows repeat, tokens are 0."""

    def grown(tensor: Any, size: Sequence[int], batch: int | None) -> Any:
        if isinstance(tensor, np.ndarray):
            made = np.zeros(size, tensor.dtype)
        else:
            made = tensor.new_zeros(size)
        made[tuple(slice(n) for n in tensor.shape)] = tensor
        if batch is not None:
            rows, before = tensor.shape[batch], (slice(None),) * batch
            made[(*before, slice(rows, None))] = made[(*before, slice(rows - 1, rows))]
        return made

    def padded(tensors: Sequence[Any]) -> Any:
        triples = zip(tensors, sizes, axes, strict=True)
        return run([grown(tensor, size, at[0]) for tensor, size, at in triples])

    return padded


def _contiguous(array: Any) -> Any:
    """Return it, or a copy in C's order; numpy's own function makes a number into a row."""
    return np.asarray(array, order="C")


# --- from a call to tensors in order, and back to the containers of the module --------------------


def binder(interface: Interface) -> Callable[[tuple[Any, ...], dict[str, Any]], list[Any]]:
    """Return a function from the arguments of a call to the tensors in the artefact's order.

    It raises DeploymentError where a tensor is missing, or anything else is to the module not what
    the deployment was made with.
    """
    positions, names, fixed = interface.positions, interface.names, interface.fixed
    known, required = set(names), [interface.parameter(path) for path in interface.required]

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
        for name in required:
            if name not in given:
                raise DeploymentError(
                    f"no {name} given, and the module would take another one: the deployment was "
                    f"made with {name}={fixed[name]!r}; give that"
                )
        for name, value in given.items():
            if name in known or (name in fixed and deployment.same(fixed[name], value)):
                continue
            made = f"{name}={fixed[name]!r}; give that" if name in fixed else f"no {name}"
            raise DeploymentError(
                f"{name} was given and differs: the deployment was made with {made}"
            )
        return [given[name] for name in names]

    return bind


class Outputs(OrderedDict[str, Any]):
    """What transformers' outputs are: entries by name, as attributes and by number."""

    none: Sequence[str] = ()
    """Fields that the module left None."""
    left_out: Sequence[str] = ()
    """Entries of the module's that the deployment lacks."""

    def __getattr__(self, name: str) -> Any:
        if name in self:
            return self[name]
        if name in self.none:
            return None
        if name in self.left_out:
            raise AttributeError(
                f"'{name}' is no tensor: deployments leave it out; call the module"
            )
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
    return [dtype for part in deployment.parts(structure) for dtype in dtypes_of(part)]


@cache
def named(name: str, fields: tuple[str, ...]) -> Any:
    """Return a class of named tuples, which other processes make again to unpickle one."""
    # Fields that are no names, as ``_1``, are what ``rename`` made of some in the module.
    base: Any = namedtuple(name, fields, rename=True)  # type: ignore[misc] # named by the module

    def again(made: Any) -> Any:
        return _again, (name, fields, tuple(made))

    return type(name, (base,), {"__slots__": (), "__reduce__": again})


def _again(name: str, fields: tuple[str, ...], values: tuple[Any, ...]) -> Any:
    return named(name, fields)._make(values)


def builder(structure: Any) -> Build:
    """Return a function from tensors in order to the structure around them."""
    if "tensor" in structure:
        return next
    if "value" in structure:
        return lambda _: structure["value"]
    parts = [builder(part) for part in deployment.parts(structure)]
    if "mapping" not in structure:
        made: Any = list if "list" in structure else tuple
        if "names" in structure:
            made = named(structure["class"], tuple(structure["names"]))._make
        return lambda tensors: made([part(tensors) for part in parts])
    pairs = list(zip(structure["mapping"], parts, strict=True))
    if structure["class"] in ("dict", "OrderedDict"):
        return lambda tensors: {key: part(tensors) for key, part in pairs}

    def build(tensors: Iterator[Any]) -> Outputs:
        found = Outputs((key, part(tensors)) for key, part in pairs)
        found.none = structure["none"]
        found.left_out = structure.get("left_out", ())
        return found

    return build
