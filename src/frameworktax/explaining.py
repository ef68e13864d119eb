"""Explaining a file: where did the time go, whatever it was measured with.

What a file is, is told by its content and not by its name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from frameworktax.errors import TraceError, UsageError
from frameworktax.records import RUN_SCHEMA, STORE_SCHEMA, TIMELINE_SCHEMA, Prediction, Run
from frameworktax.traces.pieces import DamagedError, blocks

if TYPE_CHECKING:
    from frameworktax.analysis.whatif.predict import WhatIf
    from frameworktax.api import Results
    from frameworktax.traces.timeline import Timeline

ACCEPTED = (
    "explain takes a profiler trace (Kineto or Chrome JSON, .xplane.pb, Nsight Systems' .sqlite), "
    "a store, a document of --json, a CSV of latencies, a report of optimum-benchmark or "
    "pytest-benchmark"
)
HEAD_BYTES = 1 << 16
LIST_WITHIN = 16 << 20
"""A trace's list of events begins within so many bytes."""
DOCUMENT_BYTES = 256 << 20
"""A document that does not begin with its schema is not looked for in more."""
SQLITE = b"SQLite format 3\0"
_RUN = re.compile(rb'"schema"\s*:\s*"' + re.escape(RUN_SCHEMA).encode() + rb'"')
_TIMELINE = re.compile(rb'"schema"\s*:\s*"' + re.escape(TIMELINE_SCHEMA).encode() + rb'"')
_EVENTS = re.compile(rb'(?<!\\)"traceEvents"\s*:\s*\[')
_EVENT = re.compile(rb'^\s*\[\s*\{.*?"ph"\s*:', re.DOTALL)


def explain(path: str | Path, *, what_if: WhatIf | None = None) -> Results:
    """Return what a file or folder tells: a trace, a store, a document, a table of latencies.

    Args:
        path: of the file or folder.
        what_if: changes to predict as well.

    Raises:
        UsageError: nothing known is there, or a change cannot be.
        TraceError: it is a trace that cannot be read.
        StoreError: it is a store or document that cannot be read.
    """
    from frameworktax.api import Results

    path = Path(path)
    return Results(explain_run(path, what_if=what_if), path)


@dataclass(frozen=True, slots=True)
class Told:
    """What a file tells, and what a prediction can start from: its points, or the trace's steps."""

    run: Run
    timeline: Timeline | None = None
    subject: str = ""

    def predict(self, asked: WhatIf) -> tuple[Prediction, ...]:
        """Return what changes would give."""
        from frameworktax.analysis.whatif.predict import predict

        if self.timeline is None:
            return predict(asked, self.run)
        steps = self.timeline.steps()
        steps = [step for step in steps if len(step)] or steps
        return predict(asked, steps=steps, subject=self.subject)


def explain_run(path: Path, *, what_if: WhatIf | None = None) -> Run:
    """Return the document of ``explain``."""
    if what_if is not None:
        from frameworktax.analysis.whatif.request import check

        check(what_if)
    told = tell(path)
    if what_if is None:
        return told.run
    return replace(told.run, predictions=told.run.predictions + told.predict(what_if))


def tell(path: Path) -> Told:
    """Return what a file or folder tells; raises as ``explain`` does."""
    reader = _reader(path)
    return Told(_document(path)) if reader is None else _trace(path, reader)


def _reader(path: Path) -> Callable[[Path], Any] | None:
    """Return what reads this trace, or None where it is none.

    Raises:
        UsageError: there is nothing.
        TraceError: it cannot be read.
    """
    if not path.exists():
        raise UsageError(f"{path}: no such file or folder; {ACCEPTED}")
    if path.is_dir():
        return None
    head, source = _head(path)
    if _TIMELINE.search(head):
        raise UsageError(
            f"{path} is a timeline that frameworktax wrote, for ui.perfetto.dev; "
            "explain the store that it was made of"
        )
    text = head.lstrip()
    if head.startswith(SQLITE):
        from frameworktax.traces.nsys import read as read_nsys

        return read_nsys
    if _is_xplane(path, head):
        from frameworktax.traces.xplane import read as read_xplane

        return read_xplane
    if not text:
        raise TraceError(f"{path}: the file is empty or blank; {ACCEPTED}")
    if text[:1] == b"[" and _EVENT.match(head):
        return _chrome
    if text[:1] == b"{" and not _is_ours(head):
        seen, tail = 0, b""
        for block in source():
            if _EVENTS.search(tail + block):
                return _chrome
            seen, tail = seen + len(block), block[-64:]
            if seen > LIST_WITHIN:
                break
    return None


def _chrome(path: Path) -> Any:
    from frameworktax.traces import chrome

    return chrome.read(path)


def _head(path: Path) -> tuple[bytes, Callable[[], Iterator[bytes]]]:
    """Return the first bytes, unpacked, and what gives the blocks."""

    def source() -> Iterator[bytes]:
        given = False
        try:
            for block in blocks(path):
                given = True
                yield block
        except DamagedError as error:
            if not given:
                raise TraceError(
                    f"{path}: the gzip file is damaged or cut off ({error}); copy it again"
                ) from error
            # who reads the whole file says so

    return next(source(), b"")[:HEAD_BYTES], source


def _is_xplane(path: Path, head: bytes) -> bool:
    """Return whether a file is a protocol buffer: binary, and its first field is a plane."""
    return path.name.endswith(".xplane.pb") or (head[:1] == b"\n" and b"\0" in head[:HEAD_BYTES])


def _is_ours(head: bytes) -> bool:
    first = head.split(b"\n", 1)[0]
    return bool(_RUN.search(head)) or (b'"schema"' in first and STORE_SCHEMA.encode() in first)


def _trace(path: Path, read: Callable[[Path], Any]) -> Told:
    from frameworktax.analysis.trace import document as trace
    from frameworktax.traces import timeline

    try:
        recorded = read(path)
        ordered = timeline.build(recorded.trace)
        run = trace.document(recorded, ordered, path.name)
    except MemoryError as error:
        raise TraceError(
            f"{path}: too large for the memory of this process; record fewer steps"
        ) from error
    return Told(run, ordered, f"{path.name}, a step" if ordered.windows.marked else path.name)


def _document(path: Path) -> Run:
    """Return the document of anything but a trace."""
    if path.is_dir():
        return (None if any(path.glob("*.jsonl")) else _from_readers(path)) or _store(path)
    try:
        with path.open("rb") as file:
            head = file.read(HEAD_BYTES)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from error
    first = head.split(b"\n", 1)[0]
    if b'"schema"' in first and STORE_SCHEMA.encode() in first:
        return _store(path)
    if _RUN.search(head) or _says_run(path, head):
        from frameworktax.report.json_document import load

        return load(path)
    found = _from_readers(path)
    if found is None:
        raise UsageError(f"{path}: nothing known is in it; {ACCEPTED}")
    return found


def _store(path: Path) -> Run:
    from frameworktax.api import read_store

    return read_store(path).run


def _says_run(path: Path, head: bytes) -> bool:
    """Return whether JSON whose first bytes do not say so is a document all the same."""
    try:
        if head.lstrip()[:1] != b"{" or path.stat().st_size > DOCUMENT_BYTES:
            return False
        data = json.loads(path.read_bytes())
    except (ValueError, RecursionError, OSError):
        return False
    return isinstance(data, dict) and data.get("schema") == RUN_SCHEMA


def _from_readers(path: Path) -> Run | None:
    from frameworktax.integrations import readers

    read = getattr(readers, "read", None)
    return read(path) if read is not None else None
