"""Commands of this version beside those of an earlier one: time and memory, in turn.

    python benchmarks/before.py COMMIT [--repeats 5] [--out FILE]

The earlier version is checked out into a temporary folder and runs with this environment. Both read
the same made-up stores (by its own ``store_maker.py``), trace (``trace_maker.py``) and the paper's
store. The quickest of the repeats is the one that others disturbed least; memory is that of the
command's own process. Results go to ``benchmarks/results/before.json``; two minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

from common import Row, run

ROOT = Path(__file__).resolve().parents[1]
BLOCKS, TABLE_BLOCKS, EVENTS = 200_000, 20_000, 216_000
"""Of a store, of a study's store with 20 a point, and of a trace."""
MAKE = (
    "import sys; from pathlib import Path; sys.path.insert(0, sys.argv[1]); import store_maker;"
    "store_maker.make(Path(sys.argv[2]), int(sys.argv[3]))"
)
COMMANDS = {
    "help": ("--help",),
    "store list": ("store", "list", "store"),
    "store check": ("store", "check", "store"),
    "filtered report": ("report", "store", "--where", "model=bert-base", "--where", "width=1"),
    "table of a study of 1,000 points": ("report", "study"),
    "page of the paper's store": ("report", "paper-store", "-o", "page.html"),
    "explain a trace of 54 MB": ("explain", "trace.json"),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("commit")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results/before.json")
    given = parser.parse_args()
    found: dict[str, Row] = {}
    with tempfile.TemporaryDirectory(prefix="frameworktax-before-") as name:
        folder, before = Path(name), Path(name) / "before"
        subprocess.run(["git", "clone", "-q", str(ROOT), str(before)], check=True)
        subprocess.run(["git", "-C", str(before), "checkout", "-q", given.commit], check=True)
        sources = {"before": before / "src", "now": ROOT / "src"}
        for source in sources.values():  # else what is compiled at each start is measured
            subprocess.run([sys.executable, "-m", "compileall", "-q", str(source)], check=True)
        made = {**os.environ, "PYTHONPATH": str(sources["before"])}
        for store, blocks in (("store", BLOCKS), ("study", TABLE_BLOCKS)):
            words = [MAKE, str(before / "benchmarks"), str(folder / store), str(blocks)]
            subprocess.run([sys.executable, "-c", *words], env=made, check=True)
        maker = [str(before / "benchmarks/trace_maker.py"), str(folder / "trace.json")]
        words = [sys.executable, *maker, "--events", str(EVENTS)]
        subprocess.run(words, env=made, check=True, stdout=subprocess.DEVNULL)
        (folder / "paper-store").symlink_to(ROOT / "docs/results/paper-store")
        coin = random.Random(0)
        for title, command in COMMANDS.items():
            runs: dict[str, list[tuple[float, float, float]]] = {"before": [], "now": []}
            for _ in range(given.repeats):
                for which in coin.sample(list(sources), 2):
                    words = [sys.executable, "-m", "frameworktax", *command]
                    (folder / "page.html").unlink(missing_ok=True)
                    used = run(words, {"PYTHONPATH": str(sources[which])}, folder=folder)
                    taken = used.wall_s, used.cpu_s, used.peak_bytes / 2**20
                    runs[which].append(taken)
            least = {
                which: [min(column) for column in zip(*runs[which], strict=True)]
                for which in sources
            }
            found[title] = {"wall_s, cpu_s, mb": least}
            wall, cpu, memory = (
                after / first for first, after in zip(least["before"], least["now"], strict=True)
            )
            print(f"{title}: wall {wall:.2f}, processor {cpu:.2f}, memory {memory:.2f}", flush=True)
    kept = {"commit": given.commit, "commands": found}
    given.out.write_text(json.dumps(kept, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
