"""Runtimes that export in one process and run what it left in others.

``prepare`` leaves one folder, whole or not at all:

    DIRECTORY/artifact/manifest.json    its contents
                       inputs-N.npz     the inputs of batch N, tensors only, in order
                       …                the engine's own files

Reading it needs numpy only, so that a measuring process need not import the model's library.
"""

from __future__ import annotations

import json
import shutil
import threading
import traceback
import warnings
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from frameworktax.errors import WorkerError, one_line
from frameworktax.host.cache import atomic_path
from frameworktax.runtimes import variants
from frameworktax.runtimes.base import Call, Loaded, Runtime, Target
from frameworktax.runtimes.cuda_graph import WARM_CALLS, replayed, replaying
from frameworktax.runtimes.torch_common import (
    as_configured,
    configure,
    configured,
    flatten,
    gpu_name,
)

if TYPE_CHECKING:
    import numpy as np
    import torch

    from frameworktax.models.base import Model

Serve = Callable[[Sequence[Any]], Sequence[Any]]
Memory = tuple[Callable[[], object], Sequence["np.ndarray"], Sequence["np.ndarray"]]
"""What runs an engine, and the memory that it reads and writes, in the artifact's order."""

FOLDER = "artifact"
MANIFEST, INPUTS = "manifest.json", "inputs-{}.npz"


@dataclass(kw_only=True)
class Artifact:
    """What an engine runs without the model: files in a folder, and how inputs reach them.

    Attributes:
        folder: that all of it is in; ``directory`` is what the session gave the runtime.
        names: of the inputs, in the order of the exported program.
        dtypes: of the inputs, as torch writes them without its prefix (``bfloat16``).
        files: batch size → the engine's file that serves it, by name within the folder.
        notes: (code, text) pairs that belong beside every number.
        free_dimension: the engine's name for the batch, where it has one.
        is_fixed: whether a file that several batch sizes share serves no other size.
        gpu: that it was made on and is for, with its driver; None for a CPU.
    """

    folder: Path
    names: list[str]
    dtypes: list[str]
    files: dict[int, str] = field(default_factory=dict)
    notes: list[tuple[str, str]] = field(default_factory=list)
    free_dimension: str | None = None
    is_fixed: bool = False
    gpu: str | None = None

    @classmethod
    def read(cls, directory: Path) -> Artifact:
        """Return what was prepared in ``directory``.

        Raises:
            WorkerError: nothing was.
        """
        path = directory / FOLDER / MANIFEST
        if not path.is_file():
            raise WorkerError("failed", f"nothing prepared in {directory}; measure again")
        found = json.loads(path.read_text(encoding="utf-8"))
        found["files"] = {int(batch): name for batch, name in found["files"].items()}
        found["notes"] = [(code, text) for code, text in found["notes"]]
        return cls(folder=path.parent, **found)

    def write(self) -> None:
        """Write the manifest into the folder, over an older one."""
        names = [field.name for field in fields(Artifact) if field.name != "folder"]
        with atomic_path(self.folder / MANIFEST) as partial:
            partial.write_text(json.dumps({name: getattr(self, name) for name in names}))

    @property
    def directory(self) -> Path:
        """Where a runtime keeps what lies beside the artifact."""
        return self.folder.parent

    def file(self, batch: int | None) -> Path:
        """Return the engine's file for a batch size; for None the one that takes any.

        Raises:
            WorkerError: this batch size was not prepared.
        """
        name = self.dynamic if batch is None else self.files.get(batch)
        if name is None:
            raise WorkerError("failed", f"batch {batch} was not prepared; measure again")
        return self.folder / name

    @property
    def dynamic(self) -> str | None:
        """The name of the file that serves several batch sizes, so that its batch is dynamic."""
        names = [] if self.is_fixed else list(self.files.values())
        return next((name for name in names if names.count(name) > 1), None)

    def inputs(self, batch: int | None) -> list[np.ndarray]:
        """Return the inputs of a batch size, in order; bfloat16 is stored as float32.

        For None they are those of a size that the dynamic file serves.

        Raises:
            WorkerError: this batch size was not prepared.
        """
        import numpy as np

        self.file(batch)
        if batch is None:
            batch = min(size for size, name in self.files.items() if name == self.dynamic)
        with np.load(self.folder / INPUTS.format(batch)) as stored:
            # Not ``ascontiguousarray``, which makes a number into a row.
            return [np.asarray(stored[f"{i}"], order="C") for i in range(len(stored.files))]


@contextmanager
def staged(directory: Path) -> Iterator[Path]:
    """Yield an empty folder that becomes the artifact only when the block ends well.

    A killed ``prepare`` leaves a folder that nothing reads; a later one replaces the artifact.
    """
    directory.mkdir(parents=True, exist_ok=True)
    final = directory / FOLDER
    with atomic_path(final) as partial:
        partial.mkdir()
        yield partial
        if final.exists():
            shutil.rmtree(final)


