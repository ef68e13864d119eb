"""Models in runtimes, each cell in a process of its own; started by coverage.py.

    echo '{"workload": …, "runtimes": […], "folder": …, …}' | python coverage_cells.py torch …

Imports the packages named, then forks for each request; that fork builds the model and forks for
each runtime: imports are paid once, a model is built once, and what a cell does or breaks stays
with it. Prints one JSON line a cell, and ``{"end": …}`` after those of a request. Nothing is timed
that anyone reads.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import resource
import signal
import sys
import tempfile
import time
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Any

from frameworktax import models, runtimes
from frameworktax.errors import FrameworktaxError
from frameworktax.measure import parity
from frameworktax.models.base import Model
from frameworktax.records import Workload
from frameworktax.runtimes.base import Runtime, Target

BATCH = 2
"""One size, above 1: torch specialises 1, and what fails fails at any."""
WALL_FACTOR = 5
"""Wall time allowed, in limits of processor time."""
OPERATOR = re.compile(
    r"\b((?:aten|prims?|torchvision|higher_order|quantized)(?:::|\.)[A-Za-z_]\w*(?:\.\w+)?"
    r"|onnx::\w+)"
)
"""How torch, ExecuTorch and the exporters write an operator's name."""
TELLING = re.compile(
    r"No conversion rule found|No ONNX function found|[Uu]nsupported|[Nn]ot supported"
    r"|[Nn]ot implemented|failed to legalize"
)
"""A line with one of these says more than the first line of a report."""

Row = dict[str, Any]


def main() -> int:
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # no pool of compilers outlives a cell
    for package in sys.argv[1:]:
        importlib.import_module(package)
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            answer(json.loads(line))
            os._exit(0)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        print(json.dumps({"end": status}), flush=True)
    return 0


def answer(request: Row) -> None:
    """Print a row for each cell of a request."""
    workload, folder = Workload(**request["workload"]), Path(request["folder"])
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder)
    try:
        model = models.build(workload)
    except Exception as error:  # noqa: BLE001 - a model is foreign code
        for name in request["runtimes"]:
            row = failure_row(error, "the model: ") | {"runtime": name}
            print(json.dumps(row), flush=True)
        return
    for name in request["runtimes"]:
        begin = time.monotonic()
        row = forked(name, model, workload, folder, request)
        row |= {"runtime": name, "seconds": round(time.monotonic() - begin, 1)}
        print(json.dumps(row), flush=True)


