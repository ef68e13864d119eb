"""Everything that needs a GPU, in one command, within ten minutes on one card.

    PYTHONPATH=src python benchmarks/gpu_suite.py [--out results/gpu] [--minutes 10]

Runs, each in a process of its own and within its share of the time: the tests marked ``gpu``,
checks of the method against device times known by other means, and measurements of real models.
A part that fails is a row. Results are files in the output folder; a short table comes last.
Needs torch with CUDA and what frameworktax itself needs; pytest and transformers if they are there.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))

MODELS = {"bert-base": "transformers", "resnet-50": None, "mlp": None}
RUNTIMES = (
    "eager", "inference-mode", "inductor", "inductor-reduce-overhead", "torchscript-frozen",
    "onnxruntime-cuda", "onnxruntime-cuda-graph", "tensorrt", "cuda-graph", "null",
)  # fmt: skip
BATCHES = "1..64"
SHARES = {"tests": 0.25, "method": 0.2}
"""Of the whole time; the models share what is left when their turn comes."""
CHECK_FAILED = 3
"""Exit code of gpu_method.py where it ran to its end and a check failed."""
RESERVE_S = 10
"""For writing results and the table."""

Row = dict[str, Any]


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "gpu")
    parser.add_argument("--minutes", type=float, default=10)
    options = parser.parse_args()
    whole = options.minutes * 60 - RESERVE_S
    end = time.monotonic() + whole
    out: Path = options.out
    out.mkdir(parents=True, exist_ok=True)
    reason = no_gpu()
    if reason is not None:
        print(f"gpu_suite: {reason}", file=sys.stderr)
        return 1
    write(out / "environment.json", environment())
    rows = [run_tests(out, SHARES["tests"] * whole), *run_method(out, SHARES["method"] * whole)]
    missing = missing_runtimes()
    models = [m for m, package in MODELS.items() if package is None or has(package)]
    measured: list[Row] = []
    for i, model in enumerate(models):
        share = (end - time.monotonic()) / (len(models) - i)
        row, cells = run_measure(model, out, share, [r for r in RUNTIMES if r not in missing])
        rows.append(row)
        measured += cells
    left_out = {f"runtime {name}": why for name, why in missing.items()}
    left_out |= {
        f"model {m}": f"{p} is not installed" for m, p in MODELS.items() if p and not has(p)
    }
    write(out / "summary.json", {"checks": rows, "cells": measured, "left_out": left_out})
    show(rows, measured, left_out, out)
    return 0 if all(row["ok"] for row in rows) else 1


# --- parts ------------------------------------------------------------------------------------


def run_tests(out: Path, limit_s: float) -> Row:
    name = "tests marked gpu"
    if not has("pytest"):
        return {"check": name, "ok": False, "result": "pytest is not installed"}
    # The project's own options ask for plug-ins that this interpreter may not have.
    options = ["-o", "addopts=", "-q", "-rfE", "-m", "gpu", "-p", "no:cacheprovider"]
    code, text = run_part(
        [sys.executable, "-m", "pytest", *options, "tests/gpu"], limit_s, out / "tests.log"
    )
    last = next((line for line in reversed(text.splitlines()) if line.strip()), "no output")
    # All skipped is no success: what needs a GPU was not tested.
    return {"check": name, "ok": code == 0 and " passed" in last, "result": last.strip("= ")}


def run_method(out: Path, limit_s: float) -> list[Row]:
    code, text = run_part([sys.executable, "benchmarks/gpu_method.py"], limit_s, out / "method.log")
    rows = [json.loads(line) for line in text.splitlines() if line.startswith('{"check"')]
    if code not in (0, CHECK_FAILED):
        rows.append({"check": "method checks", "ok": False, "result": why(code, text)})
    write(out / "method.json", rows)
    return rows


def run_measure(
    model: str, out: Path, limit_s: float, runtimes: Sequence[str]
) -> tuple[Row, list[Row]]:
    document = out / f"{model}.json"
    document.unlink(missing_ok=True)
    budget_s = max(10, int(0.75 * limit_s))  # compiling may run past the budget
    command = [sys.executable, "-m", "frameworktax", "measure", model, "--device", "cuda:0"]
    command += ["--runtimes", ",".join(runtimes), "--batch", BATCHES]
    command += ["--time-budget", f"{budget_s}s", "--processes", "2", "--quiet"]
    command += ["--store", str(out / f"{model}-store"), "--json", str(document)]
    begin = time.monotonic()
    code, text = run_part(command, limit_s, out / f"{model}.log")
    took = time.monotonic() - begin
    store = out / f"{model}-store"
    if not document.exists() and store.exists():  # stopped: what was measured is in the store
        command = [sys.executable, "-m", "frameworktax", "report", str(store), "--quiet"]
        run_part([*command, "--json", str(document)], 20, out / f"{model}-report.log")
    try:
        cells = json.loads(document.read_text())["measurements"]
    except (OSError, ValueError, KeyError):
        return {"check": f"measure {model}", "ok": False, "result": why(code, text)}, []
    good = sum(cell["status"] == "ok" for cell in cells)
    result = f"{good} of {len(cells)} points in {took:.0f} s, exit {code}"
    return {"check": f"measure {model}", "ok": good > 0, "result": result}, [
        brief(cell) for cell in cells
    ]


def brief(cell: Row) -> Row:
    def value(name: str) -> float | None:
        estimate = cell.get(name)
        return estimate["value"] if estimate else None

    keys = ("latency_ns", "pipelined_ns", "enqueue_ns", "kernel_ns", "span_ns", "tax_share")
    return {
        "model": cell["workload"]["model"],
        "batch": cell["workload"]["batch"],
        "runtime": cell["runtime"],
        "status": cell["status"],
        "reason": cell.get("reason"),
        "launches": cell.get("launches"),
        "regime": cell.get("regime"),
        "notes": [note["code"] for note in cell.get("notes", [])],
        **{key: value(key) for key in keys},
    }


# --- around -----------------------------------------------------------------------------------


def run_part(command: Sequence[str], limit_s: float, log: Path) -> tuple[int, str]:
    """Run a part in a process group of its own; return exit code (124: out of time) and output."""
    paths = [str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in paths if p)}
    if limit_s < 5:
        return 124, "no time left"
    with log.open("w+", encoding="utf-8", errors="replace") as file:
        process = subprocess.Popen(
            command, stdout=file, stderr=file, cwd=ROOT, env=env, start_new_session=True
        )
        try:
            code = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            # Ctrl-C first: measuring keeps and reports what it has.
            code = 124
            for sign in (signal.SIGINT, signal.SIGKILL):
                try:
                    os.killpg(process.pid, sign)
                    process.wait(8)
                except (ProcessLookupError, subprocess.TimeoutExpired):
                    continue
                break
        file.seek(0)
        return code, file.read()


def why(code: int, text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    last = lines[-1].strip()[:150] if lines else "no output"
    return f"out of time; last: {last}" if code == 124 else f"exit {code}: {last}"


def missing_runtimes() -> dict[str, str]:
    from frameworktax import runtimes
    from frameworktax.runtimes.base import Target

    target = Target(device="cuda:0")
    reasons = {name: runtimes.get(name).missing(target) for name in RUNTIMES}
    return {name: reason for name, reason in reasons.items() if reason is not None}


def no_gpu() -> str | None:
    from frameworktax.runtimes.cuda_graph import missing_gpu

    reason = missing_gpu()
    if reason is None and not has("torch"):
        reason = "torch is not installed"
    return reason


def environment() -> Row:
    """Say what this ran on; no names of users, hosts or variables."""
    code = (
        "import json, torch; p = torch.cuda.get_device_properties(0); print(json.dumps({"
        "'torch': torch.__version__, 'cuda': torch.version.cuda, 'cudnn': "
        "torch.backends.cudnn.version(), 'gpu': p.name, 'memory_bytes': p.total_memory, "
        "'multiprocessors': p.multi_processor_count}))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    try:
        gpu = json.loads(found.stdout)
    except ValueError:
        gpu = {"error": why(found.returncode, found.stderr)}
    query = "driver_version,clocks.sm,clocks.max.sm,clocks.mem,power.limit,temperature.gpu"
    smi = ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"]
    try:
        driver = subprocess.run(smi, capture_output=True, text=True, timeout=20).stdout.strip()
    except (OSError, subprocess.TimeoutExpired) as error:
        driver = f"not known: {error}"
    cpu = next(
        (
            line.partition(":")[2].strip()
            for line in read_text("/proc/cpuinfo").splitlines()
            if line.startswith("model name")
        ),
        platform.processor(),
    )
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return {
        "date": now,
        "python": platform.python_version(),
        "system": platform.release(),
        "cpu": cpu,
        "cores": os.cpu_count(),
        "load_1min": os.getloadavg()[0],
        query: driver,
        **gpu,
    }


def show(rows: list[Row], cells: list[Row], left_out: dict[str, str], out: Path) -> None:
    print(f"\n{'check':<46} {'':4} result")
    for row in rows:
        print(f"{row['check']:<46} {'ok' if row['ok'] else 'FAIL':4} {row['result']}")
    if cells:
        print(
            f"\n{'model':<10} {'batch':>5} {'runtime':<18} {'L ms':>8} {'K ms':>8} {'D ms':>8} ",
            end="",
        )
        print(f"{'tax':>5} {'launches':>8}  regime")
    for cell in cells:
        if cell["batch"] not in (1, 8, 64) and cell["status"] == "ok":
            continue  # all of them are in summary.json
        print(f"{cell['model']:<10} {cell['batch']:>5} {cell['runtime']:<18} ", end="")
        if cell["status"] != "ok":
            print(f"{cell['status']}: {cell['reason']}")
            continue
        for key in ("latency_ns", "kernel_ns", "span_ns"):
            print(f"{'–' if cell[key] is None else format(cell[key] / 1e6, '.3f'):>8} ", end="")
        share = "–" if cell["tax_share"] is None else f"{cell['tax_share']:.0%}"
        print(f"{share:>5} {cell['launches'] or '–':>8}  {cell['regime'] or '–'}")
    for what, reason in left_out.items():
        print(f"left out: {what}: {reason}")
    print(f"\nresults in {out}")


def has(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def read_text(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def write(path: Path, data: Any) -> None:
    path.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
