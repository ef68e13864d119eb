"""Turn the archive of ``make gpu`` into docs/results/gpu.md, its stores and its figures.

    python benchmarks/gpu_results.py gpu.tar.gz [--out docs/results]

Nothing is measured: every number comes from the archive. Several archives (one a command, where a
machine allows ten minutes each) are laid over one another, in the order given.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from frameworktax import api
from frameworktax.analysis.whatif.formulas import Case, Refused, WhatIf, answer
from frameworktax.errors import FrameworktaxError, one_line
from frameworktax.models.base import DEFAULT_LENGTH
from frameworktax.records import Measurement, Point, Workload, point_name
from frameworktax.reproduce import paper
from gpu_suite import FULL, ON_DEVICE, PARTS
from question import PAGES, table

Row = dict[str, Any]
KEPT = ("summary.json", "environment.json", "method.json")
PAPER = {
    "eager": "eager",
    "torchscript": "torchscript",
    "cuda-graph": "cuda-graph",
    "onnxruntime": "onnxruntime-cuda",
    "onnxruntime-cuda-graph": "onnxruntime-cuda-graph",
}
"""Lines of the paper's table 3 → runtimes here."""
REPRODUCED = {one.name: one.command for one in (*PARTS, FULL) if "reproduce" in one.command}
"""Parts that measure studies of the paper → how."""


def unpack(archives: Sequence[Path], folder: Path) -> None:
    """Lay archives over one another in a folder; what they measured is put together.

    Of a part that is in several, results and store are the last one's.

    Raises:
        SystemExit: one is missing, or damaged.
    """
    summaries = []
    for path in archives:
        try:
            with tempfile.TemporaryDirectory() as temporary, tarfile.open(path) as packed:
                packed.extractall(temporary, filter="data")
                (inner,) = Path(temporary).iterdir()
                summary = json.loads((inner / "summary.json").read_text(encoding="utf-8"))
                for store in inner.glob("*-store"):  # of a part that is in several the last counts
                    shutil.rmtree(folder / store.name, ignore_errors=True)
                shutil.copytree(inner, folder, dirs_exist_ok=True)
        except (OSError, EOFError, ValueError, zlib.error, tarfile.TarError) as error:
            text = f"gpu_results: {path}: {one_line(error)}; give archives that make gpu wrote"
            raise SystemExit(text) from error
        summaries.append(summary)
    for file in [*folder.glob("*.log"), *folder.glob("*.json")]:  # what stores say again
        if file.name not in KEPT:
            file.unlink()
    (folder / "summary.json").write_text(json.dumps(joined(summaries), indent=1) + "\n")


def joined(summaries: Sequence[Row]) -> Row:
    """Return one summary; of a part that is in several, the last one's."""
    whole: Row = {"checks": [], "cells": [], "left_out": {}, "done": []}
    for one in summaries:
        new = {row["part"] for row in one["checks"]}
        for key in ("checks", "cells"):
            kept = [row for row in whole[key] if row["part"] not in new]
            whole[key] = kept + one[key]
        whole["left_out"] |= one["left_out"]
        whole["done"] += [part for part in one["done"] if part not in whole["done"]]
    measured = {row["part"] for row in whole["checks"]}
    whole["left_out"] = {k: v for k, v in whole["left_out"].items() if k not in measured}
    return whole


def replay_errors(measured: Sequence[Measurement]) -> dict[str, list[float]]:
    """Return, by formula, signed relative errors of predictions in a store against its points.

    Graphs from eager's totals.
    """
    errors: dict[str, list[float]] = defaultdict(list)
    families: dict[Workload, list[Measurement]] = defaultdict(list)
    for m in measured:
        if m.latency_ns is not None and m.runtime in ("eager", "cuda-graph"):
            families[m.workload.without_batch()].append(m)
    for family in families.values():
        by = {(m.runtime, m.workload.batch): m for m in family}
        batches = sorted(batch for runtime, batch in by if runtime == "eager")
        for batch in batches:
            m = by["eager", batch]
            others = [o for o in family if o.workload.batch != batch]
            truth = by.get(("cuda-graph", batch))
            if truth is None or truth.latency_ns is None:
                continue
            try:
                found = answer(Case(m, [m, *others], WhatIf(graphs=True)))
            except Refused:
                continue
            has_other = any(note.code == "other-kernels" for note in truth.notes)
            row = "graphs" + ", where it runs other kernels than eager" * has_other
            errors[row].append(found.latency.value / truth.latency_ns.value - 1)
    return dict(errors)


