"""Reading a profiler trace: ours beside HolisticTraceAnalysis and TraceLens, and in little memory.

    python benchmarks/traces.py [--quick] [--tracelens FOLDER] [--two-gigabytes] [--out FILE]

A trace of 54 MB (216,000 events) is made (``trace_maker.py``: what is in it is known) and read by
whole processes in turn. The peers live in a virtual environment of their own,
``benchmarks/.traces``: HolisticTraceAnalysis from the package index, with pandas under 3, without
which it does not run; TraceLens from its repository, or from the checkout given, because the name
``tracelens`` on the package index is another project's. What cannot be installed is told.

Memory is the peak of resident pages of the process. The large trace is read under a limit on the
address space, so that reading it whole would fail.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from statistics import median

from common import (
    ROOT,
    Bench,
    BenchmarkError,
    Row,
    Used,
    options,
    run,
    run_command,
    say,
    shown,
)
from trace_maker import Truth, make

HOME = ROOT / "benchmarks" / ".traces"
PYTHON = HOME / "venv" / "bin" / "python"
INSTALLED = HOME / "installed.json"
DRIVER = Path(__file__).with_name("traces_driver.py")
HTA = ("HolisticTraceAnalysis==0.5.0", "pandas<3")
TRACELENS = "git+https://github.com/AMD-AGI/TraceLens@171dd747"
EVENTS, ROUNDS = 216_000, 5
LARGE_EVENTS, LARGE_LIMIT = 1_200_000, 700 << 20
"""About 300 MB, under a limit of 700 MB on the address space: numpy and Python map half of it."""
WHOLE_EVENTS, WHOLE_LIMIT = 7_950_000, 2048 << 20
FASTER_TARGET, MEMORY_TARGET = 5.0, 6.0
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def main() -> int:
    parser = options(str(__doc__).partition("\n")[0])
    parser.add_argument("--tracelens", type=Path, help="a checkout of TraceLens to install")
    parser.add_argument("--two-gigabytes", action="store_true", help="also read a trace of 2 GB")
    given = parser.parse_args()
    rounds = 2 if given.quick else ROUNDS
    times = [60, 60 * rounds, 30, *([240] if given.two_gigabytes else [])]
    bench = Bench("traces", given, times)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        peers = bench.part("install", "installing the peers", lambda: install(given.tracelens))
        file = folder / "made.json"
        found = bench.part(
            "side-by-side",
            "54 MB, three tools in turn",
            lambda: side_by_side(file, peers or {"peers": []}, rounds),
        )
        if peers:
            for name, why in peers["refused"].items():
                bench.row(f"cannot: {name}", why)
        if found:
            tell(bench, found)
        large = bench.part(
            "limited", "300 MB within 700 MB", lambda: limited(folder, LARGE_EVENTS, LARGE_LIMIT)
        )
        if large:
            tell_limited(bench, "300 MB within 700 MB of address space", large)
        if given.two_gigabytes:
            whole = bench.part(
                "two-gigabytes", "2 GB", lambda: limited(folder, WHOLE_EVENTS, WHOLE_LIMIT)
            )
            if whole:
                tell_limited(bench, "2 GB within 2 GiB of address space", whole)
    return bench.finish()


def install(tracelens: Path | None) -> Row:
    """Install the peers; say which cannot be."""
    HOME.mkdir(parents=True, exist_ok=True)
    (HOME / ".gitignore").write_text("*\n")
    if INSTALLED.exists():
        return dict(json.loads(INSTALLED.read_text()))
    run_command([sys.executable, "-m", "venv", "--clear", str(HOME / "venv")], 120)
    peers, refused = [], {}
    source = str(tracelens.resolve()) if tracelens else TRACELENS
    for name, packages in (("tracelens", (source, "pandas<3")), ("hta", HTA)):
        say(f"  pip install {' '.join(packages)}")
        try:
            run_command([str(PYTHON), "-m", "pip", "install", "--quiet", *packages], 600)
            peers.append(name)
        except BenchmarkError as error:
            refused[name] = shown(error)[:200]
    found = {"peers": peers, "refused": refused}
    if not refused:
        INSTALLED.write_text(json.dumps(found))
    return found


def ours(path: Path, limit_bytes: int | None = None) -> Used:
    command = [sys.executable, "-m", "frameworktax", "explain", str(path), "--json", "-"]
    return run(command, ONE_THREAD, limit_bytes=limit_bytes)


def device_ns(output: str) -> int:
    return int(json.loads(output)["trace"]["devices"]["0"]["kernel_ns"])


def side_by_side(file: Path, installed: Row, rounds: int) -> Row:
    """Read one trace with each tool in turn; medians over the rounds."""
    truth = make(file, EVENTS)
    used: dict[str, list[Used]] = {"ours": []} | {name: [] for name in installed["peers"]}
    failed: Row = {}
    for _ in range(rounds):
        used["ours"].append(ours(file))
        for name in installed["peers"]:
            if name in failed:
                continue
            try:
                used[name].append(run([str(PYTHON), str(DRIVER), name, str(file)], ONE_THREAD))
            except BenchmarkError as error:
                failed[name] = shown(error)
    packed = file.with_suffix(".json.gz")
    subprocess.run(["gzip", "-1", "-k", "-f", str(file)], check=True)
    gzipped = ours(packed)
    return {
        "truth": asdict(truth),
        "failed": failed,
        "tools": {name: _summary(runs, name) for name, runs in used.items() if runs},
        "gzipped": {**_summary([gzipped], "ours"), "file_bytes": packed.stat().st_size},
    }


def _summary(runs: list[Used], name: str) -> Row:
    last = runs[-1].output
    told = {"busy_ns": device_ns(last)} if name == "ours" else json.loads(last)
    return {
        "wall_s": median(r.wall_s for r in runs),
        "cpu_s": median(r.cpu_s for r in runs),
        "peak_bytes": max(r.peak_bytes for r in runs),
        "every_wall_s": [r.wall_s for r in runs],
        **told,
    }


def limited(folder: Path, events: int, limit_bytes: int) -> Row:
    """Read a large trace under a limit of address space."""
    if shutil.disk_usage(folder).free < 3 * 300 * events:
        raise BenchmarkError("not enough room in the temporary folder")
    file = folder / "large.json"
    truth: Truth = make(file, events)
    try:
        used = ours(file, limit_bytes)
    finally:
        file.unlink()
    return {
        "truth": asdict(truth),
        "limit_bytes": limit_bytes,
        "wall_s": used.wall_s,
        "cpu_s": used.cpu_s,
        "peak_bytes": used.peak_bytes,
        "busy_ns": device_ns(used.output),
    }


def tell(bench: Bench, found: Row) -> None:
    tools, size, truth = found["tools"], found["truth"]["bytes"], found["truth"]["kernel_ns"]
    for name, tool in tools.items():
        bench.row(
            f"{name}: whole process",
            f"{tool['wall_s']:.2f} s wall, {tool['cpu_s']:.2f} s processor, "
            f"{tool['peak_bytes'] / 2**20:.0f} MiB, device time {tool['busy_ns'] / 1e6:.6f} ms",
        )
    for name, why in found["failed"].items():
        bench.row(f"cannot: {name}", why)
    mine = tools["ours"]
    exact = mine["busy_ns"] == truth
    bench.check("device time, exact", mine["busy_ns"] - truth, f"{mine['busy_ns'] - truth} ns off",
                "0 ns", exact)  # fmt: skip
    memory = mine["peak_bytes"] / size
    bench.check("memory over file", memory, f"{memory:.2f} times", f"under {MEMORY_TARGET:.0f}",
                memory < MEMORY_TARGET)  # fmt: skip
    peers = {name: tool for name, tool in tools.items() if name != "ours"}
    if peers:
        fastest = min(peers, key=lambda name: peers[name]["wall_s"])
        for what in ("wall_s", "cpu_s"):
            times = peers[fastest][what] / mine[what]
            bench.check(f"faster than {fastest}, {what}", times, f"{times:.1f} times",
                        f"at least {FASTER_TARGET:.0f}", times >= FASTER_TARGET)  # fmt: skip
    gz = found["gzipped"]
    bench.row("gzipped", f"{gz['wall_s']:.2f} s, {gz['peak_bytes'] / 2**20:.0f} MiB")


def tell_limited(bench: Bench, what: str, found: Row) -> None:
    size = found["truth"]["bytes"]
    right = found["busy_ns"] == found["truth"]["kernel_ns"]
    bench.check(
        what,
        found["peak_bytes"] / size,
        f"{size / 1e6:.0f} MB read in {found['wall_s']:.1f} s ({found['cpu_s']:.1f} s processor), "
        f"{found['peak_bytes'] / 2**20:.0f} MiB, device time {'exact' if right else 'WRONG'}",
        "read, exact",
        right,
    )


if __name__ == "__main__":
    sys.exit(main())
