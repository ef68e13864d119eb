"""Everything that needs a GPU, in one command, on a machine that may have no network.

    python benchmarks/gpu_suite.py [--minutes 10] [--parts method,bert-base] [--out results/gpu]

The parts come in the order of what they say: checks of the method, real models, the paper's
figure 5 and table 3, subjects of the replay formulas, compilers, tests; and, only where it is
named, ``full``: the paper's figures and table 3. Each is a process of its own with a share of the
time; one that fails is a row, and what is left of its time goes to the next. After each part
``summary.json`` and an archive of at most 15 MB beside the folder are written anew; ``make
gpu-results ARCHIVE=…`` draws pages from it. A part that was done in the same folder is not run
again, unless ``--parts`` names it.

Needs a Python with torch for CUDA. Wheels of what else is needed, gathered by ``make gpu-wheels``,
are installed into the output folder, and only those that are missing or older there. ``--dry-run``
goes through the same steps on a CPU with one tiny model; it fails, because it reads no kernel time.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import time
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if sys.version_info < (3, 11):  # noqa: UP036 - a machine's own python3 may be older
    sys.exit("gpu_suite: needs Python 3.11 or newer; name one that has torch: make gpu PYTHON=…")

ROOT = Path(__file__).resolve().parents[1]
WHEELS = ROOT / "gpu-wheels"
THIS_PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
NOT_GATHERED = ("torch", "numpy", "scipy")
NEEDED = (*NOT_GATHERED, "msgspec", "pydantic", "typer", "rich", "jinja2")
OPTIONAL = ("transformers", "pytest", "pynvml", "triton", "onnxruntime")
CHECK_FAILED = 3
"""Exit code of gpu_method.py where it ran to its end and a check failed."""
RESERVE_S = 50.0
"""For ending a part that is out of time, reading its store, and the archive."""
STRETCH = 2.0
"""A part gets at most this many times what it needs."""
ARCHIVE_BYTES = 15_000_000
LOG_BYTES = 200_000
"""Kept of the end of each log."""
ON_DEVICE = "device-profile"
"""How kernel time must have been found; on a CPU it is sampled."""
NO_KERNEL_TIME = "no kernel time was read"

Row = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One step of the suite.

    Attributes:
        name: of its row and its files.
        command: what the interpreter is given; ``{out}``, ``{budget}`` and ``{device}`` are filled.
        seconds: it needs in all, on an H100.
        least_s: below which it is not begun.
        setup_s: of ``seconds``, before measuring begins; not in ``--time-budget``.
        needs: modules that must be importable.
        measures: whether it writes a store and a document.
    """

    name: str
    command: tuple[str, ...]
    seconds: float
    least_s: float
    setup_s: float = 0.0
    needs: tuple[str, ...] = ()
    measures: bool = False


def measuring(name: str, model: str, seconds: float, *options: str, setup_s: float = 60) -> Part:
    """Return a part that measures one model."""
    command = ("-m", "frameworktax", "measure", model, "--device", "{device}", *options)
    command += ("--time-budget", "{budget}s", "--quiet", "--store", "{out}/" + f"{name}-store")
    return Part(
        name=name,
        command=(*command, "--json", "{out}/" + f"{name}.json"),
        seconds=seconds,
        least_s=setup_s + 20,
        setup_s=setup_s,
        needs=("transformers",) if model.startswith("bert") else (),
        measures=True,
    )


def reproducing(name: str, *studies: str) -> tuple[str, ...]:
    """Return the command of a part that measures studies of the paper at its sizes."""
    return (
        *("-m", "frameworktax", "reproduce", *studies, "--scale", "full"),
        *("--time-budget", "{budget}s", "--quiet", "--store", "{out}/" + f"{name}-store"),
        *("--json", "{out}/" + f"{name}.json"),
    )


