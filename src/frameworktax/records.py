"""The nouns: frozen records that both wings and the store share.

Stored time is an integer in nanoseconds (``_ns``), shares are fractions, sizes are bytes.
What is stored is raw: samples, counts, facts. What is derived (``Measurement``, ``Curve``,
``Advice``) is computed by ``analysis`` and written only into documents, never into a store.
``None`` means not measured; a note says why.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, lru_cache
from operator import attrgetter
from typing import Any, ClassVar, Literal, get_args

from frameworktax.errors import counted
from frameworktax.notebook import HtmlRepr

STORE_SCHEMA = "frameworktax.store"
STORE_VERSION = 1
RUN_SCHEMA = "frameworktax.run"
RUN_VERSION = 1

Status = Literal["ok", "failed", "unavailable", "timeout", "out-of-memory", "crashed"]
STATUSES: tuple[str, ...] = get_args(Status)
Precision = Literal["float32", "float16", "bfloat16", "int8"]
PRECISIONS: tuple[str, ...] = get_args(Precision)
Input = Literal["dense", "ragged"]
INPUTS: tuple[str, ...] = get_args(Input)
Phase = Literal["forward", "generate"]
PHASES: tuple[str, ...] = get_args(Phase)
KvCache = Literal["none", "dynamic", "static"]
KV_CACHES: tuple[str, ...] = get_args(KvCache)
FLOOR = "null"
"""The runtime that does nothing: its latency is the harness's own cost per call."""
REFERENCE = "eager"
"""The runtime that others are compared with."""
DEPLOYED = "deployed"
"""The runtime that calls what ``optimize`` delivered."""
SEED = 20230213
"""Of every random draw: the same records, models and inputs each time."""
Started = Literal["forked", "started"]
"""How a measuring process came to be: forked of a template, or an interpreter of its own."""
Regime = Literal["framework-bound", "compute-bound", "memory-bound", "mixed", "kernel-flat"]

BILL: tuple[str, ...] = (
    "kernel",  # math kernels and the copies inside them
    "dispatch",  # c10, the dispatcher, operator wrappers, autograd bookkeeping, bindings
    "python",  # the interpreter and its extension modules
    "allocator",  # malloc, free and what is behind them in user space
    "runtime",  # an engine's executor, a compiled graph's wrapper
    "threading",  # OpenMP and TBB: waiting and handing out work
    "system",  # inside the operating system: page faults, system calls
    "launch",  # device launch calls on the host (GPU)
    "device_gap",  # device idle between queued kernels (GPU)
    "wait",  # wall time the calling thread was not running
    "remainder",  # what no rule could place
)
"""Lines of the bill, in the order they are shown; they add up to the latency."""