def forked(name: str, model: Model, workload: Workload, folder: Path, request: Row) -> Row:
    """Run one cell in a fork; return its row, or how the fork ended."""
    result = folder / "cell.json"
    result.unlink(missing_ok=True)
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        data = request["memory_bytes"]
        resource.setrlimit(resource.RLIMIT_DATA, (data, data))
        limit = request["limit_s"]  # of processor time: others may hold the processors
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 5))
        log = os.open(folder / "cell.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 1)
        os.dup2(log, 2)
        try:
            row = cell(name, model, workload, folder)
        except BaseException as error:  # noqa: BLE001 - the border to foreign code
            traceback.print_exc()
            row = failure_row(error)
        result.write_text(json.dumps(row))
        os._exit(0)
    deadline = time.monotonic() + WALL_FACTOR * request["limit_s"]
    status = None
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            break
        time.sleep(0.05)
    else:
        end(child)
        os.waitpid(child, 0)
        return {"verdict": "timeout", "reason": "it waits for something"}
    end(child)  # whatever it started
    if result.exists():
        return dict(json.loads(result.read_text()))
    number = os.WTERMSIG(status) if status is not None and os.WIFSIGNALED(status) else 0
    if number == signal.SIGXCPU:
        return {"verdict": "timeout", "reason": f"not done in {request['limit_s']} s of computing"}
    how = signal.Signals(number).name if number else "it left without a word"
    return {"verdict": "crashed", "reason": how}


def end(child: int) -> None:
    try:
        os.killpg(child, signal.SIGKILL)
    except ProcessLookupError:
        return


def cell(name: str, model: Model, workload: Workload, folder: Path) -> Row:
    """Prepare, load, call; compare with eager, which must have run before."""
    import numpy as np

    runtime, target = runtimes.get(name), Target(precision=workload.precision)
    if workload.input not in runtime.inputs:
        return ragged(runtime, replace(workload, input="ragged"), folder)
    reason = runtime.cannot(workload)
    if reason is not None:
        return {"verdict": "cannot", "reason": reason}
    reference = folder / "eager.npz"
    if name != "eager" and not reference.exists():
        return {"verdict": "unproven", "reason": "eager itself does not run"}
    outputs = computed(runtime, model, target, folder)
    if name == "eager":
        np.savez(reference, *outputs)
    return judged(parity.read_outputs(reference), outputs, workload)


def computed(runtime: Runtime, model: Model, target: Target, folder: Path) -> list[Any]:
    """Return the outputs of the third call."""
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        directory = Path(scratch)
        if runtime.prepares:
            runtime.prepare(model, [BATCH], target, directory)
        loaded = runtime.load(model if runtime.needs_model else None, target, directory)
        call = loaded.bind(BATCH)
        for _ in range(2):
            call()
        result = call()
        loaded.synchronize()
        return loaded.outputs(result)


def ragged(runtime: Runtime, workload: Workload, folder: Path) -> Row:
    """Run a runtime of sparse input on ragged sentences, beside eager on the same."""
    target = Target(precision=workload.precision)
    try:
        models.check(workload)
    except FrameworktaxError as error:
        return {"verdict": "cannot", "reason": str(error)}
    model = models.build(workload)
    if model.real is None:
        return {"verdict": "cannot", "reason": "the model has no ragged input"}
    real = model.real(BATCH)
    outputs = computed(runtime, model, target, folder)
    eager = computed(runtimes.get("eager"), model, target, folder)
    return judged(
        parity.without_padding(eager, real), parity.without_padding(outputs, real), workload
    )


def judged(reference: list[Any], outputs: list[Any], workload: Workload) -> Row:
    """Return the row of a cell that has outputs."""
    found = parity.compare(reference, outputs, workload.precision)
    verdicts = {True: "runs", False: "differs", None: "unproven"}
    return {
        "verdict": verdicts[found.within_tolerance],
        "reason": found.reason,
        "difference": found.max_relative_difference,
        "worst": found.worst,
    }


def failure_row(error: BaseException, prefix: str = "") -> Row:
    """Return what an error says, from the root of its chain, and the operator it names."""
    chain = [error]
    while (below := chain[-1].__cause__ or chain[-1].__context__) is not None:
        if below in chain:
            break
        chain.append(below)
    if isinstance(error, MemoryError) or "bad_alloc" in str(error):
        return {"verdict": "crashed", "reason": "out of memory"}
    # An exporter's own error is a report over many attempts: the root says what went wrong.
    root = chain[-1] if len(str(error)) > 400 and str(chain[-1]).strip() else error
    # A KeyError shows its text quoted: a report in it has its line breaks, and our paths, escaped.
    texts = [str(e).replace("\\n", "\n") for e in (root, *chain)]
    lines = [line.strip() for text in texts for line in text.splitlines() if line.strip()]
    first = next((line for line in lines if TELLING.search(line)), lines[0] if lines else "")
    operator = next(
        (found[1] for line in (first, *lines) if (found := OPERATOR.search(line))), None
    )
    kind = "" if isinstance(root, FrameworktaxError) else f"{type(root).__name__}: "
    return {
        "verdict": "cannot",
        "reason": f"{prefix}{kind}{first[:240]}".rstrip(": "),
        "stopped_by": operator,
    }


if __name__ == "__main__":
    sys.exit(main())
