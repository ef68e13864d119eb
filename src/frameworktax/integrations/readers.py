"""Readers of other tools' results: latencies from anywhere, as the same records.

A reader takes what a file says and no more: where it has no kernel times there is no tax, where it
has one value a point there is no interval, and a note says so.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from frameworktax.analysis import curves, regime
from frameworktax.analysis.estimates import (
    difference,
    exactly,
    median_interval,
    one_minus,
    quotient,
)
from frameworktax.errors import UsageError, counted
from frameworktax.records import (
    Curve,
    Environment,
    Estimate,
    Measurement,
    Note,
    Regime,
    Run,
    Workload,
)
from frameworktax.report.rows import CSV_FIELDS
from frameworktax.stats import mean_interval, t_quantile

MAX_BYTES = 256 * 2**20
"""Tables and reports are small; what is larger is something else."""
HEAD_BYTES = 4096
WORDS: Mapping[str, Any] = tomllib.loads(
    Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
)
"""What other tools call the things that we name."""
UNITS: Mapping[str, float] = WORDS["units"]
LATENCY, KERNEL, IGNORED, REPEATS = (
    set(WORDS["times"][name]) for name in ("latency", "kernel", "ignored", "repeats")
)
TEXTS = ("model", "runtime", "precision", "platform")
WHOLE = ("batch", "length", "image_size", "threads")
NUMBERS = (*WHOLE, "width", "depth")
AS_GIVEN = "as given, no interval"
REPEATED = "mean of repeats"
CALLS = "median of calls of one process"
SUMMARY = "mean and standard error as given"
KERNEL_METHOD = "kernel time as given"
NO_INTERVAL = Note("no-interval", "one value a point, or too few: no interval can be given")
NARROW = Note(
    "calls-not-blocks",
    "calls of one process follow each other: this interval is narrower than the truth",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One point of another tool.

    Attributes:
        model, runtime: as the file has it.
        values: our number columns and foreign axes → value.
        latency_ns: one value, or one a repeat.
        kernel_ns: likewise; empty where the tool has none.
        correlated: the repeats are calls of one process that followed each other.
        summary: value and standard error of the mean, with its count, where a tool keeps no
            repeats.
        facts: fields of a ``Measurement`` that the file states.
    """

    model: str
    runtime: str = "unknown"
    precision: str = "unknown"
    platform: str = "unknown"
    phase: str = "forward"
    values: Mapping[str, float] = field(default_factory=dict)
    latency_ns: tuple[float, ...] = ()
    kernel_ns: tuple[float, ...] = ()
    correlated: bool = False
    summary: tuple[float, float, int] | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)


class Found(NamedTuple):
    """Everything a file says; ``source`` names the tool."""

    source: str
    rows: Sequence[Row]
    environment: Environment | None = None


def read(path: str | Path) -> Run | None:
    """Return another tool's file as a document, or None where it is no such file.

    Args:
        path: a CSV of latencies (``.csv``, ``.tsv``), a report of optimum-benchmark
            (``benchmark_report.json``, ``benchmark.json``, or a folder of them), or the JSON of
            pytest-benchmark.

    Raises:
        UsageError: it is such a file, and cannot be read; one line that names the place.
    """
    try:
        for reader in (latencies, optimum_benchmark, pytest_benchmark):
            found = reader(Path(path))
            if found is not None:
                return _document(found)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}; name another") from error
    return None


