"""Explain a file, and predict what changes would give: ``frameworktax explain`` and its Python.

What a file is follows from its content and not from its name. Not called ``explain`` or
``whatif``: a module of that name would hide the function of the package.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from frameworktax.analysis.trace.document import document
from frameworktax.analysis.whatif.formulas import WhatIf, check, predict, predict_steps
from frameworktax.api import Results, read_store
from frameworktax.errors import TraceError, UsageError, as_path
from frameworktax.integrations import readers
from frameworktax.records import STORE_SCHEMA, Prediction, Run
from frameworktax.report import json_document
from frameworktax.traces import kineto, timeline
from frameworktax.traces.kineto import DamagedError, blocks
from frameworktax.traces.timeline import Timeline

ACCEPTED = (
    "explain takes a profiler trace (Kineto or Chrome JSON), a store, a document of --json, "
    "a CSV of latencies, a report of optimum-benchmark or pytest-benchmark"
)
HEAD_BYTES = 16 << 20
"""Of a file, in which its kind shows: a document's schema, the beginning of a trace's events."""
SQLITE = b"SQLite format 3\0"
_OURS = re.compile(rb'"schema"\s*:\s*"frameworktax\.')
_EVENTS = re.compile(rb'(?<!\\)"traceEvents"\s*:\s*\[')
_XLA = re.compile(rb'"args"\s*:\s*\{\s*"name"\s*:\s*"/(?:device|host|job):')
"""Names of processes in traces of XLA: ``/device:GPU:0``, ``/host:CPU``."""
_EVENT = re.compile(rb'^\s*\[\s*\{.*?"ph"\s*:', re.DOTALL)


def explain(path: str | Path, *, what_if: WhatIf | None = None, step: str | None = None) -> Results:
    """Return what is in a file or folder: a trace, a store, a document, a table of latencies.

    Args:
        path: of the file or folder.
        what_if: changes to predict as well.
        step: of a trace, a regular expression that the annotations of its steps match; left out,
            steps are found.

    Raises:
        UsageError: there is nothing that explain takes, a change is impossible, or no annotation
            matches ``step``.
        TraceError: it is a trace that cannot be read.
        StoreError: it is a store or document that cannot be read.
    """
    if what_if is not None:
        check(what_if)
    loaded = load(as_path("the source", path), step)
    found = loaded.predict(what_if) if what_if is not None else ()
    run = replace(loaded.run, predictions=loaded.run.predictions + found)
    return Results(run, Path(path))


def whatif(
    source: str | Path | Run | Results,
    *,
    device_speed: float | None = None,
    host_speed: float | None = None,
    cpu_speed: float | None = None,
    graphs: bool = False,
    runtime: str | None = None,
    step: str | None = None,
) -> tuple[Prediction, ...]:
    """Predict what changes would give, each with its formula and the error that has shown.

    Each change is answered alone; those of the machine (the first four) also together. A refused
    prediction has no latency, and says why in ``reason``.

    Args:
        source: what ``measure`` or ``sweep`` returned, or the path of a store, a document, a trace
            or anything else that ``explain`` takes.
        device_speed: factor on the device's speed.
        host_speed: factor on the speed of the framework's part; kernels stay.
        cpu_speed: factor on the speed of the CPU, of kernels too where they run on it.
        graphs: replay captured graphs instead of single kernel launches.
        runtime: another runtime, by name.
        step: of a trace, what the annotations of its steps match, as ``explain`` takes it, and as
            it was given where ``source`` is what that returned.

    Raises:
        UsageError: no change is asked for, one is impossible, no latency to start from, or other
            steps than those of a trace's results.
        TraceError: it is a trace that cannot be read.
        StoreError: it is a store or document that cannot be read.
    """
    asked = WhatIf(
        device_speed=device_speed,
        host_speed=host_speed,
        cpu_speed=cpu_speed,
        graphs=graphs,
        runtime=runtime,
    )
    check(asked)
    trace = source.run.trace if isinstance(source, Results) else None
    if isinstance(source, Results):  # of a trace the document has no single steps: read it again
        source = source.run if trace is None else source.store
    loaded = (
        LoadedSource(source)
        if isinstance(source, Run)
        else load(as_path("the source", source), step)
    )
    if trace is not None and (loaded.run.trace or {}).get("steps") != trace["steps"]:
        raise UsageError(f"{source} has other steps than these results; give step= as to explain")
    if loaded.timeline is None and all(m.latency_ns is None for m in loaded.run.measurements):
        raise UsageError("no latency to predict from; measure first")
    return loaded.predict(asked)


# --- what a file is -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LoadedSource:
    """A file's document, and what a prediction starts from: its points, or a trace's steps."""

    run: Run
    timeline: Timeline | None = None
    subject: str = ""

    def predict(self, asked: WhatIf) -> tuple[Prediction, ...]:
        """Return what changes would give."""
        if self.timeline is None:
            return predict(asked, self.run)
        return predict_steps(asked, self.timeline, self.subject)


def load(path: Path, step: str | None = None) -> LoadedSource:
    """Return what is in a file or folder; raises as ``explain`` does."""
    read = _reader(path)
    if read != kineto.read:
        if step is not None:
            raise UsageError(f"{path} is no trace; --step chooses the steps of a trace")
        return LoadedSource(read(path))
    try:
        pattern = re.compile(step) if step is not None else None
        ordered = timeline.build(read(path), pattern)
        run = document(ordered, path.name)
    except re.error as error:
        raise UsageError(f"--step {step!r} is no regular expression: {error}") from error
    except MemoryError as error:
        raise TraceError(
            f"{path}: too large for the memory of this process; record fewer steps"
        ) from error
    subject = f"{path.name}, a step" if ordered.windows.marked else path.name
    return LoadedSource(run, ordered, subject)


def _reader(path: Path) -> Callable[[Path], Any]:
    """Return what reads a file or folder.

    Raises:
        UsageError: there is nothing, no regular file, or a protocol buffer.
        TraceError: it cannot be read.
    """
    if not path.exists():
        raise UsageError(f"{path}: no such file or folder; {ACCEPTED}")
    if path.is_dir():
        return _stored if any(path.glob("*.jsonl")) else _other
    if not path.is_file():
        raise UsageError(f"{path} is no regular file: write it to one first; {ACCEPTED}")
    head = _head(path)
    text, line = head.lstrip(), head.split(b"\n", 1)[0]
    if head.startswith(SQLITE):
        raise UsageError(
            f"{path}: exports of Nsight Systems are not read; record the same with torch.profiler "
            "and export_chrome_trace"
        )
    is_proto = path.name.endswith(".xplane.pb") or (head[:1] == b"\n" and b"\0" in head)
    if is_proto or _XLA.search(head):
        raise UsageError(
            f"{path}: written by the profiler of XLA (JAX, TensorFlow), which is not read; of "
            "traces those of torch.profiler are; frameworktax measure --runtimes jax measures a "
            "model under XLA"
        )
    if not text:
        raise TraceError(f"{path}: the file is empty or blank; {ACCEPTED}")
    if b'"schema"' in line and STORE_SCHEMA.encode() in line:
        return _stored
    if _OURS.search(head):
        return json_document.load
    is_trace = _EVENTS.search(head) if text[:1] == b"{" else _EVENT.match(head)
    return kineto.read if is_trace else _other


def _head(path: Path) -> bytes:
    """Return the first bytes, unpacked, up to where it is damaged: its reader reports that."""
    head = bytearray()
    try:
        for block in blocks(path):
            head += block
            if len(head) >= HEAD_BYTES:
                break
    except DamagedError as error:
        if not head:
            raise TraceError(
                f"{path}: the gzip file is damaged or cut off ({error}); copy it again"
            ) from error
    return bytes(head[:HEAD_BYTES])


def _stored(path: Path) -> Run:
    return read_store(path).run


def _other(path: Path) -> Run:
    """Return the document of what another tool wrote, or of an empty store."""
    from frameworktax.runtimes.deployment import MANIFEST

    found = readers.read(path)
    if found is None and (path / MANIFEST).is_file():
        return json_document.load(path / MANIFEST)
    if found is None and not path.is_dir():
        raise UsageError(f"{path}: nothing known is in it; {ACCEPTED}")
    if found is None and (inside := sorted([*path.glob("*.json"), *path.glob("*.json.gz")])):
        raise UsageError(f"{path} is no store; name one file in it, such as {inside[0]}")
    return found or _stored(path)
