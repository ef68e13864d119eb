"""`make cluster-demo`: a small study over two nodes on the loopback interface, bounded in time.

Starts a cluster of two nodes on this host, sweeps a study over both, prints the table, and ends
what it started. Both nodes are this host, so they take turns, and their numbers should agree.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
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
                print(f"$ RAY_ADDRESS={address} frameworktax {' '.join(words)}", flush=True)
                return subprocess.run(
                    [sys.executable, "-m", "frameworktax", *words],
                    cwd=folder,
                    env={**os.environ, **ENVIRONMENT, "RAY_ADDRESS": address},
                    timeout=LIFE_S,
                ).returncode
        except FrameworktaxError as error:
            print(error)
            return 1


if __name__ == "__main__":
    sys.exit(main())
