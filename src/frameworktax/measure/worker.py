"""The measuring process: loads one model in one runtime, then serves blocks on request.

    python -m frameworktax.measure.worker SOCKET_FD MEMORY_BYTES

Parent and worker speak JSON lines over a socket of their own; stdout and stderr are not theirs.
A request is ``{"do": name, …}``, the answer ``{"ok": {…}}`` or ``{"error": {status, message}}``.
This process imports the standard library, numpy, the model's library and the one runtime.
``Server`` can also be used in place, for a live module that cannot be sent to another process.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import json
import os
import re
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from frameworktax.errors import (
    FrameworktaxError,
    UsageError,
    UserModelError,
    WorkerError,
    one_line,
)
from frameworktax.measure import timing
from frameworktax.records import Workload

if TYPE_CHECKING:
    from frameworktax.models.base import Model
    from frameworktax.runtimes.base import Call, Loaded, Target

PR_SET_PDEATHSIG = 1
CALIBRATOR_SIZE = 160
"""Side of the calibrator's matrices: about 0.2 ms of arithmetic and 0.2 ms of interpreter."""


class Server:
    """Answers requests; one model, one runtime, any number of batch sizes."""

    def __init__(self) -> None:
        self._loaded: Loaded | None = None
        self._target: Target | None = None
        self._real: Callable[[int], Any] | None = None
        self._calls: dict[int, Call] = {}
        self._calibrator: Callable[[], Any] | None = None

    def handle(self, request: dict[str, Any]) -> dict[str, Any]:
        """Answer one request; whatever the model or the runtime raises becomes an error answer."""
        action = getattr(self, "do_" + str(request.pop("do")))
        try:
            return {"ok": action(**request) or {}}
        except FrameworktaxError as error:
            kind = "usage" if isinstance(error, UsageError) else "failed"
            if isinstance(error, UserModelError):
                kind = "user-model"
            if isinstance(error, WorkerError):
                kind = error.status
            return {"error": {"status": kind, "message": str(error)}}
        except MemoryError as error:
            return {"error": {"status": "out-of-memory", "message": one_line(error)}}
        except Exception as error:  # noqa: BLE001 - the boundary to foreign code: models, engines
            traceback.print_exc()
            status = "out-of-memory" if _is_out_of_memory(error) else "failed"
            return {"error": {"status": status, "message": one_line(error)}}

    # --- set-up -------------------------------------------------------------------------------

    def do_describe(
        self,
        workload: dict[str, Any],
        device: str,
        batches: list[int],
        limit_s: float,
        live: Any = None,
    ) -> dict[str, Any]:
        """Build the model and count what can be counted, per batch size."""
        from frameworktax.models.describe import describe_batches

        _check_device(device)
        model = _build(Workload(**workload), device, live)
        facts = {str(b): f for b, f in describe_batches(model, batches, limit_s).items()}
        return {"facts": facts, "has_twin": model.has_twin, "notes": model.notes}

    def do_prepare(
        self,
        workload: dict[str, Any],
        runtime: str,
        target: dict[str, Any],
        directory: str,
        batches: list[int],
        live: Any = None,
    ) -> dict[str, Any]:
        """Export or compile for the measuring processes; says how long it took and how large."""
        from frameworktax import runtimes
        from frameworktax.runtimes.base import Target

        where = Target(**target)
        _check_device(where.device)
        model = _build(Workload(**workload), where.device, live)
        start = time.perf_counter_ns()
        folder = Path(directory)
        folder.mkdir(parents=True, exist_ok=True)
        runtimes.get(runtime).prepare(model, batches, where, folder)
        return {"setup_ns": time.perf_counter_ns() - start}

    def do_load(
        self,
        workload: dict[str, Any],
        runtime: str,
        target: dict[str, Any],
        directory: str,
        live: Any = None,
    ) -> dict[str, Any]:
        """Load the model, if the runtime needs it, and make the runtime ready."""
        from frameworktax import runtimes
        from frameworktax.runtimes.base import Target

        start = time.perf_counter_ns()
        engine = runtimes.get(runtime)
        self._target = Target(**target)
        if self._target.is_cuda:
            _check_device(self._target.device)
        model = None
        if engine.needs_model:
            model = _build(Workload(**workload), self._target.device, live)
        folder = Path(directory)
        folder.mkdir(parents=True, exist_ok=True)
        self._real = model.real if model else None
        self._loaded = engine.load(model, self._target, folder)
        gc.collect()
        gc.freeze()  # what is loaded stays: collecting between blocks is then cheap
        return {
            "load_ns": time.perf_counter_ns() - start,
            "notes": (model.notes if model else []) + self._loaded.notes(),
            "pid": os.getpid(),
        }

    def do_bind(self, batch: int, limit_ns: int) -> dict[str, Any]:
        """Make the call for one batch size and warm it up."""
        loaded = self._ready()
        start = time.perf_counter_ns()
        call = loaded.bind(batch)
        call()
        loaded.synchronize()
        first_ns = time.perf_counter_ns() - start
        warm = timing.warm_up(call, loaded.synchronize, limit_ns=limit_ns)
        self._calls[batch] = call
        gc.collect()
        gc.freeze()
        return {
            "calls": warm.calls + 1,
            "call_ns": warm.call_ns,
            "settled": warm.settled,
            "first_ns": first_ns,
            "peak_memory_bytes": peak_memory_bytes(),
            "notes": loaded.notes(),
        }

    def do_output(self, batch: int, path: str) -> dict[str, Any]:
        """Write the outputs of two calls in a row, for the parity check in the parent."""
        import numpy as np

        loaded = self._ready()
        twice = []
        for _ in range(2):
            result = self._calls[batch]()
            loaded.synchronize()
            twice.append([np.array(array) for array in loaded.outputs(result)])
        first, second = twice
        same = len(first) == len(second) and all(
            np.array_equal(a, b, equal_nan=True) for a, b in zip(first, second, strict=True)
        )
        # Which tokens are no padding: the parent compares at these alone.
        real = {} if self._real is None else {"real": self._real(batch)}
        np.savez(path, *first, **real)
        return {"repeatable": same}

    # --- measuring ----------------------------------------------------------------------------

    def do_block(self, batch: int, calls: int) -> dict[str, Any]:
        """Time one block, without a profiler."""
        loaded, target = self._ready(), self._target
        on_device = target is not None and target.is_cuda
        generates = loaded.first_token_ns() is not None
        block = timing.time_block(
            self._calls[batch],
            loaded.synchronize,
            calls=calls,
            on_device=on_device,
            first_token=loaded.first_token_ns if generates else None,
        )
        return asdict(block)

    def do_calibrate(self, calls: int) -> dict[str, Any]:
        """Time the fixed calibrator: interpreter and arithmetic, the same on every host."""
        if self._calibrator is None:
            self._calibrator = _make_calibrator()
            timing.warm_up(self._calibrator)
        return {"latency_ns": timing.time_block(self._calibrator, calls=calls).latency_ns}

    def do_sample(self, batch: int, duration_ns: int, stretches: int) -> dict[str, Any]:
        """Sample the program counter of this thread while the call runs."""
        from frameworktax.attribution import attribute_cpu

        loaded, target = self._ready(), self._target
        on_device = target is not None and target.is_cuda
        return dict(
            attribute_cpu(
                self._calls[batch],
                stretches=stretches,
                duration_ns=duration_ns,
                settle=loaded.synchronize if on_device else None,
            )
        )

    def do_device(self, batch: int, calls: int) -> dict[str, Any]:
        """Attribute device time: profile of device activity, span by backlog."""
        from frameworktax.attribution.device import attribute_gpu

        loaded, target = self._ready(), self._target
        if target is None or not target.is_cuda:
            raise UsageError("device attribution needs --device cuda:N")
        return dict(
            attribute_gpu(
                call=self._calls[batch],
                synchronize=loaded.synchronize,
                device=target.device,
                calls=calls,
            )
        )

    def do_pin(self, cpus: list[int]) -> dict[str, Any]:
        """Pin every thread of this process; set-up before it may use the whole machine."""
        for thread in Path("/proc/self/task").iterdir():
            with contextlib.suppress(ProcessLookupError):  # a thread that ended meanwhile
                os.sched_setaffinity(int(thread.name), cpus)
        return {}

    def do_modules(self) -> dict[str, Any]:
        """Name the modules imported here: tests hold this process to its diet."""
        return {"modules": sorted(sys.modules)}

    def do_memory(self) -> dict[str, Any]:
        """Say how much memory this process holds now."""
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return {"resident_bytes": pages * os.sysconf("SC_PAGE_SIZE")}

    def _ready(self) -> Loaded:
        if self._loaded is None:
            raise UsageError("nothing is loaded yet")
        return self._loaded


