"""The folder of a deployment: what it holds, for which machine, and whether it is still that.

    DEPLOY/manifest.json              all of what follows
           README.md requirements.txt
           proof.json                 the measurements that its gains come from
           length-64/openvino/…       an artefact as ``runtimes.artifacts`` leaves it; ``model`` in
                                      place of the length where the model has none

``read`` looks at everything before anything is loaded: engines run what they load (a shared
object in AOTInductor's package, TorchScript's interpreter), so that files must be the ones that
were written, by this user or root. Nothing is unpickled. ``Deployed`` is a deployment as a runtime
to be measured, ``AsDeployed`` a runtime called as a deployment calls it.

How the module is called and what it returns is plain data too (``Interface``): enough to stand in
for it. Of what it takes, tensors are inputs and everything else is a constant of the export.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import math
import os
import platform
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from importlib import metadata
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from frameworktax import host
from frameworktax.errors import DeploymentError, UsageError, WorkerError, flat
from frameworktax.host.cache import atomic_path
from frameworktax.records import DEPLOYED
from frameworktax.runtimes.artifacts import Artifact, ArtifactRuntime
from frameworktax.runtimes.base import Call, Loaded, Runtime, Target

if TYPE_CHECKING:
    from io import BufferedReader

    import numpy as np

    from frameworktax.models.base import Model
    from frameworktax.records import Workload
    from frameworktax.runtimes.serving import StandIn

SCHEMA, VERSION = "frameworktax.deployment", 3
"""1 did not know defaults: a call that left out what the example had given was answered by it.
2 had no hash over the manifest itself."""
MANIFEST = "manifest.json"
PROOF = "proof.json"
INTERFACE = "interface.json"
"""How the module of an artifact is called, beside it; a deployment's is in its manifest."""
ROOT = 0
"""The user whose files are as good as one's own."""
LIGHT = ("memory", "startup")
"""What is made for these loads an engine once for all batch sizes of a file that serves several, on
a CPU, and asks for no huge pages."""
READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
"""How files are opened: no link is followed, and no pipe waited for."""
MOST_BYTES = 16 << 20
"""Of a manifest: what is longer is cut, and then no JSON."""
WRONG = (ValueError, TypeError, LookupError, AttributeError, RecursionError)
"""What a manifest raises that is none, or has a field of another type."""


# --- how a module is called -----------------------------------------------------------------------

Plain = bool | int | float | str | None
KINDS = {kind.name: kind for kind in inspect._ParameterKind}
_NONE = inspect.Parameter.empty


@dataclass(frozen=True, slots=True, kw_only=True)
class Interface:
    """A module's calls as data.

    Attributes:
        parameters: name, kind and whether there is a default, in the order of ``forward``.
        inputs: paths of the tensors (``args.0``, ``kwargs.input_ids``), in the artefact's order.
        dtypes: of the inputs, as torch writes them without its prefix.
        constants: path → value of what else the example was called with.
        defaults: parameter → its default, where that is plain.
        output: the structure of what is returned; see ``tree``.
    """

    parameters: Sequence[tuple[str, str, bool]]
    inputs: Sequence[str]
    dtypes: Sequence[str]
    constants: Mapping[str, Plain] = field(default_factory=dict)
    defaults: Mapping[str, Plain] = field(default_factory=dict)
    output: Any = None

    @property
    def names(self) -> list[str]:
        """What the inputs are called by: parameters of ``forward``."""
        return [self.parameter(path) for path in self.inputs]

    @property
    def positions(self) -> list[str]:
        """Parameters that may be given by position."""
        return [name for name, kind, _ in self.parameters if kind.startswith("POSITIONAL")]

    def parameter(self, path: str) -> str:
        """Return the parameter that a path of ``Inputs`` is of; ``args.N`` beyond those named."""
        kind, _, name = path.partition(".")
        if kind == "kwargs":
            return name
        return self.positions[int(name)] if int(name) < len(self.positions) else path

    @property
    def fixed(self) -> dict[str, Plain]:
        """What an argument that is no tensor was in the export, by its parameter."""
        given = {self.parameter(path): value for path, value in self.constants.items()}
        return {**self.defaults, **given}

    @property
    def required(self) -> list[str]:
        """Paths of the constants that no call may leave out: to the module it is another one."""
        return [
            path
            for path, value in self.constants.items()
            if not same(self.defaults.get(self.parameter(path), ...), value)
        ]

    def signature(self) -> inspect.Signature:
        """Return the module's own signature; a default that is not plain is shown as ``...``."""
        return inspect.Signature(
            [
                inspect.Parameter(
                    name,
                    KINDS[kind],
                    default=self.defaults.get(name, ...) if has_default else _NONE,
                )
                for name, kind, has_default in self.parameters
            ]
        )