def page(folder: Path, drawn: Iterable[str]) -> Iterator[str]:
    """Yield the lines of the page.

    Args:
        folder: of what was unpacked.
        drawn: pages and pictures that were drawn beside it, by name from ``docs/results``.
    """
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    where = json.loads((folder / "environment.json").read_text(encoding="utf-8"))
    yield "# On a GPU"
    yield ""
    if where.get("error"):
        yield f"**No device was read: {where['error']}**"
        yield ""
    yield f"Written by `make gpu-results` from what `make gpu` measured on {where.get('date')}."
    yield ""
    named = ("gpu", "torch", "cuda", "hip", "cudnn", "cpu", "cores", "python", "load_1min")
    yield from table(["", ""], [[k, str(where[k])] for k in named if where.get(k) is not None], 2)
    if where.get("doctor"):
        yield from ("", "`frameworktax doctor` there:", "", "```text", *where["doctor"], "```")
    yield from ("", "## Checks of the method", "")
    checks = summary["checks"]
    yield f"{sum(row['ok'] for row in checks)} of {len(checks)} checks passed."
    yield ""
    yield from table(
        ["check", "", "result"],
        [[row["check"], "ok" if row["ok"] else "**failed**", row["result"]] for row in checks],
        3,
    )
    for part in dict.fromkeys(cell["part"] for cell in summary["cells"]):
        yield from ("", f"## {part}", "")
        yield from _points([cell for cell in summary["cells"] if cell["part"] == part])
    yield from _beside_the_paper(summary["cells"])
    yield from _errors(folder)
    if summary["left_out"]:
        yield from ("", "## Left out", "")
        yield from (f"- {part}: {reason}" for part, reason in summary["left_out"].items())
    pages = sorted(drawn)
    if pages:
        yield from ("", "## Pages and figures", "")
        yield from (f"- [{name}]({name})" for name in pages)


def _points(cells: Sequence[Row]) -> list[str]:
    heads = ["runtime", "precision", "input", "batch", "L ms", "H ms", "D ms", "K ms", "tax",
             "SM activity", "warps", "launches", "regime"]  # fmt: skip
    return table(
        heads,
        [
            [
                cell["runtime"],
                cell["workload"]["precision"],
                _input(cell["workload"]),
                str(cell["workload"]["batch"]),
                *(
                    [_ms(cell[key]) for key in ("latency_ns", "enqueue_ns", "span_ns", "kernel_ns")]
                    if cell["latency_ns"]
                    else [cell["reason"] or cell["status"], "–", "–", "–"]
                ),
                *(_share(cell[key]) for key in ("tax_share", "sm_activity", "warp_occupancy")),
                str(cell["launches"] or "–"),
                cell["regime"] or "–",
            ]
            for cell in cells
        ],
        3,
    )


def _input(workload: Row) -> str:
    """Return in words what else a point differs in from others of its model in a part."""
    plain = replace(Workload(**workload), precision="float32")
    point = Point(workload=plain, runtime="", platform="cpu", threads=1)
    return point_name(point, model=False, runtime=False, batch=False) or plain.input


