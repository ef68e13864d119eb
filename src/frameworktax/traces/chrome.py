"""Reader of Kineto / Chrome trace JSON of any size, for the parent: compiled, forgiving, exact.

``kineto.parse`` is for the measuring process: standard library only, and what is odd is an error,
for the file was written a moment ago. Here the file comes from anywhere. What cannot be used is
counted and told; only a file without events is an error. msgspec decodes typed fields and skips
the rest: 0.37 s for 82 MB where orjson takes 1.1 s, ijson's yajl 0.8 s and json 1.6 s, and it
never builds what is skipped.

A time in microseconds above 2**41 with decimals does not survive a binary float to the nanosecond
(half a unit in the last place, times 1,000, must stay under half a nanosecond); such pieces are
decoded again with times as text.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from frameworktax.errors import TraceError
from frameworktax.traces import kineto, times
from frameworktax.traces.blocks import blocks
from frameworktax.traces.columns import Columns
from frameworktax.traces.recorded import Recorded
from frameworktax.traces.split import ACCEPTED, BLANK, Frame, pieces

ALIASES = {
    "memcpy": kineto.COPY,
    "memset": kineto.MEMSET,
    "runtime": "cuda_runtime",
    "hip_runtime": "cuda_runtime",
    "hip_driver": "cuda_driver",
    "xpu_runtime": "cuda_runtime",
    "xpu_driver": "cuda_driver",
    "operator": "cpu_op",
}
"""Names that versions before 2021 and other vendors' back ends give the same categories."""
NAME_SIGNS = 200
"""Of a name that is no text, as many signs are kept."""


def _numbers() -> dict[str, int]:
    number = {name: i for i, name in enumerate(kineto.CATEGORIES)}
    number |= {alias: number[name] for alias, name in ALIASES.items()}
    return number | {name.capitalize(): code for name, code in number.items()}


NUMBER = _numbers()
POINTING = np.isin(kineto.CATEGORIES, (*kineto.DEVICE, *kineto.HOST_CALLS))
"""By category: its records say which device, stream and launch they belong to."""


class _Args(msgspec.Struct, frozen=True, gc=False):
    device: Annotated[int, msgspec.Meta(ge=-1, lt=2**31)] = -1
    stream: Annotated[int, msgspec.Meta(ge=-1, lt=2**62)] = -1
    correlation: Annotated[int, msgspec.Meta(ge=-1, lt=2**62)] = -1


_NO_ARGS = _Args()


class _Event(msgspec.Struct, gc=False):
    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: int | str = -1
    tid: int | str = -1
    ts: int | float = float("nan")
    dur: int | float = float("nan")
    args: _Args = _NO_ARGS


class _Times(msgspec.Struct, gc=False):
    ts: msgspec.Raw = msgspec.Raw()
    dur: msgspec.Raw = msgspec.Raw()


class _Device(msgspec.Struct, gc=False):
    id: int = -1
    name: str = ""


class _Around(msgspec.Struct, gc=False):
    """Of everything around the events only this is read: the rest may hold names and secrets."""

    device_properties: list[_Device] = msgspec.field(name="deviceProperties", default_factory=list)