def describe(model: Model, result: Any) -> Interface:
    """Return how a model is called and what it returned.

    Raises:
        WorkerError: it is called with or returns what cannot be written down.
    """
    inputs = model.inputs(1)
    tensors = inputs.tensors()
    constants = {path: v for path, v in inputs.items() if path not in tensors}
    for path, value in constants.items():
        if not _is_plain(value):
            raise WorkerError(
                "unavailable", f"{path} is {_shown(value)}; pass tensors and plain, finite values"
            )
    try:
        found = inspect.signature(model.module.forward).parameters.values()
    except ValueError as error:
        text = "its forward has no signature, as of a trace; give the module that it was made from"
        raise WorkerError("unavailable", text) from error
    return Interface(
        parameters=[(p.name, p.kind.name, p.default is not _NONE) for p in found],
        inputs=list(tensors),
        dtypes=[_dtype(v) for v in tensors.values()],
        constants=constants,
        defaults={p.name: p.default for p in found if _is_plain(p.default)},
        output=tree(result),
    )


def same(one: object, other: object) -> bool:
    """Return whether two arguments are one: 1, 1.0 and True may not be to a module."""
    return type(one) is type(other) and one == other


def _is_plain(value: Any) -> bool:
    """Return whether JSON has a way to write a value: it has none for NaN and infinity."""
    return isinstance(value, Plain) and (not isinstance(value, float) or math.isfinite(value))


def _shown(value: Any) -> str:
    return str(value) if isinstance(value, float) else f"a {type(value).__name__}"


def _dtype(tensor: Any) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def tree(result: Any) -> Any:
    """Return the structure of an output as JSON.

    ``{"tensor": dtype}``, ``{"value": plain}``, ``{"tuple": [...]}`` (``names`` of a named one),
    ``{"list": [...]}``, or ``{"mapping": {key: ...}}``, a dataclass too, with the name of its class
    and its fields that are None. What a mapping holds beside these, as a cache, is ``left_out`` by
    name.

    Raises:
        WorkerError: another kind of object.
    """
    import torch

    if isinstance(result, torch.Tensor):
        return {"tensor": _dtype(result)}
    if _is_plain(result):
        return {"value": result}
    if isinstance(result, tuple):
        fields_of = getattr(type(result), "__match_args__", ())  # of torch's own named tuples, too
        names = {"names": fields_of} if fields_of else {}
        return {"tuple": [tree(v) for v in result], "class": type(result).__name__, **names}
    if isinstance(result, list):
        return {"list": [tree(v) for v in result]}
    if is_dataclass(result) or isinstance(result, Mapping):
        own = [one.name for one in fields(result)] if is_dataclass(result) else []
        none = [name for name in own if getattr(result, name, None) is None]
        found: Mapping[Any, Any] = {n: getattr(result, n) for n in own if n not in none}
        found = result if isinstance(result, Mapping) else found
        for key in found:
            if not isinstance(key, str):
                raise WorkerError("unavailable", f"the output has the key {key!r}; give it a name")
        kinds = torch.Tensor | tuple | list | Mapping | Plain
        known = {k: v for k, v in found.items() if isinstance(v, kinds) or is_dataclass(v)}
        left = [key for key in found if key not in known]
        return {
            "mapping": {key: tree(value) for key, value in known.items()},
            "class": type(result).__name__,
            "none": none,
            **({"left_out": left} if left else {}),
        }
    raise WorkerError(
        "unavailable",
        f"the output holds {_shown(result)}; return tensors, tuples, lists, dicts, dataclasses, "
        "finite values",
    )


