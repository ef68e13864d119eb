"""What is known of a program, run or attached to, as the document of ``--json``.

A program has sections, one for each thread. Of one that was run, sections have kinds of calls and
what lies between them; of one that was attached to, processes have places and functions. Times are
integers or estimates in ns, shares fractions; None is what could not be measured, and a note or a
reason says why.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from frameworktax.notebook import HtmlRepr
from frameworktax.records import Environment, Estimate, Layer, Note

SCHEMA = "frameworktax.program"
VERSION = 2
"""History: 1 had ``idle_ns`` of a process, ``before_ns`` of sections, ``lines`` of sections
and kinds. 2 has ``threads`` of a section; its ``tid`` and ``lost`` may be null."""
CALLS = ("module", "backward", "step")
"""Kinds that are calls; the others lie between calls."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind(HtmlRepr):
    """Calls of one module, copies of it, or one function such as backward, in one thread.

    Copies have the same class, the same structure and the same place that they are called from.

    Attributes:
        kind: ``module``, ``backward``, ``step``, ``data`` or ``tokenise``.
        name: of the class, numbered where several modules have it.
        source: ``file:line`` of what is called, empty where not known.
        called_from: ``file:line`` of the program, where it was called first.
        modules: how many the copies are, 0 of what is no module.
        import_name: ``module:class``, empty for what is no module.
        calls: of them the first ``skipped`` are in no other number.
        timed: of those, how many have a time; the others are like their neighbours in all numbers.
        wall_ns: of these calls, without calls of modules inside a step or a wait for data.
        latency_ns: mean of the medians of stretches of consecutive calls, its interval over them.
        p50_ns, p90_ns, p99_ns: of the calls.
        bill_ns: this latency by line of the breakdown.
        reason: why there is no tax.
        layers: as of a measured point; from the calls that were noted in detail.
        samples: in its calls; ``placed`` of them in calls that were noted in detail.
        detailed: how many calls those were.
        inputs: (what such a call was given: shapes and types, how many of them), most first; with
            numbers and texts, and where a tensor's bytes were noted, if values were asked for.
        construction: source that makes the module and what it imports, arguments that are missing,
            names of the arguments of forward, number of parameters, file of the program; empty if
            inputs were not asked for.
    """

    kind: str
    name: str
    source: str
    called_from: str
    import_name: str
    calls: int
    skipped: int
    wall_ns: int
    modules: int = 0
    timed: int = 0
    latency_ns: Estimate | None = None
    p50_ns: int | None = None
    p90_ns: int | None = None
    p99_ns: int | None = None
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
    inputs: tuple[tuple[Any, int], ...] = ()
    construction: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[Note, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Part(HtmlRepr):
    """Something that a thread did between calls, or in all of its time where it had none.

    Attributes:
        name: a library, ``python``, ``off the processor``, ``calls left out`` (skipped) …
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
        pid, tid: as the operating system counts; ``tid`` None for many threads together.
        threads: how many they are; all of their times are sums.
        name: of the thread, and of the process where it was run.
        wall_ns: between its first call's begin and its last one's end; without calls while it
            was seen.
        cpu_ns: its processor time in all of its life, or while it was seen.
        parent: that started the process, if it is known.
        tax_share: share of its processor time outside math kernels; None where it is not known.
        bill_ns: its processor time by line of the breakdown.
        samples, lost: how many there are, and how many were due and have no record; None where that
            is known of all programs on the processors together.
        ended: whether the thread has ended.
        kinds: of calls, those that took most time first.
        hidden: how many other kinds it has, whose names were not asked for.
        between: of ``wall_ns``, what belongs to no kind.
    """

    pid: int
    tid: int | None
    name: str
    wall_ns: int
    cpu_ns: int
    threads: int = 1
    parent: int | None = None
    tax_share: Estimate | None = None
    bill_ns: Mapping[str, float] = field(default_factory=dict)
    samples: int = 0
    lost: int | None = 0
    ended: bool = False
    kinds: tuple[Kind, ...] = ()
    hidden: int = 0
    between: tuple[Part, ...] = ()

    @property
    def calls_ns(self) -> int:
        """Time of its calls, without what lies between them."""
        return sum(kind.wall_ns for kind in self.kinds if kind.kind in CALLS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Function(HtmlRepr):
    """A function of Python.

    Attributes:
        own: samples in it, or in native code that it called.
        total: samples in it and in Python functions that it called.
    """

    name: str
    file: str
    own: int
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Process(HtmlRepr):
    """A process that was attached to.

    Attributes:
        parent: that started it.
        wall_ns: that it was seen.
        cpu_ns: processor time of its sampled threads.
        unseen_cpu_ns: its processor time beyond that, signed: threads that began and ended between
            two looks, or could not be sampled; None where it ended before it was read.
        tax_share: share of processor time outside math kernels; None without samples.
        bill_ns: processor time by line of the breakdown.
        symbols_ns: (line, library, symbol, processor time), most first.
        functions: of Python, most own samples first; where there are none, a note says why.
    """

    pid: int
    parent: int
    command: tuple[str, ...]
    is_python: bool
    wall_ns: int
    cpu_ns: int
    unseen_cpu_ns: int | None
    tax_share: Estimate | None
    bill_ns: Mapping[str, float]
    symbols_ns: tuple[tuple[str, str, str, float], ...]
    functions: tuple[Function, ...] = ()
    ended: bool = False
    notes: tuple[Note, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Program(HtmlRepr):
    """A program that was observed.

    Attributes:
        verb: what observed it, ``run`` or ``attach``.
        command: as it was executed.
        wall_ns: that it was observed.
        cpu_ns: of its threads, from samples of a run; None without.
        period_ns: processor time between two samples of a thread.
        status: exit code of a run, or the number of the signal that ended it, negative.
        observer_cpu_ns: that observing took, in other processes.
        tax_share: share of all processor time outside math kernels, of what was attached to.
        processes: of what was attached to: the one asked for, then those it started.
        sections: threads, those that took most time first.
        advice: what to do, a sentence and the commands for it.
    """

    verb: str
    command: tuple[str, ...]
    headline: str
    wall_ns: int
    cpu_ns: int | None
    period_ns: int | None
    status: int | None = None
    observer_cpu_ns: int | None = None
    tax_share: Estimate | None = None
    processes: tuple[Process, ...] = ()
    sections: tuple[Section, ...] = ()
    advice: tuple[tuple[str, tuple[str, ...]], ...] = ()
    notes: tuple[Note, ...] = ()
    environment: Environment | None = None
    schema: str = SCHEMA
    version: int = VERSION
