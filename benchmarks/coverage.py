"""The coverage matrix: every model in every runtime that runs here, on a CPU.

    nice python benchmarks/coverage.py [--models a,b] [--runtimes c,d] [--minutes 25] [--again]

Models are shrunk: whether an operator is there does not depend on how wide it is. Each cell is a
process of its own with a limit on time and memory, its outputs are compared with eager's. Cells
that were run with the versions installed now are left out, so an interrupted run goes on where it
was; cheap runtimes come first. Written after each model: benchmarks/results/coverage.json and
docs/results/coverage.md.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))

from frameworktax import host, models, runtimes
from frameworktax.host.cache import atomic_path
from frameworktax.models import BUILT_IN, Entry
from frameworktax.records import Workload
from frameworktax.runtimes.base import Target

CELLS = ROOT / "benchmarks" / "results" / "coverage.json"
TABLE = ROOT / "docs" / "results" / "coverage.md"
SCHEMA, VERSION = "frameworktax.coverage", 1
VERDICTS: Mapping[str, str] = {
    "runs": "outputs equal eager's within the tolerance of the precision",
    "differs": "it runs, and its outputs are not eager's",
    "unproven": "it runs; eager's outputs are such that equality proves nothing",
    "cannot": "it fails, for the reason given",
    "timeout": "not done within the limit of processor time",
    "crashed": "its process ended by a signal or without memory",
}
REORDERED = 1e-4
"""Sums in another order differ by less; more is within tolerance, and worth showing."""
GROUPS: tuple[tuple[str, ...], ...] = (
    ("inference-mode", "torchscript", "torchscript-frozen", "nested", "onnxruntime", "openvino"),
    ("onnxruntime@fused",),
    ("tract",),
    ("jax",),
    ("litert",),
    ("executorch",),
    ("inductor", "aot-inductor"),
    ("iree",),
    ("zentorch",),
)
"""Cheap ones first; a group is run over all models before the next begins."""
LIMIT_S = 300
MEMORY_BYTES = 6 * 10**9
LENGTH, AUDIO_SHARE, IMAGE_SIZE = 32, 0.125, 64
KEPT_LENGTH = ("longformer", "bigbird", "reformer", "nystromformer")
"""Shorter, they take another path: full attention instead of their own."""
WIDTH, DEPTH = 0.25, 0.2

Row = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One model in one runtime.

    Attributes:
        verdict: one of ``VERDICTS``.
        reason: why it cannot, or why nothing is proven.
        stopped_by: the operator or feature that stops it, where the error names one.
        difference: largest difference over eager's largest value.
        worst: the element that differs most, both values.
        workload: what was built: only what differs from the model's own size.
        seconds: set-up, binding and three calls.
    """

    model: str
    runtime: str
    verdict: str
    reason: str | None = None
    stopped_by: str | None = None
    difference: float | None = None
    worst: str | None = None
    workload: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """Every cell, and what it was made with."""

    made: str
    cpu: str
    versions: Mapping[str, str]
    limit_s: float
    cells: tuple[Cell, ...]


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--models", help="some, with commas between")
    parser.add_argument("--runtimes", help="some, with commas between")
    parser.add_argument("--minutes", type=float, help="begin nothing after this long")
    parser.add_argument("--again", action="store_true", help="run cells that are known, too")
    options = parser.parse_args()
    wanted = options.models.split(",") if options.models else models.names()
    wanted = [name for name in wanted if name in BUILT_IN]
    groups = [tuple(options.runtimes.split(","))] if options.runtimes else list(GROUPS)
    end = time.monotonic() + 60 * (options.minutes or 10**6)
    versions = all_versions()
    known = earlier(versions, options.again and (set(wanted), set(sum(groups, ()))))
    jobs = list(plan(wanted, groups, known))
    references = tempfile.TemporaryDirectory(prefix="coverage-")
    print(f"coverage: {sum(len(names) for _, names in jobs)} cells to run", flush=True)
    for number, (model, names) in enumerate(jobs):
        if time.monotonic() > end:
            print(
                f"coverage: out of time, {len(jobs) - number} jobs left; run it again", flush=True
            )
            break
        for row in run(model, names, Path(references.name) / model):
            known[model, row["runtime"]] = Cell(model=model, **row)
        said = ", ".join(f"{n} {mark(known[model, n])}" for n in names)
        print(f"[{number + 1}/{len(jobs)}] {model}: {said}", flush=True)
        write(known, versions)
    return 0


