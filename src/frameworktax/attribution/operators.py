"""Which operator of a framework each sample belongs to, by the functions that called it.

``call_stacks`` finds the callers of every sample up to Python; one of them names the operator:

- torch, also inside TorchScript, Inductor and AOTInductor: the function that calls an operator
  through the dispatcher (``at::_ops::addmm::call``). Of several inside one another it is the
  outermost: ``aten::linear`` has the time of the product in it.
- A loop that Inductor compiled: its name (``cpp_fused_add_gelu_0``).
- ONNX Runtime and OpenVINO, which are stripped: the method of the class that carries out a node,
  known by its virtual function table (``engine``). The object that it is a method of is in a
  register of that frame or of a caller's, which preserve it. It is known by its table too, and
  holds the name and type of the node; each node is a module of the call. A sample whose object is
  not found has the name of the class and belongs to no node.

What none of them called is the module's, the wrapper's or the executor's own, with an empty name:
the binding that reads an operator's arguments too.

``engine`` finds the class of a virtual function of a stripped library, of those that derive from
``onnxruntime::OpKernel`` or ``ov::intel_cpu::Node``: a table of virtual functions begins with a
pointer to the description of its class, which holds its name and the descriptions of its bases. A
function in the tables of several classes is the one's from which the others derive; where there is
none (equal code is folded), and their names without template arguments differ, it has no name.

Source: Itanium C++ ABI, 2.5 "Virtual Table Layout" and 2.9.5 "RTTI Layout".
"""

from __future__ import annotations

import os
import re
import struct
import sys
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from contextlib import nullcontext
from functools import cache
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from frameworktax.attribution import call_stacks
from frameworktax.attribution.buckets import classify, is_judged
from frameworktax.attribution.call_stacks import PC, SP, Caught, StackSampler, Unwinder
from frameworktax.attribution.layers import ModuleClock, by_place, places, refuse_compiled
from frameworktax.attribution.sampler import Call, refused_as_unavailable, sample
from frameworktax.attribution.symbols import (
    DAMAGED,
    KERNEL,
    Leaf,
    Resolver,
    SymbolTable,
    demangle,
    read_table,
)
from frameworktax.errors import WorkerError