def _document(table: Found) -> Run:
    """Return a table as a document.

    Kernel times, where the table has them, give tax and regime; without them the regime is None
    and elasticity and the free value are all there is, which a note says.
    """
    measurements = [_measurement(row) for row in table.rows]
    drawn = [
        (members, _curve(axis, [(table.rows[i], measurements[i]) for i in members]))
        for axis, members in _series(table.rows)
    ]
    slopes: dict[int, float | None] = {}
    for members, curve in drawn:
        if curve.axis == "batch":
            slopes |= zip(members, curve.elasticity, strict=True)
    measurements = [
        replace(m, regime=_regime(m, slopes.get(i))) for i, m in enumerate(measurements)
    ]
    latency_only = not any(row.kernel_ns for row in table.rows)
    sentences = [_sentence(curve) for _, curve in drawn]
    text = f"read from {table.source}; taken as it says, not measured here"
    for name, words in (("batch", "batch size"), ("threads", "number of threads")):
        if any(name not in row.values for row in table.rows):
            text += f"; the {words} is taken as 1 where it is not stated"
    notes = [Note("other-tool", text)]
    if latency_only:
        text = "latencies only: no kernel time, so no tax and no regime; slopes are all there is"
        notes.append(Note("latency-only", text))
    notes += [Note("curve-shape", text) for text in sentences]
    return Run(
        environment=table.environment,
        headline=_headline(measurements, sentences, latency_only),
        measurements=tuple(measurements),
        curves=tuple(
            replace(curve, regimes=tuple(measurements[i].regime for i in members))
            for members, curve in drawn
        ),
        notes=tuple(notes),
    )


def _headline(
    measurements: Sequence[Measurement], sentences: Sequence[str], latency_only: bool
) -> str:
    parts = []
    billed = [(m, m.tax_share.value) for m in measurements if m.tax_share is not None]
    for m, share in billed[:1]:
        where = f"{m.workload.model}, {m.runtime}, batch {m.workload.batch}"
        parts.append(f"{where}: {100 * share:.0f} % framework tax")
    if sentences:
        more = f" ({len(sentences)} curves in all)" if len(sentences) > 1 else ""
        parts.append(sentences[0] + more)
    if not parts:
        model = measurements[0].workload.model
        parts.append(f"{counted(len(measurements), 'point')} of {model} and no curve")
    if latency_only:
        parts.append("latencies only, so the tax is unknown")
    return "; ".join(parts)


def _latency(row: Row) -> tuple[Estimate, Note | None]:
    if row.summary is None:
        return _estimate(row.latency_ns, row.correlated)
    mean, error, count = row.summary
    half = t_quantile(0.95, count - 1) * error if count > 1 else 0.0
    found = Estimate(value=mean, low=mean - half, high=mean + half, method=SUMMARY, n=count)
    return found, NARROW if count > 1 else NO_INTERVAL


def _estimate(values: Sequence[float], correlated: bool) -> tuple[Estimate, Note | None]:
    """Return what values are worth, and a note where an interval is missing or too narrow."""
    found = median_interval(values, CALLS) if correlated else mean_interval(values, REPEATED)
    if found is None:
        return replace(exactly(median(values), AS_GIVEN), n=len(values)), NO_INTERVAL
    return found, NARROW if correlated else None


def _measurement(row: Row) -> Measurement:
    """Return a row as a point, without its regime."""
    latency, note = _latency(row)
    notes = [] if note is None else [note]
    foreign = [f"{name} {value:g}" for name, value in row.values.items() if name not in NUMBERS]
    if foreign:
        notes.append(Note("axis-value", ", ".join(foreign)))
    known: dict[str, Any] = {
        name: int(value) if name in WHOLE else value
        for name, value in row.values.items()
        if name in NUMBERS and name != "threads"
    }
    billed: dict[str, Any] = {}
    if row.kernel_ns:
        kernel, _ = _estimate(row.kernel_ns, row.correlated)
        billed = {
            "kernel_ns": kernel,
            "tax_ns": difference(latency, kernel, KERNEL_METHOD),
            "tax_share": one_minus(quotient(kernel, latency, KERNEL_METHOD)),
            "bill_ns": {"kernel": kernel.value, "remainder": latency.value - kernel.value},
            "bill_method": KERNEL_METHOD,
        }
    return Measurement(
        workload=Workload(model=row.model, precision=row.precision, phase=row.phase, **known),
        runtime=row.runtime,
        paradigm="unknown",
        platform=row.platform,
        threads=int(row.values.get("threads", 1)),
        status="ok",
        latency_ns=latency,
        notes=tuple(notes),
        samples_ns=(tuple(round(v) for v in row.latency_ns),) if row.latency_ns else (),
        **billed,
        **row.facts,
    )