TELLING = (
    *("--runtimes", "eager,torchscript,cuda-graph,null", "--batch", "1,8,64"),
    *("--precision", "float32,float16", "--processes", "3"),
)
REPLAYED = (
    *("--runtimes", "eager,torchscript,cuda-graph", "--batch", "1,2,4,8,16", "--processes", "3"),
)
COMPILED = (
    *("--runtimes", "eager,inductor,inductor-reduce-overhead", "--batch", "1,8"),
    *("--processes", "1"),
)
PARTS = (
    Part(name="method", command=("benchmarks/gpu_method.py",), seconds=90, least_s=30),
    measuring("bert-base", "bert-base", 170, *TELLING),
    measuring("resnet-50", "resnet-50", 170, *TELLING, setup_s=25),
    Part(
        name="paper",
        command=reproducing("paper", "figure-5", "table-3"),
        seconds=140,
        least_s=60,
        setup_s=50,
        needs=("transformers",),
        measures=True,
    ),
    measuring("bert-mini", "bert-mini", 80, *REPLAYED, setup_s=40),
    measuring("resnet-18", "resnet-18", 65, *REPLAYED, setup_s=25),
    measuring("inductor", "bert-base", 120, *COMPILED, setup_s=60),
    Part(
        name="tests",
        # The project's own options and the fixtures of other tests ask for packages that this
        # interpreter may not have. Compiling ahead of time takes a minute and is left out.
        command=(
            *(
                "-m",
                "pytest",
                "-o",
                "addopts=",
                "-q",
                "-rfE",
                "-m",
                "gpu",
                "-k",
                "not ahead_of_time",
            ),
            *("-p", "no:cacheprovider", "--confcutdir", "tests/gpu", "tests/gpu"),
        ),
        seconds=180,
        least_s=60,
        needs=("pytest",),
    ),
)
FIGURES = tuple(f"figure-{n}" for n in (1, 3, 4, 5, 6, 7, 8, 9))
FULL = Part(
    name="full",
    command=reproducing("full", *FIGURES, "table-3"),
    seconds=3500,
    least_s=300,
    setup_s=60,
    needs=("transformers",),
    measures=True,
)
"""Run where it is named: it takes an hour, and goes on from its store where it ended."""
DRY = (
    measuring(
        "mlp", "mlp", 30, "--runtimes", "eager,null", "--batch", "1", "--processes", "1",
        "--width", "0.1", "--twin", "none", setup_s=5,
    ),
)  # fmt: skip


# --- the plan -----------------------------------------------------------------------------------


def plan(parts: Sequence[Part], total_s: float) -> dict[str, float]:
    """Return part → seconds, in order: what says most first, what does not fit is absent.

    A part gets what it needs, the last that fits at least ``least_s``; time beyond what all of them
    need is shared among those that measure, up to ``STRETCH`` times their need.
    """
    given: dict[str, float] = {}
    left = total_s
    for part in parts:
        if left >= part.least_s:
            given[part.name] = min(part.seconds, left)
            left -= given[part.name]
    growing = [part for part in parts if part.measures and given.get(part.name) == part.seconds]
    needed = sum(part.seconds for part in growing)
    for part in growing:
        given[part.name] += min((STRETCH - 1) * part.seconds, left * part.seconds / needed)
    return given


def filled(part: Part, limit_s: float, out: Path, device: str) -> list[str]:
    """Return the command of a part; its time budget ends before the limit does."""
    # The rest is for a slower set-up and for what a session writes at its end.
    budget_s = max(5, int(0.85 * (limit_s - part.setup_s) - 5))
    values = {"out": str(out), "budget": str(budget_s), "device": device}
    return [word.format(**values) for word in part.command]


# --- the suite ----------------------------------------------------------------------------------

Execute = Callable[[Sequence[str], float, Path], tuple[int, str]]
"""Command after the interpreter, limit in seconds, log → exit code (124: out of time), output."""


