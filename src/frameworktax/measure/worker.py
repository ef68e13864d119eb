"""The measuring process: loads one model in one runtime, then times blocks on request.

    python -m frameworktax.measure.worker SOCKET_FD MEMORY_BYTES

or what a template (``measure.template``) forks, which is the same from ``run`` on.
Parent and worker talk (``measure.protocol``) over a socket of their own; stdout and stderr are not
theirs. This process imports the standard library, numpy, the model's library and
the one runtime.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import json
import os
import pickle
import re
import resource
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Coroutine, Generator, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, NoReturn

import numpy as np

from frameworktax import models, runtimes
from frameworktax.attribution import attribute_cpu
from frameworktax.errors import (
    NO_ROOM,
    FrameworktaxError,
    UsageError,
    WorkerError,
    ends_device,
    is_out_of_memory,
    one_line,
)
from frameworktax.host.cache import VARIABLE, atomic_path
from frameworktax.host.machine import read
from frameworktax.measure import parity, protocol, timing
from frameworktax.models.finalize import check_device
from frameworktax.records import Attribution, Block, By, Parity, Places, Workload
from frameworktax.runtimes.base import Target

if TYPE_CHECKING:
    from frameworktax.models.base import Model
    from frameworktax.runtimes import base
    from frameworktax.runtimes.serving import Deployment

MODULE = "frameworktax.measure.worker"
PR_SET_PDEATHSIG = 1
CALIBRATOR_SIZE = 160
"""Side of the calibrator's matrices: about 0.2 ms of arithmetic and 0.2 ms of interpreter."""
ELSEWHERE, ELSEWHERE_NS = 0.05, 100_000
"""Share of the processor time of warm-up, and ns, beyond which other threads compute in a call."""
Elsewhere = Literal["alive", "ended"]
"""Of the other threads that compute: whether they live on after a call."""