def _series(rows: Sequence[Row]) -> Iterator[tuple[str, list[int]]]:
    """Yield each axis with the rows of a curve over it, everything else fixed, by its value."""
    for axis in dict.fromkeys(name for row in rows for name in row.values):
        groups: dict[tuple[object, ...], list[int]] = defaultdict(list)
        for i, row in enumerate(rows):
            if axis in row.values:
                others = tuple((k, v) for k, v in sorted(row.values.items()) if k != axis)
                named = (row.model, row.runtime, row.precision, row.platform, row.phase)
                groups[*named, others].append(i)
        for members in groups.values():
            members.sort(key=lambda i: rows[i].values[axis])
            values = [rows[i].values[axis] for i in members]
            if len(set(values)) == len(values) > 1 and values[0] > 0:
                yield axis, members


def _curve(axis: str, points: Sequence[tuple[Row, Measurement]]) -> Curve:
    """Return a curve without its regimes: they follow from slopes over the batch size."""
    first, values = points[0][0], [row.values[axis] for row, _ in points]
    latency = [m.latency_ns for _, m in points]
    known = [estimate.value for estimate in latency if estimate is not None]
    repeats: list[curves.Blocks] = [
        {(n, i): ns for i, ns in enumerate(row.latency_ns)}
        for n, (row, _) in zip(values, points, strict=True)
    ]
    free, bound = None, False
    if axis != "batch" or values[0] == 1:
        if all(len(given) > 1 for given in repeats):
            free, bound = curves.free_batch_interval(values, repeats)
        else:
            free, bound = curves.free_batch(values, known)
    return Curve(
        model=first.model,
        runtime=first.runtime,
        platform=first.platform,
        precision=first.precision,
        axis=axis,
        values=tuple(values),
        latency_ns=tuple(latency),
        free_batch=free,
        free_is_lower_bound=bound,
        regimes=(),
        elasticity=tuple(regime.elasticities(values, known)),
    )


def _regime(m: Measurement, slope: float | None) -> Regime | None:
    """Return the regime of a point; ``slope`` is that of latency over the batch size."""
    if m.kernel_ns is None or m.tax_share is None or m.latency_ns is None:
        return None
    if m.platform.lower().startswith("cpu"):
        return regime.cpu_regime(m.tax_share)
    return regime.gpu_regime(quotient(m.kernel_ns, m.latency_ns, KERNEL_METHOD), slope)


def _sentence(curve: Curve) -> str:
    """Return a curve in words: up to where it is flat, and from where it is linear."""
    known = [e.value for e in curve.latency_ns if e is not None]
    flat = curves.free_batch(curve.values, known)[0].low
    linear = regime.linear_from(curve.values, curve.elasticity)
    is_flat = flat > curve.values[0]
    shape = f"flat to {curve.axis} {flat:g}" if is_flat else f"not flat over {curve.axis}"
    end = f", linear from {linear:g}" if linear is not None else ""
    return f"{curve.model}, {curve.runtime}, {curve.precision}: {shape}{end}"


# --- files ----------------------------------------------------------------------------------------


def _plain(name: str) -> str:
    return "_".join(re.findall(r"[a-z0-9]+", name.lower().replace("µ", "u")))


def _our_name(name: str) -> str | None:
    """Return our word for a column or parameter, or None."""
    plain = _plain(name)
    return next((ours for ours, theirs in WORDS["columns"].items() if plain in theirs), None)


def _our_precision(text: str) -> str:
    """Return ``float32`` for ``fp32`` and so on; what is not ours stays."""
    plain = text.strip().lower().removeprefix("torch.")
    return str(WORDS["precisions"].get(plain, plain))