class Suite:
    """Runs parts one after the other; everything it knows is in ``summary.json``.

    Args:
        out: folder of results.
        execute: runs a command.
        clock: seconds.
        device: as ``--device`` takes it.
    """

    def __init__(
        self, out: Path, execute: Execute, clock: Callable[[], float], device: str = "cuda:0"
    ) -> None:
        self.out, self.execute, self.clock, self.device = out, execute, clock, device
        self.file = out / "summary.json"
        self.summary: Row = {"checks": [], "cells": [], "left_out": {}, "done": []}
        if self.file.exists():
            self.summary = json.loads(self.file.read_text(encoding="utf-8"))

    @property
    def ok(self) -> bool:
        """Whether every check passed, and there was one."""
        return bool(self.summary["checks"]) and all(row["ok"] for row in self.summary["checks"])

    def run(self, parts: Sequence[Part], total_s: float, *, again: bool = False) -> None:
        """Run what is not done, in order, within the time; write after each."""
        end = self.clock() + total_s
        left = [part for part in parts if again or part.name not in self.summary["done"]]
        while left:
            part, left = left[0], left[1:]
            missing = [name for name in part.needs if not has(name)]
            if missing:
                self._leave_out(part, f"{', '.join(missing)} is not installed")
                continue
            limit_s = plan([part, *left], end - self.clock()).get(part.name)
            if limit_s is None:
                self._leave_out(part, "no time left; run the suite again, or give more --minutes")
                continue
            self._run(part, limit_s)

    def _run(self, part: Part, limit_s: float) -> None:
        begin = self.clock()
        print(f"{part.name}: {limit_s:.0f} s", flush=True)
        command = filled(part, limit_s, self.out, self.device)
        (self.out / f"{part.name}.json").unlink(missing_ok=True)  # of an earlier run
        code, text = self.execute(command, limit_s, self.out / f"{part.name}.log")
        took = self.clock() - begin
        cells: list[Row] = []
        try:
            if part.measures:
                row, cells = self._measured(part, code, text, took)
                rows = [row]
            elif part.name == "method":
                rows = rows_in(text, "check")
                if code not in (0, CHECK_FAILED) or not rows:
                    rows.append({"check": "method checks", "ok": False, "result": why(code, text)})
                write(self.out / "method.json", rows)
            else:
                rows = [tested(code, text)]
        except Exception as error:  # noqa: BLE001 - the other parts are worth as much without it
            said = f"its results cannot be read: {type(error).__name__}: {error}"
            rows = [{"check": part.name, "ok": False, "result": said}]
        for row in rows:
            row["part"] = part.name
        self._forget(part)
        self.summary["checks"] += rows
        self.summary["cells"] += [{**cell, "part": part.name} for cell in cells]
        if code != 124:
            self.summary["done"].append(part.name)
        self.save()

    def _measured(self, part: Part, code: int, text: str, took: float) -> tuple[Row, list[Row]]:
        document, store = self.out / f"{part.name}.json", self.out / f"{part.name}-store"
        if code != 0 and store.is_dir():  # stopped: what was measured is in the store
            command = ["-m", "frameworktax", "report", str(store), "--quiet"]
            self.execute([*command, "--json", str(document)], 30, self.out / "report.log")
        try:
            points = json.loads(document.read_text(encoding="utf-8"))["measurements"]
        except (OSError, ValueError, KeyError):
            points = []
        return judged(f"measure {part.name}", points, took, why(code, text) if code else "")

    def _leave_out(self, part: Part, reason: str) -> None:
        self.summary["left_out"][part.name] = reason
        self.save()

    def _forget(self, part: Part) -> None:
        """Drop what an earlier run of the part left in the summary."""
        for key in ("checks", "cells"):
            self.summary[key] = [row for row in self.summary[key] if row["part"] != part.name]
        self.summary["left_out"].pop(part.name, None)
        if part.name in self.summary["done"]:
            self.summary["done"].remove(part.name)

    def save(self) -> None:
        """Write the summary, and the archive beside the folder."""
        write(self.file, self.summary)
        dropped = archive(self.out, self.out.with_name(f"{self.out.name}.tar.gz"))
        if dropped:
            print(f"not in the archive, which would be too large: {', '.join(dropped)}")


def judged(
    check: str, points: Sequence[Row], took: float, trouble: str = ""
) -> tuple[Row, list[Row]]:
    """Return the row of a measuring part, and its points in brief.

    It is never ok without kernel time: each point with a latency must have one, from the device.
    A runtime may be absent (``unavailable``); one that is there must not fail.
    """
    asked = [p for p in points if p["runtime"] != "null"]
    timed = [p for p in asked if p["status"] == "ok" and p.get("latency_ns")]
    seen = [p for p in timed if p.get("kernel_ns") and p.get("bill_method") == ON_DEVICE]
    broken = Counter(p["status"] for p in asked if p["status"] not in ("ok", "unavailable"))
    said = f"{len(timed)} of {len(asked)} points in {took:.0f} s"
    said += f", kernel time of {len(seen)}" if seen else f"; {NO_KERNEL_TIME}"
    said += "".join(f", {count} {status}" for status, count in sorted(broken.items()))
    if trouble:
        said += f"; {trouble}"
    ok = bool(timed) and len(seen) == len(timed) and not broken and not trouble
    row = {"check": check, "ok": ok, "result": said}
    return row, [brief(point) for point in points]