@dataclass(frozen=True, slots=True)
class Note:
    """A trust note: a stable code for programs and a sentence for people."""

    code: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What is computed, independent of how and where.

    Attributes:
        model: a registered name, or ``file.py:function`` / ``package.module:function``.
        batch: samples per call.
        length: tokens per sample, for sequence models; samples of 16 kHz sound for speech models.
        image_size: pixels a side, for image models.
        width: factor on the layer widths.
        depth: factor on the number of layers.
        input: ``dense``, or ``ragged``: sentences of drawn lengths, padded to ``length``.
        phase: ``forward``, or ``generate``: greedy decoding of ``new_tokens`` tokens.
        batch_dim: the user's word on which dimension of the inputs is the batch.
        length_mean: mean of the drawn lengths, tokens; ragged input only.
        length_sd: their standard deviation, tokens.
        new_tokens: tokens to generate.
        kv_cache: ``none``, ``dynamic`` or ``static``; generate only.
        channels_last: images and weights in that memory format.
        trust_remote_code: the user's word that a hub model's own code may run.
    """

    model: str
    batch: int = 1
    length: int | None = None
    image_size: int | None = None
    precision: str = "float32"
    width: float = 1.0
    depth: float = 1.0
    input: str = "dense"
    phase: str = "forward"
    batch_dim: int | None = None
    twin: bool = False
    length_mean: float | None = None
    length_sd: float | None = None
    new_tokens: int | None = None
    kv_cache: str | None = None
    channels_last: bool = False
    trust_remote_code: bool = False

    def without_batch(self) -> Workload:
        """Return the workload with batch 0: equal for those that differ in batch alone."""
        return replace(self, batch=0)


_LATER = {f.name: f.default for f in fields(Workload)[11:]}
"""Workload fields younger than the first stores, left out of a key while they say nothing."""


_WORKLOAD_FIELDS = tuple(f.name for f in fields(Workload))
_SORTED_FIELDS = tuple(sorted(_WORKLOAD_FIELDS))
_SORTED = attrgetter(*_SORTED_FIELDS)
_key_text = lru_cache(10_000, typed=True)(json.dumps)
"""A value as in the JSON that a key is made of: the points of a study share most of theirs."""


def device_of(platform: str) -> str:
    """Return the device of a platform: ``cpu`` of ``cpu``, ``cuda:0`` of ``cuda:0@a100``."""
    return platform.partition("@")[0]


FamilyKey = tuple[Any, ...]
_WITHOUT_BATCH = attrgetter(*(name for name in _WORKLOAD_FIELDS if name != "batch"))


def _family(one: Point | Measurement) -> FamilyKey:
    return (*_WITHOUT_BATCH(one.workload), one.platform, one.threads)


@dataclass(frozen=True, kw_only=True)
class Point:
    """One cell of the grid: a workload in a runtime on a platform.

    Attributes:
        platform: the device, and after an ``@`` the label of the nodes that a study named.
        threads: of the calling process.
    """

    workload: Workload
    runtime: str
    platform: str = "cpu"
    threads: int = 1

    def key(self) -> str:
        """Return the content key: 16 hex digits over every field that says something."""
        return self._key

    @cached_property
    def _key(self) -> str:
        said = ", ".join(
            f'"{name}": {_key_text(value)}'
            for name, value in zip(_SORTED_FIELDS, _SORTED(self.workload), strict=True)
            if name not in _LATER or value != _LATER[name]
        )
        text = (
            f'{{"platform": {_key_text(self.platform)}, "runtime": {_key_text(self.runtime)}, '
            f'"threads": {_key_text(self.threads)}, "workload": {{{said}}}}}'
        )
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

    def without_batch(self) -> Point:
        """Return the point with batch 0: equal for those that one process serves."""
        return replace(self, workload=self.workload.without_batch())

    def family(self) -> FamilyKey:
        """Return what points share that differ in runtime and batch alone, to group them by."""
        return _family(self)


def point_name(
    point: Point,
    *,
    model: bool = True,
    runtime: bool = True,
    batch: bool = True,
    defaults: bool = False,
) -> str:
    """Return a point in words: ``bert-base, eager, batch 8, length 128, 4 threads``.

    Args:
        point: to name.
        model: whether its model is named.
        runtime: whether its runtime is named.
        batch: whether its batch size is named.
        defaults: whether precision, platform and threads are named where they are the defaults.
    """
    w = point.workload
    on_cpu = device_of(point.platform) == "cpu"
    parts = [
        w.model if model else "",
        point.runtime if runtime else "",
        f"batch {w.batch}" if batch else "",
        f"batch dimension {w.batch_dim}" if w.batch_dim is not None else "",
        f"length {w.length}" if w.length else "",
        f"{w.image_size} px" if w.image_size else "",
        f"width × {w.width:g}" if w.width != 1 else "",
        f"depth × {w.depth:g}" if w.depth != 1 else "",
        w.precision if defaults or w.precision != "float32" else "",
        _input_name(w) if w.input != "dense" else "",
        _phase_name(w) if w.phase != "forward" else "",
        "channels last" if w.channels_last else "",
        "twin" if w.twin else "",
        point.platform if defaults or point.platform != "cpu" else "",
        counted(point.threads, "thread") if point.threads != 1 or (defaults and on_cpu) else "",
    ]
    return ", ".join(part for part in parts if part)


def distinct_name(point: Point, among: Iterable[Point]) -> str:
    """Name a point by what not all of ``among`` have in common, its batch size left out.

    Where that is nothing its runtime names it.
    """
    parts = [point_name(one, batch=False).split(", ") for one in (point, *among)]
    shared = set(parts[0]).intersection(*parts[1:])
    return ", ".join(part for part in parts[0] if part not in shared) or point.runtime


def _input_name(w: Workload) -> str:
    if w.length_mean is None or w.length_sd is None:
        return w.input
    return f"{w.input} {w.length_mean:g} ± {w.length_sd:g} tokens"


def _phase_name(w: Workload) -> str:
    tokens = f" {w.new_tokens} tokens" if w.new_tokens is not None else ""
    return f"{w.phase}{tokens}" + (f" ({w.kv_cache} cache)" if w.kv_cache else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment(HtmlRepr):
    """Where a session ran: everything that moves a number."""

    host: str
    system: str
    python: str
    cpu: str
    cores: int
    threads_per_core: int | None = None
    memory_bytes: int | None = None
    load_1min: float | None = None
    governor: str | None = None
    frequency_mhz: float | None = None
    turbo: bool | None = None
    virtualization: str | None = None
    affinity: tuple[int, ...] = ()
    sampler: str | None = None
    gpus: tuple[Mapping[str, Any], ...] = ()
    libraries: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate(HtmlRepr):
    """A value with its interval.

    ``method`` names how it was got; ``n`` is the number of independent values behind it.
    """

    value: float
    low: float
    high: float
    confidence: float = 0.95
    method: str = ""
    n: int = 0

    def at(self, value: float, low: float, high: float) -> Estimate:
        """Return another value and interval of the same confidence, method and number of values."""
        return Estimate(  # ``replace`` takes three times as long, and a study has many thousands
            value=value,
            low=low,
            high=high,
            confidence=self.confidence,
            method=self.method,
            n=self.n,
        )


# --- raw records, one JSON line each in a store ---------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """One run of the tool: everything measured in it was measured side by side."""

    kind: ClassVar[str] = "session"
    session: str
    started: str
    version: str
    command: tuple[str, ...]
    environment: Environment


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What is known of a point beside its times.

    Before anything is written of a point, one that is not ``final`` says which point it is; a
    session that is not killed writes the final one when its model is known.
    """

    kind: ClassVar[str] = "subject"
    session: str
    point: Point
    paradigm: str
    parameters: int | None = None
    flops: int | None = None
    macs: int | None = None
    operators: int | None = None
    setup_ns: int | None = None
    artifact_bytes: int | None = None
    padding_share: float | None = None
    notes: tuple[Note, ...] = ()
    final: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One block of calls in one process, timed without a profiler.

    Attributes:
        latency_ns: wall time of each call, outputs complete on the device; an array where a store
            was read for a document, to take a tenth of the memory.
        pipelined_ns: wall time of ``pipelined_calls`` calls with one synchronise at the end.
        cpu_ns: CPU time of the calling thread over the ``latency_ns`` calls.
        enqueue_ns: host time of each call before the synchronise (GPU only).
        first_token_ns: time to the first token of each call (generate only).
    """

    kind: ClassVar[str] = "block"
    session: str
    point: str
    process: int
    round: int
    latency_ns: tuple[int, ...]
    pipelined_ns: int
    pipelined_calls: int
    cpu_ns: int
    enqueue_ns: tuple[int, ...] | None = None
    first_token_ns: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """One block of the fixed calibrator, once a round: shows a drifting host."""

    kind: ClassVar[str] = "calibration"
    session: str
    round: int
    latency_ns: tuple[int, ...]


EVERY_THREAD = "perf-event of every thread"
"""The method of samples of all threads of a process, on one clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attribution:
    """Where the time of a point goes, from a run of its own; never a source of latency.

    On a CPU (``perf-event``; ``py-spy`` in older stores): ``samples`` holds, per stretch of the
    run, program-counter samples by bucket of ``BILL``; ``detail`` the same for parts of the kernel
    (``gemm``, ``packing``, ``vectorised`` …); ``top`` the leaders as (bucket, library, symbol,
    samples). A process is sampled in one round or in several. ``off_cpu_ns`` is wall time minus
    CPU time of the calling thread, ``queued_ns`` the part of it in which the thread was ready and
    others had the processor. By the method ``EVERY_THREAD`` both are of time in which no thread
    ran, and a sample stands for the process. ``page_faults`` are those of the process in all calls
    that needed no disk.

    On a GPU (``device-profile``): one entry per call in ``kernel_ns`` (union of kernel, copy and
    memset intervals), ``kernels``, ``copies``, ``launches``, ``wait_ns`` (host time in synchronises
    and in copies to pageable memory, between two launches), ``sm_active_ns`` and ``warp_ns``
    (kernel time × the share of the device that a kernel fills, by its launch); ``kernel_names``
    holds the records of one call by name; ``span_ns`` is from ``backlog`` runs, ``empty_span_ns``
    the same of an empty call; ``device_state`` what ``host.nvml`` read while calls ran.
    """

    kind: ClassVar[str] = "attribution"
    session: str
    point: str
    process: int
    method: str
    calls: int
    wall_ns: int
    latency_ns: int
    period_ns: int | None = None
    off_cpu_ns: int | None = None
    queued_ns: int | None = None
    page_faults: int | None = None
    samples: tuple[Mapping[str, int], ...] = ()
    detail: Mapping[str, int] = field(default_factory=dict)
    top: tuple[tuple[str, str, str, int], ...] = ()
    lost: int = 0
    kernel_ns: tuple[int, ...] = ()
    kernels: tuple[int, ...] = ()
    copies: tuple[int, ...] = ()
    launches: tuple[int, ...] = ()
    wait_ns: tuple[int, ...] = ()
    sm_active_ns: tuple[int, ...] = ()
    warp_ns: tuple[int, ...] = ()
    kernel_names: Mapping[str, int] = field(default_factory=dict)
    span_ns: tuple[int, ...] = ()
    empty_span_ns: int | None = None
    device_state: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[Note, ...] = ()
    round: int = 0


