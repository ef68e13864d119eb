"""How soon is there an answer, and how much of the time is the tool's own?

    python benchmarks/first_answer.py [--quick] [--only PART] [--out FILE]

Times are held against importing torch in the same minute, on a machine that does nothing else.
Parts: an own module in one runtime; the Makefile's demo with three processes for each point, with
an empty cache and again; every runtime that is available here. Beside the times what the parent
process took, and the size of the store. Results go to ``benchmarks/results/first_answer.json``.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from common import ROOT, Bench, BenchmarkError, Row, Watch, options, percent, run_command

OWN_MODULE = """
import torch


def build():
    torch.manual_seed(0)
    layers = [layer for _ in range(6) for layer in (torch.nn.Linear(256, 256), torch.nn.GELU())]
    return torch.nn.Sequential(*layers), (torch.randn(1, 256),)
"""
LIMIT_S = 900
IMPORTS = 3
VALUE = re.compile(r"\d (ns|µs|ms|s) ±|\d (ns|µs|ms|s)\b.*batch|batch.*\d (ns|µs|ms)\b")


def main() -> int:
    """Measure, print and write."""
    asked = options(__doc__.splitlines()[0]).parse_args()
    bench = Bench("first_answer", asked, (60, 240, 400))
    if found := bench.part("own", "an own module, one runtime, one batch", own_module):
        one = found["import_torch_s"]
        for what, factor, rest in (("first_value", 2, 3), ("whole", 4, 6)):
            wanted = factor * one + rest
            value = found[f"{what}_s"]
            bench.check(
                f"own module, {what.replace('_', ' ')}",
                value,
                f"{value:.1f} s",
                f"within {factor} × import of torch ({one:.1f} s) + {rest} s = {wanted:.1f} s",
                value <= wanted,
            )
        check_coverage(bench, "own module", found)
    if found := bench.part("demo", "the demo, cold and warm", demo):
        for name, factor, tax in (("cold", 20, 0.5), ("warm", 10, 0.35)):
            run = found[name]
            wanted = factor * run["import_torch_s"]
            bench.check(
                f"demo {name}, whole command",
                run["whole_s"],
                f"{run['whole_s']:.1f} s",
                f"within {factor} × import of torch = {wanted:.1f} s",
                run["whole_s"] <= wanted,
            )
            check_coverage(bench, f"demo {name}", run)
            bench.row(
                f"demo {name}, parent process and store",
                f"{run['parent_cpu_s']:.1f} s of CPU "
                f"({percent(run['parent_cpu_s'] / run['whole_s'])} of one processor), "
                f"{run['parent_peak_bytes'] / 1e6:.0f} MB; {run['store_bytes'] / 1e3:.0f} kB",
            )
            if run["own_tax"] is not None:
                share = run["own_tax"]["share"]
                bench.check(
                    f"demo {name}, own tax", share, percent(share), f"≤ {tax}", share <= tax
                )
    if found := bench.part("all", "every runtime available here", every_runtime):
        check_coverage(bench, "every runtime on bert-tiny", found)
    return bench.finish()


def check_coverage(bench: Bench, what: str, run: Row) -> None:
    """Hold the points with a value against those asked for that can run here."""
    told = (
        f"{run['measured']} of {run['asked']} points; {'; '.join(run['missing']) or 'none missing'}"
    )
    bench.check(f"{what}, points", run["measured"], told, "all", not run["missing"])


def own_module() -> Row:
    """Return times of one measurement of a user's module to ±5 %."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "own.py").write_text(OWN_MODULE)
        return command(
            ["own.py:build", "--runtimes", "eager", "--batch", "1", "--until", "0.05"],
            Path(folder),
            "run",
        )


def demo() -> Row:
    """Return the demo's times with an empty cache and again."""
    line = next(
        text for text in (ROOT / "Makefile").read_text().split("\n\n") if text.startswith("demo:")
    )
    words = shlex.split(line.partition("frameworktax measure")[2].replace("\\\n", " "))
    arguments = words[: words.index("--store")]
    with tempfile.TemporaryDirectory() as folder:
        return {name: command(arguments, Path(folder), name) for name in ("cold", "warm")}


def every_runtime() -> Row:
    """Return the times of bert-tiny in all runtimes, without a budget given."""
    with tempfile.TemporaryDirectory() as folder:
        return command(["bert-tiny", "--runtimes", "all", "--batch", "1,8"], Path(folder), "run")


def command(arguments: Sequence[str], folder: Path, name: str) -> Row:
    """Run ``frameworktax measure`` and return when its first value stood, and what it measured.

    The cache is in ``folder``, so that a second run there is a warm one.
    """
    document = folder / f"{name}.json"
    words = [sys.executable, "-m", "frameworktax", "measure", *arguments]
    words += ["--store", str(folder / f"store-{name}"), "--json", str(document)]
    env = {**os.environ, "FRAMEWORKTAX_CACHE": str(folder / "cache"), "PYTHONUNBUFFERED": "1"}
    import_s = import_torch_s()
    begin = time.monotonic()
    first_s = None
    lines = []
    parent = Watch()
    with subprocess.Popen(
        words,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        cwd=folder,
        env=env,
    ) as process:
        for line in process.stdout or ():
            lines.append(line.rstrip())
            parent(process.pid)
            if first_s is None and VALUE.search(line):
                first_s = time.monotonic() - begin
            if time.monotonic() - begin > LIMIT_S:
                process.kill()
        parent(process.pid)  # it has ended, and is not waited for yet: its time is whole
    whole_s = time.monotonic() - begin
    if process.returncode != 0 or first_s is None:
        raise BenchmarkError(f"exit {process.returncode}: {lines[-1] if lines else ''}")
    run = json.loads(document.read_text())
    missing = [
        f"{one['runtime']} at batch {one['workload']['batch']}: {one['reason']}"
        for one in run["measurements"]
        if one["latency_ns"] is None and one["status"] != "unavailable"
    ]
    missing += [f"{one['point']['runtime']}: {one['reason']}" for one in run["left_out"]]
    return {
        "command": shlex.join(["frameworktax", "measure", *arguments]),
        "import_torch_s": import_s,
        "first_value_s": first_s,
        "whole_s": whole_s,
        **run["points"],
        "missing": missing,
        "parent_cpu_s": parent.cpu_s,
        "parent_peak_bytes": parent.peak_bytes,
        "store_bytes": sum(f.stat().st_size for f in (folder / f"store-{name}").glob("*.jsonl")),
        "own_tax": run.get("own_tax"),
        "headline": run["headline"],
    }


def import_torch_s() -> float:
    """Return the wall time of a process that imports torch, the quickest of some."""
    program = [sys.executable, "-c", "import torch"]
    return min(run_command(program, LIMIT_S)[1] for _ in range(IMPORTS))


if __name__ == "__main__":
    sys.exit(main())
