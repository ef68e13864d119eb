"""Throughput and latency of a model behind the server, before and after `optimize`, in turn.

python before_after.py vision --deployment deploy
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
from load import percentiles, send  # noqa: E402 - it lies one folder up


@contextmanager
def server(**variables: str) -> Iterator[str]:
    """Serve a model at a free port; yield its address, which answers once the model is loaded."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        # uvicorn takes --fd for a UNIX socket and leaves Nagle's algorithm on: 40 ms an answer.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        path = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")]))
        number = str(listening.fileno())
        process = subprocess.Popen(
            [sys.executable, "-m", "uvicorn", "serve:app", "--fd", number, "--log-level", "error"],
            env={**os.environ, "PYTHONPATH": path, **variables},
            pass_fds=[listening.fileno()],
        )
        address = f"http://127.0.0.1:{listening.getsockname()[1]}"
    try:
        yield address
    finally:
        process.terminate()
        process.wait(600)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("what", choices=("encoder", "vision"))
    parser.add_argument("--module", help="file:function of the module (default: models:WHAT)")
    parser.add_argument("--deployment", default="deploy")
    parser.add_argument("--connections", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    module = given.module or f"models:{given.what}"
    with server(MODULE=module) as before, server(DEPLOYMENT=given.deployment) as after:
        sides = {"before": before, "after": after}
        for address in sides.values():
            send(address, given.what, 20, given.connections)  # waits until it is up, and warms
        for _ in range(given.rounds):
            for side, address in sides.items():
                latencies, took = send(
                    address, given.what, connections=given.connections, seconds=given.seconds
                )
                rate = len(latencies) / took
                print(f"{given.what}, {side}: {rate:.1f} requests/s, {percentiles(latencies)}")


if __name__ == "__main__":
    main()
