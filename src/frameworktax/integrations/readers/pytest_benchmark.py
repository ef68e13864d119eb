"""JSON of pytest-benchmark, as ``--benchmark-json`` and ``--benchmark-save`` write it.

A test's parameters and its ``extra_info`` say what it measures: keys that are names of ours
(``model``, ``runtime``, ``batch`` …) are taken for them. A round is one value, the mean of its
iterations.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from frameworktax.errors import UsageError
from frameworktax.integrations.readers.rows import (
    NUMBERS,
    WHOLE,
    Row,
    Table,
    json_of,
    mapping,
    number,
    our_name,
    our_precision,
    word,
)
from frameworktax.records import Environment

MARKS = ("machine_info", "benchmarks", "commit_info")
SECOND_NS = 1e9


def rows(path: Path) -> Table | None:
    """Return one row a test, None where the file is not pytest-benchmark's.

    Raises:
        UsageError: it is, and a test has no times.
    """
    data = mapping(json_of(path, MARKS))
    tests = data.get("benchmarks")
    if not isinstance(tests, list) or "machine_info" not in data:
        return None
    if not tests:
        raise UsageError(f"{path}: no benchmark in it; was every test deselected?")
    machine = mapping(data.get("machine_info"))
    return Table(
        source="pytest-benchmark",
        rows=tuple(_row(path, i, mapping(test)) for i, test in enumerate(tests)),
        environment=_environment(machine),
    )


def _row(path: Path, index: int, test: Mapping[str, Any]) -> Row:
    label = word(test.get("name"), f"benchmark {index}")
    words: dict[str, str] = {}
    values: dict[str, float] = {}
    unnamed = []
    given = {**mapping(test.get("params")), **mapping(test.get("extra_info"))}
    for key, value in given.items():
        ours, amount = our_name(key), number(value)
        if ours in NUMBERS and amount is not None and amount > 0:
            if ours not in WHOLE or amount == int(amount):
                values[ours] = amount
        elif ours is not None and isinstance(value, str):
            words[ours] = value
        elif isinstance(value, str) and key in mapping(test.get("params")):
            unnamed.append(value)
    base = label.split("[", 1)[0]
    foreign = f" ({', '.join(unnamed)})" if unnamed else ""
    latency, summary = _times(path, label, mapping(test.get("stats")))
    # A parameter that is not one of ours still distinguishes two tests.
    parted = set(mapping(test.get("params"))) - {k for k in given if our_name(k)}
    model = words.get("model", base)
    if parted and not unnamed:
        model = words.get("model", label)
    return Row(
        model=f"{model}{foreign}",
        runtime=words.get("runtime", "unknown"),
        precision=our_precision(words.get("precision", "unknown")),
        platform=words.get("platform", "unknown"),
        values=values,
        latency_ns=latency,
        summary=summary,
        correlated=True,
    )


def _times(
    path: Path, label: str, stats: Mapping[str, Any]
) -> tuple[tuple[float, ...], tuple[float, float, int] | None]:
    data = stats.get("data")
    times = [number(value) for value in data] if isinstance(data, list) else []
    kept = tuple(t * SECOND_NS for t in times if t is not None and t > 0)
    if kept:
        return kept, None
    mean, spread, count = (number(stats.get(k)) for k in ("mean", "stddev", "rounds"))
    if mean is None or spread is None or count is None or mean <= 0 or count < 1:
        raise UsageError(f"{path}: {label[:80]} has no times; save it again with --benchmark-json")
    return (), (mean * SECOND_NS, spread * SECOND_NS / math.sqrt(count), int(count))


def _environment(machine: Mapping[str, Any]) -> Environment | None:
    cpu = mapping(machine.get("cpu"))
    cores = number(cpu.get("count"))
    if cores is None:
        return None
    system = f"{word(machine.get('system'))} {word(machine.get('release'), '')}".strip()
    return Environment(
        host=word(machine.get("node")),
        system=system,
        python=word(machine.get("python_version")),
        cpu=word(cpu.get("brand_raw")),
        cores=int(cores),
    )
