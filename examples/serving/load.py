"""Sends requests to the server and prints their latency.

python load.py http://127.0.0.1:8000 --requests 200 --connections 2 --seconds 120
"""

from __future__ import annotations

import argparse
import json
import random
import re
import threading
import time
from collections.abc import Sequence
from http.client import HTTPConnection
from itertools import count
from statistics import quantiles
from urllib.parse import urlsplit

WORDS = re.findall(r"\w+", "where does the time go when a small model waits for its framework")
SIZES = (4, 32)


def send(
    url: str,
    requests: int,
    connections: int = 2,
    seconds: float = 60,
    sizes: Sequence[int] = SIZES,
) -> list[float]:
    """Return the latency of each request that was answered, in seconds.

    Args:
        url: of the server.
        requests: to send in all.
        connections: that send side by side, each its next request after an answer.
        seconds: after which no further request is sent.
        sizes: batch sizes to draw from.

    Raises:
        RuntimeError: the server answered with an error.
    """
    end = time.monotonic() + seconds
    numbers, latencies, failures = count(), [], []

    def work() -> None:
        connection = HTTPConnection(urlsplit(url).netloc, timeout=60)
        while (number := next(numbers)) < requests and time.monotonic() < end and not failures:
            draw = random.Random(number)
            texts = [" ".join(draw.choices(WORDS, k=draw.randint(16, 40)))] * draw.choice(sizes)
            begin = time.perf_counter()
            connection.request("POST", "/encode", json.dumps({"texts": texts}))
            answer = connection.getresponse()
            vectors = answer.read()
            latencies.append(time.perf_counter() - begin)
            if answer.status != 200 or len(json.loads(vectors)) != len(texts):
                failures.append(f"{answer.status} for request {number}")
        connection.close()

    threads = [threading.Thread(target=work) for _ in range(connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise RuntimeError(failures[0])
    return latencies


def percentiles(latencies: list[float]) -> tuple[float, float]:
    """Return p50 and p99."""
    cuts = quantiles(latencies, n=100)
    return cuts[49], cuts[98]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("url")
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--connections", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=120)
    given = parser.parse_args()
    latencies = send(given.url, given.requests, given.connections, given.seconds)
    p50, p99 = percentiles(latencies)
    print(f"{len(latencies)} requests, p50 {p50 * 1e3:.1f} ms, p99 {p99 * 1e3:.1f} ms")


if __name__ == "__main__":
    main()
