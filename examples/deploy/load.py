"""Send requests from several connections for some seconds; print throughput and latency.

python load.py http://127.0.0.1:8000 encoder --connections 2 --seconds 10
"""

from __future__ import annotations

import argparse
import io
import threading
import time
from http.client import HTTPConnection
from urllib.parse import urlsplit

import numpy as np

SHAPES = {
    "encoder": {"input_ids": ((1, 16), np.int64), "attention_mask": ((1, 16), np.int64)},
    "vision": {"x": ((1, 3, 64, 64), np.float32)},
}


def request_of(model: str) -> bytes:
    """Return a request's body: ones of the model's shapes."""
    file = io.BytesIO()
    np.savez(file, **{name: np.ones(shape, kind) for name, (shape, kind) in SHAPES[model].items()})
    return file.getvalue()


def send(url: str, body: bytes, connections: int, seconds: float) -> tuple[list[float], float]:
    """Return the latency of every answer, s, and how long all took.

    Raises:
        RuntimeError: the server answered with an error.
    """
    latencies: list[float] = []
    failures: list[str] = []
    begin = time.perf_counter()

    def work() -> None:
        connection = HTTPConnection(urlsplit(url).netloc, timeout=60)
        while time.perf_counter() - begin < seconds and not failures:
            start = time.perf_counter()
            connection.request("POST", "/predict", body)
            reply = connection.getresponse()
            reply.read()
            latencies.append(time.perf_counter() - start)
            if reply.status != 200:
                failures.append(f"the server answered {reply.status}")
        connection.close()

    threads = [threading.Thread(target=work) for _ in range(connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise RuntimeError(failures[0])
    return latencies, time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("url")
    parser.add_argument("model", choices=SHAPES)
    parser.add_argument("--connections", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=10)
    given = parser.parse_args()
    body = request_of(given.model)
    send(given.url, body, given.connections, 1)  # warm
    latencies, took = send(given.url, body, given.connections, given.seconds)
    p50, p99 = np.percentile(latencies, [50, 99]) * 1e3
    print(f"{len(latencies) / took:.1f} requests/s, p50 {p50:.1f} ms, p99 {p99:.1f} ms")


if __name__ == "__main__":
    main()
