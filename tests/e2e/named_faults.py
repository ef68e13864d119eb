"""Faults with a name, each made once: disks, clocks, pipes, memory, writers, daemons.

Every case makes its fault, holds what the sweep said of it against the words that it should say,
runs the same command again in an ordinary world and counts: every point once, none invented.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from fault_places import Place, little_memory, read_only, small_disk, take_out
from sweep_faults import (
    STORE,
    STUDY,
    Ending,
    Points,
    check,
    ended,
    message_of,
    restart,
    start,
)

QUICK = ("grid.models=mlp", "grid.batch=1,2", "study.time_budget=900s", "study.until=50%")
"""Two points, with time enough on a busy machine."""
TWO: Points = [("mlp", 1, "null"), ("mlp", 2, "null")]
DISK_KB = 8
"""Less than the shard of the quick study, more than its first records."""

OWN = """
[study]
time_budget = "60s"
processes = 1
twin = "none"
[grid]
models = ["own.py:build"]
runtimes = ["eager"]
batch = [1, 2]
"""
OWN_TWO: Points = [("own.py:build", 1, "eager"), ("own.py:build", 2, "eager")]
MODEL = """
import os
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)
        self.eaten = []

    def forward(self, x):
        fault(self, x)
        return self.linear(x)

def fault(net, x):
    FAULT

def build():
    return Net(), torch.randn(1, 8)
"""
LIMIT_BYTES = 700_000_000
EATS = """
    if x.device.type == "cpu" and len(x) == 2 and os.path.exists("hungry"):
        net.eaten = EATEN
        for _ in range(32):
            net.eaten.write(b"x" * (1 << 26))
"""
SHARED = "__import__('mmap').mmap(-1, 1 << 31)"
"""Memory that no limit on a process's own counts: only the kernel ends it."""
OWN_MEMORY = "__import__('io').BytesIO()"
LEAVES = """
    if x.device.type == "cpu" and not net.eaten:
        net.eaten = [1]
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                os.execvp("sleep", ["sleep", "SECONDS"])
            os._exit(0)
"""
CLOCK = """
import datetime, itertools, runpy, sys, time
steps = itertools.cycle((86_400, 82_800, 90_000))
seconds, ns, Real = time.time, time.time_ns, datetime.datetime
time.time = lambda: seconds() + next(steps)
time.time_ns = lambda: ns() + next(steps) * 10**9
class Stepping(Real):
    @classmethod
    def now(cls, tz=None):
        return Real.now(tz) + datetime.timedelta(seconds=next(steps))
datetime.datetime = Stepping
runpy.run_module("frameworktax", run_name="__main__", alter_sys=True)
"""


def write(folder: Path, study: str = STUDY) -> Path:
    (folder / "study.toml").write_text(study)
    return folder


def hit(fault: str, place: Place | str, code: int, message: str) -> Ending:
    return Ending(fault, place.how if isinstance(place, Place) else place, True, code, message)


def line_of(text: str, begin: str) -> str:
    found = [line for line in text.splitlines() if line.startswith(begin)]
    assert found, text
    return found[0]


def note_of(folder: Path, code: str) -> str:
    """Return the newest note of a document with this code: its own, or of a measurement."""
    document = json.loads((folder / "run.json").read_text())
    notes = document["notes"] + [n for m in document["measurements"] for n in m["notes"]]
    found = [note["text"] for note in notes if note["code"] == code]
    assert found, notes
    return str(found[-1])


def disk_full(folder: Path) -> Ending:
    """The store's disk takes a part of a session."""
    place = small_disk(write(folder) / STORE, DISK_KB)
    (folder / STORE).mkdir()
    code, error = ended(start(folder, *QUICK, prefix=place.prefix, before=place.before))
    ending = hit("disk full: store", place, code, message_of(error))
    words = f"{place.refuses}; what was written stays, free space and run the same command again"
    assert code == 2 and words in ending.message, error
    take_out(folder / STORE)
    assert any((folder / STORE).glob("*.jsonl"))
    restart(folder, ending, TWO, *QUICK)
    return ending


def disk_full_for_the_document(folder: Path) -> Ending:
    """The disk of ``--json`` takes half a document."""
    write(folder)
    (folder / "small").mkdir()
    place = small_disk(folder / "small", 4)
    if place.before is not None:  # the limit would meet the store first: let it be there
        ended(start(folder, *QUICK))
    words = (*QUICK, "--json", "small/run.json")
    code, error = ended(start(folder, *words, prefix=place.prefix, before=place.before))
    ending = hit("disk full: document", place, code, message_of(error))
    said = f"cannot write small/run.json: {place.refuses}; free space"
    assert code == 2 and said in ending.message, error
    take_out(folder / "small")
    assert not (folder / "small" / "run.json").exists(), "half a document was left"
    said = restart(folder, ending, TWO, *QUICK)
    assert "resuming: 2 of 2 points" in said, said
    return ending