class Server:
    """Answers requests; one model, one runtime, any number of batch sizes."""

    _loaded: base.Loaded
    """From ``load`` on, which is asked for before all that needs it."""

    def __init__(self) -> None:
        self._function = ""  # of the user, that returned the model
        self._target = Target()
        self._real: Callable[[int], Any] | None = None
        self._calls: dict[int, base.Call] = {}
        self._call_ns: dict[int, int] = {}
        self._drawn: tuple[Workload, Model] | None = None
        self._deployment: Deployment | None = None
        self._unpinned: set[int] = set()
        self._begun_in = Path.cwd()
        self._torch_threads: int | None = None
        self._elsewhere: dict[int, Elsewhere | None] = {}

    def answer(self, step: str, given: Mapping[str, Any], to: BinaryIO) -> None:
        """Call a method by name and write its answer as a line.

        Whatever the model or the runtime raises becomes a ``Failure``.
        """
        failure = None
        try:
            found = getattr(self, step)(**given)
        except FrameworktaxError as error:
            failure = protocol.Failure(status=error.status, message=str(error))
        except BaseException as error:  # noqa: BLE001 - the boundary to foreign code
            traceback.print_exc()
            status = "out-of-memory" if is_out_of_memory(error) else "failed"
            where = _user_line(error) or self._function  # inputs may not fit a library's module
            said = one_line(error) + where
            if isinstance(error, SystemExit):
                said = f"the model ends its process: {said}; remove that call"
            if isinstance(error, OSError) and error.errno in NO_ROOM:
                said += f"; free space, or name another folder in {VARIABLE}"
            failure = protocol.Failure(status=status, message=said, is_end=ends_device(error))
        if failure is not None and failure.status == "out-of-memory":
            _give_back_device_memory()
        line = {"answer": found} if failure is None else {"failure": failure}
        to.write(json.dumps(line, default=asdict).encode() + b"\n")

    # --- set-up -------------------------------------------------------------------------------

    def describe(
        self,
        *,
        workload: Workload,
        device: str,
        batches: tuple[int, ...],
        limit_s: float,
        live: str | None = None,
    ) -> protocol.Described:
        """Build the model and count what can be counted, per batch size, in about ``limit_s``.

        ``live`` here and below: see ``Plan``.
        """
        from frameworktax.models.describe import describe_batches

        model = self._build(workload, device, live)
        with _default_dtype():
            found = describe_batches(model, batches, limit_s)
        return protocol.Described(
            facts={
                batch: protocol.Facts(**{**facts, "notes": protocol.notes(facts["notes"])})
                for batch, facts in found.items()
            },
            has_twin=model.has_twin,
            notes=protocol.notes(model.notes),
        )

    def prepare(
        self,
        *,
        workload: Workload,
        runtime: str,
        target: Target,
        folder: str,
        batches: tuple[int, ...],
        live: str | None = None,
    ) -> int:
        """Export or compile into a folder, for the measuring processes; return what it took, ns."""
        model = self._build(workload, target.device, live)
        start = time.perf_counter_ns()
        Path(folder).mkdir(parents=True, exist_ok=True)
        with _default_dtype():
            runtimes.get(runtime).prepare(model, batches, target, Path(folder))
        return time.perf_counter_ns() - start

    def load(
        self,
        *,
        workload: Workload,
        runtime: str,
        target: Target,
        folder: str,
        live: str | None = None,
    ) -> protocol.Loaded:
        """Load the model, if the runtime needs it, and make the runtime ready."""
        start = time.perf_counter_ns()
        engine = runtimes.get(runtime)
        self._target = target
        self._function = f" ({workload.model})" if models.is_user_model(workload.model) else ""
        model = None
        if engine.needs_model:
            model = self._build(workload, target.device, live)
        elif target.is_cuda:
            check_device(target.device)
        Path(folder).mkdir(parents=True, exist_ok=True)
        self._real = model.real if model else None
        self._loaded = engine.load(model, target, Path(folder))
        self._torch_threads = _torch_threads()
        gc.collect()
        gc.freeze()  # what is loaded stays: collecting between blocks is then cheap
        notes = (model.notes if model else []) + self._loaded.notes()
        return protocol.Loaded(load_ns=time.perf_counter_ns() - start, notes=protocol.notes(notes))

    def bind(self, *, batch: int, limit_ns: int) -> protocol.Bound:
        """Make the call for one batch size and warm it up."""
        loaded = self._loaded
        start = time.perf_counter_ns()
        call = loaded.bind(batch)
        if isinstance(call(), Generator | Coroutine):
            text = "the model's call returns a generator or coroutine, and has computed nothing yet"
            raise WorkerError("failed", f"{text}; return its results, as a list")
        loaded.synchronize()
        first_ns = time.perf_counter_ns() - start
        before = CpuTime.now()
        warm = timing.warm_up(call, loaded.synchronize, limit_ns=limit_ns)
        if not self._target.is_cuda:
            self._elsewhere[batch] = CpuTime.now().elsewhere(before)
        self._calls[batch], self._call_ns[batch] = call, warm.call_ns
        gc.collect()
        gc.freeze()
        notes, wanted, threads = loaded.notes(), self._torch_threads, _torch_threads()
        if threads != wanted:
            text = f"a call sets the threads of torch to {threads}, not {wanted} as asked for"
            notes.append(("threads-changed", text))
        return protocol.Bound(
            calls=warm.calls + 1,
            call_ns=warm.call_ns,
            settled=warm.settled,
            first_ns=first_ns,
            peak_memory_bytes=peak_memory_bytes(),
            notes=protocol.notes(notes),
        )

    def output(self, *, batch: int, path: str) -> None:
        """Write the outputs of a call to a file, with what ``parity.compare_files`` asks for."""
        loaded = self._loaded
        twice = []
        for _ in range(2):
            result = self._calls[batch]()
            loaded.synchronize()
            twice.append([np.array(array) for array in loaded.outputs(result)])
        first, second = twice
        repeats = _same(first, second)
        real = {} if self._real is None else {"real": self._real(batch)}
        with atomic_path(Path(path)) as partial, partial.open("wb") as file:  # whole, or not at all
            np.savez(file, *first, repeats=repeats, **real)

    def _build(self, workload: Workload, device: str, live: str | None) -> Model:
        check_device(device)
        os.chdir(self._begun_in)  # a model that was built and called before may have left it
        if live is not None:
            from frameworktax.models.user import build_live

            return build_live(live, workload, device)
        return models.build(workload, device)

    # --- measuring ----------------------------------------------------------------------------

    def block(self, *, batch: int, calls: int) -> Block:
        """Time one block, without a profiler."""
        loaded, call = self._loaded, self._calls[batch]
        synchronize, first_token = loaded.synchronize, loaded.first_token_ns
        if first_token() is not None:
            return timing.device_block(call, synchronize, calls=calls, first_token=first_token)
        if self._target.is_cuda:
            return timing.device_block(call, synchronize, calls=calls)
        return timing.host_block(call, calls=calls)

    def calibrate(self, *, duration_ns: int) -> Block:
        """Time the fixed calibrator: interpreter and arithmetic, the same on every host."""
        call, call_ns = self._calibrator
        return timing.host_block(call, calls=timing.calls_for(call_ns, duration_ns))

    @cached_property
    def _calibrator(self) -> tuple[Callable[[], Any], int]:
        """The calibrator, and what a call of it takes, ns."""
        a = np.ones((CALIBRATOR_SIZE, CALIBRATOR_SIZE), np.float32)

        def calibrate() -> int:
            total = 0
            for i in range(4000):
                total += i & 7
            for _ in range(4):
                a @ a
            return total

        return calibrate, timing.warm_up(calibrate).call_ns

    def sample(self, *, batch: int, duration_ns: int) -> Attribution:
        """Sample the program counter of this thread, or of all where others compute, too.

        Session and point are left empty.
        """
        elsewhere = self._elsewhere.get(batch)
        if elsewhere == "ended":
            text = (
                "its threads that compute end with the call, and are not seen; keep them in a pool"
            )
            raise WorkerError("unavailable", text)
        found = attribute_cpu(
            self._calls[batch],
            threads=1 if self._target.is_cuda else self._target.threads + bool(elsewhere),
            stretches=1,
            duration_ns=duration_ns,
            call_ns=self._call_ns[batch],
            settle=self._loaded.synchronize if self._target.is_cuda else None,
        )
        return protocol.attribution(found)

    def places(self, *, batch: int, by: By, duration_ns: int, stretches: int) -> Places:
        """Sample once more, or profile a device, and find what layer or line each time is of."""
        loaded = self._loaded
        call, root = self._calls[batch], loaded.root()
        if self._elsewhere.get(batch) and self._target.threads == 1:
            text = "it computes in threads of its own, of which no layer is known"
            raise WorkerError("unavailable", text)
        if self._target.is_cuda:
            from frameworktax.attribution.device_places import attribute_device_modules
            from frameworktax.attribution.torch_device import TorchDevice

            device = TorchDevice(self._target.device)
            found = attribute_device_modules(call, root, loaded.synchronize, device, by=by)
            return protocol.places(found)
        from frameworktax.attribution.layers import attribute_lines, attribute_modules
        from frameworktax.attribution.operators import attribute_operators

        run = {"stretches": stretches, "duration_ns": duration_ns, "call_ns": self._call_ns[batch]}
        if by == "operator":
            found = attribute_operators(call, root, **run)
        elif by == "line":
            found = attribute_lines(call, **run)
        else:
            found = attribute_modules(call, root, **run)
        return protocol.places(found)

    def device(self, *, batch: int, calls: int) -> Attribution:
        """Profile what the device does, and measure its span behind a backlog."""
        from frameworktax.attribution.device import attribute_gpu

        if not self._target.is_cuda:
            raise UsageError("device attribution needs --device cuda:N")
        found = attribute_gpu(
            call=self._calls[batch],
            synchronize=self._loaded.synchronize,
            device=self._target.device,
            calls=calls,
        )
        return protocol.attribution(found)

    def pin(self, *, cpus: tuple[int, ...] = ()) -> None:
        """Pin every thread of this process; to none: it may use again what it could at first.

        What is set up and warmed up may use the whole machine.
        """
        self._unpinned = self._unpinned or os.sched_getaffinity(0)
        for thread in Path("/proc/self/task").iterdir():
            with contextlib.suppress(ProcessLookupError):  # a thread that ended meanwhile
                os.sched_setaffinity(int(thread.name), cpus or self._unpinned)

    def memory(self) -> int:
        """Return how many bytes of memory this process holds now."""
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def modules(self) -> tuple[str, ...]:
        """Return the names of the modules imported here: tests keep this process small."""
        return tuple(sorted(sys.modules))

    # --- proving a deployment -----------------------------------------------------------------

    def draw(
        self,
        *,
        workload: Workload,
        device: str,
        number: int,
        inputs: str,
        outputs: str,
        live: str | None = None,
    ) -> protocol.Drawn:
        """Write inputs drawn like the model's own, and what eager makes of them.

        ``number`` 0 is the model's own input; others are drawn from it as seed. The model is built
        once, and called twice.

        Raises:
            WorkerError: a call does more than return outputs, which no deployment does.
        """
        from frameworktax.models.base import draw, state
        from frameworktax.runtimes.deployment import describe
        from frameworktax.runtimes.eager import Eager

        if self._drawn is None or self._drawn[0] != workload.without_batch():
            self._drawn = workload.without_batch(), self._build(workload, device, live)
        model = self._drawn[1]
        drawn = draw(model, workload.batch, number)
        target = Target(device, workload.precision, self._target.threads)
        loaded = Eager().load(replace(model, inputs=lambda batch: drawn), target, Path())
        tensors = drawn.tensors()
        arrays = {path: _array(tensor).copy() for path, tensor in tensors.items()}
        np.savez(inputs, **arrays)  # type: ignore[arg-type] # paths are no options
        call = loaded.bind(workload.batch)
        result = call()
        made, kept = loaded.outputs(result), state(model.module)
        again, later = loaded.outputs(call()), state(model.module)
        written = [p for p, t in tensors.items() if not _same([arrays[p]], [_array(t)])]
        changed = [name for name, value in later.items() if kept.get(name) != value]
        why = ""
        if written:
            why = f"it writes into its input {written[0]}; have it write into a copy"
        elif not _same(made, again):
            why = "the same inputs give other outputs; pass what it draws or keeps as an input"
        elif changed:
            why = f"each call changes its '{changed[0]}'; make that an input and an output"
        if why:
            raise WorkerError("unavailable", why)
        np.savez(outputs, *made)
        return protocol.Drawn(
            interface=asdict(describe(model, result)),
            sizes=tuple(tuple(v.shape) for v in tensors.values()),
            made=tuple(array.shape for array in made),
        )

    def serve(
        self, *, folder: str, inputs: str, outputs: str, precision: str, on_torch: bool
    ) -> Parity:
        """Have the deployment in a folder compute drawn inputs; compare that with eager's outputs.

        It is called as its user calls it, and judged as what computes in ``precision``.
        """
        from frameworktax.models.ragged import MASK
        from frameworktax.runtimes import serving
        from frameworktax.runtimes.torch_common import flatten, to_arrays

        if self._deployment is None:
            self._deployment = serving.load(folder)
        with np.load(inputs, allow_pickle=False) as arrays:
            given = {path: arrays[path] for path in arrays.files}
        named = {self._deployment.interface.parameter(path): given[path] for path in given}
        expected, mask = parity.read_outputs(Path(outputs)), named.get(MASK)
        # A token before the first real one may have nothing to attend to: it has no defined output.
        is_late = mask is not None and mask.ndim == 2 and not mask[:, 0].all()
        real = mask.astype(bool) if mask is not None and is_late else None
        for later in ("", "once its first outputs were written into, "):
            copies = {path: array.copy() for path, array in given.items()}
            args, kwargs = self._deployment.arguments(copies, on_torch=on_torch)
            before = to_arrays((args, kwargs))
            result = self._deployment(*args, **kwargs)
            made = to_arrays(result)
            if real is not None:
                expected, made = (parity.without_padding(a, real) for a in (expected, made))
            found = parity.compare(expected, made, precision)
            if found.within_tolerance is False:
                why = found.reason or f"outputs differ at {found.worst}"
                return replace(found, reason=f"{later}{why}")
            if not _same(before, to_arrays((args, kwargs))):
                return replace(found, within_tolerance=False, reason="it writes into its inputs")
            for tensor in flatten(result):
                tensor.untyped_storage().fill_(0)  # as its user may: the next call must not see it
        return found


