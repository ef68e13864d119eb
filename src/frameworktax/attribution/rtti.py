"""Which class a virtual function of a stripped library belongs to, by its type information.

A table of virtual functions begins with a pointer to the description of its class, which holds the
class's name and the descriptions of its bases. Of the classes that carry out nodes of a graph,
those that derive from ``onnxruntime::OpKernel`` or ``ov::intel_cpu::Node``, functions are named.
A function in the tables of several classes is the one's from which the others derive; where there
is no such one (equal code is folded), and their names without template arguments differ, it has no
name.

Source: Itanium C++ ABI, 2.5 "Virtual Table Layout" and 2.9.5 "RTTI Layout".
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Container
from functools import cache

from frameworktax.attribution.symbols import SymbolTable, demangle

ROOTS = {
    "N11onnxruntime8OpKernelE": "",
    "N2ov9intel_cpu4NodeE": "",
    "N2ov9intel_cpu20SubgraphBaseExecutorE": "Subgraph",  # its node jumps there and is left
}
"""Class, as type information names it, from which those of nodes derive → their common name.

Empty where each has its own.
"""
WRAPPERS = ("NodeImpl",)
"""Classes around those of nodes."""
_RELATIVE, _ABSOLUTE = 8, 1  # R_X86_64_RELATIVE, R_X86_64_64
_ONE_BASE, _SEVERAL_BASES = "__si_class_type_info", "__vmi_class_type_info"


@cache
def operators(path: str) -> dict[int, str]:
    """Return start of a function → class of nodes that it belongs to, as ``MatMul``.

    Empty for a library without such classes, and for one that cannot be read.
    """
    try:
        table = SymbolTable(path)
        return _operators(table)
    except (OSError, ValueError, IndexError, KeyError):
        return {}


def _operators(table: SymbolTable) -> dict[int, str]:
    if not any(table.holds(f"{root}\0".encode()) for root in ROOTS):
        return {}
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
    for at, described in pointers.items():
        slot = at + 8
        while described in nodes and (function := pointers.get(slot, 0)) in functions:
            owners[function].add(described)
            slot += 8
    found = {}
    for function, classes in owners.items():
        own = {one for one in classes if not classes & nodes[one]} if len(classes) > 1 else classes
        called = {
            next((roots[up] for up in nodes[one] if roots.get(up)), "") or _short(names[one])
            for one in own
        }
        if len(called) == 1 and not called & set(WRAPPERS):
            found[function] = called.pop()
    return found


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