def _build(workload: Workload, device: str, live: Any) -> Model:
    from frameworktax import models

    if live is not None:
        from frameworktax.models.live import build_live

        return build_live(live, workload, device)
    return models.build(workload, device)


def _check_device(device: str) -> None:
    """Raise UsageError where torch cannot reach the device asked for."""
    if device == "cpu":
        return
    import torch

    if not torch.cuda.is_available():
        why = "this torch has no CUDA" if torch.version.cuda is None else "no CUDA device works"
        raise UsageError(f"--device {device}: {why}; choose --device cpu")
    index = int(device.partition(":")[2] or 0)
    if index >= torch.cuda.device_count():
        raise UsageError(
            f"--device {device}: this machine has cuda:0 to cuda:{torch.cuda.device_count() - 1}"
        )


def _make_calibrator() -> Callable[[], Any]:
    import numpy as np

    a = np.ones((CALIBRATOR_SIZE, CALIBRATOR_SIZE), np.float32)

    def calibrate() -> int:
        total = 0
        for i in range(4000):
            total += i & 7
        for _ in range(4):
            a @ a
        return total

    return calibrate


def _is_out_of_memory(error: Exception) -> bool:
    # torch raises RuntimeError on a CPU and OutOfMemoryError on a GPU; ONNX Runtime its own type.
    text = str(error).lower()
    return type(error).__name__ == "OutOfMemoryError" or any(
        words in text for words in ("not enough memory", "can't allocate memory", "bad_alloc")
    )


def peak_memory_bytes(status: Path = Path("/proc/self/status")) -> int:
    """Return the largest resident size this program had.

    ``ru_maxrss`` is the last resort: it counts what the process was before ``exec``, which is as
    large as whoever started it (getrusage(2); ``exec_mmap`` in the kernel).
    """
    with contextlib.suppress(OSError):
        found = re.search(r"^VmHWM:\s*(\d+) kB$", status.read_text(), re.MULTILINE)
        if found:
            return int(found[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def die_with_parent() -> None:
    """Have the kernel end this process when its parent ends, however that ends (Linux)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def serve(channel: int) -> None:
    """Answer requests until the parent closes its end."""
    server = Server()
    with (
        os.fdopen(os.dup(channel), encoding="utf-8") as requests,
        os.fdopen(channel, "w") as answers,
    ):
        for line in requests:
            answers.write(json.dumps(server.handle(json.loads(line))) + "\n")
            answers.flush()


def main() -> None:
    """Start serving; descriptor and limit come from the command line."""
    channel, memory_bytes = (int(word) for word in sys.argv[1:3])
    os.set_inheritable(channel, False)  # children of the model must not hold the socket open
    die_with_parent()
    faulthandler.enable()
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
    main()