def brief(cell: Row) -> Row:
    """Return what the tables show of a point."""

    def value(name: str) -> float | None:
        estimate = cell.get(name)
        return estimate["value"] if estimate else None

    keys = (
        *("latency_ns", "pipelined_ns", "enqueue_ns", "kernel_ns", "span_ns", "tax_share"),
        *("sm_activity", "warp_occupancy"),
    )
    return {
        "workload": cell["workload"],
        "runtime": cell["runtime"],
        "status": cell["status"],
        "reason": cell.get("reason"),
        "bill_method": cell.get("bill_method"),
        "launches": cell.get("launches"),
        "regime": cell.get("regime"),
        "notes": [note["code"] for note in cell.get("notes", [])],
        **{key: value(key) for key in keys},
    }


def rows_in(text: str, first: str) -> list[Row]:
    """Return the rows, by their first key, that a command printed a line each.

    A library that writes at the same time may have its words behind one; a row cut short is none.
    """
    found = []
    for line in text.splitlines():
        if line.startswith(f'{{"{first}"'):
            with contextlib.suppress(ValueError):
                found.append(json.JSONDecoder().raw_decode(line)[0])
    return found


def tested(code: int, text: str) -> Row:
    """Return the row of the tests; all skipped is no success, for nothing was tested."""
    last = next((line for line in reversed(text.splitlines()) if line.strip()), "no output")
    ok = code == 0 and " passed" in last
    return {"check": "tests marked gpu", "ok": ok, "result": last.strip("= ")}


def archive(folder: Path, path: Path, limit: int = ARCHIVE_BYTES) -> list[str]:
    """Pack the results of a folder, and return what was left out so that they fit the limit.

    First what is small and says most, then stores, logs at last; installed packages never.
    """
    site = folder / "site"
    files = [f for f in folder.rglob("*") if f.is_file() and site not in f.parents]
    files.sort(key=lambda f: (f.suffix == ".log", f.suffix == ".jsonl", f.stat().st_size))
    dropped: list[str] = []
    partial = path.with_name(f".{path.name}")  # the machine may be taken away meanwhile
    while True:
        with tarfile.open(partial, "w:gz") as packed:
            for file in files:
                packed.add(file, f"{folder.name}/{file.relative_to(folder)}")
        if partial.stat().st_size <= limit or not files:
            partial.replace(path)
            return dropped
        dropped.append(str(files.pop().relative_to(folder)))


# --- what is there ------------------------------------------------------------------------------


def wanted_wheels(folder: Path, installed: Callable[[str], str | None]) -> list[Path]:
    """Return the wheels of a folder that fit this Python and whose package is missing, or older."""
    found = []
    for wheel in sorted(folder.glob("*.whl")):
        name, version = wheel.name.split("-")[:2]
        here = installed(name.replace("_", "-"))
        if fits(wheel.stem) and (here is None or numbers(here) < numbers(version)):
            found.append(wheel)
    return found


def fits(wheel: str) -> bool:
    """Return whether a wheel, by the tags in its name, is for this Python and processor."""
    python, abi, places = wheel.split("-")[-3:]
    is_for_this = python == f"cp{THIS_PYTHON.replace('.', '')}"
    is_for_any = python.startswith("py") or abi == "abi3"
    return (is_for_this or is_for_any) and (places == "any" or places.endswith(platform.machine()))


def numbers(version: str) -> tuple[int, ...]:
    """Return the numbers that a version begins with."""
    return tuple(int(n) for n in re.findall(r"\d+", version.split("+")[0].split("rc")[0])[:4])


