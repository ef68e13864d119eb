"""Reading the columns of a large store with several processes.

As a script (``python -m frameworktax.store.parallel SHARD …``) it is one of them: it reads its
shards and writes a line of JSON and then arrays of 8-byte numbers to its standard output.
"""

from __future__ import annotations

import json
import subprocess
import sys
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from frameworktax.errors import StoreError
from frameworktax.store.columns import Rows, read_rows
from frameworktax.store.shards import Fault

OWN_SHARE = 1.1
"""Of what each other process reads: this one has started already."""
PART_BYTES = 64_000_000
"""A process less than this much apart is not worth its 0.2 s of start."""


def read_parts(found: Sequence[Path], processes: int | None = None) -> list[Rows]:
    """Read shards, each part by a process, in order; the last part by this one.

    Raises:
        StoreError: a shard cannot be read, is none, or has another version.
    """
    runs = split(found, [shard.stat().st_size for shard in found], processes)
    others = [_start(run) for run in runs[:-1]]
    try:
        own = read_rows(runs[-1])
        return [*(_receive(process) for process in others), own]
    finally:
        for process in others:
            process.kill()
            process.communicate()


def split(
    found: Sequence[Path], sizes: Sequence[int], processes: int | None = None
) -> list[Sequence[Path]]:
    """Cut shards into runs of about equal bytes, the last one longer; none of them is empty."""
    from frameworktax.host import usable_cpus

    whole = sum(sizes)
    wanted = processes or min(len(usable_cpus()), max(1, whole // PART_BYTES))
    runs: list[Sequence[Path]] = []
    begin = done = 0
    for end, size in enumerate(sizes, start=1):
        done += size
        full = done * (wanted - 1 + OWN_SHARE) >= whole * (len(runs) + 1)
        if full and len(runs) < wanted - 1 and end < len(found):
            runs.append(found[begin:end])
            begin = end
    return [*runs, found[begin:]]


def _start(run: Sequence[Path]) -> subprocess.Popen[bytes]:
    # -P: whatever lies in the current folder is not imported
    command = [sys.executable, "-P", "-m", __name__, *(str(shard.resolve()) for shard in run)]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)


def _receive(process: subprocess.Popen[bytes]) -> Rows:
    """Return what a process has read.

    Raises:
        StoreError: what it met, or that it did not end well.
    """
    stream = process.stdout
    head = stream.readline() if stream is not None else b""
    if stream is None or not head:
        raise StoreError("a process that reads the store was lost; try again")
    told = json.loads(head)
    if "error" in told:
        raise StoreError(told["error"])
    rows = Rows(
        pairs={(session, point): i for i, (session, point) in enumerate(told["pairs"])},
        faults=[Fault(*fault) for fault in told["faults"]],
    )
    for name in Rows.NUMBERS:
        getattr(rows, name).frombytes(_exactly(stream, told["blocks"] * 8))
    rows.described = [(session, point) for session, point in told["described"]]
    for name, size in told["bytes"].items():
        getattr(rows, name).extend(_exactly(stream, size).split(b"\n")[:-1])
    return rows


def _exactly(stream: IO[bytes], size: int) -> bytes:
    data = stream.read(size)
    if len(data) != size:
        raise StoreError("a process that reads the store was lost; try again")
    return data


def _send(rows: Rows, stream: IO[bytes]) -> None:
    texts = {
        name: b"".join(line.rstrip(b"\n") + b"\n" for line in getattr(rows, name))
        for name in ("subjects", "others")
    }
    told = {
        "pairs": list(rows.pairs),
        "faults": [(fault.shard, fault.line, fault.kind) for fault in rows.faults],
        "blocks": len(rows.group),
        "described": rows.described,
        "bytes": {name: len(text) for name, text in texts.items()},
    }
    stream.write(json.dumps(told).encode() + b"\n")
    for name in Rows.NUMBERS:
        numbers: array[int] | array[float] = getattr(rows, name)
        stream.write(numbers.tobytes())
    for text in texts.values():
        stream.write(text)
    stream.flush()


def main() -> None:
    """Read the shards named by the command line."""
    try:
        rows = read_rows(map(Path, sys.argv[1:]))
    except StoreError as error:
        print(json.dumps({"error": str(error)}))  # noqa: T201 - the answer
        return
    _send(rows, sys.stdout.buffer)


if __name__ == "__main__":
    main()
