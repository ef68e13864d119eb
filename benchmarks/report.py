"""How soon is a report of many measurements open, and how large is it?

    python benchmarks/report.py [--quick] [--out FILE] [--only PART]

A made-up run of 10,000 measurements, as many as a page may have, with the fields that real ones
have, is written as a report and opened in Chromium, each time with an empty profile; the times are
from the start of navigation until what the screen shows is drawn, and until everything is. Results
go to ``benchmarks/results/report.json``.
"""

from __future__ import annotations

import math
import random
import shutil
import sys
import tempfile
import time
from itertools import product
from pathlib import Path
from statistics import median

from common import Bench, BenchmarkError, Row, options
from frameworktax.analysis.curves import free_batch
from frameworktax.records import Curve, Environment, Estimate, Measurement, Parity, Run, Workload
from frameworktax.report.html import write_report

SIZE_TARGET = 5_000_000
OPEN_TARGET_S = 2.0
OPENED = 5
MODELS_OF_10_000 = 40
LENGTHS = (16, 32, 64, 128, 256)
RUNTIMES = ("eager", "inference-mode", "torchscript-frozen", "onnxruntime", "openvino")
BATCHES = (1, 2, 4, 6, 8, 12, 16, 24, 32, 64)
LINES = {"dispatch": 0.4, "python": 0.35, "allocator": 0.1, "system": 0.05, "remainder": 0.1}
SEED = 7
NAMES = ("chromium", "chromium-browser", "google-chrome")
SEEN = """(mark) => new Promise((done) => {
  const look = () => document.body.dataset[mark] === "yes" ? done(performance.now())
    : setTimeout(look, 5);
  look();
})"""


def made(models: int) -> Run:
    """Return a run of ``250 × models`` made-up measurements without raw samples."""
    draw = random.Random(SEED)
    measurements: list[Measurement] = []
    curves: list[Curve] = []
    for number, length, (place, runtime) in product(
        range(models), LENGTHS, list(enumerate(RUNTIMES))
    ):
        line = [_point(draw, number, length, place, runtime, batch) for batch in BATCHES]
        measurements += line
        curves.append(_curve(line))
    where = Environment(host="made-up", system="Linux", python="3.11", cpu="made up", cores=2)
    headline = (
        "model-0 on this machine: eager pays 60 % framework tax at batch 1; these are made up"
    )
    return Run(
        environment=where, headline=headline, measurements=tuple(measurements), curves=tuple(curves)
    )


def _point(
    draw: random.Random, number: int, length: int, place: int, runtime: str, batch: int
) -> Measurement:
    tax = 2e6 / (1 + place) * draw.uniform(0.95, 1.05)
    kernel = 2e4 * (1 + number % 40) * length / 16 * batch * draw.uniform(0.95, 1.05)
    latency, share = tax + kernel, tax / (tax + kernel)
    regime = "framework-bound" if share > 0.5 else "mixed" if share > 0.1 else "compute-bound"
    return Measurement(
        workload=Workload(model=f"model-{number}", batch=batch, length=length),
        runtime=runtime,
        paradigm="eager",
        platform="cpu",
        threads=1,
        status="ok",
        latency_ns=_estimate(draw, latency),
        pipelined_ns=_estimate(draw, latency),
        kernel_ns=_estimate(draw, kernel),
        tax_ns=_estimate(draw, tax),
        tax_share=_estimate(draw, share),
        bill_ns={"kernel": kernel, **{name: tax * part for name, part in LINES.items()}},
        bill_method="program-counter-sampling",
        kernel_detail_ns={"gemm": kernel * 0.7, "vectorised": kernel * 0.3},
        ratio_to_eager=_estimate(draw, 1 / (1 + place)) if place else None,
        flops=round(kernel * 20),
        macs=round(kernel * 9),
        parameters=1_000_000 * (1 + number),
        regime=regime,
        parity=_equal(place),
    )


