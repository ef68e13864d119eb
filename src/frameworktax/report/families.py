"""A run in families: points that belong in one table or picture."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from frameworktax.records import FLOOR, Curve, Estimate, FamilyKey, Measurement, Run, point_name

NUMBER = re.compile(r"(?<![\w.,])(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?![.,]?\w)")
"""A number in a note, thousands parted by commas, and not a part of a name or of a version."""


@dataclass(frozen=True)
class Family:
    """Points of one model that differ in runtime and batch alone.

    What tables ask for several times is computed once: a study has thousands of points.
    """

    title: str
    measurements: tuple[Measurement, ...]
    curves: tuple[Curve, ...]

    @cached_property
    def batches(self) -> list[int]:
        """Every batch size that was measured, ascending."""
        return sorted({m.workload.batch for m in self.measured})

    @cached_property
    def measured(self) -> list[Measurement]:
        """Points with a latency."""
        return [m for m in self.measurements if m.latency_ns is not None]

    @cached_property
    def timed(self) -> list[Measurement]:
        """Points with a latency, or with one block: that has a value, and no interval."""
        return [m for m in self.measurements if m.latency_ns is not None or m.blocks_ns]

    @cached_property
    def runtimes(self) -> list[str]:
        """Runtimes with at least one latency, in the order they were measured."""
        return list(dict.fromkeys(m.runtime for m in self.measured))

    @property
    def reference(self) -> str:
        """The runtime that a summary is about: eager, or the first."""
        return "eager" if "eager" in self.runtimes else self.runtimes[0]

    @cached_property
    def at(self) -> Mapping[tuple[str, int], Measurement]:
        """(Runtime, batch) → its point, where that has a latency."""
        return {(m.runtime, m.workload.batch): m for m in reversed(self.measured)}

    @property
    def smallest(self) -> list[Measurement]:
        """Every runtime's point at the smallest batch that was measured, where it has one."""
        points = ((name, self.batches[0]) for name in self.runtimes)
        return [self.at[point] for point in points if point in self.at]

    def curve(self, runtime: str) -> Curve | None:
        """Return the curve of a runtime."""
        return next((c for c in self.curves if c.runtime == runtime), None)

    @property
    def lost(self) -> list[tuple[str, str, str]]:
        """(runtime and batches, status, reason) of what has no latency, equal reasons together."""
        groups: dict[tuple[str, str, str], list[int]] = defaultdict(list)
        for m in self.measurements:
            if m.latency_ns is None:
                notes = {n.code: n.text for n in m.notes}
                reason = m.reason or notes.get("too-few-blocks", "no reason was recorded")
                groups[m.runtime, m.status, reason].append(m.workload.batch)
        every = sorted({m.workload.batch for m in self.measurements})
        rows = []
        for (runtime, status, reason), batches in groups.items():
            sizes = ", ".join(map(str, batches))
            alone = sum(other == runtime for other, _, _ in groups) == 1
            whole = batches == every or (alone and runtime not in self.runtimes)
            rows.append((runtime if whole else f"{runtime}, batch {sizes}", status, reason))
        return rows

    def notes(self, shown: Callable[[str], bool]) -> list[tuple[str, str, str]]:
        """Return (who, code, text) of the trust notes, those together that differ in numbers alone.

        Where the notes of a code are not ``shown``, only how many there are is of use: they have
        no text.
        """
        equal: dict[tuple[str, str], list[int]] = defaultdict(list)
        measured = self.measured
        for number, m in enumerate(measured):
            for note in m.notes:
                equal[note.code, note.text].append(number)
        groups: dict[tuple[str, str], list[str]] = defaultdict(list)
        for code, text in equal:
            groups[code, NUMBER.sub("0", text)].append(text)
        whole = Counter(m.runtime for m in measured)
        found = []
        for (code, _), texts in groups.items():
            if not shown(code):
                found.append(("", code, ""))
                continue
            numbers = sorted({n for text in texts for n in equal[code, text]})
            points = [measured[n] for n in numbers]
            found.append((_who(points, whole), code, merged(texts)))
        return found


def merged(texts: Sequence[str], numbers: re.Pattern[str] = NUMBER) -> str:
    """Return texts that differ in numbers alone as one, with the range of each number.

    >>> merged(["up to 7 % longer, asked for 3 %", "up to 23 % longer, asked for 3 %"])
    'up to 23 % longer, asked for 3 %'
    >>> merged(["interval ±8.0%", "interval ±40.7%"])
    'interval ±8.0 to 40.7%'
    """
    if len(texts) == 1:
        return texts[0]
    columns = zip(*(numbers.findall(text) for text in texts), strict=True)
    ranges = [(min(column, key=_value), max(column, key=_value)) for column in columns]
    words = numbers.split(texts[0])
    text = words[0]
    for (low, high), after in zip(ranges, words[1:], strict=True):
        if text.endswith("at least "):
            high = low
        is_one = _value(low) == _value(high) or text.endswith(("up to ", "at most ", "below "))
        least = "up to" if text.endswith(" of ") else f"{low} to"  # 2 to 3 of up to 3
        text += (high if is_one else f"{least} {high}") + after
    return text


def _value(number: str) -> float:
    return float(number.replace(",", ""))


def latency_of(m: Measurement) -> Estimate:
    """Return the latency of a point that has one.

    Raises:
        ValueError: it has none; families hand out such points as ``measured`` only.
    """
    if m.latency_ns is None:
        raise ValueError(f"{point_name(m.point)} has no latency")
    return m.latency_ns


def _who(points: Sequence[Measurement], whole: Counter[str]) -> str:
    """Return points in words; ``whole``: runtime → how many of its points have a latency."""
    if len(points) == whole.total():
        return "every point"
    by_runtime: dict[str, list[int]] = defaultdict(list)
    for m in points:
        by_runtime[m.runtime].append(m.workload.batch)
    if all(whole[runtime] == len(batches) for runtime, batches in by_runtime.items()):
        return ", ".join(by_runtime)
    # "eager, onnxruntime 4" would read as if eager were meant at 4 only
    named = ((name, "/".join(map(str, sorted(sizes)))) for name, sizes in by_runtime.items())
    return ", ".join(f"{name} {sizes}" for name, sizes in named)


def families(run: Run) -> list[Family]:
    """Return the run's families in order; the floor is left out unless it is all there is."""
    shown = [m for m in run.measurements if m.runtime != FLOOR] or list(run.measurements)
    groups: dict[FamilyKey, list[Measurement]] = defaultdict(list)
    for m in shown:
        groups[m.family()].append(m)
    owners: dict[tuple[str, str, float, float, float], dict[FamilyKey, None]] = defaultdict(dict)
    for key, group in groups.items():
        for m in group:
            if (ns := m.latency_ns) is not None:
                named = m.workload.model, m.runtime, float(m.workload.batch), ns.value, ns.low
                owners[named][key] = None
    curves: dict[FamilyKey, list[Curve]] = defaultdict(list)
    for c in run.curves:  # one over batch is of the points that have its latencies, all of them
        if c.axis != "batch":
            continue
        named_ns = [(n, e) for n, e in zip(c.values, c.latency_ns, strict=True) if e is not None]
        at = [(c.model, c.runtime, float(n), e.value, e.low) for n, e in named_ns]
        found = [owners.get(one, {}) for one in at]
        for key in found[0] if found else ():
            if all(key in one for one in found):
                curves[key].append(c)
    return [
        Family(
            point_name(group[0].point, runtime=False, batch=False, defaults=True),
            tuple(group),
            tuple(curves[key]),
        )
        for key, group in groups.items()
    ]
