"""What the benchmarks share: parts that may fail, checks with their targets, results as a file.

A benchmark is a list of parts. A part that cannot be measured becomes a row with the reason and
the others go on. After each part the result file is written anew, so that what was measured stays.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from frameworktax import host, runtimes, store
from frameworktax.attribution import usable_sampler
from frameworktax.errors import FrameworktaxError
from frameworktax.host.cache import atomic_path
from frameworktax.measure.process import Worker
from frameworktax.measure.worker import Server
from frameworktax.records import Record, Workload
from frameworktax.runtimes.base import Target
from frameworktax.version import __version__

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"

# What is timed are processes that import: compiled once, as where a user installs, not in each.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

Row = dict[str, Any]


class BenchmarkError(Exception):
    """A part could not be measured; the message says why."""


class Bench:
    """One benchmark: runs parts, holds checks against targets, writes the result file.

    With ``resume`` the parts of a result file that was not finished are kept, if it is of the same
    commit and grid.
    """

    def __init__(
        self,
        name: str,
        options: argparse.Namespace,
        estimates_s: Sequence[float],
        *,
        resume: bool = False,
    ) -> None:
        self.name = name
        self.quick: bool = options.quick
        self._only: list[str] = options.only.split(",") if options.only else []
        whole = not (self.quick or self._only)
        trial = Path(tempfile.gettempdir()) / f"frameworktax-{name}-trial.json"
        self.out: Path = options.out or (RESULTS / f"{name}.json" if whole else trial)
        self._begin = time.monotonic()
        self._parts = 0
        self._estimates = list(estimates_s)
        self._rows: list[tuple[str, str]] = []
        self.data: Row = {
            "benchmark": name,
            "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "version": __version__,
            "commit": commit(),
            "quick": self.quick,
            "environment": environment(),
            "parts": {},
            "checks": [],
        }
        self._kept = self._unfinished() if resume else {}
        print(f"{name}: about {sum(estimates_s):.0f} s, results in {self.out}", flush=True)

    def part(self, name: str, title: str, run: Callable[[], Row]) -> Row | None:
        """Run one part; return what it found, None where it could not be measured."""
        estimate = self._estimates[self._parts]
        self._parts += 1
        if self._only and name not in self._only:
            return None
        place = f"[{self._parts}/{len(self._estimates)}] {title}"
        if name in self._kept:
            say(f"{place}, measured before")
            self.data["parts"][name] = self._kept[name]
            return self._kept[name]
        left = sum(self._estimates[self._parts - 1 :]) / 60
        say(f"{place}, about {estimate:.0f} s; {left:.0f} min to the end")
        begin = time.monotonic()
        found: Row | None
        try:
            found = run()
            self.data["parts"][name] = found
        except (BenchmarkError, FrameworktaxError, OSError, subprocess.SubprocessError) as error:
            found = None
            reason = shown(error)
            self.data["parts"][name] = {"error": reason}
            self.check(title, None, f"not measured: {reason[:200]}", "measured", False)
        took = time.monotonic() - begin
        self.data["parts"][name]["seconds"] = round(took, 1)
        self.save()
        return found

    def row(self, what: str, value: str) -> None:
        """Add a line to the table."""
        self._rows.append((what, value))
        say(f"  {what}: {value}")

    def check(self, what: str, value: float | None, told: str, target: str, ok: bool) -> None:
        """Add a line that has a target; ``value``, in words ``told``, comes from this run."""
        self.data["checks"].append(
            {"check": what, "value": value, "shown": told, "target": target, "ok": ok}
        )
        self.row(what, f"{told}  [{'ok' if ok else 'MISSED'}: {target}]")

    def save(self) -> None:
        """Write everything found so far."""
        self.out.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(self.data, indent=1, ensure_ascii=False, allow_nan=False)
        with atomic_path(self.out) as partial:
            partial.write_text(text + "\n", encoding="utf-8")

    def _unfinished(self) -> Row:
        try:
            earlier: Row = json.loads(self.out.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        is_same = all(earlier[key] == self.data[key] for key in ("benchmark", "commit", "quick"))
        if "seconds" in earlier or not is_same:
            return {}
        return {name: part for name, part in earlier["parts"].items() if "error" not in part}

    def finish(self) -> int:
        """Print the table and return the exit code: 0 once the benchmark ran to its end."""
        self.data["seconds"] = round(time.monotonic() - self._begin, 1)
        self.data["load_1min_after"] = os.getloadavg()[0]
        self.save()
        width = max((len(what) for what, _ in self._rows), default=0)
        print(f"\n{self.name}{' (quick: numbers prove nothing)' if self.quick else ''}")
        for what, value in self._rows:
            print(f"{what:<{width}}  {value}")
        checks = self.data["checks"]
        met = sum(check["ok"] for check in checks)
        print(f"{met} of {len(checks)} targets met, {self.data['seconds']:.0f} s, {self.out}")
        return 0


@dataclass(frozen=True, slots=True)
class SessionRun:
    """One run of ``frameworktax measure``."""

    document: Row
    records: list[Record]
    wall_s: float
    folder: Path


def options(description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="a smoke test: few repeats")
    parser.add_argument("--only", metavar="PART,PART", help="some parts, a trial as well")
    parser.add_argument("--out", type=Path, help="result file; a trial's is a temporary file")
    return parser


def shown(reason: object) -> str:
    """Return a reason in one line, files of this checkout by their names in it."""
    return " ".join(str(reason).split()).replace(f"{ROOT}/", "")


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def environment() -> Row:
    """Return where this runs, the machine's name left out, and how busy others keep it."""
    found = asdict(host.environment(sampler=usable_sampler(), packages=runtimes.distributions()))
    del found["host"]
    load = host.foreign_load(1.0)
    return {**found, "foreign_load": load.foreign if load else None}


