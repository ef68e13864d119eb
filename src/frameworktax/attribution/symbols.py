"""From program counters to (library, symbol), without external tools.

An address is looked up in ``/proc/self/maps``, turned from a file offset into an ELF address, and
searched in the file's symbol table (``elf.py``), which is read when first hit.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import numpy as np

from frameworktax.attribution.elf import SymbolTable

JIT = "[jit]"
KERNEL = "[kernel]"
UNKNOWN = "[unknown]"


class Leaf(NamedTuple):
    """Where a program counter was: basename of the library, mangled symbol ('' if none)."""

    library: str
    symbol: str


@dataclass(frozen=True, slots=True)
class Region:
    """One executable mapping: ``[start, end)`` holds the file ``path`` from ``offset`` on."""

    start: int
    end: int
    offset: int
    path: str


def parse_maps(text: str) -> list[Region]:
    """Return the executable mappings of a ``/proc/PID/maps`` text, by address."""
    regions = []
    for line in text.splitlines():
        fields = line.split(maxsplit=5)
        if len(fields) < 5 or "x" not in fields[1]:
            continue
        start, end = (int(part, 16) for part in fields[0].split("-"))
        path = fields[5] if len(fields) > 5 else ""
        regions.append(Region(start, end, int(fields[2], 16), path))
    return sorted(regions, key=lambda region: region.start)


@cache
def _demangler() -> Callable[[bytes], str] | None:
    try:
        library = ctypes.CDLL("libstdc++.so.6")  # every engine written in C++ brings it
    except OSError:
        return None
    function, free = library.__cxa_demangle, ctypes.CDLL(None).free
    function.restype = ctypes.c_void_p
    free.argtypes = [ctypes.c_void_p]

    def apply(name: bytes) -> str:
        status = ctypes.c_int()
        pointer = function(name, None, None, ctypes.byref(status))
        if not pointer:
            return name.decode()
        text = ctypes.string_at(pointer).decode("utf-8", "replace")
        free(pointer)
        return text

    return apply


def demangle(name: str) -> str:
    """Return a C++ symbol in words; anything else, and all where libstdc++ is absent, as it is."""
    base, dot, clone = name.partition(".")
    apply = _demangler() if base.startswith("_Z") else None
    if apply is None:
        return name
    return apply(base.encode()) + (f" [clone .{clone}]" if dot else "")


class Resolver:
    """Turns program counters of this process into leaves; tables are read when first hit."""

    def __init__(self, maps: str | None = None) -> None:
        text = Path("/proc/self/maps").read_text() if maps is None else maps
        self._regions = parse_maps(text)
        self._starts = np.array([region.start for region in self._regions], np.uint64)
        self._tables: dict[str, SymbolTable | None] = {}
        self._libc: dict[str, LibcNames] = {}

    def resolve(self, addresses: Iterable[int]) -> dict[int, Leaf]:
        """Return address → leaf for every distinct user-space address."""
        return {address: self._leaf(address) for address in set(addresses)}

    def _leaf(self, address: int) -> Leaf:
        at = int(np.searchsorted(self._starts, np.uint64(address), side="right"))
        region = self._regions[at - 1] if at else None
        if region is None or address >= region.end:
            return Leaf(UNKNOWN, "")
        path = region.path
        if not path or path.startswith(("/memfd:", "/dev/zero", "[anon", "//anon", "[heap]")):
            return Leaf(JIT, "")  # code generated while running: oneDNN, XNNPACK
        if path.startswith("["):
            return Leaf(path, "")
        library = PurePosixPath(path.removesuffix(" (deleted)")).name
        table = self._table(path)
        vaddr = table.address(address - region.start + region.offset) if table else None
        if table is None or vaddr is None:
            return Leaf(library, "")
        load_bias = address - vaddr
        if library.startswith(("libc.so", "libc-2")):
            if path not in self._libc:
                self._libc[path] = LibcNames(table, load_bias)
            special = self._libc[path].find(vaddr)
            if special is not None:
                return Leaf(library, special)
        name = table.find(vaddr)
        if name is None:
            start = table.function(vaddr)
            name = f"sub_{start:x}" if start is not None else ""
        return Leaf(library, demangle(name))

    def _table(self, path: str) -> SymbolTable | None:
        if path not in self._tables:
            try:
                self._tables[path] = SymbolTable(path)
            except (OSError, ValueError):
                # Deleted, replaced, or not ELF: the library is still known by its name.
                self._tables[path] = None
        return self._tables[path]


_MALLOC_OBJECT = (
    "malloc", "free", "calloc", "realloc", "memalign", "aligned_alloc", "posix_memalign",
    "valloc", "pvalloc", "malloc_trim", "malloc_usable_size", "mallinfo", "mallinfo2", "mallopt",
    "malloc_info", "malloc_stats", "__default_morecore",
)  # fmt: skip
_CHOSEN_AT_LOAD = (
    "memcpy", "memmove", "memset", "memcmp", "memchr", "strlen", "strcmp", "strncmp", "strchr",
)  # fmt: skip


def _malloc_span(table: SymbolTable) -> tuple[int, int]:
    own = [span for found in table.values(_MALLOC_OBJECT).values() for span in found]
    if not own:
        return 0, 0
    first = min(value for value, _ in own)
    before = table.end_before(first)
    return before, max(value + size for value, size in own)


class LibcNames:
    """Names for the two parts of a stripped libc that matter here.

    The allocator's inner functions (``_int_malloc`` …) are static, so that a stripped libc does
    not name them; but glibc compiles its allocator as one object, and the linker keeps an object's
    code together: the allocator reaches from the end of the exported function before malloc.c's
    first to the end of malloc.c's last. (The gap in front may also hold unexported functions at the
    end of the object before; in glibc that is the timer_* family, which inference does not call.)

    ``memcpy`` and its like are IFUNCs: which of their variants this processor uses is what
    ``dlsym`` returns; the variant's extent comes from the unwind table.
    """

    def __init__(self, table: SymbolTable, load_bias: int) -> None:
        self._table = table
        self._malloc = _malloc_span(table)
        self._variants: dict[int, str] = {}
        libc = ctypes.CDLL(None)
        for name in _CHOSEN_AT_LOAD:
            if not hasattr(libc, name):
                continue
            target = ctypes.cast(getattr(libc, name), ctypes.c_void_p).value or 0
            start = table.function(target - load_bias)
            if start is not None:
                self._variants.setdefault(start, name)

    def find(self, address: int) -> str | None:
        """Return ``malloc-internal`` or the chosen variant's public name, or None."""
        if self._malloc[0] <= address < self._malloc[1]:
            return self._table.find(address) or "malloc-internal"
        start = self._table.function(address)
        return self._variants.get(start) if start is not None else None
