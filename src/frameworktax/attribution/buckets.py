"""Which line of the bill a sampled leaf belongs to, and a sampled run as fields of a record.

Libraries are known by their basename, never by their path: ``python3.11`` is part of the path
of every file of a virtual environment. Inside torch's libraries the demangled symbol decides.
The rules are tables in ``buckets.toml``; what has no symbol where one is needed is ``remainder``.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

from frameworktax.attribution.machine_code import Work
from frameworktax.attribution.sampler import SampleRun, Stretch
from frameworktax.attribution.symbols import JIT, KERNEL, STUB, UNKNOWN, Judging, Leaf

Place = tuple[str, str]
"""A line of ``records.BILL``, and the part of it ('' except for ``kernel``)."""

UNREAD = "unread"
"""Part of the remainder of which nothing is known; it may be kernels."""

NUMPY = "_multiarray_umath."
_TOP = 20
_SYMBOL_CHARACTERS = 160
_NOTED = 0.05
"""Share of samples placed by machine code, or not at all, above which a note says so."""


def _read_rules() -> dict[str, list[tuple[re.Pattern[str], Place]]]:
    tables = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    return {
        name: [(re.compile(pattern), (line, part)) for pattern, line, part in rows]
        for name, rows in tables.items()
    }


_RULES = _read_rules()

# Modules of the standard library whose time is work on buffers rather than the interpreter's.
_WORKING_MODULES = {"_bz2", "_lzma", "_md5", "_sha1", "_sha2", "_sha256", "_sha512", "_sha3",
                    "_blake2", "audioop", "binascii", "zlib"}  # fmt: skip


_BY_WORK: dict[Work, Place] = {
    "kernel": ("kernel", "unnamed"),
    "copy": ("kernel", "copying"),
    "other": ("runtime", ""),
    "unknown": ("remainder", UNREAD),
}


def _first(rules: str, text: str) -> Place | None:
    return next((place for pattern, place in _RULES[rules] if pattern.search(text)), None)


def qualified(symbol: str) -> str:
    """Return a demangled name without return type, template and function arguments.

    ``(anonymous namespace)`` becomes ``{anon}``, so that it survives.
    """
    text = symbol.split(" [clone")[0].replace("(anonymous namespace)", "{anon}")
    text = text.replace(") const::", ")::")
    if text.startswith("operator "):
        return text
    text = text.replace("operator()", "operator_call").replace("->", "")
    text = re.sub(r"operator(<<|>>|<=|>=|<|>)", "operator_", text)
    before = ""
    while before != text:
        before, text = text, re.sub(r"<[^<>()]*>|\([^<>()]*\)", "", text)
    words = [word for word in text.split() if word not in ("const", "volatile", "&", "&&")]
    return words[-1] if words else ""


@cache
def classify(leaf: Leaf) -> Place:
    """Return (line of the bill, part of it) for one leaf."""
    library, symbol, work, made_by = leaf
    if library == KERNEL or library == "[vsyscall]":
        return "system", ""
    if library == UNKNOWN:
        return "remainder", UNREAD
    if library == JIT:  # named by a perf map: Python's own trampolines
        return ("python", "") if symbol.startswith("py::") else ("kernel", "jit")
    if library == "[vdso]":
        return "python", ""  # clocks that the measuring loop reads
    bucket, detail = _of_library(library)
    if bucket:
        return bucket, detail
    if detail == "support" and made_by:
        return made_by, ""
    if detail == "libc":
        if made_by:
            return ("kernel", "copying") if made_by == "copying" else (made_by, "")
        return _first("libc", symbol) or ("dispatch", "")
    if not symbol or symbol.startswith("sub_"):
        if work is not None and detail not in ("support", "wrapper"):
            return _BY_WORK[work]
        missing = {"support": ("dispatch", ""), "wrapper": ("runtime", "")}
        return missing.get(detail, ("remainder", UNREAD))
    name = qualified(symbol)
    place = _first("signature", symbol) or _first("name", name)
    if work == "kernel" and detail == "torch":
        place = _first("mixed", name)
    if place is not None:
        return place
    if detail in ("wrapper", "engine"):
        return "runtime", ""
    if detail or re.match(r"(c10|at|torch|pybind11|std|THP)\b", name):
        return "dispatch", ""  # torch's own code, also where a user's operator inlined it
    return ("remainder", "") if work == "other" else _BY_WORK[work or "unknown"]


def _by_code(leaf: Leaf) -> bool:
    return leaf.work not in (None, "unknown") and (not leaf.symbol or leaf.symbol[:4] == "sub_")


def is_copy(leaf: Leaf) -> bool:
    """Return whether a leaf is ``memcpy`` or its like."""
    return leaf.library.startswith("libc") and classify(leaf) == ("kernel", "memory")


def goes_by_caller(leaf: Leaf) -> bool:
    """Return whether what called a leaf says where it belongs, and lies at the top of the stack.

    So it is of copies, and of the lookup of a variable that each thread has: Python from 3.12 on
    looks up its own for most objects that it makes. So it is of the stubs through which a library
    calls another's functions, too: a loop that computes exponentials calls one for each vector.
    """
    return is_copy(leaf) or _is_lookup(leaf) or leaf.symbol == STUB


def _is_lookup(leaf: Leaf) -> bool:
    return leaf.symbol == "__tls_get_addr"


def with_caller(leaf: Leaf, caller: Leaf) -> Leaf:
    """Return a leaf that goes by its caller with the line that it belongs to.

    A kernel's, an operator's and numpy's copies are kernel time. Of those that a stripped library
    makes outside its loops it is not known whether they are an operator's: they are as its copying
    loops. A lookup is no kernel's work, even where a kernel makes it; a stub is part of its caller.
    """
    if leaf.symbol == STUB:
        return caller
    bucket, _ = classify(caller)
    if _is_lookup(leaf):
        is_known = bucket not in ("kernel", "system", "remainder")
        return leaf._replace(made_by=bucket) if is_known else leaf
    is_operator = re.match(r"at::native::", qualified(caller.symbol))
    if bucket in ("kernel", "system") or is_operator or caller.library.startswith(NUMPY):
        return leaf
    unknown = bucket == "runtime" and caller.work == "other"
    return leaf._replace(made_by="copying" if unknown else bucket)


def is_judged(library: str, symbol: str | None) -> Judging:
    """Return whether machine code is to say what a library does at a place, of this symbol.

    Of operators of torch that compute in loops of their own only these are judged.
    """
    bucket, detail = _of_library(library)
    if not bucket and (not detail or (symbol is None and detail in ("engine", "torch"))):
        return "all"
    return "loops" if symbol and detail == "torch" and _first("mixed", symbol) else ""


@cache
def _of_library(library: str) -> Place:
    """Return the place of a library; modules of the standard library in C belong to python."""
    module = library.split(".")[0]
    standard = module in sys.stdlib_module_names and module not in _WORKING_MODULES
    own = ("python", "") if standard and ".so" in library else ("", "")
    return _first("library", library) or own


def system_ticks(stretch: Stretch, period_ns: int) -> int:
    """Return the ticks spent inside the operating system.

    A sampler that is allowed user mode only records nothing for a tick inside the kernel, so that
    ``CPU time / period - ticks seen - ticks lost`` is the kernel's part. It is a difference of
    two counts: signed, right within one tick a stretch, and below zero now and then.
    """
    if stretch.ticks.system is not None:
        return stretch.ticks.system
    due = round(stretch.cpu_ns / period_ns)
    return due - sum(stretch.ticks.leaves.values()) - stretch.ticks.lost


def itemise(run: SampleRun) -> dict[str, Any]:
    """Return a sampled run as the fields of ``records.Attribution``.

    Notes are (code, text) pairs. Shares of a bucket are its samples over all samples of the
    stretch; ``off_cpu_ns`` is wall minus CPU time of the thread, signed.
    """
    samples: list[dict[str, int]] = []
    detail: Counter[str] = Counter()
    leaders: Counter[tuple[str, Leaf]] = Counter()
    notes: list[tuple[str, str]] = []
    for stretch in run.stretches:
        buckets: Counter[str] = Counter()
        for leaf, count in stretch.ticks.leaves.items():
            bucket, part = classify(leaf)
            buckets[bucket] += count
            leaders[bucket, leaf] += count
            if part:
                detail[part] += count
        buckets["system"] += system_ticks(stretch, run.period_ns)
        samples.append(dict(buckets))
    if any(stretch.ticks.system is None for stretch in run.stretches):
        notes.append(
            ("system-from-missing-ticks", "kernel-mode samples are not allowed here; time in the "
             "operating system is CPU time minus the ticks seen in user mode")
        )  # fmt: skip
    total = sum(sum(stretch.values()) for stretch in samples)
    if sum(count for (_, leaf), count in leaders.items() if _by_code(leaf)) > _NOTED * total:
        notes.append(
            ("machine-code", "code without symbols is placed by what its instructions do; loops "
             "that only move data (copying) count as kernels, and intervals reach to where they do "
             "not")
        )  # fmt: skip
    unplaced: Counter[str] = Counter()
    for (bucket, leaf), count in leaders.items():
        if bucket == "remainder":
            unplaced[leaf.library] += count
    if unplaced.total() > _NOTED * total:
        libraries = ", ".join(name for name, _ in unplaced.most_common(3))
        text = (
            f"nothing is known of code in {libraries}: its time counts as tax, an upper bound; "
            "intervals reach to where it is none"
        )
        notes.append(("unplaced", text))
    queued = [stretch.queued_ns for stretch in run.stretches]
    known = [ns for ns in queued if ns is not None]
    faults = [s.page_faults for s in run.stretches if s.page_faults is not None]
    return {
        "method": run.method,
        "calls": run.calls,
        "wall_ns": sum(stretch.wall_ns for stretch in run.stretches),
        "latency_ns": run.latency_ns,
        "period_ns": run.period_ns,
        "off_cpu_ns": sum(stretch.wall_ns - stretch.cpu_ns for stretch in run.stretches),
        "queued_ns": sum(known) if len(known) == len(queued) else None,
        "page_faults": sum(faults) if len(faults) == len(run.stretches) else None,
        "samples": tuple(samples),
        "detail": dict(detail),
        "top": tuple(
            (bucket, leaf.library, leaf.symbol[:_SYMBOL_CHARACTERS], count)
            for (bucket, leaf), count in leaders.most_common(_TOP)
        ),
        "lost": sum(stretch.ticks.lost for stretch in run.stretches),
        "notes": tuple(notes),
    }
