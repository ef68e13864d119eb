"""A small cluster on the loopback interface, for demonstrations and tests, with a bounded life.

    python tests/data/ray_loopback.py LIFE_S LABEL…

Starts a node for each label and prints a line of JSON: the ``address`` and, by label, the process
number of each node's raylet. It ends what it started, and nothing else, once standard input is
closed, LIFE_S is over, or on SIGTERM.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from frameworktax.errors import UsageError

ENVIRONMENT = {
    # Ray answers on every interface of a Linux host unless it takes it for one of the others.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_worker_niceness": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "disabled",  # other hosts do not reach the loopback interface
}
"""For everything that speaks to such a cluster; Ray reads it when it is imported."""
STORE_BYTES = 80_000_000
"""Ray's shared memory: what goes through it here is small."""


@contextmanager
def loopback(labels: Sequence[str], life_s: float) -> Iterator[tuple[str, dict[str, int]]]:
    """Run a cluster, in a process of its own, as long as the context is open.

    Args:
        labels: one for each node.
        life_s: after which it ends whatever happens.

    Yields:
        Its address, and the process number of each node's raylet by label.

    Raises:
        UsageError: it does not start.
    """
    command = [sys.executable, "-P", __file__, str(life_s)]
    with tempfile.TemporaryFile() as said:
        with subprocess.Popen(
            [*command, *labels],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=said,
            start_new_session=True,  # Ctrl-C is ours: it ends with its standard input
        ) as process:
            line = process.stdout.readline() if process.stdout else b""
            if line:
                answer = json.loads(line)
                yield answer["address"], answer["raylets"]
        if not line:
            said.seek(0)
            last = (said.read().decode("utf-8", "replace").strip().splitlines() or ["?"])[-1]
            raise UsageError(f"no cluster on loopback: {last}")


def _end(number: int, frame: FrameType | None) -> None:
    raise SystemExit(0)


def main() -> None:
    """Start the cluster, print its address, wait, and end it."""
    life_s, labels = float(sys.argv[1]), sys.argv[2:]
    os.environ.update(ENVIRONMENT)
    # Not in $TMPDIR: the path of a socket has 107 characters at most.
    with tempfile.TemporaryDirectory(
        prefix="ray-", dir="/tmp", ignore_cleanup_errors=True
    ) as folder:
        # The address is noted here and not in /tmp/ray: no other program must find it by chance.
        os.environ["RAY_TMPDIR"] = folder
        Path(folder, "ray").mkdir()
        from ray.cluster_utils import Cluster

        signal.signal(signal.SIGTERM, _end)
        cluster = Cluster()
        try:
            raylets = {}
            for label in labels:
                node = cluster.add_node(
                    num_cpus=1,
                    object_store_memory=STORE_BYTES,
                    labels={"frameworktax": label},
                    node_ip_address="127.0.0.1",
                    include_dashboard=False,
                    temp_dir=f"{folder}/ray",
                )
                raylets[label] = node.all_processes["raylet"][0].process.pid
            print(json.dumps({"address": cluster.address, "raylets": raylets}), flush=True)
            select.select([sys.stdin], [], [], life_s)
        except KeyboardInterrupt:
            pass
        finally:
            cluster.shutdown()


if __name__ == "__main__":
    main()