PERIOD_NS = 737_000
"""Near the breakdown's; a stack comes with each sample, and more of them would cost too much."""
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
        self._name = cache(self._named)
        self._node_at = cache(lambda at, path, bias: node_at(at, engine(path), bias))

    def place(self, caught: Caught) -> tuple[Node | None, str]:
        """Return the node of a graph and the operator that a sample belongs to, "" for none."""
        outermost = ""
        callers = self._unwinder.callers(caught)
        for address, registers in callers:
            kind, name = self._name(address)
            if kind == "python":
                break
            if kind == "node":  # a node may run a graph of nodes: the innermost
                above = (there for _, there in islice(callers, ABOVE))
                node = self._node(address, [registers, *above])
                return node, node.type if node else name
            outermost = name or outermost
        return None, outermost

    def _node(self, address: int, frames: Iterable[Mapping[int, int]]) -> Node | None:
        """Return the node whose object a register holds, of the innermost frame that has one."""
        found = self._resolver.find(address)
        if found is None:
            return None
        path, _, place = found
        for registers in frames:
            for number, value in registers.items():
                if number in (SP, PC) or value % 8:
                    continue
                node = self._node_at(value, path, address - place)
                if node is not None:
                    return node
        return None

    def _named(self, address: int) -> tuple[str, str]:
        """Return (kind, name) of the code there: python, node, operator or nothing."""
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
        entry = table.unwind_entry(place)  # what follows its end is written by hand
        name = engine(path).functions.get(entry[2], "") if entry is not None else ""
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
    call: Call, root: Any, *, stretches: int = 5, duration_ns: int = 1_000_000_000, call_ns: int = 0
) -> dict[str, Any]:
    """Return which operator of which module each sample belongs to, as fields of ``Places``.

    Arguments and result are those of ``attribute_modules``. A ``root`` of None is one module, the
    model itself; nodes that an engine names are further ones, called as often as it: what a loop in
    the graph repeats is not known.

    Raises:
        WorkerError: this host allows no sampling, or its stacks are not known.
    """
    reason = call_stacks.missing()
    if reason:
        raise WorkerError("unavailable", reason)
    with refused_as_unavailable():
        with StackSampler(PERIOD_NS) as tried:
            room = tried.room()
        if room < LEAST_ROOM:
            text = "too little memory may be locked for stacks; raise it with: ulimit -l 8192"
            raise WorkerError("unavailable", text)
        # Half of the ring is to hold a call: what is lost of a longer one would be its end.
        sampler = StackSampler(max(PERIOD_NS, 2 * call_ns // room))

    def relieved() -> None:
        call()
        sampler.relieve()

    entered = None if root is None else ModuleClock(root)
    with sampler, entered or nullcontext():
        if entered is not None:
            refuse_compiled(call, entered)
        run = sample(relieved, sampler, stretches=stretches, duration_ns=duration_ns)
    caught = sampler.caught()
    every = [one for part in caught for one in part]
    if entered is None:
        modules: Sequence[dict[str, Any]] = [{"path": "", "type": "graph", "calls": run.calls}]
        where = iter([0] * len(every))
    else:
        modules = entered.modules()
        where = iter(entered.innermost([one.time_ns for one in every]))
    resolver = Resolver(judged=is_judged)
    leaves = resolver.resolve(one.address for one in every if not one.in_kernel)
    namer = Namer(resolver)
    nodes: dict[Node, int] = {}
    counts = []
    for part in caught:
        seen: Counter[tuple[int, str, str]] = Counter()
        for one in part:
            module = next(where)
            node, operator = namer.place(one)
            at = module if node is None else nodes.setdefault(node, len(modules) + len(nodes))
            leaf = Leaf(KERNEL, "") if one.in_kernel else leaves[one.address]
            seen[at, operator, classify(leaf)[0]] += 1
        counts.append(seen)
    further = [{"path": node.name, "type": node.type, "calls": run.calls} for node in nodes]
    return places("operator", run, **by_place([*modules, *further], counts))


# --- classes of virtual functions in stripped libraries -------------------------------------------


class Root(NamedTuple):
    """A class from which those of nodes derive.

    Attributes:
        common: the name of all of them; empty where each has its own.
        path: offsets of the pointers from an object to what holds its node's name and type.
        reach: how far in that to look for the two, bytes; 0 where they are not there.
    """

    common: str = ""
    path: tuple[int, ...] = ()
    reach: int = 0


ROOTS = {
    "N11onnxruntime8OpKernelE": Root(path=(8, 8), reach=16),
    "N2ov9intel_cpu4NodeE": Root(reach=1_024),
    "N2ov9intel_cpu20SubgraphBaseExecutorE": Root("Subgraph"),  # its node jumps there and is left
}
"""Class, as type information names it → what is known of it."""
WRAPPERS = ("NodeImpl",)
"""Classes around those of nodes."""
ABOVE = 3
"""Callers of a node's function that may hold its object."""
_RELATIVE, _ABSOLUTE = 8, 1  # R_X86_64_RELATIVE, R_X86_64_64
_ONE_BASE, _SEVERAL_BASES = "__si_class_type_info", "__vmi_class_type_info"
_STRING = 32
"""Bytes of a ``std::string``: where its text is, its length, and the text itself if it is short."""
_TYPE = re.compile(r"[A-Z]\w*")


class Node(NamedTuple):
    """A node of a graph, as the engine names it."""

    name: str
    type: str


class Engine(NamedTuple):
    """Start of a function → class of nodes that it belongs to, as ``MatMul``; and class tables.

    ``tables`` has, by the address that objects hold, the class that theirs derives from.
    """

    functions: dict[int, str]
    tables: dict[int, Root]


@cache
def engine(path: str) -> Engine:
    """Return what is known of a library's nodes.

    Empty for a library without such classes, and for one that cannot be read.
    """
    table = read_table(path)
    try:
        return Engine({}, {}) if table is None else _engine(table)
    except DAMAGED:
        return Engine({}, {})


def _engine(table: SymbolTable) -> Engine:
    if not any(table.holds(f"{root}\0".encode()) for root in ROOTS):
        return Engine({}, {})
    pointers, kinds = _pointers(table)
    names: dict[int, str] = {}
    bases: dict[int, list[int]] = {}
    for start, kind in kinds.items():
        names[start] = table.text(pointers.get(start + 8, 0)).lstrip("*")
        if kind == _ONE_BASE:
            slots = [start + 16]
        elif kind == _SEVERAL_BASES:
            count = int.from_bytes(table.code(start + 20, 4), "little")
            slots = [start + 24 + 16 * at for at in range(count)]
        else:
            slots = []
        bases[start] = [pointers[slot] for slot in slots if slot in pointers]
    roots = {one: ROOTS[name] for one, name in names.items() if name in ROOTS}
    nodes = _derived(bases, roots)
    functions = set(table.functions.tolist())
    owners: dict[int, set[int]] = defaultdict(set)
    tables = {}
    for at, described in pointers.items():
        if described not in nodes:
            continue
        slot = at + 8
        if not any(table.code(at - 8, 8)):  # else of a part of the object
            tables[slot] = next(roots[up] for up in nodes[described] if up in roots)
        while (function := pointers.get(slot, 0)) in functions:
            owners[function].add(described)
            slot += 8
    found = {}
    for function, classes in owners.items():
        own = {one for one in classes if not classes & nodes[one]} if len(classes) > 1 else classes
        called = {
            next((r.common for up in nodes[one] if (r := roots.get(up)) and r.common), "")
            or _short(names[one])
            for one in own
        }
        if len(called) == 1 and not called & set(WRAPPERS):
            found[function] = called.pop()
    return Engine(found, tables)


def node_at(address: int, known: Engine, bias: int) -> Node | None:
    """Return the node that the object at an address of this process carries out.

    None where there is no such object, and where it holds no name.

    Args:
        address: of the object; anything.
        known: of the library that has the object's class.
        bias: from addresses in the library's file to those in memory.
    """
    root = known.tables.get(_pointer(address) - bias)
    if root is None or not root.reach:
        return None
    for offset in root.path:
        address = _pointer(address + offset)
    data = _memory(address, root.reach + 2 * _STRING)
    for at in range(0, len(data) - 2 * _STRING, 8):
        kind = _string(data, address, at + _STRING)
        name = _string(data, address, at) if _TYPE.fullmatch(kind) else ""
        if name:
            return Node(name, kind)
    return None


def _memory(address: int, size: int) -> bytes:
    """Return bytes of this process, fewer where nothing is mapped."""
    try:
        with Path("/proc/self/mem").open("rb", buffering=0) as memory:
            return os.pread(memory.fileno(), size, address)
    except (OSError, OverflowError):
        return b""


def _pointer(address: int) -> int:
    return int.from_bytes(_memory(address, 8), "little")


def _string(data: bytes, begin: int, at: int) -> str:
    """Return the text of a ``std::string`` in memory read from ``begin`` on, "" for none."""
    start, size = struct.unpack_from("<QQ", data, at)
    is_short = start == begin + at + 16
    if not 0 < size < 1_024 or is_short != (size < 16):
        return ""
    text = data[at + 16 : at + 17 + size] if is_short else _memory(start, size + 1)
    if len(text) <= size or text[size]:
        return ""
    found = text[:size].decode("utf-8", "replace")
    return found if found.isprintable() else ""


def _pointers(table: SymbolTable) -> tuple[dict[int, int], dict[int, str]]:
    """Return address → what the pointer there points to, and class descriptions by their kind."""
    pointers: dict[int, int] = {}
    kinds: dict[int, str] = {}
    for found, symbol in table.relocations():
        kind = found["info"] & 0xFFFFFFFF
        relative = found[kind == _RELATIVE]
        pointers.update(zip(relative["offset"].tolist(), relative["addend"].tolist(), strict=True))
        absolute = found[kind == _ABSOLUTE]
        for offset, index, addend in zip(
            absolute["offset"].tolist(), (absolute["info"] >> 32).tolist(),
            absolute["addend"].tolist(), strict=True,
        ):  # fmt: skip
            name, value = symbol(index)
            if name.startswith("_ZTVN10__cxxabiv1"):
                kinds[offset] = name.removeprefix("_ZTVN10__cxxabiv1").lstrip("0123456789")[:-1]
            elif value:
                pointers[offset] = value + addend
    return pointers, kinds


def _derived(bases: dict[int, list[int]], roots: Container[int]) -> dict[int, set[int]]:
    """Return class that derives from a root → all classes that it derives from."""
    above: dict[int, set[int]] = {}

    def all_above(one: int) -> set[int]:
        if one not in above:
            above[one] = set()  # no class derives from itself
            above[one] = {up for base in bases.get(one, ()) for up in (base, *all_above(base))}
        return above[one]

    return {one: all_above(one) for one in bases if any(up in roots for up in all_above(one))}


def _short(name: str) -> str:
    """Return ``MatMul`` for the description of ``onnxruntime::MatMul<float>``."""
    text = demangle(f"_ZTI{name}").removeprefix("typeinfo for ")
    return re.sub(r"<.*", "", text).rpartition("::")[2]
