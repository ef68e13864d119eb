"""Requests to a measuring process and its answers: records here, lines of JSON in between.

``{"request": "Load", …}`` is answered by ``{"answer": {…}}`` or ``{"failure": {…}}``. The class of
a request names the class of its answer, so that ``Worker.request(Load(…))`` is a ``Loaded`` to
mypy; ``measure.worker`` has a method for each. Both ends use this module: it needs nothing but the
standard library.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, is_dataclass
from types import UnionType
from typing import (
    Any,
    ClassVar,
    Generic,
    Self,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from frameworktax.records import Attribution, By, Module, Note, Places, Workload
from frameworktax.runtimes.base import Target

A = TypeVar("A")


class Request(Generic[A]):
    """Asks for an answer of type ``A``.

    Attributes:
        step: its name in messages and in the accounting of time.
        sets_up: whether a wrong use found by it is the user's, and ends the session.
    """

    step: ClassVar[str]
    sets_up: ClassVar[bool] = False

    @classmethod
    def handled_by(cls, handler: Callable[[Self], A]) -> Handler:
        """Return an entry of the table of handlers; mypy checks that the types belong together."""
        return cls, handler


Handler = tuple[type[Request[Any]], Callable[[Any], Any]]


# --- answers ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """What the model or the runtime raised; ``status`` is a ``Fault``, usage or user-model."""

    status: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What one call at a batch size is made of; see ``models.describe``."""

    parameters: int | None = None
    flops: int | None = None
    macs: int | None = None
    operators: int | None = None
    padding_share: float | None = None
    notes: tuple[Note, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """A model, and facts by batch size."""

    facts: Mapping[int, Facts]
    has_twin: bool
    notes: tuple[Note, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """How long an export or compilation took."""

    setup_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """How long it took to make a runtime ready."""

    load_ns: int
    notes: tuple[Note, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """A batch size that is warm.

    Attributes:
        calls: of warm-up.
        call_ns: median of its last group.
        settled: whether calls had stopped getting faster.
        first_ns: the first call, which some runtimes compile in.
        peak_memory_bytes: of the process until now.
    """

    calls: int
    call_ns: int
    settled: bool
    first_ns: int
    peak_memory_bytes: int
    notes: tuple[Note, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputWritten:
    """Whether a second call gave the same output."""

    repeatable: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedBlock:
    """Raw times of one block, integer nanoseconds; see ``records.Block``."""

    latency_ns: tuple[int, ...]
    pipelined_ns: int
    pipelined_calls: int
    cpu_ns: int
    enqueue_ns: tuple[int, ...] | None = None
    first_token_ns: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """What a process holds in memory now."""

    resident_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Modules:
    """Names of the modules that a process has imported."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """How the module is called: ``runtimes.interface.Interface`` as plain data."""

    interface: Mapping[str, Any]
    sizes: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """Nothing but that it is done."""


# --- requests ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Describe(Request[Described]):
    """Build the model and count what can be counted, per batch size, in about ``limit_s``.

    ``live`` here and below: see ``Plan``.
    """

    step: ClassVar[str] = "describe"
    sets_up: ClassVar[bool] = True
    workload: Workload
    device: str
    batches: tuple[int, ...]
    limit_s: float
    live: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepare(Request[Prepared]):
    """Export or compile into a folder, for the measuring processes."""

    step: ClassVar[str] = "prepare"
    sets_up: ClassVar[bool] = True
    workload: Workload
    runtime: str
    target: Target
    folder: str
    batches: tuple[int, ...]
    live: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Load(Request[Loaded]):
    """Load the model, if the runtime needs it, and make the runtime ready."""

    step: ClassVar[str] = "load"
    sets_up: ClassVar[bool] = True
    workload: Workload
    runtime: str
    target: Target
    folder: str
    live: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Bind(Request[Bound]):
    """Make the call for one batch size and warm it up."""

    step: ClassVar[str] = "bind"
    batch: int
    limit_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOutput(Request[OutputWritten]):
    """Write the output of a call to a file, for comparison in the parent."""

    step: ClassVar[str] = "output"
    batch: int
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeBlock(Request[TimedBlock]):
    """Time one block, without a profiler."""

    step: ClassVar[str] = "block"
    batch: int
    calls: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibrate(Request[TimedBlock]):
    """Time the fixed calibrator: interpreter and arithmetic, the same on every host."""

    step: ClassVar[str] = "calibrate"
    duration_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample(Request[Attribution]):
    """Sample the program counter of the calling thread; session and point are left empty."""

    step: ClassVar[str] = "sample"
    batch: int
    duration_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplePlaces(Request[Places]):
    """Find which layer, operator or line each sample belongs to, in a run of its own."""

    step: ClassVar[str] = "places"
    batch: int
    by: By
    duration_ns: int
    stretches: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileDevice(Request[Attribution]):
    """Profile what the device does, and measure its span behind a backlog."""

    step: ClassVar[str] = "device"
    batch: int
    calls: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin(Request[Done]):
    """Pin every thread of the process; set-up before it may use the whole machine."""

    step: ClassVar[str] = "pin"
    cpus: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadMemory(Request[Memory]):
    """Read how much memory the process holds now."""

    step: ClassVar[str] = "memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class ListModules(Request[Modules]):
    """List the imported modules: tests keep this process small."""

    step: ClassVar[str] = "modules"


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw(Request[Drawn]):
    """Write inputs drawn like the model's own, and what eager makes of them.

    ``number`` 0 is the model's own input; others are drawn from it as seed.
    """

    step: ClassVar[str] = "draw"
    sets_up: ClassVar[bool] = True
    workload: Workload
    device: str
    batch: int
    number: int
    inputs: str
    outputs: str
    live: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Serve(Request[Done]):
    """Have the deployment in a folder make outputs of drawn inputs, as its user calls it."""

    step: ClassVar[str] = "serve"
    folder: str
    inputs: str
    outputs: str
    on_torch: bool


REQUESTS: Mapping[str, type[Request[Any]]] = {
    kind.__name__: kind
    for kind in (
        Describe, Prepare, Load, Bind, WriteOutput, TimeBlock, Calibrate, Sample, SamplePlaces,
        ProfileDevice, Pin, ReadMemory, ListModules, Draw, Serve,
    )
}  # fmt: skip


def notes(pairs: Iterable[tuple[str, str]]) -> tuple[Note, ...]:
    """Return the (code, text) pairs of models, runtimes and samplers as records."""
    return tuple(Note(code, text) for code, text in pairs)


def attribution(found: Mapping[str, Any]) -> Attribution:
    """Return what a sampler or a device profile found as a record without session and point."""
    fields = {**found, "notes": notes(found["notes"])}
    return Attribution(session="", point="", process=0, **fields)


def places(found: Mapping[str, Any]) -> Places:
    """Return what a run by place found as a record without session and point."""
    modules = tuple(Module(**fields) for fields in found["modules"])
    fields = {**found, "modules": modules, "notes": notes(found["notes"])}
    return Places(session="", point="", process=0, **fields)


# --- lines of JSON ----------------------------------------------------------------------------


def encode_request(request: Request[Any]) -> bytes:
    """Return a request as a line."""
    fields = asdict(request)  # type: ignore[call-overload] # every request is a dataclass
    return _line({"request": type(request).__name__, **fields})


def decode_request(line: str) -> Request[Any]:
    """Return the request in a line."""
    fields = json.loads(line)
    request: Request[Any] = _decode(REQUESTS[fields.pop("request")], fields)
    return request


def encode_answer(answer: Any) -> bytes:
    """Return an answer, or a ``Failure``, as a line."""
    return _line({"failure" if isinstance(answer, Failure) else "answer": asdict(answer)})


def decode_answer(request: Request[A], line: bytes) -> A | Failure:
    """Return what a line answers to a request."""
    found = json.loads(line)
    if "failure" in found:
        return Failure(**found["failure"])
    (base,) = type(request).__orig_bases__  # type: ignore[attr-defined] # typing's, Request[A]
    answer: A = _decode(get_args(base)[0], found["answer"])
    return answer


def _line(data: Mapping[str, Any]) -> bytes:
    return json.dumps(data).encode() + b"\n"


_hints: dict[Any, dict[str, Any]] = {}


def _decode(hint: Any, value: Any) -> Any:
    """Return plain JSON data as the annotated type: dataclasses, tuples, mappings, plain values."""
    if is_dataclass(hint):
        if hint not in _hints:
            _hints[hint] = get_type_hints(hint)
        hints = _hints[hint]
        return hint(**{name: _decode(hints[name], field) for name, field in value.items()})  # type: ignore[operator] # a class
    if value is None:
        return None
    kind, arguments = get_origin(hint), get_args(hint)
    if kind in (Union, UnionType):  # the only unions are those with None
        return _decode(arguments[0], value)
    if kind is tuple and arguments[-1] is not ...:
        return tuple(map(_decode, arguments, value))
    if kind is tuple:
        return tuple(_decode(arguments[0], item) for item in value)
    if isinstance(kind, type) and issubclass(kind, Mapping):  # not so for a Literal
        key, inner = arguments
        return {key(name): _decode(inner, item) for name, item in value.items()}
    return value
