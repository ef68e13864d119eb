"""What a measuring process answers: records here, a line of JSON in between.

``Worker.request(Server.bind, 60.0, batch=1, …)`` has the method ``bind`` of ``measure.worker``'s
``Server`` called in the measuring process; mypy knows its arguments and its answer. The request is
pickled: it comes from this package. The answer has passed through foreign code: it is JSON, and is
checked against the method's annotation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from frameworktax.records import Attribution, Module, Note, Places


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """What the model or the runtime raised; ``status`` is a ``Fault``, usage or user-model.

    ``is_end``: the process is of no use any more.
    """

    status: str
    message: str
    is_end: bool = False


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
class Drawn:
    """How the module is called: ``runtimes.deployment.Interface`` as plain data.

    ``sizes`` are those of its inputs, ``made`` those of its outputs.
    """

    interface: Mapping[str, Any]
    sizes: tuple[tuple[int, ...], ...]
    made: tuple[tuple[int, ...], ...]


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