def disk_full_for_the_cache(folder: Path) -> Ending:
    """The disk of prepared models is full before a session begins."""
    write(folder)
    (folder / "cache").mkdir(mode=0o700)
    place = small_disk(folder / "cache", 4, "mode=700,nr_inodes=1")
    if place.before is not None:  # a folder is no file: there is no limit to meet
        place = read_only(folder / "cache")
    code, error = ended(start(folder, *QUICK, prefix=place.prefix))
    ending = hit("disk full: cache", place, code, message_of(error))
    said = f"cannot write in the cache {folder / 'cache'}: {place.refuses}"
    assert code == 2 and said in ending.message, error
    (folder / "cache").chmod(0o700)
    restart(folder, ending, TWO, *QUICK)
    return ending


def read_only_store(folder: Path) -> Ending:
    """What is there can be reported; what is not there cannot be measured."""
    write(folder)
    half = ("grid.models=mlp", "grid.batch=1")
    assert ended(start(folder, *half))[0] == 0
    before = {path: path.read_bytes() for path in (folder / STORE).iterdir()}
    place = read_only(folder / STORE)
    code, error = ended(start(folder, *half, prefix=place.prefix))
    assert code == 0 and "resuming: 1 of 1 points" in error, error
    code, error = ended(start(folder, *QUICK, prefix=place.prefix))
    ending = hit("read-only store", place, code, message_of(error))
    said = f"cannot write a store in {STORE}: {place.refuses}; name another --store"
    assert code == 2 and said in ending.message, error
    assert before == {path: path.read_bytes() for path in (folder / STORE).iterdir()}
    (folder / STORE).chmod(0o755)
    said = restart(folder, ending, TWO, *QUICK)
    assert "resuming: 1 of 2 points" in said, said
    return ending


def torn_line(folder: Path) -> Ending:
    """A power cut takes the end of a shard, in the middle of a block."""
    write(folder)
    assert ended(start(folder, *QUICK))[0] == 0
    (shard,) = (folder / STORE).glob("*.jsonl")
    text = shard.read_bytes()
    at = [i for i in range(len(text)) if text.startswith(b'{"record":"block"', i)][5]
    shard.write_bytes(text[: at + 40])
    ending = hit("torn last line", "in the sixth block of two points", 0, "")
    said = restart(folder, ending, TWO, *QUICK)
    assert "2 cut off" in said, said
    ending.message = note_of(folder, "torn-line")
    assert shard.name in ending.message
    return ending


def two_writers(folder: Path) -> Ending:
    """Two sweeps that do not see one another's lock write to one store."""
    write(folder)
    one = start(folder, *QUICK, "--json", "one.json")
    other = start(folder, *QUICK, FRAMEWORKTAX_RUNTIME_DIR=str(folder / "other"))
    codes = [ended(one)[0], ended(other)[0]]
    ending = hit("two writers", "two sweeps begun together, each with its own lock", max(codes), "")
    assert codes == [0, 0]
    ending.message = restart(folder, ending, TWO, *QUICK).strip()
    assert ending.message.startswith("resuming: 2 of 2 points"), ending.message
    return ending


def two_sweeps(folder: Path) -> Ending:
    """The second waits for the first, and finds that nothing is left to do."""
    write(folder)
    words = ("grid.models=mlp,bert-tiny", "grid.batch=1", "study.time_budget=200s")
    one = start(folder, *words, "--json", "one.json")
    while not (folder / STORE).exists():
        assert one.poll() is None, "it ended before it had begun"
        time.sleep(0.02)
    code, error = ended(start(folder, *words))
    assert ended(one)[0] == code == 0
    ending = hit("two sweeps", "the second begins while the first measures", code, "")
    ending.message = line_of(error, "waiting for process")
    assert "resuming: 2 of 2 points" in error, error
    assert len(list((folder / STORE).glob("*.jsonl"))) == 2
    ending.points = check(folder, [("bert-tiny", 1, "null"), ("mlp", 1, "null")])
    return ending


def clock_jumps(folder: Path) -> Ending:
    """The wall clock leaps by hours, to and fro, each time it is read."""
    write(folder)
    (folder / "leaping.py").write_text(CLOCK)
    half = ("grid.models=mlp", "grid.batch=1")
    code, error = ended(start(folder, *half, program=("leaping.py",)))
    assert code == 0, error
    ending = hit(
        "clock jumps",
        "a day ahead and an hour to and fro at each reading, then set right",
        code,
        "",
    )
    (first,) = (folder / STORE).glob("*.jsonl")
    restart(folder, ending, TWO, *QUICK)
    shards = sorted((folder / STORE).glob("*.jsonl"))
    assert len(shards) == 2 and shards[0] == first, "the order of sessions follows the clock"
    ending.message = note_of(folder, "clock-jump")
    return ending