By = Literal["module", "operator", "line"]
"""What a breakdown can be broken down by."""
BY: tuple[By, ...] = get_args(By)


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """A layer of a model as a run by place saw it.

    Attributes:
        path: in the model, as ``named_modules`` has it; empty for the model itself.
        type: name of its class.
        file: of the class, None where it has no source.
        line: in the file, of what was called.
        calls: in the whole run.
    """

    path: str
    type: str
    file: str | None = None
    line: int | None = None
    calls: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Which layer, operator or source line pays, from a run of its own; never a source of latency.

    Attributes:
        method: what the run resolved, one of ``By``.
        calls: of the model; ``latency_ns`` is their median in this run.
        ticks: for each stretch of the run, samples as (index in ``modules`` or −1 outside of all,
            operator or "", line of ``BILL``, samples); a layer's own, those inside it left out.
        lines: samples as (file, line, function, line of ``BILL``, samples).
        lost: samples without a record.
    """

    kind: ClassVar[str] = "places"
    session: str
    point: str
    process: int
    method: By
    calls: int
    latency_ns: int
    wall_ns: int = 0
    period_ns: int | None = None
    modules: tuple[Module, ...] = ()
    ticks: tuple[tuple[tuple[int, str, str, int], ...], ...] = ()
    lines: tuple[tuple[str, int, str, str, int], ...] = ()
    lost: int = 0
    notes: tuple[Note, ...] = ()
    round: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Parity:
    """Outputs of a point compared with eager in the same precision.

    ``max_relative_difference`` is the largest difference over an output's largest reference value,
    and ``max_abs_difference`` that difference.
    ``within_tolerance`` is None where the comparison proves nothing; ``reason`` says why.
    """

    kind: ClassVar[str] = "parity"
    session: str
    point: str
    reference: str
    max_abs_difference: float | None
    max_relative_difference: float | None
    tolerance: float
    within_tolerance: bool | None
    worst: str | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a process of a point ended: ``ok`` once it is warm, or why it could not be measured.

    ``first_ns`` is from the loaded runtime to the end of the first call. ``started`` is None where
    there was no such process, and in older stores: all were started.
    """

    kind: ClassVar[str] = "outcome"
    session: str
    point: str
    process: int
    status: Status
    reason: str | None = None
    warmup_calls: int | None = None
    load_ns: int | None = None
    first_ns: int | None = None
    peak_memory_bytes: int | None = None
    notes: tuple[Note, ...] = ()
    started: Started | None = None