def plan(
    wanted: list[str], groups: list[tuple[str, ...]], known: dict[tuple[str, str], Cell]
) -> Iterator[tuple[str, list[str]]]:
    """Yield (model, runtimes) that are to be run."""
    for group in groups:
        here = []
        for name in group:
            reason = runtimes.get(name).missing(Target())
            if reason is None:
                here.append(name)
            else:
                print(f"coverage: {name} left out: {reason}", flush=True)
        for model in wanted:
            names = [
                name
                for name in here
                if (model, name) not in known
                # What takes sentences only has nothing to say about images.
                and ("dense" in runtimes.get(name).inputs or BUILT_IN[model].family == "language")
            ]
            if names:
                yield model, names


def shrunk(model: str, entry: Entry) -> Row:
    """Return what to change of a model's size."""
    fields: Row = {}
    if entry.has_length and entry.default_length and model not in KEPT_LENGTH:
        audio = entry.default_length > 4096
        fields["length"] = int(entry.default_length * AUDIO_SHARE) if audio else LENGTH
    if entry.has_image_size:
        fields["image_size"] = max(IMAGE_SIZE, entry.min_image_size or 1)
    if "width" in entry.factors:
        fields["width"] = WIDTH
    if "depth" in entry.factors:
        fields["depth"] = DEPTH
    return fields


def run(model: str, names: list[str], folder: Path) -> list[Row]:
    """Run one model in some runtimes; return a row for each.

    Eager runs first, once: every other one is compared with its outputs.
    """
    fields = shrunk(model, BUILT_IN[model])
    folder.mkdir(exist_ok=True)
    eager = [] if (folder / "eager.npz").exists() else ["eager"]
    rows = cells(model, fields, eager + names, folder)
    return [row for row in rows if row["runtime"] in names]


def cells(model: str, fields: Row, names: list[str], folder: Path) -> list[Row]:
    global server
    request = {
        "workload": asdict(Workload(model=model, **fields)),
        "runtimes": names,
        "folder": str(folder),
        "limit_s": LIMIT_S,
        "memory_bytes": MEMORY_BYTES,
    }
    server = server or start()
    assert server.stdin and server.stdout
    server.stdin.write(json.dumps(request) + "\n")
    server.stdin.flush()
    rows, end = [], "no output"
    for line in server.stdout:
        found = json.loads(line) if line.startswith('{"') else {}
        if "end" in found:
            end = f"exit {found['end']}"
            break
        if found:
            rows.append(found)
    else:
        server = None  # the next model gets a new one
    answered = {row["runtime"] for row in rows}
    for name in names:
        if name not in answered:
            rows.append({"runtime": name, "verdict": "crashed", "reason": end})
    return [row | {"workload": fields} for row in rows]


server: subprocess.Popen[str] | None = None
"""The process that has what every cell imports, and forks."""


def start() -> subprocess.Popen[str]:
    """Start the process that forks for the cells."""
    script = Path(__file__).with_name("coverage_cells.py")
    return subprocess.Popen(
        [sys.executable, str(script), "torch.export", "transformers"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, **host.worker_environment(1), "PYTHONPATH": str(ROOT / "src")},
        text=True,
        errors="replace",
    )


def all_versions() -> dict[str, str]:
    """Return package → version of all that can change a cell."""
    wanted = runtimes.distributions()
    found = host.libraries(wanted).items()
    return dict(sorted((name, version) for name, version in found if name in wanted))


def earlier(
    versions: dict[str, str], dropped: tuple[set[str], set[str]] | bool
) -> dict[tuple[str, str], Cell]:
    """Return the cells known already; none where torch or transformers is another one now."""
    if not CELLS.exists():
        return {}
    matrix = read(CELLS)
    stale = {n for n, v in matrix.versions.items() if versions.get(n, v) != v}
    if stale & {"torch", "transformers", "torchvision"}:
        return {}
    kept = {}
    for cell in matrix.cells:
        is_known = cell.runtime.partition("@")[0] in runtimes.names()
        changed = is_known and bool(stale & runtimes.get(cell.runtime).distributions())
        again = dropped and cell.model in dropped[0] and cell.runtime in dropped[1]
        if cell.model in BUILT_IN and not changed and not again:
            kept[cell.model, cell.runtime] = cell
    return kept