def parts(structure: Any) -> list[Any]:
    """Return the trees that a tree holds, in order."""
    if "mapping" in structure:
        return list(structure["mapping"].values())
    return structure.get("tuple") or structure.get("list") or []


def left_out(structure: Any) -> list[str]:
    """Return the names of what a tree leaves out of an output."""
    inner = [name for part in parts(structure) for name in left_out(part)]
    return [*structure.get("left_out", ()), *inner]


# --- what serves which shape ----------------------------------------------------------------------


Sizes = tuple[tuple[int, ...], ...]
"""Of inputs, in their order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What serves one shape.

    Attributes:
        batch: size.
        length: of the workload; None where the model has none.
        sizes: of the inputs, in their order.
        runtime: that serves it; None where the shape is left to eager.
        folder: of its artefact, relative to the deployment's.
        is_between: served by the artefact's dynamic file, between the shapes that were asked for.
        draws: inputs over which outputs were proven equal to eager's.
        difference: the largest one found, as a share of the largest output.
        tolerance: of the parity rule.
        gain: over eager, measured on this deployment: value, low and high end.
        latency_ns: of a call of this deployment: value, low and high end.
        reason: why it is left to eager.
    """

    batch: int
    length: int | None
    sizes: Sizes
    runtime: str | None = None
    folder: str | None = None
    is_between: bool = False
    draws: int = 0
    difference: float | None = None
    tolerance: float | None = None
    gain: tuple[float, float, float] | None = None
    latency_ns: tuple[float, float, float] | None = None
    reason: str | None = None


def shape_name(of: Shape | Workload) -> str:
    """Return a shape in words."""
    return f"batch {of.batch}" + (f", length {of.length}" if of.length else "")


Axes = tuple[int | None, int | None]
"""Which dimension of a tensor is the batch and which the length; None for neither."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Padding:
    """How a smaller input becomes one of a shape that is served, and its outputs are cut again.

    Attributes:
        inputs: axes of each; further rows repeat the last, further tokens are 0, in the mask too.
        outputs: axes of each tensor, in order.
        batch: whether outputs were proven equal where rows alone are added.
        length: the same for tokens; only where there is a mask.
        together: the same for both at once.
        draws: inputs over which that was proven, in all.
        difference: the largest one found, as a share of the largest output.
    """

    inputs: tuple[Axes, ...]
    outputs: tuple[Axes, ...]
    batch: bool = False
    length: bool = False
    together: bool = False
    draws: int = 0
    difference: float = 0.0

    def sizes(self, sizes: Sizes) -> tuple[int, int] | None:
        """Return batch and length (0 for none) of inputs of these sizes; None if they disagree."""
        found = []
        for axis in (0, 1):
            pairs = zip(sizes, self.inputs, strict=True)
            ats = ((size, axes[axis]) for size, axes in pairs)
            there = {size[at] for size, at in ats if at is not None and at < len(size)}
            if len(there) > 1:
                return None
            found.append(next(iter(there), 0))
        return (found[0], found[1]) if found[0] else None

    def fits(self, sizes: Sizes, larger: Sizes) -> bool:
        """Return whether inputs of these sizes become larger ones by rows and tokens alone."""
        for small, large, axes in zip(sizes, larger, self.inputs, strict=True):
            if len(small) != len(large):
                return False
            for at, (n, m) in enumerate(zip(small, large, strict=True)):
                if n > m or (n < m and at not in axes):
                    return False
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """A file as it was written."""

    sha256: str
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A kind of machine; ``features`` are instructions that must be there."""

    system: str
    architecture: str
    cpu: str
    features: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """All that is known of a deployment.

    Attributes:
        model: its name, or the class of a live module.
        is_live: whether it was a module of the caller's.
        command: makes the deployment anew; a call of ``ft.optimize`` where Python made it.
        made: when, ISO 8601.
        frameworktax: version that wrote it.
        python: version it was made with.
        machine: it was measured on.
        packages: distribution → version that serving needs, exactly.
        builds: distribution → id of its shared libraries; builds of one version differ in it.
        device: and ``precision``, ``threads``: of the measurements.
        aim: what the race was for: latency, throughput, memory or startup.
        padding: how sizes between the shapes are served; None where they are not.
        unpadded: why they are not, where there are any.
        notes: what the model and its exports had to say, as that a precision was cast.
        interface: how it is called.
        shapes: that are served, or were left to eager.
        files: path relative to the folder → what was written.
    """

    model: str
    is_live: bool
    command: str
    made: str
    frameworktax: str
    python: str
    machine: Machine
    packages: Mapping[str, str]
    builds: Mapping[str, str] = field(default_factory=dict)
    device: str
    precision: str
    threads: int
    aim: str = "latency"
    padding: Padding | None = None
    unpadded: str | None = None
    notes: Sequence[str] = ()
    interface: Interface
    shapes: tuple[Shape, ...]
    files: Mapping[str, File] = field(default_factory=dict)


