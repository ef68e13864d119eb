"""Throughput and latency of a module behind the server, before and after `optimize`, in turn.

python before_after.py models.py:vision --deployment deploy
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import io
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np

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


def request(name: str) -> bytes:
    """Return a module's own example as the body of a request: arrays by parameters of forward."""
    sys.path.insert(0, str(Path.cwd()))
    file, _, function = name.partition(":")
    module, example = getattr(importlib.import_module(file.removesuffix(".py")), function)()
    if not isinstance(example, Mapping):
        given = example if isinstance(example, tuple | list) else (example,)
        example = inspect.signature(module.forward).bind(*given).arguments
    body = io.BytesIO()
    np.savez(body, **{name: np.asarray(value) for name, value in example.items()})
    return body.getvalue()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("module", help="file.py:function in this folder, as for optimize")
    parser.add_argument("--deployment", default="deploy")
    parser.add_argument("--connections", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    body, what = request(given.module), given.module.rpartition(":")[2]
    with server(MODULE=given.module) as before, server(DEPLOYMENT=given.deployment) as after:
        sides = {"before": before, "after": after}
        for address in sides.values():
            send(address, body, 20, given.connections)  # waits until it is up, and warms
        for _ in range(given.rounds):
            for side, address in sides.items():
                latencies, took = send(
                    address, body, connections=given.connections, seconds=given.seconds
                )
                rate = len(latencies) / took
                print(f"{what}, {side}: {rate:.1f} requests/s, {percentiles(latencies)}")


if __name__ == "__main__":
    main()
