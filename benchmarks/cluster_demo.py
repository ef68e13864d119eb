"""`make cluster-demo`: a small study over two nodes on the loopback interface, bounded in time.

Starts a cluster of two nodes on this host, sweeps a study over both, prints the table and what the
command took over its measuring (target: under 50 %), and ends what it started. Both nodes are this
host, so they take turns, and their numbers should agree.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

from frameworktax.errors import FrameworktaxError

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "data"))

from ray_loopback import ENVIRONMENT, loopback

LIFE_S = 300.0
STUDY = """
[study]
name = "one host, two nodes"
time_budget = "150s"
[grid]
models = ["mlp"]
runtimes = ["eager", "torchscript-frozen"]
batch = [1, 8]
platform = ["left", "right"]
"""


def main() -> int:
    if find_spec("ray") is None:
        print("the demo needs Ray: pip install -c constraints.txt 'frameworktax[ray]'")
        return 2
    with tempfile.TemporaryDirectory(prefix="cluster-demo-") as folder:
        Path(folder, "study.toml").write_text(STUDY)
        print("starting two nodes on 127.0.0.1 …", flush=True)
        try:
            with loopback(["left", "right"], LIFE_S) as (address, _):
                words = ["sweep", "study.toml", "--engine", "ray", *sys.argv[1:]]
                words += ["--json", "run.json"]
                print(f"$ RAY_ADDRESS={address} frameworktax {' '.join(words)}", flush=True)
                begin_s = time.monotonic()
                done = subprocess.run(
                    [sys.executable, "-m", "frameworktax", *words],
                    cwd=folder,
                    env={**os.environ, **ENVIRONMENT, "RAY_ADDRESS": address},
                    timeout=LIFE_S,
                )
                wall_s = time.monotonic() - begin_s
            if done.returncode == 0:
                own = json.loads(Path(folder, "run.json").read_text())["own_tax"]
                measuring_s = own["measuring_ns"] / 1e9
                over = wall_s / measuring_s - 1
                print(f"the command took {over:.0%} over its {measuring_s:.0f} s of measuring")
            return done.returncode
        except FrameworktaxError as error:
            print(error)
            return 1


if __name__ == "__main__":
    sys.exit(main())