LINEAR_REASON = "latency grows as fast as the batch"
"""Began the reason of points that sweeps once left out because smaller batches answer for them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A point that was asked for and not measured in this session, and why (the time budget)."""

    kind: ClassVar[str] = "left-out"
    session: str
    point: Point
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """What a session took, by wall time of the process that led it; none if it was interrupted.

    Attributes:
        wall_ns: from its begin to its end.
        setup_ns: waiting for set-up while there was nothing to measure.
        measuring_ns: warm-up, blocks, samples, device profiles, and the pauses between them.
        calls_ns: in calls of the model, timed or sampled.
    """

    kind: ClassVar[str] = "effort"
    session: str
    wall_ns: int
    setup_ns: int
    measuring_ns: int
    calls_ns: int


Record = (
    Session
    | Subject
    | Block
    | Calibration
    | Attribution
    | Places
    | Parity
    | Outcome
    | LeftOut
    | Effort
)
RECORDS: dict[str, type[Any]] = {cls.kind: cls for cls in get_args(Record)}


_IDENTITY: dict[str, Callable[[Any], tuple[Any, ...]]] = {
    kind: attrgetter(
        "kind", *(n for n in ("session", "point", "process", "round", "method") if hasattr(cls, n))
    )
    for kind, cls in RECORDS.items()
} | {
    Subject.kind: lambda one: (one.kind, one.session, one.point.key(), one.final),
    LeftOut.kind: lambda one: (one.kind, one.session, one.point.key()),
}
"""Kind of record → what makes it the same as another."""