# --- from a module to the files -------------------------------------------------------------------


def positional(model: Model) -> torch.nn.Module:
    """Return the model as a module from tensors in order to a tuple of tensors in order.

    This is what every exporter takes. Values that are not tensors become constants; None in the
    output is dropped, as ``flatten`` does for eager, so that outputs pair up.
    """
    import torch

    inputs = model.inputs(1)
    paths = list(inputs.tensors())

    class Positional(torch.nn.Module):  # type: ignore[misc] # torch is untyped to mypy here
        def __init__(self, module: torch.nn.Module) -> None:
            super().__init__()
            self.module = module

        def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
            given = dict(zip(paths, tensors, strict=True))
            args = [given.get(f"args.{i}", value) for i, value in enumerate(inputs.args)]
            kwargs = {k: given.get(f"kwargs.{k}", value) for k, value in inputs.kwargs.items()}
            return tuple(flatten(self.module(*args, **kwargs)))

    return Positional(model.module).eval()


def example(model: Model, batch: int) -> tuple[Any, ...]:
    """Return the tensors of a batch, contiguous: some exporters trip over views of an example."""
    return tuple(tensor.contiguous() for tensor in model.inputs(batch).tensors().values())


READS = {
    *("item", "tolist", "numpy", "equal", "allclose", "is_nonzero"),
    *(f"__{name}__" for name in ("bool", "int", "float", "complex", "index")),
    *(f"__{name}__" for name in ("contains", "array", "dlpack")),
}
"""Functions and methods of torch that read a tensor's values."""