@dataclass(slots=True)
class _Reader:
    """Decodes pieces into columns; see ``split.Decoder``. Returns how many events a piece held."""

    columns: Columns = field(default_factory=Columns)
    malformed: int = 0
    typed: msgspec.json.Decoder[list[_Event]] = field(
        default_factory=lambda: msgspec.json.Decoder(list[_Event])
    )
    times: msgspec.json.Decoder[list[_Times]] = field(
        default_factory=lambda: msgspec.json.Decoder(list[_Times])
    )

    def whole(self, piece: bytes) -> int | None:
        text = b"[" + piece + b"]"
        try:
            events = self.typed.decode(text)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            return None
        get = NUMBER.get
        codes = [get(e.cat, -1) if e.ph == "X" else -1 for e in events]
        kept = [e for e, code in zip(events, codes, strict=True) if code >= 0]
        if not kept:
            return len(events)
        start, duration = (
            times.from_numbers([e.ts for e in kept]),
            times.from_numbers([e.dur for e in kept]),
        )
        if start is None or duration is None:
            written = [t for t, c in zip(self.times.decode(text), codes, strict=True) if c >= 0]
            start = times.from_text([bytes(t.ts) for t in written])
            duration = times.from_text([bytes(t.dur) for t in written])
        good = start[1] & duration[1] & (duration[0] >= 0)
        self._add(kept, [c for c in codes if c >= 0], start[0], duration[0], good)
        return len(events)

    def single(self, piece: bytes, spans: Sequence[tuple[int, int]]) -> int:
        kept, codes, starts, durations, good = [], [], [], [], []
        upto = 0
        for begin, end in spans:
            self.malformed += bool(piece[upto:begin].strip(BLANK + b","))
            upto = end
            try:
                event = json.loads(piece[begin:end], parse_float=kineto.DecimalText)
            except (ValueError, RecursionError):
                self.malformed += 1
                continue
            if not isinstance(event, dict):
                self.malformed += 1
                continue
            code = NUMBER.get(str(event.get("cat")), -1)
            if event.get("ph") != "X" or code < 0:
                continue
            start, duration = kineto.to_ns(event.get("ts")), kineto.to_ns(event.get("dur"))
            kept.append(_lenient(event))
            codes.append(code)
            good.append(start is not None and duration is not None and duration >= 0)
            starts.append(start or 0)
            durations.append(duration or 0)
        self.malformed += bool(piece[upto:].strip(BLANK + b","))
        if kept:
            self._add(kept, codes, np.array(starts), np.array(durations), np.array(good))
        return len(spans)

    def _add(
        self,
        events: Sequence[_Event],
        codes: Sequence[int],
        start: NDArray[np.int64],
        duration: NDArray[np.int64],
        good: NDArray[np.bool_],
    ) -> None:
        code = np.array(codes, np.int8)
        # Operators and Python frames have none of these; they are most of a trace.
        pointing = np.flatnonzero(POINTING[code])
        args = [events[i].args for i in pointing.tolist()]
        device, stream, correlation = (np.full(len(events), -1, np.int64) for _ in range(3))
        device[pointing] = [a.device for a in args]
        stream[pointing] = [a.stream for a in args]
        correlation[pointing] = [a.correlation for a in args]
        # Old versions tell device and stream of a record only as its process and thread.
        for i in np.flatnonzero((code < len(kineto.DEVICE)) & (device < 0)).tolist():
            device[i], stream[i] = kineto.index(events[i].pid), kineto.index(events[i].tid)
        columns = self.columns
        columns.add(
            good,
            name=columns.name_ids([e.name for e in events]),
            category=code,
            start_ns=start,
            end_ns=start + duration,
            thread=columns.thread_ids([(e.pid, e.tid) for e in events]),
            device=device,
            stream=stream,
            correlation=correlation,
        )


def _lenient(event: dict[str, Any]) -> _Event:
    """Return the fields of an event whose types may be anything."""
    args = event.get("args")
    args = args if isinstance(args, dict) else {}
    name, pid, tid = event.get("name", ""), event.get("pid", -1), event.get("tid", -1)
    return _Event(
        name=name if isinstance(name, str) else str(name)[:NAME_SIGNS],
        pid=pid if isinstance(pid, int) else str(pid)[:NAME_SIGNS],
        tid=tid if isinstance(tid, int) else str(tid)[:NAME_SIGNS],
        args=_Args(
            _small(args.get("device")),
            kineto.index(args.get("stream")),
            kineto.index(args.get("correlation")),
        ),
    )


def _small(value: Any) -> int:
    number = kineto.index(value)
    return number if number < 2**31 else -1


def read(path: Path) -> Recorded:
    """Read a trace, gzipped or not, in memory that grows by some 40 bytes an event.

    Raises:
        TraceError: the file cannot be read, holds no events, or is no trace.
    """
    frame, reader = Frame(), _Reader()
    records = sum(pieces(blocks(path), frame, path, reader))
    columns = reader.columns
    if not any(map(len, columns.parts["start_ns"])):
        why = f"; {frame.cut}" if frame.cut else ""
        unusable = columns.invalid + reader.malformed
        bad = f", {unusable} of them unusable" if unusable else ""
        raise TraceError(
            f"{path}: none of its {records} events is one of a profiler's{bad}{why}; {ACCEPTED}"
        )
    invalid, resolution = columns.invalid, columns.resolution_ns
    return Recorded(
        trace=kineto.Trace(columns.events(), resolution, invalid),
        source="kineto",
        records=records,
        malformed=reader.malformed,
        cut=frame.cut,
        device_names=_device_names(frame.head) or _device_names(frame.tail),
    )


def _device_names(around: bytes) -> dict[int, str]:
    try:
        found = msgspec.json.decode(around, type=_Around)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return {}
    return {d.id: d.name for d in found.device_properties if d.id >= 0 and d.name}
