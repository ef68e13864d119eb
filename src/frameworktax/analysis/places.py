"""Which layers, operators and source lines of a model the time of a call belongs to.

A run by place says which share of every line of the breakdown a layer has. That share is applied to
the line of the breakdown, which comes from a run that wraps nothing: so the layers add up to the
breakdown, and it to the latency. What no layer was seen at is an entry of its own, with the path
None: the calling code around the model, and lines that samples do not show, as waiting.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from frameworktax.analysis.bill import LEAST
from frameworktax.analysis.estimates import product, share_interval, shifted
from frameworktax.analysis.where import tax_ns
from frameworktax.records import BILL, By, Estimate, Layer, Module, Operator, Places, SourceLine
from frameworktax.stats import ONE_PROCESS

K = TypeVar("K", bound=Hashable)
Counts = Mapping[K, Mapping[str, int]]
"""Place → line of the bill → samples."""
EXACT = 1e-12
METHODS: Mapping[By, str] = {
    "module": "clocked modules",
    "operator": "call stacks of samples",
    "line": "stacks at samples",
}


def layers(
    latency: Estimate, bill: Mapping[str, float], places: Sequence[Places]
) -> tuple[Layer, ...]:
    """Return what each module costs by itself, the remainder last; empty without samples of them.

    The latency is of one call without any profiler, ns; ``bill``, line of the breakdown → ns, adds
    up to it; ``places`` are runs of one point.
    """
    inside = [run for run in places if run.method == "operator"]
    runs = [run for run in places if run.method == "module"] or inside
    calls = sum(run.calls for run in runs)
    called: Counter[str] = Counter()
    known: dict[str, Module] = {}
    for one in (module for run in runs for module in run.modules):
        called[one.path] += one.calls
        known.setdefault(one.path, one)
    stretches = _counted((value, path, line, n) for value, path, _, line, n in _samples(runs))
    if sum(map(_total, stretches)) < LEAST:  # of a run so short no layer is known
        return ()
    method = _method("module", runs)
    parts = _parts(bill, _pooled(stretches))
    operators: dict[str | None, list[tuple[Hashable, str, str, int]]] = defaultdict(list)
    for value, path, operator, bucket, count in _samples(inside):
        operators[path].append((value, operator, bucket, count))
    found: list[Layer] = []
    for path in [*(path for path in known if called[path]), None]:
        own = parts.get(path, {}) if path is not None else _rest(bill, parts)
        time = _estimate(latency, own, path, stretches, method)
        module = known.get(path) if path is not None else None
        found.append(
            Layer(
                path=path,
                class_=module.type if module else "",
                file=module.file if module else None,
                line=module.line if module else None,
                calls=called[path] / calls if path is not None else 0.0,
                time_ns=time,
                bill_ns=own,
                operators=_split(time, own, _counted(operators[path]), _method("operator", inside)),
            )
        )
    return tuple(found)


def source_lines(
    latency: Estimate, bill: Mapping[str, float], places: Sequence[Places]
) -> tuple[SourceLine, ...]:
    """Return what lines of Python cost, most tax first; arguments as for ``layers``."""
    chosen = [run for run in places if run.method == "line"]
    runs = _counted(
        (number, (file, line, function) if file else None, bucket, count)
        for number, run in enumerate(chosen)
        for file, line, function, bucket, count in run.lines
    )
    if sum(map(_total, runs)) < LEAST:
        return ()
    found = [
        SourceLine(
            file=key[0],
            line=key[1],
            function=key[2],
            time_ns=_estimate(latency, own, key, runs, _method("line", chosen)),
            bill_ns=own,
        )
        for key, own in _parts(bill, _pooled(runs)).items()
        if key is not None
    ]
    return tuple(sorted(found, key=tax_ns, reverse=True))


def _method(by: By, runs: Sequence[Places]) -> str:
    """Return the name of a method, and whether one process alone is behind it."""
    return METHODS[by] + ONE_PROCESS * (len({run.process for run in runs}) == 1)


def _counted(samples: Iterable[tuple[Hashable, K, str, int]]) -> list[Counts[K]]:
    """Return samples by place and line of the bill, for each value of an interval that has any."""
    found: dict[Hashable, dict[K, Counter[str]]] = defaultdict(lambda: defaultdict(Counter))
    for value, place, bucket, count in samples:
        found[value][place][bucket if bucket in BILL else "remainder"] += count
    return [counts for counts in found.values() if _total(counts) > 0]


def _total(counts: Counts[K]) -> int:
    return sum(sum(buckets.values()) for buckets in counts.values())


def _samples(runs: Sequence[Places]) -> Iterator[tuple[Hashable, str | None, str, str, int]]:
    """Yield (value, path, operator, line of the bill, samples).

    Samples of one value are pooled: those of a process, or of a stretch of the only process.
    """
    several = len({run.process for run in runs}) > 1
    for run in runs:
        for stretch, ticks in enumerate(run.ticks):
            value = run.process if several else (run.round, stretch)
            for index, operator, bucket, count in ticks:
                path = run.modules[index].path if index >= 0 else None
                yield value, path, operator, bucket, count


def _split(
    time: Estimate, bill: Mapping[str, float], stretches: Sequence[Counts[str]], method: str
) -> tuple[Operator, ...]:
    """Return the operators of a layer, which add up to it, most time first."""
    if not stretches:
        return ()
    parts = _parts(bill, _pooled(stretches))
    rest = _rest(bill, parts)
    parts[""] = {
        line: parts.get("", {}).get(line, 0.0) + rest[line] for line in BILL if line in rest
    }
    found = [
        Operator(name=name, time_ns=_estimate(time, own, name, stretches, method), bill_ns=own)
        for name, own in parts.items()
    ]
    return tuple(sorted(found, key=lambda one: -one.time_ns.value))


def _pooled(stretches: Sequence[Counts[K]]) -> Counts[K]:
    pooled: dict[K, Counter[str]] = defaultdict(Counter)
    for counts in stretches:
        for place, buckets in counts.items():
            pooled[place].update(buckets)
    return pooled


def _parts(bill: Mapping[str, float], counts: Counts[K]) -> dict[K, dict[str, float]]:
    """Return the part of each line of a bill that a place has; None is no place.

    On a device only kernels and idle time were counted: its other lines, which are what kept it
    idle, are split as that.
    """
    totals: Counter[str] = Counter()
    for buckets in counts.values():
        totals.update(buckets)
    by = {line: line for line in BILL}
    if totals["device_gap"]:
        by |= {line: "device_gap" for line in BILL if line != "kernel"}
    return {
        place: {
            line: bill[line] * buckets[by[line]] / totals[by[line]]
            for line in BILL
            if line in bill and buckets.get(by[line]) and totals[by[line]]
        }
        for place, buckets in counts.items()
        if place is not None
    }


def _rest(bill: Mapping[str, float], parts: Mapping[K, Mapping[str, float]]) -> dict[str, float]:
    """Return what is left of a bill; what a sum of floats is off by is nothing."""
    left = {line: ns - sum(p.get(line, 0.0) for p in parts.values()) for line, ns in bill.items()}
    return {line: ns if abs(ns) > EXACT * abs(bill[line]) else 0.0 for line, ns in left.items()}


def _estimate(
    whole: Estimate,
    bill: Mapping[str, float],
    place: K,
    stretches: Sequence[Counts[K]],
    method: str,
) -> Estimate:
    """Return the sum of a bill with the interval of the place's share of all samples."""
    totals = [_total(counts) for counts in stretches]
    parts = [sum(counts.get(place, {}).values()) for counts in stretches]
    shown = product(whole, share_interval(parts, totals, method), method)
    return shifted(shown, sum(bill.values()) - shown.value)