@dataclass(frozen=True, slots=True)
class CpuTime:
    """Processor time until now, ns: of this process, of this thread, and of each that lives.

    That of the process has threads in it that have ended.
    """

    process: int
    thread: int
    living: Mapping[int, int]

    @classmethod
    def now(cls) -> CpuTime:
        """Read it; the clocks of process and thread side by side."""
        living = {
            int(task.name): int((read(task, "schedstat") or "0").split()[0])
            for task in Path("/proc/self/task").iterdir()
        }
        living.pop(threading.get_native_id())
        return cls(time.process_time_ns(), time.thread_time_ns(), living)

    def elsewhere(self, before: CpuTime) -> Elsewhere | None:
        """Return in which other threads the process has computed since, None for in none."""
        whole, own = self.process - before.process, self.thread - before.thread
        alive = sum(ns - before.living.get(one, 0) for one, ns in self.living.items())
        least = max(ELSEWHERE * whole, ELSEWHERE_NS)
        if whole - own - alive > least:
            return "ended"
        return "alive" if alive > least else None


def _array(tensor: Any) -> np.ndarray:
    return tensor.detach().cpu().numpy()  # type: ignore[no-any-return] # torch's


def _same(ours: Sequence[np.ndarray], theirs: Sequence[np.ndarray]) -> bool:
    """Return whether arrays are the same bit for bit, or both NaN."""
    return len(ours) == len(theirs) and all(
        np.array_equal(a, b, equal_nan=True) for a, b in zip(ours, theirs, strict=True)
    )