def configuration(length: int | None) -> str:
    """Return the name of the folder for the artefacts of a length."""
    return "model" if length is None else f"length-{length}"


def this_machine() -> Machine:
    """Return the kind of this machine."""
    return Machine(
        system=platform.system(),
        architecture=platform.machine(),
        cpu=host.cpu_model(),
        features=host.cpu_features(),
    )


def write(folder: Path, manifest: Manifest) -> None:
    """Write the manifest, over an older one."""
    fields_of = asdict(manifest)
    data = {"schema": SCHEMA, "version": VERSION, **fields_of, "sha256": _digest(fields_of)}
    with atomic_path(folder / MANIFEST) as partial:
        partial.write_text(json.dumps(data, indent=1, allow_nan=False) + "\n", encoding="utf-8")


def _digest(data: Mapping[str, Any]) -> str:
    """Return the SHA-256 over a manifest's fields, however they are laid out."""
    text = json.dumps(data, sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def files_in(folder: Path) -> dict[str, File]:
    """Return what lies in a folder beside its manifest: path relative to it → file."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_file() and name != MANIFEST:
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            found[name] = File(sha256=digest, bytes=path.stat().st_size)
    return found


def builds(packages: Iterable[str]) -> dict[str, str]:
    """Return distribution → hash over those of its shared libraries, as its wheel lists them."""
    found = {}
    for name in packages:
        record = metadata.distribution(name).read_text("RECORD") or ""
        lines = sorted(line for line in record.splitlines() if ".so" in line.partition(",")[0])
        if lines:
            found[name] = hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]
    return found


def requirements(packages: Mapping[str, str], version: str) -> str:
    """Return the text of ``requirements.txt``."""
    lines = [f"frameworktax=={version}", *(f"{n}=={v}" for n, v in sorted(packages.items()))]
    if build := packages.get("torch", "").partition("+")[2]:  # not on the package index
        lines.append(f"--extra-index-url https://download.pytorch.org/whl/{build}")
    return "\n".join(lines) + "\n"


# --- reading --------------------------------------------------------------------------------------


def read(folder: Path) -> Manifest:
    """Return the manifest of a deployment that can be loaded here, after looking at all of it.

    Raises:
        DeploymentError: there is none, it was made for another kind of machine or with other
            versions, or a file is not the one that was written.
    """
    manifest = parse(folder)
    try:
        for refusal in _refusals(folder, manifest):
            raise DeploymentError(flat(f"{folder}: {refusal}; rebuild it: {manifest.command}"))
    except WRONG as error:
        raise damaged(folder / MANIFEST, error) from error
    return manifest


def parse(folder: Path) -> Manifest:
    """Return the manifest as it stands; nothing else is looked at.

    Raises:
        DeploymentError: there is none, another user could write it, or it was changed.
    """
    path = folder / MANIFEST
    try:
        data = _fields(folder)
        version, again = data.pop("version"), flat(str(data.get("command")))
        if version != VERSION:
            raise DeploymentError(
                f"{folder}: its format is {SCHEMA} {version!r}, this version reads {VERSION}; "
                f"rebuild it: {again}"
            )
        if data.pop("sha256") != _digest(data):
            raise DeploymentError(f"{folder}: {MANIFEST} was changed; rebuild it: {again}")
        data["machine"] = Machine(**data["machine"])
        data["interface"] = Interface(**data["interface"])
        data["shapes"] = tuple(Shape(**_frozen(one)) for one in data["shapes"])
        data["files"] = {name: File(**one) for name, one in data["files"].items()}
        data["padding"] = Padding(**_frozen(data["padding"])) if data["padding"] else None
        manifest = Manifest(**data)
        _check_counts(manifest)
    except WRONG as error:
        raise damaged(path, error) from error
    return manifest


def _check_counts(manifest: Manifest) -> None:
    """Raise one of ``WRONG`` where a manifest is of more or fewer inputs than there are."""
    interface, padding = manifest.interface, manifest.padding
    interface.signature()  # there may be none such
    of_inputs = [interface.dtypes, *([*map(len, shape.sizes)] for shape in manifest.shapes)]
    of_inputs += [padding.inputs] if padding is not None else []
    if any(len(of_each) != len(interface.inputs) for of_each in of_inputs):
        raise ValueError("not as many of each input")


def is_deployment(folder: Path) -> bool:
    """Return whether a folder holds a deployment, be it of another version or changed since."""
    try:
        return bool(_fields(folder))
    except (DeploymentError, *WRONG):
        return False


def _fields(folder: Path) -> dict[str, Any]:
    """Return what a manifest's JSON holds, without the name of its schema.

    Raises:
        DeploymentError: there is none, or another user could write it.
        ValueError: it is none, as are the others in ``WRONG``.
    """
    path = folder / MANIFEST
    try:
        _check_owner(folder, folder.stat())
        with _opened(path) as file:
            _check_owner(path, os.fstat(file.fileno()))
            text = file.read(MOST_BYTES)
    except OSError as error:
        remedy = "make one: frameworktax optimize MODEL -o FOLDER"
        if isinstance(error, PermissionError):
            remedy = "chmod -R a+rX it"
        raise DeploymentError(
            f"no deployment in {folder} ({error.strerror}: {MANIFEST}); {remedy}"
        ) from error
    data: dict[str, Any] = json.loads(text)
    if data.pop("schema") != SCHEMA:
        raise ValueError(f"not {SCHEMA}")
    return data


def _opened(path: Path) -> BufferedReader:
    """Open a file to read it; what is a folder is closed again, and raises."""
    return open(path, "rb", opener=lambda name, _: os.open(name, READ))


def damaged(path: Path, error: Exception) -> DeploymentError:
    """Return what is raised where a file of a deployment holds something else than it should."""
    return DeploymentError(f"{path} is damaged ({type(error).__name__}); make the deployment again")


def _frozen(value: Any) -> Any:
    """Return JSON's value with tuples for its lists, which it writes for both."""
    if isinstance(value, dict):
        return {key: _frozen(one) for key, one in value.items()}
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


def _refusals(folder: Path, manifest: Manifest) -> Iterable[str]:
    """Yield why a deployment cannot be loaded here, the cheap reasons first."""
    here, its = this_machine(), manifest.machine
    if (here.system, here.architecture) != (its.system, its.architecture):
        yield f"made for {its.system} {its.architecture}, not {here.system} {here.architecture}"
    lacking = sorted(set(its.features) - set(here.features))
    if lacking:
        yield f"made on {its.cpu}; this processor lacks {', '.join(lacking[:4])}"
    found = host.libraries(manifest.packages)
    for name, version in manifest.packages.items():
        if found.get(name) != version:
            yield f"made with {name} {version}, here is {found.get(name, 'none')}"
    folders = {shape.folder for shape in manifest.shapes if shape.folder}
    for name in (*manifest.files, *folders):
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
            yield f"{name} leads out of the folder"
    for name in folders:
        if not any(file.startswith(f"{name}/") for file in manifest.files):
            yield f"{name} has no files"
    for name, written in manifest.files.items():
        yield from _changed(folder, name, written)
    for name in folders:  # an engine might find what lies beside an artefact
        for path in sorted((folder / name).rglob("*")):
            known = path.relative_to(folder).as_posix()
            if known not in manifest.files and (path.is_symlink() or not path.is_dir()):
                yield f"{known} does not belong to it"


def _changed(folder: Path, name: str, written: File) -> Iterable[str]:
    path = folder / name
    for above in (path, *(above for above in path.parents if folder in above.parents)):
        if above.is_symlink():
            yield f"{above.relative_to(folder)} is a symbolic link"
        if above.is_dir():  # who may write in one may put another file there
            _check_owner(above, above.stat())
    try:
        file = _opened(path)
    except OSError as error:
        yield f"{name}: {error.strerror}"
        return
    with file:
        status = os.fstat(file.fileno())
        _check_owner(path, status)
        is_same = stat.S_ISREG(status.st_mode) and status.st_size == written.bytes
        if not is_same or hashlib.file_digest(file, "sha256").hexdigest() != written.sha256:
            yield f"{name} was changed"


def _check_owner(path: Path, status: os.stat_result) -> None:
    """Refuse what another user owns or may write.

    Raises:
        DeploymentError: says whose it is.
    """
    if status.st_uid not in (ROOT, os.geteuid()):
        raise DeploymentError(
            f"{path} belongs to user {status.st_uid}, not to you or root; copy it, or chown it"
        )
    is_sticky = stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX
    if status.st_mode & stat.S_IWOTH and not is_sticky:
        raise DeploymentError(f"{path} may be written by every user; chmod o-w it")


# --- what serves which sizes ----------------------------------------------------------------------


def served(shapes: Sequence[Shape]) -> list[Shape]:
    """Return the shapes that have an artefact."""
    return [shape for shape in shapes if shape.runtime is not None]


def padded_to(manifest: Manifest, sizes: Sizes) -> Shape | None:
    """Return the shape that serves inputs of these sizes once they are padded; None for none.

    It is the smallest of those asked for that holds them, one size smaller is asked for too, and a
    call of it takes no longer than eager takes at the next smaller shape: so that padding is never
    slower than eager, which takes longer for more. Before gains are known the last is not asked.
    """
    padding = manifest.padding
    here = padding.sizes(sizes) if padding is not None else None
    if padding is None or here is None:
        return None
    # All batches are asked for at all lengths: the least of those that hold it is least in both.
    asked = [shape for shape in manifest.shapes if not shape.is_between]
    asked.sort(key=lambda shape: (shape.batch, shape.length or 0))
    above = next((shape for shape in asked if padding.fits(sizes, shape.sizes)), None)
    below = next((shape for shape in asked[::-1] if padding.fits(shape.sizes, sizes)), None)
    if above is None or below is None or above.runtime is None or below.runtime is None:
        return None
    there = padding.sizes(above.sizes) or here
    rows, tokens = there[0] > here[0], there[1] > here[1]
    proven = padding.together if rows and tokens else padding.batch if rows else padding.length
    if (rows or tokens) and not proven:
        return None
    if below.gain and below.latency_ns and above.latency_ns:
        eager_ns = below.gain[0] * below.latency_ns[0]
        return above if above.latency_ns[0] <= eager_ns else None
    return above


# --- as a runtime ---------------------------------------------------------------------------------


class Deployed(Runtime):
    """What ``frameworktax optimize`` delivered, called as its user calls it.

    The folder that it is loaded from is that of one length within a deployment.
    """

    name = DEPLOYED
    paradigm = "ahead-of-time"
    devices = ("cpu", "cuda")
    needs_model = False
    has_symbols = False
    by_name_only = True

    def load(self, model: Model | None, target: Target, directory: Path) -> Loaded:
        """Load the deployment above the folder."""
        from frameworktax.runtimes.serving import load

        fast = load(directory.parent)

        def standing_in(batch: int) -> tuple[StandIn, list[np.ndarray]]:
            for shape in served(fast.shapes):
                if (shape.batch, configuration(shape.length)) == (batch, directory.name):
                    return fast, Artifact.read(fast.folder / str(shape.folder)).inputs(batch)
            raise WorkerError("unavailable", f"no artifact serves batch {batch}")

        return _StandingIn(target, standing_in)


class _StandingIn(Loaded):
    """What is called with torch's tensors, as its user does, and returns the module's outputs.

    ``standing_in`` returns what stands in for the module at a batch size, and its inputs there.
    """

    def __init__(
        self,
        target: Target,
        standing_in: Callable[[int], tuple[StandIn, list[np.ndarray]]],
        notes: Callable[[], list[tuple[str, str]]] = list,
    ) -> None:
        self._target, self._standing_in, self._notes_now = target, standing_in, notes

    def bind(self, batch: int) -> Call:
        fast, arrays = self._standing_in(batch)
        args, kwargs = fast.arguments(dict(zip(fast.interface.inputs, arrays, strict=True)))

        def call() -> Any:
            return fast(*args, **kwargs)

        return call

    def notes(self) -> list[tuple[str, str]]:
        return self._notes_now()


class AsDeployed(ArtifactRuntime):
    """A runtime called as what ``frameworktax optimize`` delivers calls it: ``NAME@deployed``.

    Its arguments are the module's own, torch's tensors, and it returns what the module returns:
    conversions are in each call.
    """

    def prepare(
        self, model: Model, batches: Sequence[int], target: Target, directory: Path
    ) -> None:
        """Export, and write down how the module is called and what it returns."""
        import torch

        super().prepare(model, batches, target, directory)
        inputs = model.inputs(min(batches))
        with torch.no_grad():
            result = model.module(*inputs.args, **inputs.kwargs)
        text = json.dumps(asdict(describe(model, result)))
        (directory / INTERFACE).write_text(text, encoding="utf-8")

    def load(self, model: Model | None, target: Target, directory: Path) -> Loaded:
        """Load what was exported, to stand in for the module."""
        interface = Interface(**json.loads((directory / INTERFACE).read_text(encoding="utf-8")))
        engine, artifact = super().load(model, target, directory), Artifact.read(directory)

        def standing_in(batch: int) -> tuple[StandIn, list[np.ndarray]]:
            from frameworktax.runtimes.serving import StandIn, pages_for, served_by

            arrays = artifact.inputs(batch)
            sizes = tuple(array.shape for array in arrays)
            served = {sizes: served_by(engine, batch, pages_for(target.device))}
            return StandIn(interface, target.device, served), arrays

        return _StandingIn(target, standing_in, engine.notes)


def as_deployed(runtime: Runtime, name: str) -> Runtime:
    """Return a runtime as it is called where it is delivered, under a name of its own.

    Raises:
        UsageError: it cannot be delivered.
    """
    if not runtime.serves_with:
        raise UsageError(f"{runtime.name} cannot be delivered; choose another runtime")
    kind = type(runtime)
    fields = {"imports": (*kind.imports, "torch"), "__doc__": kind.__doc__}
    made: Runtime = type(kind.__name__, (AsDeployed, kind), fields)()
    made.name, made.option = name, runtime.option
    return made