def fixed_at(module: torch.nn.Module, tensors: Iterable[torch.Tensor]) -> list[str]:
    """Return the lines that read a value that inputs decide, as a number, a list or an array.

    It is a constant of a trace, and so is what follows from it: drawn inputs need not reach the
    other side of a branch. Whether inputs decide a value is followed from operator to operator, by
    memory: of weights and sizes nothing is said. This is a trace of its own, and what the module
    returns is no output of it: one that is watched lacks convolutions.
    """
    import torch
    from torch.multiprocessing.reductions import StorageWeakRef
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    def memory(values: Any) -> set[Any]:
        found = [t for t in tree_leaves(values) if isinstance(t, torch.Tensor)]
        return {StorageWeakRef(t.untyped_storage()) for t in found if t.layout is torch.strided}

    class Called(torch.nn.Module):  # type: ignore[misc] # torch is untyped to mypy here
        def __init__(self) -> None:
            super().__init__()
            self.module = module

        def forward(self, *given: torch.Tensor) -> torch.Tensor:
            self.module(*given)
            return torch.zeros(())

    own = tuple(tensor.clone() for tensor in tensors)
    decided, lines = memory(own), list[str]()

    class Following(TorchDispatchMode):  # type: ignore[misc] # the same
        def __torch_dispatch__(
            self, operator: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            made = operator(*args, **(kwargs or {}))
            if not decided.isdisjoint(memory((args, kwargs))):
                decided.update(memory(made))
            return made

    class Reading(TorchFunctionMode):  # type: ignore[misc] # the same
        def __torch_function__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            reads = getattr(function, "__name__", "") in READS
            if reads and not decided.isdisjoint(memory((args, kwargs))):
                lines.append(_caller(torch))
            return function(*args, **(kwargs or {}))

    with warnings.catch_warnings(), Following(), Reading():
        warnings.simplefilter("ignore", torch.jit.TracerWarning)
        torch.jit.trace(Called(), own, check_trace=False)
    return lines


def _caller(package: Any) -> str:
    """Return the innermost line that is neither of a package nor of this file."""
    inside = (str(Path(package.__file__).parent), __file__)
    frames = traceback.extract_stack()
    own = [frame for frame in frames if not frame.filename.startswith(inside)] or frames
    return f"{own[-1].filename}:{own[-1].lineno}"


class Export(Artifact):
    """An artifact in the making: a model on its way to an engine's files.

    Attributes:
        model: to export.
        batches: sizes that must be served.
        target: what they are for.
        batch_dims: of the inputs; None for one without a batch.
    """

    def __init__(self, model: Model, batches: Sequence[int], target: Target, folder: Path) -> None:
        self.model, self.batches, self.target = model, batches, target
        tensors = model.inputs(min(batches)).tensors()
        self.batch_dims = [model.batch_dims.get(path) for path in tensors]
        super().__init__(
            folder=folder,
            # As an exported graph calls them: ``input_0``, or by their own names.
            names=[
                f"input_{name}" if kind == "args" else name
                for kind, name in (path.split(".", 1) for path in tensors)
            ],
            dtypes=[str(t.dtype).removeprefix("torch.") for t in tensors.values()],
            notes=list(model.notes),
            gpu=gpu_name(target.device) if target.is_cuda else None,
        )

    def save(
        self,
        suffix: str,
        write: Callable[[Sequence[int], Path], None],
        batches: Sequence[int] | None = None,
        *,
        static: bool = False,
    ) -> dict[int, str]:
        """Have ``write`` make a file for some batch sizes; return batch size → its name.

        One file serves all of them; where that fails, or ``static``, each has its own.
        """
        wanted = self.batches if batches is None else batches
        if len(wanted) > 1 and not static:
            try:
                write(wanted, self.folder / f"model.{suffix}")
                return dict.fromkeys(wanted, f"model.{suffix}")
            except Exception as error:  # noqa: BLE001 - exporters raise anything; the note says it
                for left in self.folder.glob("model.*"):  # weights beside it too
                    left.unlink()
                text = f"exported once for each batch size, a dynamic one fails: {one_line(error)}"
                self.notes.append(("exported-per-batch", text))
        files = {batch: f"model-{batch}.{suffix}" for batch in wanted}
        for batch, name in files.items():
            write([batch], self.folder / name)
        return files

    def program(self, batches: Sequence[int]) -> torch.export.ExportedProgram:
        """Export for some batch sizes: one as it is, several with a dynamic batch.

        The example of several has a batch above 1: torch specialises sizes 0 and 1.

        Raises:
            WorkerError: TorchScript is in the model.
        """
        import torch

        if any(isinstance(part, torch.jit.ScriptModule) for part in self.model.module.modules()):
            text = "torch.export takes no ScriptModule; give the module that it was made from"
            raise WorkerError("unavailable", text)
        shapes: Any = None
        if len(batches) > 1:
            dim = torch.export.Dim("batch", min=1)
            shapes = {"tensors": tuple(None if at is None else {at: dim} for at in self.batch_dims)}
        size = min((batch for batch in batches if batch > 1), default=1)
        return torch.export.export(
            positional(self.model), example(self.model, size), dynamic_shapes=shapes
        )

    def note_fixed(self, module: torch.nn.Module, tensors: Iterable[torch.Tensor]) -> None:
        """Note the first line where tracing a module fixes a value that its inputs decide."""
        if lines := fixed_at(module, tensors):
            text = f"the trace fixes what follows from a value of its inputs ({lines[0]})"
            self.notes.append(("values-fixed", text))

    def finish(self, files: Mapping[int, str]) -> None:
        """Write the inputs of every batch size, and the manifest."""
        import numpy as np
        import torch

        for batch in sorted(files):
            arrays = {
                f"{i}": (t.float() if t.dtype == torch.bfloat16 else t).cpu().numpy()
                for i, t in enumerate(self.model.inputs(batch).tensors().values())
            }
            np.savez(self.folder / INPUTS.format(batch), **arrays)
        self.files = dict(files)
        self.write()


# --- runtimes made of the two ---------------------------------------------------------------------


class ArtifactLoaded(Loaded):
    """What runs an artifact; a call's result is a sequence of arrays unless a subclass differs."""

    takes_torch: ClassVar[bool] = False
    """Whether what ``serve`` returns takes torch's tensors on the device, and returns such."""

    def __init__(self, artifact: Artifact, target: Target, option: str = "") -> None:
        self._artifact = artifact
        self._target = target
        self._option = option
        self._notes = artifact.notes
        self.start()

    def start(self) -> None:
        """Make the engine ready, before any batch size is bound; by default there is nothing."""

    def outputs(self, result: Iterable[Any]) -> list[np.ndarray]:
        """Return copies of a call's arrays; complex numbers as pairs."""
        import numpy as np

        pairs = (np.stack([a.real, a.imag], -1) if np.iscomplexobj(a) else a for a in result)
        # What numpy does not know, as JAX's bfloat16, is of floats.
        return [a.astype(np.int64 if a.dtype.kind in "biu" else np.float64) for a in pairs]

    def serve(self, batch: int | None) -> Serve:
        """Return a function from inputs in the artifact's order to outputs in the module's.

        Several threads may call it at once, and what it returned stays as it is. It is called with
        arrays, or with torch's tensors (``takes_torch``), contiguous, of the sizes that were
        prepared.

        Args:
            batch: of the inputs; None for any that the artifact's dynamic file takes.

        Raises:
            WorkerError: this runtime cannot serve.
        """
        raise WorkerError("unavailable", "this runtime cannot be delivered")

    def tensors(self, batch: int | None) -> Sequence[Any]:
        """Return the inputs of a batch size as ``serve`` takes them."""
        return self._artifact.inputs(batch)


def copying(make: Callable[[], Memory]) -> Serve:
    """Return a call that copies into and out of an engine's own memory.

    To hand memory over to an engine, and to get memory from it, takes longer than to copy a little,
    above all with cold caches, as after a call.

    Args:
        make: makes memory for one thread: a call has it to itself.
    """
    own = threading.local()

    def serve(arrays: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        try:
            run, inputs, outputs = own.memory
        except AttributeError:
            run, inputs, outputs = own.memory = make()
        for into, array in zip(inputs, arrays, strict=True):
            into[...] = array  # np.copyto takes longer
        run()
        return [made.copy() for made in outputs]

    return serve


class TorchArtifactLoaded(ArtifactLoaded):
    """Programs that take the tensors of ``Artifact`` in order; one per file, shared by batches."""

    takes_torch = True
    outputs = Loaded.outputs

    def start(self) -> None:
        """Have no program yet."""
        self._programs: dict[Path, Any] = {}

    @abstractmethod
    def open(self, path: Path) -> Any:
        """Load one program."""

    def program(self, batch: int | None) -> Any:
        """Return the program that serves this batch."""
        path = self._artifact.file(batch)
        if path not in self._programs:
            self._programs[path] = self.open(path)
        return self._programs[path]

    def bind(self, batch: int) -> Call:
        """Return a call of the program that serves this batch, without gradients as eager's."""
        import torch

        configure(self._target)
        program, mode = self.program(batch), variants.mode(self._option, torch.no_grad)
        inputs = self.tensors(batch)

        def call() -> Any:
            with mode():
                return program(*inputs)

        return replayed(call) if self._is_graph else call

    def serve(self, batch: int | None) -> Serve:
        """Return a call of the program that serves this batch, or of its graph, no gradients.

        Torch is otherwise as the program that calls it has it.
        """
        import torch

        def run(tensors: Sequence[Any]) -> Sequence[Any]:
            with torch.no_grad():
                made = program(*tensors)
                return [t.clone() for t in made] if has_constants else made

        has_constants = False
        with configured(self._target):
            program = self.servable(batch)
            if batch is not None and self._is_graph:
                return replaying(program, self.tensors(batch), self._target.device)
            count = WARM_CALLS if self._target.is_cuda else 2  # kernels are compiled at first
            calls = [run(self.tensors(batch)) for _ in range(count)]
        # What callers write into an output must not be in a later one.
        pairs = zip(*calls[-2:], strict=True)
        has_constants = any(a.data_ptr() == b.data_ptr() for a, b in pairs if a.numel())
        return as_configured(self._target, run)

    def servable(self, batch: int | None) -> Any:
        """Return the program that serves this batch, for several threads."""
        return self.program(batch)

    @property
    def _is_graph(self) -> bool:
        return self._option == variants.GRAPH

    def tensors(self, batch: int | None) -> tuple[torch.Tensor, ...]:
        """Return the inputs of a batch size on the device."""
        import torch

        arrays = self._artifact.inputs(batch)
        return tuple(
            torch.from_numpy(array).to(self._target.device, getattr(torch, dtype))
            for array, dtype in zip(arrays, self._artifact.dtypes, strict=True)
        )


class ArtifactRuntime(Runtime):
    """A runtime whose ``load`` needs only what ``prepare`` left."""

    paradigm = "ahead-of-time"
    needs_model = False
    has_symbols = False
    prepares = True
    loaded: ClassVar[type[ArtifactLoaded]]
    """Runs what was exported; engines start when a batch size is bound."""

    def prepare(
        self, model: Model, batches: Sequence[int], target: Target, directory: Path
    ) -> None:
        """Export into the artifact's folder; it appears when all of it is written."""
        import torch

        configure(target)
        with staged(directory) as folder, torch.no_grad():
            export = Export(self.exported(model, target), batches, target, folder)
            export.is_fixed = self.option == variants.GRAPH
            export.finish(self.write(export))

    def exported(self, model: Model, target: Target) -> Model:
        """Return the model that is exported for a target: by default as the option wants it."""
        return variants.applied(model, self.option)

    @abstractmethod
    def write(self, export: Export) -> Mapping[int, str]:
        """Write the engine's files; return batch size → name of its file in the folder."""

    def load(self, model: Model | None, target: Target, directory: Path) -> Loaded:
        """Read the manifest of what was exported.

        Raises:
            WorkerError: it was made for another GPU, or with another driver.
        """
        artifact = Artifact.read(directory)
        if artifact.gpu is not None and (here := gpu_name(target.device)) != artifact.gpu:
            raise WorkerError("unavailable", f"made for {artifact.gpu}, here is {here}")
        return self.loaded(artifact, target, self.option)
