"""Records of a made-up session whose truth is known exactly.

Every process and round is off by a factor, and the factors are symmetric, so that the median of
the blocks of a process and the mean over processes give back the number written here.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from frameworktax.records import (
    Attribution,
    Block,
    Calibration,
    Environment,
    Note,
    Outcome,
    Parity,
    Point,
    Record,
    Session,
    Subject,
    Workload,
)
from frameworktax.store import Writer

SESSION = "20261120T100000-aaaa"
MODEL = "bert-mini"
BATCHES = (1, 2, 4, 8, 16)
PROCESS_FACTORS = (0.99, 1.0, 1.01)
ROUND_FACTORS = (0.995, 1.0, 1.005, 1.0, 1.0)
CALL_FACTORS = (0.998, 1.0, 1.002, 1.0, 1.3)

LATENCY_NS = {
    "eager": (4_400_000, 4_600_000, 4_800_000, 7_200_000, 12_900_000),
    "inference-mode": (3_900_000, 4_050_000, 4_250_000, 6_600_000, 12_300_000),
    "torchscript-frozen": (2_900_000, 3_150_000, 3_900_000, 6_300_000, 11_900_000),
    "inductor": (2_700_000, 2_950_000, 3_700_000, 6_000_000, 11_200_000),
    "onnxruntime": (2_000_000, 2_500_000, 3_600_000, 5_900_000, 10_900_000),
    "openvino": (2_200_000, 2_600_000, 3_500_000, 5_700_000, 10_400_000),
}
"""Unprofiled latency by batch."""

SHARES = {
    "eager": {"kernel": 390, "dispatch": 290, "python": 190, "allocator": 60, "system": 40},
    "inference-mode": {"kernel": 440, "dispatch": 250, "python": 200, "allocator": 50},
    "torchscript-frozen": {"kernel": 610, "dispatch": 230, "python": 30, "allocator": 70},
    "inductor": {"kernel": 640, "runtime": 180, "python": 80, "allocator": 40},
}
"""Samples in a thousand at batch 1; what is left is remainder."""

TWIN_NS = {"onnxruntime": 130_000, "openvino": 470_000}
"""Latency of the width-shrunk twin, any batch."""

OFF_CPU = 0.02
"""Share of wall time that the calling thread was not running."""

PARADIGMS = {
    "eager": "eager",
    "inference-mode": "eager",
    "torchscript-frozen": "deferred",
    "inductor": "deferred",
    "onnxruntime": "ahead-of-time",
    "openvino": "ahead-of-time",
    "cuda-graph": "graph-replay",
    "aot-inductor": "ahead-of-time",
    "null": "floor",
}

ENVIRONMENT = Environment(
    host="node-1",
    system="Linux 6.1",
    python="3.11.2",
    cpu="AMD EPYC 9R14",
    cores=2,
    threads_per_core=1,
    memory_bytes=8 * 2**30,
    load_1min=0.1,
    virtualization="kvm",
    affinity=(0, 1),
    sampler="perf-event",
    libraries={"torch": "2.13.0+cpu", "onnxruntime": "1.31.1", "openvino": "2026.4.1"},
)


def to_json(record: Record) -> dict:
    """Return a record as the data of its line in a store."""
    return {"record": record.kind, **asdict(record)}


def write(folder: Path, *sessions: list[Record]) -> Path:
    """Write sessions into a store; return its folder."""
    for records in sessions:
        with Writer(folder, records[0].session) as writer:
            for record in records:
                writer.write(record)
    return folder


def point(runtime: str, batch: int = 1, *, model: str = MODEL, twin: bool = False) -> Point:
    return Point(
        workload=Workload(model=model, batch=batch, length=128, twin=twin), runtime=runtime
    )


def session(
    name: str = SESSION,
    hour: int = 10,
    *,
    environment: Environment = ENVIRONMENT,
    command: tuple[str, ...] = (),
) -> Session:
    """The first record of a session whose name begins with its day."""
    return Session(
        session=name,
        started=f"{name[:4]}-{name[4:6]}-{name[6:8]}T{hour}:00:00+00:00",
        version="0.1.0",
        command=command,
        environment=environment,
    )


def blocks(
    at: Point,
    latency_ns: float,
    *,
    session: str = SESSION,
    processes: tuple[float, ...] = PROCESS_FACTORS,
    rounds: tuple[float, ...] = ROUND_FACTORS,
    wall_over_cpu: float = 1.0,
) -> list[Record]:
    """Blocks whose two-level estimate is exactly ``latency_ns``."""
    made: list[Record] = []
    for process, p in enumerate(processes):
        for round_, r in enumerate(rounds):
            calls = tuple(round(latency_ns * p * r * c) for c in CALL_FACTORS)
            made.append(
                Block(
                    session=session,
                    point=at.key(),
                    process=process,
                    round=round_,
                    latency_ns=calls,
                    pipelined_ns=round(latency_ns * p * r * 5),
                    pipelined_calls=5,
                    cpu_ns=round(sum(calls) / wall_over_cpu),
                )
            )
    return made


def sampled(at: Point, latency_ns: float, shares: dict[str, int], batch: int = 1) -> Attribution:
    """Ten stretches of a thousand samples, symmetric around ``shares``, 2 % slower meanwhile."""
    # kernels grow with the batch, the rest does not
    rest = {name: count for name, count in shares.items() if name != "kernel"}
    tax = 1000 - shares["kernel"]
    weight = 1000 / (tax + shares["kernel"] * batch**0.7)
    rest = {name: round(count * weight) for name, count in rest.items()}
    rest["remainder"] = round((tax - sum(v for k, v in shares.items() if k != "kernel")) * weight)
    stretches = []
    for i in range(10):
        shift = 10 if i % 2 else -10
        first = next(iter(rest))
        counts = dict(rest)
        counts[first] += shift
        stretches.append({"kernel": 1000 - sum(rest.values()) - shift, **counts})
    kernel = 10 * (1000 - sum(rest.values()))
    wall_ns = round(2000 * latency_ns * 1.02)
    return Attribution(
        session=SESSION,
        point=at.key(),
        process=0,
        method="perf-event",
        calls=2000,
        wall_ns=wall_ns,
        latency_ns=round(latency_ns * 1.02),
        period_ns=1_000_000,
        off_cpu_ns=round(OFF_CPU * wall_ns),
        samples=tuple(stretches),
        detail={
            "gemm": round(kernel * 0.5),
            "packing": round(kernel * 0.4),
            "vectorised": kernel - round(kernel * 0.5) - round(kernel * 0.4),
        },
        top=(("kernel", "libtorch_cpu.so", "mkl_blas_avx512_sgemm_scopy", round(kernel * 0.4)),),
    )


def sample_records() -> list[Record]:
    """One session: six runtimes over five batches, a floor, two that fail, one that differs."""
    made: list[Record] = [session(command=("frameworktax", "measure", MODEL))]
    made += [
        Calibration(session=SESSION, round=i, latency_ns=(n, n, n))
        for i, n in enumerate((1_000_000, 1_010_000, 1_020_000, 1_030_000, 1_010_000))
    ]
    floor = Point(workload=Workload(model="null"), runtime="null")
    made.append(Subject(session=SESSION, point=floor, paradigm="floor"))
    made += blocks(floor, 200, rounds=(1.0,) * 5, processes=(0.95, 1.0, 1.05))
    for runtime, latencies in LATENCY_NS.items():
        for batch, latency in zip(BATCHES, latencies, strict=True):
            at = point(runtime, batch)
            made.append(
                Subject(
                    session=SESSION,
                    point=at,
                    paradigm=PARADIGMS[runtime],
                    parameters=11_171_074,
                    flops=813_694_976 * batch,
                    setup_ns=2_100_000_000,
                    notes=(Note("seeded", "weights are seeded, not trained"),),
                )
            )
            made += [
                Outcome(
                    session=SESSION,
                    point=at.key(),
                    process=i,
                    status="ok",
                    warmup_calls=15,
                    peak_memory_bytes=400 * 2**20 + i,
                )
                for i in range(3)
            ]
            made += blocks(at, latency)
            if runtime in SHARES:
                made.append(sampled(at, latency, SHARES[runtime], batch))
            if runtime in TWIN_NS:
                twin = point(runtime, batch, twin=True)
                made.append(Subject(session=SESSION, point=twin, paradigm=PARADIGMS[runtime]))
                made += blocks(twin, TWIN_NS[runtime])
            differs = runtime == "openvino"
            made.append(
                Parity(
                    session=SESSION,
                    point=at.key(),
                    reference="eager",
                    max_abs_difference=0.02 if differs else 4e-6,
                    max_relative_difference=0.022 if differs else 4e-6,
                    tolerance=1e-4,
                    within_tolerance=not differs,
                    worst="output 0 [0, 3]",
                )
            )
    for runtime, status, reason in (
        ("aot-inductor", "crashed", "segmentation fault (signal 11) in load"),
        ("cuda-graph", "unavailable", "runs on cuda only; choose --device cuda"),
    ):
        at = point(runtime)
        made.append(Subject(session=SESSION, point=at, paradigm=PARADIGMS[runtime]))
        made.append(
            Outcome(session=SESSION, point=at.key(), process=0, status=status, reason=reason)
        )
    return made


def gpu_records(
    latency_ns: int, kernel_ns: tuple[int, ...], span_ns: tuple[int, ...] = (), batch: int = 1
) -> list[Record]:
    """One eager point on a GPU."""
    at = Point(workload=Workload(model=MODEL, batch=batch), runtime="eager", platform="cuda:0")
    return [
        session(),
        Subject(session=SESSION, point=at, paradigm="eager"),
        *blocks(at, latency_ns),
        Attribution(
            session=SESSION,
            point=at.key(),
            process=0,
            method="device-profile",
            calls=len(kernel_ns),
            wall_ns=latency_ns * len(kernel_ns),
            latency_ns=latency_ns,
            kernel_ns=kernel_ns,
            kernels=(60,) * len(kernel_ns),
            launches=(61,) * len(kernel_ns),
            span_ns=span_ns,
        ),
    ]