def _number(value: Any) -> float | None:
    """Return a number that is finite and above zero, or None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        found = float(value)
    except OverflowError:  # an integer of a thousand digits
        return None
    return found if math.isfinite(found) and found > 0 else None


def _times_ns(values: Any, scale: float) -> tuple[float, ...]:
    """Return the times in what may be a list, in ns; none of an unknown unit, whose scale is 0."""
    known = values if isinstance(values, list) and scale else ()
    return tuple(time * scale for value in known if (time := _number(value)))


def _inside(data: Any, *names: str) -> Mapping[str, Any]:
    """Return the JSON object under a name in each of others, an empty one for anything else."""
    for name in names:
        data = data.get(name) if isinstance(data, dict) else None
    return data if isinstance(data, dict) else {}


def _word(value: Any, default: str = "unknown") -> str:
    """Return a text that is not empty, or the default for anything else."""
    return value if isinstance(value, str) and value else default


def _text(path: Path) -> str:
    size = path.stat().st_size
    if size > MAX_BYTES:
        raise UsageError(f"{path}: {size >> 20} MB is no table; name a smaller file")
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: no text at byte {error.start}; name another file") from error


def _json(path: Path, *marks: str) -> Mapping[str, Any]:
    """Return the object in a JSON file whose head holds one of ``marks``, else an empty one.

    The head is looked at first, so that a trace of gigabytes is not read to find out whose it is.
    """
    if path.suffix.lower() != ".json" or not path.is_file():
        return {}
    with path.open("rb") as file:
        head = file.read(HEAD_BYTES)
    if not any(f'"{mark}"'.encode() in head for mark in marks):
        return {}
    try:
        return _inside(json.loads(_text(path)))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: no JSON: {error}; was it cut short?") from error


# --- a table of latencies -------------------------------------------------------------------------


def latencies(path: Path) -> Found | None:
    """Return a table's rows, None where the name is not that of a table.

    Columns, in any order and case: a time with its unit in its name (``latency_ms``, ``ms``,
    ``time (s)``, ``seconds``); kernel time likewise (``kernel_ms``); model, runtime, precision,
    platform; batch and other axes as columns of their own, or as ``axis`` and ``axis_value``;
    ``quantity``, which says whether a row has a latency or a kernel time. Rows equal in all of it
    are repeats of one point.

    Raises:
        UsageError: no time, no unit, or a cell that is no number; with its line.
    """
    if path.suffix.lower() not in (".csv", ".tsv") or path.is_dir():
        return None
    text = _text(path)
    delimiter = max(",;\t", key=text.split("\n", 1)[0].count)
    table = csv.reader(io.StringIO(text), delimiter=delimiter)
    try:
        rows = _rows(path, table)
    except csv.Error as error:
        raise UsageError(f"{path}: no table: {error}") from error
    return Found(f"{path.name} (a table of latencies)", rows)


def _unit(name: str) -> float | None:
    """Return ns in the unit that a column's name ends with, where it is that of a time of ours."""
    *rest, last = _plain(name).split("_")
    if last not in UNITS or IGNORED & {*rest}:
        return None
    return UNITS[last] if not rest or {*rest} & (LATENCY | KERNEL) else None


