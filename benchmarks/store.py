"""A large store: opened and summarised, read in part, checked, exported; time and memory of each.

A made-up store (store_maker.py) of 1,000,000 measured blocks over 50,000 points in 100 sessions,
lines and lengths as in real ones, and one of 20,000 points whose whole table is printed. Each part
is a command as a user types it, in a fresh process, with the files in the operating system's cache;
memory is the peak of its resident pages.
"""

from __future__ import annotations

import re
import resource
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import store_maker
from common import Bench, BenchmarkError, Row, Watch, options, run_command

BLOCKS, TABLE_BLOCKS = 1_000_000, 400_000
"""Of both stores; 20 are of one point."""
TARGETS = {"open": (8.0, 1_000_000_000), "table": (5.0, 1_000_000_000)}
"""Part → seconds and bytes at most."""
REPEATS = 5
COMMAND = (sys.executable, "-m", "frameworktax")


def main() -> int:
    asked = options(__doc__ or "")
    chosen = asked.parse_args()
    blocks = BLOCKS // 50 if chosen.quick else BLOCKS
    repeats = 1 if chosen.quick else REPEATS
    bench = Bench("store", chosen, [40, 6 * repeats, 8 * repeats, 4 * repeats, 20, 20])
    folder = Path(tempfile.mkdtemp(prefix="frameworktax-store-"))
    store, study = folder / "store", folder / "study"

    def make() -> Row:
        store_maker.make(study, TABLE_BLOCKS * blocks // BLOCKS)
        return dict(store_maker.make(store, blocks))

    try:
        made = bench.part("made", "make the stores", make)
        if made is None:
            return bench.finish()
        bench.row(
            "the store",
            f"{made['blocks']:,} blocks, {made['points']:,} points, {made['sessions']} sessions, "
            f"{made['bytes'] / 1e9:.2f} GB",
        )
        for name, title, arguments, repeat in _parts(store, study, folder):
            found = bench.part(
                name, title, lambda a=arguments, r=repeat: _timed(a, repeats if r else 1)
            )
            if found is not None:
                _tell(bench, name, title, found)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return bench.finish()


def _parts(store: Path, study: Path, folder: Path) -> list[tuple[str, str, Sequence[str], bool]]:
    view = ["--where", "model=bert-base", "--where", "runtime=eager,onnxruntime"]
    width = ["--where", "width=1"]
    return [
        ("open", "open and summarise", ["store", "list", str(store)], True),
        ("table", "table of 20,000 points", ["report", str(study)], True),
        ("view", "report of a filtered view", ["report", str(store), *view, *width], True),
        ("check", "check every line", ["store", "check", str(store)], False),
        (
            "export",
            "write a model's table as Parquet",
            ["report", str(store), "-o", str(folder / "x.parquet"), *view],
            False,
        ),
    ]


def _timed(arguments: Sequence[str], repeats: int) -> Row:
    """Run a command again and again; the quickest run is the one that others disturbed least."""
    runs = [_run(arguments) for _ in range(repeats)]
    return {
        "command": " ".join(a if not a.startswith("/") else Path(a).name for a in arguments),
        "wall_s": min(run["wall_s"] for run in runs),
        "cpu_s": min(run["cpu_s"] for run in runs),
        "runs_s": [run["wall_s"] for run in runs],
        "memory_bytes": max(run["memory_bytes"] for run in runs),
        "said": runs[0]["said"],
    }


def _run(arguments: Sequence[str]) -> Row:
    watch = Watch()
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    text, wall_s = run_command([*COMMAND, *arguments], 300, watch=watch)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    if not text.strip() and "--quiet" not in arguments:
        raise BenchmarkError("it printed nothing")
    lines = text.strip().splitlines()
    # Where the temporary folder was is no one's business.
    said = re.sub(r"/\S*/frameworktax-store-\w+/", "", lines[-1]) if lines else ""
    return {
        "wall_s": round(wall_s, 3),
        "cpu_s": round(cpu_s, 3),
        "memory_bytes": watch.peak_bytes,
        "said": said,
    }


def _tell(bench: Bench, name: str, title: str, found: Row) -> None:
    wall_s, size = found["wall_s"], found["memory_bytes"]
    runs = ", ".join(f"{s:.1f}" for s in found["runs_s"])
    told = f"{wall_s:.2f} s (runs {runs}; {found['cpu_s']:.1f} s of processor time)"
    if name in TARGETS:
        seconds, most = TARGETS[name]
        bench.check(title, wall_s, told, f"under {seconds:.0f} s", wall_s < seconds)
        memory = f"{size / 1e6:.0f} MB"
        bench.check(f"{title}: memory", size, memory, f"under {most / 1e9:.0f} GB", size < most)
    else:
        bench.row(title, f"{told}, {size / 1e6:.0f} MB")


if __name__ == "__main__":
    sys.exit(main())