@contextlib.contextmanager
def _default_dtype() -> Iterator[None]:
    """Leave the type that weights are drawn in as it is: calls of a model may set it."""
    torch = sys.modules.get("torch")
    before = torch and torch.get_default_dtype()
    try:
        yield
    finally:
        if torch is not None:
            torch.set_default_dtype(before)


def _torch_threads() -> int | None:
    """Return how many threads an operator of torch may use, None where torch is not imported."""
    torch = sys.modules.get("torch")
    return None if torch is None else torch.get_num_threads()


def _give_back_device_memory() -> None:
    """Free what torch's allocator caches: other processes of the session share the device."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        gc.collect()
        torch.cuda.empty_cache()


def peak_memory_bytes(status: Path = Path("/proc/self/status")) -> int:
    """Return the largest resident size this program had.

    ``ru_maxrss`` is the last resort: it counts what the process was before ``exec``, which is as
    large as the process that started it (getrusage(2); ``exec_mmap`` in the kernel).
    """
    with contextlib.suppress(OSError):
        found = re.search(r"^VmHWM:\s*(\d+) kB$", status.read_text(errors="replace"), re.MULTILINE)
        if found:
            return int(found[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _user_line(error: BaseException) -> str:
    """Return where in the user's own code an error came from, nothing where it did not."""
    from frameworktax.attribution.layers import is_passed

    own = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not is_passed(frame.filename) and "-packages/" not in frame.filename
    ]
    return f" ({own[-1].filename}:{own[-1].lineno})" if own else ""


