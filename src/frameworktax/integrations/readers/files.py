"""Files of other tools as rows: a table of latencies, optimum-benchmark's and pytest-benchmark's.

A table of latencies from any tool has one row a point, or one a repeat of it.

Of optimum-benchmark ``benchmark.json``, ``benchmark_report.json`` and folders of them; of
pytest-benchmark what ``--benchmark-json`` and ``--benchmark-save`` write. A test's parameters and
its ``extra_info`` say what it measures: keys that are names of ours (``model``, ``runtime``,
``batch`` …) are taken for them. A round is one value, the mean of its iterations.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from frameworktax.errors import UsageError
from frameworktax.records import Environment

MAX_BYTES = 256 * 2**20
"""Tables and reports are small; what is larger is something else."""
HEAD_BYTES = 4096

WORDS: Mapping[str, Any] = tomllib.loads(
    Path(__file__).with_name("words.toml").read_text(encoding="utf-8")
)
"""What other tools call the things that we name."""
WHOLE = ("batch", "length", "image_size", "threads")
NUMBERS = (*WHOLE, "width", "depth")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One point of another tool.

    Attributes:
        model: as the file has it; its labels beyond ours in brackets.
        runtime: likewise.
        precision: in our words where it is one of ours.
        platform: likewise, ``unknown`` where nothing says.
        values: our number columns and foreign axes → value.
        latency_ns: one value, or one a repeat.
        kernel_ns: likewise; empty where the tool has none.
        correlated: the repeats are calls of one process that followed each other.
        summary: value and standard error of the mean, with its count, where a tool keeps no
            repeats.
        facts: fields of a ``Measurement`` that the file states.
    """

    model: str
    runtime: str
    precision: str
    platform: str = "unknown"
    values: Mapping[str, float] = field(default_factory=dict)
    latency_ns: tuple[float, ...] = ()
    kernel_ns: tuple[float, ...] = ()
    correlated: bool = False
    summary: tuple[float, float, int] | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Everything a file says; ``source`` names the tool."""

    source: str
    rows: tuple[Row, ...]
    environment: Environment | None = None


def our_name(column: str) -> str | None:
    """Return our word for a column, or None."""
    plain = re.sub(r"[^a-z0-9]+", "_", column.strip().lower()).strip("_")
    return next((ours for ours, theirs in WORDS["columns"].items() if plain in theirs), None)


def our_precision(text: str) -> str:
    """Return ``float32`` for ``fp32`` and so on; what is not ours stays."""
    plain = text.strip().lower().removeprefix("torch.")
    return str(WORDS["precisions"].get(plain, plain))


def number(value: Any) -> float | None:
    """Return a finite number, or None for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        found = float(value)
    except OverflowError:  # an integer of a thousand digits
        return None
    return found if math.isfinite(found) else None


def text_of(path: Path) -> str:
    """Return a file's text.

    Raises:
        UsageError: it cannot be read, is no text, or too large for a table.
    """
    try:
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise UsageError(f"{path}: {size >> 20} MB is no table; name a smaller file")
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}; name another") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: no text at byte {error.start}; name another file") from error


def json_of(path: Path, marks: tuple[str, ...]) -> Any:
    """Return a JSON file's data if its head holds one of ``marks``, otherwise None.

    The head is looked at first, so that a trace of gigabytes is not read to find out whose it is.

    Raises:
        UsageError: it has the mark and is no JSON.
    """
    if path.suffix.lower() != ".json" or not path.is_file():
        return None
    try:
        with path.open("rb") as file:
            head = file.read(HEAD_BYTES).decode("utf-8", "replace")
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}; name another") from error
    if not any(f'"{mark}"' in head for mark in marks):
        return None
    try:
        return json.loads(text_of(path))
    except json.JSONDecodeError as error:
        raise UsageError(
            f"{path}: no JSON at line {error.lineno}: {error.msg}; was it cut short?"
        ) from error
    except RecursionError as error:
        raise UsageError(f"{path}: brackets nested too deeply; this is no report") from error
    except ValueError as error:
        raise UsageError(f"{path}: a number of thousands of digits; this is no report") from error


def mapping(value: Any) -> Mapping[str, Any]:
    """Return a JSON object, or an empty one for anything else."""
    return value if isinstance(value, dict) else {}


def word(value: Any, default: str = "unknown") -> str:
    """Return a text that is not empty, or the default for anything else."""
    return value if isinstance(value, str) and value else default


# --- a table of latencies -------------------------------------------------------------------------

SUFFIXES = (".csv", ".tsv")
UNITS: Mapping[str, float] = WORDS["units"]
LATENCY, KERNEL, IGNORED, REPEATS = (
    set(WORDS["times"][name]) for name in ("latency", "kernel", "ignored", "repeats")
)
OPERATIONS = {"giga_macs": ("macs", 1e9), "gmacs": ("macs", 1e9), "macs": ("macs", 1.0)}
"""Axes that are facts of a model and no axis."""
SPECIAL = ("unit", "axis", "axis_value", "quantity")
TEXTS = ("model", "runtime", "precision", "platform")
_Times = tuple[list[float], list[float]]