def _rows(path: Path, table: Any) -> list[Row]:
    """Return one row a point, repeats together, in the order they first appear."""
    header = [cell.strip() for cell in next(table, [])]
    if not any(header):
        raise UsageError(f"{path}: empty; a first line names the columns: model,runtime,batch,ms")
    plain = [_plain(name) for name in header]
    times = {i: unit for i, name in enumerate(header) if (unit := _unit(name))}
    kernels_at = [i for i in times if KERNEL & {*plain[i].split("_")}]
    latencies_at = [i for i in times if i not in kernels_at]
    if not latencies_at:
        raise UsageError(
            f"{path}: no column is a latency with its unit (found {', '.join(header)[:120]}); "
            "name one latency_ms, latency_us or seconds"
        )
    if {*CSV_FIELDS} <= {*header}:
        raise UsageError(
            f"{path} is an export of this tool, without what its numbers were made of; "
            "explain the store, or the document of --json"
        )
    named_at = enumerate(map(_our_name, plain))
    own_at = {i: name for i, name in named_at if name is not None and i not in times}
    columns = defaultdict(list, {"latency": latencies_at, "kernel time": kernels_at})
    for i, name in own_at.items():
        columns[name].append(i)
    for what, same in columns.items():
        if len(same) > 1:
            names = " and ".join(header[i] for i in same)
            raise UsageError(f"{path}: {names} could each be the {what}; leave one of them")
    (latency_at,), kernel_at = latencies_at, next(iter(kernels_at), None)
    quantity_at = plain.index("quantity") if "quantity" in plain else None
    foreign_at = [
        i
        for i, name in enumerate(plain)
        if i not in {*times, *own_at, quantity_at}
        and name not in REPEATS
        and not IGNORED & {*name.split("_")}
    ]
    points: dict[tuple[str, ...], tuple[tuple[str, ...], tuple[tuple[str, float], ...]]] = {}
    samples: dict[tuple[Any, tuple[str, ...]], tuple[list[float], list[float]]] = {}
    for line in table:
        if not any(map(str.strip, line)):
            continue
        place = f"{path}: line {table.line_num}"
        if len(line) > len(header):
            raise UsageError(
                f"{place} has {len(line)} cells, the header {len(header)}; is a name with a comma "
                "unquoted?"
            )
        cells = [cell.strip() for cell in line] + [""] * (len(header) - len(line))
        own = tuple(cells[i] for i in own_at)
        if own not in points:
            named = dict(zip(own_at.values(), own, strict=True))
            points[own] = _point(named, path.stem, place)
        key = points[own], tuple(cells[i] for i in foreign_at)
        latency, kernel = samples.setdefault(key, ([], []))
        value = _value(cells[latency_at], header[latency_at], place, is_time=True)
        quantity = cells[quantity_at] if quantity_at is not None else ""
        said = {*_plain(quantity).split("_")}
        if said & KERNEL:
            kernel.append(value * times[latency_at])
            continue
        if quantity and not said & LATENCY:
            raise UsageError(
                f"{place}: quantity '{quantity[:40]}' is neither a latency nor a kernel "
                "time; leave such lines out"
            )
        latency.append(value * times[latency_at])
        if kernel_at is not None and cells[kernel_at]:
            value = _value(cells[kernel_at], header[kernel_at], place, is_time=True)
            kernel.append(value * times[kernel_at])
    varying = [
        (n, header[i])
        for n, i in enumerate(foreign_at)
        if len({foreign[n] for _, foreign in samples}) > 1
    ]
    found = []
    for ((texts, known), foreign), (latency, kernel) in samples.items():
        numbers = {name: _finite(foreign[n]) for n, name in varying}
        labels = [foreign[n] for n, name in varying if numbers[name] is None and foreign[n]]
        values = dict(known) | {name: x for name, x in numbers.items() if x is not None}
        words = dict(zip(TEXTS, texts, strict=True))
        words["model"] += f" ({', '.join(labels)})" if labels else ""
        if latency:
            found.append(
                Row(**words, values=values, latency_ns=tuple(latency), kernel_ns=tuple(kernel))
            )
    if not found:
        what = "kernel times and no latencies" if samples else "a header and no rows"
        raise UsageError(f"{path}: {what}")
    return found


def _point(
    named: dict[str, str], model: str, place: str
) -> tuple[tuple[str, ...], tuple[tuple[str, float], ...]]:
    """Return what the cells of our columns say: texts, and values of axes."""
    axis, value = named.pop("axis", ""), named.pop("axis_value", "")
    if axis:
        named[_our_name(axis) or axis] = value
    said = {name: cell for name, cell in named.items() if cell}
    texts = {name: said.pop(name, "unknown" if name != "model" else model) for name in TEXTS}
    texts["precision"] = _our_precision(texts["precision"])
    return tuple(texts.values()), tuple((n, _value(cell, n, place)) for n, cell in said.items())