def die_with_parent() -> None:
    """Have the kernel end this process when its parent ends, however that ends (Linux)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def serve(channel: int) -> None:
    """Answer requests until the parent closes its end."""
    server = Server()
    with os.fdopen(os.dup(channel), "rb") as requests, os.fdopen(channel, "wb") as answers:
        while requests.peek(1):
            step, given = pickle.load(requests)
            server.answer(step, given, answers)
            answers.flush()


def run(channel: int, memory_bytes: int) -> NoReturn:
    """Be a measuring process until the parent closes its end."""
    os.set_inheritable(channel, False)  # children of the model must not hold the socket open
    die_with_parent()
    faulthandler.enable()
    os.umask(os.umask(0o077) | 0o022)  # what is kept in the cache is for this user alone to write
    # OpenVINO reports its use to a server and to the home folder, unless this package is missing.
    sys.modules["openvino_telemetry"] = None  # type: ignore[assignment] # None: do not import
    if memory_bytes:
        # Anonymous memory only (RLIMIT_DATA): address space is no measure, CUDA maps terabytes.
        _, most = resource.getrlimit(resource.RLIMIT_DATA)  # as with ulimit -d
        least = memory_bytes if most == resource.RLIM_INFINITY else min(memory_bytes, most)
        resource.setrlimit(resource.RLIMIT_DATA, (least, least))
    serve(channel)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # engines' exit handlers and a model's stray threads have no say in the ending


if __name__ == "__main__":
    run(*(int(word) for word in sys.argv[1:3]))