def reader_gone(folder: Path) -> Ending:
    """``frameworktax sweep … | true``: measured to the end, and an exit code as of any filter."""
    read, written = os.pipe()
    os.close(read)
    with os.fdopen(written, "w") as closed:
        child = start(write(folder), *QUICK, "--json", "-", stdout=closed)
    code, error = ended(child)
    ending = hit("nobody reads", "standard output is a pipe whose reader has left", code, "")
    assert code == 141 and not message_of(error), (code, error)
    ending.message = restart(folder, ending, TWO, *QUICK).strip()
    assert ending.message.startswith("resuming: 2 of 2 points"), ending.message
    return ending


def full_pipe(folder: Path) -> Ending:
    """Standard error is a full pipe: progress is dropped, and nothing waits for it."""
    read, written = os.pipe()
    fcntl.fcntl(written, fcntl.F_SETPIPE_SZ, 4096)
    os.write(written, b"x" * 4096)
    with os.fdopen(read, "r") as _, os.fdopen(written, "w") as full:
        child = start(write(folder), *QUICK, stderr=full)
        code, _error = ended(child)
    ending = hit("full pipe", "standard error is a pipe that nobody empties", code, "")
    assert code == 0
    ending.message = restart(folder, ending, TWO, *QUICK).strip()
    assert ending.message.startswith("resuming: 2 of 2 points"), ending.message
    return ending


def stuck_output(folder: Path) -> Ending:
    """Standard output is a full pipe: all is measured and kept; Ctrl-C ends the waiting."""
    read, written = os.pipe()
    fcntl.fcntl(written, fcntl.F_SETPIPE_SZ, 4096)
    os.write(written, b"x" * 4096)
    with os.fdopen(read, "r") as _, os.fdopen(written, "w") as full:
        child = start(write(folder), *QUICK, "--json", "-", stdout=full)
        while not measured(folder):
            assert child.poll() is None, "it ended before it had measured"
            time.sleep(0.05)
        time.sleep(1.0)
        assert child.poll() is None, "it should wait for its reader"
        child.send_signal(signal.SIGINT)
        code, error = ended(child)
    ending = hit("stuck output", "standard output is a full pipe, then Ctrl-C", code, "")
    ending.message = message_of(error)
    assert code == 130 and "interrupted" in ending.message, (code, error)
    said = restart(folder, ending, TWO, *QUICK)
    assert "resuming: 2 of 2 points" in said, said
    return ending


def measured(folder: Path) -> bool:
    """Return whether a sweep has measured, and let go of the host."""
    lock = folder / "run" / "measuring.lock"
    if not any((folder / STORE).glob("*.jsonl")) or not lock.exists():
        return False
    with lock.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def daemon(folder: Path) -> Ending:
    """A model starts a process that leaves its group and would live for a day."""
    write(folder, OWN)
    seconds = f"86398.{os.getpid()}"  # nobody else's
    (folder / "own.py").write_text(MODEL.replace("    FAULT", LEAVES.replace("SECONDS", seconds)))
    code, error = ended(start(folder, "--allow-code"))
    assert code == 0, error
    ending = hit("a daemon is left", "fork, setsid, fork, exec", code, "")
    assert not [line for line in _commands() if seconds.encode() in line], "it outlived the session"
    restart(folder, ending, OWN_TWO, "--allow-code")
    ending.message = note_of(folder, "left-behind")
    assert f"sleep {seconds}" in ending.message
    return ending


def out_of_memory(folder: Path) -> Ending:
    """The kernel kills a measuring process; the other point is measured, the rest goes on."""
    write(folder, OWN)
    with little_memory(LIMIT_BYTES) as place:
        eaten = SHARED if place.prefix else OWN_MEMORY
        fault = EATS.replace("EATEN", eaten)
        (folder / "own.py").write_text(MODEL.replace("    FAULT", fault))
        (folder / "hungry").touch()
        code, error = ended(start(folder, "--allow-code", prefix=place.prefix, before=place.before))
    assert code == 0, error
    found = {
        m["workload"]["batch"]: (m["status"], m["reason"] or "")
        for m in json.loads((folder / "run.json").read_text())["measurements"]
        if m["runtime"] == "eager"
    }
    ending = hit("out of memory", place, code, found[2][1])
    assert found[1][0] == "ok", found
    assert found[2][0] == "out-of-memory" and place.refuses in ending.message, found
    (folder / "hungry").unlink()
    restart(folder, ending, OWN_TWO, "--allow-code", "study.attempts=9")
    return ending


def _commands() -> list[bytes]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(path.read_bytes())
        except OSError:
            continue  # it ended while we looked
    return found


CASES: dict[str, Callable[[Path], Ending]] = {
    "disk full: store": disk_full,
    "disk full: document": disk_full_for_the_document,
    "disk full: cache": disk_full_for_the_cache,
    "read-only store": read_only_store,
    "torn last line": torn_line,
    "two writers": two_writers,
    "two sweeps": two_sweeps,
    "clock jumps": clock_jumps,
    "nobody reads": reader_gone,
    "full pipe": full_pipe,
    "stuck output": stuck_output,
    "a daemon is left": daemon,
    "out of memory": out_of_memory,
}
