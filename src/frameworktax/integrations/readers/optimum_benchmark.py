"""Reports of optimum-benchmark: ``benchmark.json``, ``benchmark_report.json``, folders of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from frameworktax.errors import UsageError
from frameworktax.integrations.readers.rows import (
    Row,
    Table,
    json_of,
    mapping,
    number,
    our_precision,
    word,
)
from frameworktax.records import Environment

WHOLE, REPORT, CONFIG = "benchmark.json", "benchmark_report.json", "benchmark_config.json"
MARKS = ("optimum_benchmark", "load_model", "first_forward", "prefill", "forward", "report")
PHASES = ("forward", "call", "generate", "prefill")
"""Parts of a report that are a whole call, the first one found is used."""
UNITS = {"s": 1e9, "ms": 1e6}
MEGABYTE = 1_000_000
"""The tool's MB, by which it divides bytes."""
MAX_FILES = 10_000


def rows(path: Path) -> Table | None:
    """Return the points of a report, or of every report below a folder; None for anything else.

    The latency is that of ``forward`` (``call`` for diffusers, ``generate`` or ``prefill`` for
    text generation); ``prefill`` is the time to the first token. Calls follow each other in one
    process.

    Raises:
        UsageError: a report that is no JSON, or has no latency.
    """
    if path.is_dir():
        files = sorted(path.rglob(WHOLE))[:MAX_FILES]
        lone = (f for f in path.rglob(REPORT) if f.with_name(WHOLE) not in files)
        files += sorted(lone)[:MAX_FILES]
    else:
        files = [path]
    found: list[Row] = []
    environment = None
    for file in files:
        read = _file(file)
        if read is None:
            continue
        row, where = read
        found.append(row)
        environment = environment or where
    if not found:
        return None
    return Table(source="optimum-benchmark", rows=tuple(found), environment=environment)


def _file(path: Path) -> tuple[Row, Environment | None] | None:
    data = mapping(json_of(path, MARKS))
    report, config = mapping(data.get("report")), mapping(data.get("config"))
    if not report and any("latency" in mapping(data.get(phase)) for phase in PHASES):
        report = data
        beside = path.with_name(CONFIG)
        config = mapping(json_of(beside, ("scenario", "backend", "name")))
    if not report or not any(phase in report for phase in PHASES):
        return None
    phase = next(name for name in PHASES if name in report)
    latency = _times(report, phase)
    if not latency:
        raise UsageError(f"{path}: no latency of '{phase}'; run it with scenario.latency=true")
    backend, scenario = mapping(config.get("backend")), mapping(config.get("scenario"))
    shapes = mapping(scenario.get("input_shapes"))
    values = {
        ours: value
        for ours, theirs in (("batch", "batch_size"), ("length", "sequence_length"))
        if (value := number(shapes.get(theirs))) is not None and value > 0
    }
    threads = number(backend.get("intra_op_num_threads"))
    if threads is not None and threads > 0:
        values["threads"] = threads
    facts: dict[str, Any] = {}
    if phase in ("generate", "prefill"):
        facts["phase"] = "generate"
        facts["first_token"] = _times(report, "prefill")
        facts["per_token"] = _times(report, "per_token")
    memory = mapping(mapping(report.get(phase)).get("memory"))
    if (peak := number(memory.get("max_ram"))) is not None:
        facts["peak_memory_bytes"] = round(peak * MEGABYTE)
    row = Row(
        model=word(backend.get("model"), path.parent.name or path.stem),
        runtime=_runtime(backend),
        precision=our_precision(
            word(backend.get("torch_dtype"), "float32" if backend else "unknown")
        ),
        platform=word(backend.get("device")),
        values=values,
        latency_ns=latency,
        correlated=True,
        facts={name: value for name, value in facts.items() if value},
    )
    return row, _environment(mapping(config.get("environment")))


def _times(report: Mapping[str, Any], phase: str) -> tuple[float, ...]:
    latency = mapping(mapping(report.get(phase)).get("latency"))
    scale = UNITS.get(str(latency.get("unit")))
    values = latency.get("values")
    if scale is None or not isinstance(values, list):
        return ()
    times = [number(value) for value in values]
    return tuple(t * scale for t in times if t is not None and t > 0)


def _runtime(backend: Mapping[str, Any]) -> str:
    name = word(backend.get("name"))
    if name == "pytorch":
        return "inductor" if backend.get("torch_compile") is True else "eager"
    return name


def _environment(found: Mapping[str, Any]) -> Environment | None:
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
