"""Which operator of a framework each sample belongs to, by the functions that called it.

``call_stacks`` finds the callers of every sample up to Python; one of them names the operator:

- torch, also inside TorchScript, Inductor and AOTInductor: the function that calls an operator
  through the dispatcher (``at::_ops::addmm::call``). Of several inside one another it is the
  outermost: ``aten::linear`` has the time of the product in it.
- A loop that Inductor compiled: its name (``cpp_fused_add_gelu_0``).
- ONNX Runtime and OpenVINO, which are stripped: the method of the class that carries out a node,
  known by its virtual function table (``rtti``). Nodes of one class are one operator.

What none of them called is the module's, the wrapper's or the executor's own, with an empty name:
the binding that reads an operator's arguments too. Nothing is recorded while calls run, so that the
call takes what it takes under any sampling, and no samples are an observer's.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Mapping
from functools import cache
from pathlib import PurePosixPath
from typing import Any

from frameworktax.attribution import call_stacks, rtti
from frameworktax.attribution.buckets import classify, is_judged
from frameworktax.attribution.call_stacks import Caught, StackSampler, Unwinder
from frameworktax.attribution.layers import OUTSIDE, ModuleClock, modules_called, refuse_compiled
from frameworktax.attribution.sampler import Call, sample
from frameworktax.attribution.symbols import KERNEL, Leaf, Resolver, demangle
from frameworktax.clock import REAL, Clock
from frameworktax.errors import WorkerError

PERIOD_NS = 737_000
"""Half of the breakdown's: an operator has few samples, and latency is not taken from this run."""
LEAST_ROOM = 4
"""Samples that the ring must hold: half of them are to span a call."""

_PYTHON = re.compile(r"(lib)?python\d")
_COMPILED = re.compile(r"(c[a-z2-7]{40,})\..*so$")
_CALLED = re.compile(r"_ZN2at4_ops(\d+)")
_ROUTED = re.compile(r"::wrapper_[A-Za-z]+_(\w+)|VariableType::\(anonymous namespace\)::(\w+)\(")


class Namer:
    """Names the operator that callers belong to."""

    def __init__(self, resolver: Resolver) -> None:
        self._resolver = resolver
        self._unwinder = Unwinder(resolver)
        self._names: dict[int, tuple[str, str]] = {}

    def operator(self, caught: Caught) -> str:
        """Return the operator that a sample belongs to, "" for none."""
        outermost = ""
        for address in self._unwinder.callers(caught):
            kind, name = self._name(address)
            if kind == "python":
                break
            if kind == "node":  # a node may run a graph of nodes: the innermost
                return name
            outermost = name or outermost
        return outermost

    def _name(self, address: int) -> tuple[str, str]:
        """Return (kind, name) of the code there: python, node, operator or nothing."""
        if address not in self._names:
            self._names[address] = self._named(address)
        return self._names[address]

    def _named(self, address: int) -> tuple[str, str]:
        found = self._resolver.find(address)
        if found is None:
            return "", ""
        path, table, place = found
        library = PurePosixPath(path).name
        if _PYTHON.match(library):
            return "python", ""
        symbol = table.find(place) or ""
        compiled = _COMPILED.match(library)
        if compiled and symbol in ("kernel", "kernel_py(_object*, _object*)"):
            return "operator", _inductor_names().get(compiled[1], compiled[1][:12])
        if symbol.startswith("cpp_fused"):
            return "operator", symbol
        if symbol:
            return "operator", torch_operator(symbol)
        start = table.function(place)
        name = rtti.operators(path).get(start, "") if start is not None else ""
        return ("node", name) if name else ("", "")


def torch_operator(symbol: str) -> str:
    """Return ``aten::addmm`` for a mangled function that calls or routes to that, "" for others."""
    called = _CALLED.match(symbol)
    if called:
        begin = called.end()
        name = symbol[begin : begin + int(called[1])]
        return _schemas().get(name, f"aten::{name}")
    if "wrapper_" not in symbol and "VariableType" not in symbol:
        return ""
    routed = _ROUTED.search(demangle(symbol))
    return _schemas().get(routed[1] or routed[2], "") if routed else ""


