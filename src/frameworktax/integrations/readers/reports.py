"""JSON reports of two tools: optimum-benchmark and pytest-benchmark.

Of optimum-benchmark ``benchmark.json``, ``benchmark_report.json`` and folders of them; of
pytest-benchmark what ``--benchmark-json`` and ``--benchmark-save`` write. A test's parameters and
its ``extra_info`` say what it measures: keys that are names of ours (``model``, ``runtime``,
``batch`` …) are taken for them. A round is one value, the mean of its iterations.
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
    WORDS,
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

BOTH, REPORT, CONFIG = "benchmark.json", "benchmark_report.json", "benchmark_config.json"
OPTIMUM_MARKS = ("optimum_benchmark", "load_model", "first_forward", "prefill", "forward", "report")
PYTEST_MARKS = ("machine_info", "benchmarks", "commit_info")
PHASES = ("forward", "call", "generate", "prefill")
"""Parts of a report that are a whole call, the first one found is used."""
SECOND = 1e9
MEGABYTE = 1_000_000
"""optimum-benchmark's MB, by which it divides bytes."""
MAX_FILES = 10_000


# --- optimum-benchmark ----------------------------------------------------------------------------


def optimum_benchmark(path: Path) -> Table | None:
    """Return the points of a report, or of every report below a folder; None for anything else.

    The latency is that of ``forward`` (``call`` for diffusers, ``generate`` or ``prefill`` for
    text generation); ``prefill`` is the time to the first token. Calls follow each other in one
    process.

    Raises:
        UsageError: a report that is no JSON, or has no latency.
    """
    if path.is_dir():
        files = sorted(path.rglob(BOTH))[:MAX_FILES]
        lone = (f for f in path.rglob(REPORT) if f.with_name(BOTH) not in files)
        files += sorted(lone)[:MAX_FILES]
    else:
        files = [path]
    found = [read for file in files if (read := _report(file)) is not None]
    if not found:
        return None
    return Table(
        source="optimum-benchmark",
        rows=tuple(row for row, _ in found),
        environment=next((where for _, where in found if where is not None), None),
    )


def _report(path: Path) -> tuple[Row, Environment | None] | None:
    data = mapping(json_of(path, OPTIMUM_MARKS))
    report, config = mapping(data.get("report")), mapping(data.get("config"))
    if not report and any("latency" in mapping(data.get(phase)) for phase in PHASES):
        report = data
        beside = path.with_name(CONFIG)
        config = mapping(json_of(beside, ("scenario", "backend", "name")))
    if not report or not any(phase in report for phase in PHASES):
        return None
    phase = next(name for name in PHASES if name in report)
    latency = _latency_ns(report, phase)
    if not latency:
        raise UsageError(f"{path}: no latency of '{phase}'; run it with scenario.latency=true")
    backend, scenario = mapping(config.get("backend")), mapping(config.get("scenario"))
    shapes = mapping(scenario.get("input_shapes"))
    given = {
        "batch": shapes.get("batch_size"),
        "length": shapes.get("sequence_length"),
        "threads": backend.get("intra_op_num_threads"),
    }
    values = {name: value for name, one in given.items() if (value := number(one) or 0) > 0}
    runtime = word(backend.get("name"))
    if runtime == "pytorch":
        runtime = "inductor" if backend.get("torch_compile") is True else "eager"
    facts: dict[str, Any] = {}
    if phase in ("generate", "prefill"):
        facts["phase"] = "generate"
        facts["first_token"] = _latency_ns(report, "prefill")
        facts["per_token"] = _latency_ns(report, "per_token")
    memory = mapping(mapping(report.get(phase)).get("memory"))
    if (peak := number(memory.get("max_ram"))) is not None:
        facts["peak_memory_bytes"] = round(peak * MEGABYTE)
    row = Row(
        model=word(backend.get("model"), path.parent.name or path.stem),
        runtime=runtime,
        precision=our_precision(
            word(backend.get("torch_dtype"), "float32" if backend else "unknown")
        ),
        platform=word(backend.get("device")),
        values=values,
        latency_ns=latency,
        correlated=True,
        facts={name: value for name, value in facts.items() if value},
    )
    return row, _optimum_environment(mapping(config.get("environment")))


def _latency_ns(report: Mapping[str, Any], phase: str) -> tuple[float, ...]:
    latency = mapping(mapping(report.get(phase)).get("latency"))
    scale = WORDS["units"].get(str(latency.get("unit")))
    values = latency.get("values")
    if scale is None or not isinstance(values, list):
        return ()
    times = [number(value) for value in values]
    return tuple(t * scale for t in times if t is not None and t > 0)


def _optimum_environment(found: Mapping[str, Any]) -> Environment | None:
    cores = number(found.get("cpu_count"))
    if cores is None:
        return None
    memory = number(found.get("cpu_ram_mb"))
    gpus = found.get("gpu")
    names = [gpu for gpu in gpus if isinstance(gpu, str)] if isinstance(gpus, list) else []
    versions = {
        name.removesuffix("_version"): value
        for name, value in found.items()
        if name.endswith("_version") and isinstance(value, str)
    }
    return Environment(
        host="unknown",
        system=word(found.get("platform"), word(found.get("system"))),
        python=versions.pop("python", "unknown"),
        cpu=word(found.get("cpu")).strip(),
        cores=int(cores),
        memory_bytes=round(memory * MEGABYTE) if memory is not None else None,
        gpus=tuple({"name": name} for name in names),
        libraries=versions,
    )


# --- pytest-benchmark -----------------------------------------------------------------------------


def pytest_benchmark(path: Path) -> Table | None:
    """Return one row a test, None where the file is not pytest-benchmark's.

    Raises:
        UsageError: it is, and a test has no times.
    """
    data = mapping(json_of(path, PYTEST_MARKS))
    tests = data.get("benchmarks")
    if not isinstance(tests, list) or "machine_info" not in data:
        return None
    if not tests:
        raise UsageError(f"{path}: no benchmark in it; was every test deselected?")
    return Table(
        source="pytest-benchmark",
        rows=tuple(_test(path, i, mapping(test)) for i, test in enumerate(tests)),
        environment=_pytest_environment(mapping(data.get("machine_info"))),
    )


def _test(path: Path, index: int, test: Mapping[str, Any]) -> Row:
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
    kept = tuple(t * SECOND for t in times if t is not None and t > 0)
    if kept:
        return kept, None
    mean, spread, count = (number(stats.get(k)) for k in ("mean", "stddev", "rounds"))
    if mean is None or spread is None or count is None or mean <= 0 or count < 1:
        raise UsageError(f"{path}: {label[:80]} has no times; save it again with --benchmark-json")
    return (), (mean * SECOND, spread * SECOND / math.sqrt(count), int(count))


def _pytest_environment(machine: Mapping[str, Any]) -> Environment | None:
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
