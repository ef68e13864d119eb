"""Sends requests to the server of an example; prints throughput and latency.

python ../load.py http://127.0.0.1:8000 texts --requests 200 --seconds 120
python ../load.py http://127.0.0.1:8000 request.npz --connections 2 --seconds 5
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
import threading
import time
from collections.abc import Sequence
from http.client import HTTPConnection
from itertools import count
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np

WORDS = re.findall(r"\w+", "where does the time go when a small model waits for its framework")
SIZES = (4, 32)


def texts(number: int, sizes: Sequence[int] = SIZES) -> bytes:
    """Return the body of the n-th request for ``/encode``: a batch of one drawn text."""
    draw = random.Random(number)
    text = " ".join(draw.choices(WORDS, k=draw.randint(16, 40)))
    return json.dumps({"texts": [text] * draw.choice(sizes)}).encode()


def send(
    url: str,
    body: bytes | None = None,
    requests: int = sys.maxsize,
    connections: int = 2,
    seconds: float = 60,
    sizes: Sequence[int] = SIZES,
) -> tuple[list[float], float]:
    """Return the latency of each request that was answered and how long all took, in seconds.

    Args:
        url: of the server.
        body: of each request for ``/predict``; None sends drawn texts to ``/encode``.
        requests: to send in all.
        connections: that send side by side, each its next request after an answer.
        seconds: after which no further request is sent.
        sizes: batch sizes of texts to draw from.

    Raises:
        RuntimeError: the server answered with an error, or not at all.
    """
    numbers, latencies, failures = count(), [], []
    started = time.perf_counter()

    def work() -> None:
        connection = HTTPConnection(urlsplit(url).netloc, timeout=60)
        while (
            (number := next(numbers)) < requests
            and time.perf_counter() - started < seconds
            and not failures
        ):
            path, sent = ("/encode", texts(number, sizes)) if body is None else ("/predict", body)
            begin = time.perf_counter()
            try:
                connection.request("POST", path, sent)
                answer = connection.getresponse()
                answer.read()
            except OSError as error:
                failures.append(f"no answer to request {number} ({error}): does the server run?")
                break
            latencies.append(time.perf_counter() - begin)
            if answer.status != 200:
                failures.append(f"the server answered {answer.status} to request {number}")
        connection.close()

    threads = [threading.Thread(target=work) for _ in range(connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise RuntimeError(failures[0])
    return latencies, time.perf_counter() - started


def percentiles(latencies: Sequence[float]) -> str:
    """Return p50 and p99 as text."""
    p50, p99 = np.percentile(latencies, [50, 99]) * 1e3
    return f"p50 {p50:.1f} ms, p99 {p99:.1f} ms"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("url")
    parser.add_argument("what", help="texts, or a file: the body of a request for /predict")
    parser.add_argument("--requests", type=int, default=sys.maxsize)
    parser.add_argument("--connections", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=10)
    given = parser.parse_args()
    body = None if given.what == "texts" else Path(given.what).read_bytes()
    send(given.url, body, 100, given.connections, 1)  # warm
    latencies, took = send(given.url, body, given.requests, given.connections, given.seconds)
    print(f"{len(latencies) / took:.1f} requests/s, {percentiles(latencies)}")


if __name__ == "__main__":
    main()
