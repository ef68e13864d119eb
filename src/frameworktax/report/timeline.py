"""What a store holds as a timeline in Chrome's trace format, for ui.perfetto.dev.

Records hold durations and their order, and no clock's reading of when a block began. So the axis
is measured time alone: blocks, and the calls in them, stand end to end in the order in which they
were measured. Set-up and loading went on side by side before that; their lengths stand in a group
of their own, all from its beginning.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from frameworktax.errors import UsageError
from frameworktax.records import (
    TIMELINE_SCHEMA,
    TIMELINE_VERSION,
    Attribution,
    Block,
    Calibration,
    Outcome,
    Record,
    Session,
    Subject,
    point_name,
)

AXIS = (
    "measured time alone, end to end in the order of measuring; what lay between (warm-up, "
    "waiting, other work) was not recorded"
)
BEFORE = "before the rounds: lengths as measured, beginnings and order not recorded"
MOST_CALLS = 200_000
"""Calls up to which each is shown; of more, blocks alone: Perfetto opens some million events."""

Event = dict[str, Any]


def write(records: Sequence[Record], path: Path) -> int:
    """Write the timeline of records in their order and return the number of its events.

    Raises:
        UsageError: nothing in them was timed, or the file cannot be written.
    """
    timed = [r for r in records if isinstance(r, Block | Calibration)]
    if not timed:
        raise UsageError("nothing in it was timed: no timeline; name a store with measurements")
    calls = sum(len(r.latency_ns) for r in timed)
    each = calls <= MOST_CALLS
    about = {
        "schema": TIMELINE_SCHEMA,
        "version": TIMELINE_VERSION,
        "axis": AXIS,
        "calls": "each" if each else f"left out: more than {MOST_CALLS} ({calls})",
        "sessions": {r.session: r.started for r in records if isinstance(r, Session)},
    }
    count = 0
    try:
        with path.open("w", encoding="utf-8") as file:
            head = json.dumps({"otherData": about, "displayTimeUnit": "ns"})
            file.write(f'{head[:-1]}, "traceEvents": [\n')
            for event in events(records, each_call=each):
                file.write(",\n" * bool(count) + json.dumps(event, allow_nan=False))
                count += 1
            file.write("\n]}\n")
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}; name another file") from error
    return count


def events(records: Iterable[Record], *, each_call: bool = True) -> Iterator[Event]:
    """Yield the events of records in their order, one session after the other."""
    sessions: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        sessions[record.session].append(record)
    at_ns, first = 0, 1
    for name, own in sessions.items():
        if any(isinstance(r, Block | Calibration) for r in own):
            drawn = _Session(name, own, at_ns, first, each_call)
            yield from drawn.events
            at_ns, first = drawn.at_ns, drawn.free


class _Session:
    """A session as it is drawn; ``at_ns`` is where the next thing begins."""

    def __init__(
        self, name: str, records: Sequence[Record], at_ns: int, free: int, each_call: bool
    ) -> None:
        self.events: list[Event] = []
        self.at_ns = at_ns
        self.free = free  # the next number of a track; a group has that of its first
        self._name = name
        self._each_call = each_call
        self._tracks: dict[tuple[str, object], tuple[int, int]] = {}
        self._points = {r.point.key(): r.point for r in records if isinstance(r, Subject)}
        self._before(records)
        round_, begin = None, 0
        for record in records:
            if not isinstance(record, Block | Calibration | Attribution):
                continue
            number = None if isinstance(record, Attribution) else record.round
            if number != round_:
                self._end_round(round_, begin)
                round_, begin = number, self.at_ns
            self._draw(record)
        self._end_round(round_, begin)

    def _before(self, records: Sequence[Record]) -> None:
        """Draw set-up, once a series, and loading, once a process; all from one beginning."""
        lengths: dict[tuple[str, str], int] = {}
        for record in records:
            if isinstance(record, Subject) and record.setup_ns is not None:
                reused = any(note.code == "set-up-reused" for note in record.notes)
                if not reused:  # else it was spent in an earlier session
                    lengths[self._series(record.point.key()), "set-up"] = record.setup_ns
            elif isinstance(record, Outcome) and record.load_ns is not None:
                series = self._series(record.point)
                lengths[series, f"load, process {record.process}"] = record.load_ns
        begin = self.at_ns
        for (series, what), length in lengths.items():
            track = self._track(BEFORE, f"{series}: {what}")
            self._slice(track, what, begin, length, {"session": self._name})
            self.at_ns = max(self.at_ns, begin + length)

    def _end_round(self, number: int | None, begin: int) -> None:
        if number is not None:
            track = self._track("rounds", None)
            about = {"session": self._name}
            self._slice(track, f"round {number}", begin, self.at_ns - begin, about)

    def _draw(self, record: Block | Calibration | Attribution) -> None:
        """Draw what was timed next: a block and its calls, or a run to see where the time goes."""
        if isinstance(record, Calibration):
            self._calls(self._track("calibrator", None), "calibrator", record.latency_ns, {}, {})
            return
        point = self._points.get(record.point)
        track = self._track(self._series(record.point), record.process)
        size = f"batch {point.workload.batch}" if point else "block"
        if isinstance(record, Attribution):
            samples: Counter[str] = Counter()
            for stretch in record.samples:
                samples.update(stretch)
            about = {"point": record.point, "method": record.method, "calls": record.calls}
            about |= {"samples": dict(samples)} if samples else {}
            self._next(track, f"where the time goes, {size}", record.wall_ns, about)
            return
        about = {name: getattr(record, name) for name in ("point", "process", "round", "cpu_ns")}
        known = {
            name: times
            for name in ("enqueue_ns", "first_token_ns")
            if len(times := getattr(record, name) or ()) == len(record.latency_ns)
        }
        self._calls(track, size, record.latency_ns, about, known)
        if record.enqueue_ns is not None:  # elsewhere the same calls are both kinds
            about = {"calls": record.pipelined_calls}
            self._next(track, f"pipelined, {size}", record.pipelined_ns, about)

    def _calls(
        self,
        track: tuple[int, int],
        name: str,
        latency_ns: Sequence[int],
        about: Event,
        known: dict[str, Sequence[int]],
    ) -> None:
        """Draw a block, and its calls in it."""
        about = {**about, "calls": len(latency_ns), "median_ns": median(latency_ns)}
        self._slice(track, name, self.at_ns, sum(latency_ns), about)
        for i, length in enumerate(latency_ns):
            if self._each_call:
                more = {key: times[i] for key, times in known.items()}
                self._slice(track, "call", self.at_ns, length, more)
            self.at_ns += length

    def _next(self, track: tuple[int, int], name: str, length: int, about: Event) -> None:
        self._slice(track, name, self.at_ns, length, about)
        self.at_ns += length

    def _slice(
        self, track: tuple[int, int], name: str, begin_ns: int, length_ns: int, about: Event
    ) -> None:
        """Add a complete event; its times are µs with three decimals, as the format has it."""
        place = {"pid": track[0], "tid": track[1], "ts": begin_ns / 1000, "dur": length_ns / 1000}
        self.events.append({"ph": "X", "cat": "frameworktax", "name": name, **place, "args": about})

    def _track(self, group: str, line: object) -> tuple[int, int]:
        """Return the numbers of group and line, and name them by events where they are new."""
        if (group, line) not in self._tracks:
            known = next((one[0] for (name, _), one in self._tracks.items() if name == group), None)
            track = self._tracks[group, line] = self.free if known is None else known, self.free
            self.free += 1
            said = f"process {line}" if isinstance(line, int) else str(line or group)
            names = {"process_name": f"{group} ({self._name})"} if known is None else {}
            for kind, text in (names | {"thread_name": said}).items():
                place = {"pid": track[0], "tid": track[1]}
                self.events.append({"ph": "M", "name": kind, **place, "args": {"name": text}})
        return self._tracks[group, line]

    def _series(self, key: str) -> str:
        """Return a point in words without its batch: what its processes serve."""
        point = self._points.get(key)
        if point is None:
            return f"point {key}"
        return f"{point.runtime}: {point_name(point, runtime=False, batch=False)}"
