"""A made-up store of any size, with the lines and lengths of real ones.

Calls per block follow real sessions: 5 for slow points, 200 for fast ones, 58 on average. The times
of a block come from a pool of made-up blocks, so that writing does not take longer than reading.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from frameworktax.records import (
    Attribution,
    Block,
    Calibration,
    Environment,
    Outcome,
    Parity,
    Point,
    Record,
    Session,
    Subject,
    Workload,
)
from frameworktax.store import HEADER

CALLS = (5, 6, 8, 10, 12, 15, 18, 20, 23, 23, 25, 27, 30, 44, 60, 135, 200, 200, 200, 95)
"""Calls of a block by twentieths of the blocks of real sessions; 57.8 on average."""
MODELS = ("bert-base", "bert-large", "distilbert", "resnet-50", "vit-base")
RUNTIMES = ("eager", "inference-mode", "torchscript-frozen", "onnxruntime", "openvino")
BATCHES = (1, 2, 4, 8, 16)
PROCESSES, ROUNDS = 4, 5
BLOCKS_A_POINT = PROCESSES * ROUNDS
POINTS_A_SESSION = 500
POOL = 100
"""Different blocks for each number of calls."""


def to_json(record: Record) -> dict[str, Any]:
    """Return a record as the data of its line in a store."""
    return {"record": record.kind, **asdict(record)}


def make(folder: Path, blocks: int) -> dict[str, int]:
    """Write a store of about ``blocks`` blocks; return how many of what there are."""
    rng = random.Random(20230213)
    pool = [_times(rng, calls) for calls in CALLS for _ in range(POOL)]
    chosen = list(points(blocks // BLOCKS_A_POINT))
    folder.mkdir(parents=True)
    sessions = size = 0
    for first in range(0, len(chosen), POINTS_A_SESSION):
        began = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(hours=sessions)
        session = f"{began:%Y%m%dT%H%M%S}-{sessions:08x}"
        with (folder / f"{session}.jsonl").open("w", encoding="utf-8") as file:
            file.writelines(_opening(session, began))
            here = chosen[first : first + POINTS_A_SESSION]
            keys = [point.key() for point in here]
            for point in here:
                file.writelines(_described(session, point))
            for round_ in range(ROUNDS):  # points take turns, as in real sessions
                for process in range(PROCESSES):
                    file.writelines(
                        f'{{"record":"block","session":"{session}","point":"{key}"'
                        f',"process":{process},"round":{round_},{rng.choice(pool)}'
                        for key in keys
                    )
            size += file.tell()
        sessions += 1
    counted = {"blocks": len(chosen) * BLOCKS_A_POINT, "points": len(chosen)}
    return {**counted, "sessions": sessions, "bytes": size}


def points(number: int) -> Iterator[Point]:
    """Yield points that all differ: in model, runtime and batch, then in width."""
    grid = [(m, r, b) for m in MODELS for r in RUNTIMES for b in BATCHES]
    for i in range(number):
        model, runtime, batch = grid[i % len(grid)]
        width = 1 + i // len(grid) / 1000
        workload = Workload(model=model, batch=batch, length=128, width=width)
        yield Point(workload=workload, runtime=runtime)


def _times(rng: random.Random, calls: int) -> str:
    """Return the rest of a block's line."""
    base = 20_000_000 // calls
    latency_ns = [rng.randint(base, base + base // 20) for _ in range(calls)]
    whole = sum(latency_ns)
    block = Block(
        session="",
        point="",
        process=0,
        round=0,
        latency_ns=tuple(latency_ns),
        pipelined_ns=whole,
        pipelined_calls=calls,
        cpu_ns=whole,
    )
    return line(to_json(block)).partition('"round":0,')[2]


def _opening(session: str, began: datetime) -> Iterator[str]:
    yield line(HEADER)
    environment = Environment(host="made-up", system="", python="", cpu="", cores=2)
    yield line(
        to_json(
            Session(
                session=session,
                started=began.isoformat(),
                version="0",
                command=("made-up",),
                environment=environment,
            )
        )
    )
    for round_ in range(ROUNDS):
        yield line(
            to_json(Calibration(session=session, round=round_, latency_ns=(500_000 + round_,) * 9))
        )


def _described(session: str, point: Point) -> Iterator[str]:
    key = point.key()
    yield line(
        to_json(Subject(session=session, point=point, paradigm="eager", parameters=1, flops=1))
    )
    yield line(
        to_json(
            Parity(
                session=session,
                point=key,
                reference="eager",
                max_abs_difference=0.0,
                max_relative_difference=0.0,
                tolerance=1e-4,
                within_tolerance=True,
            )
        )
    )
    for process in range(PROCESSES):
        yield line(to_json(Outcome(session=session, point=key, process=process, status="ok")))
    yield line(
        to_json(
            Attribution(
                session=session,
                point=key,
                process=0,
                method="perf-event",
                calls=50,
                wall_ns=100_000_000,
                latency_ns=2_000_000,
                samples=({"kernel": 60, "dispatch": 30, "python": 10},) * 10,
                top=tuple(("kernel", "library.so", f"symbol_{i}", 10) for i in range(20)),
            )
        )
    )


def line(data: dict[str, Any]) -> str:
    """Return a line as a store's writer writes it."""
    return json.dumps(data, separators=(",", ":")) + "\n"