def _estimate(draw: random.Random, value: float) -> Estimate:
    half = value * draw.uniform(0.005, 0.03)
    return Estimate(value=value, low=value - half, high=value + half, method="made up", n=5)


def _equal(place: int) -> Parity | None:
    if not place:
        return None
    return Parity(
        session="made-up",
        point="",
        reference="eager",
        max_abs_difference=1e-6,
        max_relative_difference=1e-6,
        tolerance=1e-3,
        within_tolerance=True,
    )


def _curve(line: list[Measurement]) -> Curve:
    first = line[0]
    latencies = [m.latency_ns for m in line]
    values = [e.value if e is not None else math.nan for e in latencies]
    free, bound = free_batch(BATCHES, values)
    return Curve(
        model=first.workload.model,
        runtime=first.runtime,
        platform="cpu",
        precision="float32",
        axis="batch",
        values=tuple(map(float, BATCHES)),
        latency_ns=tuple(latencies),
        free_batch=Estimate(value=free, low=free, high=free, method="made up"),
        free_is_lower_bound=bound,
        regimes=tuple(m.regime for m in line),
        elasticity=(None,) * len(BATCHES),
    )


def written(run: Run, path: Path) -> Row:
    """Write the report; return its size and what writing took."""
    begin = time.monotonic()
    write_report(run, path)
    return {
        "measurements": len(run.measurements),
        "bytes": path.stat().st_size,
        "write_s": round(time.monotonic() - begin, 2),
    }


def opened(path: Path, times: int) -> list[tuple[float, float]]:
    """Return seconds from the start of navigation until open, and all drawn, one a fresh browser.

    Raises:
        BenchmarkError: no playwright, no browser, or the page says something on its console.
    """
    try:
        from playwright.sync_api import sync_playwright
    except ImportError as error:
        raise BenchmarkError("playwright is not installed: pip install playwright") from error
    chromium = next(filter(None, map(shutil.which, NAMES)), None)
    if chromium is None:
        raise BenchmarkError("no chromium on the path; apt-get install chromium")
    found: list[tuple[float, float]] = []
    said: list[str] = []
    with sync_playwright() as started:
        for _ in range(times):
            browser = started.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            page = browser.new_page(viewport={"width": 1280, "height": 900})
            page.on("console", lambda message: said.append(message.text))
            page.on("pageerror", lambda error: said.append(str(error)))
            page.goto(path.as_uri(), wait_until="commit")
            seen, whole = (page.evaluate(SEEN, mark) / 1e3 for mark in ("open", "drawn"))
            found.append((seen, whole))
            browser.close()
    if said:
        raise BenchmarkError(f"the page says: {said[0]}")
    return found


def main() -> int:
    asked = options(__doc__.splitlines()[0]).parse_args()
    bench = Bench("report", asked, [30])
    repeats = 1 if bench.quick else OPENED

    def part() -> Row:
        with tempfile.TemporaryDirectory() as name:
            path = Path(name, "report.html")
            found = written(made(MODELS_OF_10_000), path)
            seen, whole = zip(*opened(path, repeats), strict=True)
        return {
            **found,
            "open_s": [round(s, 3) for s in seen],
            "drawn_s": [round(s, 3) for s in whole],
        }

    count = f"{250 * MODELS_OF_10_000:,} measurements"
    found = bench.part("ten", count, part)
    if found is not None:
        size, wait = found["bytes"], median(found["open_s"])
        target = f"under {SIZE_TARGET / 1e6:.0f} MB"
        bench.check(f"size, {count}", size, f"{size / 1e6:.2f} MB", target, size < SIZE_TARGET)
        target = f"under {OPEN_TARGET_S:g} s"
        bench.check(f"open, {count}", wait, f"{wait:.2f} s", target, wait < OPEN_TARGET_S)
        bench.row(f"all drawn, {count}", f"{median(found['drawn_s']):.2f} s")
        bench.row(f"written, {count}", f"{found['write_s']} s")
    return bench.finish()


if __name__ == "__main__":
    sys.exit(main())