def installed_version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def install_aside(wheels: Path, site: Path) -> str:
    """Unpack what is missing into a folder, which needs no pip; return what was done, in words."""
    shutil.rmtree(site, ignore_errors=True)  # of two versions of a package the older might be found
    chosen = wanted_wheels(wheels, installed_version)
    for wheel in chosen:
        with zipfile.ZipFile(wheel) as packed:
            packed.extractall(site)
    for script in site.glob("*.data/scripts/*"):
        script.chmod(0o755)
        (site / "bin").mkdir(exist_ok=True)
        script.replace(site / "bin" / script.name)
    return f"unpacked: {', '.join(wheel.name.split('-')[0] for wheel in chosen) or 'none'}"


def unusable(names: Iterable[str] = NEEDED) -> str | None:
    """Return what is missing to run at all, and what helps."""
    missing = [name for name in names if not has(name)]
    if not missing:
        return None
    remedy = f"bring wheels (make gpu-wheels TARGET={THIS_PYTHON}) or install them"
    if lacking := [name for name in missing if name in NOT_GATHERED]:
        remedy = (
            f"install {', '.join(lacking)}, or name the Python that has them: make gpu PYTHON=…"
        )
    return f"{sys.executable}: {', '.join(missing)} missing; {remedy}"


def environment(execute: Execute, out: Path, limit_s: float) -> Row:
    """Say what this ran on; no names of users, hosts or variables.

    The first import of torch reads gigabytes from a disk that nothing has read before.
    """
    code = (
        "import json, torch; p = torch.cuda.get_device_properties(0); print(json.dumps({"
        "'torch': torch.__version__, 'cuda': torch.version.cuda, 'hip': torch.version.hip, "
        "'cudnn': torch.backends.cudnn.version(), 'gpu': p.name, 'memory_bytes': p.total_memory, "
        "'multiprocessors': p.multi_processor_count, "
        "'l2_bytes': getattr(p, 'L2_cache_size', None)}))"
    )
    status, text = execute(["-c", code], limit_s, out / "torch.log")
    gpu = next(iter(rows_in(text, "torch")), {"error": why(status, text)})
    cpu = re.search(r"^model name\s*: *(.+)$", read_text("/proc/cpuinfo"), re.MULTILINE)
    return {
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "python": platform.python_version(),
        "system": platform.release(),
        "cpu": cpu[1].strip() if cpu else platform.machine(),
        "cores": os.cpu_count(),
        "load_1min": os.getloadavg()[0],
        "versions": {name: installed_version(name) for name in ("triton", "transformers")},
        "optional": {name: has(name) for name in OPTIONAL},
        **gpu,
    }


def unfit(*, needs_gpu: bool) -> str | None:
    """Return why nothing could be measured here, and what helps; imports no torch."""
    from frameworktax.errors import UsageError
    from frameworktax.host.cache import cache_folder
    from frameworktax.runtimes.cuda_graph import missing_gpu

    try:
        cache_folder()
    except UsageError as error:
        return str(error)
    return missing_gpu() if needs_gpu else None


# --- around -------------------------------------------------------------------------------------


def executor(site: Path) -> Execute:
    """Return what runs commands with the source and the packages set aside on the path."""
    paths = [str(ROOT / "src"), str(site), os.environ.get("PYTHONPATH", "")]
    added = {"PYTHONPATH": os.pathsep.join(p for p in paths if p), "HF_HUB_OFFLINE": "1"}
    added |= {"COLUMNS": "160", "PYTHONUTF8": "1"}  # of doctor's table; whatever the locale
    scripts = f"{site / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}"
    env = {**os.environ, **added, "PATH": scripts, "PYTHONUNBUFFERED": "1"}
    return lambda command, limit_s, log: run_part(command, limit_s, log, env)


def run_part(
    command: Sequence[str], limit_s: float, log: Path, env: Mapping[str, str]
) -> tuple[int, str]:
    """Run a part in a process group of its own; return exit code (124: out of time) and output.

    However the suite ends, the part ends too: it would measure on beside what comes next.
    """
    with log.open("w+", encoding="utf-8", errors="replace") as file:
        process = subprocess.Popen(
            [sys.executable, *command],
            stdout=file, stderr=file, cwd=ROOT, env=dict(env), process_group=0,
            preexec_fn=depend,
        )  # fmt: skip
        try:
            code = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            code = 124
        finally:
            # Ctrl-C first: measuring keeps and reports what it has.
            for sign in (signal.SIGINT, signal.SIGKILL):
                if process.poll() is None:
                    with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
                        os.killpg(process.pid, sign)
                        process.wait(8)
        file.seek(0)
        text = file.read()
    if len(text) > LOG_BYTES:
        log.write_text(text[-LOG_BYTES:], encoding="utf-8")
    return code, text