def record_id(record: Record) -> tuple[Any, ...]:
    """Return what makes a record the same as another: reading a store drops the second of two."""
    return _IDENTITY[record.kind](record)


def session_order(session: str, started: str = "") -> tuple[str, str]:
    """Return what sessions sort by, oldest first.

    It is the time in the identity, which follows the order of the store even where the clock was
    set back between two sessions; an identity without one counts from when it says it started.
    """
    stamp = session.partition("-")[0]
    stamped = re.fullmatch(r"\d{8}T\d{6}", stamp)
    return (stamp if stamped else re.sub(r"[-:]", "", started[:19]), session)


def sessions_of(records: Iterable[Record]) -> list[Session]:
    """Return the session records, oldest first."""
    found = [record for record in records if isinstance(record, Session)]
    return sorted(found, key=lambda s: session_order(s.session, s.started))


# --- derived, written into documents ----------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator(HtmlRepr):
    """An operator inside a layer, "" for what none was seen at; ns in a call of the model."""

    name: str
    time_ns: Estimate
    bill_ns: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer(HtmlRepr):
    """What a module costs by itself, the modules inside it left out; ns in a call of the model.

    The times of all layers of a point add up to its latency, their ``bill_ns`` to its own.

    Attributes:
        path: as ``named_modules`` has it, "" for the model itself; None for the remainder, which
            no module was seen at.
        class_: name of its class; ``class`` in a document.
        file: of what was called.
        line: in the file.
        calls: in one call of the model.
    """

    __pydantic_config__: ClassVar[Mapping[str, Any]] = {
        "alias_generator": lambda name: name.removesuffix("_")
    }
    path: str | None
    class_: str
    file: str | None
    line: int | None
    calls: float
    time_ns: Estimate
    bill_ns: Mapping[str, float]
    operators: tuple[Operator, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceLine(HtmlRepr):
    """A line of Python that was being executed; ns in a call of the model."""

    file: str
    line: int
    function: str
    time_ns: Estimate
    bill_ns: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement(HtmlRepr):
    """Everything known of one point; raw samples included, ``[[process 0], [process 1], …]``.

    On a GPU ``kernel_names`` holds the kernels of one call by name; ``sm_activity`` and
    ``warp_occupancy`` are shares of the device, over the latency, by the launch of each kernel.
    ``page_faults`` are those of a call, mean while sampled.

    ``symbols_ns`` holds (line of the bill, library, symbol, ns in a call) of what was sampled
    most; ``layers`` and ``lines`` where in the model the latency arises, empty where that was not
    measured. ``blocks_ns`` holds (process, round, median latency) of each block, ``calibrator_ns``
    (round, median latency) of the session's calibrator: what a later session is compared with.
    """

    workload: Workload
    runtime: str
    paradigm: str
    platform: str
    threads: int
    status: Status
    reason: str | None = None
    latency_ns: Estimate | None = None
    pipelined_ns: Estimate | None = None
    enqueue_ns: Estimate | None = None
    kernel_ns: Estimate | None = None
    span_ns: Estimate | None = None
    tax_ns: Estimate | None = None
    tax_share: Estimate | None = None
    warm_overhead_ns: Estimate | None = None
    bill_ns: Mapping[str, float] | None = None
    bill_method: str | None = None
    kernel_detail_ns: Mapping[str, float] | None = None
    symbols_ns: tuple[tuple[str, str, str, float], ...] = ()
    layers: tuple[Layer, ...] = ()
    lines: tuple[SourceLine, ...] = ()
    sampler_inflation: float | None = None
    page_faults: float | None = None
    ratio_to_eager: Estimate | None = None
    launches: int | None = None
    kernel_names: Mapping[str, int] = field(default_factory=dict)
    sm_activity: Estimate | None = None
    warp_occupancy: Estimate | None = None
    operators: int | None = None
    flops: int | None = None
    macs: int | None = None
    parameters: int | None = None
    peak_memory_bytes: int | None = None
    setup_ns: int | None = None
    artifact_bytes: int | None = None
    padding_share: float | None = None
    first_token_ns: Estimate | None = None
    per_token_ns: Estimate | None = None
    regime: Regime | None = None
    parity: Parity | None = None
    process_spread: float | None = None
    block_spread: float | None = None
    started: tuple[Started, ...] = ()
    notes: tuple[Note, ...] = ()
    samples_ns: tuple[tuple[int, ...], ...] = ()
    session: str | None = None
    blocks_ns: tuple[tuple[int, int, float], ...] = ()
    calibrator_ns: tuple[tuple[int, float], ...] = ()

    @property
    def point(self) -> Point:
        """The point that was measured."""
        return Point(
            workload=self.workload,
            runtime=self.runtime,
            platform=self.platform,
            threads=self.threads,
        )

    def family(self) -> FamilyKey:
        """Return what points share that differ in runtime and batch alone, as ``Point`` does."""
        return _family(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve(HtmlRepr):
    """One axis of one model in one runtime, everything else fixed.

    The ends of ``free_batch`` are measured values: at the low end latency is within 10 % of the
    first value's, at the high end it is not. Its value is interpolated between them. Where it is a
    lower bound there is no such high end, and the largest measured value stands there.
    """

    model: str
    runtime: str
    platform: str
    precision: str
    axis: str
    values: tuple[float, ...]
    latency_ns: tuple[Estimate | None, ...]
    free_batch: Estimate | None
    free_is_lower_bound: bool
    regimes: tuple[Regime | None, ...]
    elasticity: tuple[float | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice(HtmlRepr):
    """What to do, with its evidence; ``gain`` is a factor on latency (1.9 = 1.9 times faster)."""

    action: str
    evidence: str
    gain: Estimate
    kind: Literal["measured", "bound", "predicted"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction(HtmlRepr):
    """What a change would give, or why that is refused.

    Attributes:
        change: what was asked, as typed: ``--device-speed 2``.
        subject: the measured point or trace step it starts from.
        formula: by name, as ``docs/method.md`` has it.
        latency_ns: predicted, with its interval; None if refused.
        factor: latency before over latency after (2 = twice as fast).
        shown_error: median and 95th percentile of the relative error this formula has shown,
            with the number of cases: ``{"median": 0.03, "p95": 0.07, "n": 11}``; None if never
            checked.
        reason: why it is refused.
        scales: what of the latency the change scales, and what it keeps.
    """

    change: str
    subject: str
    formula: str
    latency_ns: Estimate | None = None
    factor: Estimate | None = None
    shown_error: Mapping[str, float] | None = None
    reason: str | None = None
    scales: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Points(HtmlRepr):
    """How many points were asked for, and how many of them have a latency.

    Neither counts what is not available on this machine, nor larger batches that were left out
    because the curve is plainly linear.
    """

    asked: int
    measured: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnTax(HtmlRepr):
    """What the tool costs: 1 − time in calls of the model, timed or sampled, over wall time.

    The other fields are its parts, summed over the sessions; see ``Effort``.
    """

    share: float
    wall_ns: int
    setup_ns: int
    measuring_ns: int
    calls_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The document written by ``--json``; ``headline`` is the answer in a sentence."""

    schema: str = RUN_SCHEMA
    version: int = RUN_VERSION
    environment: Environment | None = None
    headline: str = ""
    harness_floor_ns: Estimate | None = None
    host_drift: float | None = None
    own_tax: OwnTax | None = None
    points: Points | None = None
    measurements: tuple[Measurement, ...] = ()
    curves: tuple[Curve, ...] = ()
    advice: tuple[Advice, ...] = ()
    left_out: tuple[str, ...] = ()
    notes: tuple[Note, ...] = ()
    trace: Mapping[str, Any] | None = None
    predictions: tuple[Prediction, ...] = ()