def _finite(cell: str) -> float | None:
    """Return the number in a cell, None for anything else."""
    try:
        value = float(cell)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _value(cell: str, name: str, place: str, *, is_time: bool = False) -> float:
    """Return the number in a cell; raises UsageError where it cannot be that axis or a time."""
    value = _finite(cell)
    if value is None:
        raise UsageError(f"{place}: {name} '{cell[:40]}' is no such number")
    if value <= 0 and (is_time or name in NUMBERS):
        raise UsageError(f"{place}: {name} '{cell[:40]}' is no such number; it is above zero")
    if name in WHOLE and value != int(value):
        raise UsageError(f"{place}: {name} {cell[:40]} is not whole")
    return value


# --- optimum-benchmark ----------------------------------------------------------------------------

PHASES = ("forward", "call", "generate", "prefill")
"""Parts of a report that are a whole call, the first one found is used."""
MEGABYTE = 1_000_000
"""optimum-benchmark's MB, by which it divides bytes."""


def optimum_benchmark(path: Path) -> Found | None:
    """Return the points of a report, or of every report below a folder; None for anything else.

    The latency is that of ``forward`` (``call`` for diffusers, ``generate`` or ``prefill`` for
    text generation); ``prefill`` is the time to the first token. Calls follow each other in one
    process.

    Raises:
        UsageError: a report that is no JSON, or has no latency.
    """
    files = [path]
    if path.is_dir():
        files = sorted(path.rglob("benchmark.json"))
        whole = {file.parent for file in files}
        files += sorted(f for f in path.rglob("benchmark_report.json") if f.parent not in whole)
    found = [read for file in files if (read := _report(file)) is not None]
    environments = (environment for _, environment in found if environment is not None)
    rows = [row for row, _ in found]
    return Found("optimum-benchmark", rows, next(environments, None)) if rows else None


def _report(path: Path) -> tuple[Row, Environment | None] | None:
    marks = ("optimum_benchmark", "load_model", "first_forward", "prefill", "forward", "report")
    data = _json(path, *marks)
    report, config = _inside(data, "report"), _inside(data, "config")
    if not report and any("latency" in _inside(data, phase) for phase in PHASES):
        beside = path.with_name("benchmark_config.json")
        report, config = data, _json(beside, "scenario", "backend", "name")
    phase = next((name for name in PHASES if name in report), None)
    if phase is None:
        return None
    latency = _latency_ns(report, phase)
    if not latency:
        raise UsageError(f"{path}: no latency of '{phase}'; run it with scenario.latency=true")
    backend, shapes = _inside(config, "backend"), _inside(config, "scenario", "input_shapes")
    given = {
        "batch": shapes.get("batch_size"),
        "length": shapes.get("sequence_length"),
        "threads": backend.get("intra_op_num_threads"),
    }
    runtime = _word(backend.get("name"))
    if runtime == "pytorch":
        runtime = "inductor" if backend.get("torch_compile") is True else "eager"
    facts: dict[str, Any] = {}
    generates = phase in ("generate", "prefill")
    for name, fact in (("prefill", "first_token_ns"), ("per_token", "per_token_ns")):
        if generates and (times := _latency_ns(report, name)):
            facts[fact] = _estimate(times, True)[0]
    peak = _number(_inside(report, phase, "memory").get("max_ram"))
    if peak is not None:
        facts["peak_memory_bytes"] = round(peak * MEGABYTE)
    precision = _word(backend.get("torch_dtype"), "float32" if backend else "unknown")
    row = Row(
        model=_word(backend.get("model"), path.parent.name or path.stem),
        runtime=runtime,
        precision=_our_precision(precision),
        platform=_word(backend.get("device")),
        phase="generate" if generates else "forward",
        values={name: value for name, one in given.items() if (value := _number(one))},
        latency_ns=latency,
        correlated=True,
        facts=facts,
    )
    return row, _optimum_environment(_inside(config, "environment"))


