"""What is known of a program that was run and observed, as the document of ``--json``.

A program has sections, one for each thread that had something to say; a section has kinds of
calls and what lies between them. Times are integers or estimates in ns, shares fractions; None is
what could not be measured, and a reason says why.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from frameworktax.notebook import HtmlRepr
from frameworktax.records import Environment, Estimate, Layer, Note, SourceLine
from frameworktax.report.json_document import plain

SCHEMA = "frameworktax.calls"
VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind(HtmlRepr):
    """Calls of one module, or of one function such as backward, in one thread.

    Attributes:
        kind: ``module``, ``backward``, ``step``, ``data`` or ``tokenise``.
        name: of the class, numbered where several modules have it.
        source: ``file:line`` of what is called, empty where not known.
        called_from: ``file:line`` of the program, where it was called first.
        import_name: ``module:class``, empty for what is no module.
        calls: of them the first ``skipped`` are in no other number.
        wall_ns: of all calls, without calls of modules inside a step or a wait for data.
        latency_ns: mean of the medians of stretches of consecutive calls, its interval over them.
        p50_ns, p90_ns, p99_ns: of the calls.
        bill_ns: this latency by line of the breakdown.
        reason: why there is no tax.
        layers: as of a measured point; from the calls that were noted in detail.
        samples: in its calls; ``placed`` of them in calls that were noted in detail.
        detailed: how many calls those were.
        inputs: (what such a call was given: shapes and types, how many of them), most first.
    """

    kind: str
    name: str
    source: str
    called_from: str
    import_name: str
    calls: int
    skipped: int
    wall_ns: int
    latency_ns: Estimate | None
    p50_ns: int | None
    p90_ns: int | None
    p99_ns: int | None
    kernel_ns: Estimate | None = None
    tax_ns: Estimate | None = None
    tax_share: Estimate | None = None
    bill_ns: Mapping[str, float] = field(default_factory=dict)
    bill_method: str | None = None
    reason: str | None = None
    samples: int = 0
    detailed: int = 0
    placed: int = 0
    layers: tuple[Layer, ...] = ()
    lines: tuple[SourceLine, ...] = ()
    inputs: tuple[tuple[Any, int], ...] = ()
    notes: tuple[Note, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Part(HtmlRepr):
    """Something that a thread did between calls, or in all of its time where it had none.

    Attributes:
        name: a library, ``python``, ``waiting``, ``others had the processor`` …
        time_ns: in all of the section.
        share: of the section's time.
    """

    name: str
    time_ns: float
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Section(HtmlRepr):
    """A thread.

    Attributes:
        pid, tid: as the operating system counts; ``parent`` started the process, if it is known.
        name: of process and thread.
        wall_ns: between its first call's begin and its last one's end; without calls while it
            was seen.
        cpu_ns: processor time from samples in all of its life.
        before_ns: from its begin to the first call.
        kinds: of calls, those that took most time first.
        between: of ``wall_ns``, what belongs to no kind.
        lines: of Python that the thread was at between calls; without a breakdown.
    """

    pid: int
    tid: int
    parent: int | None
    name: str
    wall_ns: int
    cpu_ns: int
    before_ns: int
    kinds: tuple[Kind, ...] = ()
    between: tuple[Part, ...] = ()
    lines: tuple[SourceLine, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Program(HtmlRepr):
    """A program that was run and observed.

    Attributes:
        command: as it was executed.
        status: exit code, or the number of the signal that ended it, negative.
        wall_ns: that it was observed.
        cpu_ns: of all its processes, from samples; None without.
        period_ns: processor time between two samples of a thread.
        sections: threads with calls first, those that took most time first.
        advice: what to do, a sentence and the commands for it.
    """

    command: tuple[str, ...]
    status: int | None
    headline: str
    wall_ns: int
    cpu_ns: int | None
    period_ns: int | None
    sections: tuple[Section, ...] = ()
    advice: tuple[tuple[str, tuple[str, ...]], ...] = ()
    notes: tuple[Note, ...] = ()
    environment: Environment | None = None
    schema: str = SCHEMA
    version: int = VERSION


def dump(program: Program) -> dict[str, Any]:
    """Return it as plain JSON data."""
    found: dict[str, Any] = plain(asdict(program))
    return found
