"""What a store holds as a timeline in Chrome's trace format, for ui.perfetto.dev.

Records hold durations and their order, and no clock's reading of when a block began. So the axis
is measured time alone: blocks, and the calls in them, stand end to end in the order in which they
were measured. Set-up and loading went on side by side before that; their lengths stand in a group
of their own, all from its beginning.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
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
    Point,
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
            drawn = _Drawn(name, at_ns, first, each_call)
            yield from drawn.session(own)
            at_ns, first = drawn.at_ns, drawn.free


@dataclass
class _Drawn:
    """A session as it is drawn; ``at_ns`` is where the next thing begins."""

    name: str
    at_ns: int
    free: int
    """The next number of a track; a group has that of its first."""
    each_call: bool
    tracks: dict[tuple[str, object], tuple[int, int]] = field(default_factory=dict)
    points: dict[str, Point] = field(default_factory=dict)
    round: tuple[int, int] | None = None
    """Number and beginning of the round under way."""

    def session(self, records: Sequence[Record]) -> Iterator[Event]:
        self.points = {r.point.key(): r.point for r in records if isinstance(r, Subject)}
        yield from self._before(records)
        for record in records:
            if isinstance(record, Calibration):
                yield from self._in_round(record.round)
                track = yield from self._track("calibrator", None)
                yield from self._calls(track, "calibrator", record.latency_ns, {})
            elif isinstance(record, Block):
                yield from self._in_round(record.round)
                yield from self._block(record)
            elif isinstance(record, Attribution):
                yield from self._in_round(None)
                yield from self._attribution(record)
        yield from self._in_round(None)

    def _before(self, records: Sequence[Record]) -> Iterator[Event]:
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
            track = yield from self._track(BEFORE, f"{series}: {what}")
            yield _slice(track, what, begin, length, {"session": self.name})
            self.at_ns = max(self.at_ns, begin + length)

    def _in_round(self, number: int | None) -> Iterator[Event]:
        """End the round under way where another begins."""
        if self.round is not None and self.round[0] != number:
            last, begin = self.round
            track = yield from self._track("rounds", None)
            yield _slice(track, f"round {last}", begin, self.at_ns - begin, {"session": self.name})
            self.round = None
        if self.round is None and number is not None:
            self.round = number, self.at_ns

    def _block(self, block: Block) -> Iterator[Event]:
        track = yield from self._track(self._series(block.point), block.process)
        about = {
            "point": block.point,
            "process": block.process,
            "round": block.round,
            "cpu_ns": block.cpu_ns,
        }
        more = {"enqueue_ns": block.enqueue_ns, "first_token_ns": block.first_token_ns}
        calls = len(block.latency_ns)
        known = {name: times for name, times in more.items() if times and len(times) == calls}
        yield from self._calls(track, self._size(block.point), block.latency_ns, about, known)
        if block.enqueue_ns is not None:  # elsewhere the same calls are both kinds
            name = f"pipelined, {self._size(block.point)}"
            yield self._next(track, name, block.pipelined_ns, {"calls": block.pipelined_calls})

    def _attribution(self, found: Attribution) -> Iterator[Event]:
        samples: Counter[str] = Counter()
        for stretch in found.samples:
            samples.update(stretch)
        about: dict[str, Any] = {"point": found.point, "method": found.method, "calls": found.calls}
        about |= {"samples": dict(samples)} if samples else {}
        track = yield from self._track(self._series(found.point), found.process)
        name = f"where the time goes, {self._size(found.point)}"
        yield self._next(track, name, found.wall_ns, about)

    def _calls(
        self,
        track: tuple[int, int],
        name: str,
        latency_ns: Sequence[int],
        about: Event,
        more: Mapping[str, Sequence[int]] | None = None,
    ) -> Iterator[Event]:
        """Draw a block, and its calls in it."""
        head = {"calls": len(latency_ns), "median_ns": median(latency_ns)}
        yield _slice(track, name, self.at_ns, sum(latency_ns), about | head)
        for i, length in enumerate(latency_ns):
            if self.each_call:
                known = {key: times[i] for key, times in (more or {}).items()}
                yield _slice(track, "call", self.at_ns, length, known)
            self.at_ns += length

    def _next(self, track: tuple[int, int], name: str, length: int, about: Event) -> Event:
        begin = self.at_ns
        self.at_ns += length
        return _slice(track, name, begin, length, about)

    def _track(self, group: str, line: object) -> Generator[Event, None, tuple[int, int]]:
        """Return the numbers of group and line, and name them by events where they are new."""
        if (group, line) in self.tracks:
            return self.tracks[group, line]
        known = next((one[0] for (name, _), one in self.tracks.items() if name == group), None)
        track = self.free if known is None else known, self.free
        self.free += 1
        self.tracks[group, line] = track
        if known is None:
            yield _name("process_name", track, f"{group} ({self.name})")
        said = f"process {line}" if isinstance(line, int) else line or group
        yield _name("thread_name", track, str(said))
        return track

    def _series(self, key: str) -> str:
        """Return a point in words without its batch: what its processes serve."""
        point = self.points.get(key)
        if point is None:
            return f"point {key}"
        return f"{point.runtime}: {point_name(point, runtime=False, batch=False)}"

    def _size(self, key: str) -> str:
        point = self.points.get(key)
        return f"batch {point.workload.batch}" if point else "block"


def _slice(track: tuple[int, int], name: str, begin_ns: int, length_ns: int, about: Event) -> Event:
    """Return a complete event; its times are µs with three decimals, as the format has it."""
    place = {"pid": track[0], "tid": track[1], "ts": begin_ns / 1000, "dur": length_ns / 1000}
    return {"ph": "X", "cat": "frameworktax", "name": name, **place, "args": about}


def _name(kind: str, track: tuple[int, int], text: str) -> Event:
    return {"ph": "M", "name": kind, "pid": track[0], "tid": track[1], "args": {"name": text}}