def latencies(path: Path) -> Table | None:
    """Return a table's rows, None where the name is not that of a table.

    Columns, in any order and case: a time with its unit in its name (``latency_ms``, ``ms``,
    ``time (s)``, ``seconds``) or in a column ``unit``; kernel time likewise (``kernel_ms``);
    model, runtime, precision, platform; batch and other axes as columns of their own, or as
    ``axis`` and ``axis_value``; ``quantity`` telling latencies from kernel times in one column.
    Rows equal in all of it are repeats of one point.

    Raises:
        UsageError: no time, no unit, or a cell that is no number; with its line.
    """
    if path.suffix.lower() not in SUFFIXES or path.is_dir():
        return None
    text = text_of(path)
    delimiter = max(",;\t", key=text.split("\n", 1)[0].count)
    table = csv.reader(io.StringIO(text), delimiter=delimiter)
    try:
        header = [cell.strip() for cell in next(table, [])]
        if not any(header):
            raise UsageError(
                f"{path}: empty; a first line names the columns: model,runtime,batch,ms"
            )
        columns = _Columns(path, header, delimiter)
        for number, line in enumerate(table, start=2):
            if any(map(str.strip, line)):
                columns.add(number, line)
    except csv.Error as error:
        raise UsageError(f"{path}: no table: {error}") from error
    return Table(source=f"{path.name} (a table of latencies)", rows=columns.rows())


