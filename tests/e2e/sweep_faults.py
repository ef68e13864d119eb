"""Sweeps that are shot at: what must hold afterwards, whoever was hit and whenever.

A study over the floor runtime (no engine: only the machinery is at stake) is run in a folder of its
own. At a moment drawn from a seed one process gets a signal: the parent (SIGKILL, SIGTERM, SIGHUP,
SIGINT once or twice) or a measuring process (SIGKILL, SIGSEGV). Then the same command runs again
until it ends by itself. After that every point must be there exactly once, none invented, every
line of the store whole but the torn last ones, and no process left. ``fault_suite.py`` runs many.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

sys.path.insert(0, str(Path(__file__).parents[1] / "data"))
import hurried

STUDY = """
[study]
time_budget = "9s"
[grid]
models = ["mlp", "bert-tiny", "gpt2"]
runtimes = ["null"]
batch = [1, 2, 3, 4]
"""
Points = list[tuple[str, int, str]]
"""Model, batch, runtime."""
EXPECTED: Points = sorted(
    (model, batch, "null") for model in ("mlp", "bert-tiny", "gpt2") for batch in range(1, 5)
)
FAULTS = ("kill parent", "term parent", "interrupt", "interrupt twice", "kill worker",
          "segfault worker", "hang up parent")  # fmt: skip
SIGNALS = {
    "kill parent": [signal.SIGKILL],
    "term parent": [signal.SIGTERM],
    "hang up parent": [signal.SIGHUP],
    "interrupt": [signal.SIGINT],
    "interrupt twice": [signal.SIGINT, signal.SIGINT],
}
SAID = {
    "term parent": (143, "ended by SIGTERM; what was measured is kept"),
    "hang up parent": (129, "ended by SIGHUP; what was measured is kept"),
    "interrupt": (130, "interrupted; what was measured is kept"),
    "interrupt twice": (130, "interrupted; what was measured is kept"),
}
WINDOW_S = 5.0
"""A sweep takes a little longer than this: shots fall from its first import to its last record."""
STORE = "frameworktax-results"


@dataclass
class Ending:
    """What one fault came to.

    Attributes:
        when: or how it was made.
        hit: whether the sweep was still there to be hit.
        exit_code: of the sweep that it hit.
        restarts: until every point was there.
        points: in the document, each once.
    """

    fault: str
    when: str
    hit: bool
    exit_code: int
    message: str
    restarts: int = 0
    points: int = 0


def environment(folder: Path) -> dict[str, str]:
    """Return variables that give a sweep a lock and a cache of its own."""
    own = {
        "FRAMEWORKTAX_RUNTIME_DIR": str(folder / "run"),
        "FRAMEWORKTAX_CACHE": str(folder / "cache"),
    }
    return {**os.environ, **own, "NO_COLOR": "1", "COLUMNS": "80"}


def start(
    folder: Path,
    *words: str,
    prefix: Sequence[str] = (),
    before: Callable[[], None] | None = None,
    stdout: int | IO[str] = subprocess.DEVNULL,
    stderr: int | IO[str] = subprocess.PIPE,
    program: Sequence[str] = hurried.PROGRAM,
    **variables: str,
) -> subprocess.Popen[str]:
    """Begin a sweep over ``study.toml``; what is wrong with its world comes as arguments."""

    def prepare() -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # who starts us may ignore it
        if before is not None:
            before()

    command = [*prefix, sys.executable, *program, "sweep", "study.toml", *words]
    return subprocess.Popen(
        command if "--json" in words else [*command, "--json", "run.json"],
        cwd=folder,
        stdout=stdout,
        stderr=stderr,
        text=True,
        preexec_fn=prepare,
        env={**environment(folder), **variables},
    )


def ended(child: subprocess.Popen[str]) -> tuple[int, str]:
    """Wait for a sweep; return its exit code and what it said, which is never a traceback."""
    _, error = child.communicate(timeout=900)
    error = error or ""
    assert "Traceback" not in error and "Exception ignored" not in error, error
    return child.returncode, error


def message_of(error: str) -> str:
    """Return the one line that says what happened."""
    return next((line for line in error.splitlines() if line.startswith("frameworktax: ")), "")


def workers(parent: int) -> list[int]:
    """Return the measuring processes that a sweep has now, forked of its templates or started."""
    above, measuring = {}, []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text()
            line = (stat.parent / "cmdline").read_bytes()
        except OSError:
            continue  # it ended while we looked
        number = int(stat.parent.name)
        above[number] = int(text.rpartition(")")[2].split()[1])
        if b"frameworktax.measure.worker" in line:
            measuring.append(number)
    return [number for number in measuring if parent in _ancestors(number, above)]


def _ancestors(number: int, above: dict[int, int]) -> Iterator[int]:
    while number in above:
        number = above[number]
        yield number


def kill_while_timed(child: subprocess.Popen[str], folder: Path) -> None:
    """Kill a process in which something is timed, unless the sweep ends before.

    One for set-up is begun anew without a failure.
    """
    while child.poll() is None:
        if not any('"record":"block"' in path.read_text() for path in (folder / STORE).glob("*")):
            time.sleep(0.02)
            continue
        for pid in workers(child.pid):
            with suppress(OSError):  # it ended while we looked
                variables = Path(f"/proc/{pid}/environ").read_bytes()
                if variables and b"set-up-" not in variables:
                    os.kill(pid, signal.SIGKILL)
                    return
        time.sleep(0.02)


def shoot(child: subprocess.Popen[str], fault: str, after_s: float) -> bool:
    """Send the signal; return whether somebody was there to be hit."""
    time.sleep(after_s)
    if child.poll() is not None:
        return False
    if fault.endswith("worker"):
        deadline = time.monotonic() + 600
        while time.monotonic() < deadline and child.poll() is None:
            for pid in workers(child.pid):
                try:
                    os.kill(pid, signal.SIGKILL if fault.startswith("kill") else signal.SIGSEGV)
                except ProcessLookupError:
                    continue
                return True
            time.sleep(0.02)
        return False
    for number, what in enumerate(SIGNALS[fault]):
        if number:
            time.sleep(0.05)
        if child.poll() is None:
            child.send_signal(what)
    return True


def run(seed: int, folder: Path) -> Ending:
    """Run one seeded shot.

    Raises:
        AssertionError: something is lost, doubled, invented or left running.
    """
    draw = random.Random(seed)
    fault = FAULTS[seed % len(FAULTS)]
    after_s = draw.uniform(0.0, WINDOW_S)
    (folder / "study.toml").write_text(STUDY)
    child = start(folder, program=("-m", "frameworktax"))  # as users start it
    hit = shoot(child, fault, after_s)
    _, error = child.communicate(timeout=900)
    code, message = child.returncode, message_of(error)
    ending = Ending(fault, f"after {after_s:.2f} s, seed {seed}", hit, code, message)
    begun = any((folder / STORE).glob("*.jsonl"))
    if begun or fault not in SAID:  # else Python itself may still be starting
        assert "Traceback" not in error, error
    delivered = (folder / "run.json").exists()  # Python itself may be what was ended then
    if hit and begun and fault in SAID and code and not delivered:
        exit_code, said = SAID[fault]
        assert code == exit_code and said in message, error
    assert not left_running(folder), "a measuring process outlived its sweep"
    if fault in SAID:
        assert not failures(folder), "what the end of the sweep ended was written down as failed"
    if fault.endswith("worker") and (lost := failures(folder)):
        status, ending.message = lost[0]
        assert hit and (status == "out-of-memory" or "SIGSEGV" in ending.message), lost
    # enough on a busy machine
    restart(folder, ending, EXPECTED, "study.time_budget=900s", "study.until=50%")
    return ending


def restart(folder: Path, ending: Ending, expected: Points, *words: str) -> str:
    """Run the same command until every point is there, once each; return what the first one said.

    Raises:
        AssertionError: a point is missing, doubled or invented.
    """
    said = ""
    while ending.restarts < 4:
        child = start(folder, *words, stdout=subprocess.PIPE)
        out, error = child.communicate(timeout=900)
        assert "Traceback" not in error, error
        said = said or error
        ending.restarts += 1
        if f"{len(expected)} points measured" in out:
            break
    ending.points = check(folder, expected)
    return said


def left_running(folder: Path) -> bool:
    """Return whether a measuring process of this folder still runs a minute later."""
    for _ in range(1200):
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


def failures(folder: Path) -> list[tuple[str, str]]:
    """Return status and reason of the measuring processes that failed, by the store."""
    from frameworktax import store
    from frameworktax.records import Outcome

    kept = folder / STORE
    records = store.read(kept)[0] if any(kept.glob("*.jsonl")) else []
    lost = [r for r in records if isinstance(r, Outcome) and r.status != "ok"]
    return [(r.status, str(r.reason)) for r in lost]


def check(folder: Path, expected: Points) -> int:
    """Hold the store and the document against what was asked for; return the number of points."""
    from frameworktax import store
    from frameworktax.records import Block, Subject

    document = json.loads((folder / "run.json").read_text())
    runtimes = {runtime for _, _, runtime in expected}  # every session has the floor beside them
    measured = [m for m in document["measurements"] if m["runtime"] in runtimes]
    found = sorted((m["workload"]["model"], m["workload"]["batch"], m["runtime"]) for m in measured)
    assert found == expected, found
    assert all(m["status"] == "ok" and m["samples_ns"] for m in measured)
    kept = folder / STORE
    records, notes = store.read(kept)
    assert {n.code for n in notes} <= {"torn-line", "clock-jump"}, notes
    points = {r.point.key(): r.point for r in records if isinstance(r, Subject)}
    blocks = [r for r in records if isinstance(r, Block)]
    asked = {(p.workload.model, p.workload.batch, p.runtime) for p in points.values()}
    assert {one for one in asked if one[2] in runtimes} == set(expected), asked
    assert {b.point for b in blocks} <= set(points)
    names = [(b.session, b.point, b.process, b.round) for b in blocks]
    assert len(names) == len(set(names))
    raw = [
        line
        for shard in kept.glob("*.jsonl")
        for line in shard.read_text().splitlines()
        if line.startswith('{"record":"block"')
    ]
    assert len(raw) - len(blocks) in (0, sum(n.code == "torn-line" for n in notes))
    return len(found)