def _beside_the_paper(cells: Sequence[Row]) -> Iterator[str]:
    """Yield BERT-Base at batch 1 beside the paper's table 3; latency is the pipelined kind."""
    lengths = None, DEFAULT_LENGTH  # it is what a part that names none takes
    same = [Workload(model="bert-base", length=n, precision="float16") for n in lengths]
    ours: dict[str, list[Row]] = defaultdict(list)
    for cell in cells:
        if cell["pipelined_ns"] and Workload(**cell["workload"]) in same:
            ours[cell["runtime"]].append(cell)
    theirs = {row.at["runtime"]: row.numbers for row in paper.rows("table-3")}
    yield from ("", "## Beside the paper's table 3", "")
    yield (
        "BERT-Base, batch 1, 128 tokens, float16; latency of the pipelined kind, as the paper's. "
        "What several parts measured is there from each."
    )
    yield ""
    heads = ["", "ours, ms", "SM activity", "warps", "the paper's, ms", "SM activity", "warps"]
    rows = []
    for name, runtime in PAPER.items():
        printed = theirs.get(name, {})
        numbers = [
            printed[k].value if k in printed else None for k in ("sm_active", "warp_occupancy")
        ]
        latency = printed["latency"].value if "latency" in printed else None
        paper_s = [_ms(latency), *map(_share, numbers)]
        if runtime not in ours:
            rows.append([name, "not measured", "–", "–", *paper_s])
        for cell in ours[runtime]:
            part = f" ({cell['part']})" * (len(ours[runtime]) > 1)
            shares = _share(cell["sm_activity"]), _share(cell["warp_occupancy"])
            rows.append([f"{name}{part}", _ms(cell["pipelined_ns"]), *shares, *paper_s])
    yield from table(heads, rows)


def _errors(folder: Path) -> Iterator[str]:
    found: dict[str, list[float]] = defaultdict(list)
    for store in sorted(folder.glob("*-store")):
        try:
            measured = api.read_store(store).run.measurements
        except FrameworktaxError as error:
            yield from ("", f"{store.name} cannot be read: {error}")
            continue
        for name, errors in replay_errors(measured).items():
            found[name] += errors
    if not found:
        return
    yield from ("", "## Errors of the replay formulas", "")
    yield "Predicted from other points over measured, less one."
    yield ""
    yield from table(
        ["formula", "cases", "median", "largest"],
        [
            [
                name,
                str(len(errors)),
                f"{median(map(abs, errors)):.1%}",
                f"{max(map(abs, errors)):.1%}",
            ]
            for name, errors in found.items()
        ],
    )


def _ms(ns: float | None) -> str:
    return "–" if ns is None else f"{ns / 1e6:.4g}"


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"


def draw(folder: Path) -> list[str]:
    """Draw a page of each store and the paper's figures; return what there is, by name."""
    drawn = []
    for store in sorted(folder.glob("*-store")):
        target = folder / f"{store.name.removesuffix('-store')}.md"
        words = ["report", str(store), "-o", str(target)]
        if target.stem in REPRODUCED:
            command = REPRODUCED[target.stem]
            words = [*command[2 : command.index("--time-budget")], "--redraw"]
            words += ["--store", str(store), "--report", str(target)]
        done = subprocess.run(
            [sys.executable, "-m", "frameworktax", *words, "--quiet"],
            capture_output=True,
            text=True,
        )
        if done.returncode == 0:
            drawn.append(f"{folder.name}/{target.name}")
        else:
            print(f"{store.name}: not drawn: {done.stderr.strip()[-200:]}", file=sys.stderr)
    return drawn


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the page; return 1 where no point has kernel time."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("archive", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, default=PAGES)
    options = parser.parse_args(arguments)
    folder = options.out / "gpu"
    with tempfile.TemporaryDirectory() as temporary:
        found = Path(temporary, folder.name)
        found.mkdir()
        unpack(options.archive, found)
        shutil.rmtree(folder, ignore_errors=True)  # what was there stays unless all can be read
        shutil.copytree(found, folder)
    drawn = draw(folder)
    target = options.out / "gpu.md"
    target.write_text("\n".join(page(folder, drawn)) + "\n", encoding="utf-8")
    print(f"written: {target}")
    cells = json.loads((folder / "summary.json").read_text(encoding="utf-8"))["cells"]
    if not any(cell["kernel_ns"] and cell["bill_method"] == ON_DEVICE for cell in cells):
        print("gpu_results: no point has kernel time from a device", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