def _latency_ns(report: Mapping[str, Any], phase: str) -> tuple[float, ...]:
    latency = _inside(report, phase, "latency")
    return _times_ns(latency.get("values"), UNITS.get(str(latency.get("unit")), 0.0))


def _optimum_environment(found: Mapping[str, Any]) -> Environment | None:
    cores, memory = _number(found.get("cpu_count")), _number(found.get("cpu_ram_mb"))
    if cores is None:
        return None
    gpus = found.get("gpu")
    versions = {
        name.removesuffix("_version"): value
        for name, value in found.items()
        if name.endswith("_version") and isinstance(value, str)
    }
    return Environment(
        host="unknown",
        system=_word(found.get("platform"), _word(found.get("system"))),
        python=versions.pop("python", "unknown"),
        cpu=_word(found.get("cpu")).strip(),
        cores=int(cores),
        memory_bytes=round(memory * MEGABYTE) if memory is not None else None,
        gpus=tuple({"name": name} for name in gpus if isinstance(name, str))
        if isinstance(gpus, list)
        else (),
        libraries=versions,
    )


# --- pytest-benchmark -----------------------------------------------------------------------------


def pytest_benchmark(path: Path) -> Found | None:
    """Return one row a test, None where the file is not pytest-benchmark's.

    A test's parameters and its ``extra_info`` say what it measures: keys that are names of ours
    (``model``, ``runtime``, ``batch`` …) are taken for them, other parameters are in the model's
    name. A round is one value, the mean of its iterations.

    Raises:
        UsageError: it is, and a test has no times.
    """
    data = _json(path, "machine_info", "benchmarks", "commit_info")
    tests = data.get("benchmarks")
    if not isinstance(tests, list) or "machine_info" not in data:
        return None
    if not tests:
        raise UsageError(f"{path}: no benchmark in it; was every test deselected?")
    machine = _inside(data, "machine_info")
    cpu = _inside(machine, "cpu")
    cores, environment = _number(cpu.get("count")), None
    if cores is not None:
        environment = Environment(
            host=_word(machine.get("node")),
            system=f"{_word(machine.get('system'))} {_word(machine.get('release'), '')}".strip(),
            python=_word(machine.get("python_version")),
            cpu=_word(cpu.get("brand_raw")),
            cores=int(cores),
        )
    return Found("pytest-benchmark", [_test(path, _inside(test)) for test in tests], environment)


def _test(path: Path, test: Mapping[str, Any]) -> Row:
    label = _word(test.get("name"), "a benchmark without a name")
    texts: dict[str, Any] = {"model": label.split("[", 1)[0]}
    values: dict[str, float] = {}
    others = []
    parameters = _inside(test, "params")
    for key, value in {**parameters, **_inside(test, "extra_info")}.items():
        ours, amount = _our_name(key), _number(value)
        if ours in TEXTS and isinstance(value, str):
            texts[ours] = value
        elif ours in NUMBERS and amount and (ours not in WHOLE or amount == int(amount)):
            values[ours] = amount
        elif key in parameters:  # it still distinguishes two tests
            others.append(str(value)[:40])
    if others:
        texts["model"] += f" ({', '.join(others)})"
    texts["precision"] = _our_precision(texts.get("precision", "unknown"))
    stats = _inside(test, "stats")
    times, summary = _times_ns(stats.get("data"), UNITS["s"]), None
    if not times:
        mean, count = _number(stats.get("mean")), _number(stats.get("rounds"))
        spread = 0.0 if stats.get("stddev") == 0 else _number(stats.get("stddev"))
        if not (mean and count and count >= 1 and spread is not None):
            raise UsageError(
                f"{path}: {label[:80]} has no times; save it again with --benchmark-json"
            )
        scale = UNITS["s"]
        summary = (mean * scale, spread * scale / math.sqrt(count), int(count))
    return Row(**texts, values=values, latency_ns=times, summary=summary, correlated=True)