def commit() -> str | None:
    """Return which commit is measured, with a plus where files differ from it; None if unknown."""
    try:
        head = git("rev-parse", "--short=12", "HEAD")
        return head + ("+" if git("status", "--porcelain", "--", "src", "benchmarks/*.py") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def git(*arguments: str) -> str:
    command = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def run_command(
    command: Sequence[str],
    limit_s: float,
    *,
    env: dict[str, str] | None = None,
    folder: Path | None = None,
    watch: Callable[[int], None] | None = None,
) -> tuple[str, float]:
    """Run a command in a process group of its own; return its output and wall time in s.

    Args:
        command: to run.
        limit_s: ended with everything it started after this long.
        env: variables over this process's own.
        folder: to run in.
        watch: called with its process id every 0.1 s while it runs.

    Raises:
        BenchmarkError: it failed or ran out of time; with its last line.
    """
    begin = time.monotonic()
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as file:
        process = subprocess.Popen(
            command,
            stdout=file,
            stderr=subprocess.STDOUT,
            cwd=folder or ROOT,
            env={**os.environ, **(env or {})},
            start_new_session=True,
        )
        try:
            code = _wait(process, begin + limit_s, watch)
            wall_s = time.monotonic() - begin
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        file.seek(0)
        text = file.read()
    if code != 0:
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        ended = f"not done after {limit_s:.0f} s" if code is None else f"exit {code}"
        raise BenchmarkError(f"{Path(command[0]).name} {ended}: {lines[-1] if lines else ''}")
    return text, wall_s


@dataclass(frozen=True)
class Used:
    """What one process took; ``peak_bytes`` of resident pages."""

    wall_s: float
    cpu_s: float
    peak_bytes: int
    output: str


def run(
    command: Sequence[str],
    env: Mapping[str, str],
    *,
    folder: Path | None = None,
    limit_bytes: int | None = None,
) -> Used:
    """Run a process to its end, perhaps under a limit on its address space.

    Its peak is not below what this process holds now: it begins as a fork of it.

    Raises:
        BenchmarkError: it failed; with its last line.
    """

    def limit() -> None:
        if limit_bytes is not None:
            resource.setrlimit(resource.RLIMIT_AS, (limit_bytes, limit_bytes))

    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        begin = time.monotonic()
        process = subprocess.Popen(
            command, stdout=out, stderr=err, cwd=folder, env={**os.environ, **env}, preexec_fn=limit
        )
        _, status, usage = os.wait4(process.pid, 0)
        wall_s = time.monotonic() - begin
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        err.seek(0)
        if process.returncode:
            lines = err.read().strip().splitlines()
            raise BenchmarkError(f"exit {process.returncode}: {lines[-1] if lines else ''}")
        return Used(
            wall_s, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024, out.read().strip()
        )


class Watch:
    """Reads a process's own CPU time and largest resident size while it runs, children left out."""

    def __init__(self) -> None:
        self.cpu_s = 0.0
        self.peak_bytes = 0

    def __call__(self, pid: int) -> None:
        try:
            stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            status = Path(f"/proc/{pid}/status").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return  # it has just ended
        self.cpu_s = (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")
        peak = re.search(r"^VmHWM:\s+(\d+) kB", status, re.MULTILINE)
        if peak:  # absent once it is a zombie
            self.peak_bytes = 1024 * int(peak[1])


def child(script: Path, arguments: Sequence[str], limit_s: float) -> Row:
    """Run a part in a fresh process set up like a measuring process; return what it prints last.

    Not in this process: its threads, processor and modules must not reach what is started later.
    """
    command = [sys.executable, str(script.resolve()), *arguments]
    env = {**host.worker_environment(1), "PYTHONPATH": str(ROOT / "src")}
    text, _ = run_command(command, limit_s, env=env)
    return dict(json.loads(text.strip().splitlines()[-1]))


def _wait(
    process: subprocess.Popen[bytes], deadline: float, watch: Callable[[int], None] | None
) -> int | None:
    if watch is None:
        try:
            return process.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            return None
    while time.monotonic() < deadline:
        watch(process.pid)
        try:
            return process.wait(0.1)
        except subprocess.TimeoutExpired:
            continue
    return None


def measure(
    arguments: Sequence[str],
    folder: Path,
    limit_s: float,
    *,
    python: str = sys.executable,
    env: dict[str, str] | None = None,
    watch: Callable[[int], None] | None = None,
) -> SessionRun:
    """Run ``frameworktax measure`` as a user does and return what it wrote.

    ``folder`` gets the store and the document and must be new.
    """
    document = folder / "run.json"
    command = [python, "-m", "frameworktax", "measure", *arguments]
    command += ["--store", str(folder / "store"), "--json", str(document)]
    folder.mkdir(parents=True)
    own = {"FRAMEWORKTAX_CACHE": str(folder / "cache")}  # sets up anew
    _, wall_s = run_command(command, limit_s, env=own | (env or {}), folder=folder, watch=watch)
    records, _ = store.read(folder / "store")
    return SessionRun(json.loads(document.read_text()), records, wall_s, folder)


def load(worker: Worker, workload: Workload, limit_s: float, *, runtime: str = "eager") -> None:
    """Load a model in a measuring process, in a runtime that leaves no files."""
    worker.request(
        Server.load,
        limit_s,
        workload=workload,
        runtime=runtime,
        target=Target(),
        folder=tempfile.gettempdir(),
    )


def half_width(estimate: Row) -> float:
    """Return an interval's half-width as a share of its value."""
    return float((estimate["high"] - estimate["low"]) / 2 / abs(estimate["value"]))


def plain(estimate: Any) -> Row:
    """Return an ``Estimate`` as plain data.

    Raises:
        BenchmarkError: there is none, because too little was measured.
    """
    if estimate is None:
        raise BenchmarkError("too few blocks for an interval")
    return asdict(estimate)


def percent(share: float) -> str:
    return f"{100 * share:.2f} %"