def write(known: dict[tuple[str, str], Cell], versions: dict[str, str]) -> None:
    """Write the cells and the table."""
    names = [name for group in GROUPS for name in group]
    order = {name: number for number, name in enumerate(names)}
    rank = {name: number for number, name in enumerate(BUILT_IN)}
    sorted_cells = sorted(
        known.values(), key=lambda c: (rank[c.model], order.get(c.runtime, len(order)))
    )
    document = {
        "schema": SCHEMA,
        "version": VERSION,
        "made": time.strftime("%Y-%m-%d", time.gmtime()),
        "cpu": host.cpu_model(),
        "versions": versions,
        "limit_s": LIMIT_S,
        "cells": [],
    }
    lines = [json.dumps(asdict(cell), ensure_ascii=False) for cell in sorted_cells]
    head = json.dumps(document, ensure_ascii=False)[: -len("]}")]
    text = head + "\n" + ",\n".join(lines) + "\n]}\n"
    with atomic_path(CELLS) as partial:
        partial.write_text(text, encoding="utf-8")
    TABLE.parent.mkdir(parents=True, exist_ok=True)
    TABLE.write_text(table(read(CELLS)), encoding="utf-8")


def read(path: Path) -> Matrix:
    """Return the matrix in a file."""
    data = json.loads(path.read_text(encoding="utf-8"))
    assert (data["schema"], data["version"]) == (SCHEMA, VERSION), path
    return Matrix(
        made=data["made"],
        cpu=data["cpu"],
        versions=data["versions"],
        limit_s=data["limit_s"],
        cells=tuple(Cell(**cell) for cell in data["cells"]),
    )


def mark(cell: Cell) -> str:
    """Return a cell in a word or a number: what a table shows."""
    far = cell.difference is not None and cell.difference > REORDERED
    if cell.verdict == "differs" or (cell.verdict == "runs" and far):
        return f"{cell.verdict} {cell.difference:.0e}" if cell.difference else cell.verdict
    return cell.verdict


def why(cell: Cell) -> str:
    """Return why a cell does not simply run, in a line."""
    if cell.verdict == "differs" and cell.worst:
        return cell.worst
    stopped = f"{cell.stopped_by}: " if cell.stopped_by else ""
    return f"{stopped}{cell.reason}" if cell.reason else ""


def grid(cells: Sequence[Cell]) -> tuple[list[str], list[list[str]]]:
    """Return the header and the rows of model × runtime; empty where a cell was not run."""
    columns = list(dict.fromkeys(cell.runtime for cell in cells))
    marks: dict[str, dict[str, str]] = {}
    for cell in cells:
        marks.setdefault(cell.model, {})[cell.runtime] = mark(cell)
    rows = [[model, *(row.get(name, "") for name in columns)] for model, row in marks.items()]
    return ["model", *columns], rows


def tally(cells: Iterable[Cell]) -> dict[str, int]:
    """Return how many cells have each verdict, in the order of ``VERDICTS``."""
    verdicts = [cell.verdict for cell in cells]
    return {name: verdicts.count(name) for name in VERDICTS if name in verdicts}


def table(matrix: Matrix) -> str:
    """Return docs/results/coverage.md."""
    header, rows = grid(matrix.cells)
    counts = ", ".join(f"{n} {name}" for name, n in tally(matrix.cells).items())
    versions = ", ".join(f"{name} {version}" for name, version in matrix.versions.items())
    lines = [
        "# Which model runs in which runtime",
        "",
        f"Made {matrix.made} by `make coverage` on {matrix.cpu}, models shrunk, batch 2, float32, "
        f"one thread, {matrix.limit_s:.0f} s a cell: {counts}.",
        "",
    ]
    lines += [f"- **{name}**: {text}" for name, text in VERDICTS.items()]
    lines += ["", f"Versions: {versions}.", "", row_of(header), row_of(["---"] * len(header))]
    lines += [row_of(row) for row in rows]
    others = [c for c in matrix.cells if c.verdict != "runs"]
    lines += ["", "## What stops it", "", row_of(["model", "runtime", "", "why"])]
    lines += [row_of(["---"] * 4)]
    for cell in others:
        values = [cell.model, cell.runtime, mark(cell), escaped(why(cell))]
        lines.append(row_of(values))
    return "\n".join(lines) + "\n"


def row_of(values: list[str]) -> str:
    return "| " + " | ".join(values) + " |"


def escaped(text: str) -> str:
    """Return a message that a Markdown table shows as it is."""
    for special in "\\|<>*_`[]":
        text = text.replace(special, f"\\{special}")
    return " ".join(text.split())


if __name__ == "__main__":
    sys.exit(main())
