"""Every fault that a sweep must survive: fifty seeded shots and each named fault once, as a table.

    python tests/e2e/fault_suite.py --seeds 50 --out benchmarks/results/sweep_faults.json \\
        --table docs/results/faults.md

Exit code 1 where one of them lost, doubled or invented a point, or said something else than it
should.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import named_faults
import sweep_faults
from fault_places import CannotBeMade
from sweep_faults import Ending

ROOT = Path(__file__).resolve().parents[2]
HEAD = """# Faults

What sweeps were put through, and what came of it; written by `make bench-faults`. After each fault
the same command was run again. *Points* were then in the document, each exactly once; every block
in the store was of one of them, and no process was left running. *Exit* is that of the sweep that
was hit; a negative one is the signal that killed it. [studies.md](../studies.md#faults) says what
each is, and what is not among them.

"""


def cases(seeds: int) -> Iterator[tuple[str, Callable[[Path], Ending]]]:
    yield from named_faults.CASES.items()
    for seed in range(seeds):
        yield f"seed {seed}", partial(sweep_faults.run, seed)


def once(case: Callable[[Path], Ending]) -> tuple[Ending | None, str]:
    """Return how a fault ended; None and the reason where it failed, or cannot be made here."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        try:
            ending = case(Path(folder))
            said = ending.message.replace(f"{folder}/", "").replace(f"{ROOT}/", "")
            return replace(ending, message=said), ""
        except CannotBeMade as error:
            return None, f"not made here: {error}"
        except (AssertionError, subprocess.TimeoutExpired) as error:
            return None, f"FAILED: {' '.join(str(error).split())[-400:]}"


def table(endings: list[Ending], others: dict[str, str]) -> str:
    """Return the page of results."""
    lines = [
        "| fault | when, or how | exit | it said | restarts | points |",
        "|---|---|--:|---|--:|--:|",
    ]
    for one in endings:
        said = one.message.removeprefix("frameworktax: ").replace("|", "\\|")
        said = said or ("nothing" if one.hit else "it had ended before")
        cells = (one.fault, one.when, one.exit_code, said, one.restarts, one.points)
        lines.append(f"| {' | '.join(map(str, cells))} |")
    lines += [f"| {name} | {reason} | | | | |" for name, reason in others.items()]
    kept = f"{len(endings)} of {len(endings) + len(others)} faults: every point there exactly once"
    return f"{HEAD}{kept}.\n\n" + "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=50)
    parser.add_argument("--jobs", type=int, default=2, help="sweeps at a time, each with its lock")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--table", type=Path)
    options = parser.parse_args()
    endings: list[Ending] = []
    others: dict[str, str] = {}
    names, made = zip(*cases(options.seeds), strict=True)
    with ProcessPoolExecutor(options.jobs) as pool:
        for name, (ending, reason) in zip(names, pool.map(once, made), strict=True):
            if ending is None:
                others[name] = reason
                print(f"{name:20} {reason}", flush=True)
                continue
            endings.append(ending)
            print(
                f"{name:20} {ending.fault:16} exit {ending.exit_code:4}, "
                f"{ending.restarts} restarts, {ending.points} points  {ending.message[:70]}",
                flush=True,
            )
    if options.out:
        found = {"faults": [asdict(one) for one in endings], "others": others}
        options.out.write_text(json.dumps(found, indent=1) + "\n")
    if options.table:
        options.table.write_text(table(endings, others))
    print(f"{len(endings)} of {len(endings) + len(others)} faults: every point there exactly once")
    return 1 if any(reason.startswith("FAILED") for reason in others.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