@cache
def _schemas() -> Mapping[str, str]:
    """Return name and overload, as functions carry them in either order → ``aten::name``."""
    torch = sys.modules.get("torch")
    if torch is None:
        return {}
    found: dict[str, str] = {}
    for schema in torch._C._jit_get_all_schemas():
        library, _, name = schema.name.rpartition("::")
        if library != "aten":
            continue
        overload = schema.overload_name
        for key in (f"{name}_{overload}" if overload else name, f"{overload}_{name}", name):
            found.setdefault(key, schema.name)
    return found


def _inductor_names() -> dict[str, str]:
    """Return library without suffix → name of the loop in it, of all that Inductor has loaded."""
    cache_ = sys.modules.get("torch._inductor.codecache")
    modules = [] if cache_ is None else cache_.PyCodeCache.modules
    return {
        str(getattr(kernel, "__module__", "")).removesuffix(".kernel"): name
        for module in modules
        for name, kernel in vars(module).items()
        if name.startswith("cpp_fused")
    }


def attribute_operators(
    call: Call,
    root: Any,
    *,
    stretches: int = 5,
    duration_ns: int = 1_000_000_000,
    min_calls: int = 3,
    clock: Clock = REAL,
) -> dict[str, Any]:
    """Return which operator of which module each sample belongs to, as fields of ``Places``.

    Arguments and result are those of ``attribute_modules``; a ``root`` of None is one module, the
    model itself.

    Raises:
        WorkerError: this host allows no sampling, or its stacks are not known.
    """
    reason = call_stacks.missing()
    if reason:
        raise WorkerError("unavailable", reason)
    begin = clock.wall_ns()
    call()
    call_ns = clock.wall_ns() - begin
    try:
        with StackSampler(PERIOD_NS) as tried:
            room = tried.room()
        if room < LEAST_ROOM:
            text = "too little memory may be locked for stacks; raise it with: ulimit -l 8192"
            raise WorkerError("unavailable", text)
        # Half of the ring is to hold a call: what is lost of a longer one would be its end.
        sampler = StackSampler(max(PERIOD_NS, 2 * call_ns // room))
    except OSError as error:
        raise WorkerError("unavailable", f"{error.strerror or error}") from error

    def relieved() -> None:
        call()
        sampler.relieve()

    more: dict[str, Any] = {
        "stretches": stretches, "duration_ns": duration_ns, "min_calls": min_calls, "clock": clock
    }  # fmt: skip
    with sampler:
        if root is None:
            run = sample(relieved, sampler, **more)
            modules: list[dict[str, Any]] = [{"path": "", "type": "", "calls": run.calls}]
            caught = sampler.caught()
            where = [[0] * len(part) for part in caught]
        else:
            with ModuleClock(root) as entered:
                refuse_compiled(call)
                del entered.events[:]
                run = sample(relieved, sampler, **more)
            modules = list(entered.modules())
            caught = sampler.caught()
            where = [entered.innermost([one.time_ns for one in part]) for part in caught]
    every = modules_called(modules)
    place = {OUTSIDE: OUTSIDE} | {index: at for at, (index, _) in enumerate(every)}
    resolver = Resolver(judged=is_judged)
    namer = Namer(resolver)
    ticks = []
    for part, indices in zip(caught, where, strict=True):
        leaves = resolver.resolve(one.address for one in part if not one.in_kernel)
        counts = Counter(
            (
                place[index],
                namer.operator(one),
                classify(Leaf(KERNEL, "") if one.in_kernel else leaves[one.address])[0],
            )
            for index, one in zip(indices, part, strict=True)
        )
        ticks.append(tuple((*key, count) for key, count in counts.items()))
    return {
        "method": "operator",
        "calls": run.calls,
        "latency_ns": run.latency_ns,
        "wall_ns": sum(stretch.wall_ns for stretch in run.stretches),
        "period_ns": run.period_ns,
        "modules": tuple(module for _, module in every),
        "ticks": tuple(ticks),
        "lost": sum(stretch.ticks.lost for stretch in run.stretches),
        "notes": (),
    }
