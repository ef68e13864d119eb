"""Measures the regression and its remedy: a server with each pooling, the same load, /metrics.

python walkthrough.py --requests 200
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

from prometheus_client.parser import text_string_to_metric_families

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
from load import percentiles, send  # noqa: E402 - lies one folder up


@contextmanager
def serving(*options: str) -> Iterator[str]:
    """Run the server on a free port; yields its URL and ends it."""
    words = [sys.executable, str(HERE / "server.py"), "--port", "0", *options]
    server = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        yield server.stdout.readline().strip()
    finally:
        server.terminate()
        server.communicate(timeout=60)


def scrape(url: str) -> dict[str, list[tuple[dict[str, str], float]]]:
    """Return labels and value of every sample by its name."""
    with urlopen(f"{url}/metrics", timeout=60) as answer:
        families = text_string_to_metric_families(answer.read().decode())
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in families:
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--requests", type=int, default=200)
    given = parser.parse_args()
    for pooling in ("loop", "matrix"):
        with serving("--pooling", pooling, "--sample", "0.25") as url:
            latencies, _ = send(url, None, given.requests, connections=1, seconds=240)
            found = scrape(url)
        print(f"pooling by {pooling}: {percentiles(latencies)}")
        by_batch: dict[str, Counter[str]] = {}
        for labels, seconds in found.get("frameworktax_sampled_time_seconds_total", []):
            by_batch.setdefault(labels["batch"], Counter())[labels["part"]] += seconds
        for batch, parts in sorted(by_batch.items()):
            total = sum(parts.values())
            said = ", ".join(f"{part} {s / total:.0%}" for part, s in parts.most_common(4))
            print(f"  batch {batch}: tax {1 - parts['kernel'] / total:.0%} ({said})")
        if not by_batch:
            print("  no tax:", found["frameworktax_watch_info"][0][0]["reason"])


if __name__ == "__main__":
    main()