def depend() -> None:
    """Have the kernel end this process when the suite is killed, and hear Ctrl-C.

    A shell that starts the suite in the background has it ignore Ctrl-C. Source: prctl(2),
    ``PR_SET_PDEATHSIG``.
    """
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def why(code: int, text: str) -> str:
    """Return why a part did not end well, by its exit code and its last line, paths left out."""
    lines = [line for line in text.splitlines() if line.strip()]
    last = re.sub(r"(?<!\w)/[\w./-]+", "…", lines[-1].strip())[:150] if lines else "no output"
    return f"out of time; last: {last}" if code == 124 else f"exit {code}: {last}"


def has(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def read_text(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def write(path: Path, data: Any) -> None:
    partial = path.with_name(f".{path.name}")
    partial.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    partial.replace(path)


def show(suite: Suite) -> None:
    print(f"\n{'check':<46} {'':4} result")
    for row in suite.summary["checks"]:
        print(f"{row['check']:<46} {'ok' if row['ok'] else 'FAIL':4} {row['result']}")
    for cell in suite.summary["cells"]:
        of = cell["workload"]
        name = (
            f"{of['model']} {of['precision']} {of['input']} batch {of['batch']} {cell['runtime']}"
        )
        if cell["latency_ns"] is None:
            print(f"{name:<52} {cell['status']}: {cell['reason']}")
            continue
        keys = ("latency_ns", "kernel_ns", "span_ns")
        times = [f"{'–' if cell[k] is None else format(cell[k] / 1e6, '.3f'):>8}" for k in keys]
        share = "–" if cell["tax_share"] is None else f"{cell['tax_share']:.0%}"
        print(f"{name:<52} L, K, D ms {' '.join(times)}  tax {share}  {cell['regime'] or '–'}")
    for what, reason in suite.summary["left_out"].items():
        print(f"left out: {what}: {reason}")
    print(f"\nresults in {suite.out} and {suite.out.name}.tar.gz beside it")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the suite; return 0 only where every check passed."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "gpu")
    parser.add_argument("--minutes", type=float, default=10)
    names = ",".join(part.name for part in (*PARTS, FULL))
    parser.add_argument("--parts", help=f"of {names}; default: all but the last")
    parser.add_argument("--wheels", type=Path, default=WHEELS)
    parser.add_argument("--dry-run", action="store_true", help="on a CPU: shows that it would run")
    options = parser.parse_args(arguments)
    sys.stdout.reconfigure(errors="replace")  # a locale may have no dash
    parts = DRY if options.dry_run else PARTS
    if options.parts:
        names = options.parts.split(",")
        known = (*parts, FULL)
        if unknown := set(names) - {part.name for part in known}:
            parser.error(f"no part {', '.join(sorted(unknown))}")
        parts = tuple(part for part in known if part.name in names)
    begin, left_s = time.monotonic(), options.minutes * 60 - RESERVE_S
    out: Path = options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    said = install_aside(options.wheels, out / "site")
    sys.path[:0] = [str(ROOT / "src"), str(out / "site")]
    importlib.invalidate_caches()
    execute = executor(out / "site")
    reason = unusable() or unfit(needs_gpu=not options.dry_run)
    if reason is None:
        where = {**environment(execute, out, left_s), "wheels": said}
        if "error" in where and not options.dry_run:
            reason = f"torch cannot use the GPU: {where['error']}"
    if reason is not None:
        print(f"gpu_suite: {reason}", file=sys.stderr)
        return 1
    _, text = execute(["-m", "frameworktax", "doctor"], 60, out / "doctor.log")
    write(out / "environment.json", {**where, "doctor": text.splitlines()})
    suite = Suite(out, execute, time.monotonic, "cpu" if options.dry_run else "cuda:0")
    left_s -= time.monotonic() - begin
    suite.run(parts, left_s, again=bool(options.parts) or options.dry_run)
    show(suite)
    return 0 if suite.ok else 1


if __name__ == "__main__":
    sys.exit(main())
