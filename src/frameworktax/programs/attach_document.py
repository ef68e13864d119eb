"""What is known of a program that was observed, as the document of ``--json``.

A program has processes, and sections, one for each thread. Times are integers or estimates in ns,
shares fractions; None is what could not be measured, and a note says why.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from frameworktax.notebook import HtmlRepr
from frameworktax.records import Environment, Estimate, Note
from frameworktax.report.json_document import plain

SCHEMA = "frameworktax.program"
VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Section(HtmlRepr):
    """A thread.

    Attributes:
        pid, tid: as the operating system counts; ``tid`` None for many threads that have ended.
        name: of the thread.
        wall_ns: that it was seen.
        cpu_ns: its processor time in that; the rest it waited, for work or for a processor.
        tax_share: share of its processor time outside math kernels; None without samples.
        bill_ns: its processor time by line of the breakdown.
        samples, lost: how many there are, and how many were due and have no record.
        ended: whether the thread has ended.
    """

    pid: int
    tid: int | None
    name: str
    wall_ns: int
    cpu_ns: int
    tax_share: Estimate | None = None
    bill_ns: Mapping[str, float] = field(default_factory=dict)
    samples: int = 0
    lost: int = 0
    ended: bool = False


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
    """A process.

    Attributes:
        parent: that started it.
        wall_ns: that it was seen.
        cpu_ns: processor time of its sampled threads.
        unseen_cpu_ns: its processor time beyond that, signed: threads that began and ended between
            two looks, or could not be sampled; None where it ended before it was read.
        idle_ns: time in which none of its threads ran, at least and at most.
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
    idle_ns: tuple[int, int]
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
        verb: what observed it.
        command: as it was executed.
        wall_ns: that it was observed.
        cpu_ns: of its sampled threads.
        period_ns: processor time between two samples of a thread.
        observer_cpu_ns: that observing took, in other processes.
        processes: the first is the one asked for, the others are those it started.
        sections: threads, those that took most processor time first.
    """

    verb: str
    command: tuple[str, ...]
    headline: str
    wall_ns: int
    cpu_ns: int | None
    period_ns: int | None
    observer_cpu_ns: int | None = None
    tax_share: Estimate | None = None
    processes: tuple[Process, ...] = ()
    sections: tuple[Section, ...] = ()
    notes: tuple[Note, ...] = ()
    environment: Environment | None = None
    schema: str = SCHEMA
    version: int = VERSION


def dump(program: Program) -> dict[str, Any]:
    """Return it as plain JSON data."""
    found: dict[str, Any] = plain(asdict(program))
    return found
