"""Sweeps that are shot at: what must hold afterwards, whoever was hit and whenever.

    python tests/e2e/sweep_faults.py --seeds 50

A study of twelve points over the floor runtime (no engine: only the machinery is at stake) is run
in a folder of its own. At a moment drawn from the seed one process gets a signal: the parent
(SIGKILL, SIGTERM, SIGINT once or twice) or a measuring process (SIGKILL, SIGSEGV). Then the same
command runs again until it ends by itself. After that every point must be there exactly once,
none invented, every line of the store whole but the torn last ones, and no process left.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

STUDY = """
[study]
time_budget = "9s"
[grid]
models = ["mlp", "bert-tiny", "gpt2"]
runtimes = ["null"]
batch = [1, 2, 3, 4]
"""
EXPECTED = sorted((model, batch) for model in ("mlp", "bert-tiny", "gpt2") for batch in range(1, 5))
FAULTS = ("kill parent", "term parent", "interrupt", "interrupt twice", "kill worker",
          "segfault worker")  # fmt: skip
ENDED_FROM_OUTSIDE = ("term parent", "interrupt", "interrupt twice")
WINDOW_S = 5.0
"""A sweep takes a little longer than this: shots fall from its first import to its last record."""


@dataclass
class Shot:
    """What one seeded run came to."""

    seed: int
    fault: str
    after_s: float
    hit: bool
    exit_code: int
    message: str
    restarts: int = 0
    points: int = 0


def start(folder: Path, *words: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "frameworktax", "sweep", "study.toml", *words, "--json", "run.json"],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "FRAMEWORKTAX_RUNTIME_DIR": str(folder / "run")},
    )


def workers(parent: int) -> list[int]:
    """Return the measuring processes that a sweep has now."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text()
            line = (stat.parent / "cmdline").read_bytes()
        except OSError:
            continue  # it ended while we looked
        if int(text.rpartition(")")[2].split()[1]) == parent and b"frameworktax.worker" in line:
            found.append(int(stat.parent.name))
    return found


def shoot(child: subprocess.Popen, fault: str, after_s: float) -> bool:
    """Send the signal; return whether somebody was there to be hit."""
    time.sleep(after_s)
    if child.poll() is not None:
        return False
    if fault.endswith("worker"):
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and child.poll() is None:
            for pid in workers(child.pid):
                try:
                    os.kill(pid, signal.SIGKILL if fault.startswith("kill") else signal.SIGSEGV)
                except ProcessLookupError:
                    continue
                return True
            time.sleep(0.02)
        return False
    sent = {
        "kill parent": [signal.SIGKILL],
        "term parent": [signal.SIGTERM],
        "interrupt": [signal.SIGINT],
        "interrupt twice": [signal.SIGINT, signal.SIGINT],
    }[fault]
    for number, what in enumerate(sent):
        if number:
            time.sleep(0.05)
        if child.poll() is None:
            child.send_signal(what)
    return True


def run(seed: int, folder: Path) -> Shot:
    """Run one seeded case.

    Raises:
        AssertionError: something is lost, doubled, invented or left running.
    """
    draw = random.Random(seed)
    fault = FAULTS[seed % len(FAULTS)]
    after_s = draw.uniform(0.0, WINDOW_S)
    (folder / "study.toml").write_text(STUDY)
    child = start(folder)
    hit = shoot(child, fault, after_s)
    _, error = child.communicate(timeout=120)
    message = next((x for x in error.splitlines() if x.startswith("frameworktax: ")), "")
    shot = Shot(seed, fault, after_s, hit, child.returncode, message)
    begun = any((folder / "frameworktax-results").glob("*.jsonl"))
    if begun or not fault.startswith("interrupt"):  # else Python itself may still be starting
        assert "Traceback" not in error, error
    if hit and begun and fault.startswith("interrupt") and child.returncode:
        assert child.returncode == 130 and "interrupted; what was measured" in message, error
    assert not left_running(folder), "a measuring process outlived its sweep"
    if fault in ENDED_FROM_OUTSIDE:
        assert not failures(folder), "what the end of the sweep ended was written down as failed"
    while shot.restarts < 4:
        child = start(folder)
        _, error = child.communicate(timeout=120)
        assert "Traceback" not in error, error
        shot.restarts += 1
        if child.returncode == 0 and not open_points(folder):
            break
    shot.points = check(folder)
    return shot


