"""Readers of other tools' results: latencies from anywhere, told with the same records.

A reader takes what a file says and no more: where it has no kernel times there is no tax, where it
has one value a point there is no interval, and a note says so.
"""

from __future__ import annotations

from pathlib import Path

from frameworktax.records import Run

__all__ = ["read"]


def read(path: str | Path) -> Run | None:
    """Return what another tool's file tells, or None where it is no such file.

    Args:
        path: a CSV of latencies (``.csv``, ``.tsv``), a report of optimum-benchmark
            (``benchmark_report.json``, ``benchmark.json``, or a folder of them), or the JSON of
            pytest-benchmark.

    Raises:
        UsageError: it is such a file, and cannot be read; one line that names the place.
    """
    from frameworktax.integrations.readers import latency_csv, optimum_benchmark, pytest_benchmark
    from frameworktax.integrations.readers.assemble import tell

    file = Path(path)
    for reader in (latency_csv, optimum_benchmark, pytest_benchmark):
        found = reader.rows(file)
        if found is not None:
            return tell(found)
    return None
