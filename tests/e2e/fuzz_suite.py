"""Mutated stores, documents, traces, tables and studies, and sessions killed at drawn moments.

    python tests/e2e/fuzz_suite.py --kills 30

Each input is a mutation of a good one, drawn from a seed, and is read by the commands that take it,
each in a forked process with 2 GB of memory and 30 s. None may end with a traceback, take longer or
more, print what drives a terminal, or run what stands in its input. After a kill the store must
check clean and nothing may be left. Exit code 1 where one fails; ``--seed N --inputs 1`` repeats
it. Goes on where it was stopped; the result of a whole run is ``benchmarks/results/fuzz.json``.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[1]
DATA = TESTS / "data"
sys.path[:0] = [str(DATA), str(TESTS.parent / "benchmarks")]
import sample_records
import trace_cases

from frameworktax import api, cli
from frameworktax.analysis.document import build
from frameworktax.errors import CONTROL, ESCAPE, INVISIBLE
from frameworktax.measure import orphans
from frameworktax.store import upkeep
from frameworktax.sweep.study import TEMPLATE

SECONDS, MEMORY_BYTES = 30, 2 << 30
PART = 200
"""Inputs after which what was found is kept."""
CODES = (0, 1, 2, 3)
CANARY = "canary"
"""A file that code in an input would make."""
PLANTED = f"open({CANARY!r}, 'w')"
IMPORTED = (
    "pydantic", "scipy.optimize", "scipy.special", "frameworktax.analysis.document",
    "frameworktax.analysis.summary", "frameworktax.cli.progress", "frameworktax.comparing",
    "frameworktax.explaining", "frameworktax.report.compare_blocks", "frameworktax.report.export",
    "frameworktax.report.render_terminal", "frameworktax.report.run_blocks",
    "frameworktax.store.columns", "frameworktax.sweep.plan", "frameworktax.sweep.run",
)  # fmt: skip
"""What commands import; thousands of forks need not, each by itself."""
TOKENS = (
    b"\x1b[31m", b"\\u001b]0;x\\u0007", "\u202e".encode(), b"\\u202e", b"\x00", b"\xff", b"\n",
    b"{", b"}", b"[" * 2000, b"]", b'"', b"'", b"NaN", b"-Infinity", b"1e308", b"-1", b"0", b"null",
    b"9" * 5000, b"9223372036854775808", b"\xef\xbb\xbf", b"../../../etc/passwd", b"n" * 300,
    b"planted.py:build", f"__import__('os').system('touch {CANARY}')".encode(), b"true",
    b"!!python/object:x", b"<script>", b"[red]", b"%s%n", b".", b"," * 50,
)  # fmt: skip
ODD = (None, True, -1, 0, 1e308, -0.0, 2**63, 10**400, "", "\x1b[2J\u202e", [], {}, [[]], "x" * 300)


def mutated(data: bytes, rng: random.Random) -> bytes:
    """Return a mutation of a file: of its JSON values where it has lines of it, or of its bytes."""
    for _ in range(rng.choice((1, 1, 2, 3, 8))):
        data = rng.choice((_odd_value, _odd_value, _token, _cut, _doubled, _flipped, _swapped))(
            data, rng
        )
    return data


def _odd_value(data: bytes, rng: random.Random) -> bytes:
    """Put an odd value somewhere into one JSON text: a line, or the whole."""
    lines = data.split(b"\n") if data.count(b"\n{") else [data]
    at = rng.randrange(len(lines))
    try:
        value = json.loads(lines[at])
    except (ValueError, RecursionError):
        return _token(data, rng)
    holder: Any = value
    while isinstance(holder, dict | list) and holder:
        key = rng.choice(list(holder)) if isinstance(holder, dict) else rng.randrange(len(holder))
        if not (isinstance(holder[key], dict | list) and holder[key] and rng.random() < 0.8):
            holder[key] = rng.choice(ODD)
            break
        holder = holder[key]
    lines[at] = json.dumps(value).encode()
    return b"\n".join(lines)


def _token(data: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(data) + 1)
    return data[:at] + rng.choice(TOKENS) + data[at + rng.choice((0, 0, 1, 4)) :]


def _cut(data: bytes, rng: random.Random) -> bytes:
    begin, end = sorted(rng.randrange(len(data) + 1) for _ in range(2))
    return data[:begin] + data[end:] if rng.random() < 0.5 else data[:end]


def _doubled(data: bytes, rng: random.Random) -> bytes:
    begin, end = sorted(rng.randrange(len(data) + 1) for _ in range(2))
    return data[:end] + data[begin : begin + 5000] * rng.choice((1, 3)) + data[end:]


def _flipped(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.choice((1, 4, 30)) if data else 0):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _swapped(data: bytes, rng: random.Random) -> bytes:
    lines = data.split(b"\n")
    a, b = rng.randrange(len(lines)), rng.randrange(len(lines))
    lines[a], lines[b] = lines[b], lines[a]
    return b"\n".join(lines)


# --- what is mutated, and who reads it ------------------------------------------------------------

Commands = tuple[tuple[str, ...], ...]
STORE: Commands = (
    ("report", "store", "--verbose"), ("store", "check", "store"), ("store", "list", "store"),
    ("compare", "store", "--runtime", "eager=onnxruntime"), ("explain", "store", "--graphs"),
    ("report", "store", "-o", "out.md"), ("report", "store", "-o", "out.csv"),
)  # fmt: skip
EXPLAIN: Commands = (("explain", "FILE"), ("explain", "FILE", "--host-speed", "2", "--json", "-"))
STUDY: Commands = (("sweep", "FILE", "--dry-run"), ("sweep", "FILE", "grid.batch=3", "--dry-run"))


@dataclass(frozen=True)
class Seed:
    """A good file, and the commands that read it."""

    name: str
    data: bytes
    commands: Commands


def seeds(folder: Path) -> list[Seed]:
    """Return one good file of every kind that is read."""
    records = sample_records.sample_records()
    shard = sample_records.write(folder / "made", records) / f"{sample_records.SESSION}.jsonl"
    run = build(records)
    document = json.dumps(api.Results(run, folder).to_json()).encode()
    planted = '[study]\nname = "s"\n[grid]\nmodels = ["planted.py:build"]\nbatch = [1, 2]\n'
    optimum = next(DATA.glob("other_tools/optimum_benchmark/**/*.json"))
    return [
        Seed("store/s.jsonl", shard.read_bytes(), STORE),
        Seed("run.json", document, (*EXPLAIN, ("compare", "FILE", "FILE", "--gate", "5%"))),
        Seed("trace.json", (DATA / "h100-bert-small-step.json").read_bytes(), EXPLAIN),
        Seed("small.json", trace_cases.trace(*trace_cases.one_step()).encode(), EXPLAIN),
        Seed("l.csv", (DATA / "other_tools/framework_tax_figures.csv").read_bytes(), EXPLAIN),
        Seed("p.json", (DATA / "other_tools/pytest_benchmark.json").read_bytes(), EXPLAIN),
        Seed(optimum.name, optimum.read_bytes(), EXPLAIN),
        Seed("study.toml", TEMPLATE.read_bytes(), STUDY),
        Seed("planted.toml", planted.encode(), STUDY),
    ]


# --- one input ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Failure:
    """A command that did not end as it should; ``seed`` repeats it."""

    seed: int
    words: tuple[str, ...]
    what: str


def one(number: int, given: Sequence[Seed], folder: Path) -> list[Failure]:
    """Draw an input, run its commands on it, and return what went wrong; ``folder`` is empty."""
    rng = random.Random(number)
    chosen = rng.choice(given)
    file = folder / chosen.name
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(mutated(chosen.data, rng))
    (folder / "planted.py").write_text(f"def build():\n    {PLANTED}\n{PLANTED}\n")
    found = []
    for words in rng.sample(chosen.commands, min(2, len(chosen.commands))):
        typed = tuple(chosen.name if word == "FILE" else word for word in words)
        if what := faults_of(typed, folder):
            found.append(Failure(number, typed, what))
    return found


def faults_of(words: Sequence[str], folder: Path) -> str:
    """Run a command line in a fork; return what is wrong with how it ended, or nothing."""
    begin = time.monotonic()
    child = os.fork()
    if not child:
        _be(words, folder)
    _, status, usage = os.wait4(child, 0)
    out, err = ((folder / name).read_bytes().decode("utf-8", "replace") for name in ("out", "err"))
    code = os.waitstatus_to_exitcode(status)
    plain = (out + err).replace("\n", "")
    if code == -signal.SIGALRM or time.monotonic() - begin > SECONDS:
        return f"longer than {SECONDS} s"
    if code not in CODES or "Traceback" in err:
        return f"exit code {code}: {err[-300:]}"
    if usage.ru_maxrss * 1024 > MEMORY_BYTES:
        return f"{usage.ru_maxrss >> 10} MB"
    if CONTROL.search(plain) or ESCAPE.search(plain) or INVISIBLE.search(plain):
        return "drives the terminal"
    return "code of the input was run" if (folder / CANARY).exists() else ""


def _be(words: Sequence[str], folder: Path) -> None:
    """Be the command line, with its output in files; does not return."""
    code = 99  # of what `main` lets through
    try:
        os.chdir(folder)
        for number, name in ((1, "out"), (2, "err")):
            descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(descriptor, number)
        sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
        sys.stderr = os.fdopen(2, "w", encoding="utf-8", closefd=False)
        _, most = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, most))
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(SECONDS)
        sys.argv = ["frameworktax", *words]
        cli.main()
        code = 0
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else 0
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def inputs(first: int, count: int, until: Callable[[], bool]) -> tuple[int, list[Failure]]:
    """Try inputs from a seed on; return how many there were, and what failed."""
    found: list[Failure] = []
    done = 0
    with tempfile.TemporaryDirectory() as made:
        given = seeds(Path(made))
        for number in range(first, first + count):
            if until():
                break
            with tempfile.TemporaryDirectory() as folder:
                found += one(number, given, Path(folder))
            done += 1
    return done, found


# --- kills ----------------------------------------------------------------------------------------


def kill(seed: int) -> str:
    """Kill a session at a drawn moment; return what is wrong with what it left, or nothing."""
    moment_s = random.Random(seed).uniform(0.5, 8)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as made:
        folder, cache = Path(made), Path(made) / "cache"
        command = [sys.executable, "-m", "frameworktax", "measure", "mlp", "--batch", "1,2"]
        options = ["--runtimes", "eager,torchscript", "--time-budget", "20s", "--quiet"]
        environment = {**os.environ, "FRAMEWORKTAX_CACHE": str(cache)}
        running = subprocess.Popen([*command, *options], cwd=folder, env=environment)
        with contextlib.suppress(subprocess.TimeoutExpired):
            running.wait(moment_s)
        running.kill()
        running.wait()
        cache.mkdir(exist_ok=True)
        end = time.monotonic() + 600
        while any(one.kept for one in orphans._all(cache)) and time.monotonic() < end:
            time.sleep(0.05)
        orphans.end_of_dead(cache)
        left = [one.command for one in orphans._all(cache)]
        left += [path.name for path in cache.glob(f"{orphans.NAME}*")]
        if left:
            return f"left: {left}"
        results = folder / "frameworktax-results"
        if not list(results.glob("*.jsonl")):
            return ""
        return "; ".join(upkeep.check(results).damage)


def main() -> int:
    from common import Bench, BenchmarkError, options

    parser = options(str(__doc__).partition("\n")[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--inputs", type=int, default=2000)
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--limit", type=float, default=1800.0, help="seconds for the inputs")
    words = parser.parse_args()
    words.quick |= words.inputs < 2000 or not words.kills
    for name in IMPORTED:
        importlib.import_module(name)
    firsts = range(words.seed, words.seed + words.inputs, PART)
    seconds = [*[words.limit / len(firsts)] * len(firsts), 15 * words.kills]
    bench = Bench("fuzz", words, seconds, resume=True)

    def tried(first: int) -> dict[str, Any]:
        end = time.monotonic() + seconds[0]
        count = min(PART, words.seed + words.inputs - first)
        done, failed = inputs(first, count, lambda: time.monotonic() > end)
        if done < count and not failed:
            raise BenchmarkError(f"time was over after {done} inputs; run it again to go on")
        return {"inputs": done, "failed": [asdict(failure) for failure in failed]}

    parts = [
        bench.part(f"from {first}", f"inputs from {first}", partial(tried, first))
        for first in firsts
    ]
    done = sum(part["inputs"] for part in parts if part)
    failed = [failure for part in parts if part for failure in part["failed"]]
    for failure in failed:
        bench.row(f"seed {failure['seed']}", f"{' '.join(failure['words'])}: {failure['what']}")
    bench.check(
        "mutated inputs: traceback, over 30 s, over 2 GB, escape, code of an input run",
        len(failed), f"{len(failed)} of {done:,}", f"0 of {words.inputs:,}",
        not failed and done == words.inputs,
    )  # fmt: skip
    if words.kills:
        found = bench.part(
            "kills", "sessions killed", lambda: {"wrong": [*map(kill, range(words.kills))]}
        )
        wrong = [what for what in found["wrong"] if what] if found else ["not tried"]
        for what, count in Counter(wrong).items():
            bench.row(f"killed, {count} times", what)
        bench.check(
            "killed sessions: store damaged, or something left", len(wrong),
            f"{len(wrong)} of {words.kills}", "0", not wrong,
        )  # fmt: skip
    bench.finish()
    return int(any(not check["ok"] for check in bench.data["checks"]))


if __name__ == "__main__":
    sys.exit(main())