def left_running(folder: Path) -> bool:
    """Return whether a measuring process of this folder still runs a little later."""
    for _ in range(40):
        alive = []
        for path in Path("/proc").glob("[0-9]*/cwd"):
            try:
                line = (path.parent / "cmdline").read_bytes()
                if path.readlink() == folder.resolve() and b"frameworktax" in line:
                    alive.append(path)
            except OSError:
                continue
        if not alive:
            return False
        time.sleep(0.05)
    return True


def failures(folder: Path) -> list[str]:
    """Return why measuring processes failed, as the store tells it."""
    from frameworktax import store
    from frameworktax.records import Outcome

    kept = folder / "frameworktax-results"
    records = store.read(kept)[0] if any(kept.glob("*.jsonl")) else []
    return [str(r.reason) for r in records if isinstance(r, Outcome) and r.status != "ok"]


def open_points(folder: Path) -> int:
    """Return how many points a dry run still calls open."""
    done = subprocess.run(
        [sys.executable, "-m", "frameworktax", "sweep", "study.toml", "--dry-run", "--json", "-"],
        cwd=folder, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return sum(p["held"]["status"] != "measured" for p in json.loads(done.stdout)["points"])


def check(folder: Path) -> int:
    """Hold the store and the document against what was asked for; return the number of points."""
    from frameworktax import store
    from frameworktax.records import Block, Subject

    document = json.loads((folder / "run.json").read_text())
    told = sorted(
        (m["workload"]["model"], m["workload"]["batch"]) for m in document["measurements"]
    )
    assert told == EXPECTED, told
    assert all(m["status"] == "ok" and m["samples_ns"] for m in document["measurements"])
    records, notes = store.read(folder / "frameworktax-results")
    assert {n.code for n in notes} <= {"torn-line"}, notes
    points = {r.point.key(): r.point for r in records if isinstance(r, Subject)}
    blocks = [r for r in records if isinstance(r, Block)]
    assert {(p.workload.model, p.workload.batch) for p in points.values()} == set(EXPECTED)
    assert {b.point for b in blocks} <= set(points)
    names = [(b.session, b.point, b.process, b.round) for b in blocks]
    assert len(names) == len(set(names))
    raw = [
        line
        for shard in (folder / "frameworktax-results").glob("*.jsonl")
        for line in shard.read_text().splitlines()
        if line.startswith('{"record":"block"')
    ]
    assert len(raw) - len(blocks) in (0, sum(n.code == "torn-line" for n in notes))
    return len(told)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=50)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    # A shell that runs this in the background has it ignore Ctrl-C, and so would the sweeps.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    shots, failed = [], 0
    for seed in range(options.seeds):
        with tempfile.TemporaryDirectory() as folder:
            try:
                shot = run(seed, Path(folder))
            except AssertionError as error:
                failed += 1
                print(f"seed {seed}: FAILED: {' '.join(str(error).split())[-400:]}", flush=True)
                continue
        shots.append(shot)
        print(
            f"seed {seed:2}: {shot.fault:16} after {shot.after_s:4.2f} s, exit {shot.exit_code:4}, "
            f"{shot.restarts} restart, {shot.points} points  {shot.message[:60]}",
            flush=True,
        )
    if options.out:
        rows = {"failed": failed, "shots": [asdict(shot) for shot in shots]}
        options.out.write_text(json.dumps(rows, indent=1) + "\n")
    print(f"{len(shots)} of {options.seeds} runs: every point there exactly once")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