class _Columns:
    """What each column of a header means, and the points of the lines below it."""

    def __init__(self, path: Path, header: Sequence[str], delimiter: str) -> None:
        self._path = path
        self._header = header
        self._decimal = "." if delimiter == "," else ","
        words = [re.findall(r"[a-z0-9]+", name.lower().replace("µ", "u")) for name in header]
        plain = ["_".join(each) for each in words]
        self._special = {name: plain.index(name) for name in SPECIAL if name in plain}
        ours = {i: known for i, name in enumerate(header) if (known := our_name(name))}
        times: dict[int, float | None] = {i: _unit(each) for i, each in enumerate(words)}
        times = {i: unit for i, unit in times.items() if unit is not None}
        if "unit" in self._special:  # it stands in each row
            bare = (i for i, each in enumerate(words) if i not in ours and set(each) & LATENCY)
            times |= dict.fromkeys(bare)
        self._times = {i: unit for i, unit in times.items() if not set(words[i]) & IGNORED}
        self._kernel = next((i for i in self._times if set(words[i]) & KERNEL), None)
        others = [i for i in self._times if i != self._kernel]
        if not others:
            raise UsageError(
                f"{path}: no column is a latency with its unit (found {', '.join(header)[:120]}); "
                "name one latency_ms, latency_us or seconds"
            )
        if len(others) > 1:
            names = " and ".join(header[i] for i in others)
            raise UsageError(f"{path}: {names} could each be the latency; leave one of them")
        self._latency = others[0]
        self._ours = {i: known for i, known in ours.items() if i not in self._times}
        understood = {*self._times, *self._ours, *self._special.values()}
        self._foreign = [
            i
            for i, each in enumerate(words)
            if i not in understood and plain[i] not in REPEATS and not set(each) & IGNORED
        ]
        axis = [self._special[name] for name in ("axis", "axis_value") if name in self._special]
        self._own = [*self._ours, *axis]
        self._points: dict[tuple[str, ...], tuple[dict[str, str], dict[str, float]]] = {}
        """Cells of columns that we know → what they say: words, and values of axes."""
        self._samples: dict[tuple[tuple[str, ...], tuple[str | None, ...]], _Times] = {}
        """Cells of columns that we know, and of others → latencies and kernel times, ns."""

    def add(self, number: int, line: Sequence[str]) -> None:
        """Take a line below the header; its number is from 1."""
        if len(line) > len(self._header):
            raise UsageError(
                f"{self._path}: line {number} has {len(line)} cells, the header "
                f"{len(self._header)}; is a name with a comma unquoted?"
            )
        cells = [cell.strip() for cell in line] + [""] * (len(self._header) - len(line))
        own = tuple(cells[i] for i in self._own)
        if own not in self._points:
            self._points[own] = self._point(cells, number)
        foreign = tuple(cells[i] if i < len(line) else None for i in self._foreign)
        latency, kernel = self._samples.setdefault((own, foreign), ([], []))
        value = self._time(cells, self._latency, number)
        quantity = self._special.get("quantity")
        if quantity is not None and set(re.findall(r"[a-z]+", cells[quantity].lower())) & KERNEL:
            kernel.append(value)
            return
        latency.append(value)
        if self._kernel is not None and cells[self._kernel]:
            kernel.append(self._time(cells, self._kernel, number))

    def rows(self) -> tuple[Row, ...]:
        """Return one row a point, repeats together, in the order they first appear."""
        varying = [
            (n, self._header[i])
            for n, i in enumerate(self._foreign)
            if len({foreign[n] for _, foreign in self._samples} - {None}) > 1
        ]
        found: dict[tuple[object, ...], Row] = {}
        for (own, foreign), (latency, kernel) in self._samples.items():
            words, values = self._points[own]
            values, labels = dict(values), []
            for n, name in varying:
                cell = foreign[n] or ""
                if (value := self._float(cell)) is not None:
                    values[name] = value
                elif cell:
                    labels.append(cell)
            facts = {}
            for name in [name for name in values if name.lower() in OPERATIONS]:
                fact, scale = OPERATIONS[name.lower()]
                facts[fact] = round(values.pop(name) * scale)
            row = Row(
                model=words["model"] + (f" ({', '.join(labels)})" if labels else ""),
                runtime=words["runtime"],
                precision=our_precision(words["precision"]),
                platform=words["platform"],
                values=values,
                facts=facts,
            )
            key = (*words.values(), *labels, *values.items(), *facts.items())
            before = found.get(key, row)
            found[key] = replace(
                row,
                latency_ns=(*before.latency_ns, *latency),
                kernel_ns=(*before.kernel_ns, *kernel),
            )
        timed = tuple(row for row in found.values() if row.latency_ns)
        if not timed:
            what = "kernel times and no latencies" if found else "a header and no rows"
            raise UsageError(f"{self._path}: {what}")
        return timed

    def _point(self, cells: Sequence[str], line: int) -> tuple[dict[str, str], dict[str, float]]:
        named = {ours: cells[i] for i, ours in self._ours.items()}
        if {"axis", "axis_value"} <= self._special.keys():
            axis = cells[self._special["axis"]]
            if axis:
                named[our_name(axis) or axis] = cells[self._special["axis_value"]]
        words = {"model": self._path.stem, **dict.fromkeys(TEXTS[1:], "unknown")}
        words |= {name: cell for name, cell in named.items() if name in TEXTS and cell}
        values = {
            name: self._number(cell, name, line)
            for name, cell in named.items()
            if name not in TEXTS and cell
        }
        return words, values

    def _time(self, cells: Sequence[str], at: int, line: int) -> float:
        """Return the time in a cell, ns."""
        unit = self._times[at]
        if unit is None:
            word = cells[self._special["unit"]].lower()
            if word not in UNITS:
                raise UsageError(f"{self._path}: line {line}: no unit '{word}'; write ms, us or s")
            unit = UNITS[word]
        value = self._number(cells[at], self._header[at], line)
        if value <= 0:
            said = f"{self._header[at]} is {cells[at]}; a time is above zero"
            raise UsageError(f"{self._path}: line {line}: {said}")
        return value * unit

    def _number(self, cell: str, name: str, line: int) -> float:
        value = self._float(cell)
        if value is None or (name in NUMBERS and value <= 0):
            raise UsageError(f"{self._path}: line {line}: {name} '{cell[:40]}' is no such number")
        if name in WHOLE and value != int(value):
            raise UsageError(f"{self._path}: line {line}: {name} {cell[:40]} is not whole")
        return value

    def _float(self, cell: str) -> float | None:
        """Return a finite number; a comma is the decimal mark where it does not part columns."""
        try:
            value = float(cell.replace(self._decimal, "."))
        except ValueError:
            return None
        return value if math.isfinite(value) else None


def _unit(words: Sequence[str]) -> float | None:
    """Return the unit that a column's name ends with, where it is that of a time of ours."""
    if not words or words[-1] not in UNITS:
        return None
    rest = set(words[:-1])
    return UNITS[words[-1]] if not rest or rest & (LATENCY | KERNEL) else None


# --- optimum-benchmark ----------------------------------------------------------------------------

BOTH, REPORT, CONFIG = "benchmark.json", "benchmark_report.json", "benchmark_config.json"
OPTIMUM_MARKS = ("optimum_benchmark", "load_model", "first_forward", "prefill", "forward", "report")
PYTEST_MARKS = ("machine_info", "benchmarks", "commit_info")
PHASES = ("forward", "call", "generate", "prefill")
"""Parts of a report that are a whole call, the first one found is used."""
MEGABYTE = 1_000_000
"""optimum-benchmark's MB, by which it divides bytes."""
MAX_FILES = 10_000


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
    scale = UNITS.get(str(latency.get("unit")))
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
    kept = tuple(t * UNITS["s"] for t in times if t is not None and t > 0)
    if kept:
        return kept, None
    mean, spread, count = (number(stats.get(k)) for k in ("mean", "stddev", "rounds"))
    if mean is None or spread is None or count is None or mean <= 0 or count < 1:
        raise UsageError(f"{path}: {label[:80]} has no times; save it again with --benchmark-json")
    return (), (mean * UNITS["s"], spread * UNITS["s"] / math.sqrt(count), int(count))


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
